# SPDX-License-Identifier: Apache-2.0
"""Compares cpd.sum on every front end to exact rational arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import cpd
import oracle
import reduce_oracle
from arrays import LAYOUTS, STRIDED, from_bits, layout, sum_of
from front_ends import Call, FrontEnd, every_front_end

SCHEMES = (
    "sequential",
    "kahan",
    "chunked chunk=3 inner=e5m2",
    "pairwise",
)
TEXTS = (
    "e5m2",
    "e5m2 sequential overflow=saturate",
    "e5m2 kahan",
    "e5m2 chunked",
    "e5m2 chunked chunk=8",
    "e4m3 chunked chunk=3 inner=e6m9",
    "e4m3 chunked chunk=7 inner=e3m2 overflow=saturate",
    "e5m2 pairwise",
    "e4m3 pairwise overflow=saturate",
)

ROUNDINGS = ("", " rounding=toward_zero", " rounding=stochastic random_bits=9 variant=C")


def terms(rows: int, columns: int) -> np.ndarray:
    """Returns columns of normal numbers. One column overflows, and two have NaN or infinities."""
    x = (np.random.default_rng(1).standard_normal((rows, columns)) * 4).astype(np.float32)
    x[:, 0] *= np.float32(100)
    x[min(3, rows - 1), 1], x[min(5, rows - 1), 2] = np.nan, np.inf
    x[min(7, rows - 1), 2] = -np.inf
    return x


def wanted(acc: cpd.Accumulator, columns: np.ndarray, seed: int = 0, stream: int = 0) -> list[int]:
    """Returns the oracle's sums of a matrix's columns. `seed` and `stream` generate the random
    integers for stochastic rounding."""
    return [
        sum_of(acc, column, reduce_oracle._draws(i, seed, stream))
        for i, column in enumerate(np.ascontiguousarray(columns.T).view(np.uint32).tolist())
    ]


def on_each_side(x: np.ndarray, acc: Any, expected: Any, **numbers: int) -> Iterator[Call]:
    """Yields sums along the first dimension, the last dimension, and dimension -1."""
    turned = np.ascontiguousarray(x.T)
    for given, dim in ((x, 0), (turned, 1), (turned, -1)):
        yield Call(cpd.sum, (given, acc), {"axis": dim, **numbers}, expected)


@cache
def schemes(name: str, scheme: str) -> list[Call]:
    result = []
    for rounding in oracle.DETERMINISTIC_MODES:
        for overflow in oracle.POLICIES:
            text = f"{name} {scheme} rounding={rounding} overflow={overflow}"
            acc = cpd.Accumulator(text)
            x = terms(20, 9)
            result += on_each_side(x, acc, wanted(acc, x))
            if not scheme.startswith(("sequential", "kahan")):
                for few in (1, 2, 3, 8, 13):
                    result.append(Call(cpd.sum, (x[:few], acc, 0), {}, wanted(acc, x[:few])))
    return result


@pytest.mark.few("", 2)
@every_front_end(
    {
        f"{name} {scheme}": [(name, scheme)]
        for name in ("e4m3", "e5m2", "e3m0", "bf16", "fp16", "fp32", "e8m12", "e4m3fn")
        for scheme in SCHEMES
    },
    compiled=[f"e4m3 {scheme}" for scheme in SCHEMES],
)
def test_sum(front_end: FrontEnd, cases: list[Any]) -> None:
    every = [call for case in cases for call in schemes(*case)]
    front_end.check(every if front_end.few is None else every[::7])


@cache
def drawing(text: str) -> list[Call]:
    result: list[Call] = []
    x = terms(50, 6)[:, ::-1].copy()
    for rounding in ROUNDINGS:
        given = str(cpd.Accumulator(text)) + rounding
        acc, numbers = cpd.Accumulator(given), {"seed": 8, "stream": 2**64 - 2}
        result += on_each_side(x, acc, wanted(acc, x, **numbers), **numbers)
    return result


@every_front_end({text: [(text, i) for i in range(len(ROUNDINGS))] for text in TEXTS})
def test_accumulators_of_every_text(front_end: FrontEnd, cases: list[Any]) -> None:
    """Sums in the accumulator of each text agree with the oracle.

    A case is an accumulator's text with one rounding mode. It has three calls: sums
    along the first dimension, the last dimension, and dimension -1. With torch.compile, only the
    last of the three calls is tested.
    """
    every = [call for text, i in cases for call in drawing(text)[3 * i : 3 * i + 3]]
    front_end.check(every if front_end.few is None else every[2::3])


@pytest.mark.parametrize("scheme", ["sequential", "kahan"])
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_sums_along_each_dimension(front_end: FrontEnd, scheme: str, mode: str) -> None:
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(9, 4, 3)) * np.exp2(rng.integers(-5, 4, (9, 4, 3)))).astype(np.float32)
    calls = []
    for name in ("e4m3", "e5m7", "fp32")[: front_end.few]:
        bits = 11 if mode == "stochastic" else 24
        acc = cpd.Accumulator(name, scheme=scheme, rounding=mode, random_bits=bits)
        numbers = {"seed": 3, "stream": 2**40}
        for dim in (0, 1, 2, -1):
            columns = np.moveaxis(x, dim, 0)
            expected = wanted(acc, columns.reshape(columns.shape[0], -1), **numbers)
            shaped = from_bits(expected).reshape(columns.shape[1:])
            calls.append(Call(cpd.sum, (x, acc), {"axis": dim, **numbers}, shaped))
    front_end.check(calls)


def test_sums_of_all_elements(front_end: FrontEnd) -> None:
    """A sum over all elements adds the elements in row-major order, for any strides."""
    x = (np.random.default_rng(6).standard_normal((5, 3, 7)) * 4).astype(np.float32)
    calls = []
    for text in TEXTS[: front_end.few]:
        acc = cpd.Accumulator(text)
        for given in (x, x.T, x[1:, :, ::2], x[0, 0, 0, ...]):
            terms = np.array(given, order="C").reshape(-1, 1)
            calls.append(Call(cpd.sum, (given, acc), {}, from_bits(wanted(acc, terms)).reshape(())))
        nothing = np.zeros((2, 0), np.float32)
        calls.append(Call(cpd.sum, (nothing, acc), {}, np.zeros((), np.float32)))
    front_end.check(calls)


def test_random_integers_of_a_sum_of_all_elements(front_end: FrontEnd) -> None:
    x = np.random.default_rng(7).standard_normal((4, 6)).astype(np.float32)
    acc = cpd.Accumulator("e4m3 kahan rounding=stochastic random_bits=4")
    r = np.random.default_rng(8).integers(0, 16, acc.sum_integers(24))
    expected = cpd.sum(x.reshape(-1), acc, 0, random=r)
    front_end.check([Call(cpd.sum, (x, acc), {"random": r}, expected)])


def test_flags_and_gradients_of_a_sum_of_all_elements() -> None:
    torch = pytest.importorskip("torch")
    x = torch.full((4, 10), 1.0, requires_grad=True)
    total, flags = cpd.sum(x, "e4m3", flags=True)
    assert total.item() == 16
    assert flags.item() == cpd.sum(x.detach().reshape(-1), "e4m3", 0, flags=True)[1].item() != 0
    total.backward()
    assert torch.equal(x.grad, torch.ones(4, 10))
    of_each = torch.vmap(lambda x: cpd.sum(x, "e4m3"))(x.detach().reshape(2, 2, 10))
    assert of_each.tolist() == [16, 16]


def test_edges_of_sums(front_end: FrontEnd) -> None:
    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, np.float32)

    large = np.array([240, 240, 240, -240], np.float32)
    infinite = np.array(np.inf, np.float32)
    front_end.check(
        [
            Call(cpd.sum, (-zeros(2), "e4m3"), {}, np.full((), -0.0, np.float32)),
            Call(cpd.sum, (-zeros(4, 1), "e4m3", 0), {}, -zeros(1)),
            *(
                Call(cpd.sum, (zeros(0, 2), cpd.Accumulator(f"e4m3 {scheme}"), 0), {}, zeros(2))
                for scheme in SCHEMES
            ),
            Call(cpd.sum, (zeros(2, 0), "e4m3", 0), {}, zeros(0)),
            Call(cpd.sum, (zeros(3), "e4m3"), {}, zeros()),
            Call(cpd.sum, (large, cpd.Accumulator("e4m3 kahan")), {}, infinite),
        ]
    )


def test_layouts_have_the_same_bits(front_end: FrontEnd) -> None:
    calls = []
    for name in LAYOUTS if front_end.name == "numpy" else STRIDED:
        x = layout(name)
        if np.ndim(x) > 0:
            expected = cpd.sum(np.array(x, order="C"), "e4m3 kahan", -1)
            calls.append(Call(cpd.sum, (x, "e4m3 kahan", -1), {}, expected))
    front_end.check(calls)
