# SPDX-License-Identifier: Apache-2.0
"""Reverse-mode gradients of the operations on tensors; `out=` beside autograd."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")

E4M3 = cpd.format("e4m3")


@pytest.mark.parametrize("shapes", [((3, 4), (3, 4)), ((3, 1), (4,)), ((), (2, 2))])
def test_gradients_are_those_of_the_exact_operation(shapes):
    x, y = (torch.randn(shape, requires_grad=True) for shape in shapes)
    z = torch.randn(1, requires_grad=True)
    for ours, exact in (
        (lambda: cpd.add(x, y, E4M3), lambda: x + y),
        (lambda: cpd.mul(x, y, E4M3), lambda: x * y),
        (lambda: cpd.fma(x, y, z, E4M3), lambda: x * y + z),
        (lambda: cpd.sum(torch.broadcast_to(x, (5, *x.shape)), E4M3), lambda: 5 * x),
    ):
        wanted = exact()
        g = torch.randn(wanted.shape)
        inputs = (x, y, z)
        got = torch.autograd.grad(ours(), inputs, g, allow_unused=True)
        expected = torch.autograd.grad(wanted, inputs, g, allow_unused=True)
        for a, b in zip(got, expected, strict=True):
            assert (a is None) == (b is None)
            assert a is None or torch.allclose(a, b)


def test_gradient_of_one_operand_and_of_a_gradient():
    x = torch.randn(4, requires_grad=True)
    y = torch.randn(4)
    assert torch.equal(torch.autograd.grad(cpd.mul(x, y, E4M3).sum(), x)[0], y)
    (g,) = torch.autograd.grad(cpd.mul(x, x, E4M3).sum(), x, create_graph=True)
    assert torch.equal(torch.autograd.grad(g.sum(), x)[0], torch.full((4,), 2.0))


def test_out_takes_no_part_in_autograd():
    x = torch.randn(4, requires_grad=True)
    with pytest.raises(ValueError, match="autograd"):
        cpd.cast(x, E4M3, out=torch.empty(4))
    with torch.no_grad():
        cpd.cast(x, E4M3, out=x)
    assert torch.equal(x, cpd.cast(x, E4M3))


def test_out_counts_as_a_change():
    """A backward pass that needs what `out` has overwritten fails."""
    x = torch.randn(4, requires_grad=True)
    y = x * 1
    z = y * y
    with torch.no_grad():
        cpd.cast(torch.randn(4), E4M3, out=y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()


def test_encode_and_decode_have_no_gradient():
    x = torch.randn(4, requires_grad=True)
    codes = cpd.encode(x, E4M3)
    assert not codes.requires_grad
    assert not cpd.decode(codes, E4M3, 4).requires_grad
