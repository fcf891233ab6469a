# SPDX-License-Identifier: Apache-2.0
"""A hook for the operations on torch tensors, which are above this package."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class FrontEnd(Protocol):
    """The operations on one kind of array; their arguments are those of `cpd.ops.on_numpy`."""

    add: Callable[..., Any]
    cast: Callable[..., Any]
    cast_scaled: Callable[..., Any]
    decode: Callable[..., Any]
    decode_scaled: Callable[..., Any]
    div: Callable[..., Any]
    encode: Callable[..., Any]
    encode_scaled: Callable[..., Any]
    explain: Callable[..., Any]
    flags: Callable[..., Any]
    fma: Callable[..., Any]
    gemm: Callable[..., Any]
    gemm_scaled: Callable[..., Any]
    hadamard: Callable[..., Any]
    mul: Callable[..., Any]
    sqrt: Callable[..., Any]
    sum: Callable[..., Any]


def _nothing() -> FrontEnd:
    raise ImportError("the operations on tensors are not loaded: import cpd")


on_tensors: Callable[[], FrontEnd] = _nothing
"""Returns the operations on torch tensors; set by `cpd.loading`."""
