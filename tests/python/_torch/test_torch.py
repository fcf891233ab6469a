# SPDX-License-Identifier: Apache-2.0
"""Tests the features that the torch front end alone has: seeds as tensors, negated or overlapping
views, torch's own checks of operators, gradients. Tests such as test_cast.py compare the bits on
every front end."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import cpd
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from tensors import compiled, same  # noqa: E402

E4M3 = cpd.Format("e4m3")


def values(shape, dtype=torch.float32, seed=0):
    """Returns normal numbers over many binades. The first seven values are special (zeros,
    infinities, NaN, …) if the tensor is contiguous and has room for them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    x = x * torch.exp2(torch.randint(-12, 12, x.shape, generator=generator).double())
    special = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan"), 464.0, 1e-30])
    if x.numel() >= 7 and x.is_contiguous():
        x.view(-1)[:7] = special
    return x.to(dtype)


# ---- seeds, streams and texts ------------------------------------------------------------------


def test_seed_and_stream_as_tensors():
    x = values(1000)
    for seed, stream in itertools.product((0, 7, 2**63, 2**64 - 1), repeat=2):
        wanted = cpd.cast(x, cpd.Cast(E4M3, rounding="stochastic"), seed=seed, stream=stream)
        numbers = [torch.from_numpy(np.array(v, np.uint64).view(np.int64)) for v in (seed, stream)]
        got = cpd.cast(
            x,
            cpd.Cast(E4M3, rounding="stochastic"),
            seed=numbers[0],
            stream=numbers[1].reshape(1, 1),
        )
        assert same(got, wanted)
        unsigned = torch.tensor(seed, dtype=torch.uint64)
        assert same(
            cpd.cast(x, cpd.Cast(E4M3, rounding="stochastic"), seed=unsigned, stream=stream), wanted
        )


def test_seed_on_another_device_is_refused():
    x = values(10)
    elsewhere = torch.zeros((), dtype=torch.int64, device="meta")
    for options in ({"seed": elsewhere}, {"stream": elsewhere}):
        for operation in (cpd.cast, cpd.encode):
            with pytest.raises(ValueError, match="must be on the CPU or on x's device, got meta"):
                by_keywords(operation, x, "e2m1", "stochastic", **options)


def test_texts_of_many_threads():
    """Each thread caches the objects that spec texts stand for. The cache is bounded, and results
    stay right when it overflows."""
    x = torch.linspace(0, 3, 7)
    formats = [f"e{exp}m{man}" for exp in range(2, 8) for man in range(24)]
    texts = [f"{f} {scheme}" for f in formats for scheme in ("sequential", "pairwise")]
    assert len(texts) > 256
    wanted = {text: cpd.sum(x.numpy(), text).item() for text in texts}

    def run(turn):
        order = texts[turn * 40 :] + texts[: turn * 40]
        return all(
            cpd.sum(x, text).item() == wanted[text]
            and cpd.cast(x[2:3], cpd.Cast(text.split(" ")[0], rounding="up")).item() == 1
            for text in order * 2
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(run, range(6)))


# ---- layouts -----------------------------------------------------------------------------------


def test_channels_last():
    x = values((2, 3, 4, 5)).contiguous(memory_format=torch.channels_last)
    for mode in ("nearest_even", "stochastic"):
        wanted = cpd.cast(
            x.clone(memory_format=torch.contiguous_format), cpd.Cast(E4M3, rounding=mode)
        )
        assert same(cpd.cast(x, cpd.Cast(E4M3, rounding=mode)), wanted)
        out = torch.empty_like(wanted)
        assert cpd.cast(x, cpd.Cast(E4M3, rounding=mode), out=out) is out
        assert same(out, wanted)


def negated(x):
    """Returns a view with the values of `x`, in which torch negates each value when it is read."""
    view = torch._neg_view(-x)
    assert view.is_neg()
    return view


def test_negated_views_as_inputs():
    x, y, z = (values((4, 5), seed=s).nan_to_num(1.0) for s in range(3))
    imaginary = torch.complex(y, -x).conj().imag
    assert imaginary.is_neg()
    for view in (negated(x), negated(x.t().contiguous()).t(), imaginary):
        assert same(cpd.cast(view, E4M3), cpd.cast(x, E4M3))
        assert same(
            cpd.cast(view, cpd.Cast(E4M3, rounding="stochastic")),
            cpd.cast(x, cpd.Cast(E4M3, rounding="stochastic")),
        )
        assert same(cpd.encode(view, E4M3), cpd.encode(x, E4M3))
        assert same(cpd.fma(view, y, negated(z), E4M3), cpd.fma(x, y, z, E4M3))
        assert same(cpd.sum(view, "e4m3 kahan"), cpd.sum(x, "e4m3 kahan"))
        assert same(cpd.gemm(view, y.t(), E4M3, view[:, :4]), cpd.gemm(x, y.t(), E4M3, x[:, :4]))
        out = torch.empty(4, 5)
        assert same(cpd.mul(view, y, E4M3, out=out), cpd.mul(x, y, E4M3))
        run = torch.compile(lambda x: cpd.cast(x, E4M3), fullgraph=True, backend="aot_eager")
        assert same(run(view), cpd.cast(x, E4M3))


NEGATED_OUTS = (
    lambda: torch._neg_view(torch.empty(4, 5)),
    lambda: torch._neg_view(torch.empty(5, 4)).t(),
    lambda: torch.empty(4, 5, dtype=torch.complex64).conj().imag,
)


@pytest.mark.parametrize("make", NEGATED_OUTS)
def test_negated_views_as_out(make):
    x, y = (values((4, 5), seed=s).nan_to_num(1.0) for s in range(2))
    out = make()
    assert out.is_neg()
    version = out._version
    assert cpd.cast(x, E4M3, out=out) is out
    assert same(out.resolve_neg(), cpd.cast(x, E4M3))
    assert out.is_neg()
    assert out._version > version
    assert same(cpd.mul(x, negated(y), E4M3, out=out).resolve_neg(), cpd.mul(x, y, E4M3))
    codes = cpd.encode(x, E4M3)
    decoded = cpd.decode(codes, E4M3, (4, 5))
    assert same(cpd.decode(codes, E4M3, (4, 5), out=out).resolve_neg(), decoded)


def test_a_negated_view_as_out_may_be_x_and_compiled():
    x = values((4, 5))
    view = negated(x)
    assert cpd.cast(view, E4M3, out=view) is view
    assert same(view.resolve_neg(), cpd.cast(x, E4M3))
    run, _ = compiled(lambda x, out: cpd.cast(x, E4M3, out=out))
    out = torch._neg_view(torch.empty(4, 5))
    run(x, out)
    assert same(out.resolve_neg(), cpd.cast(x, E4M3))


def test_out_must_not_overlap_itself():
    x = values((3, 4))
    outs = torch.empty(4).expand(3, 4), torch.empty(3, 1).expand(3, 4), torch.empty(1).expand(3, 4)
    for out in (*outs, torch.empty(20).as_strided((3, 4), (2, 1))):
        with pytest.raises(ValueError, match="out must not overlap itself"):
            cpd.cast(x, E4M3, out=out)
    for out in outs:
        with pytest.raises(ValueError, match="out must not overlap itself, got stride 0"):
            torch.ops.cpd.cast_out(x, "e4m3", None, None, None, out=out)
        run = torch.compile(
            lambda x, out: cpd.cast(x, E4M3, out=out), fullgraph=True, backend="eager"
        )
        with pytest.raises(Exception, match="out must not overlap itself"):
            run(x, out)
    out = torch.empty(1, 4).expand(1, 4)
    assert same(cpd.cast(x[:1], E4M3, out=out), cpd.cast(x[:1], E4M3))


# ---- torch's own checks ------------------------------------------------------------------------


def operators():
    x, y, z = (values((3, 5), seed=s).nan_to_num(1.0, 1.0, 1.0) for s in range(3))
    number = torch.tensor(5)
    plain = ("e4m3", None, None)
    text = "rounding=stochastic overflow=saturate variant=B random_bits=8"
    stochastic = (f"e4m3 {text}", number, number)
    random = torch.full((3, 5), 3, dtype=torch.int32)
    codes = cpd.encode(x, "e4m3")
    ops = torch.ops.cpd
    for options in (plain, stochastic):
        yield ops.cast, (x, *options, None), {}
        yield ops.encode, (x, *options, None), {}
        yield ops.add, (x, y, *options, None), {}
        yield ops.mul, (x, y.t().contiguous().t(), *options, None), {}
        yield ops.fma, (x, y, z, *options, None), {}
    yield ops.sum, (x, 1, "e4m3 kahan", None, None, None), {}
    yield ops.sum, (x, 1, f"e4m3 chunked chunk=2 inner=e5m2 {text}", number, number, None), {}
    for operator in (ops.cast, ops.encode):
        yield operator, (x, *stochastic, random), {}
    for operator in (ops.add, ops.mul):
        yield operator, (x, y, *stochastic, random), {}
    yield ops.fma, (x, y, z, *stochastic, random), {}
    draws = torch.full((3, 5), 200, dtype=torch.int32)
    yield ops.sum, (x, 1, f"e4m3 sequential {text}", number, number, draws), {}
    yield ops.decode, (codes, "e4m3", (3, 5), torch.float16), {}
    packed, (scales, outer) = cpd.encode(x, "nvfp4")
    q = "nvfp4", -1
    amax = torch.tensor(2.0)
    for numbers in (("e2m1", None, None), (f"e2m1 {text}", number, number)):
        for given in ((None,) * 3, (None, None, amax), (scales, outer, None)):
            how, seed, stream = numbers
            yield ops.cast_scaled, (x, *q, how, *given, seed, stream, None, None), {}
        yield ops.encode_scaled, (x, *q, how, *given, seed, stream, None), {}
    blocks = "fp8-block arithmetic=te", -1, "e4m3fn overflow=saturate"
    yield ops.cast_scaled, (x.bfloat16(), *blocks, *(None,) * 6, torch.float32), {}
    mxfp6 = x, "mxfp6-e3m2", 0, f"e3m2 {text}"
    yield ops.encode_scaled, (*mxfp6, None, None, None, number, number, random), {}
    yield ops.decode_scaled, (packed, *q, scales, outer, (3, 5), torch.float16), {}
    arguments = x, *q, "e2m1", None, None, amax, None, None, None
    yield ops.cast_scaled_out, arguments, {"out": torch.empty(3, 5)}
    yield ops.decode_scaled_out, (packed, *q, scales, outer), {"out": torch.empty(3, 5)}
    yield ops.cast_out, (x, *plain, None), {"out": torch.empty(3, 5)}
    yield ops.add_out, (x, y, *plain, None), {"out": torch.empty(3, 5)}
    yield ops.mul_out, (x, y, *plain, None), {"out": torch.empty(3, 5)}
    yield ops.fma_out, (x, y, z, *plain, None), {"out": torch.empty(3, 5)}
    yield ops.fma_out, (x, y, z, *stochastic, random), {"out": torch.empty(3, 5)}
    yield ops.decode_out, (codes, "e4m3"), {"out": torch.empty(3, 5)}


@pytest.mark.few("", 4)
@pytest.mark.parametrize("case", range(38))
def test_opcheck(case):
    cases = list(operators())
    assert len(cases) == 38
    operator, args, kwargs = cases[case]
    torch.library.opcheck(operator.default, args, kwargs)
    differentiable = ("cast", "add", "mul", "fma", "sum", "cast_scaled")
    if operator in (getattr(torch.ops.cpd, name) for name in differentiable):
        leaves = tuple(
            a.clone().requires_grad_()
            if isinstance(a, torch.Tensor) and a.is_floating_point()
            else a
            for a in args
        )
        torch.library.opcheck(operator.default, leaves, kwargs)


def test_fake_and_meta_tensors():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x = torch.randn(4, 5)
        assert cpd.cast(x, E4M3, out=torch.empty(4, 5)).shape == (4, 5)
        assert cpd.encode(x, "e2m1").shape == (10,)
        assert cpd.sum(x, E4M3, axis=-1).shape == (4,)
        with pytest.raises(
            ValueError, match=r"x is float16, which cannot represent.*dtype=float32"
        ):
            cpd.cast(x.half(), "bf16")
    x = torch.empty(4, 5, device="meta")
    assert cpd.mul(x, x[:1], E4M3).device.type == "meta"
    assert cpd.decode(torch.empty(5, dtype=torch.uint8, device="meta"), "e2m1", 10).shape == (10,)


def test_numbers_on_the_gpu_are_not_waited_for():
    """Calls with a seed or stream on the GPU do not wait for its value. The test uses fake CUDA
    tensors, which have no values and therefore raise an error if the host reads one."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        x, out = torch.empty(2, 5, 7, device="cuda:0").unbind()
        for dtype in (torch.int64, torch.int32, torch.uint64):
            number = torch.zeros(1, dtype=dtype, device="cuda:0")
            options = {"rounding": "stochastic", "seed": number, "stream": number}
            assert by_keywords(cpd.cast, x, E4M3, **options).device == x.device
            assert by_keywords(cpd.cast, x, E4M3, **options, out=out) is out
            assert by_keywords(cpd.encode, x, "e2m1", **options).shape == (18,)
        other = torch.zeros((), dtype=torch.int64, device="cuda:1")
        with pytest.raises(ValueError, match="on x's device, got cuda:1"):
            cpd.cast(x, cpd.Cast(E4M3, rounding="stochastic"), seed=other)


# ---- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 2))])
def test_gradients_are_those_of_the_exact_operation(shapes):
    x, y = (torch.randn(shape, requires_grad=True) for shape in shapes)
    z = torch.randn(1, requires_grad=True)
    for ours, exact in (
        (lambda: cpd.add(x, y, E4M3), lambda: x + y),
        (lambda: cpd.mul(x, y, E4M3), lambda: x * y),
        (lambda: cpd.fma(x, y, z, E4M3), lambda: x * y + z),
        (lambda: cpd.sum(torch.broadcast_to(x, (5, *x.shape)), E4M3, 0), lambda: 5 * x),
    ):
        wanted = exact()
        g = torch.randn(wanted.shape)
        inputs = (x, y, z)
        got = torch.autograd.grad(ours(), inputs, g, allow_unused=True)
        expected = torch.autograd.grad(wanted, inputs, g, allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b)


THREADS = """
import os
import numpy, torch
import cpd

def threads():
    return len(os.listdir("/proc/self/task"))

torch.set_num_threads(3)
x = torch.randn(1 << 21)
x + 1
before = threads()
cpd.cast(x, "e4m3")
of_torch = threads() - before
cpd.cast(x.numpy(), "e4m3")
print(of_torch, threads() - before - of_torch)
"""


def test_operators_run_on_torchs_threads_and_arrays_on_the_pools():
    """Operations on tensors use torch's threads, and operations on arrays use CPD's thread pool.
    The test runs in a new interpreter, because a forked process lacks torch's threads."""
    environment = os.environ | {"CPD_NUM_THREADS": "3"}
    command = [sys.executable, "-c", THREADS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    of_torch, of_pool = map(int, done.stdout.split())
    assert of_torch == 0
    assert of_pool >= 2
