# SPDX-License-Identifier: Apache-2.0
"""Compares TernGrad with rational arithmetic (compress_oracle_levels)."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import compress_oracle_levels as oracle
import cpd
from arrays import layer
from reduce_oracle import elementwise_integer


@pytest.mark.parametrize("clip", [None, 2.5, 1 / 3])
@pytest.mark.parametrize("share", ["on", "off"])
@pytest.mark.parametrize(("random_bits", "n"), [(1, 900), (8, 100), (8, 5000), (24, 900)])
def test_values_are_those_of_rationals(
    clip: float | None, share: str, random_bits: int, n: int
) -> None:
    x = layer(n, random_bits)
    x[3], x[n // 2], x[n // 2 + 1] = math.nan, -math.inf, 30
    random = np.random.default_rng(3).integers(0, 2**random_bits, x.size)
    name = f"terngrad clip={clip or 'none'} share={share}"
    scale = oracle.scaler(x, clip)
    units = oracle.terngrad(x, random, scale, random_bits=random_bits)
    got = cpd.Codec(name, random_bits=random_bits).encode(x, random=random).values
    expected = units * np.float32(scale)
    np.testing.assert_array_equal(got, expected)


def test_another_scaler_may_be_given() -> None:
    x = layer(300, 9)
    scale = 3 * oracle.scaler(x, None)
    random = np.random.default_rng(4).integers(0, 2**24, x.size)
    packet = cpd.Codec("terngrad clip=none").encode(x, random=random, scale=scale)
    expected = oracle.terngrad(x, random, float(np.float32(scale))) * np.float32(scale)
    np.testing.assert_array_equal(packet.values, expected)


@pytest.mark.parametrize("whole", [1, 9, 25])
@pytest.mark.parametrize("clip", [None, 2.5])
def test_buckets_have_scalers_of_their_own(clip: float | None, whole: int) -> None:
    x = layer(300, 10)
    x[3] = math.nan
    random = np.random.default_rng(5).integers(0, 2**24, x.size)
    codec = cpd.Codec(f"terngrad clip={clip or 'none'} share=off bucket=64 whole={whole}")
    got = codec.encode(x, random=random).values
    for part in oracle.buckets_of_runs(x.size, 64, whole):
        scale = oracle.scaler(x[part], clip)
        expected = oracle.terngrad(x[part], random[part], scale) * np.float32(scale)
        np.testing.assert_array_equal(got[part], expected)


@pytest.mark.parametrize("x", [[], [0.0, -0.0], [math.nan, math.inf], [0.7, 0.7, 0.7], [1e-45]])
def test_small_layers(x: list[float]) -> None:
    values = np.array(x, np.float32)
    got = cpd.Codec("terngrad").encode(values).values
    # A layer with one value or equal values has deviation 0, so every value becomes 0. NaN and
    # infinities become NaN.
    np.testing.assert_array_equal(got, np.where(np.isfinite(values), np.float32(0), np.nan))


def test_bits_a_value() -> None:
    assert cpd.Codec("terngrad").encode(layer(4096, 1)).bits_a_value == 2
    packet = cpd.Codec("terngrad coding=trits").encode(layer(1 << 16, 1))
    assert 1.6 <= packet.bits_a_value < 1.602


@pytest.mark.parametrize("n", [0, 1, 4, 5, 6, 4096, 4097, 10001])
@pytest.mark.parametrize("name", ["terngrad clip=none", "terngrad", "terngrad share=off"])
def test_trits_are_the_same_values_in_fewer_bytes(name: str, n: int) -> None:
    x = layer(n, n)
    packets = [cpd.Codec(f"{name}{c}").encode(x, stream=3) for c in ("", " coding=trits")]
    np.testing.assert_array_equal(packets[0].values, packets[1].values)
    levels = np.sign(packets[0].values)
    whole = b"".join(oracle.trits(levels[i : i + 4096]) for i in range(0, n, 4096))
    norms = 4 * -(-n // 4096) if "off" in name else 0
    assert packets[1].bytes == len(whole) + norms
    if not norms:
        assert whole in packets[1].data


def test_trits_have_no_nan() -> None:
    x = layer(100, 2)
    x[17] = math.nan
    codec = cpd.Codec("terngrad coding=trits")
    with pytest.raises(ValueError, match="NaN or infinities, for which coding=trits has no code"):
        codec.encode(x)
    ranks = [[layer(100, 3)], [x]]
    [expected] = cpd.simulate_all_reduce(ranks, cpd.Reduce("terngrad"))
    assert np.flatnonzero(np.isnan(expected)).tolist() == [17]
    spec = cpd.Reduce(codec)
    [virtual] = cpd.simulate_all_reduce(ranks, spec)
    with cpd.comm.local(2) as group:
        real = group.run(lambda comm: comm.all_reduce(ranks[comm.rank], spec, step=0))
    for got in (virtual, real[0][0], real[1][0]):
        np.testing.assert_array_equal(got, expected)


def summed(ranks: list[np.ndarray], clip: float, clips_own: bool, seed: int) -> np.ndarray:
    """Computes the expected all-reduce. All ranks scale by the largest of their scalers. Their
    ternary levels are added, and the sum is multiplied by that scaler."""
    scale = max(oracle.scaler(x, clip) for x in ranks)
    total = np.zeros(ranks[0].size, np.float32)
    for rank, x in enumerate(ranks):
        stream = 1 << 60 | rank  # stream of layer 0's contributions at step 0
        random = [elementwise_integer(i, 24, seed, stream) for i in range(x.size)]
        own = oracle.clipped(x, oracle.scaler(x, clip)) if clips_own else x
        total += oracle.terngrad(own, np.array(random), scale)
    return total * np.float32(scale)


@pytest.mark.parametrize("exchange", ["owner", "gather"])
@pytest.mark.parametrize("coding", ["fixed", "trits"])
@pytest.mark.parametrize("clip_at", ["scaler", "workers"])
def test_what_clips(clip_at: str, coding: str, exchange: str) -> None:
    """Ranks have different standard deviations. With clip_at=workers, each rank clips by its own
    deviation, as the paper's text says. With clip_at=scaler it does not."""
    ranks = [layer(400, 60 + rank) * np.float32(1 + rank) for rank in range(3)]
    wire = f"terngrad clip=1.5 clip_at={clip_at} coding={coding}"
    spec = cpd.Reduce(wire, exchange=exchange)
    [got] = cpd.simulate_all_reduce([[x] for x in ranks], spec, seed=11)
    np.testing.assert_array_equal(got, summed(ranks, 1.5, clip_at == "workers", 11))
    other = summed(ranks, 1.5, clip_at != "workers", 11)
    assert (got != other).any()
    with cpd.comm.local(3, seed=11) as group:
        for [mine] in group.run(lambda comm: comm.all_reduce([ranks[comm.rank]], spec, step=0)):
            np.testing.assert_array_equal(mine, got)


def test_workers_clip_as_they_share_nothing() -> None:
    """A single rank clips at its own limit, both with clip_at=workers and by default. So the values
    are equal."""
    x = layer(500, 8)
    packets = [cpd.Codec(f"terngrad{c}").encode(x) for c in ("", " clip_at=workers")]
    np.testing.assert_array_equal(packets[0].values, packets[1].values)
    for wrong, why in (("clip=none", "they do not clip"), ("share=off", "by its own already")):
        with pytest.raises(ValueError, match=why):
            cpd.Codec(f"terngrad clip_at=workers {wrong}")


def test_layers_that_never_change_are_named() -> None:
    ranks = [[np.float32([0.5]), layer(9, 1), np.ones((1, 1), np.float32)] for _ in range(2)]
    for wire in ("terngrad", "feedback terngrad share=off", "top_k 0.1 terngrad"):
        layers = r"tensor 4 of shape \(1,\) and of tensors 6" if "top_k" not in wire else "5, 6"
        with pytest.warns(cpd.PrecisionWarning, match=f"(?s){layers}.*never changes.*exempt="):
            cpd.simulate_all_reduce(ranks, cpd.Reduce(wire), numbers=[4, 5, 6])
    with cpd.comm.local(1) as group, pytest.warns(cpd.PrecisionWarning, match="min_size=2"):
        group.run(lambda comm: comm.all_reduce(ranks[0], cpd.Reduce("terngrad")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cpd.simulate_all_reduce(ranks, cpd.Reduce("terngrad clip=none"))
        schedule = cpd.Schedule(cpd.Reduce("terngrad"), min_size=2)
        cpd.simulate_all_reduce(ranks, schedule, names=["a", "b", "c"], step=0)


def test_runs_are_of_buckets() -> None:
    assert cpd.Codec("terngrad bucket=100 whole=9").text.endswith("bucket=99")
    with pytest.raises(ValueError, match="whole=9 is of buckets: give bucket=N with it"):
        cpd.Codec("terngrad whole=9")
