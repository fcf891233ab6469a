# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd.study.cost` predicts the bytes that random all-reduces really move.

The all-reduces have every kind of format, codec, accumulator, order and exchange, odd sizes, small
chunks, and NaN.
"""

from __future__ import annotations

import math
import random
import warnings
from typing import Any

import numpy as np
import pytest

import cpd

FORMATS = [
    "e4m3", "e5m2", "e4m3fn", "e4m3fnuz", "e3m0", "e2m1", "e1m2", "e2m3", "e5m7", "bf16", "fp16",
    "fp32", "e8m0", "ue4m3", "binary8p3", "mxfp8", "mxfp4", "nvfp4", "mxint8", "e3m2:finite",
]  # fmt: skip
CODECS = [
    "qsgd", "qsgd bits=2 bucket=128", "qsgd bits=3 bucket=tensor",
    "qsgd norm=2 coding=elias-sparse", "qsgd bits=5 bucket=33 coding=smallest", "terngrad",
    "terngrad share=off", "terngrad bucket=50",
    "qsgd s=16 bucket=33 axis=0", "qsgd bits=1 levels=intervals", "one_bit bucket=64 axis=-1",
    "one_bit", "one_bit axis=0", "one_bit bucket=64", "one_bit bucket=5", "top_k 0.1", "top_k 1",
    "top_k 0.3 qsgd bucket=8", "top_k 0.2 e4m3", "top_k 0.5 e3m0 feedback=off", "int8_rows",
    "int8_rows row=7", "fp8_rows", "int4", "int4 bucket=6", "quantized mxfp8", "quantized mxfp4",
    "feedback int4", "feedback fp8_rows", "feedback e3m0", "feedback e4m3", "uniform",
    "uniform bits=5 coding=fixed", "sparse", "sparse e4m3", "feedback mxfp4",
    "blockwise nvfp4", "blockwise uniform", "feedback blockwise nvfp4",
]  # fmt: skip
ACCUMULATORS = [
    None, None, "fp32", "e6m9", "e4m3", "e3m0", "bf16", "e6m9 kahan", "fp32 kahan",
    "e5m7 chunked chunk=3", "fp32 pairwise", "e3m0 kahan",
]  # fmt: skip


def random_spec(rng: random.Random, world: int) -> cpd.Reduce:
    """Returns a random all-reduce of `world` ranks whose options are compatible."""
    while True:
        compressed = rng.random() < 0.5
        given: dict[str, Any] = {
            "format": rng.choice(CODECS if compressed else FORMATS),
            "accumulator": rng.choice(ACCUMULATORS),
            "order": rng.choice(["sequential", "ring", "ring", "tree"]),
            "exchange": rng.choice(["owner", "gather", "ring", "hierarchical"]),
            "group_size": rng.choice([None, *range(1, world + 1)]),
            "aps": rng.choice([False, False, True, "paper"]),
            "loss_scale": rng.choice([1.0, 1.0, 0.25, 4096.0]),
            "average": rng.random() < 0.3,
            "result": rng.choice([None, None, "e5m2", "bf16", "e3m0", "fp32"]),
            "rounding": rng.choice(["nearest_even", "nearest_even", "stochastic", "toward_zero"]),
        }
        try:
            return cpd.Reduce(given.pop("format"), **given)
        except ValueError:
            continue


def random_shape(rng: random.Random) -> tuple[int, ...]:
    return tuple(
        rng.choice([0, 1, 2, 3, 5, 7, 8, 13, 16, 31, 33, 64, 100])
        if rng.random() < 0.95
        else rng.randrange(300)
        for _ in range(rng.choice([1, 1, 2, 2, 3]))
    )


def random_layers(
    rng: random.Random, world: int, shapes: list[tuple[int, ...]]
) -> list[list[np.ndarray]]:
    """Returns the random layers that each rank contributes."""
    draw = np.random.default_rng(rng.randrange(2**32))
    scale = 2.0 ** rng.choice([-20, -3, 0, 1, 2, 4, 10, 40, 94])
    most = 2.0**95
    ranks = [
        [np.clip(draw.normal(size=s) * scale, -most, most).astype(np.float32) for s in shapes]
        for _ in range(world)
    ]
    layer = rng.choice(ranks[-1])
    if rng.random() < 0.1 and layer.size:
        layer.reshape(-1)[rng.randrange(layer.size)] = rng.choice([math.nan, math.inf])
    return ranks


def largest_of(ranks: list[list[np.ndarray]]) -> list[float]:
    """Returns the largest magnitude of each layer over all ranks; NaN if a value is NaN."""
    return [float(np.abs(np.stack(same)).max(initial=0)) for same in zip(*ranks, strict=True)]


def moved_by(comm: cpd.comm.Communicator, layers: list[np.ndarray], spec: cpd.Reduce) -> Any:
    """Returns the traffic that an all-reduce reported for this rank."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return comm.all_reduce(layers, spec, step=0, report=True)[1].traffic


def differences(seed: int, count: int) -> tuple[list[Any], int]:
    """Runs `count` random all-reduces. Returns those whose bytes `cpd.study.cost` predicts wrongly.

    Also returns the number of all-reduces whose prediction is marked as exact.
    """
    rng = random.Random(seed)
    world, chunk = rng.choice([1, 2, 3, 4, 5, 7]), rng.choice([256, 512, 1 << 20])
    wrong: list[Any] = []
    exact = 0
    with cpd.comm.local(world, chunk=chunk) as group:
        for _ in range(count):
            spec = random_spec(rng, world)
            shapes = [random_shape(rng) for _ in range(rng.choice([1, 2, 3]))]
            ranks = random_layers(rng, world, shapes)
            moved = group.run(lambda comm, r=ranks, s=spec: moved_by(comm, r[comm.rank], s))
            largest = largest_of(ranks)
            for rank, traffic in enumerate(moved):
                known = cpd.study.cost(spec, world, shapes, rank, chunk=chunk, largest=largest)
                unknown = cpd.study.cost(spec, world, shapes, rank, chunk=chunk)
                exact += known.exact and rank == 0
                finite = all(map(math.isfinite, largest))
                if not (holds(known, traffic) and (not finite or holds(unknown, traffic))):
                    wrong.append((spec, world, chunk, shapes, rank, largest, traffic, known))
    return wrong, exact


def holds(cost: cpd.study.Cost, traffic: Any) -> bool:
    told = (cost.bytes_sent, cost.bytes_received)
    moved = (traffic.bytes_sent, traffic.bytes_received)
    if cost.exact:
        return told == moved and cost.steps >= traffic.steps
    return told[0] >= moved[0] and told[1] >= moved[1] and cost.steps >= traffic.steps


@pytest.mark.parametrize("seed", range(10))
def test_bytes_are_those_that_move(seed: int) -> None:
    wrong, exact = differences(seed, 40)
    assert not wrong, wrong[0]
    assert 20 < exact < 40


@pytest.mark.exhaustive
def test_bytes_of_ten_thousand() -> None:
    for seed in range(100, 200):
        wrong, _ = differences(seed, 100)
        assert not wrong, wrong[0]


def test_shapes_count_where_rows_do() -> None:
    spec = cpd.Reduce("int8_rows", exchange="gather")
    assert cpd.study.cost(spec, 2, [1000]).bytes_sent == 1000 + 4
    assert cpd.study.cost(spec, 2, [(100, 10)]).bytes_sent == 1000 + 400
    columns = cpd.Reduce("one_bit", exchange="gather")
    assert cpd.study.cost(columns, 2, [(64, 64, 3, 3)]).bytes_sent == 64 * 64 * 3 * (8 + 4)


def test_what_lacks_nan_goes_by_the_largest() -> None:
    spec = cpd.Reduce("e3m0", exchange="gather")
    costs = [cpd.study.cost(spec, 4, [10, 10], largest=x) for x in (1.0, [1.0, 100.0], math.nan)]
    assert [(one.bytes_sent, one.exact) for one in costs] == [(30, True), (240, True), (240, True)]
    scaled = cpd.Reduce("e3m0", exchange="gather", aps=True)
    assert cpd.study.cost(scaled, 4, [10, 10]) == costs[0]


def test_measured_where_sizes_vary() -> None:
    ranks = [[np.arange(1000, dtype=np.float32) % (rank + 2)] for rank in range(3)]
    spec = cpd.Reduce("uniform bits=5", exchange="gather")
    most = cpd.study.cost(spec, 3, [1000])
    measured = [cpd.study.cost(spec, 3, [1000], rank, ranks=ranks) for rank in range(3)]
    assert not most.exact
    assert {one.steps for one in measured} == {most.steps}
    assert len({one.bytes_sent for one in measured}) == 3
    assert all(one.exact and 0 < one.bytes_sent < most.bytes_sent for one in measured)
    sent, received = (
        sum(getattr(one, name) for one in measured) for name in ("bytes_sent", "bytes_received")
    )
    assert sent == received


@pytest.mark.parametrize("wrong", [[[np.zeros(4, np.float32)]], [[np.zeros(3, np.float32)]] * 2])
def test_measured_ranks_are_of_the_shapes(wrong) -> None:
    with pytest.raises(ValueError, match=r"ranks must be 2 ranks with tensors of \[4\] values"):
        cpd.study.cost("e4m3", 2, [4], ranks=wrong)


@pytest.mark.parametrize("per_rank", ["two ranks", {0: []}, {"a": 1}, 3])
def test_ranks_are_a_sequence(per_rank) -> None:
    with pytest.raises(TypeError, match=r"^ranks must be a sequence of ranks"):
        cpd.study.roundoff(per_rank, "e4m3", [1])


def test_sums_that_overflow_a_result_without_nan() -> None:
    """If the result format has no code for NaN, sums of top-k values that may be NaN are sent in
    binary32."""
    layers = [[np.full(9, 2.0**40 * sign, np.float32)] for sign in (1, -1, 1)]
    spec = cpd.Reduce("top_k 0.5 e4m3", result="e3m0")
    with cpd.comm.local(3) as group:
        (first, *_) = group.run(lambda comm: comm.all_reduce(layers[comm.rank], spec))
    np.testing.assert_array_equal(first[0], cpd.simulate_all_reduce(layers, spec)[0])
    assert np.isnan(first[0]).any()


@pytest.mark.parametrize(
    ("sizes", "largest", "error", "told"),
    [
        ([(2, -1)], None, ValueError, "a size in shapes must be at least 0"),
        ([4], -1.0, ValueError, "at least 0"),
        ([4], [1.0, 2.0], ValueError, "1 tensors but 2"),
        (["ab"], None, TypeError, "size"),
    ],
)
def test_nonsense(sizes: Any, largest: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        cpd.study.cost(cpd.Reduce("e4m3"), 2, sizes, largest=largest)


def test_owners_of_small_layers_take_turns():
    """Ranks take turns as owners of small layers.

    Each of 1,000 layers is one bucket, which one rank sums. So each of 64 ranks owns at most 16
    layers.
    """
    spec = cpd.Reduce("qsgd bits=4 bucket=512")
    sent = [cpd.study.cost(spec, 64, [257] * 1000, rank=rank).bytes_sent for rank in range(64)]
    bucket = 4 + math.ceil(257 * 4 / 8)  # a norm and codes
    for rank, found in enumerate(sent):
        owned = 16 if rank < 1000 % 64 else 15
        contributions, sums = (1000 - owned) * bucket, 63 * owned * bucket
        assert found == pytest.approx(contributions + sums, rel=0.01), rank
    assert max(sent) < cpd.study.cost(cpd.Reduce("fp32"), 64, [257] * 1000).bytes_sent / 7


def test_what_owners_send_is_counted_by_real_ranks():
    rng = np.random.default_rng(0)
    ranks = [[rng.standard_normal(5).astype("f") for _ in range(9)] for _ in range(4)]
    for spec in (
        cpd.Reduce("qsgd bits=4 bucket=8"),
        cpd.Reduce("e4m3", order="tree"),
        cpd.Reduce("e4m3", order="ring"),
    ):
        with cpd.comm.local(4) as group:
            moved = group.run(
                lambda comm, spec=spec: comm.all_reduce(ranks[comm.rank], spec, report=True)[1]
            )
        for rank, report in enumerate(moved):
            cost = cpd.study.cost(spec, 4, [5] * 9, rank=rank)
            assert report.traffic.bytes_sent == cost.bytes_sent
            assert report.traffic.bytes_received == cost.bytes_received
