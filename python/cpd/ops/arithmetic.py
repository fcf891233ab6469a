# SPDX-License-Identifier: Apache-2.0
"""Elementwise arithmetic with one rounding of each result: add, mul, fma, div, sqrt."""

from __future__ import annotations

from typing import Any, Literal, Never, Unpack, overload

from cpd.numeric.cast import CastLike, unscaled
from cpd.numeric.formats import flag
from cpd.numeric.numbers import Number
from cpd.numeric.renamed import REQUIRED, refuse, refuses_old
from cpd.ops.arguments import (
    ArrayT,
    Elementwise,
    check_storage,
    check_tininess,
    together,
)
from cpd.ops.front_ends import front_end_of


def _operation(
    name: str,
    operands: dict[str, Any],
    to: CastLike,
    seed: Number,
    stream: Number,
    random: Any,
    out: Any,
    flags: bool,
    tininess: str,
) -> Any:
    """Returns the results of an elementwise operation, each rounded once.

    `operands` maps the names x, y and z to the operands.
    """
    if tininess != "after":
        check_tininess(tininess)
    f, options = unscaled(to, seed, stream)
    kind = front_end_of(operands["x"])
    arrays = together(kind, operands)
    x, views = arrays["x"], tuple(arrays.values())
    check_storage(kind.name_of(x.dtype), f.name)
    integers = None
    if random is not None:
        integers = kind.integers(random, x, x.shape, "the result's shape", options)
    if out is not None:
        kind.check_out(out, x.shape, x.dtype, x, {**arrays, "random": integers})
    raised = None
    if flags is not False and flag("flags", flags):  # before out, which may be an operand
        raised = kind.flags(name, views, f, options, integers, tininess)
    values = kind.rounded(name, views, f, options, integers, out)
    return values if raised is None else (values, raised)


@overload
def add(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def add(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    **options: Unpack[Elementwise[ArrayT]],
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

    Operands can have any values, including the whole range of float64.

    Args:
        x: the first operand: a floating-point array or tensor of any shape. Its values are not
            rounded to the format first; call `cast` to do so.
        y: the second operand, of x's type. Operands broadcast to one shape.
        to: the format and the rounding of the result: a `cpd.Cast` to a format without scales, its
            text, such as "e4m3fn stochastic random_bits=8", or a format, which rounds to
            nearest-even. `help(cpd.Cast)` lists roundings and the keys `overflow`, `random_bits`
            and `variant`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of the result's shape. Default None:
            generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The rounded values, in x's type. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect (such as `random_bits` without
            stochastic rounding), or if x's type does not represent every value of the format.
        TypeError: for an argument of another type.

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
    operands = {"x": x, "y": y}
    return _operation("add", operands, to, seed, stream, random, out, flags, tininess)  # type: ignore[no-any-return]


@overload
def mul(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def mul(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    **options: Unpack[Elementwise[ArrayT]],
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
        x: the first operand: a floating-point array or tensor of any shape. Its values are not
            rounded to the format first; call `cast` to do so.
        y: the second operand, of x's type. Operands broadcast to one shape.
        to: the format and the rounding of the result: a `cpd.Cast` to a format without scales, its
            text, such as "e4m3fn stochastic random_bits=8", or a format, which rounds to
            nearest-even. `help(cpd.Cast)` lists roundings and the keys `overflow`, `random_bits`
            and `variant`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of the result's shape. Default None:
            generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The rounded values, in x's type. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect (such as `random_bits` without
            stochastic rounding), or if x's type does not represent every value of the format.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> mul(np.float32([1.125]), np.float32([1.125]), "e4m3").item()
    1.25
    """
    if _old or _renamed or to is REQUIRED:
        refuse("mul", _renamed, to, _old)
    operands = {"x": x, "y": y}
    return _operation("mul", operands, to, seed, stream, random, out, flags, tininess)  # type: ignore[no-any-return]


@overload
def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    **options: Unpack[Elementwise[ArrayT]],
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
        x: the first operand: a floating-point array or tensor of any shape. Its values are not
            rounded to the format first; call `cast` to do so.
        y: the second operand, of x's type. Operands broadcast to one shape.
        z: the addend, of x's type. It broadcasts with x and y.
        to: the format and the rounding of the result: a `cpd.Cast` to a format without scales, its
            text, such as "e4m3fn stochastic random_bits=8", or a format, which rounds to
            nearest-even. `help(cpd.Cast)` lists roundings and the keys `overflow`, `random_bits`
            and `variant`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of the result's shape. Default None:
            generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The rounded values, in x's type. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect (such as `random_bits` without
            stochastic rounding), or if x's type does not represent every value of the format.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> one = np.float32([1.125])
    >>> fma(one, one, np.float32([-1.25]), "e4m3").item()
    0.015625
    """
    if _old or _renamed or to is REQUIRED:
        refuse("fma", _renamed, to, _old)
    operands = {"x": x, "y": y, "z": z}
    return _operation("fma", operands, to, seed, stream, random, out, flags, tininess)  # type: ignore[no-any-return]


@overload
def div(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def div(
    x: ArrayT,
    y: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    **options: Unpack[Elementwise[ArrayT]],
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
        x: the first operand: a floating-point array or tensor of any shape. Its values are not
            rounded to the format first; call `cast` to do so.
        y: the second operand, of x's type. Operands broadcast to one shape.
        to: the format and the rounding of the result: a `cpd.Cast` to a format without scales, its
            text, such as "e4m3fn stochastic random_bits=8", or a format, which rounds to
            nearest-even. `help(cpd.Cast)` lists roundings and the keys `overflow`, `random_bits`
            and `variant`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of the result's shape. Default None:
            generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The rounded values, in x's type. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect (such as `random_bits` without
            stochastic rounding), or if x's type does not represent every value of the format.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> div(np.float32([1.0, 2.0, 1.0]), np.float32([3.0, 3.0, 0.0]), "e4m3").tolist()
    [0.34375, 0.6875, inf]
    """
    if _old or _renamed or to is REQUIRED:
        refuse("div", _renamed, to, _old)
    operands = {"x": x, "y": y}
    return _operation("div", operands, to, seed, stream, random, out, flags, tininess)  # type: ignore[no-any-return]


@overload
def sqrt(
    x: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def sqrt(
    x: ArrayT, to: CastLike, *, flags: Literal[True], **options: Unpack[Elementwise[ArrayT]]
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

    The square root of -0 is -0. The square root of a negative number is NaN.

    Args:
        x: the operand: a floating-point array or tensor of any shape. Its values are not rounded to
            the format first.
        to: the format and the rounding of the result: a `cpd.Cast` to a format without scales, its
            text, such as "e4m3fn stochastic random_bits=8", or a format, which rounds to
            nearest-even. `help(cpd.Cast)` lists roundings and the keys `overflow`, `random_bits`
            and `variant`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of the result's shape. Default None:
            generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The rounded values, in x's type. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect (such as `random_bits` without
            stochastic rounding), or if x's type does not represent every value of the format.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> sqrt(np.float32([2.0, 4.0, -1.0]), "e4m3").tolist()
    [1.375, 2.0, nan]
    """
    if _old or _renamed or to is REQUIRED:
        refuse("sqrt", _renamed, to, _old)
    operands = {"x": x}
    return _operation("sqrt", operands, to, seed, stream, random, out, flags, tininess)  # type: ignore[no-any-return]
