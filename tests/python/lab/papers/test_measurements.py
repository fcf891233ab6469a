# SPDX-License-Identifier: Apache-2.0
"""Compares measurements of gradients and weights with results derived by hand."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

from cpd_lab.papers import ternary
from cpd_lab.papers.weights import entropy, weights

TINY = {"workers": 2, "epochs": 2, "seed": 0, "lr": 0.5, "decay": 0.9, "l1": 0.0, "batch": 10}


def test_entropy_of_bins():
    assert entropy(np.float32([0, 0, 1, 1])) == 1.0
    assert entropy(np.float32([3, 3, 3])) == 0.0
    assert entropy(np.linspace(0, 1, 1600, dtype=np.float32)) == pytest.approx(4.0, abs=1e-3)


def test_bounds():
    equal = np.float32([1, -1])  # 1 * 2 / 2
    tail = np.float32([2, 1, 1])  # 2 * 4 / 6
    assert ternary._bound([equal]) == 1.0
    assert ternary._bound([tail]) == pytest.approx(4 / 3)
    assert ternary._bound([equal, tail]) == (2 + 8) / (2 + 6)
    found = ternary._bounds([equal, tail])
    assert found["global"] == pytest.approx(2 * 6 / 8)
    assert found["layer-wise"] == 10 / 8


def test_clipping_is_at_two_and_a_half_deviations():
    g = np.zeros(1000, np.float32)
    g[0] = 100
    limit = 2.5 * g.std()
    assert ternary.clipped(g)[0] == pytest.approx(limit, rel=1e-6)
    assert (ternary.clipped(g)[1:] == 0).all()


def test_weights_in_many_bits_are_those_of_fp32():
    plain = weights("fp32", images=200, **TINY)
    fine = weights("uniform bits=24 coding=fixed", images=200, **TINY)
    assert plain["accuracy"] == pytest.approx(fine["accuracy"], abs=0.01)
    assert set(fine["bits"]["layer1.weight"]) == {24.0}
    assert plain["bits"]["layer1.weight"] == [None, None]
    assert plain["accuracy"][-1] > 0.5
    coarse = weights("uniform bits=1 coding=fixed", images=200, **TINY)
    assert coarse["accuracy"][-1] < plain["accuracy"][-1]
    for name in ("rms", "entropy", "bits_a_value"):
        assert all(len(by_epoch) == 2 for by_epoch in fine[name].values())


def test_bits_by_the_gradient_follow_it():
    found = weights("uniform bits=gradient c0=1 c1=8", images=200, **TINY)
    rms = found["rms"]["layer1.weight"]
    wanted = [round(np.log2(g + 1) + 8) for g in rms]
    assert found["bits"]["layer1.weight"] == pytest.approx(wanted, abs=1)
