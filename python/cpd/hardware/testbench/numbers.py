# SPDX-License-Identifier: Apache-2.0
"""Makes SystemVerilog that converts a format's codes to numbers and tests for NaN."""

from __future__ import annotations

import functools

import numpy as np

from cpd.hardware.vectors.corners import CORNERS, corner_of
from cpd.hardware.vectors.values import values_of
from cpd.numeric.formats import Format

_TABLE = 8
"""For formats up to this number of bits, the SystemVerilog function is a table of all values."""
_NAN_OUT = np.uint16(1 << CORNERS.index("nan_out"))
_SAMPLES = 4096


@functools.lru_cache(maxsize=64)
def number_function(name: str, f: Format) -> str:
    """Returns the SystemVerilog function `number_<name>`, which converts a code to a real.

    Returns an empty text for a format of more than 8 bits with codes that are not sign, exponent
    and fraction.
    """
    if f.bits <= _TABLE:
        values = values_of(f, np.arange(1 << f.bits, dtype=np.uint32)).astype(np.float64)
        rows = [
            f"      {f.bits}'d{code}: bits = 64'h{pattern:016x};"
            for code, pattern in enumerate(values.view(np.uint64))
        ]
        body = ["    case (code)", *rows, "      default: bits = 0;", "    endcase"]
    elif _by_fields(f):
        sign = f.exp + f.man
        infinity = f"{sign}'d{((1 << f.exp) - 1) << f.man}"
        body = [
            f"    value = 1.0 * code[{f.man - 1}:0];",
            f"    power = code[{sign - 1}:{f.man}];",
            f"    if (power != 0) value = value + 2.0 ** {f.man};",
            "    else power = 1;",
            f"    bits = $realtobits(value * 2.0 ** (power - {f.bias + f.man}));",
            f"    if (code[{sign - 1}:0] == {infinity}) bits = 64'h7ff0000000000000;",
            f"    if ({where_nan(f, 'code')}) bits = 64'h7ff8000000000000;",
            f"    bits[63] = code[{sign}];",
        ]
    else:
        return ""
    return "\n".join(
        [
            f"  function real number_{name}(input logic [{f.bits - 1}:0] code);",
            "    integer power;",
            "    real value;",
            "    logic [63:0] bits;",
            *body,
            f"    number_{name} = $bitstoreal(bits);",
            "  endfunction",
        ]
    )


def where_nan(f: Format, code: str) -> str:
    """Returns a SystemVerilog expression that is true if a code is NaN.

    The text is empty if the format has no NaN. The NaN codes are the last codes of each sign, or
    the code that would be negative zero.
    """
    half = 1 << (f.bits - 1)
    conditions = []
    for base in (0, half):
        last = base + half - 1
        if _is_nan(f, last):
            low, high = base, last
            while low < high:
                middle = (low + high) // 2
                low, high = (low, middle) if _is_nan(f, middle) else (middle + 1, high)
            conditions.append(_between(f, code, low, last))
    if _is_nan(f, half):
        conditions.append(_between(f, code, half, half))
    return f"({' || '.join(dict.fromkeys(conditions))})" if conditions else ""


def _between(f: Format, code: str, low: int, high: int) -> str:
    if low == high:
        return f"{code} == {f.bits}'d{low}"
    upper = f" && {code} <= {f.bits}'d{high}" if high + 1 < 1 << f.bits else ""
    return f"({code} >= {f.bits}'d{low}{upper})"


def _is_nan(f: Format, code: int) -> bool:
    return bool(corner_of(f, np.array([code], np.uint32), "out")[0] & _NAN_OUT)


def _by_fields(f: Format) -> bool:
    """Returns whether codes of `f` consist of sign, exponent and fraction, as in IEEE 754.

    The function tests random codes.
    """
    if f.encoding != "ieee" or not (f.signed and f.subnormals) or f.man < 1:
        return False
    codes = np.random.default_rng(0).integers(0, 1 << f.bits, _SAMPLES).astype(np.uint32)
    power = (codes >> f.man) & ((1 << f.exp) - 1)
    fraction = codes & ((1 << f.man) - 1)
    whole = np.where(power > 0, fraction + (1 << f.man), fraction).astype(np.float64)
    sizes = np.ldexp(whole, np.maximum(power, 1).astype(np.int64) - f.bias - f.man)
    values = np.where(codes >> (f.exp + f.man) > 0, -sizes, sizes)
    finite = power < (1 << f.exp) - 1
    return np.array_equal(values[finite], values_of(f, codes[finite]))
