# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of codecs' and optimizers' arguments, weight decay, and random streams."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
from cpd.optim import LowPrecision  # noqa: E402


def parameter(values, gradient):
    made = torch.nn.Parameter(torch.tensor(values, dtype=torch.float32))
    made.grad = torch.tensor(gradient, dtype=torch.float32)
    return made


def test_weight_decay_shrinks_weights():
    """Weight decay gives p - lr · decay · p = 1 - 0.5 · 0.5 · 1, computed by hand."""
    p = parameter([1.0, -1.0], [0.0, 0.0])
    inner = torch.optim.SGD([p], 0.5, weight_decay=0.5)
    LowPrecision(inner, "bf16", update="kahan").step()
    assert p.tolist() == [0.75, -0.75]


def test_each_state_draws_from_a_stream_of_its_own():
    """Each tensor that a step rounds has its own random stream.

    The first parameter's state tensors have the streams 3, 4, …, in the order of the states' sorted
    names.
    """
    n = 512
    gradient = [1 + 2**-7] * n
    p = parameter([0.0] * n, gradient)
    inner = torch.optim.Adam([p], lr=0.0, betas=(0.5, 0.5))
    formats = {"momentum": "e4m3 rounding=stochastic", "second_moment": "e4m3 rounding=stochastic"}
    made = LowPrecision(inner, **formats, seed=7)
    made.step()
    g = np.float32(gradient)
    state = made.state[p]
    names = sorted(name for name in state if name.startswith("exp") or name == "step")
    for name, exact in (("exp_avg", g / 2), ("exp_avg_sq", g * g / 2)):
        stream = 3 + names.index(name)
        wanted = cpd.cast(exact, "e4m3 stochastic", seed=7, stream=stream)
        assert np.array_equal(state[name].numpy(), wanted), name


def test_random_integers_of_a_codec_have_xs_shape():
    x = np.ones((2, 3), np.float32)
    by = cpd.Codec("qsgd bits=4")
    by.encode(x, random=np.zeros((2, 3), np.uint32))
    for shape in ((3, 2), (6,)):
        with pytest.raises(ValueError, match=r"random must have x's shape, \(2, 3\)"):
            by.encode(x, random=np.zeros(shape, np.uint32))


def test_states_without_their_keys():
    told = "state_dict must have the keys scale, steps; it has no 'scale'"
    with pytest.raises(ValueError, match=told):
        cpd.optim.LossScaler().load_state_dict({})
