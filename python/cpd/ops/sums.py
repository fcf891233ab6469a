# SPDX-License-Identifier: Apache-2.0
"""Sums of terms and of products, rounded at each step: sum, gemm."""

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
    """Sums terms in index order and rounds each step.

    The sum starts from the first term, rounded. Then s = round(s + term), or Kahan's four
    operations. An empty sum is +0. float64 terms are not rounded before they are added.

    `chunked` sums each chunk of terms in this way into `inner`, then the chunks' sums. `pairwise`
    is a tree: neighbors are added first, an odd one passes up, and each sum of two is rounded. A
    single term is rounded.

    Args:
        x: an array or a tensor of floating-point numbers, of any shape and strides.
        accumulator: a `cpd.Accumulator` or its text, or a format for its sequential sum.
        axis: the axis to sum over, index ascending, negative from the end. Default None: all
            elements, in row-major order.
        seed: the seed of stochastic rounding: an int or a one-element integer tensor, whose value a
            compiled program reads at each call; default 0. If the accumulator has a seed of its
            own, both must be equal, or one of them 0.
        stream: the stream of random bits, like `seed`. Each pair of a seed and a stream has its own
            random bits. Default 0.
        random: the random integers of stochastic rounding, in [0, 2^random_bits), of the result's
            shape and a last dimension of `accumulator.sum_integers(terms)`. The roundings of an
            element use its integers in program order. sequential: term by term. kahan: one for the
            first term, then four for each further term. chunked: one for each term of a chunk, and
            after its last term one for the outer sum. pairwise: one when two neighboring trees are
            of equal size; at the end one for each tree that remains, the smallest first. Default
            None: generated from seed and stream.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the roundings of one sum raise: 1 inexact, 2
            underflow, 4 overflow, 16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The sums, of x's type, and of x's shape without the axis (None: no axes); with `flags` a
        pair.

    Raises:
        ValueError: the axis or the accumulator is invalid, or x's type does not hold its format.
        TypeError: an argument has another type.

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
    """Multiplies matrices; every sum is computed in an accumulator.

    Element (i, j) starts from c[i, j], rounded (+0 without c). It adds the products a[i, k] * b[k,
    j], k ascending, by the accumulator's scheme (see `cpd.Accumulator`). Each exact product is
    rounded into `accumulator.product`, unless products are exact. Every sum is rounded into the
    accumulator's format. The random bits of stochastic rounding depend only on seed, stream and the
    row-major index of the element in the result. They do not depend on the number of threads, the
    strides or the backend.

    Args:
        a: … × M × K: float32, bfloat16 or float16, of any strides, or an `Encoded`. Any of M, N, K
            may be 0; K = 0 gives c, rounded. Values are not rounded first: cast them if they should
            be values of a narrower format. A matrix unit requires values of its formats. Pass
            torch's float8 tensors as bfloat16 or float16, which hold them. NaN and infinities
            propagate as in the operations.
        b: … × K × N, of the types of a. The dimensions before the last two broadcast.
        accumulator: a `cpd.Accumulator`, its text, or a format for its sequential sum.
        c: the addend, which broadcasts to the result; default None.
        seed: the seed of stochastic rounding: an int or a one-element integer tensor, whose value a
            compiled program reads at each call; default 0. If the accumulator has a seed of its
            own, both must be equal, or one of them 0.
        stream: the stream of random bits, like `seed`. Each pair of a seed and a stream has its own
            random bits. Default 0.
        dtype: the type of the result; it must hold the accumulator's format. Default: a's. bfloat16
            matrices summed in fp32 need `dtype=torch.float32`, for instance.
        blas: True computes the product by a BLAS (cuBLAS for CUDA tensors, else OpenBLAS), at its
            speed and in its order of sums. All matrices are then float32, and the accumulator is
            sequential fp32, rounded to nearest-even. Default False.
        scales_at: where the scales of encoded operands are applied, as below: `operand` (default),
            `block` or `epilogue`.
        random: the random integers of stochastic rounding, in [0, 2^random_bits), of the result's
            shape and a last dimension of `accumulator.gemm_integers(K)`. The first integer of an
            element rounds c (unused without c). The element's other roundings use the others in
            program order: for each k the product's, unless products are exact, then its sum's. A
            sum takes four with kahan. With chunked, the outer sum also takes one after a chunk's
            last term. With pairwise, one goes to each sum of two neighboring trees of equal size;
            at the end, to each tree that remains and to c. A matrix unit takes them for the
            promotions or the result. `random` uses the general path, which is slower. Gradients
            take their random bits from seed and stream. Default None: generated from seed and
            stream.
        flags: True returns a pair: the values, and an array of uint8 of the same shape. Each
            element is the sum of the flags that the roundings of one sum raise: 1 inexact, 2
            underflow, 4 overflow, 16 invalid (`help(cpd.ops)`). On the CPU; default False.
        tininess: for `flags`: `after` (default) if underflow is detected after rounding, or
            `before`.

    Returns:
        The product, … × M × N; with `flags` a pair.

    Raises:
        ValueError: shapes, types or options do not fit together.
        TypeError: an argument has another type.

    **Encoded operands.** a and b may be `cpd.Encoded`, with blocks along k: a's axis is its last,
    b's axis its last but one. `scales_at` selects where scales are applied. (fl is one rounding to
    binary32.)

    - `operand` (default): the values are rounded into binary32, then multiplied as above.
    - `block`: for each block of k, ascending, the products of the elements are summed in the
      accumulator from +0. Then total = fl(total + fl(fl(sa * sb) * sum)). The two blocks are equal,
      or one is a multiple of the other. A matrix unit that takes scales applies them in its fused
      sums.
    - `epilogue`: all of k is summed in the accumulator. Then total = fl(fl(sa * sb) * sum). This is
      for scales of rows and tensors.

    With second levels ta and tb, y = fl(fl(ta * tb) * total) follows. Finally c is added in
    binary32. The result is float32. Codes have no gradients.

    >>> import numpy as np
    >>> q = "e4m3fn 2"     # blocks of 2 values, with scales in e8m0
    >>> from cpd import Encoded, encode
    >>> x, y = np.float32([[448, 1, 0.5, 0.25]]), np.ones((4, 1), np.float32)
    >>> left = Encoded(*encode(x, q), q, x.shape)
    >>> right = Encoded(*encode(y, q, axis=-2), q, y.shape, -2)
    >>> gemm(left, right, "fp32", scales_at="block").item()
    449.75

    Gradients (torch): a's gradient is a GEMM of the result's gradient with b transposed. b's
    gradient is a GEMM of a transposed with the result's gradient. Both use the accumulator and
    `blas`. If a or b was broadcast, k also runs over the broadcast dimensions, before the matrix's
    own. c's gradient is the result's gradient, summed in fp32 in row-major order over the broadcast
    dimensions. The three use the streams XOR 4 << 60, 5 << 60 and 6 << 60 (`cpd.Recipe` chooses
    their accumulators). If the type of a, b or c does not hold a gradient, the gradient is computed
    in float32 and rounded once into that type, to nearest-even.

    Tangents: the result's tangent is the sum, in float32, of three terms: the GEMM of a's tangent
        with b (stream XOR 12 << 60), the GEMM of a with b's tangent (13 << 60), and c's tangent.
        Both GEMMs use the accumulator and `blas`.

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
