# SPDX-License-Identifier: Apache-2.0
"""Warns of products whose emulation takes hundreds of times as long as native ones."""

from __future__ import annotations

import math
from typing import Any

from cpd import _core
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.warned import PrecisionWarning, warn

SLOW = 100
"""The largest `Accumulator.slowdown` without a warning."""
MANY = 1 << 22
"""The fewest multiply-accumulates with a warning: fewer are done in milliseconds."""

_warned: set[str] = set()


def warn_if_slow(acc: Accumulator, a: Any, b: Any) -> None:
    """Warns, once for each accumulator, if a product of these arrays is large and slow."""
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
