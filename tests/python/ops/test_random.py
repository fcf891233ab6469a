# SPDX-License-Identifier: Apache-2.0
"""Tests `random=`, the caller's integers for stochastic rounding, on every front end."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd
import gemm_oracle
import oracle
import reduce_oracle
from arrays import (
    accumulation_of,
    assert_same_bits,
    from_bits,
    sum_of,
    to_bits,
)
from by_keywords import by_keywords
from front_ends import Call, FrontEnd
from rationals import Fraction

SCHEMES = ("sequential", "kahan", "chunked", "pairwise")
Patterns = list[int]


def integers(shape: Sequence[int], bits: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Returns random integers of `bits` bits; the least and the greatest are among them."""
    generator = np.random.default_rng(seed)
    r = generator.integers(0, 2**bits, tuple(shape))
    r.flat[: min(2, r.size)] = [0, 2**bits - 1][: r.size]
    return r


def options(random_bits: int, variant: str) -> dict[str, Any]:
    return {"rounding": "stochastic", "random_bits": random_bits, "variant": variant}


# ---- single operations ------------------------------------------------------------------------


def test_the_integers_have_the_broadcast_shape(front_end: FrontEnd) -> None:
    x, y = np.float32([[1.0], [17.0]]), np.float32([0.03, 0.5, 300.0])
    r = integers((2, 3), 8, seed=3)
    got = front_end(cpd.add, x, y, "e4m3", **options(8, "A"), random=r)
    wide = [np.broadcast_to(v, (2, 3)).copy() for v in (x, y)]
    for i in np.ndindex(2, 3):
        one = by_keywords(
            cpd.add, wide[0][i], wide[1][i], "e4m3", **options(8, "A"), random=np.array(r[i])
        )
        assert got[i].tobytes() == one.tobytes()


def test_strides_and_out() -> None:
    x, y = np.float32([[1.1, 2.2], [3.3, 4.4]]), np.full((2, 2), 0.25, np.float32)
    r = integers((2, 2), 24)
    wanted = by_keywords(cpd.mul, x, y, "e3m2", **options(24, "A"), random=r)
    out = np.empty((2, 2), np.float32).T
    got = by_keywords(cpd.mul, x, y, "e3m2", **options(24, "A"), random=r.T.copy().T, out=out)
    assert got is out
    assert to_bits(got) == to_bits(wanted)


@pytest.mark.parametrize("variant", "ABC")
def test_the_mean_over_all_integers_is_the_exact_result(variant: str) -> None:
    """The mean of the results over all random integers of N bits is close to the exact result.

    Multiples of 2^-N of the gap divide the gap between the two neighboring values of the format.
    The mean is one of these points: with variant A of stochastic rounding the point below the exact
    result, with variants B and C the nearest point.
    """
    x, y, bits = np.float32(1.0), np.float32(0.3), 6
    r = np.arange(2**bits)
    many = np.broadcast_to(x, r.shape), np.broadcast_to(y, r.shape)
    got = by_keywords(cpd.add, *many, "e4m3", **options(bits, variant), random=r)
    mean = sum(Fraction(float(v)) for v in got) / 2**bits
    exact = Fraction(float(x)) + Fraction(float(y))
    part = (exact - Fraction(10, 8)) * 8 * 2**bits  # of the gap 1.25…1.375, in 2^-N
    kept = math.floor(part) if variant == "A" else round(part)
    assert mean == Fraction(10, 8) + Fraction(kept, 8 * 2**bits)


# ---- ordered sums -----------------------------------------------------------------------------


def taking(r: Sequence[int]) -> tuple[Iterator[int], Callable[[oracle.Options], oracle.Options]]:
    left = iter(int(k) for k in r)
    return left, lambda o: replace(o, random=next(left))


def given_sum(acc: cpd.Accumulator, terms: Patterns, r: Sequence[int]) -> int:
    """Returns the oracle's sum of `terms`, rounded with the random integers `r`.

    Asserts that the sum uses all of the integers.
    """
    left, step = taking(r)
    bits = sum_of(acc, terms, step)
    assert next(left, None) is None
    return bits


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sums(front_end: FrontEnd, scheme: str) -> None:
    generator = np.random.default_rng(2)
    calls = []
    for name, bits, variant, terms in (
        ("e4m3", 2, "A", 11),
        ("e5m2fnuz", 8, "B", 8),
        ("bf16", 24, "C", 1),
        ("e8m22", 13, "A", 7),
        ("e4m3", 5, "A", 2),
    ):
        chunks = {"inner": "e5m2", "chunk": 3} if scheme == "chunked" else {}
        acc = cpd.Accumulator(name, scheme=scheme, **options(bits, variant), **chunks)
        x = (generator.standard_normal((terms, 21)) * 4).astype(np.float32)
        x[0, :3] = 200, np.inf, np.nan
        r = integers((21, acc.sum_integers(terms)), bits, seed=terms)
        columns = x.view(np.uint32).T.tolist()
        expected = [given_sum(acc, column, k) for column, k in zip(columns, r, strict=True)]
        calls.append(Call(cpd.sum, (x, acc, 0), {"random": r}, expected))
        turned = np.ascontiguousarray(x.T).reshape(3, 7, terms)
        how = {"axis": -1, "random": r.reshape(3, 7, -1)}
        calls.append(Call(cpd.sum, (turned, acc), how, from_bits(expected).reshape(3, 7)))
    front_end.check(calls)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_sums_given_what_the_seed_gives(scheme: str) -> None:
    """Sums by `seed=` and `stream=` equal sums by `random=` with the same random integers."""
    x = (np.random.default_rng(5).standard_normal((9, 300)) * 3).astype(np.float32)
    for bits in (7, 14, 24):
        chunks = {"chunk": 4} if scheme == "chunked" else {}
        drawing = cpd.Accumulator("e4m3", scheme=scheme, **options(bits, "A"), **chunks)
        draws = range(drawing.sum_integers(9))
        r = [[reduce_oracle.fold_integer(i, t, bits, 3, 8) for t in draws] for i in range(300)]
        got = cpd.sum(x, drawing, 0, random=np.array(r))
        assert to_bits(got) == to_bits(cpd.sum(x, drawing, 0, seed=3, stream=8))


def test_sums_without_terms() -> None:
    acc = cpd.Accumulator("e4m3", rounding="stochastic")
    got = cpd.sum(np.zeros((0, 2), np.float32), acc, 0, random=np.zeros((2, 0), np.int32))
    assert to_bits(got) == [0, 0]
    nothing = cpd.sum(np.zeros((4, 0), np.float32), acc, 0, random=np.zeros((0, 4), np.int32))
    assert nothing.shape == (0,)


# ---- products ---------------------------------------------------------------------------------


def products(rows: int, k: int, columns: int, f: str) -> tuple[Any, Any, Any]:
    generator = np.random.default_rng(rows + k)
    a, b, c = (
        cpd.cast(generator.standard_normal(shape).astype(np.float32) * 2, f)
        for shape in ((rows, k), (k, columns), (rows, columns))
    )
    return a, b, c


ACCUMULATORS = [
    *("e4m3 sequential random_bits=3", "e5m2 sequential variant=B random_bits=9"),
    *("e6m9 kahan variant=C random_bits=12", "e4m3 kahan product=exact random_bits=24"),
    *("e4m3 pairwise product=e5m2 random_bits=8", "e4m3 pairwise product=exact random_bits=8"),
    "e6m9 chunked inner=e4m3 chunk=4 random_bits=8",
    "e8m22 sequential product=exact random_bits=24",
]


@pytest.mark.parametrize("text", ACCUMULATORS)
def test_products(front_end: FrontEnd, text: str) -> None:
    acc = cpd.Accumulator(text + " rounding=stochastic")
    calls = []
    for rows, k, columns in ((3, 7, 5), (1, 4, 19), (2, 1, 2)):
        a, b, c = products(rows, k, columns, "e4m3")
        r = integers((rows, columns, acc.gemm_integers(k)), acc.random_bits, seed=k)
        patterns = [m.view(np.uint32).tolist() for m in (a, b, c)]
        for addend, start in ((c, patterns[2]), (None, None)):
            expected = gemm_oracle.gemm(*patterns[:2], start, accumulation_of(acc, r))
            shaped = from_bits(expected).reshape(rows, columns)
            calls.append(Call(cpd.gemm, (a, b, acc, addend), {"random": r}, shaped))
    a, b, c = products(2, 0, 3, "e4m3")  # no column of b tells how many there are
    r = integers((2, 3, acc.gemm_integers(0)), acc.random_bits)
    how = options(acc.random_bits, acc.variant)
    rounded = by_keywords(cpd.cast, c, acc.format, **how, random=r[..., 0])
    front_end.check([*calls, Call(cpd.gemm, (a, b, acc, c), {"random": r}, rounded)])


@pytest.mark.parametrize("promote", [0, 8])
def test_matrix_units(front_end: FrontEnd, promote: int) -> None:
    unit = cpd.Accumulator(a="e4m3", b="e4m3", block=4, fraction_bits=13, promote=promote)
    acc = unit.replace(format="e4m3", rounding="stochastic", random_bits=5)
    a, b, c = products(5, 19, 9, "e4m3")
    r = integers((5, 9, acc.gemm_integers(19)), 5)
    assert r.shape[-1] == (4 if promote else 2)
    patterns = [m.view(np.uint32).tolist() for m in (a, b, c)]
    expected = gemm_oracle.gemm(*patterns[:2], patterns[2], accumulation_of(acc, r))
    assert_same_bits(front_end(cpd.gemm, a, b, acc, c, random=r), expected, str(acc))


@pytest.mark.parametrize("text", [*ACCUMULATORS, "e4m3 sequential", "e6m9 chunked chunk=7"])
def test_products_given_what_the_seed_gives(text: str) -> None:
    """Products by `seed=` equal products by `random=` with the integers that the seed generates.

    This holds for results in several tiles of a kernel, several blocks of k and a batch, even if
    the product by `seed=` runs on a fast path.
    """
    text += " rounding=stochastic"
    drawing = cpd.Accumulator(text)
    rows, k, columns = 11, 150, 37
    a, b, c = products(rows, k, columns, "e4m3")
    a, b, c = np.stack([a, a[::-1]]), b / 4, c[0]
    bits = drawing.random_bits
    first = 4 * (1 if bits > 16 else 2 if bits > 8 else 4)
    draws = [0, *range(first, first + drawing.gemm_integers(k) - 1)]
    chosen = [(0, 0, 0), (0, 10, 36), (1, 3, 31), (1, 8, 32)]
    r = integers((2, rows, columns, len(draws)), bits)
    for batch, i, j in chosen:
        index = (batch * rows + i) * columns + j
        r[batch, i, j] = [reduce_oracle.fold_integer(index, t, bits, 6, 2) for t in draws]
    got = cpd.gemm(a, b, cpd.Accumulator(text), c, random=r)
    wanted = cpd.gemm(a, b, drawing, c, seed=6, stream=2)
    for at in chosen:
        assert got[at].tobytes() == wanted[at].tobytes(), f"{text} at {at}"
    assert not np.array_equal(got, wanted)


def test_the_mean_of_a_sum_over_all_integers_is_exact() -> None:
    """The mean of a sum over all random integers is the exact sum.

    The sum adds 1/8 twice to 2 in e3m2, where neighboring values differ by 1/2.
    """
    acc = cpd.Accumulator("e3m2", rounding="stochastic", random_bits=2)
    paths = np.stack(np.meshgrid(*[np.arange(4)] * 2), -1).reshape(-1, 2)
    r = np.concatenate([np.zeros((16, 1), np.int64), paths], -1)
    x = np.broadcast_to(np.float32([[2], [0.125], [0.125]]), (3, 16))
    assert cpd.sum(x, acc, 0, random=r).mean() == 2.25


def test_gradients_go_through() -> None:
    torch = pytest.importorskip("torch")
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = torch.tensor([0.3, 0.4], requires_grad=True)
    r = torch.tensor([3, 5])
    how = options(8, "A") | {"random": r}
    by_keywords(cpd.fma, x, y, x, "e4m3", **how).sum().backward()
    assert x.grad.tolist() == pytest.approx([1.3, 1.4])
    assert y.grad.tolist() == [1.0, 2.0]
    acc = cpd.Accumulator("e4m3", rounding="stochastic", random_bits=8)
    x.grad = None
    cpd.sum(x, acc, 0, random=r).backward()
    assert x.grad.tolist() == [1.0, 1.0]
    x.grad = None
    draws = torch.zeros((1, 1, acc.gemm_integers(2)), dtype=torch.int32)
    cpd.gemm(x[None], y[:, None], acc, random=draws).sum().backward()
    backward = cpd.gemm(torch.ones(1, 1), y.detach()[None], acc, stream=4 << 60)
    assert torch.equal(x.grad[None], backward)


def test_a_batch_takes_its_own_integers() -> None:
    """torch.vmap gives the results of a loop over the examples of a batch. The examples may share
    the random integers, or have different ones."""
    torch = pytest.importorskip("torch")
    generator = torch.Generator().manual_seed(3)
    x, y = (torch.randn(4, 3, 5, generator=generator) for _ in range(2))
    acc = cpd.Accumulator("e4m3", rounding="stochastic", random_bits=6)
    how = options(6, "A")

    def add(x: Any, r: Any) -> Any:
        return by_keywords(cpd.add, x, y[0], "e4m3", **how, random=r)

    def total(x: Any, r: Any) -> Any:
        return cpd.sum(x, acc, 1, random=r)

    def product(x: Any, r: Any) -> Any:
        return cpd.gemm(x, y[1].T, acc, y[2, 0, :3], random=r)

    for call, shape in ((add, (3, 5)), (total, (3, 5)), (product, (3, 3, acc.gemm_integers(5)))):
        r = torch.randint(0, 64, (4, *shape), generator=generator)
        wanted = torch.stack([call(x[i], r[i]) for i in range(4)])
        assert torch.equal(torch.vmap(call)(x, r), wanted)
        wanted = torch.stack([call(x[i], r[1]) for i in range(4)])
        assert torch.equal(torch.vmap(call, (0, None))(x, r[1]), wanted)
        wanted = torch.stack([call(x[2], r[i]) for i in range(4)])
        assert torch.equal(torch.vmap(call, (None, 0))(x[2], r), wanted)


# ---- what is refused --------------------------------------------------------------------------


def calls() -> dict[str, Callable[..., Any]]:
    """Returns a call of each operation, to which `random=` is given as an array of shape (2, 3)."""
    x = np.ones((2, 3), np.float32)
    return {
        "add": lambda r, **o: by_keywords(cpd.add, x, x, "e4m3", random=r, **o),
        "mul": lambda r, **o: by_keywords(cpd.mul, x, x, "e4m3", random=r, **o),
        "fma": lambda r, **o: by_keywords(cpd.fma, x, x, x, "e4m3", random=r, **o),
        "sum": lambda r, **o: cpd.sum(x.T, cpd.Accumulator("e4m3", **o), 0, random=r),
        "gemm": lambda r, **o: cpd.gemm(
            x[:1, :2],
            x[:, :2],
            cpd.Accumulator("e4m3", product="exact", **o),
            random=r[None] if isinstance(r, np.ndarray) else r,
        ),
    }


@pytest.mark.parametrize("operation", ["add", "mul", "fma", "sum", "gemm"])
def test_what_random_must_be(operation: str) -> None:
    call = calls()[operation]
    good = np.zeros((2, 3), np.int32)
    how = options(4, "A")
    call(good, **how)
    call(good.astype(np.uint64) + np.uint64(15), **how)
    with pytest.raises(ValueError, match="shape"):
        call(np.zeros((3, 2), np.int32), **how)
    with pytest.raises(ValueError, match="shape"):
        call(np.zeros((2, 3, 1), np.int32), **how)
    for bad in (16, -1):
        with pytest.raises(ValueError, match=r"random must be 0…2\^4 - 1"):
            call(good + bad, **how)
    for other in (good.astype(np.float32), good.tolist(), 3):
        with pytest.raises(TypeError, match="random must be an array of integers"):
            call(other, **how)
    for rounding in ("nearest_even", "up"):
        with pytest.raises(ValueError, match="random is for rounding='stochastic' only"):
            call(good, rounding=rounding)


def test_what_random_must_be_as_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    how = options(4, "A")
    acc = cpd.Accumulator("e4m3", **how)
    with pytest.raises(ValueError, match="the result's shape"):
        by_keywords(cpd.add, x, x[0], "e4m3", **how, random=torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="the result's shape and 2 draws"):
        cpd.sum(x, acc, 0, random=torch.zeros(3, dtype=torch.int32))
    with pytest.raises(ValueError, match="the result's shape and 7 draws"):
        cpd.gemm(x, x.T, acc, random=torch.zeros(2, 2, 6, dtype=torch.int32))
    with pytest.raises(ValueError, match="random must be"):
        cpd.sum(x, acc, 0, random=torch.full((3, 2), 16))
    with pytest.raises(TypeError, match="integers"):
        cpd.gemm(x, x.T, acc, random=torch.zeros(2, 2, 7))
    with pytest.raises(ValueError, match="stochastic"):
        cpd.gemm(x, x.T, "fp32", random=torch.zeros(2, 2, 7, dtype=torch.int32))
    with pytest.raises(ValueError, match="stochastic"):
        cpd.gemm(x, x.T, "fp32", blas=True, random=torch.zeros(2, 2, 7, dtype=torch.int32))


def test_the_library_checks_what_a_compiled_call_cannot() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(2, 3)
    acc = cpd.Accumulator("e4m3", rounding="stochastic", random_bits=4)
    compiled = torch.compile(cpd.sum, fullgraph=True, backend="aot_eager")
    for bad in (torch.zeros(3, 3, dtype=torch.int32), torch.full((3, 2), 16, dtype=torch.int32)):
        with pytest.raises((ValueError, RuntimeError), match="random"):
            compiled(x, acc, random=bad)


def test_draws() -> None:
    def draws(text: str, n: int) -> tuple[int, int]:
        acc = cpd.Accumulator(text + " rounding=stochastic")
        return acc.sum_integers(n), acc.gemm_integers(n)

    assert [draws("e4m3 sequential", n) for n in (0, 1, 5)] == [(0, 1), (1, 3), (5, 11)]
    assert [draws("e4m3 kahan", n) for n in (0, 1, 5)] == [(0, 1), (1, 6), (17, 26)]
    assert [draws("e4m3 chunked chunk=2", n) for n in (0, 1, 5)] == [(0, 1), (2, 4), (8, 14)]
    assert [draws("e4m3 pairwise", n) for n in (0, 1, 5)] == [(0, 1), (1, 3), (4, 11)]
    assert draws("e4m3 sequential product=exact", 5) == (5, 6)
    nearest = cpd.Accumulator("e4m3")
    assert nearest.sum_integers(5) == nearest.gemm_integers(5) == 0
    for bad, error in ((-1, ValueError), (2**63, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match="terms"):
            nearest.sum_integers(bad)  # type: ignore[arg-type]
        with pytest.raises(error, match="k "):
            nearest.gemm_integers(bad)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="block_fma"):
        cpd.Accumulator("h100-fp8").sum_integers(3)
