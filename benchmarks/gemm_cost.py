# SPDX-License-Identifier: Apache-2.0
"""Measures how many times as long as torch's sgemm a product takes: `python benchmarks/gemm_cost.py
[NAME]`.

Prints the ratio for each constant of `cpd/backend/cpu/product_cost.cpp`, next to the estimate
`Accumulator.slowdown`, which is computed from these constants. Uses one thread and measures
alternately. Does not check bits; `./dev bench gemm` does.
"""

from __future__ import annotations

import argparse
import warnings

import gemm
import torch
from timing import Side, timed

import cpd

SIZE = 192
REPEATS = 5
STOCHASTIC = "rounding=stochastic random_bits="
# For each constant of product_cost.cpp, accumulators whose estimated time depends on this constant.
# The estimate may also depend on other constants.
FIGURES = {
    "kRoundingByAddition": ("binary8p1se pairwise",),
    "kGeneralRounding": ("e4m3 sequential rounding=nearest_away",),
    "kAdditionInBinary64": ("e5m12 fma",),
    "kProductInBinary64": ("e5m12", "e4m3 sequential rounding=down"),
    "kPhiloxWord": (
        f"e4m3 sequential {STOCHASTIC}8",
        f"e4m3 sequential {STOCHASTIC}16",
        f"e4m3 sequential {STOCHASTIC}24",
    ),
    "kFusedFp32": ("fp32 fma",),
    "kSeparateFp32": ("fp32",),
    "kCompensatedFp32": ("fp32 kahan",),
    "kTreeFp32": ("fp32 pairwise",),
    "kSplitInOrder": ("e4m3", "e4m3 fma"),
    "kSplitKahan": ("e4m3 kahan",),
    "kSplitTree": ("e4m3 pairwise",),
    "kGuarded": ("e3m0", "e3m0 kahan"),
    "kStochasticInBinary32": (f"e4m3 fma {STOCHASTIC}8",),
    "kStochasticInBinary64": (f"fp16 sequential {STOCHASTIC}16", f"fp32 sequential {STOCHASTIC}8"),
    "kIntegerOfFewWords": ("int32", "int32 overflow=saturate"),
    "kIntegerWord": ("fixed<640,300>",),
    "kAlignedUnit": ("h100-fp16", "h100-fp8"),
    "kOtherUnit": ("cdna2-fp16",),
}


def operands(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns operands of small integers. Every format that this program measures represents them
    exactly, and few sums overflow."""
    random = torch.Generator().manual_seed(seed)
    a, b = (torch.randint(-1, 2, (SIZE, SIZE), generator=random) * 1.0 for _ in range(2))
    return a, b


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", nargs="?", default="", help="figures whose name contains it")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    warnings.simplefilter("ignore", cpd.PrecisionWarning)
    a, b = operands(options.seed)
    sgemm = Side(lambda: torch.mm(a, b), SIZE**3)
    print(f"{'figure':24} {'accumulator':42} {'slowdown':>8} {'measured':>8}")
    with gemm.setting("", 1):
        for figure, texts in FIGURES.items():
            if options.name not in figure:
                continue
            for text in texts:
                acc = cpd.Accumulator(text)
                product = Side(lambda acc=acc: cpd.gemm(a, b, acc), SIZE**3)  # type: ignore[misc]
                row = timed(text, gemm.UNIT, product, "torch sgemm", sgemm, REPEATS)
                print(f"{figure:24} {text:42} {acc.slowdown:8.1f} {1 / row['ratio']:8.1f}")


if __name__ == "__main__":
    main()
