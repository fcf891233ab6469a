# SPDX-License-Identifier: Apache-2.0
"""Tests CPD's operations in programs that torch.compile makes: steps that must not recompile, the
inductor backend, dynamic shapes and gradients.

Two more tests show that `import cpd` does not load torch, and that the first call of CPD may lie in
a compiled program.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

from tensors import compiled, same  # noqa: E402

E4M3 = cpd.Format("e4m3")


def step_cast(x, step):
    return cpd.cast(x, cpd.Cast(E4M3, rounding="stochastic"), seed=7, stream=step)


def step_cast_by_name(x, step):
    return cpd.cast(x * 2, "e5m2 stochastic overflow=saturate random_bits=8", seed=step)


def step_arithmetic(x, step):
    y = cpd.fma(x, x[:1], x, "e5m2:nosub stochastic", stream=step)
    return cpd.add(y, cpd.mul(x, y, E4M3), "fp16 stochastic", seed=step)


def step_sum(x, step):
    acc = cpd.Accumulator("e4m3 kahan", rounding="stochastic")
    return cpd.sum(x, acc, axis=-1, stream=step)


def step_codec(x, step):
    codes = cpd.encode(x, cpd.Cast(E4M3, rounding="stochastic"), stream=step)
    return cpd.decode(codes, E4M3, x.shape)


def step_in_place(x, step):
    y = x + 0.5
    part = y[3:17]
    cpd.cast(part, cpd.Cast(E4M3, rounding="stochastic"), stream=step, out=part)
    out = torch.empty_like(y)
    return y, cpd.cast(y, cpd.Cast(E4M3, rounding="stochastic"), stream=step, out=out)


@pytest.mark.few("", 2)
@pytest.mark.parametrize(
    "step",
    [step_cast, step_cast_by_name, step_arithmetic, step_sum, step_codec, step_in_place],
    ids=lambda f: f.__name__,
)
def test_compiled_steps(step):
    """In a compiled program, 20 stochastic steps compile at most twice. Each step gives new bits,
    which are the bits that eager mode gives."""
    x = torch.randn(20, 30, generator=torch.Generator().manual_seed(0))
    for streams in (list(range(20)), [torch.tensor(i) for i in range(20)]):
        run, counter = compiled(step)
        seen = set()
        for stream in streams:
            got, wanted = run(x, stream), step(x, stream)
            for a, b in zip(got, wanted, strict=True):
                assert same(a, b)
            last = got[-1] if isinstance(got, tuple) else got
            seen.add(last.numpy().tobytes())
        assert len(seen) == 20
        assert counter.frame_count <= 2


CONSTRUCTED = {
    "name": lambda: cpd.Format("e4m3"),
    "fields": lambda: cpd.Format(exp=4, man=3, encoding="fn"),
    "pair and bias": lambda: cpd.Format((5, 2), bias=9),
    "name and field": lambda: cpd.Format("e4m3fn:bias=11", man=2),
    "scaled": lambda: cpd.Scaled("mxfp8"),
    "scaled and option": lambda: cpd.Scaled("mxfp8", rule="ceil"),
    "element": lambda: cpd.Scaled("e2m1", block=16, scale="e4m3fn"),
}


@pytest.mark.parametrize("made", CONSTRUCTED)
def test_formats_are_constructed_in_compiled_programs(made):
    def run(x):
        return cpd.cast(x, CONSTRUCTED[made]())

    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0)) * 40
    assert same(torch.compile(run, fullgraph=True, backend="aot_eager")(x), run(x))


def test_compiled_by_inductor():
    x = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    run, counter = compiled(lambda x, step: step_cast(torch.relu(x), step) + 1, "inductor")
    for step in range(20):
        assert same(run(x, step), step_cast(torch.relu(x), step) + 1)
    assert counter.frame_count <= 2


def test_compiled_gradient_and_dynamic_shapes():
    def loss(x, w):
        return cpd.mul(cpd.cast(x, E4M3), w, "e5m2").sum()

    run, counter = compiled(loss, dynamic=True)
    for n in (3, 10, 17):
        x = torch.randn(n, 5, requires_grad=True)
        w = torch.randn(5, requires_grad=True)
        wanted = torch.autograd.grad(loss(x, w), (x, w))
        got = torch.autograd.grad(run(x, w), (x, w))
        assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))
    assert counter.frame_count <= 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: cpd.cast(x, cpd.Cast(E4M3, rounding="nearest")), "nearest"),
        (lambda x: cpd.gemm(x, x.mT, "fp32"), "give dtype="),
    ],
    ids=["cast", "gemm"],
)
def test_compiled_errors_arrive_wrapped(call, message):
    run, _ = compiled(call)
    with pytest.raises(Exception, match=message):
        run(torch.ones(3, 3).half())


PLAIN = {
    "cast": lambda x: cpd.cast(x, E4M3),
    "sum": lambda x: cpd.sum(x, "e4m3 kahan"),
    "gemm": lambda x: cpd.gemm(x, x.mT, "e5m2"),
}
ARGUMENTS = {
    "cast": ("e4m3", None, None, None),
    "sum": (0, "e4m3 kahan", None, None, None),
    "gemm": (torch.ones(4, 3), None, "e5m2 sequential", None, None, torch.float32, False, None),
}


@pytest.mark.parametrize("name", PLAIN)
def test_operators_without_derivatives(name):
    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    operator, plain = (getattr(torch.ops.cpd, n).default for n in (name, f"{name}_plain"))
    torch.library.opcheck(plain, (x, *ARGUMENTS[name]))
    assert same(plain(x, *ARGUMENTS[name]), operator(x, *ARGUMENTS[name]))


@pytest.mark.parametrize("name", PLAIN)
def test_exported_programs_keep_the_public_operators(name):
    class Model(torch.nn.Module):
        def forward(self, x):
            return PLAIN[name](x)

    x = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))
    exported = torch.export.export(Model(), (x,))
    for program in (exported, exported.run_decompositions()):
        called = [str(n.target) for n in program.graph.nodes if str(n.target).startswith("cpd.")]
        assert called == [f"cpd.{name}.default"]
        assert same(program.module()(x), PLAIN[name](x))


# ---- without torch -----------------------------------------------------------------------------


def test_cpd_does_not_import_torch():
    script = (
        "import sys, pathlib, numpy as np, cpd\n"
        "from unittest import mock\n"
        "cpd.cast(np.ones(3, np.float32), 'e4m3')\n"
        "assert 'torch' not in sys.modules\n"
        "import torch\n"
        "with mock.patch.object(pathlib.Path, 'exists', return_value=False):\n"
        "    try: cpd.cast(torch.ones(3), 'e4m3')\n"
        "    except ImportError as error: assert 'built without torch' in str(error)\n"
        "    else: raise AssertionError\n"
        "assert cpd.cast(torch.full((3,), 1.07), 'e4m3').tolist() == [1.125] * 3\n"
        "run = torch.compile(lambda x: cpd.cast(x, 'e4m3'), fullgraph=True, backend='eager')\n"
        "assert run(torch.full((3,), 1.07)).tolist() == [1.125] * 3\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "call",
    [
        "cpd.cast(x, 'e4m3')",
        pytest.param(
            "cpd.functional.linear(x, torch.eye(3), recipe=HOW)", marks=pytest.mark.exhaustive
        ),
    ],
)
def test_first_use_may_be_compiled(call):
    script = (
        "import cpd, torch\n"
        "HOW = cpd.Recipe(sums='e4m3')\n"
        f"run = torch.compile(lambda x: {call}, fullgraph=True, backend='eager')\n"
        "assert run(torch.full((3,), 1.07)).tolist() == [1.125] * 3\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_torch_whose_compiled_backward_passes_report_nothing(monkeypatch):
    """Tests torch 2.11: compiling a converted layer as one full graph raises an error. Without
    `fullgraph`, the layer runs eagerly, and its step counter counts each step."""
    monkeypatch.setattr("cpd.nn.clock._BACKWARD_REPORTS", False)
    layer = torch.nn.Linear(4, 4)
    cpd.convert(layer, "te-delayed", coverage=False)
    torch.compiler.reset()
    whole = torch.compile(lambda x: layer(x), fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="of converted layers needs torch"):
        whole(torch.randn(2, 4))
    torch.compiler.reset()
    compiled = torch.compile(lambda x: layer(x) + 1, backend="eager")
    for _ in range(3):
        compiled(torch.randn(2, 4)).sum().backward()
    assert layer.cpd_clock == 3
