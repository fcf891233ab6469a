# SPDX-License-Identifier: Apache-2.0
"""Selects the front end of an operation's arrays: NumPy's or torch's.

An operation is written once, for both kinds of arrays. It checks its arguments with functions of
the front end, then calls the front end's function that computes the result. The front end of torch
tensors is in another package, `cpd._torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from numpy import ndarray

from cpd.numeric.numbers import is_torch
from cpd.ops import on_numpy


class FrontEnd(Protocol):
    """The functions that operations need for one kind of array.

    `cpd.ops.on_numpy` documents the functions. The functions in the second list, `cast_scaled` to
    `sum`, compute results by the C++ library, from checked arguments. If the argument `out` of such
    a function is None, the function returns a new array.
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
"""Returns the front end of torch tensors. It also has `explain`, which explains calls on tensors.
`cpd.loading` sets this function."""


def front_end_of(x: object) -> Any:
    """Returns the front end of `x`: torch's for a tensor, NumPy's for anything else."""
    if type(x) is ndarray:
        return on_numpy
    return on_tensors() if is_torch(x) else on_numpy
