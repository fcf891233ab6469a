# SPDX-License-Identifier: Apache-2.0
"""Tests that products on slow paths warn, and which file the warning names."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import cpd
from cpd.ops import slow

SLOW = "e5m12 kahan"
FAST = "fp32", "e4m3", "fp32 kahan", "e4m3 chunked"


@pytest.fixture(autouse=True)
def nothing_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "_warned", set())
    monkeypatch.setattr(slow, "MANY", 1000)


def caught(a: object, b: object, acc: cpd.Accumulator) -> list[str]:
    """Multiplies a and b by a slow path. Returns, for each warning, the file that it names."""
    with warnings.catch_warnings(record=True) as all_of_them:
        warnings.simplefilter("always")
        cpd.gemm(a, b, acc)  # type: ignore[type-var]
    return [w.filename for w in all_of_them if w.category is cpd.PrecisionWarning]


def operands(n: int, front_end: str) -> tuple[object, object]:
    x = np.ones((n, n), np.float32)
    if front_end == "numpy":
        return x, x
    torch = pytest.importorskip("torch")
    return torch.from_numpy(x), torch.from_numpy(x)


@pytest.mark.parametrize("front_end", ["numpy", "torch"])
def test_a_slow_product_is_warned_of_once_where_it_is_called(front_end: str) -> None:
    a, b = operands(10, front_end)
    acc = cpd.Accumulator(SLOW)
    assert caught(a, b, acc) == [__file__]
    assert caught(a, b, acc) == []
    assert caught(a, b, cpd.Accumulator(SLOW)) == []
    assert caught(a, b, cpd.Accumulator("e5m13 kahan")) == [__file__]


@pytest.mark.parametrize("front_end", ["numpy", "torch"])
def test_a_small_product_is_not(front_end: str) -> None:
    assert caught(*operands(9, front_end), cpd.Accumulator(SLOW)) == []


@pytest.mark.parametrize("text", FAST)
def test_a_fast_one_is_not(text: str) -> None:
    assert caught(*operands(10, "numpy"), cpd.Accumulator(text)) == []


def test_layers_warn_too() -> None:
    torch = pytest.importorskip("torch")
    import cpd.nn.functional

    x = torch.ones(10, 10)
    with pytest.warns(cpd.PrecisionWarning, match="e5m12 kahan takes about"):
        cpd.nn.functional.linear(x, x, recipe=cpd.Recipe(sums=SLOW))


def test_slowdowns_grow_with_what_is_rounded_and_drawn() -> None:
    def slowdown(text: str) -> float:
        return cpd.Accumulator(text).slowdown

    stochastic = " rounding=stochastic random_bits="
    assert slowdown("e4m3") < slowdown("e4m3 kahan") < slowdown("e4m3 kahan" + stochastic + "8")
    assert slowdown("e4m3 fma" + stochastic + "8") < slowdown("e4m3 fma" + stochastic + "24")
    assert slowdown("e8m9") < slowdown("e8m12")
    assert slowdown("fixed<64,12>") < slowdown("fixed<640,300>")
    assert slowdown("h100-fp8") < slowdown("cdna2-fp16")
