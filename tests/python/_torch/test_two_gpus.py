# SPDX-License-Identifier: Apache-2.0
"""Tests tensors on the second of two GPUs while the first GPU is torch's current device.

Results have the CPU's bits and lie on the second GPU. Operands on different GPUs are refused before
anything is written. Different threads or models may use different GPUs. With one GPU the tests are
skipped.
"""

from __future__ import annotations

import contextlib
import copy
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cpd = pytest.importorskip("cpd")

from torch import nn  # noqa: E402

import forked  # noqa: E402
from by_keywords import by_keywords  # noqa: E402
from cpd.nn import delayed, functional  # noqa: E402
from cpd.optim import LARS, LossScaler, LowPrecision  # noqa: E402
from graph_cases import captured_calls  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("two_gpus")]

FIRST, SECOND = "cuda:0", "cuda:1"
SIDE = 32


@contextlib.contextmanager
def first_is_current() -> Iterator[None]:
    """Makes the first GPU torch's current device. Asserts after the block that it still is."""
    torch.cuda.set_device(0)
    yield
    assert torch.cuda.current_device() == 0


def assert_there(got: Any, wanted: Any, device: str, about: str = "") -> None:
    """Asserts that the result, or each of several results, has the expected bits and is on
    `device`."""
    for one in got if isinstance(got, (tuple, list)) else (got,):
        assert str(one.device) == device, about
    assert same(got, wanted), about


def wrong_calls(device: str, calls: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Returns the names of the calls whose result on `device` differs from `wanted` or is on
    another device."""
    x = normal(SIDE, SIDE).to(device)
    got = {name: call(x) for name, call in calls.items()}
    return [n for n, y in got.items() if str(y.device) != device or not same(y, wanted[n])]


def wanted_of(calls: dict[str, Any]) -> dict[str, Any]:
    return {name: call(normal(SIDE, SIDE)) for name, call in calls.items()}


def calls_on(device: str) -> dict[str, Callable[[Any], Any]]:
    """Returns calls of operations on `device` whose results have the CPU's bits. Most of them are
    also captured in CUDA graphs by other tests; the others cannot be captured."""
    calls = captured_calls(device, SIDE)
    del calls["blas"]
    calls["transformed"] = lambda x: cpd.cast(x, "mxfp8 transform=hadamard16")
    reduced = {"aps": cpd.Reduce("e4m3", aps=True)}
    for wire in ("one_bit bucket=64", "int4", "int8_rows", "terngrad coding=fixed clip_at=scaler"):
        reduced[wire] = cpd.Reduce(wire)
    for wire in ("top_k 0.25", "top_k 0.25 feedback=off int4", "uniform", "fp8_rows"):
        reduced[wire] = cpd.Reduce(wire)
    for name, spec in reduced.items():
        calls[f"simulate_all_reduce {name}"] = lambda x, spec=spec: cpd.simulate_all_reduce(
            [[x], [x.t().contiguous()]], spec
        )[0]
    return calls


# ---- operations ----------------------------------------------------------------------------------


def test_operations() -> None:
    wanted = wanted_of(calls_on("cpu"))
    with first_is_current():
        assert wrong_calls(SECOND, calls_on(SECOND), wanted) == []


def test_blas() -> None:
    """A matrix product by cuBLAS works on each GPU, because each device has its own cuBLAS
    context."""
    x = torch.randint(1, 9, (SIDE, SIDE)).float()  # products and sums of small integers are exact
    with first_is_current():
        got = [cpd.gemm(x.to(d), x.to(d), "fp32", blas=True) for d in (FIRST, SECOND, FIRST)]
    assert [str(y.device) for y in got] == [FIRST, SECOND, FIRST]
    assert same(got[0], got[1])
    assert same(got[1].cpu(), x @ x)


def test_on_a_stream_of_the_second() -> None:
    """Operations run on a new stream of the second GPU, which `torch.cuda.stream` makes the current
    device meanwhile. Then they run on the second GPU's default stream, from the first GPU."""
    x, calls = normal(SIDE, SIDE), captured_calls(SECOND, SIDE)
    names = ("cast stochastic", "gemm e4m3 kahan", "cast nvfp4", "simulate_all_reduce e4m3")
    chosen = {n: calls[n] for n in calls if n.startswith(names)}
    assert len(chosen) >= len(names)
    wanted = wanted_of({n: c for n, c in captured_calls("cpu", SIDE).items() if n in chosen})
    stream = torch.cuda.Stream(device=SECOND)
    with first_is_current():
        with torch.cuda.stream(stream):
            on_stream = {name: call(x.to(SECOND)) for name, call in chosen.items()}
        stream.synchronize()
        for name, got in on_stream.items():
            assert_there(got, wanted[name], SECOND, name)
        assert wrong_calls(SECOND, chosen, wanted) == []


def test_two_threads_with_a_gpu_each() -> None:
    wanted = wanted_of(calls_on("cpu"))
    wrong: list[Any] = []

    def run(device: str) -> None:
        try:
            wrong.extend(wrong_calls(device, calls_on(device), wanted))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=run, args=(device,)) for device in (FIRST, SECOND)]
    with first_is_current():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_seeds_and_integers_there() -> None:
    x, options = normal(SIDE, SIDE), {"rounding": "stochastic", "random_bits": 8}
    seed, integers = torch.tensor(5), torch.arange(SIDE * SIDE).view(SIDE, SIDE) % 256
    with first_is_current():
        for place in ("cpu", SECOND):
            got = by_keywords(cpd.cast, x.to(SECOND), "e4m3", **options, seed=seed.to(place))
            assert_there(got, by_keywords(cpd.cast, x, "e4m3", **options, seed=5), SECOND)
        got = by_keywords(cpd.cast, x.to(SECOND), "e4m3", **options, random=integers.to(SECOND))
        assert_there(got, by_keywords(cpd.cast, x, "e4m3", **options, random=integers), SECOND)


@pytest.mark.exhaustive
def test_compiled() -> None:
    def product(x: torch.Tensor) -> torch.Tensor:
        return cpd.gemm(cpd.cast(x, "e4m3"), cpd.cast(x, "mxfp8"), "e4m3 kahan")

    x = normal(SIDE, SIDE)
    graph, _ = compiled(product)
    with first_is_current():
        assert_there(graph(x.to(SECOND)), product(x), SECOND)


# ---- checks --------------------------------------------------------------------------------------

_LATER = """
import cpd, torch
from by_keywords import by_keywords
x = [torch.full((4, 16), 0.3, device=f"cuda:{d}") for d in (0, 1)]
random = torch.full((4, 16), 9, dtype=torch.int32, device="cuda:1")
def wrong(): cpd.cast(x[1], "e4m3 stochastic random_bits=3", random=random)
def fine(device): cpd.cast(x[device], "e4m3")
for later in (lambda: cpd.check_cuda(1), lambda: fine(1)):
    wrong()
    torch.cuda.synchronize(1)
    fine(0)
    cpd.check_cuda(0)
    cpd.check_cuda()
    try:
        later()
    except ValueError as error:
        assert "below 2^random_bits = 8" in str(error) and "earlier call" in str(error), error
    else:
        raise AssertionError("nothing was raised")
    cpd.check_cuda(1)
    fine(1)
cpd.release_cuda_memory(1)
assert torch.cuda.current_device() == 0
"""


def test_what_only_values_tell_is_raised_on_its_device(tmp_path: Path) -> None:
    """An error that depends on values on a GPU is raised by a later call on the same GPU, never by
    a call on the other GPU."""
    program = tmp_path / "later.py"
    program.write_text(_LATER)
    environment = {name: value for name, value in os.environ.items() if name != "CPD_CHECK"}
    done = forked.run([program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_operands_on_both_are_refused() -> None:
    """For operands on two GPUs, the public operations and the operators in torch.ops.cpd raise an
    error before they write anything."""
    a, b = normal(SIDE, SIDE).to(FIRST), normal(SIDE, SIDE).to(SECOND)
    codes, number = cpd.encode(a, "e4m3"), torch.zeros((), dtype=torch.int64, device=SECOND)
    integers = torch.zeros(SIDE, SIDE, dtype=torch.int32, device=SECOND)
    drawn = {"rounding": "stochastic", "random_bits": 8}
    before = b.cpu()
    calls: dict[str, Callable[[], Any]] = {
        "cast": lambda: cpd.cast(a, "e4m3", out=b),
        "cast seed": lambda: by_keywords(cpd.cast, a, "e4m3", **drawn, seed=number),
        "cast random": lambda: by_keywords(cpd.cast, a, "e4m3", **drawn, random=integers),
        "encode random": lambda: by_keywords(cpd.encode, a, "e4m3", **drawn, random=integers),
        "decode": lambda: cpd.decode(codes, "e4m3", b.shape, out=b),
        "add": lambda: cpd.add(a, b, "e4m3"),
        "fma": lambda: cpd.fma(a, a, b, "e4m3"),
        "sqrt": lambda: cpd.sqrt(a, "e4m3", out=b),
        "gemm": lambda: cpd.gemm(a, b, "e4m3"),
        "gemm c": lambda: cpd.gemm(a, a, "e4m3", c=b),
        "blas": lambda: cpd.gemm(a, b, "fp32", blas=True),
        "hadamard": lambda: cpd.hadamard(a, "hadamard16", out=b),
        "scaled": lambda: cpd.cast(a, "mxfp8", out=b),
        "amax": lambda: cpd.cast(a, "fp8-tensor", amax=b[0, 0]),
        "linear": lambda: functional.linear(a, b, recipe=cpd.Recipe(sums="e4m3")),
        "matmul": lambda: functional.matmul(a, b, sums="e4m3"),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError, match=r"cuda:[01].*cuda:[01]|got cuda:1"):
            pytest.fail(f"{name} was not refused: {call()}")
    operators = torch.ops.cpd
    raw: dict[str, Callable[[], Any]] = {
        "add": lambda: operators.add(a, b, "e4m3", None, None, None),
        "cast_out": lambda: operators.cast_out(a, "e4m3", None, None, None, out=b),
        "gemm": lambda: operators.gemm(
            a, b, None, "e4m3 sequential", None, None, a.dtype, False, None
        ),
    }
    for name, call in raw.items():
        with pytest.raises(ValueError, match="on one device, got one on cuda:0, one on cuda"):
            pytest.fail(f"{name} was not refused: {call()}")
    with pytest.raises(ValueError, match="seed must be on the CPU or on x's device"):
        operators.cast(a, "e4m3 rounding=stochastic", number, None, None)
    assert same(b, before)


# ---- models --------------------------------------------------------------------------------------

DRAWS = "e4m3 sequential rounding=stochastic random_bits=8"
RECIPES = ["te-current", "te-delayed", "mxfp8", "nvfp4", "deepseek-v3", cpd.Recipe(sums=DRAWS)]


class Training:
    """A copy of a model on a device, with its input and an SGD optimizer."""

    def __init__(self, model: nn.Module, device: str) -> None:
        self.model = copy.deepcopy(model).to(device)
        self.x = normal(SIDE, SIDE).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        y: torch.Tensor = self.model(self.x)
        y.square().sum().backward()
        self.optimizer.step()
        return y.detach()


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_two_models_with_a_gpu_each(recipe: str | cpd.Recipe) -> None:
    """Two copies of a model, each on its own GPU, train by turns and give the CPU's results and
    weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(SIDE, 64), nn.ReLU(), nn.Linear(64, SIDE, bias=False))
    cpd.convert(model, recipe, coverage=False)
    wanted = Training(model, "cpu")
    trainings = {device: Training(model, device) for device in (FIRST, SECOND)}
    with first_is_current():
        for _ in range(2):
            y = wanted.step()
            for device, training in trainings.items():
                assert_there(training.step(), y, device)
    for device, training in trainings.items():
        got = [p.detach() for p in training.model.parameters()]
        assert_there(got, [p.detach() for p in wanted.model.parameters()], device)


def test_magnitudes_of_ranks_are_reduced_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """With delayed scaling and layers on both GPUs, the ranks exchange their largest magnitudes by
    one all-reduce for each GPU. The GPU of the first layer comes first."""
    places = [SECOND, FIRST, SECOND]
    rows = [torch.full((3,), 1.0 + n, device=place) for n, place in enumerate(places)]
    seen = []

    def to_next(words: torch.Tensor, *how: Any, **more: Any) -> None:
        seen.append(str(words.device))
        words.add_(1)

    monkeypatch.setattr(delayed.dist, "all_reduce", to_next)
    monkeypatch.setattr(delayed.dist, "get_world_size", lambda group: 2)
    histories = [row.unsqueeze(0) for row in rows]  # row 0 of each history is the row itself
    delayed.reduce(histories, None)
    assert seen == [SECOND, FIRST]
    for n, row in enumerate(rows):
        assert row.tolist() == [float(np.nextafter(np.float32(1 + n), np.float32(9)))] * 3


def optimizers(parameters: list[nn.Parameter]) -> dict[str, torch.optim.Optimizer]:
    def sgd(momentum: float = 0.9) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.25, momentum=momentum)

    stochastic = {"update": "stochastic", "momentum": "bf16", "gradient": "e5m2", "seed": 3}
    return {
        "stochastic": LowPrecision(sgd(), "e4m3", **stochastic),
        "kahan": LowPrecision(sgd(), "bf16", update="kahan"),
        "master": LowPrecision(sgd(), "mxfp8", master="fp32"),
        "LARS": LARS(parameters, lr=0.25),
    }


@pytest.mark.parametrize("name", ["stochastic", "kahan", "master", "LARS"])
def test_optimizers(name: str) -> None:
    """An optimizer with parameters on two GPUs, with a LossScaler, gives the CPU's weights."""
    results = []
    for places in (("cpu", "cpu"), (FIRST, SECOND)):
        parameters = [nn.Parameter(normal(8, 32, seed=i).to(d)) for i, d in enumerate(places)]
        scaler = LossScaler(2.0**4)
        optimizer = optimizers(parameters)[name]
        for _ in range(2):
            optimizer.zero_grad()
            for p in parameters:
                scaler.scale(p.square().sum()).backward()
            with first_is_current():
                scaler.step(optimizer)
            scaler.update()
        assert [str(p.device) for p in parameters] == list(places)
        results.append([p.detach().cpu() for p in parameters])
    assert same(*results)


class OnBoth(nn.Module):
    """A model of two linear layers that may lie on different devices."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(SIDE, 64), nn.Linear(64, SIDE)

    def placed(self, first: str, second: str) -> OnBoth:
        self.first.to(first)
        self.second.to(second)
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x.to(self.first.weight.device)).relu()
        return self.second(y.to(self.second.weight.device))


@pytest.mark.parametrize("recipe", RECIPES, ids=str)
def test_a_model_on_both(recipe: str | cpd.Recipe) -> None:
    """A model that is converted while its layers lie on two GPUs trains as on the CPU. Random
    streams and scales do not depend on the devices."""
    trained = []
    for places in (("cpu", "cpu"), (SECOND, FIRST)):
        model = OnBoth().placed(*places)
        cpd.convert(model, recipe, coverage=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        for _ in range(2):
            optimizer.zero_grad()
            with first_is_current():
                model(normal(SIDE, SIDE)).square().sum().backward()
            optimizer.step()
        trained.append([p.detach().cpu() for p in model.parameters()])
    assert same(*trained)
