# SPDX-License-Identifier: Apache-2.0
"""Rounds arrays to formats and converts them to packed codes: cast, encode, decode, hadamard."""

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

    For a scaled format, the scales are computed from blocks of x along `axis`, and x / scale is
    rounded to the elements' format. The result is element * scale, rounded once into binary32.
    float64 is not supported. The derivative is 1 (straight-through), also with respect to the
    scales. With a transform (`cpd.Scaled`), values, tangents and gradients are transformed as by
    `hadamard`.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides. A float64 value
            is rounded once, from its 53 significant bits. A NaN remains a NaN.
        to: the format and the rounding: a `cpd.Cast`, its text, such as "e4m3fn stochastic
            random_bits=8", or a format, scaled or not, which rounds to nearest-even. A text names a
            rounding (`nearest_even`, `nearest_away`, `toward_zero`, `up`, `down`, `to_odd`,
            `stochastic`) and has the keys `overflow=` (`ieee`, `saturate`), `random_bits=` (1 to
            24) and `variant=` (`A`, `B`, `C`): see `help(cpd.Cast)`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of x's shape. `variant` of `cpd.Cast`
            documents how an integer rounds a value. Default None: generated from seed and stream.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, be writable and not overlap itself. It must be one of the inputs, or
            not overlap any input. Autograd, torch.func and vmap do not support `out`.
        axis: the axis of the blocks of a scaled format; default -1, the last.
        scales: the scales of a scaled format: packed codes (uint8) as `encode` returns, or float32
            numbers of the shape `Scaled.scales_shape(x.shape, axis)`. With outer scales, a pair:
            the scales of blocks, or None to compute them from x, and the outer scales. Default
            None: all scales are computed from x.
        amax: the largest magnitudes from which a scaled format computes its outer scales, or
            without outer scales its scales of blocks (delayed scaling). float32, one magnitude for
            each of these scales. Default None: the largest magnitudes of x.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the result raises: 1 inexact, 2 underflow, 4
            overflow, 8 division by zero, 16 invalid (`help(cpd.ops)`). Supported on the CPU;
            default False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.
        dtype: the type of the result, which must represent every value of x's type; default: x's
            type. x is first converted to this type. An exception: a scaled format without a
            transform computes its scales from x in x's type, which matters for `arithmetic=te`.

    Returns:
        The rounded values: an array or a tensor, like x, of x's shape. With `flags`, the pair of
        values and flags.

    Raises:
        ValueError: if an option is out of range or has no effect, or if the result's type does not
            represent every value of the format. bfloat16 and float16 represent values of a scaled
            format only if its scales are powers of two and its elements have few mantissa bits: for
            example mxfp8, but not nvfp4.
        TypeError: for an argument of another type.

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
    """Rounds x to a scaled format without a transform.

    The caller has already applied the format's transform, if there is one, to x.
    """
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

    Codes are packed in row-major order, least significant bit first, without gaps. Unused bits
    after the last code are 0. Codes have no gradients.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides. A float64 value
            is rounded once, from its 53 significant bits.
        to: the format and the rounding: a `cpd.Cast`, its text, such as "e4m3fn stochastic
            random_bits=8", or a format, scaled or not, which rounds to nearest-even. A text names a
            rounding (`nearest_even`, `nearest_away`, `toward_zero`, `up`, `down`, `to_odd`,
            `stochastic`) and has the keys `overflow=` (`ieee`, `saturate`), `random_bits=` (1 to
            24) and `variant=` (`A`, `B`, `C`): see `help(cpd.Cast)`.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed.
        stream: the stream of random integers: a number like `seed`; default 0. Each pair of a seed
            and a stream gives other integers.
        random: the random integers, in [0, 2^random_bits), of x's shape. `variant` of `cpd.Cast`
            documents how an integer rounds a value. Default None: generated from seed and stream.
        axis: the axis of the blocks of a scaled format; default -1, the last.
        scales: the scales of a scaled format: packed codes (uint8) as `encode` returns, or float32
            numbers of the shape `Scaled.scales_shape(x.shape, axis)`. With outer scales, a pair:
            the scales of blocks, or None to compute them from x, and the outer scales. Default
            None: all scales are computed from x.
        amax: the largest magnitudes from which a scaled format computes its outer scales, or
            without outer scales its scales of blocks (delayed scaling). float32, one magnitude for
            each of these scales. Default None: the largest magnitudes of x.

    Returns:
        The codes of n elements: a 1-D uint8 array of ceil(n * bits / 8) bytes, for a format of
        `bits` bits. A scaled format gives the pair of the elements' codes and the scales' codes.
        The scales' codes are packed in the same way, in row-major order of the blocks. With outer
        scales, the scales' codes are also a pair: the codes of the blocks' scales and the codes of
        the outer scales. In a block with a NaN scale, all elements have code 0 if their format has
        no NaN.

    Raises:
        ValueError: if an option is out of range or has no effect, or if x has a NaN and the format
            has no NaN.
        TypeError: for an argument of another type.

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
    """Checks and returns the caller's random integers for `x`."""
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
        codes: a 1-D uint8 array of exactly the number of bytes that the shape needs. Every bit
            pattern is valid. Or an `Encoded`, which contains the format, shape, axis and scales.
        format: the format of the codes: a `cpd.Format`, a `cpd.Scaled`, or an argument of their
            constructors. Required unless `codes` is an `Encoded`.
        shape: the shape of the values, an int or a sequence of ints. Required unless `codes` is an
            `Encoded`.
        dtype: the type of the result; default: the type of `out`, or float32 without `out`.
        out: where to write the result; default: a new array. `out` must have the result's shape,
            type and device, and not overlap codes or scales.
        axis: the axis of the blocks of a scaled format, as in `encode`; default -1.
        scales: the scales of a scaled format, as `encode` returns them.

    Returns:
        The values of this shape: an array or a tensor, like `codes`.

    Raises:
        ValueError: if codes, scales and shape do not fit together, or if the result's type does not
            represent every value of the format.
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
    """Applies a scaled format's transform to x.

    Returns the transformed x, and the format without its transform, to which x can be cast.
    """
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
    digits of i and j share. s holds a sign for each input: −1 for the inputs that the transform's
    text lists, else 1. The inverse transform is the transpose, 1/√N · diag(s) · H.

    The transform is computed in binary32, in these steps:

    1. The signs s are applied. (The inverse transform applies them last.)
    2. log2(N) butterfly stages follow, with distances d = 1, 2, 4, …. In each stage, for each i
       whose binary digit of weight d is 0, (x[i], x[i + d]) becomes (x[i] + x[i + d], x[i] - x[i +
       d]).
    3. The values are multiplied by 1/√N rounded to the nearest binary32 number, which is exact if
       log2(N) is even.

    Derivatives (torch): the gradient of x is the inverse transform of the result's gradient. The
    tangent of the result is the transform of x's tangent. The rounding into bf16 has derivative 1
    (straight-through).

    Args:
        x: an array or a tensor of float32, bfloat16 or float16. The extent along the axis must be a
            multiple of the transform's size N. NaN and infinities propagate as in IEEE 754's
            additions and multiplications.
        transform: the text of the transform: `hadamardN`, where N is a power of two, 2…128. Then
            optionally `:signs=0xMASK`: a 1 in bit i of the mask multiplies input i by −1. Or `:te`:
            the signs of Transformer Engine for 16 inputs. Then optionally `:bf16`: the transform is
            computed in binary64 and rounded once into bf16, to nearest-even; an exact zero is +0.
            For bf16 inputs and N = 16, the result with `:bf16` is the exact sum rounded once if the
            exponents of a group's nonzero values differ by at most 41. In this case it equals
            Transformer Engine's random Hadamard transform.
        axis: the axis of the groups; default -1, the last.
        inverse: True applies the inverse transform (the transpose); default False.
        out: where to write the result; default: a new array. `out` may be `x`.

    Returns:
        The transformed values, of x's shape and type. A binary32 result is rounded once to this
        type, to nearest-even. With `:bf16` the result has bf16 values, which a float16 x cannot
        represent (ValueError).

    Raises:
        ValueError: if the text is invalid, the extent is not a multiple of N, or x's type does not
            represent the results.
        TypeError: for an argument of another type.

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
        A NumPy array of uint32 integers in [0, 2^N). Element i (in row-major order) is the integer
        that `cast` uses for element i with the same seed and stream.

    Raises:
        ValueError: if an argument is out of range.
        TypeError: for an argument of another type.

    >>> bool(random_integers(1000, seed=1, random_bits=3).max() < 8)
    True
    """
    spec = Cast("fp32 stochastic", random_bits=random_bits)
    return on_numpy.random_integers(shape, drawing(spec, seed, stream))
