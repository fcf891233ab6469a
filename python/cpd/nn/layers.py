# SPDX-License-Identifier: Apache-2.0
"""Layers whose GEMMs, forward and backward, are computed as a recipe says."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from cpd.nn import bypasses
from cpd.nn.arguments import mixes_types
from cpd.nn.convolution import Pair
from cpd.nn.functional import conv2d, linear
from cpd.nn.recipe import Recipe, RecipeLike, as_recipe
from cpd.numeric.checked import checked, refused_by_torch

LayerT = TypeVar("LayerT", bound="Linear | Conv2d")


@checked
class Linear(nn.Linear):
    """torch.nn.Linear, computed by `cpd.functional.linear`.

    Its state is torch.nn.Linear's, so that either loads the other's state_dict.

    Args:
        in_features: the size of each input row.
        out_features: the size of each output row.
        bias: whether it has a bias; default True.
        device: as torch's; default None.
        dtype: as torch's; default None.
        recipe: a `cpd.Recipe`, or one accumulator for all three GEMMs.
        layer: the number by which layers of one recipe use different random bits (`cpd.Recipe`);
            default None: the recipe's own.

    >>> import cpd
    >>> layer = Linear(8, 2, recipe=cpd.Recipe(sums="e4m3 kahan"))
    >>> layer
    Linear(in_features=8, out_features=2, bias=True, forward='e4m3 kahan')
    >>> layer(torch.ones(5, 8)).shape
    torch.Size([5, 2])
    """

    recipe: Recipe

    @refused_by_torch
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
        super().__init__(in_features, out_features, bias, _device(device), dtype)
        self.recipe = how

    @classmethod
    def from_torch(
        cls, module: nn.Linear, recipe: RecipeLike, *, layer: int | None = None
    ) -> Linear:
        """Returns the layer of a torch.nn.Linear, computed by `recipe`.

        It shares the parameters of `module` (the same objects, so optimizers and tied weights stay
        as they are). It has its other state: buffers, mode, hooks, pruning, torch.nn.utils'
        weight_norm and spectral_norm, user-defined attributes. A handle of a hook continues to mean
        the hook of `module`.

        Args:
            module: the layer.
            recipe: a `cpd.Recipe`, or one accumulator for all three GEMMs.
            layer: the number by which layers of one recipe use different random bits
                (`cpd.Recipe`); default None: the recipe's own.

        Returns:
            The layer.

        Raises:
            TypeError: for a module of another class, a subclass with its own forward, and out_proj
                of torch.nn.MultiheadAttention, which never calls it. The error names the way out.
            ValueError: for a module that is parametrized, compiled by itself or lazy.

        >>> import cpd
        >>> Linear.from_torch(torch.nn.Linear(3, 4, bias=False), cpd.Recipe(sums="fp32"))
        Linear(in_features=3, out_features=4, bias=False, forward='fp32 sequential')
        """
        _check_module(module, nn.Linear, cls)
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
        """Returns input · weightᵀ + bias, for an input of … × in_features."""
        if mixes_types(self, input):
            super().forward(input)  # raises torch's error
        return linear(input, self.weight, self.bias, recipe=self.recipe)

    def extra_repr(self) -> str:
        """Returns the arguments, as `repr` shows them."""
        return f"{super().extra_repr()}, recipe={str(self.recipe)!r}"


@checked
class Conv2d(nn.Conv2d):
    """torch.nn.Conv2d, computed by `cpd.functional.conv2d`.

    Its state is torch.nn.Conv2d's, so that either loads the other's state_dict.

    Args:
        in_channels: the number of input channels.
        out_channels: the number of output channels.
        kernel_size: a number or a pair.
        stride: as torch's; default 1.
        padding: as torch's; default 0.
        dilation: as torch's; default 1.
        groups: as torch's; default 1.
        bias: whether it has a bias; default True.
        padding_mode: as torch's; default "zeros".
        device: as torch's; default None.
        dtype: as torch's; default None.
        recipe: a `cpd.Recipe`, or one accumulator for all three GEMMs.
        layer: the number by which layers of one recipe use different random bits (`cpd.Recipe`);
            default None: the recipe's own.

    >>> import cpd
    >>> layer = Conv2d(2, 4, 3, padding="same", recipe=cpd.Recipe(sums="e6m9 chunked"))
    >>> layer(torch.ones(1, 2, 5, 5)).shape
    torch.Size([1, 4, 5, 5])
    """

    recipe: Recipe

    @refused_by_torch
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
            _device(device),
            dtype,
        )
        self.recipe = how

    @classmethod
    def from_torch(
        cls, module: nn.Conv2d, recipe: RecipeLike, *, layer: int | None = None
    ) -> Conv2d:
        """Returns the layer of a torch.nn.Conv2d, computed by `recipe`, as `Linear.from_torch`.

        Args:
            module: the layer.
            recipe: a `cpd.Recipe`, or one accumulator for all three GEMMs.
            layer: the number by which layers of one recipe use different random bits
                (`cpd.Recipe`); default None: the recipe's own.

        Returns:
            The layer.

        Raises:
            TypeError: as `Linear.from_torch`.
            ValueError: as `Linear.from_torch`.
        """
        _check_module(module, nn.Conv2d, cls)
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
        """Returns the convolution of an input of N × C × H × W."""
        if mixes_types(self, input):
            super().forward(input)  # raises torch's error
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
        """Returns the arguments, as `repr` shows them."""
        return f"{super().extra_repr()}, recipe={str(self.recipe)!r}"  # type: ignore[no-untyped-call]


def _device(device: Any) -> torch.device | None:
    """A device of torch or its name, as torch.device."""
    if device is None or isinstance(device, torch.device):
        return device
    if isinstance(device, bool) or not isinstance(device, (str, int)):
        raise TypeError(f"device must be a torch.device or its name, got {type(device).__name__}")
    try:
        return torch.device(device)
    except RuntimeError:
        raise ValueError(f"device must be a torch.device or its name, got {device!r}") from None


def _of_layer(recipe: RecipeLike, layer: int | None) -> Recipe:
    how = as_recipe(recipe)
    return how if layer is None else how._for_layer(layer)


# ---- from torch's layers -------------------------------------------------------------------------

COMPUTING_METHODS = ("forward", "_conv_forward", "__call__", "__getattr__")
"""The methods by which a layer of torch computes; a subclass of it may override them."""
_LOST = (*COMPUTING_METHODS, "weight", "bias")
"""The attributes of a subclass of torch's layer that a layer made of it would not have."""
_CONTAINERS = frozenset(vars(nn.Module()))


def _check_module(module: Any, wanted: type[nn.Module], ours: type[nn.Module]) -> None:
    """Raises unless `module` computes as `wanted` does, of which `ours` is a subclass."""
    if not isinstance(module, wanted):
        raise TypeError(f"module must be a torch.nn.{wanted.__name__}, got {type(module).__name__}")
    if isinstance(module, nn.modules.linear.NonDynamicallyQuantizableLinear):
        raise TypeError(bypasses.message("MultiheadAttention"))
    if parametrize.is_parametrized(module):
        raise ValueError(
            "module is parametrized, which cannot be taken over: make it a layer of ours first and "
            "parametrize that, or remove_parametrizations"
        )
    if any(is_lazy(x) for x in (*module.parameters(), *module.buffers())):
        raise ValueError("module is lazy, its shapes not known yet: call it on an input first")
    if vars(module).get("_compiled_call_impl") is not None:
        raise ValueError("module was compiled by itself: compile the layer made of it instead")
    own = _own_computing(module, wanted, ours)
    if own:
        raise TypeError(
            f"module must compute as torch.nn.{wanted.__name__} does, but {type(module).__name__} "
            f"has its own {own[0]}, which would be lost: write it with cpd.functional instead"
        )


def _own_computing(module: nn.Module, wanted: type[nn.Module], ours: type[nn.Module]) -> list[str]:
    """The names of the attributes that compute, or would be lost, which `module` overrides."""
    own = ["forward"] if "forward" in vars(module) else []
    for name in _LOST:
        known = getattr(wanted, name, None), getattr(ours, name, None)
        if getattr(type(module), name, None) not in known:
            own.append(name)
    return own


def _taking(made: LayerT, module: nn.Module) -> LayerT:
    """`made` with the state of `module`."""
    recipe = made.recipe
    for name, value in vars(module).items():
        made.__dict__[name] = copy.copy(value) if name in _CONTAINERS else value
    made.recipe = recipe
    bound: Any = made  # to which hooks of load_state_dict are bound; they are untyped in torch
    hooks: Any = list(module._load_state_dict_pre_hooks.values())
    bound._load_state_dict_pre_hooks.clear()
    for hook in hooks:
        bound._register_load_state_dict_pre_hook(hook.hook, hook.with_module)
    return made


bypasses.watch((Linear, Conv2d))
