# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.comm`, virtual ranks and `VirtualNodes` with two GPUs while the first GPU is current.
Results have the bits of tensors on the CPU, and lie on the layers' GPU. With one GPU the tests are
skipped."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cpd = pytest.importorskip("cpd")

from torch import nn  # noqa: E402

import comm_cases  # noqa: E402
from front_ends import few_on_cpu  # noqa: E402
from patience import scaled  # noqa: E402
from tensors import normal, same  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("two_gpus"),
    pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning"),
    pytest.mark.timeout(300),
]
FIRST, SECOND = "cuda:0", "cuda:1"
FP32 = cpd.Reduce("fp32")
SIZES = (3000, 0, 33)


def on(device: str, layers: list[Any]) -> list[torch.Tensor]:
    return [torch.as_tensor(layer).to(device) for layer in layers]


def from_(device: str, layers: list[torch.Tensor]) -> list[Any]:
    assert all(str(layer.device) == device for layer in layers)
    return [layer.cpu().numpy() for layer in layers]


def test_ranks_with_a_gpu_each() -> None:
    """Ranks that are threads, each with layers on its own GPU, get the bits of simulate_all_reduce
    on the CPU. The first GPU is torch's current device in every thread."""
    with cpd.comm.local(2, timeout=scaled(60), chunk=4096) as group:
        for index in few_on_cpu(range(2 * len(comm_cases.ways(2))), 1):
            spec, step = comm_cases.spec_at(2, index)

            def reduce(comm: Any, spec: Any = spec, step: int = step, index: int = index) -> Any:
                assert torch.cuda.current_device() == 0
                mine = on(f"cuda:{comm.rank}", comm_cases.layers_of(comm.rank, SIZES, index))
                got, report = comm.all_reduce(mine, spec, report=True, step=step)
                return from_(f"cuda:{comm.rank}", got), report

            wanted, reports = comm_cases.virtual(spec, 2, SIZES, index, step=step)
            for got, report in group.run(reduce):
                assert comm_cases.same(got, wanted), spec
                assert report.tensors == reports, spec


CODECS = ["qsgd bits=4 bucket=8", "terngrad", "one_bit bucket=8", "int8_rows", "int4 bucket=8",
          "feedback int4 bucket=8", "top_k 0.25", "uniform"]  # fmt: skip


@pytest.mark.parametrize("text", CODECS)
def test_states_of_codecs_change_gpus(text: str) -> None:
    """Tests virtual ranks whose layers move from one GPU to the other between calls. Tests also
    real ranks with a GPU each, which then exchange their GPUs."""
    spec = cpd.Reduce(text)
    layers = [[normal(6, 8, seed=rank), normal(5, seed=7 + rank)] for rank in range(2)]
    turns = [FIRST, SECOND, FIRST]

    def virtual(places: list[str]) -> list[Any]:
        kept, sums = cpd.compress.States(), []
        for place in places:
            there = [on(place, mine) for mine in layers]
            sums += from_(place, cpd.simulate_all_reduce(there, spec, states=kept))
        return sums

    def real(turns: list[tuple[str, str]], comm: Any) -> list[Any]:
        kept, sums = cpd.compress.States(), []
        for places in turns:
            place = places[comm.rank]
            mine = on(place, layers[comm.rank])
            sums += from_(place, comm.all_reduce(mine, spec, states=kept, step=0))
        return sums

    assert comm_cases.same(virtual(turns), virtual(["cpu"] * 3))
    swapped = [(FIRST, SECOND), (SECOND, FIRST), (FIRST, SECOND)]
    with cpd.comm.local(2, timeout=scaled(60)) as group:
        wanted = group.run(functools.partial(real, [("cpu", "cpu")] * 3))
        got = group.run(functools.partial(real, swapped))
    for one, other in zip(got, wanted, strict=True):
        assert comm_cases.same(one, other)


def test_streams_of_the_second() -> None:
    """An all-reduce of tensors on a stream of the second GPU reads its input after the work that
    was queued on this stream before the call."""

    def calls(comm: Any) -> float:
        device = f"cuda:{1 - comm.rank}"
        with torch.cuda.stream(torch.cuda.Stream(device)):
            x = torch.zeros(1 << 12, device=device)
            for _ in range(20):
                x += 0.5
            (got,) = comm.all_reduce([x], FP32)
            return float((got + 1).min())

    with cpd.comm.local(2, timeout=scaled(60)) as group:
        assert group.run(calls) == [21.0, 21.0]


def test_other_operations() -> None:
    spec = cpd.Reduce("e4m3", accumulator=cpd.Accumulator("e5m10 kahan"), order="ring", aps=True)
    wanted, _ = comm_cases.virtual(spec, 2, SIZES, 5)

    def calls(comm: Any) -> None:
        place = f"cuda:{comm.rank}"
        mine = on(place, comm_cases.layers_of(comm.rank, SIZES, 5))
        total = comm.reduce(mine, spec, 1, step=0)
        assert total is None or comm_cases.same(from_(place, total), wanted)
        parts = [comm_cases.slice_of(x, comm.rank, 2) for x in wanted]
        assert comm_cases.same(from_(place, comm.reduce_scatter(mine, spec, step=0)), parts)
        for rank, layers in enumerate(comm.all_gather(mine, "e4m3")):
            casts = [cpd.cast(x, "e4m3") for x in comm_cases.layers_of(rank, SIZES, 5)]
            assert comm_cases.same(from_(place, layers), casts)

    with cpd.comm.local(2, timeout=scaled(60)) as group:
        group.run(calls)


def test_layers_on_both_are_refused() -> None:
    a, b = torch.ones(3, device=FIRST), torch.ones(3, device=SECOND)
    empty = torch.ones(0, device=SECOND)
    with cpd.comm.local(1) as group:
        comm = group.ranks[0]
        for layers in ([a, b], [a, empty], [a, np.ones(3, np.float32)]):
            with pytest.raises(
                ValueError, match="all be on one device, got tensor 0 on cuda:0, te"
            ):
                comm.all_reduce(layers, FP32)
        with pytest.raises(ValueError, match="on the tensors' device, cuda:0, got cuda:1"):
            comm.all_reduce([a], FP32, out=[b])
    places = "must be on one device, got one on cuda:0, one on cuda:1"
    with pytest.raises(ValueError, match=places):
        cpd.simulate_all_reduce([[a], [b]], FP32)
    assert b.tolist() == [1, 1, 1]


@pytest.mark.parametrize("places", [(SECOND, SECOND), (SECOND, FIRST)])
@pytest.mark.parametrize("wire", [None, "one_bit bucket=8"])
def test_virtual_nodes(wire: str | None, places: tuple[str, str]) -> None:
    """`VirtualNodes` gives the CPU's weights for a model on the second GPU. A model with layers on
    both GPUs also gets the CPU's weights, and its gradients are summed on the CPU."""
    spec = cpd.Reduce("e4m3", aps=True) if wire is None else cpd.Reduce(wire)
    weights = []
    for first, second in (("cpu", "cpu"), places):
        torch.manual_seed(0)
        layers = nn.Linear(16, 8), nn.Linear(8, 4)
        model = nn.ModuleList([layers[0].to(first), layers[1].to(second)])
        nodes = cpd.VirtualNodes(model, 2, spec)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

        def loss(x: Any, model: Any = model, places: Any = (first, second)) -> torch.Tensor:
            y = model[0](x.to(places[0]))
            return model[1](y.to(places[1])).square().sum()

        for step in range(2):
            nodes.step(loss, normal(4, 16, seed=step))
            optimizer.step()
        assert [str(p.grad.device) for p in model.parameters()] == [first] * 2 + [second] * 2
        weights.append([p.detach().cpu() for p in model.parameters()])
    assert torch.cuda.current_device() == 0
    assert same(*weights)


def test_outer_workers_on_the_second() -> None:
    averages = []
    for place in ("cpu", SECOND):
        torch.manual_seed(0)
        first = nn.Linear(16, 8).to(place)
        workers = [first, copy.deepcopy(first)]
        outer = cpd.optim.WeightAverage(workers, None, cpd.Reduce("mxfp8"), 1)
        for worker, seed in zip(workers, (1, 2), strict=True):
            with torch.no_grad():
                worker.weight.add_(normal(8, 16, seed=seed).to(place))
        outer.step()
        assert all(str(p.device) == place for w in workers for p in w.parameters())
        averages.append([p.detach().cpu() for w in workers for p in w.parameters()])
    assert same(*averages)
