# SPDX-License-Identifier: Apache-2.0
"""torch.nn.TransformerEncoderLayer: no layer of its own, but in eval mode it may read the weights
of those within it and compute without calling them."""

from __future__ import annotations

from typing import Any

from cpd.nn.converted.state import State


class CallsItsLayers:
    """A TransformerEncoderLayer whose fast path is off while layers of its model are emulated.

    The path asks for an activation that it knows; so does torch.nn.TransformerEncoder before it
    makes nested tensors. Its own code is torch's.
    """

    __dict__: dict[str, Any]
    cpd_states: tuple[State, ...]
    """Of the layers within encoder layers."""

    @property
    def activation_relu_or_gelu(self) -> Any:
        if any(state.recipe is not None for state in self.cpd_states):
            return 0
        return self.__dict__["activation_relu_or_gelu"]

    @activation_relu_or_gelu.setter
    def activation_relu_or_gelu(self, value: Any) -> None:
        self.__dict__["activation_relu_or_gelu"] = value
