# SPDX-License-Identifier: Apache-2.0
"""Helps to choose an 8-bit format: prints the errors of normally distributed values in each format.

The formats differ in the number of exponent bits; the remaining bits are mantissa bits.

Run: python examples/06_formats.py
"""

import numpy as np

import cpd


def main() -> None:
    values = np.random.default_rng(0).normal(scale=2.0**-8, size=100_000).astype(np.float32)
    print("format     max        least     lost to zero   relative RMS")
    for exp in range(2, 7):
        wire = cpd.Format(exp=exp, man=7 - exp)
        rounded = cpd.cast(values, cpd.Cast(wire, overflow="saturate"))
        lost = np.mean((rounded == 0) & (values != 0))
        rms = np.linalg.norm(rounded.astype(float) - values) / np.linalg.norm(values.astype(float))
        print(f"{wire!s:6} {wire.max:10.4g} {wire.min_subnormal:12.4g} {lost:12.1%} {rms:14.2%}")


if __name__ == "__main__":
    main()
