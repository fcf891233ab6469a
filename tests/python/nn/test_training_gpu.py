# SPDX-License-Identifier: Apache-2.0
"""Tests training steps on a GPU: compiled by inductor, under autocast, and on streams of several
threads. The CPU emulation of CUDA cannot run these tests."""

from __future__ import annotations

import copy
import threading

import pytest

import cpd

torch = pytest.importorskip("torch")

from front_ends import require_gpu_itself  # noqa: E402
from graph_cases import converted  # noqa: E402
from tensors import close, same  # noqa: E402
from tensors import normal as values  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _gpu_itself() -> None:
    require_gpu_itself("graphs, compiler and streams")


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("recipe", ["te-current", "te-delayed", "mxfp8", "nvfp4"])
def test_inductor(recipe: str, mode: str) -> None:
    """A step compiled by inductor gives results close to eager mode. The bits differ because
    inductor's own kernels of GELU and norms round differently."""
    eager = converted(recipe)
    model = copy.deepcopy(eager)
    torch._dynamo.reset()
    compiled = torch.compile(model, mode=mode)
    x = values(32, 64).cuda()
    for _ in range(3):
        results = []
        for call, owner in ((compiled, model), (eager, eager)):
            owner.zero_grad(set_to_none=True)
            y = call(x)
            y.square().mean().backward()
            results.append([z.detach().cpu() for z in (y, *(p.grad for p in owner.parameters()))])
        assert close(*results, tolerance=0.1)


@pytest.mark.parametrize(
    ("recipe", "tolerance"), [("te-current", 0.05), ("mxfp8", 0.05), ("nvfp4", 0.2)]
)
def test_autocast(recipe: str, tolerance: float) -> None:
    """Under torch.autocast, results are close to results without torch.autocast. Operands are
    rounded to bf16 first, which moves some elements to a neighboring value."""
    model = converted(recipe)
    x = values(32, 64).cuda()
    wanted = model(x)
    with torch.autocast("cuda", torch.bfloat16):
        y = model(x)
    y.float().square().mean().backward()
    assert y.dtype == torch.bfloat16
    assert (y.float() - wanted).norm() < tolerance * wanted.norm()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_threads_with_streams_of_their_own() -> None:
    """Threads with their own CUDA streams get the right results, although inputs are freed while
    kernels that read them are still running."""
    wanted = {}
    kept = {}
    for number in range(4):
        x = values(256, 512) * 2.0**number
        wanted[number] = cpd.gemm(cpd.cast(x, "mxfp8"), cpd.cast(x, "e4m3").t(), "e4m3 kahan")
        kept[number] = x

    got: dict[int, list[torch.Tensor]] = {number: [] for number in wanted}

    def calls(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                x = kept[number].cuda()
                y = cpd.gemm(cpd.cast(x, "mxfp8"), cpd.cast(x, "e4m3").t(), "e4m3 kahan")
                del x
                got[number].append(y.cpu())

    threads = [threading.Thread(target=calls, args=(number,)) for number in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, results in got.items():
        assert len(results) == 20
        assert all(same(y, wanted[number]) for y in results)


def test_no_memory_left() -> None:
    """If a GPU's memory is exhausted, a call raises torch's own error. Afterwards the memory can be
    used again."""
    x = values(1 << 20).cuda()
    wanted = cpd.sum(x.view(1024, -1), "e4m3 pairwise", 0).cpu()
    used = torch.cuda.memory_allocated() / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(used + 2**30 / torch.cuda.mem_get_info()[1])
    try:
        large = x.expand(1 << 10, -1)
        with pytest.raises(torch.OutOfMemoryError):
            cpd.cast(large, "e4m3")
        with pytest.raises(torch.OutOfMemoryError):
            cpd.cast(large, "mxfp8")
        assert same(cpd.sum(x.view(1024, -1), "e4m3 pairwise", 0).cpu(), wanted)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
