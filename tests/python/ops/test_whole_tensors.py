# SPDX-License-Identifier: Apache-2.0
"""Tests that operations refuse nested tensors and DTensors with a TypeError naming the argument."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import distribute_tensor  # noqa: E402
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module  # noqa: E402

OPERATIONS = {
    "cast": lambda x: cpd.cast(x, "e4m3"),
    "a scaled cast": lambda x: cpd.cast(x, "mxfp8"),
    "add": lambda x: cpd.add(x, x, "e4m3"),
    "sqrt": lambda x: cpd.sqrt(x, "e4m3"),
    "sum": lambda x: cpd.sum(x, "e4m3"),
    "gemm": lambda x: cpd.gemm(x, x, "e4m3"),
    "encode": lambda x: cpd.encode(x, "e4m3"),
    "out": lambda x: cpd.cast(torch.ones(3), "e4m3", out=x),
    "simulate_all_reduce": lambda x: cpd.simulate_all_reduce([[x]], cpd.Reduce("fp32")),
    "matmul": lambda x: cpd.functional.matmul(x, x, sums="e4m3"),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_refuse_nested_tensors(name, layout):
    x = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)
    with pytest.raises(TypeError, match="must be a dense tensor, got a nested one"):
        OPERATIONS[name](x)


@pytest.fixture(scope="module")
def mesh(tmp_path_factory):
    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{store}")
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_refuse_dtensors(name, mesh):
    x = distribute_tensor(torch.ones(4, 4), mesh)
    with pytest.raises(TypeError, match="got a DTensor: tensor parallelism"):
        OPERATIONS[name](x)
    with cpd.autocast("bf16"), pytest.raises(TypeError, match="got a DTensor"):
        torch.matmul(x, x)


@pytest.mark.parametrize("first", ["convert", "parallelize_module"])
def test_converted_layers_refuse_tensor_parallelism(first, mesh):
    model = torch.nn.Sequential(torch.nn.Linear(32, 64))
    steps = [
        lambda: cpd.convert(model, "mxfp8", coverage=False),
        lambda: parallelize_module(model, mesh, {"0": ColwiseParallel()}),
    ]
    for step in steps if first == "convert" else steps[::-1]:
        step()
    with pytest.raises(TypeError, match=r"tensor parallelism \(parallelize_module\) is not"):
        model(torch.ones(4, 32))
