# SPDX-License-Identifier: Apache-2.0
"""Layers whose GEMMs, forward and backward, are computed as a recipe says."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from cpd.functional import Pair, conv2d, linear
from cpd.recipes import Recipe, RecipeLike
from cpd.recipes import recipe as _recipe

LayerT = TypeVar("LayerT", bound=nn.Module)


class Linear(nn.Linear):
    """torch.nn.Linear, computed by `cpd.functional.linear`.

    Arguments and state are those of torch.nn.Linear, so that either loads the other's state_dict,
    and:

        recipe: a `cpd.Recipe`, or one accumulator for all three GEMMs.
        layer: number by which layers of one recipe draw other random bits (see `cpd.Recipe`);
            default: the recipe's own.

    >>> layer = Linear(8, 2, recipe="e4m3 kahan")
    >>> layer
    Linear(in_features=8, out_features=2, bias=True, forward='e4m3 kahan')
    >>> layer(torch.ones(5, 8)).shape
    torch.Size([5, 2])
    """

    recipe: Recipe

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: RecipeLike,
        layer: int | None = None,
    ) -> None:
        how = _of_layer(recipe, layer)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.recipe = how

    @classmethod
    def from_torch(
        cls, module: nn.Linear, recipe: RecipeLike, *, layer: int | None = None
    ) -> Linear:
        """The same layer, computed by `recipe`. It shares the parameters of `module`.

        >>> Linear.from_torch(torch.nn.Linear(3, 4, bias=False), "fp32")
        Linear(in_features=3, out_features=4, bias=False, forward='fp32 sequential')
        """
        _check_module(module, nn.Linear)
        made = cls(
            module.in_features,
            module.out_features,
            module.bias is not None,
            "meta",
            recipe=recipe,
            layer=layer,
        )
        return _taking(made, module)

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias, recipe=self.recipe)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.recipe}"


class Conv2d(nn.Conv2d):
    """torch.nn.Conv2d, computed by `cpd.functional.conv2d`.

    Arguments and state are those of torch.nn.Conv2d, so that either loads the other's state_dict,
    and `recipe` and `layer` as in `Linear`.

    >>> layer = Conv2d(2, 4, 3, padding="same", recipe="e6m9 chunked")
    >>> layer(torch.ones(1, 2, 5, 5)).shape
    torch.Size([1, 4, 5, 5])
    """

    recipe: Recipe

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: Pair = 1,
        padding: Pair | str = 0,
        dilation: Pair = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        recipe: RecipeLike,
        layer: int | None = None,
    ) -> None:
        how = _of_layer(recipe, layer)
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            padding_mode,  # type: ignore[arg-type]  # torch checks it
            device,
            dtype,
        )
        self.recipe = how

    @classmethod
    def from_torch(
        cls, module: nn.Conv2d, recipe: RecipeLike, *, layer: int | None = None
    ) -> Conv2d:
        """The same layer, computed by `recipe`. It shares the parameters of `module`."""
        _check_module(module, nn.Conv2d)
        made = cls(
            module.in_channels,
            module.out_channels,
            module.kernel_size,  # type: ignore[arg-type]  # two numbers
            module.stride,  # type: ignore[arg-type]
            module.padding,  # type: ignore[arg-type]
            module.dilation,  # type: ignore[arg-type]
            module.groups,
            module.bias is not None,
            module.padding_mode,
            "meta",
            recipe=recipe,
            layer=layer,
        )
        return _taking(made, module)

    def forward(self, input: Tensor) -> Tensor:
        return conv2d(
            input,
            self.weight,
            self.bias,
            self.stride,  # type: ignore[arg-type]  # two numbers
            self.padding,  # type: ignore[arg-type]
            self.dilation,  # type: ignore[arg-type]
            self.groups,
            recipe=self.recipe,
            padding_mode=self.padding_mode,
        )

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.recipe}"  # type: ignore[no-untyped-call]


def _of_layer(recipe: RecipeLike, layer: int | None) -> Recipe:
    how = _recipe(recipe)
    return how if layer is None else how.for_layer(layer)


def _check_module(module: Any, wanted: type[nn.Module]) -> None:
    if not isinstance(module, wanted):
        raise TypeError(f"module must be a torch.nn.{wanted.__name__}, got {type(module).__name__}")


def _taking(made: LayerT, module: nn.Module) -> LayerT:
    """`made` with the parameters and the mode of `module`."""
    for name in ("weight", "bias"):
        made.register_parameter(name, getattr(module, name))
    return made.train(module.training)
