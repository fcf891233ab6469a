# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd.explain` reports the plan of a call: the kernel that the call would run.

tests/ops/test_explain.cpp tests that the reported kernel is the kernel that runs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest

import cpd
from cpd import _core
from cpd.ops import on_numpy
from patience import scaled

torch = pytest.importorskip("torch")

HUGE = 1 << 40
BACKEND = cpd.backend()


def calls() -> int:
    return _core.kernel_calls(BACKEND)


@pytest.fixture(autouse=True)
def nothing_runs() -> Any:
    """Fails a test in which a kernel is called, unless the test allows kernel calls."""
    before = calls()
    yield
    assert calls() == before


def array(*shape: int, dtype: Any = np.float32) -> Any:
    return np.broadcast_to(np.zeros((), dtype), shape)


def meta(*shape: int, dtype: Any = torch.float32, grad: bool = False) -> Any:
    return torch.empty(*shape, dtype=dtype, device="meta", requires_grad=grad)


# ---- arrays ----------------------------------------------------------------------------------

X = np.zeros((64, 64), np.float32)
CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any], str, str]] = [
    (cpd.cast, (X, "e4m3"), {}, "cast", "addition"),
    (cpd.cast, (X, "bf16"), {}, "cast", "in_place"),
    (cpd.cast, (X, "e4m3 rounding=stochastic"), {}, "cast", "units"),
    (cpd.cast, (X, "e4m3 rounding=to_odd"), {}, "cast", "general"),
    (cpd.cast, (X.T, "e4m3"), {"out": np.zeros_like(X)}, "cast", "addition"),
    (cpd.cast, (X.astype(np.float64), "e4m3"), {}, "cast", "general"),
    (cpd.cast, (X, "mxfp8"), {}, "round_blocks", "multiply"),
    (cpd.encode, (X, "e4m3"), {}, "encode", "addition"),
    (cpd.encode, (X, "mxfp8"), {}, "encode_blocks", "multiply"),
    (cpd.decode, (np.zeros(64, np.uint8), "e4m3", 64), {}, "decode", "codes"),
    (cpd.add, (X, X, "e4m3"), {}, "arithmetic", "addition"),
    (cpd.mul, (X, X, "e4m3"), {}, "arithmetic", "addition"),
    (cpd.fma, (X, X, X, "e4m3"), {}, "arithmetic", "addition"),
    (cpd.div, (X, X, "e4m3"), {}, "arithmetic", "addition"),
    (cpd.sqrt, (X, "e4m3"), {}, "arithmetic", "addition"),
    (cpd.div, (X.astype(np.float64),) * 2 + ("e4m3",), {}, "soft_float", "integers"),
    (cpd.sum, (X, "e4m3"), {"axis": 0}, "fold", "veltkamp_exact"),
    (cpd.sum, (X, "fp32"), {}, "fold", "binary32"),
    (cpd.sum, (X, "int32"), {}, "fixed_number", "integer"),
    (cpd.gemm, (X, X, "fp32"), {}, "gemm", "binary32"),
    (cpd.gemm, (X, X, "e6m9 kahan"), {}, "gemm", "veltkamp_kahan"),
    (cpd.gemm, (X, X, "bf16 pairwise"), {}, "gemm", "veltkamp_pairwise"),
    (cpd.gemm, (X, X, "fp16 sequential product=exact"), {}, "gemm", "veltkamp_exact"),
    (cpd.gemm, (X, X, "e4m3 sequential rounding=up"), {}, "gemm", "general"),
    (cpd.gemm, (X, X, "h100-fp8"), {}, "block_fma", "unit_aligned"),
    (cpd.gemm, (X, X, "int32"), {}, "fixed", "integer"),
]


def is_short(path: str) -> bool:
    return path.startswith(("binary32", "veltkamp", "stochastic"))


@pytest.mark.parametrize(("function", "args", "kwargs", "kernel", "path"), CASES)
def test_arrays(function: Any, args: Any, kwargs: Any, kernel: str, path: str) -> None:
    plan = cpd.explain(function, *args, **kwargs)
    assert (plan.name, plan.kernel) == (function.__name__, kernel)
    assert plan.path == ("general" if BACKEND == "scalar" and is_short(path) else path)
    assert plan.backend == ("portable" if kernel in ("soft_float", "fixed_number") else BACKEND)
    assert plan.threads >= 1
    assert plan.steps == plan.products == ()


@pytest.mark.parametrize(("function", "args", "kwargs", "kernel", "path"), CASES)
def test_tensors_have_the_plans_of_arrays(
    function: Any, args: Any, kwargs: Any, kernel: str, path: str
) -> None:
    given = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]
    named = {k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for k, x in kwargs.items()}
    assert cpd.explain(function, *given, **named) == cpd.explain(function, *args, **kwargs)


def test_products_of_encoded_operands() -> None:
    codes, scales = np.zeros(64 * 64, np.uint8), np.zeros(64 * 2, np.uint8)
    a = cpd.Encoded(codes, scales, "mxfp8", (64, 64))
    b = cpd.Encoded(codes, scales, "mxfp8", (64, 64), -2)
    plan = cpd.explain(cpd.gemm, a, b, "fp32", scales_at="block")
    assert (plan.name, plan.kernel) == ("gemm_scaled", "gemm")
    assert [step.name for step in plan.steps] == [*["decode"] * 4, "gemm_scaled"]
    nv = np.zeros(64 * 64 // 2, np.uint8), (np.zeros(64 * 4, np.uint8), np.zeros(4, np.uint8))
    a = cpd.Encoded(*nv, "nvfp4", (64, 64))
    b = cpd.Encoded(*nv, "nvfp4", (64, 64), -2)
    plan = cpd.explain(cpd.gemm, a, b, "fp32", scales_at="block")
    assert [step.name for step in plan.steps] == [*["decode"] * 6, "gemm_scaled"]


def test_why_the_path_is_general() -> None:
    why = {
        text: cpd.explain(cpd.gemm, X, X, text).why
        for text in (
            "e4m3 sequential rounding=up",
            "e4m3 kahan product=exact",
            "e4m3:nosub",
            "e4m3",
        )
    }
    assert why["e4m3 sequential rounding=up"] == "sums rounded up have no fast path"
    assert why["e4m3 kahan product=exact"].startswith("exact products have a fast path")
    assert why["e4m3:nosub"].startswith("a format without sign, zero or subnormals")
    if BACKEND != "scalar":
        assert why["e4m3"].endswith("the values decide")


def test_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPD_NUM_THREADS", "3")
    assert cpd.explain(cpd.cast, array(1 << 20), "e4m3").threads == 3
    assert cpd.explain(cpd.cast, array(8), "e4m3").threads == 1


# ---- nothing is computed ---------------------------------------------------------------------


def test_huge_arrays() -> None:
    tracemalloc.start()
    x = array(HUGE)
    assert cpd.explain(cpd.cast, x, "e4m3").kernel
    assert cpd.explain(cpd.encode, x, "e4m3").kernel == "encode"
    assert cpd.explain(cpd.sum, x, "fp32").kernel == "fold"
    a = array(1 << 20, 1 << 20)
    assert cpd.explain(cpd.gemm, a, a, "e4m3").kernel == "gemm"
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < 1 << 20


def test_huge_tensors() -> None:
    x = meta(HUGE)
    assert cpd.explain(cpd.cast, x, "e4m3").kernel == "cast"
    assert cpd.explain(cpd.cast, x, "mxfp8").kernel == "round_blocks"
    a = meta(1 << 20, 1 << 20)
    assert cpd.explain(cpd.gemm, a, a, "e4m3").kernel == "gemm"
    assert cpd.explain(cpd.functional.linear, a, a, recipe=cpd.Recipe("mxfp8")).kernel


def test_results_have_memory_again() -> None:
    with pytest.raises(ValueError, match="rounding must be"):
        cpd.explain(cpd.cast, X, "e4m3 rounding=sideways")
    assert (on_numpy.new, on_numpy.new_like) == (np.empty, np.empty_like)
    assert not _core.explains()


def test_an_array_is_not_changed() -> None:
    out = np.full((64, 64), 7, np.float32)
    cpd.explain(cpd.cast, X, "e4m3", out=out)
    assert (out == 7).all()


# ---- errors ----------------------------------------------------------------------------------

WRONG: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (cpd.cast, (X, "e99m1"), {}),
    (cpd.cast, (X, "e4m3 rounding=stochastic"), {"random_bits": 25}),
    (cpd.cast, (X.astype(np.int32), "e4m3"), {}),
    (cpd.cast, (X, "e4m3"), {"out": np.zeros(3, np.float32)}),
    (cpd.add, (X, np.zeros(63, np.float32), "e4m3"), {}),
    (cpd.sum, (X, "e4m3"), {"axis": 5}),
    (cpd.gemm, (X, X[:3], "e4m3"), {}),
    (cpd.gemm, (X, X, "e4m3 sideways"), {}),
    (cpd.decode, (np.zeros(3, np.uint8), "e4m3", 64), {}),
]


@pytest.mark.parametrize(("function", "args", "kwargs"), WRONG)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_errors_are_the_calls(function: Any, args: Any, kwargs: Any, kind: str) -> None:
    if kind == "tensor":
        args = [torch.from_numpy(x) if isinstance(x, np.ndarray) else x for x in args]
        kwargs = {
            k: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for k, x in kwargs.items()
        }
    with pytest.raises((TypeError, ValueError)) as called:
        function(*args, **kwargs)
    with pytest.raises((TypeError, ValueError)) as explained:
        cpd.explain(function, *args, **kwargs)
    assert (explained.type, str(explained.value)) == (called.type, str(called.value))


@pytest.mark.parametrize("function", [len, cpd.random_integers, cpd.Format, 3, torch.matmul])
def test_unknown_functions(function: Any) -> None:
    names = "add, bilinear, cast, conv1d, .*simulate_all_reduce, sqrt, sum, and layers that"
    with pytest.raises(TypeError, match=f"explain knows {names}"):
        cpd.explain(function, X)


# ---- models ----------------------------------------------------------------------------------


def converted(layer: Any, recipe: Any, **kwargs: Any) -> Any:
    before = calls()
    cpd.convert(layer, recipe, **kwargs)
    assert calls() == before
    return layer


def test_a_layer_has_three_products() -> None:
    layer = converted(torch.nn.Linear(32, 48), cpd.Recipe(sums=("fp32", "e6m9 kahan", "bf16")))
    plan = cpd.explain(layer, torch.zeros(16, 32))
    assert [(p.name, p.kernel) for p in plan.products] == [
        *(("forward", "gemm"), ("grad_input", "gemm"), ("grad_weight", "gemm")),
    ]
    if BACKEND != "scalar":
        paths = [p.path for p in plan.products]
        assert paths == ["binary32", "veltkamp_kahan", "veltkamp"]
    assert plan.name == "Linear"
    assert plan.path == plan.products[0].path


@pytest.mark.parametrize("recipe", ["mxfp8", "nvfp4", "te-current", "te-delayed"])
def test_named_recipes(recipe: str) -> None:
    layer = converted(torch.nn.Linear(64, 64), recipe)
    plan = cpd.explain(layer, torch.zeros(64, 64))
    assert [p.name for p in plan.products] == ["forward", "grad_input", "grad_weight"]
    assert {p.backend for p in plan.products} == {"torch"}
    assert any(step.name in ("cast", "encode") for step in plan.steps)


def test_a_convolution() -> None:
    layer = converted(torch.nn.Conv2d(4, 8, 3), cpd.Recipe(sums="e6m9 chunked"))
    plan = cpd.explain(layer, torch.zeros(2, 4, 16, 16))
    assert [p.name for p in plan.products] == ["forward", "grad_input", "grad_weight"]
    assert {p.kernel for p in plan.products} == {"gemm"}


def test_a_layer_keeps_its_state() -> None:
    recipe = cpd.Recipe("e4m3fn rounding=stochastic", sums="bf16 sequential rounding=stochastic")
    layer = converted(torch.nn.Linear(8, 8), recipe)
    clock = layer.cpd.clock
    before = int(clock.step), clock.begun, clock.fresh, clock.reached
    weight = layer.weight
    cpd.explain(layer, torch.zeros(2, 8))
    assert (int(clock.step), clock.begun, clock.fresh, clock.reached) == before
    assert layer.weight is weight
    assert weight.grad is None


def test_wrong_layers() -> None:
    x = torch.zeros(2, 8)
    with pytest.raises(
        TypeError, match=r"explain takes a layer that cpd\.convert has converted, got Linear"
    ):
        cpd.explain(torch.nn.Linear(8, 8), x)
    model = converted(torch.nn.Sequential(torch.nn.Linear(8, 8)), "mxfp8")
    with pytest.raises(
        TypeError,
        match=r"cpd\.convert has converted, got Sequential; explain its layers, such as '0'",
    ):
        cpd.explain(model, x)
    with pytest.raises(TypeError, match="explain takes a layer, not its class, got Linear"):
        cpd.explain(torch.nn.Linear, x)
    with pytest.raises(TypeError, match="explain takes a layer and its input, a tensor"):
        cpd.explain(model[0])
    for layer in (torch.nn.MultiheadAttention(8, 2), torch.nn.LSTM(8, 4), torch.nn.GRUCell(8, 4)):
        name = type(layer).__name__
        told = (
            f"layers that are one product, got {name}; explain cpd.functional.linear and matmul "
            "with the shapes and the recipe of its products"
        )
        with pytest.raises(TypeError, match=told):
            cpd.explain(converted(layer, "mxfp8"), x, x, x)


def test_scalar_kernels_take_the_general_path() -> None:
    """For matrix products by scalar kernels, `cpd.explain` reports the path "general" (no fast
    path) and a valid tile size."""
    program = """
import json, numpy as np, cpd
x = np.zeros((40, 70), np.float32)
found = [cpd.explain(cpd.gemm, x, x.T, text) for text in ("e4m3", "fp32", "e6m9 kahan", "fp16 fma")]
found.append(cpd.explain(cpd.cast, x, "mxfp8"))
print(json.dumps([[p.backend, p.kernel, p.path, p.tile] for p in found]))
"""
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "CPD_BACKEND": "scalar"},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=True,
    )
    *products, cast = json.loads(run.stdout)
    assert [product[:3] for product in products] == [["scalar", "gemm", "general"]] * 4
    assert all(len(product[3]) == 3 and min(product[3]) > 0 for product in products)
    assert cast[:2] == ["scalar", "round_blocks"]


def test_functional() -> None:
    x, w = meta(32, 64, grad=True), meta(16, 64)
    plan = cpd.explain(cpd.functional.linear, x, w, recipe=cpd.Recipe(sums="fp32"))
    assert [p.name for p in plan.products] == ["forward", "grad_input"]
    plan = cpd.explain(cpd.functional.matmul, meta(32, 64), meta(64, 8), sums="e6m9")
    assert [p.name for p in plan.products] == ["forward"]
    plan = cpd.explain(cpd.functional.conv2d, meta(1, 2, 8, 8), meta(2, 2, 3, 3), recipe="mxfp8")
    assert [p.name for p in plan.products] == ["forward"]


# ---- ranks -----------------------------------------------------------------------------------


def test_an_all_reduce() -> None:
    ranks = [[np.zeros(4096, np.float32)] for _ in range(8)]
    plan = cpd.explain(cpd.simulate_all_reduce, ranks, cpd.Reduce("e4m3", group_size=4))
    assert [step.name for step in plan.steps] == ["encode", "sum_in_groups", "sum"]
    assert plan.steps[0].path == "addition"
    assert plan.why.startswith("sequential, 2 terms")
    plan = cpd.explain(cpd.simulate_all_reduce, ranks, cpd.Reduce("qsgd bits=4", order="tree"))
    assert plan.steps[0].path.startswith("qsgd bits=4")
    assert plan.why.startswith("tree, 8 terms")


def test_errors_of_an_all_reduce_are_the_calls() -> None:
    ranks = [[np.zeros(4, np.float32)], [np.zeros(5, np.float32)]]
    with pytest.raises(ValueError, match=r"rank 1, tensor 0 has shape \(5,\)"):
        cpd.explain(cpd.simulate_all_reduce, ranks, cpd.Reduce("e4m3"))


# ---- what it returns -------------------------------------------------------------------------


def test_text_and_data() -> None:
    plan = cpd.explain(cpd.cast, X, "e4m3 rounding=to_odd")
    assert str(plan) == (
        f"cast: general ({BACKEND} cast, 1 thread)\n  rounding to_odd has no shorter form here"
    )
    data = plan.to_dict()
    assert json.loads(json.dumps(data))["path"] == "general"
    assert [*data] == [
        *("name", "backend", "kernel", "path", "tile", "threads", "why", "products", "steps")
    ]
    layer = converted(torch.nn.Linear(8, 8), cpd.Recipe(sums="fp32"))
    lines = str(cpd.explain(layer, torch.zeros(2, 8))).splitlines()
    assert lines[0] == "Linear:"
    assert [line.split(":")[0].strip() for line in lines[1:]] == [
        *("forward", "grad_input", "grad_weight")
    ]


def test_nothing_to_run() -> None:
    plan = cpd.explain(cpd.cast, np.zeros(0, np.float32), "e4m3")
    assert (plan.kernel, str(plan)) == ("", "cast: nothing to run")
