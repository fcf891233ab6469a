# SPDX-License-Identifier: Apache-2.0
"""Torch's modules that read the weight of a layer within them and compute without calling it.

Where one would bypass a layer of ours, it is made to call the layer, or an error is raised.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

_WAYS_OUT = {
    "MultiheadAttention": (
        "out_proj",
        "write the attention with four cpd.nn.Linear, for query, key, value and output, around "
        "torch.nn.functional.scaled_dot_product_attention; or leave out_proj as torch made it",
    ),
    "LinearCrossEntropyLoss": (
        "linear",
        "call a cpd.nn.Linear and torch.nn.functional.cross_entropy; or leave linear as torch "
        "made it",
    ),
}
"""By name, as not every torch has them: the layer whose weight is read, and what to do instead."""


def message(reader: str) -> str:
    """Returns the reason why one of CPD's layers cannot be within a `reader`."""
    name, way_out = _WAYS_OUT[reader]
    return (
        f"torch.nn.{reader} reads the weight of its {name} and computes without calling it, so a "
        f"recipe would do nothing there: {way_out}"
    )


def watch(layers: tuple[type[nn.Module], ...]) -> None:
    """Checks each module that gets one of `layers` as a child from now on."""

    def look(parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if isinstance(child, layers):
            _check(parent, name)

    register_module_module_registration_hook(look)


def reader_of(parent: nn.Module, name: str) -> str:
    """Returns the class of torch that `parent` computes as.

    It is "" unless that class reads the child's weight without calling the child.
    """
    for reader, (read, _) in _WAYS_OUT.items():
        if name == read and _computes_as(parent, getattr(nn, reader, None)):
            return reader
    return ""


def _check(parent: nn.Module, name: str) -> None:
    reader = reader_of(parent, name)
    if reader:
        raise TypeError(message(reader))
    if name in ("linear1", "linear2") and _computes_as(parent, nn.TransformerEncoderLayer):
        # Its fast path in eval mode reads their weights too, unless it does not know the activation
        # (0): then it calls them. torch.nn.TransformerEncoder checks the same attribute.
        parent.activation_relu_or_gelu = 0  # type: ignore[assignment]


def _computes_as(module: nn.Module, kind: Any) -> bool:
    cls = getattr(
        type(module), "_cpd_class", type(module)
    )  # of a converted module, the class it had
    return kind is not None and cls.forward is kind.forward
