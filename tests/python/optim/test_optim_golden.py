# SPDX-License-Identifier: Apache-2.0
"""Compares optimizers to golden vectors of QPyTorch and torchao, bit for bit."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cpd
import scaled_cases

torch = pytest.importorskip("torch")

from tensors import same  # noqa: E402

GOLDEN = scaled_cases.DATA / "delayed_optim.npz"

pytestmark = pytest.mark.skipif(not GOLDEN.exists(), reason=scaled_cases.REASON)


@functools.cache
def golden():
    return dict(np.load(GOLDEN))


def bf16(name):
    return torch.from_numpy(golden()[name].view(np.int16).copy()).view(torch.bfloat16)


def steps(make, dtype):
    """Trains with the golden file's parameter and gradients. Yields parameter and state by step."""
    p = torch.nn.Parameter(bf16("optim.p0_bf16").to(dtype))
    optimizer = make([p])
    for gradient in bf16("optim.grads_bf16").to(dtype):
        p.grad = gradient.clone()
        optimizer.step()
        yield p.detach(), optimizer.state[p]


QPYTORCH = {
    "w_bf16": {},
    "w_bf16_g_e5m2_s256": {
        "gradient": "e5m2 overflow=saturate",
        "gradient_scale": 256,
        "unscale": False,
    },
    "w_bf16_acc_fp16_m_bf16": {"master": "fp16", "momentum": "bf16"},
}


@pytest.mark.parametrize("name", QPYTORCH)
def test_qpytorch(name):
    def make(params):
        sgd = torch.optim.SGD(params, lr=2**-7, momentum=0.5)
        return cpd.optim.LowPrecision(sgd, weight="bf16", **QPYTORCH[name])

    wanted = [torch.from_numpy(golden()[f"qpytorch.{name}.{of}"]) for of in ("param", "momentum")]
    for step, (p, state) in enumerate(steps(make, torch.float32)):
        assert same([p, state["momentum_buffer"]], [w[step] for w in wanted]), step
    assert step == 23


def test_torchao_stochastic_bf16():
    """Stochastic rounding with the integer 2^16 - 1 - R equals torchao's rounding with R.

    torchao rounds a value to bf16 away from zero if R is below the value's low 16 bits.
    torchao also cuts the low bits of a NaN, so NaNs are compared as NaN alone.
    """
    x = torch.from_numpy(golden()["torchao_bf16_sr.in"])
    given = torch.from_numpy(golden()["torchao_bf16_sr.r16"].astype(np.int32))
    wanted = bf16("torchao_bf16_sr.out")
    made = cpd.cast(x, "bf16 stochastic random_bits=16", random=2**16 - 1 - given)
    numbers = ~x.isnan()
    assert int(numbers.sum()) > 1500
    assert same(made[numbers].bfloat16(), wanted[numbers])
    assert made[~numbers].isnan().all()
