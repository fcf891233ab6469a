# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `gemm/map/<scheme>/<format>/192`: every scheme in every named format. Checks
the bits, then compares the rate with torch's sgemm. A product must reach 1/40 of sgemm's rate with
rounding to nearest and 1/100 with stochastic rounding; half of that with AVX2."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import gemm
from timing import Row

SIZE = 192
REPEATS = 5  # at most
NEAREST, STOCHASTIC = 1 / 40, 1 / 100
AVX2 = 0.5  # of these bars
FORMATS = (
    *("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e3m2", "e2m3"),
    *("e4m3fnuz", "binary8p4se"),
)
SCHEMES = {
    **dict.fromkeys(("sequential", "fma", "kahan", "chunked64", "pairwise"), NEAREST),
    **dict.fromkeys(("stochastic8", "stochastic16", "stochastic24"), STOCHASTIC),
    **dict.fromkeys(("stochastic8-kahan", "stochastic8-fma", "stochastic8-pairwise"), STOCHASTIC),
}


def cases() -> Iterator[gemm.Case]:
    for scheme, bar in SCHEMES.items():
        for f in FORMATS:
            yield gemm.Case(scheme, f, gemm.cube(SIZE), bar, group="map")
            yield gemm.Case(scheme, f, gemm.cube(SIZE), AVX2 * bar, backend="avx2", group="map")


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, each measured in at most REPEATS turns."""
    few = Namespace(**vars(options) | {"repeats": min(REPEATS, options.repeats)})
    for case in cases():
        if options.selection.wants(case.name):
            reason = gemm.missing(case)
            yield {"name": case.name, "skipped": reason} if reason else gemm.cpu_row(case, few)
