# SPDX-License-Identifier: Apache-2.0
"""Normalisations, rounded to the recipe's `norm`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpd.nn import norms
from cpd.nn.converted.replaced import lacks, run_with
from cpd.nn.converted.state import State

_FUNCTIONS: dict[Any, Callable[..., Tensor]] = {
    F.layer_norm: norms.layer_norm,
    F.rms_norm: norms.rms_norm,
    torch.rms_norm: norms.rms_norm,  # what torch.compile sees of it
    F.group_norm: norms.group_norm,
    F.batch_norm: norms.batch_norm,
    F.instance_norm: norms.instance_norm,
}
"""Torch's functions, of which each layer here calls one, and what replaces them."""


class EmulatedNorm:
    """Torch's forward, with the function of the same name in `cpd.functional`.

    Torch's forward updates its statistics.
    """

    what: ClassVar[str] = "norm"
    cpd: State

    def forward(self, input: Tensor) -> Tensor:
        """Computes the module's forward by the recipe."""
        forward = super().forward  # type: ignore[misc]  # the module's
        parameters = (*self._parameters.values(), *self._buffers.values())  # type: ignore[attr-defined]
        if norms.mixes_types(input, parameters):
            forward(input)  # raises torch's error where torch refuses the types
        y: Tensor = run_with(_FUNCTIONS, self.cpd, forward, input)
        return y

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return f"norm={next(str(how.norm) for how in state.phases() if how.norm is not None)!r}"

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
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
