# SPDX-License-Identifier: Apache-2.0
"""Layers that are one product: linear layers and convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

from torch import Tensor, nn

from cpd.nn.converted.state import State
from cpd.nn.functional import conv2d, linear


class Product:
    """What the layers here have in common."""

    what: ClassVar[str] = "products"
    delays: ClassVar[bool] = True
    cpd: State
    weight: Tensor
    bias: Tensor | None

    @classmethod
    def describe(cls, state: State) -> str:
        return _of_products(state)

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        return ""


def _of_products(state: State) -> str:
    """What of a recipe products use."""
    how = state.recipe if state.recipe is not None else next(state.phases())
    unused = dict.fromkeys(("norm", "softmax", "embedding", "residual", "attention"))
    others = dict.fromkeys(("update", "state", "wire", "loss_scale"))
    return str(replace(how, layer=0, source="", **unused, **others))


class EmulatedLinear(Product):
    """torch.nn.Linear by `cpd.functional.linear`."""

    def forward(self, input: Tensor) -> Tensor:
        state = self.cpd
        return linear(
            input,
            self.weight,
            self.bias,
            recipe=state.recipe,  # type: ignore[arg-type]  # not None here
            stream=state.stream(),
            delayed=state.delayed,
        )


class EmulatedConv2d(Product):
    """torch.nn.Conv2d by `cpd.functional.conv2d`."""

    stride: Any
    padding: Any
    dilation: Any
    groups: int
    padding_mode: str

    def forward(self, input: Tensor) -> Tensor:
        state = self.cpd
        return conv2d(
            input,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.dilation,
            self.groups,
            recipe=state.recipe,  # type: ignore[arg-type]
            padding_mode=self.padding_mode,
        )


MIXINS: dict[type[nn.Module], type[Any]] = {nn.Linear: EmulatedLinear, nn.Conv2d: EmulatedConv2d}
