# SPDX-License-Identifier: Apache-2.0
"""Layers that are one product: linear layers and convolutions."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from cpd.nn.converted.state import State
from cpd.nn.functional import linear


class EmulatedLinear:
    """torch.nn.Linear by `cpd.functional.linear`."""

    what: ClassVar[str] = "products"
    cpd: State
    weight: Tensor
    bias: Tensor | None

    def forward(self, input: Tensor) -> Tensor:
        state = self.cpd
        return linear(
            input,
            self.weight,
            self.bias,
            recipe=state.recipe,
            stream=state.stream(),
            delayed=state.delayed,
        )

    @classmethod
    def describe(cls, state: State) -> str:
        return str(state.recipe)

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        return ""


MIXINS: dict[type[nn.Module], type[Any]] = {nn.Linear: EmulatedLinear}
