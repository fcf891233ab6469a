# SPDX-License-Identifier: Apache-2.0
"""Compares 1-bit SGD and error feedback with rational arithmetic (compress_oracle_one_bit): bytes,
values, residuals over several calls, axes, and compression ratios."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import compress_oracle_one_bit as oracle
import cpd
from compress_oracle_levels import buckets_of_runs, by_columns
from cpd import compress

Values = npt.NDArray[np.float32]


def layer(n: int, seed: int) -> Values:
    """Returns values of many magnitudes, including subnormals and zeros of both signs."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=n) * 2.0 ** generator.integers(-6, 3, n)
    x[generator.random(n) < 0.1] = 0
    x[generator.random(n) < 0.05] = -0.0
    x[generator.random(n) < 0.1] *= 1e-42
    return x.astype(np.float32)


def same(got: Values, expected: list[float]) -> None:
    wanted = np.array(expected, np.float32)
    np.testing.assert_array_equal(got.reshape(-1).view(np.uint32), wanted.view(np.uint32))


def kept(states: compress.States) -> Values:
    (one,) = states.state_dict()["layers"]
    return np.frombuffer(one["values"], np.float32)


@pytest.mark.parametrize("bucket", [1, 3, 7, 8, 13, 64, 65, 100, 512, 1000])
def test_calls_are_those_of_rationals(bucket: int) -> None:
    codec = cpd.Codec(f"one_bit bucket={bucket}")
    states = compress.States()
    residual = [0.0] * 450
    for call, shift in enumerate((0, 0, 3)):
        x = layer(450, 10 * bucket + call)
        if call == 1:
            x[330] = [np.inf, -np.inf, -np.nan][bucket % 3]
        expected = oracle.Layer(x.tolist(), residual, bucket, shift)
        packet = codec.encode(x, states=states, shift=shift)
        same(packet.values * np.float32(2.0**shift), expected.values)
        assert packet.bytes == len(expected.block(0, 450, words=False))
        same(kept(states), expected.next)
        residual = expected.next


@pytest.mark.parametrize("words", [False, True])
@pytest.mark.parametrize("bucket", [3, 64, 65, 100, 5000])
def test_bytes_of_pieces(bucket: int, words: bool) -> None:
    held = cpd.Codec("one_bit" if words else f"one_bit bucket={bucket}")._held
    if words:
        held = held.for_rows(bucket)
    x = layer(9001, bucket)
    expected = oracle.Layer(x.tolist(), [0.0] * 9001, bucket)
    for begin, n in ((0, 9001), (0, 1), (64, 64), (37, 300), (999, 7000), (9000, 1)):
        data = bytes(held.encode(x, begin=begin, n=n))
        blocks = range(begin, begin + n, held.block)
        lengths = [min(held.block, begin + n - block) for block in blocks]
        assert data == b"".join(
            expected.block(*block, words=words) for block in zip(blocks, lengths, strict=True)
        )
        same(held.decode(data, n, before=begin % bucket), expected.values[begin : begin + n])


@pytest.mark.parametrize(("bucket", "whole"), [(64, 9), (64, 25), (10, 9)])
def test_buckets_of_whole_runs(bucket: int, whole: int) -> None:
    x = layer(450, whole)
    codec = cpd.Codec(f"one_bit bucket={bucket} whole={whole}")
    assert codec.text == f"one_bit bucket={codec._bucket}"
    expected: list[float] = []
    for part in buckets_of_runs(x.size, bucket, whole):
        values = x[part].tolist()
        expected += oracle.Layer(values, [0.0] * len(values), len(values)).values
    same(codec.encode(x).values, expected)


def test_runs_are_of_buckets() -> None:
    with pytest.raises(ValueError, match="whole=9 is of buckets: give bucket=N with it"):
        cpd.Codec("one_bit whole=9")
    with pytest.raises(ValueError, match="whole must be an integer 1…8, got '9'"):
        cpd.Codec("one_bit bucket=8 whole=9")


def test_means_are_rounded_once() -> None:
    """A mean is rounded once, even if it is next to a tie. Here the sum is three times the midpoint
    between 1 and the next number, plus a tiny term."""
    codec = cpd.Codec("one_bit bucket=3")
    for tail in (0.0, 2.0**-49, -(2.0**-49), 2.0**-51, -(2.0**-51), 2.0**-52):
        x = np.array([2, 1 + 3 * 2.0**-23, tail], np.float32)
        same(codec.encode(x).values, oracle.Layer(x.tolist(), [0.0] * 3, 3).values)


@pytest.mark.parametrize(
    ("name", "shape", "axis"),
    [
        ("one_bit", (40, 7), 0),
        ("one_bit axis=1", (40, 7), 1),
        ("one_bit", (4, 5, 3, 3), 3),
        ("one_bit axis=1", (4, 5, 3, 3), 1),
        ("one_bit", (70,), 0),
    ],
)
def test_columns(name: str, shape: tuple[int, ...], axis: int) -> None:
    """Each column has its own means. In a Linear weight, a column has the outputs of one input; in
    a convolution, the values along the kernel's last dimension; in a vector, all values."""
    x = layer(int(np.prod(shape)), 5).reshape(shape)
    packet = cpd.Codec(name).encode(x)
    columns = np.moveaxis(x, axis, -1).reshape(-1, shape[axis])
    got = np.moveaxis(packet.values, axis, -1).reshape(-1, shape[axis])
    for column, values in zip(columns, got, strict=True):
        one = oracle.Layer(column.tolist(), [0.0] * len(column), len(column))
        same(np.ascontiguousarray(values), one.values)
    assert 8 * packet.bytes == len(columns) * oracle.payload_bits(shape[axis])


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((40, 7), 0), ((40, 7), -1), ((4, 5, 3, 3), 0), ((4, 5, 3, 3), 2), ((70,), 1)],
)
@pytest.mark.parametrize("bucket", [3, 16, 64])
def test_buckets_of_columns(shape: tuple[int, ...], axis: int, bucket: int) -> None:
    """Tests 1bitSGD*, which reshapes matrices into buckets. Each bucket has consecutive values of
    one column, and residuals carry over between calls."""
    codec = cpd.Codec(f"one_bit bucket={bucket} axis={axis}")
    states = compress.States()
    residual = [0.0] * int(np.prod(shape))
    for call in range(3):
        x = layer(len(residual), 20 * bucket + call).reshape(shape)
        places = by_columns(x, axis if len(shape) > 1 else 0)
        one = oracle.Layer([float(x.reshape(-1)[place]) for place in places], residual, bucket)
        wanted = [0.0] * len(residual)
        for place, value in zip(places, one.values, strict=True):
            wanted[place] = value
        packet = codec.encode(x, states=states)
        same(packet.values, wanted)
        assert packet.bytes == len(one.block(0, len(residual), words=False))
        same(kept(states), one.next)
        residual = one.next


@pytest.mark.parametrize(("column", "ratio"), [(3, 1.0), (64, 16.0), (512, 28.4)])
def test_the_papers_ratio(column: int, ratio: float) -> None:
    packet = cpd.Codec("one_bit").encode(np.zeros((column, 33), np.float32))
    assert 32 / packet.bits_a_value == pytest.approx(ratio, abs=0.05)


@pytest.mark.parametrize("inner", ["e4m3", "int4 32 scale=fp32", "int4", "qsgd bits=2 bucket=128"])
def test_feedback(inner: str) -> None:
    plain = cpd.Codec(inner)
    codec = cpd.Codec(f"feedback {inner}")
    states = compress.States()
    calls = 0

    def rounded(v: list[float]) -> list[float]:
        values = plain.encode(np.array(v, np.float32), seed=3, stream=calls).values
        return [float(value) for value in values]

    expected = oracle.Feedback(rounded, 300)
    for calls in range(4):
        x = layer(300, calls)
        x[17] = np.nan if calls == 2 and "int4" not in inner else x[17]
        packet = codec.encode(x, states=states, seed=3, stream=calls)
        same(packet.values, expected.call(x.tolist()))
        same(kept(states), expected.residual)
