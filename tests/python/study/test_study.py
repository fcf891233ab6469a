# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.study`: the group-size study over real ranks, the cost model, recommendations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import cpd
import cpd.comm
import study_ranks
from cpd.study.costs import transfer_seconds
from cpd.study.reduce import DRAWS, Contributions
from patience import scaled
from spawn import TRANSPORTS, spawn_ranks

pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
MACHINE = cpd.study.Machine("alpha=1e-5 beta=1e9")


# ---- round-off over ranks ------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 2, 5, 8])
def test_roundoff_over_local_ranks_is_the_virtual_one(world: int) -> None:
    wanted = study_ranks.virtual_tables(world)
    with cpd.comm.local(world) as group:
        for table in group.run(study_ranks.tables):
            assert table == wanted


@pytest.mark.few("", 2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_roundoff_over_processes_is_the_virtual_one(transport: str) -> None:
    wanted = study_ranks.virtual_tables(4)
    for rank in spawn_ranks(transport, 4, "study_ranks:tables"):
        assert rank.result == wanted


def test_ranks_that_are_threads_recommend_alike() -> None:
    """Ranks that are threads of one process get the same recommended group size."""
    rng = np.random.default_rng(1)
    ranks = [[rng.standard_normal(300).astype(np.float32)] for _ in range(4)]
    spec = cpd.Reduce("e4m3", order="ring")
    with cpd.comm.local(4, timeout=scaled(60)) as group:
        made = group.run(
            lambda c: cpd.study.recommend(
                ranks[c.rank], spec, [1, 2, 4], "alpha=1e-6 beta=1e9", comm=c
            )
        )
    assert made == made[:1] * 4


def test_roundoff_over_ranks_takes_torch_tensors() -> None:
    torch = pytest.importorskip("torch")
    spec = cpd.Reduce("e4m3", aps=True)
    ranks = [[torch.randn(7, 3), torch.randn(5).bfloat16()] for _ in range(3)]
    wanted = cpd.study.roundoff(ranks, spec, [2, 3])
    with cpd.comm.local(3) as group:
        got = group.run(lambda c: cpd.study.roundoff(ranks[c.rank], spec, [2, 3], comm=c))
    assert got == [wanted] * 3


@pytest.mark.parametrize("size", [0, 3, -1])
def test_roundoff_refuses_group_sizes(size: int) -> None:
    layers = [np.ones(3, np.float32)]
    with pytest.raises(ValueError, match="1…2"):
        cpd.study.roundoff([layers] * 2, "e4m3", [size])
    with cpd.comm.local(2) as group, pytest.raises(ValueError, match="1…2"):
        group.run(lambda c: cpd.study.roundoff(layers, "e4m3", [size], comm=c))


def test_the_seed_of_a_call() -> None:
    """The `seed` of `roundoff` is the seed of the all-reduce, over virtual and real ranks."""
    rng = np.random.default_rng(0)
    ranks = [[rng.standard_normal(200).astype(np.float32)] for _ in range(3)]
    text = "e4m3 rounding=stochastic order=ring"
    wanted = cpd.study.roundoff(ranks, text, [3], seed=5)
    (sums,) = cpd.simulate_all_reduce(ranks, text, seed=5)
    exact = np.sum([rank[0].astype(np.float64) for rank in ranks], axis=0)
    relative = np.sqrt(np.square(exact - sums).sum() / np.square(exact).sum())
    assert wanted[3].relative_rms == pytest.approx(relative, rel=1e-6)
    assert cpd.study.roundoff(ranks, text, [3]) != wanted
    best = cpd.study.recommend(ranks, text, [3], MACHINE, seed=5)
    assert best.choices[0].roundoff == wanted[3]
    with cpd.comm.local(3) as group:
        over = group.run(lambda c: cpd.study.roundoff(ranks[c.rank], text, [3], comm=c, seed=5))
    assert over == [wanted] * 3


# ---- cost ----------------------------------------------------------------------------------------


def hierarchical(group_size: int | None, f: str = "e4m3") -> cpd.Reduce:
    exchange = "ring" if group_size is None else "hierarchical"
    return cpd.Reduce(f, order="ring", exchange=exchange, group_size=group_size)


def test_published_steps() -> None:
    """The steps are 4 (k - 1) + 2 (p / k - 1) in groups of k, and 2 (p - 1) in one ring."""
    assert cpd.study.cost(hierarchical(16), 128, [10_000]).steps == 74
    assert cpd.study.cost(hierarchical(16), 256, [10_000]).steps == 90
    assert cpd.study.cost(hierarchical(None), 256, [10_000]).steps == 510
    assert cpd.study.cost(cpd.Reduce("e4m3"), 256, [10_000]).steps == 510


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_cost_is_what_moves(world: int) -> None:
    with cpd.comm.local(world, chunk=512) as group:
        ranks = group.run(lambda c: study_ranks.traffic(c, [1000, 3, 0, 4097, 17]))
    for exchange in zip(*ranks, strict=True):
        for moved, cost in exchange:
            assert moved[:2] == cost[:2]
        assert max(moved[2] for moved, _ in exchange) == exchange[0][1][2]


@pytest.mark.few("", 2)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_cost_is_what_moves_between_processes(transport: str) -> None:
    for rank in spawn_ranks(transport, 3, "study_ranks:traffic", [1000, 3, 4097], chunk=512):
        for moved, cost in rank.result:
            assert moved[:2] == cost[:2]


def test_modelled_time() -> None:
    spec = cpd.Reduce("e4m3")
    n, alpha, beta = 40_000, 3e-6, 2e-9
    on = cpd.study.Machine(alpha=alpha, beta=1 / beta)
    assert transfer_seconds(spec, on, 4, [n]) == pytest.approx(6 * alpha + 2 * 3 / 4 * n * beta)
    assert transfer_seconds(spec, on, 1, [n]) == 0
    grouped = transfer_seconds(hierarchical(4), on, 16, [n])
    assert grouped == pytest.approx(18 * alpha + (4 * 3 / 4 + 2 * 3 / 4) * n * beta)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ((cpd.Format("e4m3"), 4, [10]), TypeError, "Reduce"),
        ((hierarchical(None), 0, [10]), ValueError, "world"),
        ((hierarchical(None), 4, [-1]), ValueError, "at least 0, got -1"),
        ((hierarchical(None), 4, [10], 4), ValueError, "0…3, got 4"),
        ((hierarchical(None), 4.5, [10]), TypeError, "world"),
    ],
)
def test_cost_of_nonsense(arguments: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        cpd.study.cost(*arguments)


# ---- what to take --------------------------------------------------------------------------------


def positive_ranks(world: int) -> list[Any]:
    """Returns positive gradients of `world` ranks. Sums of many positive terms stop growing in a
    short format, so groups of about √`world` ranks have the least error."""
    rng = np.random.default_rng(1)
    return [[rng.random(300, np.float32), rng.random((2, 40), np.float32)] for _ in range(world)]


def test_recommend() -> None:
    ranks = positive_ranks(64)
    spec = cpd.Reduce("e5m2", order="ring", aps=True)
    sizes = [2, 4, 8, 16, 64]
    best = cpd.study.recommend(ranks, spec, sizes, MACHINE)
    table = cpd.study.roundoff(ranks, spec, sizes)
    assert [choice.group_size for choice in best.choices] == sizes
    for choice in best.choices:
        assert choice.exchange == ("ring" if choice.group_size == 64 else "hierarchical")
        way = hierarchical(None if choice.group_size == 64 else choice.group_size, "e5m2")
        cost = cpd.study.cost(way, 64, [300, 80])
        assert choice.roundoff == table[choice.group_size]
        assert (choice.steps, choice.bytes_sent) == (cost.steps, cost.bytes_sent)
        assert choice.seconds == transfer_seconds(way, MACHINE, 64, [300, 80])
    assert best.by_error == min(best.choices, key=lambda choice: choice.error).group_size == 8
    assert best.by_time == min(best.choices, key=lambda choice: choice.seconds).group_size == 4
    products = {c.group_size: c.error * c.seconds for c in best.choices}
    assert best.compromise == min(products, key=products.__getitem__)
    assert [choice.roundoff for choice in best.owner] == [c.roundoff for c in best.choices]
    assert {(choice.exchange, choice.seconds) for choice in best.owner} == {
        ("owner", best.owner_seconds)
    }
    assert best.owner_seconds == transfer_seconds(cpd.Reduce("e5m2"), MACHINE, 64, [300, 80])


def test_recommend_by_what_counts() -> None:
    """If steps are expensive, a group near √ranks is fastest; if bytes are expensive, one ring is.

    Of group sizes with equally many steps, the more exact one is recommended.
    """
    ranks = positive_ranks(16)
    spec = cpd.Reduce("e4m3", order="ring", aps=True)
    steps = cpd.study.recommend(ranks, spec, [2, 4, 8, 16], "alpha=1 beta=1e30")
    assert steps.by_time == 4  # as many as 2, and exacter
    assert steps.choices[1].roundoff.relative_rms < steps.choices[0].roundoff.relative_rms
    assert [choice.steps for choice in steps.choices] == [18, 18, 30, 30]
    dear = cpd.study.recommend(ranks, spec, [2, 4, 8, 16], "alpha=0 beta=1")
    assert min(dear.choices, key=lambda choice: choice.seconds).group_size == 16
    assert (
        dear.fastest.exchange == "owner"
    )  # as long as one ring, for the group size of least error
    assert dear.owner_seconds == dear.choices[3].seconds


def test_recommend_avoids_what_overflows() -> None:
    """The recommendation is the group size with the fewest infinite sums.

    A sum of 200 and 200 is infinite in (4,3). The group size changes the order of the additions,
    and so the number of infinite sums.
    """
    ranks = [[np.float32([x, 1.0])] for x in (200.0, 200.0, 200.0, -200.0, -200.0, -200.0)]
    spec = cpd.Reduce("e4m3", order="ring")
    best = cpd.study.recommend(ranks, spec, [2, 3, 6], MACHINE)
    infinite = {choice.group_size: choice.non_finite for choice in best.choices}
    assert min(infinite.values()) < max(infinite.values())
    assert [choice.error for choice in best.choices] == [0, 0, 0]
    fewest = min(infinite, key=infinite.__getitem__)
    assert (best.by_error, best.compromise) == (fewest, fewest)


def test_recommend_counts_owner_in() -> None:
    """If steps cost nothing, the exchange `owner` is fastest, with any group size."""
    ranks = positive_ranks(64)
    spec = cpd.Reduce("e5m2", order="ring", aps=True)
    best = cpd.study.recommend(ranks, spec, [2, 8, 32], "alpha=0 beta=1e9")
    for named in (best.most_exact, best.fastest, best.balanced):
        assert (named.exchange, named.group_size) == ("owner", 8)
        assert named.seconds == best.owner_seconds < min(c.seconds for c in best.choices)


def normal_ranks(world: int, seed: int, count: int = 4000) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [[rng.standard_normal(count).astype(np.float32) * 1e-3] for _ in range(world)]


@pytest.mark.parametrize(("world", "size"), [(16, 4), (64, 8)])
def test_recommend_names_the_same_for_every_draw(world: int, size: int) -> None:
    """Random gradients of one distribution get the same recommendation for every seed.

    Equation 5 of the APS paper would recommend different group sizes for different seeds: its mean
    relative error depends mainly on a few sums whose exact values are near zero.
    """
    spec = cpd.Reduce("e4m3", order="ring", aps=True)
    sizes = [2, 4, 8, 16, world]
    named, by_equation_5 = set(), set()
    for seed in range(4):
        ranks = normal_ranks(world, seed)
        best = cpd.study.recommend(ranks, spec, sizes, "alpha=1e-5 beta=1.25e9")
        named.add((best.by_error, best.by_time, best.compromise))
        by_equation_5.add(min(best.choices, key=lambda c: c.roundoff.error).group_size)
        assert best.draws == DRAWS
    assert {by_error for by_error, _, _ in named} == {size}
    assert len(named) == 1
    assert len(by_equation_5) > 1


def test_recommend_takes_the_faster_of_what_chance_tells_apart() -> None:
    """If the errors of group sizes differ only by chance, the fastest group size is recommended.

    Here sums are in fp32, so for every group size only the rounding of contributions loses bits.
    """
    rng = np.random.default_rng(0)
    ranks = [[rng.standard_normal(4000).astype(np.float32)] for _ in range(4)]
    spec = cpd.Reduce("e4m3", accumulator="fp32", order="ring", result="fp32")
    best = cpd.study.recommend(ranks, spec, [2, 3, 4], "alpha=1e-5 beta=1.25e9")
    lost = {choice.group_size: choice.roundoff.relative_rms for choice in best.choices}
    assert max(lost.values()) < min(lost.values()) * 1.001
    assert best.most_exact == best.fastest


def test_the_spread_is_how_far_draws_differ() -> None:
    """The estimated standard error equals the deviation over 40 random gradients, within 35 %."""
    spec = cpd.Reduce("e4m3", order="ring", aps=True)
    found = [Contributions(normal_ranks(8, seed, 2000)).measure(spec, 4) for seed in range(40)]
    spreads = [one.spread for one in found]
    deviation = np.std([one.total.relative_rms for one in found], ddof=1)
    assert np.mean(spreads) == pytest.approx(deviation, rel=0.35)


def test_no_spread_of_few_values() -> None:
    spec = cpd.Reduce("e4m3", order="ring")
    for count, draws in ((63, 0), (64, 16)):
        best = cpd.study.recommend(normal_ranks(4, 0, count), spec, [2, 4], MACHINE)
        assert best.draws == draws
        assert all((choice.spread is None) == (draws == 0) for choice in best.choices)


def test_small_layers_fill_all_blocks() -> None:
    """The standard error of a round-off is estimated from 16 blocks of values, and small layers
    share these blocks. Forty layers with two values each give every block five values.
    """
    rng = np.random.default_rng(0)
    ranks = [[rng.random(2, np.float32) + 1 for _ in range(40)] for _ in range(2)]
    one = Contributions(ranks).measure(cpd.Reduce("e4m3"), 2)
    references = [reference for _, reference in one.draws]
    assert min(references) > 5 * 4
    assert max(references) < 5 * 16


@pytest.mark.parametrize("seed", range(25))
def test_nothing_beats_what_is_named(seed: int) -> None:
    rng = np.random.default_rng(seed)
    world = int(rng.choice([1, 2, 6, 16, 24]))
    kind = rng.integers(3)
    ranks = []
    for _ in range(world):
        x = rng.standard_normal(int(10 ** (1 + seed % 3))).astype(np.float32)
        scales = (1.0, np.exp2(rng.integers(-12, 8)), 0.0)
        ranks.append([np.abs(x) if kind == 0 else x * np.float32(scales[kind])])
    sizes = sorted({int(k) for k in rng.integers(1, world + 1, 4)} | {world})
    name = str(rng.choice(["e4m3", "e5m2", "e3m0", "bf16", "fp32"]))
    spec = cpd.Reduce(name, order="ring", aps=bool(rng.integers(2)))
    alpha, beta = rng.choice([0.0, 1e-9, 1e-6, 1e-5]), rng.choice([1e5, 1e6, 1e9, 1e30])
    machine = cpd.study.Machine(alpha=float(alpha), beta=float(beta))
    best = cpd.study.recommend(ranks, spec, sizes, machine)
    everything = best.choices + best.owner
    for named in (best.most_exact, best.fastest, best.balanced):
        assert named in everything
        mine = (named.non_finite, named.error)
        for other in everything:
            theirs = (other.non_finite, other.error)
            assert not (theirs <= mine and other.seconds < named.seconds)
            assert not (theirs < mine and other.seconds <= named.seconds)
    assert best.fastest.seconds == min(choice.seconds for choice in everything)


def test_measurements_are_those_of_roundoff() -> None:
    ranks = positive_ranks(6)
    given = Contributions(ranks)
    for average in (False, True, False):
        spec = cpd.Reduce("e4m3", order="tree", aps=True, average=average)
        one = given.measure(spec, 3)
        assert one.total == cpd.study.roundoff(ranks, spec, [3])[3]
        assert one.layers == cpd.study.roundoff(ranks, spec, [3], per_tensor=True)[3]
        errors, references = np.array(one.draws).sum(axis=0)
        assert math.sqrt(errors / references) == pytest.approx(one.total.relative_rms, rel=1e-12)


@pytest.mark.parametrize("spec", [3, None])
def test_what_is_no_spec_is_a_type_error_everywhere(spec: Any) -> None:
    ranks = positive_ranks(2)
    calls = {
        "roundoff": lambda: cpd.study.roundoff(ranks, spec, [1]),
        "recommend": lambda: cpd.study.recommend(ranks, spec, [1], MACHINE),
        "cost": lambda: cpd.study.cost(spec, 2, [3]),
        "simulate_all_reduce": lambda: cpd.simulate_all_reduce(ranks, spec),
    }

    def over(call: Any) -> Any:
        with cpd.comm.local(2) as group:
            return group.run(call)

    for name in ("all_reduce", "reduce", "reduce_scatter"):
        calls[name] = lambda name=name: over(lambda c: getattr(c, name)(ranks[c.rank], spec))
    calls["roundoff over ranks"] = lambda: over(
        lambda c: cpd.study.roundoff(ranks[c.rank], spec, [1], comm=c)
    )
    calls["recommend over ranks"] = lambda: over(
        lambda c: cpd.study.recommend(ranks[c.rank], spec, [1], MACHINE, comm=c)
    )
    for call in calls.values():
        with pytest.raises(TypeError, match=r"must be .*a cpd\.\w+.*got "):
            call()


def test_recommend_takes_what_any_exchange_says() -> None:
    ranks = positive_ranks(6)
    wanted = cpd.study.recommend(ranks, cpd.Reduce("e4m3", order="ring"), [2, 6], MACHINE)
    for spec in (hierarchical(3), hierarchical(None)):
        assert cpd.study.recommend(ranks, spec, [2, 6], MACHINE) == wanted


def test_recommend_refuses() -> None:
    ranks = positive_ranks(4)
    with pytest.raises(ValueError, match="must have order=ring, got order=sequential"):
        cpd.study.recommend(ranks, cpd.Reduce("e4m3"), [2], MACHINE)
    with pytest.raises(ValueError, match="at least one group size"):
        cpd.study.recommend(ranks, hierarchical(None), [], MACHINE)
    with pytest.raises(ValueError, match="1…4"):
        cpd.study.recommend(ranks, hierarchical(None), [5], MACHINE)
