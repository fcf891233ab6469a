# SPDX-License-Identifier: Apache-2.0
"""A program that designs formats and units. A type checker checks it, and it also runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Literal, assert_type

import numpy as np
import numpy.typing as npt

import cpd


def specs() -> None:
    number = cpd.Format(exp=4, man=3, encoding="fn")
    assert_type(number.max, float)
    assert_type(number.min_normal, float | None)
    assert_type(number.bits, int)
    assert_type(number.values(), npt.NDArray[np.float32])
    assert_type(number.replace(man=2), cpd.Format)
    assert_type(cpd.Format.named(), dict[str, dict[str, str]])
    scaled = cpd.Scaled("nvfp4")
    assert_type(scaled.element, cpd.Format)
    assert_type(scaled.scale, cpd.Format)
    assert_type(scaled.scales_shape((4, 64)), tuple[int, ...])
    unit = cpd.Accumulator("h100-fp8", a="e5m2")
    assert_type(unit.form, Literal["ordered", "unit", "integer"])
    assert_type(unit.a, cpd.Format | None)
    assert_type(unit.fraction_bits, int | None)
    assert_type(unit.gemm_integers(64), int)
    how = cpd.Cast("e4m3fn stochastic random_bits=8")
    assert_type(how.format, cpd.Format | cpd.Scaled)
    assert_type(how.rounding, str)


def vectors(folder: Path) -> None:
    made = cpd.hardware.make_vectors("dot", "e4m3fn", random=8, accumulator="e6m9 kahan")
    assert_type(made, cpd.hardware.Vectors)
    made.write(folder / "dot.jsonl")
    check = cpd.hardware.check_vectors(folder / "dot.jsonl")
    assert_type(check, cpd.hardware.VectorCheck)
    assert_type(check.wrong, int)
    cost = cpd.hardware.gates("e4m3fn", "e6m9 kahan")
    assert_type(cost, cpd.hardware.Gates)
    assert_type(cost.total, float)


def explains() -> None:
    x = np.ones((4, 4), np.float32)
    what = cpd.explain(cpd.gemm, x, x, "e6m9 kahan")
    assert_type(what, cpd.Explanation)
    assert_type(what.tile, tuple[int, ...])
    assert_type(cpd.backend(), str)


def mistakes() -> None:
    """Each line misuses the package; a type checker must report the error in its comment."""
    cpd.Format(4.0)  # type: ignore[arg-type]
    cpd.Format("e4m3", 3)  # type: ignore[call-arg]
    cpd.Format("e4m3", mantissa=3)  # type: ignore[call-arg]
    cpd.Accumulator("e4m3", chunk="8")  # type: ignore[arg-type]
    print(cpd.Scaled("mxfp8").scales)  # type: ignore[attr-defined]
    cpd.Cast("e4m3", seed=3)  # type: ignore[call-arg]
    cpd.hardware.make_vectors(3, "e4m3fn")  # type: ignore[arg-type]
    cpd.hardware.vectors.check("a")  # type: ignore[attr-defined]


if __name__ == "__main__":
    specs()
    vectors(Path(sys.argv[1]))
    explains()
