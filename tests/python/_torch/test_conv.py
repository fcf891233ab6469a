# SPDX-License-Identifier: Apache-2.0
"""Tests the CPU's convolutions, which multiply without first unfolding the images (im2col). For
random convolutions and their gradients, the CPU must give the bits, types and errors of matrix
products of unfolded images. A GPU computes such matrix products."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from cpd._torch import conv, unfolded  # noqa: E402
from cpd._torch.moves import Moves  # noqa: E402
from cpd._torch.sums import Sum  # noqa: E402
from tensors import same  # noqa: E402

FLOATS = torch.float32, torch.bfloat16, torch.float16
HALVES = {"h100-fp16": torch.float16, "v100": torch.float16, "h100-bf16": torch.bfloat16}
SUMS = (
    "fp32 sequential",
    "fp32 fma",
    "fp32 chunked chunk=64",
    "tf32 kahan",
    "bf16 pairwise",
    "e4m3 sequential",
    "e5m2 fma",
    "e2m1 fma",
    "e6m9 chunked chunk=7",
    "e4m3 chunked chunk=5 inner=e5m7",
    "e8m7 chunked chunk=3 product=exact",
    "e3m4 sequential product=e5m2",
    "e4m3fnuz fma",
    "e8m0 sequential",
    "e5m2 fma rounding=toward_zero",
    "e4m3 sequential rounding=down",
    "e5m7 sequential rounding=stochastic random_bits=8",
    "bf16 chunked chunk=4 rounding=stochastic",
    "bf16 kahan rounding=stochastic",
    "fp32 fixed width=32 fraction=8",
    "fp32 fixed width=16 fraction=4 overflow=saturate",
    *HALVES,
)


def ordinary(x):
    return x


def with_specials(x):
    flat = x.view(-1)
    for value in (float("inf"), float("nan"), -0.0):
        if flat.numel():
            flat[random.randrange(flat.numel())] = value
    return x


def sparse(x):
    return x * (torch.rand(x.shape) > 0.5) * torch.where(torch.rand(x.shape) > 0.5, 1.0, -1.0)


def tiny(x):
    return x.abs() * -1e-3 * (torch.rand(x.shape) > 0.5)


VALUES = ordinary, ordinary, sparse, tiny, with_specials


def laid_out(x):
    """Returns the values of `x` in one of four memory layouts, chosen at random."""
    which = random.randrange(4)
    if which == 0:
        return x
    if which == 1:  # channels last
        return x.transpose(1, -1).contiguous().transpose(1, -1)
    if which == 2:  # channels first of all
        return x.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.zeros([2 * n + 1 for n in x.shape], dtype=x.dtype)
    view = wide[tuple(slice(1, 1 + 2 * n, 2) for n in x.shape)]
    return view.copy_(x)


def drawn(shape, dtype):
    return laid_out(random.choice(VALUES)(torch.randn(shape)).to(dtype))


def some(rank, least, most):
    return tuple(random.randint(least, most) for _ in range(rank))


def drawn_moves():
    """Returns a random convolution: its `Moves` (stride, padding, dilation, groups) and the shapes
    of the input and of the weight."""
    rank, groups = random.choice((1, 2, 2, 3)), random.choice((1, 1, 2, 3))
    kernel = some(rank, 1, random.choice((1, 3, 3)))
    stride, dilation = some(rank, 1, random.choice((1, 3))), some(rank, 1, 3)
    padding = some(rank, 0, random.choice((0, 3)))
    least = [
        max(1, d * (k - 1) + 1 - 2 * p) for d, k, p in zip(dilation, kernel, padding, strict=True)
    ]
    image = [n + random.choice((0, 1, 2, 5, 40 if rank == 1 else 4)) for n in least]
    inputs, outputs = random.randint(1, 5), random.randint(1, 6)
    moves = Moves(stride, padding, dilation, False, (0,) * rank, groups)
    images = random.choice((0, 1, 2, 5))
    return moves, (images, groups * inputs, *image), (groups * outputs, inputs, *kernel)


def result_of(run, *arguments):
    try:
        return run(*arguments)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("text", SUMS)
def test_images_give_the_bits_of_unfolded_ones(text, monkeypatch):
    random.seed(text)
    torch.manual_seed(len(text))
    for _ in range(16):
        moves, of_x, of_w = drawn_moves()
        dtype = HALVES.get(text) or random.choice(FLOATS)
        x, w = drawn(of_x, dtype), drawn(of_w, HALVES.get(text) or random.choice(FLOATS))
        size = moves.size(of_x, of_w)
        g = drawn(size, dtype)
        how = Sum(text, *(torch.tensor(random.randrange(1 << 60)) for _ in range(2)))
        into = random.choice(FLOATS)

        def addend(channels, groups=moves.groups):
            shape = groups, channels // groups, 1
            return random.choice((None, drawn(shape, random.choice(FLOATS))))

        forward = x, w, size, addend(of_w[0]), moves, how, into
        backward = g, w, of_x, addend(of_x[1]), moves, how, into
        of_weight = g, x, of_w, moves, how, into
        calls = (conv.slide, forward), (conv.spread, backward), (conv.correlate, of_weight)
        with monkeypatch.context() as unfolding:
            unfolding.setattr(conv, "reads_images", lambda *operands: False)
            wanted = [result_of(run, *arguments) for run, arguments in calls]
        for (run, arguments), other in zip(calls, wanted, strict=True):
            got = result_of(run, *arguments)
            if isinstance(other, str):
                assert got == other
                continue
            assert got.dtype == other.dtype
            assert got.is_contiguous()
            assert same(got, other), (run.__name__, moves, of_x, of_w)


def test_a_weight_that_several_threads_turn(monkeypatch):
    moves = Moves((1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    g, w = torch.randn(1, 96, 4, 4), torch.randn(96, 96, 3, 3)
    how = Sum("e6m9 chunked chunk=64", None, None)
    arguments = g, w, g.shape, None, moves, how, torch.float32
    got = conv.spread(*arguments)
    monkeypatch.setattr(conv, "reads_images", lambda *operands: False)
    assert same(got, conv.spread(*arguments))


@pytest.mark.parametrize("which", [0, 1])
def test_values_that_a_unit_does_not_take_are_named_as_in_unfolded_images(which, monkeypatch):
    moves = Moves((2,), (1,), (1,), False, (0,), 1)
    operands = [torch.ones(2, 1, 6), torch.ones(2, 1, 3)]
    operands[which].view(-1)[5] = 3.3
    size = moves.size(*(t.shape for t in operands))
    arguments = *operands, size, None, moves, Sum("h100-fp8", None, None), torch.float32
    got = result_of(conv.slide, *arguments)
    monkeypatch.setattr(conv, "reads_images", lambda *operands: False)
    assert got == result_of(conv.slide, *arguments)
    assert "must hold values of e4m3fn, got 3.3" in got


def test_images_of_other_types_are_refused_as_before():
    moves = Moves((1,), (0,), (1,), False, (0,), 1)
    x, w = torch.ones(1, 1, 4, dtype=torch.float64), torch.ones(1, 1, 2)
    with pytest.raises(ValueError, match="must be fp32, bf16 or fp16, got fp64"):
        conv.slide(x, w, (1, 1, 3), None, moves, Sum("fp32 fma", None, None), torch.float32)


def test_nothing_is_unfolded_on_the_cpu(monkeypatch):
    for name in ("slide_unfolded", "spread_unfolded", "correlate_unfolded"):
        monkeypatch.setattr(unfolded, name, None)
    moves = Moves((2, 1), (1, 2), (1, 1), False, (0, 0), 1)
    x, w = torch.randn(2, 3, 6, 5), torch.randn(4, 3, 3, 2)
    for text in ("e4m3 kahan", "bf16 sequential rounding=stochastic"):
        how = Sum(text, torch.tensor(1), torch.tensor(2))
        y = conv.slide(x, w, moves.size(x.shape, w.shape), None, moves, how, torch.float32)
        assert conv.spread(y, w, x.shape, None, moves, how, torch.float32).shape == x.shape
        assert conv.correlate(y, x, w.shape, moves, how, torch.float32).shape == w.shape
