# SPDX-License-Identifier: Apache-2.0
"""Names and finds corner cases in lines (test vectors); files report their counts."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.numeric.formats import Format

CORNERS = (
    "exact",
    "tie",
    "carry",
    "cancellation",
    "subnormal_in",
    "subnormal_out",
    "positive_zero",
    "negative_zero",
    "zero_in",
    "infinity_in",
    "infinity_out",
    "nan_in",
    "nan_out",
    "largest",
)
"""The names of corner cases. Bit i of a line's corners is 1 if the line has case i of this list."""

FLAGS = ("NX", "UF", "OF", "DZ", "NV")
"""The exception flags of IEEE 754; bit i of a line's flags is flag i: inexact, underflow, overflow,
division by zero, invalid."""


def flags_text(flags: int) -> str:
    """Returns the names of the raised flags, as in `NX|UF`; `-` if no flag is raised."""
    return "|".join(name for i, name in enumerate(FLAGS) if flags >> i & 1) or "-"


def count_corners(total: Counter[str], flags: Any, corners: Any) -> None:
    """Adds the corner cases and flags of a batch of test vectors to `total`.

    `flags` is None if the test vectors have no flags. Then only the corner cases of inputs and
    results are counted, not the corner cases of roundings within the sum.
    """
    of_roundings = 0 if flags is not None else CORNERS.index("subnormal_in")
    for names, bits, first in ((CORNERS, corners, of_roundings), (FLAGS, flags, 0)):
        if bits is None:
            continue
        counts = _core.bit_counts(bits)
        for name, count in list(zip(names, counts, strict=False))[first:]:
            total[name] += count


def is_integer(f: Format) -> bool:
    """Returns whether the format's codes are integers in two's complement."""
    return f.encoding in ("int", "int_full")


def largest_code(f: Format) -> int:
    """Returns the code of the largest finite value, without sign."""
    size = 1 << (f.exp + f.man)
    lacking = {"ieee": (1 << f.man) + 1, "fn": 2, "fnuz": 1, "finite": 1, "e8m0": 2}
    lacking |= {"int": 1, "int_full": 1}
    p3109 = (1 if f.signed else 2) + (f.encoding == "p3109")
    return size - lacking.get(f.encoding, p3109)


def corner_of(f: Format, codes: npt.NDArray[Any], side: str) -> npt.NDArray[np.uint16]:
    """Returns a mask for each code: bit i is 1 if the code is the corner case `CORNERS[i]`.

    The codes are operands if `side` is `in`, results if `side` is `out`.
    """
    if is_integer(f):
        return corner_of_integer(f.bits, codes, side)
    size = 1 << (f.exp + f.man)
    magnitude = codes & (size - 1)
    negative = codes >= size if f.signed else np.zeros(codes.shape, bool)
    top = largest_code(f)
    infinite = magnitude == top + 1 if f.encoding in ("ieee", "p3109") else magnitude > size
    nan = (magnitude > top) & ~infinite
    zero = magnitude == 0 if f.encoding != "e8m0" else np.zeros(codes.shape, bool)
    if f.encoding in ("fnuz", "p3109", "p3109finite") and f.signed:
        nan |= zero & negative
        zero &= ~negative
    subnormal = ~zero & ~nan & (magnitude < 1 << f.man) & (f.encoding != "e8m0")
    masks = {f"infinity_{side}": infinite, f"nan_{side}": nan, f"subnormal_{side}": subnormal}
    if side == "in":
        masks["zero_in"] = zero
    else:
        masks |= {"positive_zero": zero & ~negative, "negative_zero": zero & negative}
        masks["largest"] = magnitude == top
    return _bits_of(masks)


def corner_of_integer(bits: int, codes: npt.NDArray[Any], side: str) -> npt.NDArray[np.uint16]:
    """Returns a mask for each two's complement code: bit i is 1 for the case `CORNERS[i]`.

    The cases are 0 and, for results (`side` is `out`), the ends of the range.
    """
    zero, half = codes == 0, 1 << (bits - 1)
    if side == "in":
        return _bits_of({"zero_in": zero})
    largest = (codes == half - 1) | (codes == half) | (codes == half + 1)
    return _bits_of({"positive_zero": zero, "largest": largest})


def _bits_of(masks: dict[str, npt.NDArray[np.bool_]]) -> npt.NDArray[np.uint16]:
    parts = [holds.astype(np.uint16) << CORNERS.index(name) for name, holds in masks.items()]
    corners: npt.NDArray[np.uint16] = np.bitwise_or.reduce(parts)
    return corners
