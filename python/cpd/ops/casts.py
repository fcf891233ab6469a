# SPDX-License-Identifier: Apache-2.0
"""Roundings of arrays: cast, encode, decode, hadamard; and their random integers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Never, Unpack, overload

import numpy as np

from cpd.numeric.cast import Cast, CastLike, Drawing, as_cast, drawing
from cpd.numeric.formats import ElementType, Format, FormatLike, flag
from cpd.numeric.hadamard import transform_of
from cpd.numeric.numbers import Number, int32
from cpd.numeric.renamed import REQUIRED, refuse, refuses_old
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled, untransformed
from cpd.ops import on_numpy
from cpd.ops.arguments import (
    FLOATS,
    LEVELS,
    NARROW_FLOATS,
    ArrayT,
    Blockwise,
    Elementwise,
    Scales,
    ScaleSource,
    Shape,
    check_cast,
    check_storage,
    check_tininess,
    given_levels,
    transform_axis,
    wider_type,
)
from cpd.ops.encoded import Encoded, decoded, decoded_scaled
from cpd.ops.front_ends import front_end_of

if TYPE_CHECKING:
    import numpy.typing as npt


@overload
def cast(
    x: ArrayT,
    to: CastLike,
    *,
    flags: Literal[False] = False,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    dtype: Any = None,
    **options: Unpack[Elementwise[ArrayT]],
) -> ArrayT: ...
@overload
def cast(
    x: ArrayT,
    to: CastLike,
    *,
    flags: Literal[True],
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    dtype: Any = None,
    **options: Unpack[Elementwise[ArrayT]],
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def cast(
    x: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    out: ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    flags: bool = False,
    tininess: str = "after",
    dtype: Any = None,
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Rounds each element of x to a value of a format.

    A scaled format computes scales from blocks of x along `axis` and rounds x / scale to the
    elements' format. The result is element * scale, rounded once into binary32, in the result's
    type. That type is not float64. The gradient passes straight through, scales included. With a
    transform (`cpd.Scaled`), values, tangents and gradients are transformed as by `hadamard`.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides. A float64 input
            is rounded from its 53 bits. NaN stays NaN.
        to: the format and the rounding: a `cpd.Cast`, its text, such as "e4m3fn stochastic
            random_bits=8", or a format, scaled or not, which rounds to nearest-even. A text names a
            rounding (`nearest_even`, `nearest_away`, `toward_zero`, `up`, `down`, `to_odd`,
            `stochastic`) and has the keys `overflow=` (`ieee`, `saturate`), `random_bits=` (1 to
            24) and `variant=` (`A`, `B`, `C`): see `help(cpd.Cast)`.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: the stream of random integers, like `seed`; another stream gives other integers;
            default 0.
        random: the random integers, in [0, 2^random_bits), of x's shape. `cpd.Cast` documents which
            values an integer rounds away from zero. Default None: generated from seed and stream.
        out: where to write the result; default: a new array. It has the result's shape, type and
            device, is writable, and does not overlap itself. It is an input, or does not overlap
            any input. Autograd, torch.func and vmap do not support it.
        axis: the axis of the blocks of a scaled format; default -1, the last.
        scales: the scales of a scaled format: codes as from `encode`, or float32 numbers of the
            grid's shape (`Scaled.scales_shape`). For two levels, a pair, whose first may be None.
            Default None: computed from x.
        amax: the largest magnitudes from which a scaled format computes its outermost scales
            (delayed scaling): float32, one for each of these scales. Default None: x's own.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.
        dtype: the type of the result; it must hold x's values. Default: x's own. x is first widened
            to this type. A scaled format without a transform still computes its scales from x in
            x's own type (`arithmetic=te`).

    Returns:
        The rounded values, of x's shape and kind; with `flags` a pair.

    Raises:
        ValueError: an option is out of range or has no effect, or the result's type does not hold
            the result. bfloat16 and float16 hold elements times scales only if scales are powers of
            two and elements have few mantissa bits: they hold the values of mxfp8, not of nvfp4.
        TypeError: an argument has another type.

    >>> x = np.array([0.3, 17.0, 300.0, -1e-9], np.float32)
    >>> cast(x, "e4m3").tolist()
    [0.3125, 16.0, inf, -0.0]
    >>> cast(x, "e4m3 overflow=saturate").tolist()
    [0.3125, 16.0, 240.0, -0.0]
    >>> cast(np.float32([1.0625]), "e4m3 stochastic random_bits=2", random=np.array([1])).item()
    1.0
    """
    if _old or _renamed or to is REQUIRED:
        refuse("cast", _renamed, to, _old)
    if tininess != "after":
        check_tininess(tininess)
    spec = as_cast(to)
    options = drawing(spec, seed, stream)
    target = spec.format
    kind: Any = front_end_of(x)
    if dtype is not None and (not isinstance(target, Scaled) or target.transform is not None):
        x = kind.array("x", x)
        x = kind.to(x, wider_type(kind, x, dtype, FLOATS))
    if isinstance(target, Scaled):
        _check_plain(spec)
        if flag("flags", flags):
            raise ValueError(f"flags are for formats without scales, got {target}")
        x, target = _transformed(kind, x, target, axis)
        source = ScaleSource(scales, amax)
        return _cast_scaled(kind, x, target, options, axis, source, random, dtype, out)  # type: ignore[no-any-return]
    _check_unscaled(target, axis, scales, amax)
    x = kind.array("x", x)
    check_cast(kind.name_of(x.dtype), target)
    integers = None if random is None else _integers(kind, random, x, options)
    if out is not None:
        kind.check_out(out, x.shape, x.dtype, x, {"x": x, "random": integers})
    raised = None
    if flags is not False and flag("flags", flags):  # before out, which may be x
        raised = kind.flags("cast", (x,), target, options, integers, tininess)
    values = kind.rounded("cast", (x,), target, options, integers, out)
    return values if raised is None else (values, raised)


def _cast_scaled(
    kind: Any,
    x: Any,
    q: Scaled,
    options: Drawing,
    axis: int,
    source: ScaleSource,
    random: Any,
    dtype: Any,
    out: Any,
) -> Any:
    """Rounds to a scaled format without a transform."""
    along = int32("axis", axis)
    x = kind.array("x", x, NARROW_FLOATS)
    element = x.dtype if dtype is None else wider_type(kind, x, dtype, NARROW_FLOATS)
    check_cast(kind.name_of(element), q)
    levels = given_levels(kind, q, x, along, source)
    integers = None if random is None else _integers(kind, random, x, options)
    if out is not None:
        inputs = {"x": x, "random": integers, **dict(zip(LEVELS, levels, strict=True))}
        kind.check_out(out, x.shape, element, x, inputs)
    return kind.cast_scaled(x, q, options, along, levels, integers, element, out)


@overload
def encode(x: ArrayT, to: Format | ElementType, **options: Unpack[Blockwise[ArrayT]]) -> ArrayT: ...
@overload
def encode(
    x: ArrayT, to: Scaled, **options: Unpack[Blockwise[ArrayT]]
) -> tuple[ArrayT, Scales]: ...
@overload
def encode(x: ArrayT, to: CastLike, **options: Unpack[Blockwise[ArrayT]]) -> Any: ...
@refuses_old
def encode(
    x: ArrayT,
    to: CastLike = REQUIRED,
    *_old: Never,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, Scales]:
    """Rounds like `cast` and packs the codes of the elements.

    Codes are in row-major order, least significant bit first, without gaps; the bits behind the
    last code are 0. Codes have no gradients.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides. A float64 input
            is rounded from its 53 bits.
        to: the format and the rounding: a `cpd.Cast`, its text, such as "e4m3fn stochastic
            random_bits=8", or a format, scaled or not, which rounds to nearest-even. A text names a
            rounding (`nearest_even`, `nearest_away`, `toward_zero`, `up`, `down`, `to_odd`,
            `stochastic`) and has the keys `overflow=` (`ieee`, `saturate`), `random_bits=` (1 to
            24) and `variant=` (`A`, `B`, `C`): see `help(cpd.Cast)`.
        seed: the seed of stochastic rounding: an int in [0, 2^64) or a one-element integer tensor
            (an int64 tensor holds the 64 bits); default 0.
        stream: the stream of random integers, like `seed`; another stream gives other integers;
            default 0.
        random: the random integers, in [0, 2^random_bits), of x's shape. `cpd.Cast` documents which
            values an integer rounds away from zero. Default None: generated from seed and stream.
        axis: the axis of the blocks of a scaled format; default -1, the last.
        scales: the scales of a scaled format: codes as from `encode`, or float32 numbers of the
            grid's shape (`Scaled.scales_shape`). For two levels, a pair, whose first may be None.
            Default None: computed from x.
        amax: the largest magnitudes from which a scaled format computes its outermost scales
            (delayed scaling): float32, one for each of these scales. Default None: x's own.

    Returns:
        The codes: uint8, 1-D, ceil(n * to.bits / 8) long. A scaled format gives a pair: the
        elements' codes, and the scales' codes, packed the same way in the row-major order of the
        grid of blocks; with two levels the scales' codes are a pair too, the blocks' and the
        tensor's. An element of a block whose scale is NaN has code 0 if its format has no NaN.

    Raises:
        ValueError: an option is out of range or has no effect, or x has a NaN and the format has no
            NaN.
        TypeError: an argument has another type.

    >>> encode(np.float32([1.0, -6.0, 0.5]), "e2m1").tolist()
    [242, 1]
    >>> codes, scales = encode(np.float32([[3.0, -24.0], [0.5, 0.25]]), "mxfp4")
    >>> codes.tolist(), scales.tolist()      # 2^2 and 2^-3
    ([242, 70], [129, 124])
    """
    if _old or _renamed or to is REQUIRED:
        refuse("encode", _renamed, to, _old)
    spec = as_cast(to)
    options = drawing(spec, seed, stream)
    target = spec.format
    kind: Any = front_end_of(x)
    if not isinstance(target, Scaled):
        _check_unscaled(target, axis, scales, amax)
        x = kind.array("x", x)
        integers = None if random is None else _integers(kind, random, x, options)
        return kind.encode(x, target, options, integers)  # type: ignore[no-any-return]
    _check_plain(spec)
    x, target = _transformed(kind, x, target, axis)
    x, along = kind.array("x", x, NARROW_FLOATS), int32("axis", axis)
    levels = given_levels(kind, target, x, along, ScaleSource(scales, amax))
    integers = None if random is None else _integers(kind, random, x, options)
    return kind.encode_scaled(x, target, options, along, levels, integers)  # type: ignore[no-any-return]


def _integers(kind: Any, random: Any, x: Any, options: Drawing) -> Any:
    """Returns the caller's random integers for `x`, checked."""
    return kind.integers(random, x, x.shape, "x's shape", options)


@overload
def decode(
    codes: ArrayT,
    format: FormatLike | ScaledLike,
    shape: Shape,
    *,
    dtype: Any = None,
    out: ArrayT | None = None,
    axis: int = -1,
    scales: Scales = None,
) -> ArrayT: ...
@overload
def decode(codes: Encoded, *, dtype: Any = None, out: Any = None) -> Any: ...
@refuses_old
def decode(
    codes: ArrayT | Encoded,
    format: FormatLike | ScaledLike | None = None,
    shape: Shape | None = None,
    *,
    dtype: Any = None,
    out: ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
    **_renamed: Never,
) -> ArrayT:
    """Returns the values of packed codes: the inverse of `encode`.

    Args:
        codes: uint8, 1-D, of exactly the length that the shape needs; every pattern is valid. Or an
            `Encoded`, which has its format, shape, axis and scales.
        format: the format of the codes: a `cpd.Format`, a `cpd.Scaled`, or an argument of their
            constructors. Default None: given by an `Encoded`.
        shape: the shape of the values, an int or a sequence of ints.
        dtype: the type of the result; default float32, or out's.
        out: where to write the result; default: a new array.
        axis: the axis of the blocks of a scaled format, as in `encode`; default -1.
        scales: the scales of a scaled format, as from `encode`.

    Returns:
        The values, of that shape, of the codes' kind.

    Raises:
        ValueError: codes, scales and shape do not fit, or the type does not hold the format.
        TypeError: an argument has another type, or format and shape are missing.

    >>> decode(np.array([242, 1], np.uint8), "e2m1", 3).tolist()
    [1.0, -6.0, 0.5]
    >>> codes, scales = encode(np.float32([3.0, -24.0]), "mxfp4")
    >>> decode(codes, "mxfp4", 2, scales=scales).tolist()
    [4.0, -24.0]
    """
    if _renamed:
        refuse("decode", _renamed)
    if isinstance(codes, Encoded):
        if format is not None or shape is not None or scales is not None or axis != -1:
            raise ValueError("format, shape, axis and scales are in the Encoded: leave them out")
        codes, scales, format, shape, axis = codes
    if format is None or shape is None:
        raise TypeError("decode takes codes, a format and a shape, or an Encoded alone")
    if isinstance(codes, tuple):
        raise TypeError("codes must be an array, got a tuple: give its scales as scales=")
    to = format_or_scaled(format)
    if isinstance(to, Scaled):
        return decoded_scaled(codes, to, shape, dtype, out, int32("axis", axis), scales)  # type: ignore[no-any-return]
    _check_unscaled(to, axis, scales, None)
    return decoded(codes, to, shape, dtype, out)  # type: ignore[no-any-return]


def _transformed(kind: Any, x: Any, q: Scaled, axis: int) -> tuple[Any, Scaled]:
    """Returns x after a scaled format's transform, and the format without its transform."""
    if q.transform is None:
        return x, q
    return _hadamard(kind, x, q.transform, axis, False, None), untransformed(q.text)


def _check_plain(spec: Cast) -> None:
    if spec.factor != 1 or spec.history:
        raise ValueError(f"factor= and history= are for operands of cpd.Recipe, got {spec}")


def _check_unscaled(to: Format, axis: Any, scales: Any, amax: Any) -> None:
    if scales is None and amax is None and type(axis) is int and axis == -1:
        return
    if scales is not None or amax is not None or int32("axis", axis) != -1:
        raise ValueError(f"axis, scales and amax are for scaled formats, got the format {to.name}")


@refuses_old
def hadamard(
    x: ArrayT,
    transform: str,
    *_old: Never,
    axis: int = -1,
    inverse: bool = False,
    out: ArrayT | None = None,
) -> ArrayT:
    """Transforms each group of N neighboring values along an axis: x' = 1/√N · H · diag(s) · x.

    H is Sylvester's matrix: entry (i, j) is −1 to the power of the number of ones that the binary
    digits of i and j share. s is 1, or −1 for the inputs that the transform names. The inverse
    transform is the transpose, 1/√N · diag(s) · H.

    The steps are in binary32, in this order:

    1. The signs s are applied. (The inverse transform applies them last.)
    2. log2(N) stages follow, at distances d = 1, 2, 4, …. In each stage, for i with bit d clear,
       value i becomes the sum of the values i and i + d, and value i + d their difference, i minus
       i + d.
    3. The values are multiplied by 1/√N, rounded to nearest (a power of two if log2(N) is even).

    Derivatives (torch): the gradient is the inverse transform of the gradient, a tangent the
    transform of the tangent. The rounding into bf16 is straight through.

    Args:
        x: float32, bfloat16 or float16. The extent along the axis is a multiple of the transform's
            size. NaN and infinities propagate as in the operations.
        transform: the text of the transform: `hadamardN`, N a power of two, 2…128. Then optionally
            `:signs=0xMASK`, whose bit i multiplies input i by −1, or `:te`, Transformer Engine's
            signs of 16 inputs. Then optionally `:bf16`: computes in binary64 and rounds once into
            bf16, to nearest-even; an exact zero is +0. For bf16 inputs and N = 16, the result with
            `:bf16` is the exact sum rounded once, if the exponents of a group's nonzero values
            differ by at most 41. It is then Transformer Engine's random Hadamard transform.
        axis: the axis of the groups; default -1, the last.
        inverse: True transforms by the transpose; default False.
        out: where to write the result; default: a new array. It may be `x`.

    Returns:
        The transformed values, of x's shape and type: the binary32 result, rounded once to
        nearest-even. A transform into bf16 gives bf16 values, which float16 does not hold.

    Raises:
        ValueError: the text is invalid, the extent is not a multiple of N, or the type does not
            hold the result.
        TypeError: an argument has another type.

    >>> x = np.float32([1, 2, 3, 4])
    >>> hadamard(x, "hadamard4").tolist()
    [5.0, -1.0, -2.0, 0.0]
    >>> hadamard(hadamard(x, "hadamard4:signs=0x5"), "hadamard4:signs=0x5", inverse=True).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    if _old:
        refuse("hadamard", {}, positional=_old, last="transform")
    return _hadamard(front_end_of(x), x, transform, axis, flag("inverse", inverse), out)  # type: ignore[no-any-return]


def _hadamard(kind: Any, x: Any, text: str, axis: Any, inverse: bool, out: Any) -> Any:
    transform = transform_of(text)
    x = kind.array("x", x, NARROW_FLOATS)
    along = transform_axis(axis, x.shape, transform.size)
    if transform.bf16:
        check_storage(kind.name_of(x.dtype), "bf16")
    if out is not None:
        kind.check_out(out, x.shape, x.dtype, x, {"x": x})
    return kind.hadamard(x, transform, along, inverse, out)


def random_integers(
    shape: Shape, seed: Number = 0, stream: Number = 0, random_bits: int = 24
) -> npt.NDArray[np.uint32]:
    """Returns the integers that stochastic rounding uses.

    Args:
        shape: the shape of the result, an int or a sequence of ints.
        seed: the seed, an int in [0, 2^64); default 0.
        stream: the stream, an int in [0, 2^64); default 0.
        random_bits: the number of bits N of an integer, 1 to 24 (default).

    Returns:
        A uint32 array of integers in [0, 2^N), whose element i (row-major) is what `cast` uses for
        element i with the same seed and stream.

    Raises:
        ValueError: an argument is out of range.
        TypeError: an argument has another type.

    >>> bool(random_integers(1000, seed=1, random_bits=3).max() < 8)
    True
    """
    spec = Cast("fp32 stochastic", random_bits=random_bits)
    return on_numpy.random_integers(shape, drawing(spec, seed, stream))
