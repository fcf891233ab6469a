# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `gemm/size/…` and `gemm/batch/…`. The first are products of many sizes,
compared to torch's sgemm of the same sizes. The second are 64 products of 64³ in one call, compared
to the scheme's own rate at 512³. Checks the bits first."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator

import gemm
import gemm_bits
import torch
from timing import Row, Side, timed

import cpd

SIZES = (
    *(16, 24, 32, 48, 64, 65, 96, 100, 128, 129, 192, 256, 300, 384, 512, 513, 768, 1000, 1024),
    *(2048, 4096),
)
SCHEMES = ("sequential", "fma", "kahan", "stochastic8")
MOST = 513  # of the schemes but the first, which shows the largest
LARGE = 1500  # from here on in few turns

BATCH, SIDE = 64, 64
BATCH_BAR = 0.5
BATCHED = (*gemm.BARRED, "chunked64", "pairwise")


def cases() -> Iterator[gemm.Case]:
    for scheme in SCHEMES:
        for n in SIZES:
            if n <= MOST or scheme == SCHEMES[0]:
                yield gemm.Case(scheme, "e4m3", gemm.cube(n), group="size")


def batch_row(scheme: str, options: Namespace) -> Row:
    case = gemm.Case(scheme, "e4m3", gemm.cube(SIDE), group="batch")
    name = f"{case.name}x{BATCH}"
    pairs = [gemm.operands(case, options.seed + i) for i in range(BATCH)]
    a, b = (torch.stack(side) for side in zip(*pairs, strict=True))
    large = gemm.Case(scheme, "e4m3", gemm.cube(512))
    wrong = gemm.wrong_bits(case, options.seed)
    together = case.multiply(a, b)
    # One sequence of random integers runs through the whole batch. So with stochastic rounding only
    # the batch's first product has the bits of a separate call with the same operands.
    alone = BATCH if "stochastic" not in scheme else 1
    for i in range(alone):
        if not wrong and not gemm_bits.equal(together[i], case.multiply(a[i], b[i])):
            wrong = f"product {i} of the batch is not that of the pair"
    if wrong:
        return {"name": name, "wrong": wrong}
    x, y = gemm.operands(large, options.seed)
    with gemm.setting("", 1):
        work = Side(lambda: case.multiply(a, b), BATCH * case.macs)
        baseline = Side(lambda: large.multiply(x, y), large.macs)
        row = timed(name, gemm.UNIT, work, "512³", baseline, options.repeats)
        return row | {"backend": cpd.backend(), "bar": BATCH_BAR}


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows. The largest products are measured in at most three
    turns."""
    few = Namespace(**vars(options) | {"repeats": min(3, options.repeats)})
    for case in cases():
        if options.selection.wants(case.name):
            yield gemm.cpu_row(case, few if case.shape[0] > LARGE else options)
    for scheme in BATCHED:
        if options.selection.wants(f"gemm/batch/{scheme}/e4m3/{SIDE}x{BATCH}"):
            yield batch_row(scheme, options)
