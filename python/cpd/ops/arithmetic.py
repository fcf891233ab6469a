# SPDX-License-Identifier: Apache-2.0
"""Arithmetic that rounds once: add, mul, fma, div, sqrt."""

from __future__ import annotations

from typing import Any, Literal, Never, Unpack, overload

from numpy import ndarray

from cpd.numeric.cast import CastLike, Drawing, unscaled
from cpd.numeric.formats import Format, flag
from cpd.numeric.numbers import Number, is_torch
from cpd.numeric.renamed import REQUIRED, refuse, refuses_old
from cpd.ops import front_ends, on_numpy
from cpd.ops.arguments import ArrayT, Elementwise


def front_end_of(x: object) -> Any:
    """The module that works on arrays of `x`'s kind."""
    if type(x) is ndarray:
        return on_numpy
    return front_ends.on_tensors() if is_torch(x) else on_numpy


def rounded(
    operation: str,
    operands: tuple[ArrayT, ...],
    to: Format,
    options: Drawing,
    out: Any,
    random: Any,
    flags: bool,
    tininess: str,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Returns one elementwise operation's values, with their flags where `flags` is true."""
    front_end = front_end_of(operands[0])
    run = getattr(front_end, operation)
    if flags is False or not flag("flags", flags):
        return run(*operands, to, options, out, random)  # type: ignore[no-any-return]
    raised = front_end.flags(
        operation, operands, to, options, random, tininess
    )  # before out, an operand
    return run(*operands, to, options, out, random), raised


@overload
def add(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **how: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def add(
    x: ArrayT, y: ArrayT, to: CastLike, *, flags: Literal[True], **how: Unpack[Elementwise[ArrayT]]
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def add(
    x: ArrayT,
    y: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Adds x and y exactly, then rounds once.

    Operands are any values, including float64's whole range.

    Args:
        x: the first operand, of any values; it is not rounded first (cast it to do so).
        y: the second operand, of x's type; operands broadcast.
        to: what the result is rounded to: a `cpd.Cast` to a format without scales, its text, such
            as "e4m3fn stochastic random_bits=8", or a format, for rounding to nearest-even.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: its stream, like `seed`; other streams give other random integers; default 0.
        random: integers in [0, 2^random_bits) in place of the generated ones, of
            the result's shape; default: None.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, does not overlap itself, and is one of the inputs or lies apart
            from them. Autograd, torch.func and vmap do not support it.
        flags: True returns a pair: the values, and uint8 numbers of their shape, the sums of the
            flags that each result raises: 1 inexact, 2 underflow, 4 overflow, 8 division by zero,
            16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The rounded values, in x's type; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect (`random_bits` and `variant` without
            stochastic rounding), or x's type does not hold the format.
        TypeError: an argument has another type.

    >>> import numpy as np
    >>> add(np.float32([240.0]), np.float32([7.9]), "e4m3").item()
    240.0
    >>> add(np.float64([1e300]), np.float64([-1e300]), "e4m3").item()
    0.0
    >>> add(np.float64([1.0625]), np.float64([1e-300]), "e4m3").item()     # just beyond a tie
    1.125
    """
    if _old or _renamed or to is REQUIRED:
        refuse("add", _renamed, to, _old)
    to, options = unscaled(to, seed, stream)
    return rounded("add", (x, y), to, options, out, random, flags, tininess)


@overload
def mul(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **how: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def mul(
    x: ArrayT, y: ArrayT, to: CastLike, *, flags: Literal[True], **how: Unpack[Elementwise[ArrayT]]
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def mul(
    x: ArrayT,
    y: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Multiplies x and y exactly, then rounds once.

    Args:
        x: the first operand, of any values; it is not rounded first (cast it to do so).
        y: the second operand, of x's type; operands broadcast.
        to: what the result is rounded to: a `cpd.Cast` to a format without scales, its text, such
            as "e4m3fn stochastic random_bits=8", or a format, for rounding to nearest-even.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: its stream, like `seed`; other streams give other random integers; default 0.
        random: integers in [0, 2^random_bits) in place of the generated ones, of
            the result's shape; default: None.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, does not overlap itself, and is one of the inputs or lies apart
            from them. Autograd, torch.func and vmap do not support it.
        flags: True returns a pair: the values, and uint8 numbers of their shape, the sums of the
            flags that each result raises: 1 inexact, 2 underflow, 4 overflow, 8 division by zero,
            16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The rounded values, in x's type; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect (`random_bits` and `variant` without
            stochastic rounding), or x's type does not hold the format.
        TypeError: an argument has another type.

    >>> import numpy as np
    >>> mul(np.float32([1.125]), np.float32([1.125]), "e4m3").item()
    1.25
    """
    if _old or _renamed or to is REQUIRED:
        refuse("mul", _renamed, to, _old)
    to, options = unscaled(to, seed, stream)
    return rounded("mul", (x, y), to, options, out, random, flags, tininess)


@overload
def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **how: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    **how: Unpack[Elementwise[ArrayT]],
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Returns x * y + z, computed exactly and rounded once.

    Args:
        x: the first operand, of any values; it is not rounded first (cast it to do so).
        y: the second operand, of x's type; operands broadcast.
        z: the addend, of x's type.
        to: what the result is rounded to: a `cpd.Cast` to a format without scales, its text, such
            as "e4m3fn stochastic random_bits=8", or a format, for rounding to nearest-even.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: its stream, like `seed`; other streams give other random integers; default 0.
        random: integers in [0, 2^random_bits) in place of the generated ones, of
            the result's shape; default: None.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, does not overlap itself, and is one of the inputs or lies apart
            from them. Autograd, torch.func and vmap do not support it.
        flags: True returns a pair: the values, and uint8 numbers of their shape, the sums of the
            flags that each result raises: 1 inexact, 2 underflow, 4 overflow, 8 division by zero,
            16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The rounded values, in x's type; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect (`random_bits` and `variant` without
            stochastic rounding), or x's type does not hold the format.
        TypeError: an argument has another type.

    >>> import numpy as np
    >>> one = np.float32([1.125])
    >>> fma(one, one, np.float32([-1.25]), "e4m3").item()
    0.015625
    """
    if _old or _renamed or to is REQUIRED:
        refuse("fma", _renamed, to, _old)
    to, options = unscaled(to, seed, stream)
    return rounded("fma", (x, y, z), to, options, out, random, flags, tininess)


@overload
def div(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **how: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def div(
    x: ArrayT, y: ArrayT, to: CastLike, *, flags: Literal[True], **how: Unpack[Elementwise[ArrayT]]
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def div(
    x: ArrayT,
    y: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Divides x by y exactly, then rounds once.

    Args:
        x: the first operand, of any values; it is not rounded first (cast it to do so).
        y: the second operand, of x's type; operands broadcast.
        to: what the result is rounded to: a `cpd.Cast` to a format without scales, its text, such
            as "e4m3fn stochastic random_bits=8", or a format, for rounding to nearest-even.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: its stream, like `seed`; other streams give other random integers; default 0.
        random: integers in [0, 2^random_bits) in place of the generated ones, of
            the result's shape; default: None.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, does not overlap itself, and is one of the inputs or lies apart
            from them. Autograd, torch.func and vmap do not support it.
        flags: True returns a pair: the values, and uint8 numbers of their shape, the sums of the
            flags that each result raises: 1 inexact, 2 underflow, 4 overflow, 8 division by zero,
            16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The rounded values, in x's type; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect (`random_bits` and `variant` without
            stochastic rounding), or x's type does not hold the format.
        TypeError: an argument has another type.

    >>> import numpy as np
    >>> div(np.float32([1.0, 2.0, 1.0]), np.float32([3.0, 3.0, 0.0]), "e4m3").tolist()
    [0.34375, 0.6875, inf]
    """
    if _old or _renamed or to is REQUIRED:
        refuse("div", _renamed, to, _old)
    to, options = unscaled(to, seed, stream)
    return rounded("div", (x, y), to, options, out, random, flags, tininess)


@overload
def sqrt(
    x: ArrayT, to: CastLike, *, flags: Literal[False] = False, **how: Unpack[Elementwise[ArrayT]]
) -> ArrayT: ...
@overload
def sqrt(
    x: ArrayT, to: CastLike, *, flags: Literal[True], **how: Unpack[Elementwise[ArrayT]]
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def sqrt(
    x: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Returns the square root of x, computed exactly and rounded once.

    The root of -0 is -0, of a negative number NaN.

    Args:
        x: the operand, of any values; it is not rounded first.
        to: what the result is rounded to: a `cpd.Cast` to a format without scales, its text, such
            as "e4m3fn stochastic random_bits=8", or a format, for rounding to nearest-even.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: its stream, like `seed`; other streams give other random integers; default 0.
        random: integers in [0, 2^random_bits) in place of the generated ones, of
            the result's shape; default: None.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, does not overlap itself, and is one of the inputs or lies apart
            from them. Autograd, torch.func and vmap do not support it.
        flags: True returns a pair: the values, and uint8 numbers of their shape, the sums of the
            flags that each result raises: 1 inexact, 2 underflow, 4 overflow, 8 division by zero,
            16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The rounded values, in x's type; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect (`random_bits` and `variant` without
            stochastic rounding), or x's type does not hold the format.
        TypeError: an argument has another type.

    >>> import numpy as np
    >>> sqrt(np.float32([2.0, 4.0, -1.0]), "e4m3").tolist()
    [1.375, 2.0, nan]
    """
    if _old or _renamed or to is REQUIRED:
        refuse("sqrt", _renamed, to, _old)
    to, options = unscaled(to, seed, stream)
    return rounded("sqrt", (x,), to, options, out, random, flags, tininess)
