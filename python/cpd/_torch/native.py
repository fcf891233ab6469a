# SPDX-License-Identifier: Apache-2.0
"""Matrix products by torch's own kernels.

Exact products of the operands are summed in float32. The sum is scaled, added to the bias and
rounded once into the result's type. Torch's 16-bit kernels compute this if both operands and the
result have the same 16-bit type. This module computes all other products, for example of operands
that a 16-bit type does not represent, such as elements times a scale that is not a power of two.
The operator torch.ops.cpd.native_product is opaque to compilers, because its fast paths depend on
values.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,attr-defined"

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.derivatives import Derivative, Tangents, run, saved, total
from cpd._torch.library import ops
from cpd._torch.private import FakeTensor, autocast_off
from cpd._torch.table import operator
from cpd._torch.vmap import Batching, never, widen_product
from cpd.ops.arguments import product_shape

HALVES = frozenset((torch.bfloat16, torch.float16))
"""The 16-bit floating-point dtypes."""


class Factor(NamedTuple):
    """An operand of a matrix product: the matrices `values` times `scale`.

    Attributes:
        values: a tensor of matrices.
        scale: float32, of a shape that broadcasts to the product; None: 1.
        short: whether `values` are float32 numbers with at most eight significant bits, as many as
            bfloat16 has.
    """

    values: Tensor
    scale: Tensor | None = None
    short: bool = False

    @property
    def mT(self) -> Factor:  # noqa: N802  # as a tensor's
        """The transpose."""
        scale = None if self.scale is None or self.scale.dim() == 0 else self.scale.mT
        return Factor(self.values.mT, self.scale if scale is None else scale, self.short)


def as_factor(x: Tensor | Factor) -> Factor:
    """Returns a `Factor` unchanged, and a tensor as a `Factor` without a scale."""
    return x if isinstance(x, Factor) else Factor(x)


def product_of_factors(a: Factor, b: Factor, c: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Returns the product of a and b, plus c, computed in float32 and rounded once into `dtype`."""
    x, y = a.values, b.values
    scales: list[Any] = [f.scale for f in (a, b) if f.scale is not None]
    if not scales and x.dtype == y.dtype == dtype and (c is None or c.dtype == dtype):
        if c is None:
            return without_autocast(torch.matmul, x, y)
        if x.dim() == y.dim() == 2 and c.dim() <= 2:
            return without_autocast(torch.addmm, c, x, y)
    if not scales and x.dtype == y.dtype == dtype == torch.float32:
        product = without_autocast(torch.matmul, x, y)
        return product if c is None else product + c
    scales += [None] * (2 - len(scales))
    return run("native_product", x, y, c, *scales, a.short, b.short, dtype)


def without_autocast(function: Any, *operands: Tensor) -> Tensor:
    """Calls `function` with the operands in their own dtypes, also within torch.autocast."""
    if not torch.is_autocast_enabled(operands[0].device.type):
        return function(*operands)
    with autocast_off(operands[0]):
        return function(*operands)


def holds_values(dtype: torch.dtype, x: Tensor) -> bool:
    """Returns whether `dtype` represents all values of `x`. The host reads the values."""
    if x.dtype == dtype:
        return True
    if x.numel() == 0 or x.is_meta or isinstance(x, FakeTensor):
        return True
    if dtype == torch.bfloat16 and x.dtype == torch.float32 and x.is_contiguous():
        return int(x.view(torch.int32).bitwise_and(_BELOW_BFLOAT16).amax()) == 0
    y = x.to(dtype)
    return bool(((y == x) | (x != x)).all())


_BELOW_BFLOAT16 = 0xFFFF
"""Mask of the low bits of a float32 number that bfloat16 does not have."""


def _native_product(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    first: Tensor | None,
    second: Tensor | None,
    a_short: bool,
    b_short: bool,
    dtype: torch.dtype,
) -> Tensor:
    with autocast_off(a):
        if dtype in HALVES and first is None and (c is None or (c.dtype == dtype and c.dim() == 1)):
            x, y = (_narrowed(t, s, dtype) for t, s in ((a, a_short), (b, b_short)))
            if x is not None and y is not None and (c is None or x.dim() == y.dim() == 2):
                return x @ y if c is None else torch.addmm(c, x, y)
            if x is None or y is None:
                a_short, b_short = False, False
        scales = [scale for scale in (first, second) if scale is not None]
        brief = (a_short or a.dtype == torch.bfloat16) and (b_short or b.dtype == torch.bfloat16)
        if brief and a.is_cpu:
            finished = _of_bfloat16(a, b, c, scales, dtype)
            if finished is not None:
                return finished
        product = scaled(_in_float32(a, b, brief), scales)
        return (product if c is None else product.add_(c)).to(dtype)


def _narrowed(x: Tensor, short: bool, dtype: torch.dtype) -> Tensor | None:
    """Returns `x` in `dtype`, or None if `dtype` may not represent all values of `x`."""
    if x.dtype == dtype:
        return x
    return x.to(dtype) if short and holds_values(dtype, x) else None


def _in_float32(a: Tensor, b: Tensor, brief: bool) -> Tensor:
    """Returns the matrix product in float32. `brief`: bfloat16 represents the operands' values."""
    if a.is_cuda and a.dim() == b.dim() == 2 and a.numel() and b.numel():
        if brief:
            a, b = a.bfloat16(), b.bfloat16()
        if a.dtype == b.dtype and a.dtype in HALVES:
            return torch.mm(a, b, out_dtype=torch.float32)
    return a.float() @ b.float()


def _of_bfloat16(
    a: Tensor, b: Tensor, c: Tensor | None, scales: Sequence[Tensor], dtype: torch.dtype
) -> Tensor | None:
    """Returns the matrix product of a and b, times the scales, plus c, in `dtype`.

    bfloat16 must represent the values of a and b. The CPU's bfloat16 instructions compute the
    product. Returns None if the CPU has no such instructions, or if a sum might be subnormal.

    torch itself returns the float32 result of such a product only if a setting of the whole process
    is on. This setting makes float32 products of other threads less precise.
    """
    shape = product_shape(a.shape, b.shape)
    rows, columns = shape[-2:]
    is_bias = c is None or (c.dim() == 1 and c.shape[0] == columns)
    in_one = dtype in _FINISHED and is_bias and all(_is_of_lines(s, a.dim()) for s in scales)
    out = a.new_empty(shape, dtype=dtype if in_one else torch.float32)
    if b.dim() == 2:
        a, b = a.reshape(1, -1, a.shape[-1]), b.unsqueeze(0)
        rows = a.shape[1]
    else:
        batch = out.shape[:-2]
        a, b = (x.expand(*batch, -1, -1).reshape(-1, *x.shape[-2:]) for x in (a, b))
    a, b = (x if 1 in x.stride()[1:] else x.contiguous() for x in (a, b))
    sums = out.view(a.shape[0], rows, columns)
    bias = None if c is None else c.float().contiguous()
    if in_one:
        spread: list[Any] = [s.expand(rows, columns) for s in scales]
        spread += [None] * (2 - len(spread))
        return out if ops.product_of_bf16(a, b, *spread, bias, sums) else None
    if not ops.product_of_bf16(a, b, None, None, None, sums):
        return None
    product = scaled(out, scales)
    return (product if c is None else product.add_(c)).to(dtype)


def _is_of_lines(scale: Tensor, rank: int) -> bool:
    """Returns True if a contiguous float32 scale has one number, or one for each row or column."""
    if scale.dtype != torch.float32 or not scale.is_contiguous():
        return False
    return scale.numel() == 1 or (scale.dim() == 2 and rank == 2 and 1 in scale.shape)


_FINISHED = frozenset((torch.float32, torch.bfloat16))
"""The result dtypes of the operator product_of_bf16."""


def scaled(y: Tensor, scales: Sequence[Tensor]) -> Tensor:
    """Returns `y`, a float32 tensor, multiplied by each scale in turn."""
    return functools.reduce(torch.mul, scales, y)


def summed_in_float32(
    compute: Callable[[Tensor, Tensor], Tensor], x: Tensor, y: Tensor, dtype: torch.dtype
) -> Tensor:
    """Returns compute(x, y), a convolution or its gradient, with sums in float32.

    Sums are rounded once into `dtype`. `compute` gets operands of one dtype: `dtype` if it is a
    16-bit type that represents both operands, else float32.
    """
    with autocast_off(x):
        if dtype in HALVES and holds_values(dtype, x) and holds_values(dtype, y):
            return compute(x.to(dtype), y.to(dtype)).to(dtype)
        return compute(x.float(), y.float()).to(dtype)


# ---- the operator --------------------------------------------------------------------------------


def _fake(a: Tensor, b: Tensor, *rest: Any) -> Tensor:
    return a.new_empty(product_shape(a.shape, b.shape), dtype=rest[-1])


def _setup(ctx: Any, inputs: tuple[Any, ...], forward: bool) -> None:
    a, b, c, first, second, ctx.a_short, ctx.b_short, ctx.dtype = inputs
    ctx.of_c = None if c is None else (c.shape, c.dtype)
    ctx.save_for_backward(a, b, first, second)
    if forward:
        ctx.save_for_forward(a, b, first, second)


def _scaled(g: Tensor, *scales: Tensor | None) -> Tensor:
    g = g.float()
    for scale in scales:
        g = g if scale is None else g * scale
    return g


def _like(x: Tensor, shape: Any, dtype: torch.dtype) -> Tensor:
    return x.sum_to_size(shape).to(dtype)


def _backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
    a, b, *scales = ctx.saved_tensors
    needs = ctx.needs_input_grad
    back = _scaled(g, *scales)
    of_a = of_b = of_c = None
    if needs[0]:
        of_a = _like(_plain(back, b.mT), a.shape, a.dtype)
    if needs[1]:
        of_b = _like(_plain(a.mT, back), b.shape, b.dtype)
    if needs[2]:
        of_c = _like(g.float(), *ctx.of_c)
    return of_a, of_b, of_c


def _plain(a: Tensor, b: Tensor) -> Tensor:
    return without_autocast(torch.matmul, a.float(), b.float())


def _tangent(ctx: Any, tangents: Tangents) -> Tensor:
    a, b, *scales = saved(ctx)
    of_a, of_b, of_c = tangents[:3]
    shape = product_shape(a.shape, b.shape)
    terms = (
        None if of_a is None else _scaled(_plain(of_a, b), *scales),
        None if of_b is None else _scaled(_plain(a, of_b), *scales),
        None if of_c is None else of_c.float().expand(shape),
    )
    return total(*terms).to(ctx.dtype)


operator(
    "native_product(Tensor a, Tensor b, Tensor? c, Tensor? first, Tensor? second, bool a_short, "
    "bool b_short, ScalarType dtype) -> Tensor",
    _fake,
    Derivative(_setup, _backward, _tangent),
    Batching(widen_product, never),
    _native_product,
)
"""Computes (a b) * first * second + c. `first` and `second` are scales."""
