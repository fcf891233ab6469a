# SPDX-License-Identifier: Apache-2.0
"""Tests the counts and errors that describe the loss by a cast, against their definitions in
NumPy."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cpd.nn.losses import Judged, Measured, judge, measure  # noqa: E402
from cpd.numeric.cast import as_cast  # noqa: E402
from tensors import normal, wide  # noqa: E402


def element_max(element):
    return float(ml_dtypes.finfo(element).max)


def by_definition(x, scale, element):
    """Returns, by definition, the counts and errors of a cast: x / scale is rounded with saturation
    to the ml_dtypes type `element`, and multiplied by the scale."""
    x, scale = x.astype(np.float64), np.broadcast_to(scale, x.shape).astype(np.float64)
    most = element_max(element)
    q = np.clip(x / scale, -most, most).astype(np.float32).astype(element).astype(np.float64)
    q *= scale
    used = scale[x != 0]
    return {
        "underflow": 100 * (np.count_nonzero(x) - np.count_nonzero(q)) / x.size,
        "overflow": 100 * np.sum(np.abs(x) > most * scale * (1 + 2**-22)) / x.size,
        "saturation": 100 * np.sum(np.abs(q) >= most * scale * (1 - 2**-22)) / x.size,
        "mse": np.mean((x - q) ** 2),
        "sqnr": 20 * math.log10(np.linalg.norm(x) / np.linalg.norm(x - q)),
        "scale_min": used.min(),
        "scale_max": used.max(),
    }


def mx_scales(x, element_exponent):
    """Returns the scales by OCP's floor rule, in blocks of 32 along the last axis."""
    blocks = np.abs(x).reshape(x.shape[0], -1, 32).max(-1)
    exponents = np.floor(np.log2(np.where(blocks > 0, blocks, 2.0**-127))) - element_exponent
    return np.repeat(np.exp2(np.maximum(exponents, -127)), 32, axis=1)


DEFINED = {
    "e4m3fn overflow=saturate": (lambda x: 1.0, ml_dtypes.float8_e4m3fn),
    "e5m2 overflow=saturate": (lambda x: 1.0, ml_dtypes.float8_e5m2),
    "mxfp8": (lambda x: mx_scales(x, 8), ml_dtypes.float8_e4m3fn),
    "mxfp4": (lambda x: mx_scales(x, 2), ml_dtypes.float4_e2m1fn),
    "fp8-tensor": (
        lambda x: np.float32(np.abs(x).max() / np.float64(448)),
        ml_dtypes.float8_e4m3fn,
    ),
}


@pytest.mark.parametrize("text", DEFINED)
def test_losses_are_those_of_their_definitions(text):
    x = wide(24, 64)
    layer = nn.Linear(64, 3)
    how = cpd.Recipe("native", activation=text)
    with cpd.observe(layer, what_if={"it": how}) as watch:
        layer(x)
    (row,) = [r for r in watch if r.role == "activation" and r.gemm == "forward"]
    scale, element = DEFINED[text]
    wanted = by_definition(x.numpy(), scale(x.numpy()), element)
    unscaled = text.startswith("e")
    for name, value in wanted.items():
        if unscaled and name.startswith("scale"):
            assert getattr(row, name) is None
        else:
            assert getattr(row, name) == pytest.approx(value, rel=1e-6, abs=1e-6), name
    assert wanted["underflow"] > 0
    assert (row.recipe, row.cast, row.count) == ("it", as_cast(text).text, x.numel())


def test_ranges_are_those_of_their_definitions():
    x = wide(7, 33)
    x[0, :3] = torch.tensor([math.nan, math.inf, -math.inf])
    layer = nn.Linear(33, 2)
    with cpd.observe(layer) as watch:
        layer(x)
    row = watch.rows[0]
    known = x[x.isfinite()].numpy()
    magnitudes = np.abs(known)
    assert (row.layer, row.role, row.recipe, row.gemm) == ("", "activation", "", "")
    assert row.nonfinite == 3
    assert row.zeros == pytest.approx(100 * np.sum(known == 0) / x.numel())
    assert (row.min, row.max, row.amax) == (known.min(), known.max(), magnitudes.max())
    assert row.smallest == magnitudes[magnitudes > 0].min()
    assert row.dynamic_range == pytest.approx(math.log2(row.amax / row.smallest))
    assert row.sqnr is None


def losses(x, text, axis=-1, multiplier=None):
    spec = as_cast(text)
    return Judged.total([judge(measure(x).x, spec, axis, multiplier).tolist()])


def test_overflow_that_is_no_number_is_an_infinite_error():
    found = losses(torch.tensor([1.0, 500.0]), "e4m3fn")
    assert (found.overflows, found.errors, found.saturated) == (1, math.inf, 0)
    assert losses(torch.tensor([1.0, 1e9]), "e5m2").saturated == 1  # an infinity


def test_a_scale_that_was_rounded_is_no_overflow():
    for seed in range(20):
        found = losses(normal(64, 64, seed=seed), "fp8-row")
        assert found.overflows == 0
        assert 64 <= found.saturated < 200


def test_delayed_scales_overflow_as_transformer_engine_counts():
    x, multiplier = wide(16, 16), torch.tensor(3.0)
    text = "e4m3fn block=tensor scale=fp32 arithmetic=te history=4"
    found = losses(x, text, multiplier=multiplier)
    inverse = float(multiplier.reciprocal())
    assert found.overflows == int((x.abs() > 448 * inverse).sum()) > 0
    assert found.scale_min == found.scale_max == inverse
    q = cpd.cast(x * 3, "e4m3fn overflow=saturate") * multiplier.reciprocal()
    assert found.errors == pytest.approx(float((q - x).double().square().sum()), rel=1e-6)
    assert found.underflows == int(x.count_nonzero() - q.count_nonzero())


def test_factors_and_transforms():
    x = wide(8, 32)
    found = losses(x, "mxfp4 factor=0.75")
    assert found.overflows == 0 < losses(x, "mxfp4").overflows
    turned = losses(normal(4, 20), "nvfp4 transform=hadamard16")
    assert turned.values == 4 * 32  # with zeros behind
    assert turned.overflows + turned.saturated > 0


def test_two_levels_of_scales():
    x = wide(4, 64)
    _, (blocks, over) = cpd.encode(x, "nvfp4")
    scales = cpd.decode(blocks, "e4m3fn", (4, 4)) * cpd.decode(over, "fp32", ())
    used = scales[x.reshape(4, 4, 16).abs().amax(-1) > 0]
    found = losses(x, "nvfp4")
    assert found.scale_max == float(used.max())
    assert found.scale_min == float(used[used > 0].min())
    rows = losses(x, "nvfp4 outer=row")
    assert rows.errors <= found.errors
    assert rows.scale_max > 0


def test_parts_make_one():
    x, y = wide(8, 64), wide(8, 64, seed=9)
    spec = as_cast("mxfp8")
    apart = [judge(each, spec, -1).tolist() for each in (x, y)]
    at_once = judge(torch.cat([x, y]), spec, -1).tolist()
    assert Judged.total(apart) == pytest.approx(Judged.total([at_once]))
    ranges = [measure(each).measured.tolist() for each in (x, y)]
    both = Measured.total([measure(torch.cat([x, y])).measured.tolist()])
    assert Measured.total(ranges) == pytest.approx(both)
