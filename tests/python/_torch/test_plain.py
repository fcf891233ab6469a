# SPDX-License-Identifier: Apache-2.0
"""Tests the calls that skip torch's dispatcher to save time: when they do so, and that dispatched
calls have the same results.

Skipping the dispatcher needs torch's private API, which only `cpd._torch.private` uses. Where a
torch lacks the private API, public functions take its place.
"""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import cpd.functional as F  # noqa: E402
from cpd._torch import derivatives, native, private  # noqa: E402
from cpd._torch.private import is_plain  # noqa: E402


class Seen(TorchDispatchMode):
    """Records the names of the operators that torch's dispatcher calls."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(function.name())
        return function(*args, **(kwargs or {}))


class FunctionMode(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Subclass(torch.Tensor):
    pass


X = torch.linspace(-0.5, 0.75, 24).view(4, 6)


@pytest.mark.parametrize(
    "x",
    [
        X,
        torch.nn.Parameter(X),
        X.mT,
        X[0],
        X.double(),
        X.bool(),
        torch.empty(0, 3),
        X.expand(2, 4, 6),
    ],
    ids=["matrix", "parameter", "transposed", "row", "binary64", "bool", "empty", "broadcast"],
)
def test_plain_tensors(x):
    assert is_plain((x, None, "text", 3, True, torch.float32, (1, 2)))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert is_plain((x,))


@pytest.mark.parametrize(
    "make",
    [
        lambda: X.as_subclass(Subclass),
        lambda: torch._neg_view(X),
        lambda: X.to(torch.complex64).conj(),
        lambda: X.to("meta"),
        lambda: X.to_sparse(),
        lambda: FakeTensorMode().from_tensor(X),
    ],
    ids=["subclass", "negated", "conjugate", "meta", "sparse", "fake"],
)
def test_other_tensors(make):
    assert is_plain((X, X))
    assert not is_plain((X, make()))


@pytest.mark.parametrize(
    "context",
    [
        Seen,
        FunctionMode,
        FakeTensorMode,
        torch.inference_mode,
        torch.profiler.profile,
        forward_ad.dual_level,
    ],
)
def test_contexts(context):
    with context():
        assert not is_plain((X,))
    assert is_plain((X,))


def test_transforms_and_tracers():
    seen = []

    def f(x):
        seen.append(is_plain((X,)))
        return x + 1

    torch.vmap(f)(X)
    torch.func.grad(lambda x: f(x).sum())(X)
    torch.jit.trace(f, X, check_trace=False)
    torch.fx.experimental.proxy_tensor.make_fx(f)(X)
    torch.func.functionalize(f)(X)
    assert seen == [False] * 5


# Each function takes two matrices, x and y.
CALLS = {
    "cast": lambda x, y: cpd.cast(x * y, "e4m3 stochastic", seed=3, stream=5),
    "scaled cast": lambda x, y: cpd.cast(x * y, "mxfp8"),
    "fma": lambda x, y: cpd.fma(x, y, x, "bf16"),
    "div": lambda x, y: cpd.div(x, y, "e5m2"),
    "sum": lambda x, y: cpd.sum(x * y, "e4m3 kahan", 0),
    "gemm": lambda x, y: cpd.gemm(x, y.mT, "e4m3"),
    "hadamard": lambda x, y: cpd.hadamard((x * y)[:, :4], "hadamard4"),
    "linear": lambda x, y: F.linear(x, y, y[0, :4], recipe=cpd.Recipe(sums="e4m3 kahan")),
    "linear, cast": lambda x, y: F.linear(x, y, recipe=cpd.Recipe("mxfp8")),
    "linear, one scale": lambda x, y: F.linear(x, y, recipe=cpd.Recipe("te-current")),
    "linear, scales at blocks": lambda x, y: F.linear(x, y, recipe=cpd.Recipe("deepseek-v3")),
    "conv": lambda x, y: F.conv1d(x[None], y[:, :4, None], recipe=cpd.Recipe(sums="e4m3")),
}


def results(call):
    """Returns the result of a call, the gradients of the result's square, and the second gradients
    if the call has any."""
    x, y = X.clone().requires_grad_(), (X.flip(0) + 0.3).requires_grad_()
    z = call(x, y)
    gradients = torch.autograd.grad((z * z).sum(), (x, y), create_graph=True)
    made = [z, *gradients]
    with contextlib.suppress(RuntimeError):  # some calls have no second gradients
        made += torch.autograd.grad(sum((g * g).sum() for g in gradients), (x, y))
    return made


@pytest.mark.parametrize("name", CALLS)
def test_the_dispatcher_gives_the_same_results(name):
    """Each result and gradient has the same bits whether the call skips torch's dispatcher or
    not."""
    direct = results(CALLS[name])
    with Seen() as seen:
        dispatched = results(CALLS[name])
    assert any(n.startswith("cpd::") for n in seen.names)
    assert len(direct) == len(dispatched) >= 3
    for a, b in zip(direct, dispatched, strict=True):
        assert torch.equal(a, b)
    with torch.no_grad():
        assert torch.equal(CALLS[name](X, X.flip(0) + 0.3), direct[0])


@pytest.fixture
def public(monkeypatch):
    """Replaces the shortcuts that use torch's private API by their public fallbacks."""
    for name in ("is_plain", "may_differentiate"):
        monkeypatch.setattr(derivatives, name, private.PUBLIC[name])
    monkeypatch.setattr(native, "autocast_off", private.PUBLIC["autocast_off"])
    for name, entry in derivatives._operators.items():
        if entry.undifferentiated is not None:
            overload = getattr(derivatives.ops, f"{name}_plain").default
            entry = entry._replace(undifferentiated=private.PUBLIC["direct"](overload))
            monkeypatch.setitem(derivatives._operators, name, entry)


@pytest.mark.parametrize("name", CALLS)
def test_public_names_give_the_same_results(name, request):
    x, y = X, X.flip(0) + 0.3

    def everything():
        made = results(CALLS[name])
        with torch.autocast("cpu", torch.bfloat16):
            made += results(CALLS[name])
        made += torch.func.jvp(CALLS[name], (x, y), (y, x))
        made.append(torch.vmap(CALLS[name], randomness="same")(x[None], y[None]))
        return made

    saving = everything()
    request.getfixturevalue("public")
    with Seen() as seen:
        everything()
    assert any(n.startswith("cpd::") for n in seen.names)
    for a, b in zip(saving, everything(), strict=True):
        assert torch.equal(a, b)


def test_public_names_write_into_out(public):
    out = torch.empty_like(X)
    cpd.fma(X, X, X, "e4m3", out=out)
    assert torch.equal(out, cpd.fma(X, X, X, "e4m3"))
    with pytest.raises(ValueError, match="takes no part in autograd"):
        cpd.cast(X.clone().requires_grad_(), "e4m3", out=out)


def test_a_torch_without_a_private_name():
    script = (
        "import torch\n"
        "del torch._C._dispatch_keys\n"
        "import cpd\n"
        "from cpd._torch import private\n"
        "assert private.is_plain is private.PUBLIC['is_plain']\n"
        "assert private.direct is private.PUBLIC['direct']\n"
        "x = torch.full((3,), 1.07, requires_grad=True)\n"
        "y = cpd.cast(x, 'e4m3')\n"
        "y.sum().backward()\n"
        "assert y.tolist() == [1.125] * 3 and x.grad.tolist() == [1] * 3\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


ELSEWHERE = {
    "nn/coverage.py": r"torch\._dynamo",
    "nn/converted/classes.py": r"torch\._dynamo",
    "parallel/ddp.py": r"torch\.(autograd\.Variable\._execution_engine|_C)",
    "optim/rounding.py": r"torch\.distributed\.tensor\._utils",
}
"""Modules besides `cpd._torch.private` that may use private names of torch, with a pattern of these
names."""


def test_one_module_uses_private_names():
    package = pathlib.Path(cpd.__file__).parent
    name = re.compile(r"\b(?:torch(?!\.ops\b)|forward_ad)(?:\.\w+)*\._[a-zA-Z]\w*")
    for path in package.rglob("*.py"):
        where = path.relative_to(package).as_posix()
        found = set(name.findall(path.read_text())) - {"torch.utils._pytree"}
        if where == "_torch/private.py":
            assert found
            continue
        allowed = ELSEWHERE.get(where)
        assert all(allowed and re.match(allowed, one) for one in found), (where, found)


def test_plain_calls_pass_the_dispatcher_by(monkeypatch):
    """A converted layer's forward and backward pass skip the dispatcher. Inside a TorchDispatchMode
    they do not."""

    def refuse(*args):
        raise AssertionError("dispatched")

    layer = torch.nn.Linear(6, 4)
    cpd.convert(layer, "mxfp8", coverage=False)
    for name in ("matmul", "cast_scaled"):
        entry = derivatives._operators[name]._replace(dispatched=refuse)
        monkeypatch.setitem(derivatives._operators, name, entry)
    layer(X).sum().backward()
    with torch.no_grad():
        layer(X)
    with Seen(), pytest.raises(AssertionError, match="dispatched"):
        layer(X)


def test_a_layer_is_seen_by_its_name():
    layer = torch.nn.Linear(6, 4)
    cpd.convert(layer, cpd.Recipe(sums="e4m3"))
    with Seen() as seen:
        layer(X).sum().backward()
    assert "cpd::matmul" in seen.names
    with torch.profiler.profile() as profile:
        layer(X).sum().backward()
    assert "cpd::matmul" in {event.key for event in profile.key_averages()}


def test_below_autograd_nothing_is_recorded():
    """Within an operator of another library that computes its own derivatives, a CPD call records
    nothing for autograd."""
    x = X.clone().requires_grad_()
    with torch._C._AutoDispatchBelowAutograd():
        y = F.linear(x, X, recipe=cpd.Recipe(sums="e4m3"))
    assert not y.requires_grad
    assert F.linear(x, X, recipe=cpd.Recipe(sums="e4m3")).requires_grad


@pytest.mark.parametrize("module", ["cpd._torch.rounding", "cpd.nn.quantizers"])
def test_whichever_module_comes_first(module):
    """In a new process, all operators have their derivatives registered, even if another module of
    CPD is imported first."""
    script = f"import {module}; from cpd._torch import derivatives; print(*derivatives._operators)"
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True)
    assert {"cast", "cast_scaled", "gemm", "matmul", "sum"} <= set(done.stdout.decode().split())
