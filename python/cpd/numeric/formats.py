# SPDX-License-Identifier: Apache-2.0
"""Number formats: which values exist. See `Format` and `format`."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.numeric.checked import check_text
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import int32
from cpd.numeric.shown import shown
from cpd.numeric.spec import Spec, named_word

if TYPE_CHECKING:
    import torch

_MAX_LISTED_BITS = 24
_DERIVED = ("bits", "max", "lowest", "min_normal", "min_subnormal", "epsilon", "num_values")


@dataclass(frozen=True, init=False, repr=False, eq=False)
class Format(Spec):
    """A number format: `exp` exponent bits, `man` mantissa bits, and what its codes mean.

    Args:
        exp: exponent bits, 1…8; of encoding `ieee` up to 11.
        man: mantissa bits, 0…23; of encoding `ieee` up to 52.
        bias: exponent bias; default 2^(exp-1) - 1, for `fnuz`, `p3109` and `p3109finite` 2^(exp-1),
            for `int` and `int_full` that of steps of 1.
        encoding: of the special values: `ieee` (top exponent: Inf and NaN), `fn` (no Inf, all ones
            is NaN), `fnuz` (no Inf, no -0), `p3109`, `finite` (neither Inf nor NaN), `e8m0`; `int`
            (two's complement integers times 2^(1 - bias - man), without the least; exp is 1) and
            `int_full` (with the least); `p3109finite` (`p3109` without Inf: overflow gives the
            largest value).
        signed: whether there is a sign bit.
        subnormals: whether numbers below the least normal one exist, other than 0.

    Formats of more than 8 exponent or 23 mantissa bits live in float64 arrays and tensors, for
    cast, add, mul, fma, div and sqrt on the CPU; elsewhere they are a ValueError.

    Raises ValueError where a finite value would not be a binary32 value (of those wider formats, a
    binary64 value), and for a combination that does not exist (unsigned `fnuz`).

    Immutable, hashable, picklable; two formats are equal if all six fields are. `name` is read back
    by `cpd.format`. Within the texts of scaled formats and recipes, where a bare `e4m3` is refused
    because readers take it for OCP's, the IEEE-like one is written `(4,3)`.

    >>> f = Format(4, 3)
    >>> f.max, f.min_normal, f.min_subnormal, f.epsilon, f.bits
    (240.0, 0.015625, 0.001953125, 0.125, 8)
    >>> Format(4, 3, encoding="fn")
    cpd.format('e4m3fn')
    """

    exp: int
    man: int
    bias: int
    encoding: str
    signed: bool
    subnormals: bool
    name: str = field(init=False)
    """The canonical name; `cpd.format(f.name) == f`."""
    text: str = field(init=False)
    """The name."""
    bits: int = field(init=False)
    """Bits of a code, sign included."""
    max: float = field(init=False)
    """Largest finite value."""
    lowest: float = field(init=False)
    """Least finite value: where signed -max, of `int_full` one step less; else 0 (e8m0: 2^-127)."""
    min_normal: float | None = field(init=False)
    """Least positive normal number; None where there is none (exp = 1)."""
    min_subnormal: float | None = field(init=False)
    """Least positive value (the least normal one where there are no subnormals); None where there
    is no positive value."""
    epsilon: float = field(init=False)
    """2^-man: the distance from 1 to the next number, at full precision."""
    num_values: int = field(init=False)
    """Distinct finite values, zero counted once."""
    _held: _core.Format = field(init=False)

    def __init__(
        self,
        exp: int,
        man: int,
        *,
        bias: int | None = None,
        encoding: str = "ieee",
        signed: bool = True,
        subnormals: bool = True,
    ) -> None:
        made = _made(
            int32("exp", exp),
            int32("man", man),
            named_word("encoding", encoding),
            None if bias is None else int32("bias", bias),
            flag("signed", signed),
            flag("subnormals", subnormals),
        )
        self._share(made)

    @classmethod
    def _of(cls, held: _core.Format) -> Format:
        made = super()._of(held)
        for name in _DERIVED:
            object.__setattr__(made, name, getattr(held, name))
        object.__setattr__(made, "name", made.text)
        return made

    def values(self) -> npt.NDArray[np.float32]:
        """All distinct finite values, ascending, as float32. For formats of up to 24 bits.

        >>> format("e2m1").values().tolist()[7:]
        [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
        """
        if self.bits > _MAX_LISTED_BITS:
            raise ValueError(
                f"values() lists formats of up to {_MAX_LISTED_BITS} bits, {self} has {self.bits}"
            )
        return self._held.values()

    def __repr__(self) -> str:
        return f"cpd.format('{self.name}')"

    def __reduce__(self) -> tuple[Any, ...]:
        return format, (self.name,)


FormatLike: TypeAlias = (
    "Format | str | tuple[int, int] | np.dtype[Any] | type[np.generic] | torch.dtype"
)
"""A `Format`, its name, a pair (exp, man), or a type of NumPy, ml_dtypes or torch."""


def format(name: FormatLike) -> Format:
    """The format of that name; a `Format` is given back as it is.

    Names, in any letter case:

    - `eXmY` is IEEE-like (`e4m3` has Inf and a max of 240), with suffix `fn`, `fnuz`, `p3109`,
      `p3109finite`, `finite` or `ieee`; `e2m1`, `e2m3` and `e3m2` are OCP's finite formats. Then
      options, each at most once: `e4m3fn:bias=11:nosub:unsigned`.
    - `(X,Y)`, as the papers write it, is always IEEE-like: `(4,3)` is `e4m3`, `(3,2)` `e3m2ieee`.
    - `fp64`, `fp32`, `tf32`, `bf16`, `fp16`, `e8m0`, and IEEE P3109's `binaryKpP` with
      `se`, `sf`, `ue` or `uf`: K bits, precision P, signed or unsigned, extended (with Inf) or
      finite. `binary8p4sf` has the values of `e4m3fnuz`, but overflow gives 240 and not NaN.
    - `int8` (`int2` … `int25`): integers in two's complement, -127…127, without -0; `int8:full`
      has the least, -128, too. (Decoded, its code is -128 in either.) `sm8` (`sm2` … `sm25`): the
      same range in codes of sign and magnitude, with -0.
    - What other libraries call a format means what their type of that name holds: `float64`,
      `float32`, `float16`, `half`, `bfloat16`, `float8_e4m3fn`, `float8_e5m2`, `float8_e4m3fnuz`,
      `float8_e5m2fnuz`, `float8_e8m0fnu`, `float6_e2m3fn`, `float6_e3m2fn`, `float4_e2m1fn` (torch:
      `float4_e2m1fn_x2`), `float8_e3m4`, `e4m3b11fnuz` (`e4m3fnuz:bias=11`), and PTX's scales
      `ue4m3`, `ue5m3` (`e5m3fn:unsigned`) and `ue8m0`. So `float8_e4m3`,
      which ml_dtypes has, is IEEE-like; OCP's and NVIDIA's E4M3 is `e4m3fn`, as is torch's
      `float8_e4m3fn`.

    A pair of ints `(4, 3)` is the text `(4,3)`; a dtype of torch, NumPy or ml_dtypes (or NumPy's
    type of its scalars) is its name. Wherever a format may stand, all of these may.

    Raises ValueError for any other name, which names the one that was probably meant, and TypeError
    for other objects.

    >>> format("e4m3fn").max
    448.0
    >>> str(format("e5m10"))
    'fp16'
    >>> format("FLOAT8_E4M3FN") == format("e4m3fn"), format((5, 2)) == format("e5m2")
    (True, True)
    >>> import ml_dtypes
    >>> format(np.float16), format(ml_dtypes.float8_e4m3b11fnuz)
    (cpd.format('fp16'), cpd.format('e4m3fnuz:bias=11'))
    """
    return name if isinstance(name, Format) else named(format_text("a format", name))


def format_text(what: str, value: Any) -> str:
    """The text that `format` reads for a format in any shape. Raises TypeError for what is none."""
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
        f"{what} must be a cpd.Format or its name, got {type(value).__name__}; a pair (exp, man) "
        "and a dtype are taken too"
    )


def dtype_name(dtype: Any) -> str:
    """The name of an element type of NumPy or torch, such as "float32"."""
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


@constant
def named(name: str) -> Format:
    """`format` for a str; torch.compile takes its results as constants."""
    try:
        return Format._of(_core.Format.parse(name))
    except ValueError:
        if not is_scaled(name):
            raise
    raise ValueError(
        f"{shown(name)} is a scaled format (cpd.scaled); here one without scales is needed"
    )


Format._parsed = named


@constant
def _made(
    exp: int, man: int, encoding: str, bias: int | None, signed: bool, subnormals: bool
) -> Format:
    """The arguments are those of _core.Format."""
    held = _core.Format(
        exp=exp, man=man, encoding=encoding, bias=bias, signed=signed, subnormals=subnormals
    )
    return Format._of(held)


def is_scaled(text: str) -> bool:
    """Whether a text is that of a scaled format."""
    check_text("a format", text)
    try:
        _core.Scaled.parse(text)
    except ValueError:
        return False
    return True


def flag(name: str, value: Any) -> bool:
    """`value`, which must be a bool: 'no' and 0 are mistakes, not False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)
