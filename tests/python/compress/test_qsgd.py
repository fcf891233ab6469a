# SPDX-License-Identifier: Apache-2.0
"""Compares QSGD with rational arithmetic (compress_oracle_levels): values, norms and random
integers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import compress_oracle_levels as oracle
import cpd
from arrays import layer
from rationals import Fraction

HUGE = float(np.finfo(np.float32).max)


CASES = [
    (bits, bucket, norm, levels)
    for (bits, bucket), norm, levels in itertools.product(
        [(2, 128), (4, 512), (8, 100), (16, 8192), (5, None)], ["max", "2"], ["signed", "intervals"]
    )
]


@pytest.mark.parametrize(("bits", "bucket", "norm", "levels"), CASES)
@pytest.mark.parametrize("random_bits", [1, 8, 24])
def test_values_are_those_of_rationals(
    bits: int, bucket: int | None, norm: str, levels: str, random_bits: int
) -> None:
    x = layer(700, 100 * bits + random_bits)
    x[650] = {2: np.nan, 4: np.inf}.get(bits, x[650])
    if bucket is None and random_bits == 1:
        x[650] = -np.inf
    random = np.random.default_rng(bits).integers(0, 2**random_bits, x.size)
    name = f"qsgd bits={bits} bucket={bucket or 'tensor'} norm={norm} levels={levels}"
    codec = cpd.Codec(name, random_bits=random_bits)
    expected = oracle.qsgd(
        x,
        random,
        bits=bits,
        bucket=bucket,
        norm_kind=norm,
        levels=levels,
        random_bits=random_bits,
    )
    got = codec.encode(x, random=random).values
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("s", [1, 2, 5, 7, 8, 16, 22, 100, 255, 256, 1000, 32767])
@pytest.mark.parametrize("norm", ["max", "2"])
@pytest.mark.parametrize("random_bits", [8, 24])
def test_any_number_of_levels(s: int, norm: str, random_bits: int) -> None:
    """The number of levels, the paper's s, may be any integer. In every coding, a code has the
    fewest bits that hold 2 s + 1 levels."""
    x = layer(700, s + random_bits)
    random = np.random.default_rng(s).integers(0, 2**random_bits, x.size)
    expected = oracle.qsgd(x, random, s=s, bucket=100, norm_kind=norm, random_bits=random_bits)
    name = f"qsgd s={s} bucket=100 norm={norm}"
    for coding in ("fixed", "elias-dense", "elias-sparse", "smallest"):
        codec = cpd.Codec(f"{name} coding={coding}", random_bits=random_bits)
        packet = codec.encode(x, random=random)
        np.testing.assert_array_equal(packet.values.view(np.uint32), expected.view(np.uint32))
        if coding == "fixed":
            assert packet.bytes == 7 * 4 + -(-700 * oracle.code_bits(s) // 8)


@pytest.mark.parametrize("norm", ["max", "2"])
@pytest.mark.parametrize("bucket", [64, None])
def test_one_bit_is_the_sign_of_a_draw(norm: str, bucket: int | None) -> None:
    """With one bit, each value becomes -norm or +norm, the ends of a single interval: P(+norm) = (1
    + v / norm) / 2."""
    x = layer(700, 1)
    x[70] = np.nan if bucket else x[70]
    x[128:192] = 0 if bucket else x[128:192]
    random = np.random.default_rng(1).integers(0, 2**24, x.size)
    expected = oracle.qsgd(x, random, bits=1, bucket=bucket, norm_kind=norm, levels="intervals")
    codec = cpd.Codec(f"qsgd bits=1 bucket={bucket or 'tensor'} norm={norm} levels=intervals")
    packet = codec.encode(x, random=random)
    np.testing.assert_array_equal(packet.values.view(np.uint32), expected.view(np.uint32))
    assert packet.bytes == 4 * (-(-700 // bucket) if bucket else 1) + 88


@pytest.mark.parametrize(
    ("options", "steps", "bits", "levels"),
    [
        ("s=1", 1, 2, "signed"),
        ("s=16", 16, 6, "signed"),
        ("s=7", 7, 4, "signed"),
        ("s=300", 300, 10, "signed"),
        ("bits=1 levels=intervals", 1, 1, "intervals"),
        ("bits=4", 7, 4, "signed"),
    ],
)
def test_bytes(options: str, steps: int, bits: int, levels: str) -> None:
    x = layer(333, steps)
    random = np.random.default_rng(2).integers(0, 2**24, x.size)
    held = cpd.Codec(f"qsgd bucket=50 {options}")._held
    given = cpd._core.CodecLayerCall(random=random.astype(np.uint32))
    expected = oracle.qsgd_bytes(x, random, steps=steps, bits=bits, bucket=50, levels=levels)
    assert bytes(held.encode(x, given)) == expected


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((40, 7), 0), ((40, 7), -2), ((40, 7), 1), ((6, 5, 3, 3), 0), ((6, 5, 3, 3), 1), ((70,), 3)],
)
@pytest.mark.parametrize("options", ["", "norm=2 s=16", "bits=1 levels=intervals"])
def test_buckets_of_columns(shape: tuple[int, ...], axis: int, options: str) -> None:
    """With `axis=`, a bucket has consecutive values of one column. Each value takes the random
    integer of its own index."""
    x = layer(math.prod(shape), 7).reshape(shape)
    random = np.random.default_rng(7).integers(0, 2**24, shape)
    places = oracle.by_columns(x, axis if len(shape) > 1 else 0)
    flat = cpd.Codec(f"qsgd bucket=16 {options}")
    wanted = np.empty(x.size, np.float32)
    expected = flat.encode(x.reshape(-1)[places], random=random.reshape(-1)[places])
    wanted[places] = expected.values
    codec = cpd.Codec(f"qsgd bucket=16 axis={axis} {options}")
    assert codec._by_rows
    packet = codec.encode(x, random=random)
    np.testing.assert_array_equal(packet.values.reshape(-1).view(np.uint32), wanted.view(np.uint32))
    assert packet.bytes == expected.bytes
    again = codec.decode(packet.data, shape)
    np.testing.assert_array_equal(again.view(np.uint32), packet.values.view(np.uint32))


@pytest.mark.parametrize(("bucket", "whole"), [(64, 9), (64, 25), (9, 9), (100, 1), (49, 25)])
@pytest.mark.parametrize("norm", ["max", "2"])
def test_buckets_of_whole_runs(bucket: int, whole: int, norm: str) -> None:
    """With `whole=N`, no bucket splits a group of N values, such as the weights of a 3 x 3 kernel.
    Each bucket is encoded by itself."""
    x = layer(9 * 57 + 4, whole).reshape(1, -1, 1)
    random = np.random.default_rng(8).integers(0, 2**24, x.size)
    parts = oracle.buckets_of_runs(x.size, bucket, whole)
    assert all(part.start % whole == 0 for part in parts)
    assert parts[0].stop <= bucket < parts[0].stop + whole
    flat = x.reshape(-1)
    expected = [oracle.qsgd(flat[p], random[p], bucket=None, norm_kind=norm) for p in parts]
    codec = cpd.Codec(f"qsgd bucket={bucket} whole={whole} norm={norm}")
    packet = codec.encode(x, random=random.reshape(x.shape))
    np.testing.assert_array_equal(packet.values.reshape(-1), np.concatenate(expected))
    assert codec._bucket == parts[0].stop
    assert packet.bytes == 4 * len(parts) + -(-x.size // 2)


@pytest.mark.parametrize("norm", ["max", "2"])
def test_extreme_buckets(norm: str) -> None:
    parts = [
        [0.0, -0.0, 0.0, 0.0],
        [1e-45, -1e-45, 3e-45, 0],
        [HUGE, -HUGE, 1, 0],
        [1e-38, 2e-39, -7e-40, 1e-45],
        [math.nan, 1, 2, 3],
        [1, 2, 3, -math.inf],
        [7, 7, 7, 7],
        [3.0, 0, 0, -0.0],
    ]
    x = np.array(parts, np.float32).reshape(-1)
    random = np.arange(x.size) * 7 % 256
    codec = cpd.Codec(f"qsgd bits=4 bucket=4 norm={norm}", random_bits=8)
    expected = oracle.qsgd(x, random, bucket=4, norm_kind=norm, random_bits=8)
    got = codec.encode(x, random=random).values
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize(("options", "steps"), [("bits=4", 7), ("s=16", 16), ("s=5", 5)])
def test_every_random_integer_once_is_without_bias(options: str, steps: int) -> None:
    x = layer(64, 5)
    codec = cpd.Codec(f"qsgd {options} bucket=64", random_bits=8)
    scale = oracle.norm(x, "max")
    levels = np.zeros(x.size)
    for r in range(256):
        values = codec.encode(x, random=np.full(x.size, r)).values
        levels += np.rint(values.astype(np.float64) * steps / scale)
    for value, total in zip(x.tolist(), levels.tolist(), strict=True):
        place = abs(Fraction(value)) * steps / Fraction(scale)
        assert abs(total) == math.floor(place * 256)


def test_every_sign_once_is_without_bias() -> None:
    x = layer(64, 5)
    codec = cpd.Codec("qsgd bits=1 bucket=64 levels=intervals", random_bits=8)
    scale = Fraction(oracle.norm(x, "max"))
    above = sum((codec.encode(x, random=np.full(64, r)).values > 0).astype(int) for r in range(256))
    for value, count in zip(x.tolist(), above.tolist(), strict=True):
        assert count == math.floor((1 + Fraction(value) / scale) / 2 * 256)


def test_bits_a_value() -> None:
    x = layer(1 << 16, 6)
    assert cpd.Codec("qsgd bits=4 bucket=512").encode(x).bits_a_value == 4.0625
    assert cpd.Codec("qsgd bits=2 bucket=128").encode(x).bits_a_value == 2.25
    assert cpd.Codec("qsgd s=16 bucket=512").encode(x).bits_a_value == 6.0625
    one = cpd.Codec("qsgd bits=1 bucket=512 levels=intervals")
    assert one.encode(x).bits_a_value == 1.0625


def test_texts_of_levels() -> None:
    assert cpd.Codec("qsgd norm=2 axis=-1").text == "qsgd bits=4 bucket=512 axis=-1 norm=2"
    whole = cpd.Codec("qsgd whole=9")
    assert whole.text == "qsgd bits=4 bucket=504"  # 56 kernels of 3 × 3
    assert whole == cpd.Codec("qsgd bucket=504 whole=9")
    assert cpd.Codec("qsgd bucket=tensor whole=1").text == "qsgd bits=4 bucket=tensor"
    name = {"s=7": "s=7", "bits=4": "bits=4", "": "bits=4", "norm=2 s=16": "s=16"}
    for given, shown in name.items():
        made = cpd.Codec(f"qsgd {given}").text
        assert made == f"qsgd {shown} bucket=512" + (" norm=2" if "norm" in given else "")
        assert cpd.Codec(made).text == made


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("s=0", "s must be an integer 1…32767, got '0'"),
        ("s=32768", "s must be an integer 1…32767, got '32768'"),
        ("s=7 bits=4", "qsgd takes bits or s, got 'qsgd s=7 bits=4'"),
        ("s=7 levels=intervals", "s=7 is of signed levels: give bits with levels=intervals"),
        ("bits=1", "bits must be 2…16, or 1 with levels=intervals, got 1"),
        ("bits=0 levels=intervals", "bits must be an integer 1…16, got '0'"),
        ("bits=17 levels=intervals", "bits must be an integer 1…16, got '17'"),
        ("s=128 spacing=optimal", "spacing=optimal is for at most 127 signed levels, got 128"),
        ("axis=0 bucket=tensor", "axis=0 is of buckets: give bucket=N, got bucket=tensor"),
        ("whole=513", "whole must be an integer 1…512, got '513'"),
        ("bucket=64 whole=0", "whole must be an integer 1…64, got '0'"),
        ("bucket=tensor whole=9", "whole=9 is of buckets: give bucket=N with it"),
        ("axis=64", "axis must be an integer -64…63, got '64'"),
        ("bits=9 spacing=optimal", "spacing=optimal is for at most 127 signed levels, got 255"),
    ],
)
def test_refused_levels(options: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpd.Codec(f"qsgd {options}")
