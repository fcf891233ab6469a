# SPDX-License-Identifier: Apache-2.0
"""Torch's modules that read the weight of a layer within them and compute without calling it."""

from __future__ import annotations

from typing import Any

from torch import nn

_READ = {"MultiheadAttention": "out_proj", "LinearCrossEntropyLoss": "linear"}
"""The layer whose weight is read, by the class's name: not every torch has these classes."""


def reader_of(parent: nn.Module, name: str) -> str:
    """Returns the class of torch that `parent` computes as.

    It is "" unless that class reads the child's weight without calling the child.
    """
    for reader, read in _READ.items():
        if name == read and _computes_as(parent, getattr(nn, reader, None)):
            return reader
    return ""


def _computes_as(module: nn.Module, kind: Any) -> bool:
    cls = getattr(
        type(module), "_cpd_class", type(module)
    )  # of a converted module, the class it had
    return kind is not None and cls.forward is kind.forward
