# SPDX-License-Identifier: Apache-2.0
"""Warns of matrix products whose emulation takes over a hundred times as long as an fp32 BLAS."""

from __future__ import annotations

import math
from typing import Any

from cpd import _core
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.warned import PrecisionWarning, warn

SLOW = 100
"""Products with an `Accumulator.slowdown` up to this number cause no warning."""
MANY = 1 << 22
"""Products with fewer multiply-accumulates than this number take milliseconds: no warning."""

_warned: set[str] = set()


def warn_if_slow(acc: Accumulator, a: Any, b: Any) -> None:
    """Warns, once for each accumulator, if the product of arrays a and b is large and slow."""
    if acc.slowdown <= SLOW or acc.text in _warned or math.prod(a.shape) * b.shape[-1] < MANY:
        return
    if _core.explains():
        return
    _warned.add(acc.text)
    warn(
        f"a product in {acc} takes about {acc.slowdown:.0f} times as long as a BLAS's in fp32 "
        "(on an Intel Xeon; benchmarks/GEMM.md says why). Fewer random_bits, a narrower format, a "
        "plain or chunked sum, or a GPU are faster",
        PrecisionWarning,
    )
