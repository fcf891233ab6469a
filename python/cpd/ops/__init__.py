# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays and tensors, each rounded by its format or accumulator.

The operations are cast, encode and decode; add, mul, fma, div and sqrt; the ordered sum; the matrix
product; and the Hadamard transform.

Each takes torch tensors, on the CPU or a CUDA device, or NumPy arrays, and returns the same kind.
Values of an emulated format are stored in ordinary floating-point tensors.

**Element types.** float32, float64, bfloat16 and float16 (NumPy: bfloat16 of `ml_dtypes`). gemm,
scaled formats and hadamard do not take float64; no type holds its exact products. The result has
x's type, which must hold every value of the format (else ValueError: float16 does not hold bf16).
Tensors have any layout, 0 to 16 dimensions, and any number of elements, also 0 or more than 2^31.
Inputs are not changed unless one of them is `out=`.

**Rounding options**, the same for every operation:

- `rounding`: `nearest_even` (default; ties to the even code), `nearest_away`, `toward_zero`, `up`,
  `down`, `to_odd`, `stochastic`. Every result is the exact result rounded once.
- `overflow`: `ieee` (default): Inf; NaN if the format has no Inf; its max if it has neither.
  Rounding modes directed inward give the max. `saturate`: always the max. Overflow is tested after
  rounding. In IEEE P3109's formats, `ieee` is its SatNone and `saturate` its SatFinite. With
  SatNone, finite formats give the max, of an infinite value too. Rounding to odd, extended signed
  formats give Inf, whose code is odd. A finite negative number in an unsigned format gives 0 toward
  zero and up, NaN in other modes.
- `seed`, `stream`: the seed and the stream of stochastic rounding: ints in [0, 2^64), or
  one-element integer tensors (an int64 tensor holds the 64 bits). A tensor on the GPU of a CUDA
  tensor x is read when the kernel runs: nothing waits for it, and each replay of a CUDA graph reads
  it again. Element i (row-major) uses the same random bits on every backend and for any layout;
  another stream gives other bits.
- `random_bits`: N, 1…24 (default 24): stochastic rounding compares with integers in [0, 2^N).
- `variant`: `A` (default), `B` or `C` of IEEE P3109's stochastic rounding. `random_bits` and
  `variant` raise ValueError with other roundings.
  `variant` raise ValueError with other roundings.

**out=** must have the result's shape, type and device. It must be writable and not overlap itself.
It must be one of the inputs, or not overlap them. It is returned as the result. Autograd,
torch.func's transforms and vmap do not support it (ValueError).

**flags=True** (cast, add, mul, fma, div, sqrt, sum, gemm; on the CPU) returns a pair: values, and
uint8 numbers of their shape. Each number is the sum of the flags that its operation raises,
numbered as in RISC-V and TestFloat:

- 1 NX: the result differs from the exact one.
- 2 UF: inexact and tiny. Tiny means, with `tininess="after"` (default), that the result rounded to
  the format's precision with an unbounded exponent is below the least normal number; with
  `"before"`, that the exact result is. Results in an integer (`int8`) are never tiny.
- 4 OF: the result rounded without an upper bound exceeds the largest finite value, whatever is
  returned.
- 8 DZ: a finite number other than 0 divided by 0. No other flag is raised, even if the result
  saturates or is NaN.
- 16 NV: a NaN result of operands that are not NaN, a NaN if the format has none, or a signaling NaN
  operand (of x's own type: the first bit of its fraction is 0).

A quiet NaN operand raises nothing, nor does an infinity that the format has. An infinity that the
format lacks, or that saturates, raises OF and NX. -Inf in an unsigned format raises NV if that
gives NaN, else OF and NX. A sum or a product has the flags of all its roundings. In an integer, a
term that loses bits raises NX, a sum that wraps or saturates OF and NX, an infinite term NV. In a
matrix unit, a cut that drops a bit raises NX. Flags have no derivatives.

**Errors** are TypeError (for an argument's type) or ValueError (for its value), raised before
anything is written. A missing capability of the machine (no GPU, a missing library) raises
RuntimeError. Lack of memory raises MemoryError (in torch's own operators RuntimeError), on a GPU
torch.OutOfMemoryError. Under `torch.compile(fullgraph=True)` torch's own exceptions wrap them.

**Ctrl-C** ends a call of Python's main thread within a fraction of a second, when the call's
threads have ended. `out=` may then be partly written. Any exception of a signal's handler has the
same effect. Calls on other threads, on a GPU, and with `blas=True` (one call of another library)
continue.

**Derivatives** (torch), in reverse and in forward mode, any number of times: `cast` is straight
through. add, mul, fma and sum have the derivatives of the exact operation. gemm's derivatives are
GEMMs with the same accumulator, hadamard's are transforms. Codes are integers, so encode and decode
have no derivatives: a gradient or a tangent ends there, as in `x.to(torch.int64)`. `torch.func`'s
transforms take all operations.

**torch.vmap** gives the results of a loop over the examples. If rounding is stochastic, its
`randomness` decides, as for torch's own random functions. `error` (torch's default): RuntimeError.
`same`: each example uses the random bits of its own elements, as in a separate call (and takes
one). `different`: each example uses the random bits of its elements in the whole batch, whose
dimension is the first. (encode, and scaled formats with one scale for a whole example, do not
support `different`.) Examples with their own seed, stream or `random` integers work with any
`randomness`.
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
