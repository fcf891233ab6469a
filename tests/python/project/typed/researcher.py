# SPDX-License-Identifier: Apache-2.0
"""A program that trains a small model by a recipe. A type checker checks it, and it also runs."""

from __future__ import annotations

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import cpd

Array = npt.NDArray[Any]


def rounds() -> None:
    x, y = torch.ones(4), np.ones(4, np.float32)
    assert_type(cpd.cast(x, "e4m3"), Tensor)
    assert_type(cpd.cast(y, cpd.Cast("e4m3", rounding="stochastic"), seed=3), Array)
    assert_type(cpd.cast(x, "mxfp8", axis=0), Tensor)
    assert_type(cpd.cast(x, "e4m3", flags=True), tuple[Tensor, Tensor])
    assert_type(cpd.add(y, y, "e4m3"), Array)
    assert_type(cpd.fma(x, x, x, (4, 3), seed=torch.tensor(1)), Tensor)
    assert_type(cpd.sqrt(y, np.float16, flags=True), tuple[Array, Array])
    assert_type(cpd.sum(x, "e4m3 kahan"), Tensor)
    assert_type(cpd.sum(y, "e4m3 pairwise", flags=True), tuple[Array, Array])
    assert_type(cpd.sum(x.reshape(2, 2), cpd.Accumulator("e4m3 kahan"), axis=0), Tensor)
    assert_type(cpd.gemm(x.reshape(2, 2), x.reshape(2, 2), "fp32"), Tensor)
    assert_type(cpd.encode(y, cpd.Format("e4m3")), Array)
    assert_type(cpd.encode(x, cpd.Scaled("mxfp4")), tuple[Tensor, Any])
    assert_type(cpd.decode(cpd.encode(y, (4, 3)), (4, 3), 4), Array)


def trains() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    recipe = cpd.Recipe("e5m2", sums="e6m9 kahan", schedule=[("step", 2, "e4m3fn")])
    report = cpd.convert(model, recipe, {"last 1": None}, seed=1)
    assert_type(report, cpd.nn.Report)
    assert_type([row.why_not for row in report], list[str])
    optimizer = cpd.optim.LowPrecision(torch.optim.SGD(model.parameters(), lr=0.1), weight="bf16")
    with cpd.observe(model) as watch:
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
    assert_type(watch, cpd.nn.Watch)
    assert_type([row.amax for row in watch.rows], list[float])
    assert_type(cpd.plain_state_dict(model), dict[str, Any])
    x, weight = torch.ones(2, 8), torch.ones(3, 8)
    assert_type(cpd.functional.linear(x, weight, recipe="e4m3fn"), Tensor)
    cpd.restore(model)


def mistakes() -> None:
    """Each line misuses the package; a type checker must report the error in its comment."""
    x = torch.ones(4)
    cpd.cast(x)  # type: ignore[call-overload]
    cpd.cast(x, "e4m3", rounding="up")  # type: ignore[call-overload]
    cpd.cast(x, "e4m3", seed="3")  # type: ignore[call-overload]
    cpd.cast(x, "e4m3", out=np.ones(4))  # type: ignore[type-var]
    cpd.cast([1.0], "e4m3")  # type: ignore[call-overload]
    cpd.sum(x, "e4m3", dim=0)  # type: ignore[call-overload]
    cpd.gemm(x, x, acc="e4m3")  # type: ignore[call-overload]
    cpd.convert(x, "e4m3fn")  # type: ignore[arg-type]
    cpd.convert(nn.Linear(2, 2), "e4m3fn", ("last 1", None))  # type: ignore[arg-type]
    cpd.Recipe("e4m3fn", wire="int4")  # type: ignore[arg-type]
    cpd.Format(exp="4", man=3)  # type: ignore[arg-type]
    cpd.quantise(x)  # type: ignore[attr-defined]
    cpd.nn.Linear(2, 2)  # type: ignore[attr-defined]
    cpd.functional.matmul(x, x, "e4m3")  # type: ignore[arg-type]


if __name__ == "__main__":
    rounds()
    trains()
