# SPDX-License-Identifier: Apache-2.0
"""Tests that CUDA tensors give the bits that CPU tensors give.

Without a GPU the tests are skipped, or fail if the environment requires a GPU.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")
cpd = pytest.importorskip("cpd")

import graph_cases  # noqa: E402
from by_keywords import by_keywords  # noqa: E402
from cpd import _core  # noqa: E402
from front_ends import require_gpu_itself  # noqa: E402
from patience import scaled  # noqa: E402
from tensors import same  # noqa: E402

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

MODES = ["nearest_even", "nearest_away", "toward_zero", "up", "down", "to_odd", "stochastic"]
FORMATS = ["e4m3", "e5m2", "e3m0", "e6m9", "bf16", "fp16", "e4m3fn", "e4m3fnuz", "e8m0", "e2m1"]


def inputs(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(n)
    bits = torch.randint(-(2**31), 2**31, (n,), generator=generator, dtype=torch.int64)
    return bits.to(torch.int32).view(torch.float32)


@pytest.mark.parametrize("overflow", ["ieee", "saturate"])
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("name", FORMATS)
def test_cast_is_the_cpus(name: str, rounding: str, overflow: str) -> None:
    x = inputs(10_007)
    options = {"rounding": rounding, "overflow": overflow}
    expected = by_keywords(cpd.cast, x, cpd.Format(name), **options)
    got = by_keywords(cpd.cast, x.cuda(), cpd.Format(name), **options)
    assert got.is_cuda
    assert same(expected, got)


@pytest.mark.parametrize("random_bits", [1, 8, 9, 16, 17, 24])
def test_stochastic_on_strided_tensors(random_bits: int) -> None:
    x = inputs(90 * 77).view(90, 77).t()[:, ::2]
    options = {"rounding": "stochastic", "random_bits": random_bits, "seed": 7, "stream": 9}
    on_gpu = inputs(90 * 77).cuda().view(90, 77).t()[:, ::2]
    expected = by_keywords(cpd.cast, x, cpd.Format("e4m3"), **options)
    assert same(expected, by_keywords(cpd.cast, on_gpu, cpd.Format("e4m3"), **options))


@pytest.mark.parametrize("name", FORMATS)
def test_codes(name: str) -> None:
    x = inputs(5_001).nan_to_num(nan=1.0, posinf=3.0, neginf=-3.0)
    f = cpd.Format(name)
    codes = cpd.encode(x, f)
    on_gpu = cpd.encode(x.cuda(), f)
    assert same(codes, on_gpu)
    assert same(cpd.decode(codes, f, x.shape), cpd.decode(on_gpu, f, x.shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rounding", MODES)
@pytest.mark.parametrize("name", ["add", "mul", "fma"])
def test_operations_are_the_cpus(name: str, rounding: str, dtype: torch.dtype) -> None:
    f, operation = cpd.Format("e4m3"), getattr(cpd, name)
    operands = [inputs(2_000 + i).to(dtype)[:1_999] for i in range(3 if name == "fma" else 2)]
    expected = by_keywords(operation, *operands, f, rounding=rounding)
    got = by_keywords(operation, *(x.cuda() for x in operands), f, rounding=rounding)
    assert got.is_cuda
    assert same(expected, got)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("rounding", ["nearest_even", "down", "stochastic"])
@pytest.mark.parametrize("scheme", ["sequential", "kahan", "chunked", "pairwise"])
def test_sums_are_the_cpus(scheme: str, rounding: str, dtype: torch.dtype) -> None:
    acc = cpd.Accumulator(
        "e6m9" if dtype != torch.bfloat16 else "e4m3", scheme=scheme, rounding=rounding
    )
    x = inputs(60 * 77).to(dtype).view(60, 77)
    for dim in (0, 1):
        assert same(cpd.sum(x, acc, dim), cpd.sum(x.cuda(), acc, dim))


def test_sums_and_products_take_given_integers() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 7, generator=generator)
    for scheme in ("sequential", "kahan", "pairwise", "chunked chunk=3"):
        acc = cpd.Accumulator(f"e4m3 {scheme} rounding=stochastic random_bits=5")
        shapes = (6, acc.sum_integers(7)), (6, 6, acc.gemm_integers(7))
        of_sum, of_gemm = (
            torch.randint(0, 32, shape, generator=generator).to(torch.uint32) for shape in shapes
        )
        for turned in (lambda r: r, lambda r: r.mT.contiguous().mT):  # the second is not contiguous
            assert same(
                cpd.sum(x, acc, 1, random=of_sum),
                cpd.sum(x.cuda(), acc, 1, random=turned(of_sum.cuda())),
            )
            assert same(
                cpd.gemm(x, x.t(), acc, random=of_gemm),
                cpd.gemm(x.cuda(), x.cuda().t(), acc, random=turned(of_gemm.cuda())),
            )
    greater = torch.full((6, acc.sum_integers(7)), 32, dtype=torch.uint32, device="cuda")
    with pytest.raises(ValueError, match=r"random must be 0…2\^5 - 1"):
        cpd.sum(x.cuda(), acc, 1, random=greater)


def test_what_only_values_tell_is_raised_later() -> None:
    """An error that depends on values on the GPU is raised later, unless CPD_CHECK=sync is set.
    cpd.check_cuda or the next call on the device raises the error. The call itself raises the error
    only if the checking kernel ends before the call's last kernel starts."""
    script = (
        "import cpd, torch\n"
        "x = torch.full((4, 16), 0.3, device='cuda')\n"
        "random = torch.full((4, 16), 9, dtype=torch.int32, device='cuda')\n"
        "calls = (\n"
        "    ('a must hold values of e4m3fn', lambda: cpd.gemm(x, x.t(), 'h100-fp8')),\n"
        "    ('below 2.random_bits = 8', lambda: cpd.cast(\n"
        "        x, 'e4m3 stochastic random_bits=3', random=random)),\n"
        ")\n"
        "import re\n"
        "def next_call():\n"
        "    torch.cuda.synchronize()\n"
        "    cpd.cast(x, 'e4m3')\n"
        "for text, call in calls:\n"
        "    for later in (cpd.check_cuda, next_call):\n"
        "        try:\n"
        "            call()\n"
        "            later()\n"
        "        except ValueError as error:\n"
        "            assert re.search(text, str(error)) and 'earlier call' in str(error), error\n"
        "        else:\n"
        "            raise AssertionError(text)\n"
        "        cpd.check_cuda()\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "CPD_CHECK"}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_nan_without_a_code_is_an_error() -> None:
    x = torch.ones(1000, device="cuda")
    x[77] = float("nan")
    with pytest.raises(ValueError, match="element 77 is NaN"):
        cpd.encode(x, cpd.Format("e2m1"))


def test_in_place_and_empty() -> None:
    x = inputs(1_000)
    y = x.cuda()
    cpd.cast(y, cpd.Format("e4m3"), out=y)
    assert same(cpd.cast(x, cpd.Format("e4m3")), y)
    assert cpd.cast(torch.empty(0, device="cuda"), cpd.Format("e4m3")).numel() == 0


def test_one_thread_copies_while_another_frees() -> None:
    """One thread may copy tensors to the GPU while another thread frees the memory of virtual
    ranks. A deadlock over the GIL must not occur. The test runs in a process of its own, because
    deadlocked threads cannot be ended."""
    script = (
        "import threading, torch, cpd\n"
        "x, done = torch.ones(4, device='cuda'), threading.Event()\n"
        "def copies():\n"
        "    for _ in range(500): torch.ones(4).cuda()\n"
        "    done.set()\n"
        "def frees():\n"
        "    while not done.is_set(): cpd.simulate_all_reduce([[x], [x]], 'e4m3')\n"
        "threads = [threading.Thread(target=run) for run in (copies, frees)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=scaled(120))


def on_gpu(number: int) -> torch.Tensor:
    return torch.tensor([number], dtype=torch.int64, device="cuda")


@pytest.mark.parametrize("seed", [5, -3])
@pytest.mark.parametrize("name", ["e4m3", "e6m9"])
def test_seed_and_stream_may_lie_on_the_gpu(name: str, seed: int) -> None:
    x = inputs(5_001)
    f, y = cpd.Format(name), x.cuda()
    numbers = {"seed": on_gpu(seed), "stream": on_gpu(9)}
    torch.cuda.set_sync_debug_mode("error")
    try:
        got = cpd.cast(y, cpd.Cast(f, rounding="stochastic"), **numbers)
        codes = cpd.encode(y, cpd.Cast(f, rounding="stochastic"), **numbers)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    options = {"rounding": "stochastic", "seed": seed % 2**64, "stream": 9}
    assert same(by_keywords(cpd.cast, x, f, **options), got)
    assert same(by_keywords(cpd.encode, x, f, **options), codes)


def test_a_graph_takes_a_new_stream_at_each_replay() -> None:
    require_gpu_itself("graphs")
    x = inputs(70_001)
    f, y = cpd.Format("e4m3"), x.cuda()
    seed, stream = on_gpu(5), on_gpu(0)

    def step() -> tuple[torch.Tensor, torch.Tensor]:
        options = {"rounding": "stochastic", "seed": seed, "stream": stream, "random_bits": 8}
        results = by_keywords(cpd.cast, y, f, **options), by_keywords(cpd.encode, y, f, **options)
        stream.add_(1)
        return results

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()  # kernels are loaded before a capture
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, codes = step()
    stream.fill_(100)
    seen = set()
    for number in range(100, 104):
        graph.replay()
        options = {"rounding": "stochastic", "seed": 5, "stream": number, "random_bits": 8}
        assert same(by_keywords(cpd.cast, x, f, **options), got)
        assert same(by_keywords(cpd.encode, x, f, **options), codes)
        seen.add(codes.cpu().numpy().tobytes())
    assert stream.item() == 104
    assert len(seen) == 4


def test_numbers_on_the_gpu_need_x_there() -> None:
    for numbers in ({"seed": on_gpu(1)}, {"stream": on_gpu(1)}):
        with pytest.raises(ValueError, match="must be on the CPU or on x's device, got cuda"):
            cpd.cast(inputs(10), cpd.Cast(cpd.Format("e4m3"), rounding="stochastic"), **numbers)


def test_more_elements_than_int32_counts() -> None:
    require_gpu_itself("memory for that")
    n = 2**31 + 4_099
    if torch.cuda.mem_get_info()[0] < 40 * 2**30:
        pytest.skip("needs 40 GiB of GPU memory")
    f = cpd.Format("e4m3")
    tail = inputs(4_096 + 4_099)
    x = torch.ones(n, device="cuda")
    x[-tail.numel() :] = tail.cuda()
    y = cpd.cast(x, f)
    assert same(cpd.cast(tail, f), y[-tail.numel() :])
    assert bool((y[: -tail.numel()] == 1).all())
    codes = cpd.encode(x, f)
    assert same(cpd.encode(tail, f), codes[-tail.numel() :])
    assert same(y[-tail.numel() :], cpd.decode(codes, f, n)[-tail.numel() :])
    integers = np.empty(tail.numel(), np.uint32)
    _core.random_integers(
        _core.RoundingOptions("stochastic", "ieee", 24, "A"), n - tail.numel(), integers
    )
    expected = cpd.cast(
        tail, cpd.Cast(f, rounding="stochastic"), random=torch.from_numpy(integers.astype(np.int32))
    )
    cpd.cast(x, cpd.Cast(f, rounding="stochastic"), out=x)
    assert same(expected, x[-tail.numel() :])


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str
)
def test_every_type_as_on_the_cpu(dtype):
    x = inputs(33 * 65).view(33, 65).to(dtype)
    clean = x.nan_to_num(1.0)
    for f, mode in itertools.product(("e4m3", "e4m3fn", "e5m2", "e2m1", "e4m2:nosub"), MODES):
        options = {"rounding": mode, "seed": 3, "stream": 4}
        assert same(
            by_keywords(cpd.cast, x.cuda(), f, **options).cpu(),
            by_keywords(cpd.cast, x, f, **options),
        )
        assert same(
            by_keywords(cpd.cast, x.cuda().t(), f, **options).cpu(),
            by_keywords(cpd.cast, x.t(), f, **options),
        )
        codes = by_keywords(cpd.encode, clean.cuda(), f, **options)
        assert same(codes.cpu(), by_keywords(cpd.encode, clean, f, **options))
        assert same(cpd.decode(codes, f, x.shape).cpu(), cpd.decode(codes.cpu(), f, x.shape))


def test_stream_and_in_place():
    x = inputs(1 << 20).cuda()
    wanted = cpd.cast(x, "e4m3")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = x.clone()
        assert cpd.cast(y, "e4m3", out=y) is y
        stochastic = cpd.cast(x, "e4m3 stochastic", stream=torch.tensor(3, device="cuda"))
    torch.cuda.current_stream().wait_stream(side)
    assert same(y.cpu(), wanted.cpu())
    assert same(stochastic.cpu(), cpd.cast(x.cpu(), "e4m3 stochastic", stream=3))


def test_graphs() -> None:
    """A CUDA graph captures and replays operations and training steps. CPD_CHECK is unset, because
    calls that are checked at once cannot be captured."""
    require_gpu_itself("graphs")
    environment = {name: value for name, value in os.environ.items() if name != "CPD_CHECK"}
    done = subprocess.run(
        [sys.executable, graph_cases.__file__], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
