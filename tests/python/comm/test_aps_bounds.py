# SPDX-License-Identifier: Apache-2.0
"""Tests the shift that APS chooses: every contribution fits the wire format, and every sum fits the
accumulator and the result format."""

import itertools
import math

import numpy as np
import pytest

import cpd
import reduce_oracle
from oracle import Spec


def _format(text):
    found = cpd.Format(text)
    return Spec(found.exp, found.man)


def _ranks(world, seed=0):
    """Layers of four kinds: normal values, zeros, subnormal values, and a single nonzero value on
    one rank."""
    random = np.random.default_rng(seed)
    ranks = []
    for rank in range(world):
        wide = random.standard_normal(6) * np.exp2(random.integers(-9, 4, 6))
        tiny = random.integers(-40, 40, 3) * 2.0**-149
        alone = [1 + 1 / 3 if rank == world - 1 else 0.0, 2.0**-20]
        layers = [wide, np.zeros(2), tiny, alone, np.full(2, 3.1e30 / world)]
        ranks.append([np.array(layer, np.float32) for layer in layers])
    return ranks


def _bits(x):
    return [int(one) for one in np.asarray(x, np.float32).view(np.uint32)]


@pytest.mark.parametrize(
    ("wire", "sums", "result"),
    [
        ("e4m3", "fp32", "fp32"),
        ("e3m0", "fp32", "fp32"),
        ("e3m4", "e5m7", "e4m3"),
        ("e5m2", "fp32", "e5m2"),
        ("e4m3", "e4m3", "e4m3"),
        ("e5m2", "e3m4", "e5m2"),
    ],
)
@pytest.mark.parametrize(
    ("order", "group_size", "scheme"),
    [("sequential", None, ""), ("ring", 2, "kahan"), ("tree", None, ""), ("sequential", 3, "")],
)
def test_shift_and_sums_equal_exact_rationals(wire, sums, result, order, group_size, scheme):
    for world, aps in itertools.product((1, 3, 5, 8), (True, "paper")):
        size = None if group_size is None else min(group_size, world)
        spec = cpd.Reduce(
            wire,
            accumulator=f"{sums} {scheme}".strip(),
            order=order,
            group_size=size,
            aps=aps,
            result=result,
        )
        ranks = _ranks(world)
        oracle = reduce_oracle.Reduce(
            _format(wire),
            _format(sums),
            _format(result),
            scheme=scheme or "sequential",
            order=order,
            group_size=size or 0,
            aps=aps,
        )
        found, report = cpd.simulate_all_reduce(ranks, spec, report=True)
        for layer, values in enumerate(found):
            given = [_bits(rank[layer]) for rank in ranks]
            assert report[layer].shift == reduce_oracle.layer_shift(given, oracle)
            assert _bits(values) == reduce_oracle.all_reduce(given, oracle, layer)


@pytest.mark.parametrize("wire", ["e3m0", "e2m1"])
def test_four_bits_of_64_workers_sum_in_fp32(wire):
    """With CPD's scale, four-bit formats can send DiLoCo's outer gradients of 64 workers if sums
    are in fp32. The APS paper's scale leaves room for sums of 64 ranks in the format, which makes
    all values zero."""
    random = np.random.default_rng(0)
    ranks = [[random.standard_normal(500).astype(np.float32)] for _ in range(64)]
    exact = np.sum([rank[0] for rank in ranks], axis=0, dtype=np.float64)
    spec = cpd.Reduce(wire, accumulator="fp32", aps=True, result="fp32")
    found = cpd.simulate_all_reduce(ranks, spec)[0]
    assert np.linalg.norm(found - exact) < 0.3 * np.linalg.norm(exact)
    paper = cpd.Reduce(wire, accumulator="fp32", aps="paper", result="fp32")
    assert not cpd.simulate_all_reduce(ranks, paper)[0].any()


def test_more_fraction_bits_are_better_where_sums_are_wide():
    random = np.random.default_rng(1)
    ranks = [[(random.standard_normal(4000) * 1e-4).astype(np.float32)] for _ in range(256)]
    errors = {}
    for wire in ("e3m4", "e4m3", "e5m2"):
        spec = cpd.Reduce(wire, accumulator="fp32", aps=True, result="fp32")
        errors[wire] = cpd.study.roundoff(ranks, spec, [256])[256].relative_rms
    assert errors["e3m4"] < 0.7 * errors["e4m3"] < 0.5 * errors["e5m2"]


FORMATS = [f"e{exp}m{man}" for exp in (2, 3, 4) for man in (0, 1, 2, 3)]


@pytest.mark.filterwarnings("ignore:the sum over")  # may stall
@pytest.mark.parametrize("wire", FORMATS)
def test_no_sum_leaves_the_range(wire):
    """No sum overflows. The test sums equal values of equal sign, which have the largest partial
    sums in any order. Each layer has another significand, because a format without mantissa bits
    rounds 1.5 up to 2."""
    values = np.float32(1) + np.arange(16, dtype=np.float32) / 16
    values = np.concatenate([values, np.nextafter(values, np.float32(9))])
    worlds = (2, 3, 5, 6, 7, 8, 11, 15, 21, 43, 64)
    for (sums, result), world in itertools.product(
        ((wire, wire), ("fp32", "fp32"), ("fp32", wire), ("fp32", "e3m0"), ("bf16", "e2m1")),
        worlds,
    ):
        ranks = [[values[i : i + 1] for i in range(len(values))]] * world
        spec = cpd.Reduce(wire, accumulator=sums, aps=True, result=result)
        found, report = cpd.simulate_all_reduce(ranks, spec, report=True)
        top = cpd.Format(result).max
        for value, layer, told in zip(values, found, report, strict=True):
            assert math.isfinite(layer[0]), (sums, result, world, value)
            scaled = abs(math.ldexp(float(layer[0]), told.shift))
            assert scaled <= top
            if sums == "fp32" and result != wire:  # the wire's values, added exactly, still fit
                wide = cpd.Reduce(
                    wire, accumulator="fp32", loss_scale=2.0**told.shift, result="fp32"
                )
                exact = cpd.simulate_all_reduce([[np.float32([value])]] * world, wide)[0][0]
                assert math.ldexp(float(exact), told.shift) <= top


@pytest.mark.parametrize("world", [3, 4])
def test_ranks_agree_on_the_largest_magnitude(world):
    ranks = _ranks(world, seed=4)
    for wire, sums in (("e4m3", "fp32"), ("e2m1", "fp32"), ("e3m0", "e5m7"), ("e5m2", "e5m2")):
        spec = cpd.Reduce(wire, accumulator=sums, aps=True, result=sums)
        expected = cpd.simulate_all_reduce(ranks, spec)
        with cpd.comm.local(world) as group:
            for sums_of_rank in group.run(
                lambda comm, spec=spec: comm.all_reduce(ranks[comm.rank], spec)
            ):
                for a, b in zip(sums_of_rank, expected, strict=True):
                    assert _bits(a) == _bits(b)


def test_a_layer_with_nan_and_infinities_is_scaled_by_its_finite_values():
    ranks = [[np.float32([1.0, np.nan, 1.0])], [np.float32([1.0, 1.0, np.inf])]]
    spec = cpd.Reduce("e3m4", accumulator="fp32", aps=True, result="fp32")
    found, report = cpd.simulate_all_reduce(ranks, spec, report=True)
    assert report[0].shift == 3  # e3m4 holds 2^3, the largest of the values is 1
    assert found[0][0] == 2
    assert np.isnan(found[0][1])
    assert found[0][2] == np.inf
