# SPDX-License-Identifier: Apache-2.0
"""Top-k with error feedback against its rule: which values are kept, what is fed back, over calls,
ranks and inner codecs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import compress_oracle_sparse as by_rule
import cpd


def same(expected, got) -> None:
    expected, got = (np.asarray(v, np.float32).ravel() for v in (expected, got))
    nan = np.isnan(expected)
    np.testing.assert_array_equal(nan, np.isnan(got))
    bits = [v[~nan].view(np.uint32) for v in (expected, got)]
    np.testing.assert_array_equal(*bits)


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
    codec = cpd.compress.codec(f"top_k {fraction}")
    states = cpd.compress.States()
    residual = [0.0] * n
    for call in range(3):
        x = layer(n, call, kind)
        sent = by_rule.top_k(x.tolist(), residual, fraction)
        same(sent.values, codec.encode(x, state=states).values)
        residual = sent.residual


@pytest.mark.parametrize(
    ("inner", "rule"),
    [
        ("int4 bucket=8", functools.partial(by_rule.integers, most=7, bucket=8)),
        ("quantized int8 16 scale=fp32", functools.partial(by_rule.integers, most=127, bucket=16)),
    ],
)
def test_values_by_another_codec(inner, rule):
    codec = cpd.compress.codec(f"top_k 0.2 {inner}")
    states = cpd.compress.States()
    residual = [0.0] * 200
    for call in range(4):
        x = layer(200, 20 + call)
        sent = by_rule.top_k(x.tolist(), residual, "0.2", rule)
        same(sent.values, codec.encode(x, state=states).values)
        residual = sent.residual


def test_without_feedback():
    codec = cpd.compress.codec("top_k 0.1 feedback=off")
    states = cpd.compress.States()
    for call in range(2):
        x = layer(100, call)
        same(
            by_rule.top_k(x.tolist(), [0.0] * 100, "0.1").values,
            codec.encode(x, state=states).values,
        )


def test_what_is_fed_back_is_sent_at_last():
    """Everything that ever came is what was sent and what is left, for values that add exactly."""
    codec = cpd.compress.codec("top_k 0.05")
    states = cpd.compress.States()
    draw = np.random.default_rng(0)
    given = sent = np.zeros(200)
    for _ in range(30):
        x = draw.integers(-8, 9, 200).astype(np.float32)
        given = given + x
        sent = sent + codec.encode(x, state=states).values
    zeros = np.zeros(200, np.float32)
    for _ in range(20):
        sent = sent + codec.encode(zeros, state=states).values
    np.testing.assert_array_equal(given, sent)


@pytest.mark.parametrize("exchange", ["owner", "gather"])
def test_sums_over_ranks(exchange):
    spec = cpd.ReduceSpec(wire="top_k 0.1", exchange=exchange)
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
        same(total, got)


def test_bits_a_value():
    packet = cpd.compress.codec("top_k 0.01").encode(layer(1 << 20, 1))
    assert 0.01 * (32 + 8.0) < packet.bits_a_value < 0.01 * (32 + 8.3)
    same(packet.values, cpd.compress.decode(packet.data))
