# SPDX-License-Identifier: Apache-2.0
"""Tests a GPU without memory. For each kind of operator and layer, each request for memory, of
torch or of CPD itself, is refused once.

The call must raise torch's error. The call must not leak memory or free memory twice, and the next
call must give the same bits. The tests run on the CPU emulation of CUDA, whose allocator can refuse
requests.
"""

from __future__ import annotations

import contextlib
import gc
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cpd
from front_ends import GPU_IS_CPU
from patience import scaled

torch = pytest.importorskip("torch")

if GPU_IS_CPU:
    import sitecustomize

    library, refusing = sitecustomize.library, sitecustomize.refusing

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not GPU_IS_CPU, reason="a GPU itself refuses no memory on demand"),
]

ALWAYS = 1 << 30
OWN = re.compile(r"CUDA out of memory: \d+ bytes for CPD's own use")
ANY = re.compile(r"CUDA out of memory: \d+ bytes")

Run = Callable[[], list[Any]]


def operators() -> dict[str, Run]:
    """Returns a call of each kind of operator. Each call makes new tensors."""
    x = torch.randn(16, 64, generator=torch.Generator().manual_seed(3)).cuda()
    y = x.mT.contiguous()
    codes = cpd.encode(x, "e4m3")
    scaled_codes, scales = cpd.encode(x, "mxfp8")
    out = torch.empty_like(x)
    kahan = cpd.Accumulator("e4m3 kahan")
    plain, aps = cpd.Reduce("e4m3"), cpd.Reduce("e4m3", aps=True, group_size=2)
    qsgd = cpd.Reduce("qsgd bits=4 bucket=64")
    return {
        "cast": lambda: [cpd.cast(x, "e4m3")],
        "cast of another layout": lambda: [cpd.cast(x.mT, "e4m3")],
        "add": lambda: [cpd.add(x, x, "e4m3")],
        "fma": lambda: [cpd.fma(x, x, x, "e4m3")],
        "sqrt": lambda: [cpd.sqrt(x.abs(), "e4m3")],
        "encode": lambda: [cpd.encode(x, "e4m3")],
        "decode": lambda: [cpd.decode(codes, "e4m3", x.shape)],
        "sum": lambda: [cpd.sum(x, kahan, axis=1)],
        "gemm": lambda: [cpd.gemm(x, y, kahan)],
        "gemm of a unit": lambda: [cpd.gemm(cpd.cast(x, "fp16"), cpd.cast(y, "fp16"), "h100-fp16")],
        "gemm by blas": lambda: [cpd.gemm(x[:, ::2], y[::2], "fp32", blas=True)],
        "hadamard": lambda: [cpd.hadamard(x, "hadamard16")],
        "scaled cast": lambda: [cpd.cast(x, "mxfp8")],
        "scaled cast into": lambda: [cpd.cast(x, "mxfp8", out=out)],
        "scaled cast of two levels": lambda: [cpd.cast(x, "nvfp4")],
        "scaled cast by given scales": lambda: [cpd.cast(x, "fp8-tensor", amax=3.0)],
        "scaled encode": lambda: list(cpd.encode(x, "mxfp8")),
        "simulate_all_reduce": lambda: cpd.simulate_all_reduce([[x], [x]], plain),
        "simulate_all_reduce, APS": lambda: cpd.simulate_all_reduce([[x], [x]], aps),
        "simulate_all_reduce, qsgd": lambda: cpd.simulate_all_reduce([[x], [x]], qsgd),
        "scaled decode": lambda: [cpd.decode(scaled_codes, "mxfp8", x.shape, scales=scales)],
    }


def layers() -> dict[str, Run]:
    """Returns a training step for each kind of converted layer. A step returns the result and the
    gradients."""
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(5)).cuda()
    image = x.reshape(2, 4, 4, 4)

    def run(recipe: Any, layer: Any, given: Any) -> Run:
        torch.manual_seed(7)
        model = torch.nn.Sequential(layer()).cuda()
        cpd.convert(model, recipe, coverage=0)

        def call() -> list[Any]:
            model.zero_grad(set_to_none=True)
            entering = given.clone().requires_grad_()
            y = model(entering)
            y.square().sum().backward()
            return [y.detach(), entering.grad, *(p.grad for p in model.parameters())]

        return call

    def linear() -> Any:
        return torch.nn.Linear(32, 32)

    return {
        "linear, mxfp8": run("mxfp8", linear, x),
        "linear, kahan": run(cpd.Recipe(sums="e4m3 kahan"), linear, x),
        "convolution, mxfp8": run("mxfp8", lambda: torch.nn.Conv2d(4, 4, 3, padding=1), image),
    }


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    yield
    gc.unfreeze()


@contextlib.contextmanager
def nothing_is_lost() -> Iterator[None]:
    """Asserts that the block frees all that it allocates: torch's tensors, and device memory of
    torch and of CPD. Freeing memory twice ends the process
    (tests/testing/cuda_on_cpu/memory.cpp)."""

    def in_use() -> tuple[int, int]:
        gc.collect()
        pieces = library.cuda_on_cpu_pieces()
        return pieces, library.cuda_on_cpu_allocated() - library.cuda_on_cpu_freed()

    before = in_use()
    yield
    assert in_use() == before


def requests(run: Run) -> int:
    """Returns the number of requests for memory that a call makes to torch's allocator."""
    before = library.cuda_on_cpu_asked()
    run()
    return library.cuda_on_cpu_asked() - before


def error_of(run: Run) -> str:
    try:
        run()
    except torch.OutOfMemoryError as error:
        return str(error)
    pytest.fail("no error")


def hosts(tensors: list[Any]) -> list[Any]:
    return [t.cpu() for t in tensors]


def assert_equal(got: list[Any], wanted: list[Any]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


def check_each_request(run: Run) -> int:
    """Repeats a call for each of its requests for memory. Refuses this request and all later ones,
    and checks the error. If CPD made the request, also refuses this request alone. Returns the
    number of CPD's own requests."""
    wanted = hosts(run())
    gc.freeze()  # the modules that the first call imported, so that collecting takes no time
    own = 0
    for after in range(requests(run)):
        with nothing_is_lost():
            with refusing(ALWAYS, after):
                error = error_of(run)
            assert ANY.match(error), error
            assert_equal(hosts(run()), wanted)
            if OWN.match(error):
                own += 1
                check_retry(run, after, wanted)
    return own


def check_retry(run: Run, after: int, wanted: list[Any]) -> None:
    """If a request of CPD is refused once, CPD frees the unused memory of its pool and requests the
    memory again."""
    trims = library.cuda_on_cpu_trims()
    with refusing(1, after):
        got = run()
    assert library.cuda_on_cpu_trims() == trims + 1
    assert_equal(hosts(got), wanted)


@pytest.mark.usefixtures("gpu")
def test_operators() -> None:
    own = {name: check_each_request(run) for name, run in operators().items()}
    assert own["cast"] == own["gemm"] == own["sum"] == 0  # these make no requests of CPD's own
    assert own["simulate_all_reduce"] > 0
    assert own["gemm by blas"] > 0
    assert min(count for name, count in own.items() if name.startswith("scaled")) > 0


@pytest.mark.usefixtures("gpu")
def test_layers() -> None:
    own = {name: check_each_request(run) for name, run in layers().items()}
    assert own["linear, mxfp8"] > 0


LOADED = """
import sys, torch, sitecustomize
from pathlib import Path

def loaded(name):
    return name in Path("/proc/self/maps").read_text()

from cpd import _core
assert not loaded("libcpd_cuda") and not loaded("libcpd_torch")
if sys.argv[1] == "kernels first":
    _core.release_cuda_memory(0)
    assert loaded("libcpd_cuda") and not loaded("libcpd_torch")
else:
    import cpd._torch.library
    assert loaded("libcpd_torch") and not loaded("libcpd_cuda")

import cpd
x = torch.ones(64, 64).cuda()
out = torch.empty_like(x)
before = sitecustomize.library.cuda_on_cpu_asked()
cpd.cast(x, "mxfp8", out=out)
assert sitecustomize.library.cuda_on_cpu_asked() > before
with sitecustomize.refusing(1 << 30):
    cpd.cast(x, "mxfp8", out=out)
"""


@pytest.mark.usefixtures("gpu")
def test_whichever_library_is_loaded_first() -> None:
    for order in ("kernels first", "operators first"):
        command = [sys.executable, "-c", LOADED, order]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=scaled(120))
        assert re.search(rf"torch.OutOfMemoryError: {OWN.pattern}$", ended.stderr.strip()), order
