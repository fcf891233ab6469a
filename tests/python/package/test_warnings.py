# SPDX-License-Identifier: Apache-2.0
"""Tests that a warning names the program's line that called the package.

The call may go through decorators, torch's hooks and autograd.
"""

from __future__ import annotations

import ast
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import cpd
from cpd.ops import slow

PACKAGE = Path(cpd.__file__).parent
ONE_VALUE = [np.ones(1, np.float32)]
FROZEN = cpd.Reduce("terngrad")
STALLING = cpd.Reduce("e3m0")


def line() -> int:
    """Returns the number of the caller's line."""
    return sys._getframe(1).f_lineno


def simulated():
    return line(), cpd.simulate_all_reduce([ONE_VALUE], FROZEN)


def over_ranks():
    def call(comm):
        return line(), comm.all_reduce(ONE_VALUE, FROZEN)

    with cpd.comm.local(1) as group:
        return group.run(call)[0]


def stalling():
    return line(), cpd.simulate_all_reduce([ONE_VALUE] * 3, STALLING)


def stalling_scattered():
    def call(comm):
        return line(), comm.reduce_scatter(ONE_VALUE, STALLING)

    with cpd.comm.local(3) as group:
        return group.run(call)[0]


def short_rows():
    layer = [np.ones((64, 64, 1, 1), np.float32)]
    spec = cpd.Reduce("one_bit")
    return line(), cpd.simulate_all_reduce([layer], spec)


def slow_product():
    x = np.ones((10, 10), np.float32)
    return line(), cpd.gemm(x, x, "e5m12 kahan")


def slow_layer():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Sequential(torch.nn.Linear(10, 10))
    cpd.convert(layer, cpd.Recipe(sums="e5m12 kahan"), coverage=False)
    return line(), layer(torch.ones(10, 10))


def slow_backward():
    """Runs a backward pass with a slow product. The forward product is too small for a warning."""
    torch = pytest.importorskip("torch")
    x = torch.ones(10, 10, requires_grad=True)
    recipe = cpd.Recipe("fp32", grad_input="e5m12 kahan")
    y = cpd.functional.linear(x, torch.ones(10, 10), recipe=recipe).sum()
    return line(), y.backward()


def uncovered():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.nn.Linear(8, 8)

        def forward(self, x):
            return self.a(x) @ torch.eye(8) @ torch.eye(8)

    model = Model()
    cpd.convert(model, "mxfp8")
    y = model(torch.ones(4, 8)).sum()
    return line(), y.backward()


def unused_momentum():
    torch = pytest.importorskip("torch")
    layer = torch.nn.Linear(2, 2)
    inner = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5, foreach=True)
    return line(), cpd.optim.LowPrecision(inner, momentum="bf16")


CASES = {
    "simulated": (simulated, cpd.PrecisionWarning),
    "over_ranks": (over_ranks, cpd.PrecisionWarning),
    "short_rows": (short_rows, cpd.PrecisionWarning),
    "stalling": (stalling, cpd.PrecisionWarning),
    "stalling_scattered": (stalling_scattered, cpd.PrecisionWarning),
    "slow_product": (slow_product, cpd.PrecisionWarning),
    "slow_layer": (slow_layer, cpd.PrecisionWarning),
    "slow_backward": (slow_backward, cpd.PrecisionWarning),
    "uncovered": (uncovered, UserWarning),
    "unused_momentum": (unused_momentum, UserWarning),
}


@pytest.mark.parametrize("name", CASES)
def test_a_warning_names_the_callers_line(monkeypatch, name):
    monkeypatch.setattr(slow, "_warned", set())
    monkeypatch.setattr(slow, "MANY", 1000)
    call, category = CASES[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        called, _ = call()
    places = {(w.filename, w.lineno) for w in caught if issubclass(w.category, category)}
    assert places == {(__file__, called)}


def test_all_warnings_go_this_way():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "warnings.warn":
                found.append(str(path.relative_to(PACKAGE)))
    assert set(found) == {"numeric/warned.py"}
