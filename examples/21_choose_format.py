# SPDX-License-Identifier: Apache-2.0
"""Chooses a 6-bit format for a tensor: prints the errors of all 6-bit formats, with and without
scales, the cost of a multiply-accumulate unit for each, and the best choices.

Prints for each format, with and without scales, its errors and the gates of a multiply-accumulate
unit. Then names the format with the least error, first among all formats and then among the formats
with at most 1600 gates.

Run: python examples/21_choose_format.py [FILE]     (FILE: for example a .npy or a checkpoint)
"""

import sys

import numpy as np

from cpd import study


def main(arguments: list[str] | None = None) -> study.SweepRow:
    files = sys.argv[1:] if arguments is None else arguments
    weights = np.random.default_rng(0).standard_t(5, (256, 1024)).astype(np.float32) / 64
    sweep = study.sweep(
        files or weights, "e[1-5]m[0-4],int6", "fp32,e6m9", scales="none,tensor,mx", bits=6
    )
    print(sweep)
    best, frugal = sweep.best(), sweep.best(within=1600)
    print(f"least error: {best}\nwithin 1600 gates: {frugal}")
    return best


if __name__ == "__main__":
    main()
