# SPDX-License-Identifier: Apache-2.0
"""Normalisations, rounded to the recipe's `norm`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from cpd.nn import norms
from cpd.nn.converted.replaced import Replaced, lacks

if TYPE_CHECKING:
    from cpd.nn.converted.state import State

_FUNCTIONS = {
    F.layer_norm: norms.layer_norm,
    F.rms_norm: norms.rms_norm,
    F.group_norm: norms.group_norm,
    F.batch_norm: norms.batch_norm,
    F.instance_norm: norms.instance_norm,
}
"""Torch's, of which each layer here calls one, and what answers in its place."""


class EmulatedNorm:
    """Torch's forward, which keeps its statistics, with the function of that name of
    `cpd.functional`."""

    what: ClassVar[str] = "norm"
    cpd: State

    def forward(self, input: Tensor) -> Tensor:
        how = {"recipe": self.cpd.recipe, "stream": self.cpd.stream()}
        with Replaced(_FUNCTIONS, how):
            y: Tensor = super().forward(input)  # type: ignore[misc]  # the module's
        return y

    @classmethod
    def describe(cls, state: State) -> str:
        return f"norm={next(str(how.norm) for how in state.phases() if how.norm is not None)!r}"

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        return lacks(state, "norm")


MIXINS: dict[type[nn.Module], type[Any]] = dict.fromkeys(
    (
        nn.LayerNorm,
        nn.RMSNorm,
        nn.GroupNorm,
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
    ),
    EmulatedNorm,
)
