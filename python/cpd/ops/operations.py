# SPDX-License-Identifier: Apache-2.0
"""The operations: cast, encode and decode; add, mul and fma; the ordered sum; the matrix product;
the Hadamard transform.

Each takes torch tensors, on the CPU or a CUDA device, or NumPy arrays and returns the same kind.
Values of an emulated format are stored in ordinary floating-point tensors.

**Element types.** float32, float64, bfloat16 and float16 (NumPy: bfloat16 of `ml_dtypes`); gemm
and scaled formats take no float64, whose exact products no type holds, and hadamard none. The
result has x's type, which must hold every value of the format (else ValueError: float16 does not
hold bf16). Any layout, any number of dimensions up to 16, also none; empty tensors; more than 2^31
elements. Inputs are not changed unless one of them is `out=`.

**Rounding options**, the same for every operation:

- `rounding`: `nearest_even` (default; ties to the even code), `nearest_away`, `toward_zero`, `up`,
  `down`, `to_odd`, `stochastic`. Every result is the exact result rounded once.
- `overflow`: `ieee` (default): Inf, or NaN where the format has no Inf, or its max where it has
  neither; rounding modes directed inward give the max. `saturate`: always the max. Overflow is
  tested after rounding. In IEEE P3109's formats they are its SatNone and SatFinite. SatNone: finite
  formats give the max, of an infinite value too; to odd, extended signed ones give Inf, whose code
  is odd; a finite negative number in an unsigned format gives 0 toward zero and up, NaN in other
  modes.
- `seed`, `stream`: of stochastic rounding: ints in [0, 2^64), or one-element integer tensors (an
  int64 tensor holds the 64 bits). A tensor on the GPU of a CUDA tensor x is read when the kernel
  runs: nothing waits for it, and each replay of a CUDA graph reads it again. Element i (row-major)
  uses the same random bits on every backend and for any layout; another stream gives others.
- `random_bits`: N, 1…24 (default 24): stochastic rounding compares with integers in [0, 2^N).
- `variant`: `A` (default), `B` or `C` of IEEE P3109's stochastic rounding. `random_bits` and
  `variant` raise ValueError with other roundings.

**out=** must have the result's shape, type and device, be writable, not overlap itself, and either
be one of the inputs or not overlap them. It is returned as the result. It is not supported by
autograd, torch.func's transforms and vmap (ValueError).

**flags=True** (cast, add, mul, fma, div, sqrt, sum, gemm; on the CPU) returns a pair: values, and
uint8 numbers of their shape, each the sum of the flags that its operation raises, as RISC-V and
TestFloat number them: 1 NX, the result differs from the exact one; 2 UF, inexact and tiny; 4 OF,
the result rounded without an upper bound exceeds the largest finite value, whatever is returned; 8
DZ, a finite number other than 0 divided by 0, and no other flag, also where the result saturates or
is NaN; 16 NV, a NaN result of operands that are not NaN, a NaN where the format has none, or a
signalling NaN operand (of x's own type: the first bit of its fraction is 0). Tiny means, with
`tininess="after"` (default), that the result rounded to the format's precision with an unbounded
exponent is below the least normal number; with `"before"`, that the exact result is. Results in an
integer (`int8`) are never tiny. A quiet NaN operand and an infinity that the format has raise
nothing; an infinity that it has not, or that saturates, raises OF and NX; -Inf in an unsigned
format NV where that gives NaN, else OF and NX. A sum or a product has the flags of all its
roundings. In an integer a term that loses bits raises NX, a sum that wraps or saturates OF and NX,
an infinite term NV; in a matrix unit a cut that drops a bit raises NX. Flags have no derivatives.

**Errors** are TypeError (for an argument's type) or ValueError (for its value), raised before
anything is written. What the machine cannot do (no GPU, a missing library) is a RuntimeError, lack
of memory a MemoryError (of torch's own operators: RuntimeError), on a GPU torch.OutOfMemoryError.
Under `torch.compile(fullgraph=True)` torch's own exceptions wrap them.

**Ctrl-C** ends a call of Python's main thread within a fraction of a second, when the call's
threads have ended; `out=` may be written in part. So does any exception that a signal's handler
raises. Calls on other threads, on a GPU, and with `blas=True` (one call of another library)
continue.

**Derivatives** (torch), in reverse and in forward mode, any number of times: `cast` is straight
through; add, mul, fma and sum have the derivatives of the exact operation; those of gemm are GEMMs
with the same accumulator, those of hadamard transforms; codes are integers, so encode and decode
have none: a gradient or a tangent ends there, as in `x.to(torch.int64)`. `torch.func`'s transforms
take all of them.

**torch.vmap** gives the results of a loop over the examples. Where rounding is stochastic, its
`randomness` decides, as for torch's own random functions. `error` (torch's default): RuntimeError;
`same`: each example draws the bits of its own elements, as in a call of its own (and takes one);
`different`: those of the elements of the whole batch, whose dimension is the first (not for encode,
nor for scaled formats with a scale for all of an example). Examples with their own seed, stream or
`random` integers work with any `randomness`.
"""

from __future__ import annotations

from typing import Any, Never

import numpy as np
import numpy.typing as npt

from cpd.numeric.accumulator import AccumulatorLike, accumulator, sum_accumulator
from cpd.numeric.formats import Format, FormatLike, as_format, flag
from cpd.numeric.hadamard import HadamardLike, hadamard_spec
from cpd.numeric.numbers import Number, int32, is_torch
from cpd.numeric.options import Options
from cpd.numeric.renamed import refuse_renamed
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled, overflow_of
from cpd.ops import front_ends, on_numpy
from cpd.ops.arguments import ArrayT, ScaleSource, Shape
from cpd.ops.encoded import Encoded
from cpd.ops.products import gemm_encoded


def _front_end(x: object) -> Any:
    """The module that works on arrays of `x`'s kind."""
    return front_ends.on_tensors() if is_torch(x) else on_numpy


def cast(
    x: ArrayT,
    f: FormatLike | ScaledLike,
    rounding: str = "nearest_even",
    overflow: str | None = None,
    out: ArrayT | None = None,
    *,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    dtype: Any = None,
) -> Any:
    """Rounds each element of `x` to a value of the format `f`.

    A float64 input is rounded from its 53 bits. NaN stays NaN. `out` may be `x`. `random`: integers
    R in [0, 2^random_bits), of x's shape, used in place of the generated ones. `dtype`: the
    result's type, which holds x's values; default x's own. x is widened to it first, but for a
    scaled format without a transform, whose scales follow from x in its own type (`arithmetic=te`).

    Raises ValueError where that type does not hold the result: bfloat16 and float16 hold elements
    times scales only if scales are powers of two and the elements short (mxfp8, not nvfp4).

    A scaled format (`cpd.Scaled`) computes scales from blocks of x along `axis`, rounds x / scale
    to the elements' format (`overflow` None: saturating) and gives element * scale, rounded once
    into binary32, in the result's type, which is not float64. Its gradient is straight through,
    scales included; with a transform (`Scaled`) values, tangents and gradients are those of
    `hadamard`. `scales`: used in place of computed ones, as from `encode` or as float32 numbers of
    the grid's shape (`Scaled.scales_shape`); of two levels a pair, of which the blocks' may be
    None. `amax`: float32, the largest magnitudes of the outermost level's cells, in place of x's
    own (delayed scaling).

    >>> x = np.array([0.3, 17.0, 300.0, -1e-9], np.float32)
    >>> cast(x, "e4m3").tolist()
    [0.3125, 16.0, inf, -0.0]
    >>> cast(x, "e4m3", overflow="saturate").tolist()
    [0.3125, 16.0, 240.0, -0.0]
    >>> cast(np.float32([1.0625]), "e4m3", "stochastic", random_bits=2, random=np.array([1])).item()
    1.0
    """
    to = format_or_scaled(f)
    options = Options(rounding, overflow_of(to, overflow), seed, stream, random_bits, variant)
    if dtype is not None and (not isinstance(to, Scaled) or to.transform is not None):
        x = _front_end(x).widened(x, dtype)
    if isinstance(to, Scaled):
        x, to = _transformed(x, to, axis)
        source = ScaleSource(scales, amax)
        if flag("flags", flags):
            raise ValueError(f"flags are for formats without scales, got {to}")
        along = int32("axis", axis)
        return _front_end(x).cast_scaled(x, to, options, out, along, source, random, dtype)
    _check_unscaled(to, axis, scales, amax)
    return _rounded("cast", (x,), to, options, out, random, flags, tininess)


def encode(
    x: ArrayT,
    f: FormatLike | ScaledLike,
    rounding: str = "nearest_even",
    overflow: str | None = None,
    *,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
) -> Any:
    """Rounds like `cast` and packs the codes: uint8, 1-D, ceil(n * f.bits / 8) long.

    Codes are in row-major order, least significant bit first, without gaps; the bits behind the
    last are 0. Any element type can be encoded in any format. ValueError for a NaN where the format
    has no NaN.

    A scaled format gives a pair: the elements' codes, as above, and the scales' codes, packed the
    same way in the row-major order of the grid of blocks; of two levels that is a pair too, the
    blocks' and the tensor's. `axis`, `scales` and `amax` as in `cast`. An element of a block whose
    scale is NaN has code 0 where its format has no NaN.

    >>> encode(np.float32([1.0, -6.0, 0.5]), "e2m1").tolist()
    [242, 1]
    >>> codes, scales = encode(np.float32([[3.0, -24.0], [0.5, 0.25]]), "mxfp4")
    >>> codes.tolist(), scales.tolist()      # 2^2 and 2^-3
    ([242, 70], [129, 124])
    """
    to = format_or_scaled(f)
    options = Options(rounding, overflow_of(to, overflow), seed, stream, random_bits, variant)
    if isinstance(to, Scaled):
        x, to = _transformed(x, to, axis)
        source = ScaleSource(scales, amax)
        return _front_end(x).encode_scaled(x, to, options, int32("axis", axis), source, random)
    _check_unscaled(to, axis, scales, amax)
    return _front_end(x).encode(x, to, options, random)


def decode(
    codes: ArrayT | Encoded,
    f: FormatLike | ScaledLike | None = None,
    shape: Shape | None = None,
    dtype: Any = None,
    out: ArrayT | None = None,
    *,
    axis: int = -1,
    scales: Any = None,
) -> ArrayT:
    """The values of packed codes, in that shape. The inverse of `encode`.

    `codes`: uint8, 1-D, of exactly the length that the shape needs; every pattern is valid. Or an
    `Encoded`, which has format, shape, axis and scales itself. `dtype`: of the result; default
    float32 (or out's). A scaled format needs `scales` too, as from `encode`, and the same `axis`.

    >>> decode(np.array([242, 1], np.uint8), "e2m1", 3).tolist()
    [1.0, -6.0, 0.5]
    >>> codes, scales = encode(np.float32([3.0, -24.0]), "mxfp4")
    >>> decode(codes, "mxfp4", 2, scales=scales).tolist()
    [4.0, -24.0]
    """
    if isinstance(codes, Encoded):
        if f is not None or shape is not None or scales is not None or axis != -1:
            raise ValueError("format, shape, axis and scales are in the Encoded: leave them out")
        codes, scales, f, shape, axis = codes
    if f is None or shape is None:
        raise TypeError("decode takes codes, a format and a shape, or an Encoded alone")
    to = format_or_scaled(f)
    if isinstance(to, Scaled):
        where = int32("axis", axis)
        return _front_end(codes).decode_scaled(codes, to, shape, dtype, out, where, scales)  # type: ignore[no-any-return]
    _check_unscaled(to, axis, scales, None)
    return _front_end(codes).decode(codes, to, shape, dtype, out)  # type: ignore[no-any-return]


def _transformed(x: Any, q: Scaled, axis: int) -> tuple[Any, Scaled]:
    """x transformed as a scaled format says, and the format without its transform."""
    if q.transform is None:
        return x, q
    return _front_end(x).hadamard(x, q.transform, axis, False, None), q.untransformed()


def _check_unscaled(to: Format, axis: Any, scales: Any, amax: Any) -> None:
    if scales is not None or amax is not None or int32("axis", axis) != -1:
        raise ValueError(f"axis, scales and amax are for scaled formats, got the format {to.name}")


def add(
    x: ArrayT,
    y: ArrayT,
    f: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    out: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """x + y, exact, then rounded once to `f`. The operands are any values of one type, including
    float64's whole range; they broadcast. They are not rounded: cast them first if they should be
    values of `f`. `random`: integers R in [0, 2^random_bits), of the result's shape, used in place
    of the generated ones.

    >>> add(np.float32([240.0]), np.float32([7.9]), "e4m3").item()
    240.0
    >>> add(np.float64([1e300]), np.float64([-1e300]), "e4m3").item()
    0.0
    >>> add(np.float64([1.0625]), np.float64([1e-300]), "e4m3").item()     # just beyond a tie
    1.125
    """
    options = Options(rounding, overflow, seed, stream, random_bits, variant)
    return _rounded("add", (x, y), as_format(f), options, out, random, flags, tininess)


def mul(
    x: ArrayT,
    y: ArrayT,
    f: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    out: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """x * y, exact, then rounded once to `f`; operands as in `add`.

    >>> mul(np.float32([1.125]), np.float32([1.125]), "e4m3").item()
    1.25
    """
    options = Options(rounding, overflow, seed, stream, random_bits, variant)
    return _rounded("mul", (x, y), as_format(f), options, out, random, flags, tininess)


def fma(
    x: ArrayT,
    y: ArrayT,
    z: ArrayT,
    f: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    out: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """x * y + z, exact, then rounded once to `f`; operands as in `add`.

    >>> one = np.float32([1.125])
    >>> fma(one, one, np.float32([-1.25]), "e4m3").item()
    0.015625
    """
    options = Options(rounding, overflow, seed, stream, random_bits, variant)
    return _rounded("fma", (x, y, z), as_format(f), options, out, random, flags, tininess)


def div(
    x: ArrayT,
    y: ArrayT,
    f: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    out: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """x / y, exact, then rounded once to `f`; operands as in `add`.

    >>> div(np.float32([1.0, 2.0, 1.0]), np.float32([3.0, 3.0, 0.0]), "e4m3").tolist()
    [0.34375, 0.6875, inf]
    """
    options = Options(rounding, overflow, seed, stream, random_bits, variant)
    return _rounded("div", (x, y), as_format(f), options, out, random, flags, tininess)


def sqrt(
    x: ArrayT,
    f: FormatLike,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    out: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random_bits: int = 24,
    variant: str = "A",
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """The square root of `x`, exact, then rounded once to `f`; that of -0 is -0, of a negative
    number NaN.

    >>> sqrt(np.float32([2.0, 4.0, -1.0]), "e4m3").tolist()
    [1.375, 2.0, nan]
    """
    options = Options(rounding, overflow, seed, stream, random_bits, variant)
    return _rounded("sqrt", (x,), as_format(f), options, out, random, flags, tininess)


def _rounded(
    operation: str,
    operands: tuple[Any, ...],
    to: Format,
    options: Options,
    out: Any,
    random: Any,
    flags: bool,
    tininess: str,
) -> Any:
    """One elementwise operation, with its flags where `flags` is true."""
    front_end = _front_end(operands[0])
    run = getattr(front_end, operation)
    if flags is False or not flag("flags", flags):
        return run(*operands, to, options, out, random)
    raised = front_end.flags(
        operation, operands, to, options, random, tininess
    )  # before out, an operand
    return run(*operands, to, options, out, random), raised


def sum(
    x: ArrayT,
    acc: AccumulatorLike,
    axis: int | None = None,
    *,
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **renamed: Never,
) -> Any:
    """Sums `x` in index order and rounds each step.

    `axis`: the axis to sum over, index ascending, negative from the end; default None: all elements
    in row-major order. The result has x's type, and x's shape without that axis (None: no axes).
    `acc`: an `Accumulator`, or a format for its sequential sum. The sum starts from the first term,
    rounded; then s = round(s + term), or Kahan's four operations. `chunked`: sums each chunk of
    terms so into `inner`, then so the chunks' sums. `pairwise`: a tree, neighbours first, an odd
    one passes up, each sum of two rounded; a single term is rounded. An empty sum is +0. float64
    terms are not rounded before they are added.

    `random`: for stochastic rounding, integers R in [0, 2^random_bits) used in place of the
    generated ones: of the result's shape and, last, `acc.sum_draws(terms)`. An element's integers
    are used by its roundings in program order: sequential, term by term; kahan, the first term's,
    then four for each further term; chunked, each chunk's terms and after its last the outer sum's;
    pairwise, as soon as two neighbouring trees are of equal size, at the end those that are left,
    the smallest first.

    >>> x = np.ones(40, np.float32)
    >>> sum(x, "e4m3").item()        # 16 + 1 rounds back to 16
    16.0
    >>> sum(x, "e4m3 pairwise").item()
    40.0
    >>> sum(x.reshape(8, 5), "e4m3", axis=0).tolist()
    [8.0, 8.0, 8.0, 8.0, 8.0]
    >>> acc = "e4m3 sequential rounding=stochastic random_bits=1"
    >>> sum(np.float32([16, 1, 1]), acc, random=np.array([0, 1, 0])).item()
    18.0
    """
    if renamed:
        refuse_renamed("sum", renamed, {"dim": "axis"})
    when = (tininess,) if flag("flags", flags) else ()
    return _front_end(x).sum(x, sum_accumulator(acc), axis, random, *when)


def gemm(
    a: ArrayT,
    b: ArrayT,
    acc: AccumulatorLike,
    c: ArrayT | None = None,
    *,
    dtype: Any = None,
    blas: bool = False,
    scales_at: str | None = None,
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """The matrix product of `a`, … × M × K, and `b`, … × K × N, each sum computed in `acc`.

    Element (i, j) starts from c[i, j], rounded (+0 without c), and adds the products
    a[i, k] * b[k, j], k ascending, by the accumulator's scheme (see `cpd.Accumulator`): each exact
    product is rounded into `acc.product`, unless products are exact, and every sum into the
    accumulator's format. The dimensions before the last two broadcast, and so does all of `c`. Any
    of M, N, K may be 0; K = 0 gives c, rounded. Operands may be any values of float32, bfloat16 or
    float16, each of its own type and of any strides; they are not rounded: cast them first if they
    should be values of a narrower format (a matrix unit's must be). Pass torch's float8 tensors as
    bfloat16 or float16, which hold them. NaN and infinities are those of the operations.

    `acc`: an `Accumulator`, its text, or a format for its sequential sum. `dtype`: of the result;
    default a's. It must hold the accumulator's format: bfloat16 matrices summed in fp32 need
    `dtype=torch.float32`, say.

    `blas=True` computes the product by a BLAS (cuBLAS for CUDA tensors, else OpenBLAS), at its
    speed; the order of the sums is then the library's own. All must be float32, and `acc`
    sequential fp32 to nearest-even.

    Random bits of stochastic rounding depend on seed, stream and the row-major number of the
    element in the result alone: not on the number of threads, strides or the backend.

    `random`: integers R in [0, 2^random_bits) used in their place, of the result's shape and, last,
    `acc.gemm_draws(K)`. An element's first is for the rounding of c (without c it is not used); the
    others are used by its roundings in program order: for each k that of the product, unless
    products are exact, then its sum's (kahan: four; pairwise: of each two neighbouring trees of
    equal size, and at the end of those left and of c; chunked: after a chunk's last also the outer
    sum's); of a matrix unit, the promotions or the result. By the general route, which is slower.
    Gradients draw from seed and stream.

    **Encoded operands.** a and b may be `cpd.Encoded`, blocks along k (a's axis is its last, b's
    its last but one). `scales_at` selects where scales are applied (fl: one rounding to binary32):

    - `operand` (default): values, rounded into binary32 first, are multiplied as above.
    - `block`: for each block of k, ascending, the elements' products are summed in `acc` from +0;
      then total = fl(total + fl(fl(sa * sb) * sum)). The two blocks are equal, or one a multiple of
      the other. A matrix unit with scales of its own applies them in its fused sums.
    - `epilogue`: all of k is summed in `acc`, then total = fl(fl(sa * sb) * sum): for scales of
      rows and tensors.

    With second levels ta, tb then y = fl(fl(ta * tb) * total); finally c is added in binary32. The
    result is float32; codes have no gradients.

    >>> q = "e4m3fn 2"     # blocks of 2 values, with scales in e8m0
    >>> from cpd import Encoded, encode
    >>> x, y = np.float32([[448, 1, 0.5, 0.25]]), np.ones((4, 1), np.float32)
    >>> left = Encoded(*encode(x, q), q, x.shape)
    >>> right = Encoded(*encode(y, q, axis=-2), q, y.shape, -2)
    >>> gemm(left, right, "fp32", scales_at="block").item()
    449.75

    Gradients (torch): a's is a GEMM of the gradient with b transposed, b's one of a transposed with
    the gradient, both with `acc` and `blas`; where a or b was broadcast, k also runs over the
    broadcast dimensions, before the matrix's own. c's is the gradient, summed in fp32 in row-major
    order over the dimensions that were broadcast. They draw from the streams XOR 4 << 60, 5 << 60
    and 6 << 60 (see `cpd.Recipe`, which chooses their accumulators). A result that the type of a, b
    or c does not hold is computed in float32 and rounded once into it, to nearest-even. Tangents:
    the GEMM of a's tangent with b (stream XOR 12 << 60), that of a with b's tangent (13 << 60),
    both with `acc` and `blas`, and c's tangent, added in float32.

    >>> a, b = np.full((1, 64), 0.5, np.float32), np.ones((64, 1), np.float32)
    >>> gemm(a, b, "e4m3").item()     # 8 + 0.5 is a tie and stays at 8
    8.0
    >>> gemm(a, b, "e4m3 chunked chunk=8").item()
    32.0
    >>> gemm(a, b, "fp32", np.float32([0.25])).item()
    32.25
    """
    if flag("flags", flags) and blas:
        raise ValueError("a BLAS reports no flags")
    if isinstance(a, Encoded) or isinstance(b, Encoded):
        if flag("blas", blas) or flags:
            taker = "a BLAS" if blas else "flags=True"
            raise ValueError(f"{taker} takes no encoded operands")
        codes = a.codes if isinstance(a, Encoded) else b.codes
        how = accumulator(acc), c, dtype, scales_at, random
        return gemm_encoded(_front_end(codes), a, b, *how)
    if scales_at is not None:
        raise ValueError(f"scales_at is for cpd.Encoded operands, got a: {type(a).__name__}")
    when = tininess if flags else None
    return _front_end(a).gemm(a, b, accumulator(acc), c, dtype, flag("blas", blas), random, when)


def hadamard(
    x: ArrayT,
    transform: HadamardLike,
    axis: int = -1,
    inverse: bool = False,
    out: ArrayT | None = None,
) -> ArrayT:
    """The Hadamard transform of each group of neighbouring values of `x` along `axis`.

    `transform`: a `Hadamard`, which defines every rounding, or its text. `inverse`: by the
    transpose. x: float32, bfloat16 or float16; the extent along the axis must be a multiple of the
    transform's size. The binary32 result is rounded once, to nearest-even, into x's type; a
    transform into bf16 gives bf16 values, which float16 does not hold (ValueError). NaN and
    infinities are those of the operations. `out` may be `x`.

    Derivatives (torch): the gradient is the inverse transform of the gradient, a tangent the
    transform of the tangent; the rounding into bf16 is straight through.

    >>> x = np.float32([1, 2, 3, 4])
    >>> hadamard(x, "hadamard4").tolist()
    [5.0, -1.0, -2.0, 0.0]
    >>> hadamard(hadamard(x, "hadamard4:signs=0x5"), "hadamard4:signs=0x5", inverse=True).tolist()
    [1.0, 2.0, 3.0, 4.0]
    """
    how = hadamard_spec(transform), axis, flag("inverse", inverse), out
    return _front_end(x).hadamard(x, *how)  # type: ignore[no-any-return]


def random_integers(
    shape: Shape, seed: Number = 0, stream: Number = 0, random_bits: int = 24
) -> npt.NDArray[np.uint32]:
    """The integers in [0, 2^random_bits) that stochastic rounding uses: a uint32 array whose
    element i (row-major) is what `cast` uses for element i with the same seed and stream.

    >>> bool(random_integers(1000, seed=1, random_bits=3).max() < 8)
    True
    """
    options = Options("stochastic", "ieee", seed, stream, random_bits, "A")
    return on_numpy.random_integers(shape, options)


__all__ = [
    "add",
    "cast",
    "decode",
    "div",
    "encode",
    "fma",
    "gemm",
    "hadamard",
    "mul",
    "random_integers",
    "sqrt",
    "sum",
]
