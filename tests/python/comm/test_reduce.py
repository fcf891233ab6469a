# SPDX-License-Identifier: Apache-2.0
"""Compares `cpd.simulate_all_reduce` and `cpd.study.roundoff` with exact rational arithmetic."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest

import cpd
import reduce_oracle
from arrays import spec_of
from oracle import MODES, Options
from rationals import Fraction
from reduce_cases import gradients

# Many sums in this file are too long for their format: their last terms do not change the sum. CPD
# warns of such sums.
pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")

WORLDS = (1, 2, 3, 5, 7, 8, 16)
ORDERS = ("sequential", "ring", "tree")
FORMATS = ("e3m0", "e4m3fn", "e2m1", "fp16", "bf16", "fp32", "e1m2")


def accumulators(f, **options):
    """Returns accumulators of every scheme that an all-reduce supports, with several chunk
    lengths."""
    return [
        cpd.Accumulator(f, **options),
        cpd.Accumulator(f, scheme="kahan", **options),
        cpd.Accumulator(f, scheme="chunked", chunk=1, **options),
        cpd.Accumulator(f, scheme="chunked", chunk=3, inner="e5m1", **options),
        cpd.Accumulator(f, scheme="chunked", chunk=4, inner="e6m9", **options),
        cpd.Accumulator(f, scheme="chunked", **options),
        cpd.Accumulator(f, scheme="pairwise", **options),
    ]


def sums(f, **options):
    """Returns the pairs of an order and an accumulator that an all-reduce supports."""
    return [
        (order, acc)
        for order in ORDERS
        for acc in accumulators(f, **options)
        if order != "tree" or acc.scheme == "sequential"
    ]


def oracle_of(spec: cpd.Reduce, seed: int = 0, step: int = 0) -> reduce_oracle.Reduce:
    acc = spec.accumulator
    return reduce_oracle.Reduce(
        wire=spec_of(spec.format),
        sum=spec_of(acc.format),
        result=spec_of(spec.result),
        scheme=acc.scheme,
        inner=spec_of(acc.inner),
        chunk=acc.chunk,
        order=spec.order,
        group_size=spec.group_size or 0,
        aps=spec.aps,
        loss_scale=Fraction(spec.loss_scale),
        average=spec.average,
        divide=spec.divide,
        wire_options=Options(spec.rounding, spec.overflow, spec.variant, spec.random_bits),
        sum_options=Options(acc.rounding, acc.overflow, acc.variant, acc.random_bits),
        wire_seed=seed,
        sum_seed=seed,
        step=step,
    )


def bits_of(layers):
    return [layer.reshape(-1).view(np.uint32).tolist() for layer in layers]


def check(ranks, spec, seed=0, step=0):
    got = cpd.simulate_all_reduce(ranks, spec, seed=seed, step=step)
    oracle = oracle_of(spec, seed, step)
    for layer, value in enumerate(got):
        patterns = [np.ascontiguousarray(r[layer]).reshape(-1).view(np.uint32) for r in ranks]
        wanted = reduce_oracle.all_reduce([p.tolist() for p in patterns], oracle, layer)
        assert value.shape == ranks[0][layer].shape
        assert value.dtype == np.float32
        assert value.reshape(-1).view(np.uint32).tolist() == wanted, f"layer {layer}"


# ---- the sum -----------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [*WORLDS, 33])
def test_orders_and_schemes(world):
    ranks = gradients(world)
    narrow = gradients(world, scale=0.25)
    for f in ("e4m3", "e5m2", *(FORMATS if world in (2, 7) else ())) if world < 16 else ("e4m3",):
        for order, acc in sums(f):
            check(narrow if f in FORMATS else ranks, cpd.Reduce(f, accumulator=acc, order=order))


@pytest.mark.parametrize("acc", ["e4m3 kahan", "fp32 pairwise", "e5m2 chunked chunk=3"])
@pytest.mark.parametrize("group_size", [None, 9])
def test_ranks_in_one_array(acc, group_size):
    """Each rank's layers may come from a function. simulate_all_reduce adds a rank's layers before
    it calls the next rank's function, so all functions may fill the same array. Lists of layers
    give the same sums and counts."""
    x = np.random.default_rng(1).standard_normal((37, 5000)).astype(np.float32)
    x[:, ::7] *= 2.0**-12
    x[5, 3] = np.inf
    layer = np.empty(5000, np.float32)

    def filled(values):
        layer[:] = values
        return [layer]

    functions = [functools.partial(filled, values) for values in x]
    for average, divide in ((False, "after"), (True, "before"), (True, "after")):
        spec = cpd.Reduce(
            "e4m3", accumulator=acc, group_size=group_size, average=average, divide=divide
        )
        of_lists, counted = cpd.simulate_all_reduce([[y] for y in x], spec, report=True)
        made, also = cpd.simulate_all_reduce(functions, spec, report=True)
        assert bits_of(of_lists) == bits_of(made)
        assert counted == also
        assert counted[0].underflowed > 0
        assert counted[0].non_finite == 1


@pytest.mark.few("", 2)
@pytest.mark.parametrize("world", [3, 7, 8, 16])
@pytest.mark.parametrize("group_size", [1, 2, 3, 5, 16, 20])
def test_groups(world, group_size):
    ranks = gradients(world)
    for order, acc in sums("e4m3"):
        spec = cpd.Reduce("e4m3", accumulator=acc, order=order, group_size=group_size)
        if group_size <= world:
            check(ranks, spec)
            continue
        wrong = rf"group_size must be 1…{world} \(the ranks\), got {group_size}"
        with pytest.raises(ValueError, match=wrong):
            cpd.simulate_all_reduce(ranks, spec)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wire", FORMATS)
def test_modes_and_formats(wire, mode):
    options = {"rounding": mode, "random_bits": 9 if mode == "stochastic" else 24}
    ranks = gradients(5, shapes=((11,), (2, 2)), scale=0.25)
    for index, (order, acc) in enumerate(sums("e5m2", **options)):
        group_size = (None, 2)[index % 2]
        spec = cpd.Reduce(
            wire,
            accumulator=acc,
            order=order,
            group_size=group_size,
            result="e4m3",
            **options,
        )
        check(ranks, spec, seed=9)


def test_a_lone_rank_is_rounded_once_at_each_level():
    """A sum over one rank rounds the rank's value to the accumulator's format. With groups, the sum
    of the group and the sum over groups each round it once. order="tree" rounds it, too."""
    ranks = gradients(1, shapes=((300,),), scale=0.25)
    for order, acc in sums("e3m0", rounding="stochastic"):
        for group_size in (None, 1):
            spec = cpd.Reduce("fp32", accumulator=acc, order=order, group_size=group_size)
            check(ranks, spec, seed=5)
    (tree,) = cpd.simulate_all_reduce(ranks, cpd.Reduce("fp32", accumulator="e3m0", order="tree"))
    assert np.array_equal(tree, cpd.cast(ranks[0][0], "e3m0"))


def test_a_tree_adds_neighbours_first():
    """With order="tree" and 7 ranks, the sum is ((0 + 1) + (2 + 3)) + ((4 + 5) + 6). A sequential
    sum would lose each 1 that it adds to 16."""
    ranks = [[np.float32([x])] for x in (16, 1, 1, 1, 1, 1, 16)]
    (tree,) = cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", order="tree"))
    assert tree.tolist() == [36.0]  # 16 + 1 is a tie, which rounds to 16
    ones = [[np.float32([1])]] * 256
    assert cpd.simulate_all_reduce(ones, cpd.Reduce("e5m2", order="tree"))[0] == 256
    assert cpd.simulate_all_reduce(ones, cpd.Reduce("e5m2"))[0] == 8


def test_every_exchange_gives_the_same_bits():
    ranks = gradients(7)
    for order, group_size, exchanges in (
        ("sequential", None, ("gather",)),
        ("tree", None, ("gather",)),
        ("tree", 3, ("gather",)),
        ("ring", None, ("gather", "ring")),
        ("ring", 3, ("gather", "hierarchical")),
    ):
        spec = cpd.Reduce("e4m3", order=order, group_size=group_size)
        assert spec.exchange == "owner"
        wanted = cpd.simulate_all_reduce(ranks, spec)
        for exchange in exchanges:
            got = cpd.simulate_all_reduce(ranks, spec.replace(exchange=exchange))
            assert all(np.array_equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("aps", [True, "paper"])
def test_aps(world, aps):
    for f, scale in (("e4m3", 1e-6), ("e5m2", 1e9), ("e3m0", 1e-30), ("e4m3fn", 1.0)):
        check(gradients(world, scale=scale), cpd.Reduce(f, aps=aps))


def test_aps_with_outward_roundings():
    ranks = gradients(7, scale=1e-5)
    for mode in ("up", "down", "stochastic", "nearest_away", "to_odd"):
        for number, (order, acc) in enumerate(sums("e4m3", rounding=mode)):
            aps = (True, "paper")[number % 2]
            spec = cpd.Reduce("e4m3", accumulator=acc, order=order, rounding=mode, aps=aps)
            check(ranks, spec, seed=4)


def test_aps_leaves_zero_and_non_finite_layers_in_peace():
    zero = np.zeros(5, np.float32)
    bad = np.array([1e-20, np.inf, -1e-21, np.nan, 0.0], np.float32)
    ranks = [[zero, bad], [zero, np.flip(bad).copy()], [-zero, bad]]
    for order in ORDERS:
        spec = cpd.Reduce("e4m3", aps=True, order=order)
        check(ranks, spec)
        _, reports = cpd.simulate_all_reduce(ranks, spec, report=True)
        assert [r.shift for r in reports] == [0, reduce_oracle.layer_shift(
            [r[1].view(np.uint32).tolist() for r in ranks], oracle_of(spec)
        )]  # fmt: skip
        assert [r.non_finite for r in reports] == [0, 6]


@pytest.mark.few("", 3)
@pytest.mark.parametrize("mode", ["nearest_even", "toward_zero", "to_odd", "stochastic"])
def test_wider_accumulator_and_result(mode):
    ranks = gradients(8)
    for result in (None, "fp32", "e5m10", "e4m3"):
        for group_size in (None, 3):
            bits = 12 if mode == "stochastic" else 24
            for order, acc in sums("e6m9", rounding=mode, random_bits=bits):
                spec = cpd.Reduce(
                    "e4m3", accumulator=acc, result=result, group_size=group_size, order=order
                )
                check(ranks, spec, seed=11)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("bits", [1, 8, 13, 24])
@pytest.mark.parametrize("variant", ["A", "B", "C"])
def test_stochastic(bits, variant):
    options = {"rounding": "stochastic", "random_bits": bits, "variant": variant}
    ranks = gradients(7)
    for order, acc in sums("e4m3", **options):
        for group_size in (None, 3):
            spec = cpd.Reduce(
                "e5m2",
                accumulator=acc,
                order=order,
                group_size=group_size,
                **options,
            )
            check(ranks, spec, seed=2**64 - 5, step=12)


def test_steps_draw_new_bits():
    ranks = gradients(3, shapes=((300,),))
    spec = cpd.Reduce("e4m3", rounding="stochastic")
    results = {
        cpd.simulate_all_reduce(ranks, spec, step=step)[0].tobytes() for step in (0, 1, 2, 0)
    }
    assert len(results) == 3


@pytest.mark.parametrize("world", WORLDS)
def test_scale_and_average(world):
    ranks = gradients(world, scale=1e-4)
    check(ranks, cpd.Reduce("e4m3", loss_scale=2.0**12, average=True))
    check(ranks, cpd.Reduce("e4m3", aps=True, average=True, order="ring"))
    check(ranks, cpd.Reduce("fp32", average=True))
    for options in ({}, {"aps": True}, {"order": "ring"}, {"group_size": 1}):
        check(ranks, cpd.Reduce("e4m3", average=True, divide="before", **options))


def test_sums_that_overflow_are_averages_where_contributions_are_divided():
    """If contributions are divided before the sum, averages do not overflow. Otherwise six of ten
    averages overflow, as the documentation of `cpd.Reduce` says."""
    values = np.random.default_rng(1).standard_normal((64, 20_000)).astype(np.float32) * 60
    ranks = [[one] for one in values]
    infinite = {}
    for divide in ("after", "before"):
        spec = cpd.Reduce("e4m3", accumulator="fp32", result="e4m3", average=True, divide=divide)
        (average,) = cpd.simulate_all_reduce(ranks, spec)
        infinite[divide] = int(np.isinf(average).sum())
    assert infinite["before"] == 0
    assert 0.58 < infinite["after"] / 20_000 < 0.64


def test_one_group_of_all_ranks_is_the_flat_sum():
    """With a single group of all ranks, the sum equals the sum without groups, in every order and
    exchange. This holds even for accumulators that round a sum of one term: chunked sums in a
    narrower format, and stochastic rounding."""
    ranks = gradients(5)
    for accumulator in ("e4m3 chunked chunk=2 inner=e5m1", "e4m3 sequential rounding=stochastic"):
        flat = bits_of(cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", accumulator=accumulator)))
        orders = ("sequential", "ring") if "chunked" in accumulator else ORDERS
        for order in orders:
            spec = cpd.Reduce("e4m3", accumulator=accumulator, order=order, group_size=5)
            assert bits_of(cpd.simulate_all_reduce(ranks, spec)) == flat
        for exchange in ("owner", "gather", "hierarchical"):
            spec = cpd.Reduce(
                "e4m3", accumulator=accumulator, order="ring", exchange=exchange, group_size=5
            )
            with cpd.comm.local(5) as group:
                got = group.run(lambda comm, spec=spec: comm.all_reduce(ranks[comm.rank], spec))
            assert all(bits_of(one) == flat for one in got)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
def test_overflow(overflow):
    ranks = gradients(8, scale=100.0)
    for order, acc in sums("e4m3", overflow=overflow):
        for f in ("e4m3", "e4m3fn", "e3m0"):
            check(ranks, cpd.Reduce(f, accumulator=acc, order=order, overflow=overflow))


def test_signs_of_zero():
    zero = np.zeros(1, np.float32)
    for signs in ((-1, -1, -1), (1, -1, -1), (-1, -1, 1)):
        ranks = [[zero * s] for s in signs]
        for order, acc in sums("e4m3"):
            check(ranks, cpd.Reduce("e4m3", accumulator=acc, order=order))


def test_large_layers_equal_the_fold():
    """Layers so large that several threads sum them, block by block, have the bits of `cpd.sum`."""
    ranks = [[np.random.default_rng(r).normal(size=200_003).astype(np.float32)] for r in range(5)]
    for scheme in ("sequential", "kahan"):
        acc = cpd.Accumulator("e5m2", scheme=scheme)
        (got,) = cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", accumulator=acc, result="e5m2"))
        stacked = np.stack([cpd.cast(r[0], "e4m3") for r in ranks])
        assert np.array_equal(got, cpd.sum(stacked, acc, 0))
    (ring,) = cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", order="ring"))
    begin = 0
    for s in range(5):
        end = begin + 200_003 // 5 + (s < 200_003 % 5)
        order = [(s + 1 + j) % 5 for j in range(5)]
        wire = np.stack([cpd.cast(ranks[r][0][begin:end], "e4m3") for r in order])
        assert np.array_equal(ring[begin:end], cpd.sum(wire, "e4m3", 0))
        begin = end


# ---- round-off ---------------------------------------------------------------------------------


def test_roundoff():
    ranks = gradients(12, shapes=((40,), (3, 5)))
    ranks = [[np.where(np.arange(x.size).reshape(x.shape) == 3, 0, x) for x in r] for r in ranks]
    spec = cpd.Reduce("e4m3", aps=True, group_size=2)
    table = cpd.study.roundoff(ranks, spec, group_sizes=[3, 5, 12])
    per_layer = cpd.study.roundoff(ranks, spec, [3, 5, 12], per_tensor=True)
    assert list(table) == [3, 5, 12]
    for size, row in table.items():
        grouped = spec.replace(group_size=None if size == 12 else size)
        layers = cpd.simulate_all_reduce(ranks, grouped)
        exact = [np.sum([r[i].astype(np.float64) for r in ranks], axis=0) for i in range(2)]
        errors, squares, references = [], 0.0, 0.0
        for h, value in zip(exact, layers, strict=True):
            errors += [abs((a - b) / a) for a, b in zip(h.flat, value.flat, strict=True) if a]
            squares += float(np.sum((h - value) ** 2))
            references += float(np.sum(h**2))
        assert row.error == pytest.approx(np.mean(errors))
        assert row.relative_rms == pytest.approx(math.sqrt(squares / references))
        assert (row.count, row.zero_references, row.non_finite) == (55, 2, 0)
        parts = per_layer[size]
        assert [p.count for p in parts] == [40, 15]
        whole = sum(p.error * (p.count - p.zero_references) for p in parts) / 53
        assert row.error == pytest.approx(whole)


def test_roundoff_counts_what_is_not_finite():
    ranks = [[np.float32([200.0, 1.0])], [np.float32([200.0, 2.0])]]
    row = cpd.study.roundoff(ranks, cpd.Reduce("e4m3"), [2])[2]
    assert (row.error, row.non_finite, row.count) == (0.0, 1, 2)
    scaled = cpd.study.roundoff(ranks, cpd.Reduce("e4m3", aps=True, average=True), [2])[2]
    assert scaled.non_finite == 0


def test_a_sum_beyond_binary32_is_reported() -> None:
    ranks = [[np.full(3, 3.4e38, np.float32)]] * 2
    layers, reports = cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", aps=True), report=True)
    assert np.isinf(layers[0]).all()
    assert reports[0].overflowed == 3
