# SPDX-License-Identifier: Apache-2.0
"""torch.nn.TransformerEncoder and its layers.

They round nothing themselves, but in eval mode a layer may read the weights of those within it and
compute without calling them, on nested tensors.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from cpd.nn.converted.state import State


def _switch(name: str, off: Any) -> property:
    """Returns the module's attribute of that name.

    It is `off` while layers of its model's encoders are emulated.
    """

    def get(module: Any) -> Any:
        if any(state.recipe is not None for state in module.cpd_states):
            return off
        return vars(module)[name]

    def put(module: Any, value: Any) -> None:
        vars(module)[name] = value

    return property(get, put)


class CallsItsLayers:
    """A TransformerEncoderLayer without the fast path, which needs an activation that it knows."""

    cpd_states: tuple[State, ...]
    """The states of the emulated layers within the model's encoders."""
    activation_relu_or_gelu = _switch("activation_relu_or_gelu", 0)


class MakesNoNestedTensors:
    """A TransformerEncoder that leaves padded batches dense."""

    cpd_states: tuple[State, ...]
    use_nested_tensor = _switch("use_nested_tensor", False)


MIXINS: dict[type[nn.Module], type[Any]] = {
    nn.TransformerEncoderLayer: CallsItsLayers,
    nn.TransformerEncoder: MakesNoNestedTensors,
}
