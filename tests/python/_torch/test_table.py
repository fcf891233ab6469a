# SPDX-License-Identifier: Apache-2.0
"""Tests the table of operators: each operator of torch.ops.cpd has one row."""

from __future__ import annotations

import importlib
import inspect

import pytest

torch = pytest.importorskip("torch")

from cpd._torch import on_torch  # noqa: E402
from cpd._torch.library import ops  # noqa: E402
from cpd._torch.table import TABLE  # noqa: E402
from cpd.ops import front_ends, on_numpy  # noqa: E402

for module in ("convolution", "delayed", "kept", "operators", "rounding", "steps"):
    importlib.import_module(f"cpd._torch.{module}")

DEFINED = {
    schema.name.removeprefix("cpd::")
    for schema in torch._C._jit_get_all_schemas()
    if schema.name.startswith("cpd::")
}


def has_kernel(name: str, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"cpd::{name}", key)


def test_each_operator_has_a_row():
    named = set(TABLE)
    named |= {f"{name}_out" for name, row in TABLE.items() if row.has_out}
    named |= {f"{name}_plain" for name in named if hasattr(ops, f"{name}_plain")}
    assert named == DEFINED


@pytest.mark.parametrize("name", TABLE)
def test_the_kernels_of_a_row(name):
    """An operator has the kernels that the table of operators declares for it. C++ defines
    `NAME_plain`, a variant without derivative, for operators with a derivative and a C++ kernel."""
    row = TABLE[name]
    assert has_kernel(name, "CPU" if row.computes is None else "CompositeExplicitAutograd")
    has_own = name in ("kept", "kept_gradients")  # these have derivatives by torch.library
    assert has_kernel(name, "Autograd") == (row.derivative is not None or has_own)
    has_plain = f"{name}_plain" in DEFINED
    assert has_plain == (row.derivative is not None and row.computes is None)
    for variant in [name, f"{name}_plain"][: 1 + has_plain]:
        assert has_kernel(variant, "Meta") == (row.fake is not None)
        assert has_kernel(variant, "FuncTorchBatched") == (row.batching is not None)
    if has_plain:
        assert not has_kernel(f"{name}_plain", "Autograd")
    if row.has_out:
        for key in ("Autograd", "ADInplaceOrView", "Negative", "Meta", "CPU"):
            assert has_kernel(f"{name}_out", key)
        assert f"{name}_out_plain" in DEFINED


def test_operators_of_the_cpu_alone():
    """Lists the operators that have a kernel on the CPU alone. All other operators with a CPU
    kernel have a CUDA kernel too."""
    alone = {name for name in DEFINED if has_kernel(name, "CPU") and not has_kernel(name, "CUDA")}
    assert alone == {
        "cast_scaled_apart",
        "cast_scaled_narrow",
        "convolve",
        "correlate",
        "product_of_bf16",
    }


@pytest.mark.parametrize("name", front_ends.FrontEnd.__annotations__)
def test_what_operations_ask_of_arrays(name):
    """Operations handle arrays by the functions of `on_numpy` or `on_torch`. Both modules define
    the same functions, with the same parameters."""
    pair = [getattr(kind, name) for kind in (on_numpy, on_torch)]
    assert all(map(callable, pair))
    if all(map(inspect.isfunction, pair)):
        of_numpy, of_torch = (list(inspect.signature(function).parameters) for function in pair)
        assert of_numpy == of_torch
