# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays and tensors, each rounded by its format or accumulator.

The operations are cast, encode and decode; add, mul, fma, div and sqrt; the ordered sum; the matrix
product; and the Hadamard transform.

Each operation takes torch tensors (on the CPU or a CUDA device) or NumPy arrays, and returns the
same kind. Values of an emulated format are stored in ordinary floating-point tensors.

**Element types.** float32, float64, bfloat16 and float16 (NumPy: bfloat16 of `ml_dtypes`). gemm,
scaled formats and hadamard do not support float64, because no type holds exact products of float64
values. The result has x's type, which must represent every value of the format. Otherwise the
operation raises ValueError: for example, float16 does not represent every bf16 value. Tensors have
any layout, 0 to 16 dimensions, and any number of elements, also 0 or more than 2^31. Inputs are not
changed unless one of them is `out=`.

**Rounding options**, the same for every operation:

- `rounding`: `nearest_even` (default; ties to the even code), `nearest_away`, `toward_zero`, `up`,
  `down`, `to_odd`, `stochastic`. Every result is the exact result rounded once.
- `overflow`: the result of an operation that overflows. `ieee` (default): Inf, or NaN in a format
  without Inf, or the largest finite value in a format without both. A rounding mode that rounds
  toward zero for the value's sign gives the largest finite value. `saturate`: always the largest
  finite value. Overflow is tested after rounding. For formats of IEEE P3109, `ieee` is P3109's
  SatNone and `saturate` its SatFinite. With SatNone, finite formats give the largest finite value,
  for an infinite value too. With `to_odd`, extended signed formats give Inf, whose code is odd. In
  an unsigned format, a negative finite number gives 0 with `toward_zero` and `up`, and NaN with
  other roundings.
- `seed`, `stream`: the seed and the stream of stochastic rounding: ints in [0, 2^64), or
  one-element integer tensors. An int64 tensor holds the 64 bits of the number. If the seed tensor
  is on the same GPU as x, the kernel reads it when it runs: the call does not wait, and each replay
  of a CUDA graph reads the tensor again. Element i (in row-major order) uses the same random bits
  on every backend and for any layout. Another stream gives other bits.
- `random_bits`: N, 1…24 (default 24): stochastic rounding uses one random integer in [0, 2^N) for
  each result.
- `variant`: `A` (default), `B` or `C` of IEEE P3109's stochastic rounding. `random_bits` and
  `variant` raise ValueError with other roundings.

**out=** must have the result's shape, type and device. It must be writable and not overlap itself.
It must be one of the inputs, or not overlap any input. The operation returns `out`. Autograd,
torch.func's transforms and vmap do not support `out=` (ValueError).

**flags=True** (cast, add, mul, fma, div, sqrt, sum, gemm; on the CPU) returns a pair: the values,
and an array of uint8 of the same shape. Each number is the sum of the flags that the operation on
this element raises. Flags are numbered as in RISC-V and TestFloat:

- 1 NX: the result differs from the exact one.
- 2 UF: the result is inexact and tiny. With `tininess="after"` (default), it is tiny if its
  magnitude is below the least normal number after rounding to the format's precision with an
  unbounded exponent. With `"before"`, it is tiny if the exact result is below the least normal
  number. Results in an integer format (`int8`) are never tiny.
- 4 OF: the result, rounded with an unbounded exponent range, exceeds the largest finite value. The
  flag does not depend on the returned value (Inf, NaN or saturated).
- 8 DZ: a finite number other than 0 divided by 0. No other flag is raised, even if the result
  saturates or is NaN.
- 16 NV: the result is NaN but no operand is; or the result is NaN but the format has no NaN; or an
  operand is a signaling NaN of x's type (the first bit of its fraction is 0). A quiet NaN operand
  raises no flag.

An infinite operand raises no flag if the format has infinities. An infinity that the format lacks,
or that saturates, raises OF and NX. In an unsigned format, -Inf raises NV if the result is NaN,
else OF and NX. A sum or a matrix product has the flags of all its roundings. In an integer
accumulator, a term that loses bits raises NX, a sum that wraps or saturates raises OF and NX, and
an infinite term raises NV. In a matrix unit, a truncation that drops a nonzero bit raises NX.
Flags have no derivatives.

**Errors** are TypeError (for an argument's type) or ValueError (for its value), raised before
anything is written. RuntimeError: the machine has no GPU, or a library is missing. MemoryError: too
little memory (torch's own operators raise RuntimeError; on a GPU the error is
torch.OutOfMemoryError). Under `torch.compile(fullgraph=True)`, torch wraps these errors in its own
exceptions.

**Ctrl-C** ends a call on Python's main thread within a fraction of a second, after the call's own
threads have ended. `out=` may then be partly written. An exception from any other signal handler
has the same effect. Calls on other threads, on a GPU, and with `blas=True` continue to their end.

**Derivatives** (torch), in reverse and in forward mode, any number of times: `cast` is a
straight-through estimator: its derivative is 1. add, mul, fma and sum have the derivatives of the
exact operation. The derivatives of gemm are GEMMs with the same accumulator, and the derivatives of
hadamard are Hadamard transforms. Codes are integers, so encode and decode have no derivatives: a
gradient or a tangent ends at them, as at `x.to(torch.int64)`. `torch.func`'s transforms support all
operations.

**torch.vmap** gives the results of a loop over the examples. For stochastic rounding, vmap's
argument `randomness` selects the random bits, as for torch's own random functions. `error` (torch's
default): the call raises RuntimeError. `same`: each example uses the random bits that a separate
call would use. `different`: the batch is the first dimension of one large array, and each element
uses the random bits of its index in that array. (encode, and scaled formats with one scale for a
whole example, do not support `different`.) Examples with their own seed, stream or `random`
integers work with any `randomness`.
"""

from cpd.numeric.accumulator import AccumulatorLike
from cpd.numeric.formats import FormatLike
from cpd.numeric.numbers import Number
from cpd.ops.arguments import ArrayT, Shape
from cpd.ops.arithmetic import add, div, fma, mul, sqrt
from cpd.ops.casts import cast, decode, encode, hadamard, random_integers
from cpd.ops.encoded import Encoded
from cpd.ops.sums import gemm, sum

__all__ = [
    "AccumulatorLike",
    "ArrayT",
    "Encoded",
    "FormatLike",
    "Number",
    "Shape",
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
