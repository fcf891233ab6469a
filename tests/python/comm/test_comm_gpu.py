# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd.comm` gives tensors on a GPU the bits of tensors on the CPU.

Without a GPU the tests are skipped, or fail if the environment requires a GPU.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cpd = pytest.importorskip("cpd")

import comm_cases  # noqa: E402
from front_ends import GPU_IS_CPU, few_on_cpu, require_gpu_itself  # noqa: E402
from gpu_ranks import on_cpu, on_gpu  # noqa: E402
from patience import scaled  # noqa: E402
from spawn import spawn_ranks  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning"),
    pytest.mark.timeout(300),
]
FP32 = cpd.Reduce("fp32")


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if torch.cuda.is_available():
        return
    if os.environ.get("CPD_REQUIRE_GPU") == "1":
        pytest.fail("CPD_REQUIRE_GPU=1, but torch sees no CUDA device")
    pytest.skip("torch sees no CUDA device")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_all_reduce(world: int) -> None:
    """An all-reduce over threads of one process has the bits of simulate_all_reduce (virtual
    ranks), for all orders of summation, exchanges of messages and group sizes."""
    sizes = (5000, 0, 1, 33, 70_001)
    with cpd.comm.local(world, timeout=scaled(60), chunk=4096) as group:
        for index in few_on_cpu(range(2 * len(comm_cases.ways(world))), world):
            (spec, step), special = comm_cases.spec_at(world, index), index % 4 == 3

            def reduce(
                comm: Any,
                spec: Any = spec,
                step: int = step,
                index: int = index,
                special: bool = special,
            ):
                mine = comm_cases.layers_of(comm.rank, sizes, index, special)
                return comm.all_reduce(on_gpu(mine), spec, report=True, step=step)

            wanted, reports = comm_cases.virtual(spec, world, sizes, index, special, step=step)
            for got, report in group.run(reduce):
                assert comm_cases.same(on_cpu(got), wanted), spec
                assert report.tensors == reports, spec


def test_other_operations() -> None:
    spec = cpd.Reduce("e4m3", accumulator=cpd.Accumulator("e5m10 kahan"), order="ring", aps=True)
    sizes = (1001, 0, 70_000)
    wanted, _ = comm_cases.virtual(spec, 3, sizes, 5)

    def calls(comm: Any) -> None:
        mine = on_gpu(comm_cases.layers_of(comm.rank, sizes, 5))
        total = comm.reduce(mine, spec, 1, step=0)
        assert (total is None) == (comm.rank != 1)
        assert total is None or comm_cases.same(on_cpu(total), wanted)
        parts = [comm_cases.slice_of(x, comm.rank, 3) for x in wanted]
        assert comm_cases.same(on_cpu(comm.reduce_scatter(mine, spec, step=0)), parts)
        for rank, layers in enumerate(comm.all_gather(mine, "e4m3")):
            casts = [cpd.cast(x, "e4m3") for x in comm_cases.layers_of(rank, sizes, 5)]
            assert comm_cases.same(on_cpu(layers), casts)

    with cpd.comm.local(3, timeout=scaled(60)) as group:
        group.run(calls)


def test_layouts_types_and_out() -> None:
    x = torch.arange(24, dtype=torch.float32, device="cuda").reshape(4, 6)
    raw = torch.zeros(24 * 4 + 4, dtype=torch.uint8, device="cuda")
    kinds = [
        x,
        x.t(),
        x.half(),
        x.bfloat16(),
        x[:, ::2],
        torch._neg_view(-x),
        raw[4:].view(x.dtype),
    ]

    def calls(comm: Any) -> None:
        for layer, got in zip(kinds, comm.all_reduce(kinds, FP32), strict=True):
            assert torch.equal(got, 2 * layer.float())
        out = torch.empty_like(x)
        (same,) = comm.all_reduce([x], FP32, out=[out])
        assert same is out
        assert torch.equal(out, 2 * x)
        mine = x.clone()
        comm.all_reduce([mine], FP32, out=[mine])
        assert torch.equal(mine, 2 * x)

    with cpd.comm.local(2, timeout=scaled(60)) as group:
        group.run(calls)


def test_the_current_stream_counts() -> None:
    """An all-reduce follows the caller's CUDA stream: it reads its input after the work queued
    before the call, and work queued afterwards sees the results."""

    def calls(comm: Any) -> float:
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.zeros(1 << (15 if GPU_IS_CPU else 22), device="cuda")
            for _ in range(200):
                x += 0.5
            (got,) = comm.all_reduce([x], FP32)
            return float((got + 1).min())

    with cpd.comm.local(2, timeout=scaled(60)) as group:
        assert group.run(calls) == [201.0, 201.0]


def test_devices_must_not_mix() -> None:
    x = torch.ones(3)
    with cpd.comm.local(1) as group:
        for layers in ([x, x.cuda()], [x.cuda(), np.ones(3, np.float32)]):
            with pytest.raises(ValueError, match="tensors must all be on one device"):
                group.ranks[0].all_reduce(layers, FP32)
        with pytest.raises(ValueError, match="out must be on the tensors' device, cuda:0, got cpu"):
            group.ranks[0].all_reduce([x.cuda()], FP32, out=[x])


@pytest.mark.parametrize("transport", ["mpi", "gloo"])
def test_processes_that_share_a_gpu(transport: str) -> None:
    """Processes that share a GPU exchange messages through host memory and get the right sums."""
    ranks = spawn_ranks(transport, 2, "gpu_ranks:reduce", chunk=4096)
    assert [rank.result for rank in ranks] == [[], []]


def test_nccl_of_one() -> None:
    require_gpu_itself("NCCL")
    try:
        comm = cpd.comm.nccl(cpd.comm.nccl_id(), 0, 1, timeout=scaled(60))
    except ValueError as error:
        pytest.skip(f"no NCCL: {error}")
    with comm:
        spec = cpd.Reduce("e4m3", aps=True)
        mine = comm_cases.layers_of(0, (5000, 3), 1)
        wanted, _ = comm_cases.virtual(spec, 1, (5000, 3), 1)
        assert comm.name == "nccl"
        assert comm_cases.same(on_cpu(comm.all_reduce(on_gpu(mine), spec, step=0)), wanted)


def test_a_torch_group_with_nccl() -> None:
    import torch.distributed as dist

    if not dist.is_nccl_available():
        pytest.skip("torch has no NCCL")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with cpd.comm.distributed(timeout=scaled(60)) as comm:
            assert (comm.name, comm.size) == ("nccl", 1)
            (got,) = comm.all_reduce([torch.ones(5, device="cuda")], FP32)
            assert got.tolist() == [1.0] * 5
    finally:
        dist.destroy_process_group()


# ---- virtual ranks -------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [1, 3, 8])
def test_virtual_ranks(world: int) -> None:
    """simulate_all_reduce sums layers on a GPU there. The sums have the same bits as sums on the
    CPU, and the reports are equal."""
    sizes = (3000, 0, 33)
    for index in few_on_cpu(range(2 * len(comm_cases.ways(world))), world):
        spec, step = comm_cases.spec_at(world, index)
        made = [comm_cases.layers_of(rank, sizes, index, index % 4 == 3) for rank in range(world)]
        wanted, expected = cpd.simulate_all_reduce(made, spec, step=step, report=True)
        ranks = [on_gpu(layers) for layers in made]
        got, reports = cpd.simulate_all_reduce(ranks, spec, step=step, report=True)
        assert comm_cases.same(on_cpu(got), wanted), spec
        assert reports == expected, spec


def test_virtual_ranks_of_narrow_types_and_views() -> None:
    spec = cpd.Reduce("e4m3", aps=True)
    x = torch.randn(2, 6, 8, generator=torch.Generator().manual_seed(0))
    for change in (lambda y: y.bfloat16(), lambda y: y.t(), lambda y: y[:, ::2]):
        wanted = cpd.simulate_all_reduce([[change(y)] for y in x], spec)[0]
        got = cpd.simulate_all_reduce([[change(y.cuda())] for y in x], spec)[0]
        assert got.is_cuda
        assert torch.equal(got.cpu(), wanted)


class Filled(Sequence[Any]):
    """A lazy sequence of ranks. All ranks share one tensor, which is overwritten when the next
    rank's layer is read."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values
        self.layer = torch.empty_like(values[0], device="cuda")

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rank: Any) -> Any:
        return [self.layer.copy_(self.values[rank])]


def test_virtual_ranks_in_one_tensor() -> None:
    """simulate_all_reduce accepts a list of all ranks' layers, a function for each rank, or a lazy
    sequence. The sums are equal. A function's or sequence's layers are used before the next rank's
    layers are requested; lists are read sixteen ranks at a time."""
    x = torch.randn(37, 300, generator=torch.Generator().manual_seed(1))
    for spec in (cpd.Reduce("e4m3", accumulator="e4m3 kahan"), cpd.Reduce("e5m2", group_size=9)):
        wanted = cpd.simulate_all_reduce([[y] for y in x], spec)[0]
        filled = Filled(x)
        functions = [functools.partial(filled.__getitem__, rank) for rank in range(len(x))]
        for ranks in ([[y.cuda()] for y in x], filled, functions):
            got = cpd.simulate_all_reduce(ranks, spec)[0]
            assert torch.equal(got.cpu(), wanted)


def test_virtual_ranks_on_two_devices() -> None:
    here = torch.ones(8)
    with pytest.raises(ValueError, match="all tensors must be on one device"):
        cpd.simulate_all_reduce([[here.cuda()], [here]], FP32)


WITH_KERNELS = ["qsgd bits=4 bucket=8", "terngrad", "one_bit", "one_bit bucket=8 axis=0",
                "fp8_rows", "int8_rows stochastic", "int4 bucket=8", "quantized mxfp8",
                "feedback int4 bucket=8", "feedback qsgd bits=2 bucket=8",
                "qsgd bits=4 bucket=8 axis=0"]  # fmt: skip
ROUNDED = ["top_k 0.25", "top_k 0.25 e4m3", "feedback top_k 0.25 feedback=off"]  # on the GPU too
CODECS = [*WITH_KERNELS, *ROUNDED, "mxfp8", "uniform"]


@pytest.mark.parametrize("text", CODECS)
def test_codecs(text: str) -> None:
    """Codecs give the same values on a GPU as on the CPU, over virtual and real ranks. Some encode
    a matrix by columns (`axis=0`), and some keep a state from call to call."""
    spec = cpd.Reduce(text)
    layers = [[torch.randn(6, 8), torch.randn(5)] for _ in range(3)]
    states = [cpd.compress.States(), cpd.compress.States()]
    for _ in range(2):
        wanted, expected = cpd.simulate_all_reduce(layers, spec, states=states[0], report=True)
        there = [[layer.cuda() for layer in mine] for mine in layers]
        got, reports = cpd.simulate_all_reduce(there, spec, states=states[1], report=True)
        assert comm_cases.same(on_cpu(got), [x.numpy() for x in wanted])
        has_kernels = text in (*WITH_KERNELS, *ROUNDED)
        assert [report.staged_bytes == 0 for report in reports] == [has_kernels] * 2
        assert [dataclasses.replace(report, staged_bytes=0) for report in reports] == expected

    def sums_of(ranks: Any, comm: Any) -> list[Any]:
        kept = cpd.compress.States()
        calls = [comm.all_reduce(ranks[comm.rank], spec, states=kept, step=0) for _ in range(3)]
        return [np.asarray(x.cpu()) for sums in calls for x in sums]

    with cpd.comm.local(3, timeout=scaled(60)) as group:
        wanted = group.run(lambda comm: sums_of(layers, comm))
        got = group.run(lambda comm: sums_of(there, comm))
    assert all(map(comm_cases.same, got, wanted))


@pytest.mark.parametrize("text", [*CODECS, "e4m3"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_compress(text: str, dtype: torch.dtype) -> None:
    x = torch.randn(6, 8).to(dtype)
    codec = cpd.Codec(text)
    wanted, got = codec.encode(x, seed=3), codec.encode(x.cuda(), seed=3)
    assert got.data == wanted.data
    assert got.values.is_cuda
    assert torch.equal(got.values.cpu(), wanted.values)


@pytest.mark.parametrize(
    "spec",
    [
        cpd.Reduce("e4m3", aps=True, group_size=2),
        cpd.Reduce("e4m3", accumulator="e4m3 kahan", order="ring"),
        cpd.Reduce("qsgd bits=4 bucket=8"),
    ],
    ids=["aps", "ring", "codec"],
)
def test_virtual_nodes_fold_on_the_gpu(spec: Any) -> None:
    """`VirtualNodes` sums the nodes' gradients by the class `Folds`. On a GPU, `Folds` gives the
    CPU's sums, even if a node lacks one gradient."""
    from cpd.comm.schedule import Schedule
    from cpd.compress.states import States
    from cpd.parallel.nodes.folds import Folds

    shapes = {"a": (6, 8), "b": (16,)}
    torch.manual_seed(0)
    nodes = [[torch.randn(shape) for shape in shapes.values()] for _ in range(4)]
    found = []
    for device in ("cpu", "cuda"):
        folds = Folds(Schedule(spec), shapes, 4, 0, States()._native, device=torch.device(device))
        for _ in range(folds.sweeps):
            for node, gradients in enumerate(nodes):
                if folds.awaits(node):
                    there = [g.to(device) for g in gradients]
                    folds.take(node, [there[0], None if node == 2 else there[1]])
        like = [torch.empty(shape, device=device) for shape in shapes.values()]
        results = folds.results(like)
        assert all(sums.device.type == device for sums, _ in results)
        found.append([(sums.cpu(), report) for sums, report in results])
    for (wanted, expected), (mine, report) in zip(*found, strict=True):
        assert torch.equal(mine, wanted)
        assert report == dataclasses.replace(expected, staged_bytes=report.staged_bytes)


def test_workers_meet_on_the_gpu() -> None:
    weights = []
    for device in ("cpu", "cuda"):
        torch.manual_seed(0)
        models = [torch.nn.Linear(8, 4).to(device) for _ in range(3)]
        for model in models[1:]:
            model.load_state_dict(models[0].state_dict())
        outer = cpd.optim.DiLoCo(models, None, "e4m3", 1)
        for rank, model in enumerate(models):
            with torch.no_grad():
                model.weight.add_(torch.full_like(model.weight, 0.25 * (rank + 1)))
        outer.step()
        weights.append([p.detach().cpu() for model in models for p in model.parameters()])
    assert all(map(torch.equal, *weights))
