# SPDX-License-Identifier: Apache-2.0
"""torch's modules that use the weight of a layer they contain without calling the layer.

`cpd.convert` does not convert such a layer and reports this. To emulate the `out_proj` of
nn.MultiheadAttention, convert the attention module itself.
"""

from __future__ import annotations

from typing import Any

from torch import nn

_READ = {"MultiheadAttention": "out_proj", "LinearCrossEntropyLoss": "linear"}
"""Maps a class of torch.nn to the submodule whose weight it uses without calling the submodule.
Older versions of torch lack some of the classes."""


def reader_of(parent: nn.Module, name: str) -> str:
    """Returns the name of `parent`'s torch class if it uses the child's weight without calling it.

    Otherwise returns "".
    """
    for reader, read in _READ.items():
        if name == read and _computes_as(parent, getattr(nn, reader, None)):
            return reader
    return ""


def _computes_as(module: nn.Module, kind: Any) -> bool:
    cls = getattr(
        type(module), "_cpd_class", type(module)
    )  # a converted module's class before its conversion
    return kind is not None and cls.forward is kind.forward
