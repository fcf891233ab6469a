# SPDX-License-Identifier: Apache-2.0
"""The interface between operations and arrays: the front ends of NumPy and torch.

An operation is written once. It checks its arguments, asks the front end of its arrays for views,
integers and results, and calls. The front end of tensors is above this package.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy import ndarray

from cpd.numeric.numbers import is_torch
from cpd.ops import on_numpy


class FrontEnd(Protocol):
    """The functions for one kind of array; `cpd.ops.on_numpy` documents them.

    The last group calls the library. Arguments are checked before, and `out` is None for a new
    result.
    """

    array: Callable[..., Any]
    broadcast: Callable[..., Any]
    check_codes: Callable[..., None]
    check_out: Callable[..., None]
    compiling: Callable[[], bool]
    contiguous: Callable[..., Any]
    element: Callable[..., Any]
    flat: Callable[..., Any]
    integers: Callable[..., Any]
    name_of: Callable[..., str]
    promote_types: Callable[..., Any]
    scales: Callable[..., Any]
    sizes: Callable[..., Any]
    to: Callable[..., Any]

    cast_scaled: Callable[..., Any]
    decode: Callable[..., Any]
    decode_scaled: Callable[..., Any]
    encode: Callable[..., Any]
    encode_scaled: Callable[..., Any]
    flags: Callable[..., Any]
    gemm: Callable[..., Any]
    gemm_scaled: Callable[..., Any]
    hadamard: Callable[..., Any]
    rounded: Callable[..., Any]
    sum: Callable[..., Any]


def _nothing() -> Any:
    raise ImportError("the operations on tensors are not loaded: import cpd")


on_tensors: Callable[[], Any] = _nothing
"""Returns the front end of torch tensors, which also explains their calls; set by `cpd.loading`."""


def front_end_of(x: object) -> Any:
    """Returns the front end of arrays of `x`'s kind."""
    if type(x) is ndarray:
        return on_numpy
    return on_tensors() if is_torch(x) else on_numpy
