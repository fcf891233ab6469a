# SPDX-License-Identifier: Apache-2.0
"""Compares top-k with error feedback with its definition: the values sent and the errors fed back,
over calls, ranks and inner codecs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import compress_oracle_sparse as by_rule
import cpd
import oracle
import reduce_oracle
from arrays import assert_same_values


def layer(n: int, seed: int, kind: str = "normal") -> np.ndarray:
    draw = np.random.default_rng(seed)
    x = draw.standard_normal(n).astype(np.float32)
    if kind == "equal":
        x = np.copysign(np.float32(1.5), x)
    elif kind == "few":
        x = np.rint(x)
    elif kind == "zero":
        x = np.zeros(n, np.float32)
    elif kind == "bad":
        x[::7] = np.nan
        x[3::11] = -np.inf
    return x


@pytest.mark.parametrize("kind", ["normal", "equal", "few", "zero", "bad"])
@pytest.mark.parametrize("n", [0, 1, 2, 10, 333])
@pytest.mark.parametrize("fraction", ["0.001", "0.01", "0.1", "0.5", "1"])
def test_residuals_over_calls(fraction, n, kind):
    codec = cpd.Codec(f"top_k {fraction}")
    states = cpd.compress.States()
    residual = [0.0] * n
    for call in range(3):
        x = layer(n, call, kind)
        sent = by_rule.top_k(x.tolist(), residual, fraction)
        assert_same_values(sent.values, codec.encode(x, states=states).values)
        residual = sent.residual


@pytest.mark.parametrize(
    ("inner", "rule"),
    [
        ("int4 bucket=8", functools.partial(by_rule.integers, most=7, bucket=8)),
        ("quantized int8 16 scale=fp32", functools.partial(by_rule.integers, most=127, bucket=16)),
    ],
)
def test_values_by_another_codec(inner, rule):
    codec = cpd.Codec(f"top_k 0.2 {inner}")
    states = cpd.compress.States()
    residual = [0.0] * 200
    for call in range(4):
        x = layer(200, 20 + call)
        sent = by_rule.top_k(x.tolist(), residual, "0.2", rule)
        assert_same_values(sent.values, codec.encode(x, states=states).values)
        residual = sent.residual


def test_without_feedback():
    codec = cpd.Codec("top_k 0.1 feedback=off")
    states = cpd.compress.States()
    for call in range(2):
        x = layer(100, call)
        assert_same_values(
            by_rule.top_k(x.tolist(), [0.0] * 100, "0.1").values,
            codec.encode(x, states=states).values,
        )


def test_what_is_fed_back_is_sent_at_last():
    """After enough calls with zeros, error feedback has sent everything: the sum of the sent values
    equals the sum of the inputs. Inputs are integers, so additions are exact."""
    codec = cpd.Codec("top_k 0.05")
    states = cpd.compress.States()
    draw = np.random.default_rng(0)
    given = sent = np.zeros(200)
    for _ in range(30):
        x = draw.integers(-8, 9, 200).astype(np.float32)
        given = given + x
        sent = sent + codec.encode(x, states=states).values
    zeros = np.zeros(200, np.float32)
    for _ in range(20):
        sent = sent + codec.encode(zeros, states=states).values
    np.testing.assert_array_equal(given, sent)


@pytest.mark.parametrize("exchange", ["owner", "gather"])
def test_sums_over_ranks(exchange):
    spec = cpd.Reduce("top_k 0.1", exchange=exchange)
    states = cpd.compress.States()
    residuals = [[0.0] * 150 for _ in range(3)]
    for call in range(3):
        per_rank = [layer(150, 10 * call + rank) for rank in range(3)]
        total = np.zeros(150, np.float32)
        for rank, x in enumerate(per_rank):
            sent = by_rule.top_k(x.tolist(), residuals[rank], "0.1")
            residuals[rank] = sent.residual
            total += np.asarray(sent.values, np.float32)
        [got] = cpd.simulate_all_reduce([[x] for x in per_rank], spec, states=states)
        assert_same_values(total, got)


FORMATS = {
    "e4m3": oracle.Spec(4, 3),
    "e5m2": oracle.Spec(5, 2),
    "e2m1": oracle.Spec(2, 1, encoding="finite"),
}


def patterns(x) -> list[int]:
    return np.asarray(x, np.float32).view(np.uint32).tolist()


def floats(bits) -> np.ndarray:
    return np.array(bits, np.uint32).view(np.float32)


class ByRule:
    """Computes an all-reduce with APS over sparsified layers by the definition. Each rank adds its
    residual and sends the largest values. The shift follows from these values, which are multiplied
    by 2^shift and cast. The residual holds the rest, without the factor 2^shift."""

    def __init__(self, fraction, spec, world, n):
        self.fraction, self.spec = fraction, spec
        self.residuals = [[0.0] * n for _ in range(world)]

    def __call__(self, ranks):
        kept, sums = [], []
        for x, residual in zip(ranks, self.residuals, strict=True):
            v = [by_rule.add(a, r) for a, r in zip(x.tolist(), residual, strict=True)]
            places = set(by_rule.largest(v, by_rule.count(self.fraction, len(v))))
            kept.append(patterns([a if i in places else 0.0 for i, a in enumerate(v)]))
            sums.append((v, places))
        shift = reduce_oracle.layer_shift(kept, self.spec)
        for rank, (v, places) in enumerate(sums):
            cast = reduce_oracle._to_wire(rank, kept[rank], self.spec, shift, 0)
            sent = [
                by_rule.binary32(by_rule.Fraction(float(a)) / oracle.power_of_two(shift))
                for a in floats(cast)
            ]
            self.residuals[rank] = [
                by_rule.add(a, -sent[i]) if i in places else a for i, a in enumerate(v)
            ]
        return floats(reduce_oracle.all_reduce(kept, self.spec))


@pytest.mark.parametrize("exchange", ["owner", "gather"])
@pytest.mark.parametrize("aps", [True, "paper"])
@pytest.mark.parametrize("sums", ["fp32", "e4m3"])
@pytest.mark.parametrize("name", FORMATS)
def test_aps_over_kept_values(name, sums, aps, exchange):
    """Tests APS on the values that top-k sends. Magnitudes change from call to call, so each call
    has another shift."""
    wide = {"fp32": reduce_oracle.FP32, "e4m3": FORMATS["e4m3"]}[sums]
    rule = ByRule("0.2", reduce_oracle.Reduce(FORMATS[name], wide, wide, aps=aps), 3, 60)
    spec = cpd.Reduce(
        f"top_k 0.2 {name}", accumulator=sums, result=sums, aps=aps, exchange=exchange
    )
    states, own = cpd.compress.States(), [cpd.compress.States() for _ in range(3)]
    shifts = set()
    for call, size in enumerate([1e-6, 3.0, 2.0**-20, 1e5]):
        ranks = [layer(60, 10 * call + rank) * np.float32(size) for rank in range(3)]
        expected = rule(ranks)
        [got], [report] = cpd.simulate_all_reduce(
            [[x] for x in ranks], spec, states=states, report=True
        )
        assert_same_values(expected, got)
        shifts.add(report.shift)
        with cpd.comm.local(3) as group:
            made = group.run(
                lambda comm, ranks=ranks: comm.all_reduce(
                    [ranks[comm.rank]], spec, states=own[comm.rank], report=True, step=0
                )
            )
        for [mine], told in made:
            assert_same_values(got, mine)
            assert told.tensors == [report]
    assert len(shifts) == 4
    kept = [np.frombuffer(one["values"], "<f4") for one in states.state_dict()["layers"]]
    for residual, held in zip(rule.residuals, kept, strict=True):
        assert_same_values(residual, held)


def test_aps_without_feedback_and_without_values():
    spec = cpd.Reduce("top_k 0.1 feedback=off e4m3", aps=True)
    x = layer(100, 3) * np.float32(1e-5)
    largest = by_rule.top_k(x.tolist(), [0.0] * 100, "0.1").values
    cast = cpd.Reduce("e4m3", accumulator="fp32", aps=True, result="fp32")
    assert_same_values(
        cpd.simulate_all_reduce([[np.float32(largest)]], cast)[0],
        cpd.simulate_all_reduce([[x]], spec)[0],
    )
    for empty in (np.zeros(0, np.float32), np.zeros(7, np.float32)):
        assert_same_values(empty, cpd.simulate_all_reduce([[empty], [empty]], spec)[0])


@pytest.mark.parametrize("inner", ["mxfp8", "int4", "qsgd bits=4", "terngrad", "sparse e4m3"])
def test_aps_is_refused_beside_scales(inner):
    with pytest.raises(ValueError, match="has scales of its own"):
        cpd.Reduce(f"top_k 0.1 {inner}", aps=True)
    with pytest.raises(ValueError, match="hands partial sums on"):
        cpd.Reduce("top_k 0.1 e4m3", order="ring", exchange="ring")


def test_a_scaler_of_kept_values_is_shared():
    """TernGrad after top-k: the scaler follows from the values that a rank sends, with residuals.
    Virtual and real ranks give equal sums."""
    spec = cpd.Reduce("top_k 0.3 terngrad clip=none")
    states, own = cpd.compress.States(), [cpd.compress.States() for _ in range(2)]
    for call in range(3):
        ranks = [layer(90, 70 + 2 * call + rank) for rank in range(2)]
        [got] = cpd.simulate_all_reduce([[x] for x in ranks], spec, seed=3, states=states)
        with cpd.comm.local(2, seed=3) as group:
            made = group.run(
                lambda comm, ranks=ranks: comm.all_reduce(
                    [ranks[comm.rank]], spec, states=own[comm.rank], step=0
                )
            )
        for [mine] in made:
            assert_same_values(got, mine)


def test_bits_a_value():
    packet = cpd.Codec("top_k 0.01").encode(layer(1 << 20, 1))
    assert 0.01 * (32 + 8.0) < packet.bits_a_value < 0.01 * (32 + 8.3)
    assert_same_values(packet.values, cpd.compress.Packet.from_bytes(packet.data).values)
