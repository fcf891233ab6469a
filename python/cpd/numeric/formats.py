# SPDX-License-Identifier: Apache-2.0
"""Defines `Format`: a number format, the set of its values and their codes."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from cpd import _core
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import int32
from cpd.numeric.shown import kind_of
from cpd.numeric.spec import KINDS, Kind, Spec, made
from cpd.numeric.spec import flag as flag

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

_MAX_LISTED_BITS = 24


def format_text(what: str, value: Any) -> str:
    """Returns the text of a format that is given in any form that `Format` takes.

    `what` names the argument in the TypeError for any other value.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Format):
        return value.name
    if isinstance(value, tuple) and len(value) == 2:
        return f"({int32('exp', value[0])},{int32('man', value[1])})"
    if isinstance(value, type) and issubclass(value, np.generic):
        return value.__name__
    torch = sys.modules.get("torch")
    if isinstance(value, np.dtype) or (torch is not None and isinstance(value, torch.dtype)):
        return dtype_name(value)
    raise TypeError(
        f"{what} must be a name such as 'e4m3fn', a cpd.Format, a pair (exp, man) or a dtype, got "
        f"{kind_of(value)}"
    )


def dtype_name(dtype: Any) -> str:
    """Returns the name of an element type of NumPy or torch, such as "float32"."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


@constant
def named(name: str) -> Format:
    """Returns the format of a name. A program compiled by torch.compile uses it as a constant."""
    return made(Format, name, ())


KINDS["format"] = Kind(format_text, named)


class Format(Spec, native=_core.Format):
    """A number format: its exponent and mantissa bits, and the meaning of its codes.

    Args:
        format: the name of the format, in any letter case. Or a pair of ints (exp, man), a dtype of
            torch, NumPy or ml_dtypes, or a `Format`. Keywords replace properties of this format.
            Without a format, `exp` and `man` must be given. Names are:

            - `eXmY`, IEEE-like: `e4m3` has Inf and a max of 240. The suffix `fn`, `fnuz`, `p3109`,
              `p3109finite`, `finite` or `ieee` selects that encoding (see `encoding`). Without a
              suffix, `e2m1`, `e2m3` and `e3m2` are OCP's finite formats. The options `bias=`,
              `nosub` (no subnormals) and `unsigned` may follow: `e4m3fn:bias=11:nosub:unsigned`.
            - `(X,Y)`, as papers write formats of X exponent and Y mantissa bits, always IEEE-like:
              `(4,3)` is `e4m3`, `(3,2)` is `e3m2ieee`. The pair of ints (4, 3) means the same as
              the text.
            - `fp64`, `fp32`, `tf32`, `bf16`, `fp16`, `e8m0`.
            - IEEE P3109's `binaryKpP` with a suffix: K bits, precision P. The suffix is `s` or `u`
              (signed or unsigned), then `e` or `f` (extended, with Inf, or finite). `binary8p4sf`
              has the values of `e4m3fnuz`, but its overflow gives 240 instead of NaN.
            - `int8` (`int2` to `int25`): integers in two's complement; for `int8` from -127 to 127.
              `int8:full` also has -128. (`cpd.decode` decodes the code of -128 in both formats.)
              `sm8` (`sm2` to `sm25`) also has -127 to 127, in sign-magnitude codes, and -0.
            - Names of other libraries, each with its meaning in that library: `float64`, `float32`,
              `float16`, `half`, `bfloat16`, `float8_e4m3fn`, `float8_e5m2`, `float8_e4m3fnuz`,
              `float8_e5m2fnuz`, `float8_e8m0fnu`, `float6_e2m3fn`, `float6_e3m2fn`, `float4_e2m1fn`
              (torch: `float4_e2m1fn_x2`), `float8_e3m4`, `e4m3b11fnuz` (`e4m3fnuz:bias=11`), and
              PTX's scales `ue4m3`, `ue5m3` (`e5m3fn:unsigned`) and `ue8m0`. `float8_e4m3`, of
              ml_dtypes, is IEEE-like. The E4M3 of OCP and NVIDIA is `e4m3fn`, as is torch's
              `float8_e4m3fn`.

        exp: the number of exponent bits, 1 to 8; with encoding `ieee` up to 11.
        man: the number of mantissa bits, 0 to 23; with encoding `ieee` up to 52.
        bias: the exponent bias. Default: 2^(exp-1) - 1; for `fnuz`, `p3109` and `p3109finite`
            2^(exp-1); for `int` and `int_full` 1 - man, so that neighbors differ by 1.
        encoding: the special values.

            - `ieee` (default): the top exponent holds Inf and NaN.
            - `fn`: no Inf; the code of all ones is NaN.
            - `fnuz`: no Inf, no -0.
            - `p3109`: the encoding of IEEE P3109.
            - `p3109finite`: `p3109` without Inf, so that overflow gives the largest value.
            - `finite`: neither Inf nor NaN.
            - `e8m0`: powers of two, without sign and mantissa.
            - `int`: two's complement integers times 2^(1 - bias - man), without the least integer,
              so that the range is symmetric; `exp` is 1.
            - `int_full`: like `int`, but with the least integer.

        signed: true (default) if the format has a sign bit.
        subnormals: true (default) if the format has nonzero numbers below the least normal number.

    Values of formats with more than 8 exponent or 23 mantissa bits need float64 arrays and tensors.
    Only cast, add, mul, fma, div and sqrt support these formats, on the CPU. Other operations raise
    ValueError. A format is immutable, hashable and picklable. Two formats are equal if all six
    properties are equal. In texts of scaled formats and recipes, write `(4,3)` for the IEEE-like
    format: a bare `e4m3` is refused there, because readers take it for OCP's.

    Raises:
        ValueError: the name is unknown (the error names the nearest one); a finite value is not a
            binary32 value (for the wider formats, a binary64 value); or the combination does not
            exist (unsigned `fnuz`).
        TypeError: an argument has another type.

    >>> f = Format("e4m3")
    >>> f.max, f.min_normal, f.min_subnormal, f.epsilon, f.bits
    (240.0, 0.015625, 0.001953125, 0.125, 8)
    >>> Format("e4m3fn").max, str(Format("e5m10"))
    (448.0, 'fp16')
    >>> Format(exp=4, man=3, encoding="fn"), Format("e4m3fn", bias=11), Format("FLOAT8_E4M3FN")
    (cpd.Format('e4m3fn'), cpd.Format('e4m3fn:bias=11'), cpd.Format('e4m3fn'))
    >>> import ml_dtypes
    >>> Format((5, 2)), Format(np.float16), Format(ml_dtypes.float8_e4m3b11fnuz)
    (cpd.Format('e5m2'), cpd.Format('fp16'), cpd.Format('e4m3fnuz:bias=11'))
    """

    exp: int
    man: int
    bias: int
    encoding: str
    signed: bool
    subnormals: bool
    name: str
    """The canonical name; `cpd.Format(f.name) == f`."""
    text: str
    """The name."""
    bits: int
    """The number of bits of a code, sign included."""
    max: float
    """Largest finite value."""
    lowest: float
    """The least finite value: -max if signed, else 0. For `int_full`, -max minus the distance
    between neighbors; for e8m0, 2^-127."""
    min_normal: float | None
    """The least positive normal number; None if there is none (exp = 1)."""
    min_subnormal: float | None
    """The least positive value. Without subnormals it is the least normal number; None if there is
    no positive value."""
    epsilon: float
    """2^-man: the distance from 1 to the next number, at full precision."""
    num_values: int
    """The number of distinct finite values, zero counted once."""
    _held: _core.Format

    def __init__(
        self,
        format: FormatLike | None = None,
        /,
        *,
        exp: int | None = None,
        man: int | None = None,
        bias: int | None = None,
        encoding: str | None = None,
        signed: bool | None = None,
        subnormals: bool | None = None,
    ) -> None: ...

    @classmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        if isinstance(spec, str):
            return spec
        if spec is None and "exp" in keys and "man" in keys:
            return ""
        if spec is None:
            raise TypeError("Format takes a name, or exp= and man=")
        if isinstance(spec, int):
            raise TypeError("Format takes bits as a pair, (exp, man), or by exp= and man=")
        return format_text("a format", spec)

    def values(self) -> npt.NDArray[np.float32]:
        """Returns all distinct finite values in ascending order.

        Returns:
            A one-dimensional float32 array; +0 and -0 count as one value.

        Raises:
            ValueError: for a format with codes of more than 24 bits.

        >>> Format("e2m1").values().tolist()[7:]
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        """
        if self.bits > _MAX_LISTED_BITS:
            raise ValueError(
                f"values() lists formats of up to {_MAX_LISTED_BITS} bits, {self} has {self.bits}"
            )
        return self._held.values()

    def __reduce__(self) -> tuple[Any, ...]:
        return Format, (self.name,)


ElementType: TypeAlias = "tuple[int, int] | np.dtype[Any] | type[np.generic] | torch.dtype"
"""A pair (exp, man), or a dtype of NumPy, ml_dtypes or torch."""
FormatLike: TypeAlias = "Format | str | ElementType"
"""A `Format`, its name, a pair (exp, man), or a dtype of NumPy, ml_dtypes or torch."""


def as_format(name: FormatLike) -> Format:
    """Returns the `Format` of a name, a pair or a dtype. Returns a `Format` unchanged."""
    return name if isinstance(name, Format) else named(format_text("a format", name))


def format(name: str) -> Format:
    """Returns the format of a name. Pickles of version 0.7 call this function."""
    return as_format(name)
