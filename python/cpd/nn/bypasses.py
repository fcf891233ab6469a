# SPDX-License-Identifier: Apache-2.0
"""Torch's modules that read the weight of a layer within them and compute without the layer: where
one would pass over a layer of ours, it is told to call it, or that is an error."""

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
    """Why a layer of ours cannot be within a `reader`."""
    name, way_out = _WAYS_OUT[reader]
    return (
        f"torch.nn.{reader} reads the weight of its {name} and computes without calling it, so a "
        f"recipe would do nothing there: {way_out}"
    )


def watch(layers: tuple[type[nn.Module], ...]) -> None:
    """Has an eye on each module that gets one of `layers` from now on."""

    def look(parent: nn.Module, name: str, child: nn.Module | None) -> None:
        if isinstance(child, layers):
            _check(parent, name)

    register_module_module_registration_hook(look)


def reader_of(parent: nn.Module, name: str) -> str:
    """Torch's class that `parent` computes as, if that reads the child's weight without calling
    it; else ""."""
    for reader, (read, _) in _WAYS_OUT.items():
        if name == read and _computes_as(parent, getattr(nn, reader, None)):
            return reader
    return ""


def _check(parent: nn.Module, name: str) -> None:
    reader = reader_of(parent, name)
    if reader:
        raise TypeError(message(reader))
    if name in ("linear1", "linear2") and _computes_as(parent, nn.TransformerEncoderLayer):
        # In eval mode it reads their weights, too, unless its activation is one that its fast path
        # does not know; it then calls them. torch.nn.TransformerEncoder asks for the same.
        parent.activation_relu_or_gelu = 0  # type: ignore[assignment]


def _computes_as(module: nn.Module, kind: Any) -> bool:
    cls = getattr(type(module), "_cpd_class", type(module))  # of a converted module its own
    return kind is not None and cls.forward is kind.forward
