# SPDX-License-Identifier: Apache-2.0
"""Sums and matrix products in which each addition is rounded: sum, gemm."""

from __future__ import annotations

from typing import Any, Literal, Never, Unpack, cast, overload

from cpd.numeric.accumulator import AccumulatorLike, as_accumulator, sum_accumulator
from cpd.numeric.formats import flag
from cpd.numeric.numbers import Number
from cpd.numeric.renamed import REQUIRED, refuse, refuses_old
from cpd.ops.arguments import (
    NARROW_FLOATS,
    ArrayT,
    Drawn,
    Rounded,
    check_addend,
    check_result,
    check_storage,
    check_tininess,
    dimension,
    draws,
    product_shape,
)
from cpd.ops.encoded import Encoded
from cpd.ops.front_ends import front_end_of
from cpd.ops.products import check_encoded, gemm_scaled, values_of


@overload
def sum(
    x: ArrayT,
    accumulator: AccumulatorLike,
    axis: int | None = None,
    *,
    flags: Literal[False] = False,
    **options: Unpack[Rounded[ArrayT]],
) -> ArrayT: ...
@overload
def sum(
    x: ArrayT,
    accumulator: AccumulatorLike,
    axis: int | None = None,
    *,
    flags: Literal[True],
    **options: Unpack[Rounded[ArrayT]],
) -> tuple[ArrayT, ArrayT]: ...
@refuses_old
def sum(
    x: ArrayT,
    accumulator: AccumulatorLike = REQUIRED,
    axis: int | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Sums terms in index order and rounds after each addition.

    The sum s starts from the first term, rounded to the accumulator's format. Then s = round(s +
    term) for each further term, or the four operations of Kahan's sum. An empty sum is +0. float64
    terms are not rounded before they are added. `chunked` sums the terms of each chunk in this way
    in the format `inner`, then sums the results of the chunks. `pairwise` is a binary tree: each
    level adds neighbors and rounds each sum, and a last term without a neighbor moves to the next
    level. A single term is rounded.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides.
        accumulator: a `cpd.Accumulator` or its text, or a format, which means a sequential sum in
            that format.
        axis: the axis to sum over, in ascending order of the index. A negative axis counts from the
            end. Default None: all elements are summed in row-major order.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed. A compiled program reads the
            tensor at each call.
        stream: the stream of random bits: a number like `seed`; default 0. Each pair of a seed and
            a stream gives other random bits.
        random: the random integers of stochastic rounding, in [0, 2^random_bits), of the result's
            shape with one more dimension of `accumulator.sum_integers(terms)`. The roundings of a
            result use its integers in the order of computation. `sequential`: one for each term.
            `kahan`: one for the first term, then four for each further term. `chunked`: one for
            each term of a chunk, and after the chunk's last term one for the sum over chunks.
            `pairwise`: terms arrive in order, and one integer is used whenever two neighboring
            subtrees of equal size are added; at the end one for each subtree that remains, the
            smallest first. Default None: generated from seed and stream.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the roundings of one sum raise: 1 inexact, 2
            underflow, 4 overflow, 16 invalid (`help(cpd.ops)`). Supported on the CPU; default
            False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The sums, of x's type and of x's shape without the axis (with axis None, of shape ()). With
        `flags`, the pair of sums and flags.

    Raises:
        ValueError: if the axis or the accumulator is invalid, or if x's type does not represent
            every value of the accumulator's format.
        TypeError: for an argument of another type.

    >>> import numpy as np
    >>> x = np.ones(40, np.float32)
    >>> sum(x, "e4m3").item()        # 16 + 1 rounds back to 16
    16.0
    >>> sum(x, "e4m3 pairwise").item()
    40.0
    >>> sum(x.reshape(8, 5), "e4m3", axis=0).tolist()
    [8.0, 8.0, 8.0, 8.0, 8.0]
    >>> acc = "e4m3 rounding=stochastic random_bits=1"
    >>> sum(np.float32([16, 1, 1]), acc, random=np.array([0, 1, 0])).item()
    18.0
    >>> sum(np.float32([16, 1, 1]), acc, seed=3).item()
    18.0
    """
    if _renamed or accumulator is REQUIRED:
        refuse("sum", _renamed, accumulator)
    if tininess != "after":
        check_tininess(tininess)
    when = tininess if flags is not False and flag("flags", flags) else None
    acc = sum_accumulator(accumulator)
    kind: Any = front_end_of(x)
    x = kind.array("x", x)
    if axis is None:
        x, axis = kind.flat(x), 0
    axis = dimension(axis, x.ndim)
    check_storage(kind.name_of(x.dtype), acc.format.name)
    integers = None
    if random is not None:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        integers = draws(kind, random, x, shape, acc, acc.sum_integers, x.shape[axis])
    return kind.sum(x, axis, acc, seed, stream, integers, when)  # type: ignore[no-any-return]


@overload
def gemm(
    a: ArrayT,
    b: ArrayT,
    accumulator: AccumulatorLike,
    c: ArrayT | None = None,
    *,
    dtype: Any = None,
    blas: bool = False,
    flags: Literal[False] = False,
    **options: Unpack[Rounded[ArrayT]],
) -> ArrayT: ...
@overload
def gemm(
    a: ArrayT,
    b: ArrayT,
    accumulator: AccumulatorLike,
    c: ArrayT | None = None,
    *,
    dtype: Any = None,
    flags: Literal[True],
    **options: Unpack[Rounded[ArrayT]],
) -> tuple[ArrayT, ArrayT]: ...
@overload
def gemm(
    a: Encoded,
    b: Encoded,
    accumulator: AccumulatorLike,
    c: Any = None,
    *,
    dtype: Any = None,
    scales_at: str | None = None,
    **options: Unpack[Drawn[Any]],
) -> Any: ...
@refuses_old
def gemm(
    a: ArrayT | Encoded,
    b: ArrayT | Encoded,
    accumulator: AccumulatorLike = REQUIRED,
    c: ArrayT | None = None,
    *,
    seed: Number = 0,
    stream: Number = 0,
    dtype: Any = None,
    blas: bool = False,
    scales_at: str | None = None,
    random: ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
    **_renamed: Never,
) -> ArrayT | tuple[ArrayT, ArrayT]:
    """Multiplies matrices and adds the products of each element by the rule of an accumulator.

    Element (i, j) starts from c[i, j] rounded to the accumulator's format, or from +0 without c.
    The products a[i, k] * b[k, j] are added in ascending order of k, by the accumulator's scheme
    (see `cpd.Accumulator`). Each product is computed exactly and rounded to the format
    `accumulator.product`, unless this is "exact". The result of each addition is rounded to the
    accumulator's format. The random bits of stochastic rounding depend only on seed, stream and the
    row-major index of the element in the result. They do not depend on the number of threads, the
    strides or the backend.

    Args:
        a: an array or a tensor of shape … × M × K, of float32, bfloat16 or float16 and any strides,
            or an `Encoded`. M, N and K may be 0; with K = 0, the result is c rounded. Values are
            not rounded to a format first; call `cast` to do so. With a matrix unit, all values must
            be values of the unit's formats. float8 tensors of torch are not supported: convert them
            to bfloat16 first, which is exact. NaN and infinities propagate as in IEEE 754's
            operations.
        b: an array or a tensor of shape … × K × N, of one of the types allowed for a, or an
            `Encoded` like a. The dimensions before the last two broadcast.
        accumulator: a `cpd.Accumulator`, its text, or a format, which means a sequential sum in
            that format.
        c: the addend (float32, bfloat16 or float16), which broadcasts to the result; default None:
            no addend.
        seed: the seed of stochastic rounding: an int in [0, 2^64), or a one-element integer tensor;
            default 0. An int64 tensor holds the 64 bits of the seed. A compiled program reads the
            tensor at each call.
        stream: the stream of random bits: a number like `seed`; default 0. Each pair of a seed and
            a stream gives other random bits.
        dtype: the type of the result, which must represent every value of the accumulator's format;
            default: a's type. For example, bfloat16 matrices summed in fp32 need
            `dtype=torch.float32`.
        blas: True computes the product by a BLAS (cuBLAS for CUDA tensors, else OpenBLAS). This is
            faster, but the BLAS determines the order of the sums. All matrices must then be
            float32, and the accumulator must be sequential fp32, rounded to nearest-even. Default
            False.
        scales_at: the step at which scales of `Encoded` operands are applied: `operand` (default),
            `block` or `epilogue`, as described below.
        random: the random integers of stochastic rounding, in [0, 2^random_bits), of the result's
            shape with one more dimension of `accumulator.gemm_integers(K)`. The first integer of an
            element rounds c (without c it is unused). The element's other integers are used in the
            order of computation: for each k, one rounds the product, unless products are exact,
            then one rounds the sum. `kahan` uses four for each sum. `chunked` uses one more after a
            chunk's last term, for the sum over chunks. `pairwise` uses one for each addition of two
            neighboring subtrees of equal size; at the end, one for each subtree that remains, and
            one for adding the tree to c. A matrix unit uses one for each promoted sum (key
            `promote`), or without `promote` one for the result. With `random`, the product takes
            the general, slower path. Gradients use random bits from seed and stream. Default None:
            generated from seed and stream.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the roundings of one sum raise: 1 inexact, 2
            underflow, 4 overflow, 16 invalid (`help(cpd.ops)`). Supported on the CPU; default
            False.
        tininess: for `flags`: `after` (default) or `before`. Underflow is detected after or before
            rounding.

    Returns:
        The product, of shape … × M × N. With `flags`, the pair of values and flags.

    Raises:
        ValueError: if shapes, types or options do not fit together.
        TypeError: for an argument of another type.

    **Encoded operands.** a and b may both be `cpd.Encoded`, with blocks along k: a's axis is -1,
    and b's axis is -2. `scales_at` selects the step at which scales are applied. Below, fl is one
    rounding to binary32, and sa and sb are the scales of a and b.

    - `operand` (default): both operands are decoded to binary32 values, which are then multiplied
      as above.
    - `block`: for each block of k, in ascending order, the products of the elements are summed in
      the accumulator from +0. Then total = fl(total + fl(fl(sa * sb) * sum)). The block sizes of a
      and b must be equal, or one a multiple of the other. A matrix unit with `scale` instead
      applies the scales within its own sums.
    - `epilogue`: the products of all k are summed in the accumulator. Then total = fl(fl(sa * sb) *
      sum). This works only for one scale for each row, or for the tensor.

    For `block` and `epilogue`, outer scales ta and tb are applied next: y = fl(fl(ta * tb) *
    total). Finally c is added in binary32. The result is float32. Codes have no gradients.

    >>> import numpy as np
    >>> q = "e4m3fn 2"     # blocks of 2 values, with scales in e8m0
    >>> from cpd import Encoded, encode
    >>> x, y = np.float32([[448, 1, 0.5, 0.25]]), np.ones((4, 1), np.float32)
    >>> left = Encoded(*encode(x, q), q, x.shape)
    >>> right = Encoded(*encode(y, q, axis=-2), q, y.shape, -2)
    >>> gemm(left, right, "fp32", scales_at="block").item()
    449.75

    Gradients (torch): a's gradient is a GEMM of the result's gradient with b transposed. b's
    gradient is a GEMM of a transposed with the result's gradient. Both GEMMs use the accumulator
    and `blas` of the call. If a or b was broadcast, its gradient is also summed over the broadcast
    dimensions, with the summed dimension of the matrix innermost. c's gradient is the result's
    gradient, summed in fp32 in row-major order over the broadcast dimensions. The gradients of a, b
    and c use the streams `stream` XOR 4 << 60, 5 << 60 and 6 << 60. (In a model, `cpd.Recipe`
    selects their accumulators.) If the type of a, b or c does not represent the accumulator's
    values, the gradient is computed in float32 and rounded once to nearest-even in that type.

    Tangents: the result's tangent is the sum, in float32, of three terms: the GEMM of a's tangent
    with b (stream XOR 12 << 60), the GEMM of a with b's tangent (stream XOR 13 << 60), and c's
    tangent. Both GEMMs use the accumulator and `blas` of the call.

    >>> a, b = np.full((1, 64), 0.5, np.float32), np.ones((64, 1), np.float32)
    >>> gemm(a, b, "e4m3").item()     # 8 + 0.5 is a tie and stays at 8
    8.0
    >>> gemm(a, b, "e4m3 chunked chunk=8").item()
    32.0
    >>> gemm(a, b, "fp32", np.float32([0.25])).item()
    32.25
    """
    if _renamed or accumulator is REQUIRED:
        refuse("gemm", _renamed, accumulator)
    if tininess != "after":
        check_tininess(tininess)
    if flags is not False and flag("flags", flags) and blas:
        raise ValueError("a BLAS reports no flags")
    if isinstance(a, Encoded) or isinstance(b, Encoded):
        if flag("blas", blas) or flags:
            taker = "a BLAS" if blas else "flags=True"
            raise ValueError(f"{taker} takes no encoded operands")
        at = check_encoded(a, b, scales_at)
        acc, left, right = as_accumulator(accumulator), cast(Encoded, a), cast(Encoded, b)
        if at != "operand":
            return gemm_scaled(left, right, acc, c, (seed, stream), dtype, at, random)  # type: ignore[no-any-return]
        a, b = values_of(left), values_of(right)
    elif scales_at is not None:
        raise ValueError(f"scales_at is for cpd.Encoded operands, got a: {type(a).__name__}")
    acc = as_accumulator(accumulator)
    kind: Any = front_end_of(a)
    x = kind.array("a", a, NARROW_FLOATS, "a")
    y = kind.array("b", b, NARROW_FLOATS, "a", x)
    z = None if c is None else kind.array("c", c, NARROW_FLOATS, "a", x)
    shape = product_shape(x.shape, y.shape)
    if z is not None:
        check_addend(z.shape, shape)
    element = x.dtype if dtype is None else kind.element(dtype, NARROW_FLOATS)
    check_result(kind.name_of(element), acc.format.name)
    integers = None
    if random is not None:
        integers = draws(kind, random, x, shape, acc, acc.gemm_integers, x.shape[-1], "a")
    by_blas = blas is not False and flag("blas", blas)
    when = tininess if flags else None
    numbers = seed, stream
    return kind.gemm(x, y, z, shape, acc, *numbers, element, by_blas, integers, when)  # type: ignore[no-any-return]
