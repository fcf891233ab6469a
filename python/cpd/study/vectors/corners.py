# SPDX-License-Identifier: Apache-2.0
"""What lines are cases of: counted, and printed with a file."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

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
"""Bit i of a line's corners says that it is a case of the i-th."""

FLAGS = ("NX", "UF", "OF", "DZ", "NV")
"""Bit i of a line's flags: inexact, underflow, overflow, division by zero, invalid."""


def flags_text(flags: int) -> str:
    """`NX|UF`; `-` where none is raised."""
    return "|".join(name for i, name in enumerate(FLAGS) if flags >> i & 1) or "-"


def count_corners(total: Counter[str], flags: Any, corners: Any) -> None:
    """Adds the lines of a batch, whose `corners` may be None."""
    for names, bits in ((CORNERS, corners), (FLAGS, flags)):
        if bits is None:
            continue
        counts = np.bincount(bits, minlength=1)
        present = np.flatnonzero(counts)
        for i, name in enumerate(names):
            total[name] += int(counts[present[(present >> i) & 1 == 1]].sum())
