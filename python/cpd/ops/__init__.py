# SPDX-License-Identifier: Apache-2.0
"""Operations on arrays and tensors, each rounded as its format or accumulator says.

They are cast, encode and decode; add, mul, fma, div and sqrt; the ordered sum; the matrix product;
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
signaling NaN operand (of x's own type: the first bit of its fraction is 0). Tiny means, with
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
