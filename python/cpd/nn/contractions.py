# SPDX-License-Identifier: Apache-2.0
"""Computes torch's products of two tensors, from mm to einsum, for `cpd.autocast`.

Each function here replaces a function of torch. It returns NotImplemented for operands that it does
not support. torch's own function then computes the product or raises its error.
"""

# Functions return NotImplemented, as Python's binary operators do; mypy expects a Tensor.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import re
import string
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd._torch.native import HALVES
from cpd.nn import functional
from cpd.nn.arguments import autocast_type
from cpd.ops.arguments import MAX_RANK

Form = Callable[..., Tensor]


def matmul(
    mode: Any,
    input: Tensor,
    other: Tensor,
    *,
    dtype: torch.dtype | None = None,
    in_float32: bool = False,
) -> Tensor:
    """Computes torch.matmul by the mode's recipe."""
    options = mode._take()
    if in_float32:
        return functional.matmul_in_float32(input, other, **options)
    return functional.matmul(input, other, dtype=dtype, **options)


def rmatmul(mode: Any, other: Tensor, input: Tensor) -> Tensor:
    """Computes torch.Tensor.__rmatmul__: input @ other, by the recipe of the function mode."""
    return matmul(mode, input, other)


def _outer(mode: Any, a: Tensor, b: Tensor, **of_result: Any) -> Tensor:
    return matmul(mode, a.unsqueeze(1), b.unsqueeze(0), **of_result)


def _batch_summed(mode: Any, a: Tensor, b: Tensor, **of_result: Any) -> Tensor:
    return _pair(mode, a, b, [*"bik"], [*"bkj"], [*"ij"], **of_result)


# ---- operands of fixed ranks ---------------------------------------------------------------------


class Kind(NamedTuple):
    """A kind of product of two operands with fixed numbers of dimensions, such as mm or bmm."""

    ranks: tuple[int, int]
    equal: Sequence[tuple[int, int]]
    """The dimension of a and the dimension of b that must have the same size."""
    result: Sequence[tuple[int, int]]
    """For each dimension of the result, a dimension of an operand with the same size: the operand
    (0 or 1) and the dimension's index."""
    compute: Form

    def shape(self, a: Tensor, b: Tensor) -> list[int] | None:
        """Returns the result's shape; None if torch's function raises an error for the operands."""
        if (a.dim(), b.dim()) != self.ranks:
            return None
        if any(a.shape[i] != b.shape[j] for i, j in self.equal):
            return None
        return [(a, b)[operand].shape[dim] for operand, dim in self.result]


MM = Kind((2, 2), [(1, 0)], [(0, 0), (1, 1)], matmul)
MV = Kind((2, 1), [(1, 0)], [(0, 0)], matmul)
BMM = Kind((3, 3), [(0, 0), (2, 1)], [(0, 0), (0, 1), (1, 2)], matmul)
DOT = Kind((1, 1), [(0, 0)], [], matmul)
OUTER = Kind((1, 1), [], [(0, 0), (1, 0)], _outer)
BATCH_SUMMED = Kind((3, 3), [(0, 0), (2, 1)], [(0, 1), (1, 2)], _batch_summed)


def product(kind: Kind) -> Form:
    """Returns the function that computes torch's product `kind`, such as mm, by a recipe."""

    def compute(mode: Any, a: Tensor, b: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor:
        if kind.shape(a, b) is None or not _holds(out_dtype, a):
            return NotImplemented
        return kind.compute(mode, a, b, dtype=out_dtype)

    return compute


def adding(kind: Kind) -> Form:
    """Returns the function that computes beta * input + alpha * product, like torch.addmm.

    `kind` is the kind of the product, such as mm. A 16-bit result is rounded once.
    """

    def compute(
        mode: Any,
        input: Tensor,
        a: Tensor,
        b: Tensor,
        *,
        beta: Any = 1,
        alpha: Any = 1,
        out_dtype: torch.dtype | None = None,
    ) -> Tensor:
        shape = kind.shape(a, b)
        if shape is None or not _expands(input, shape) or not _holds(out_dtype, a):
            return NotImplemented
        is_bias = kind is MM and list(input.shape) == shape[1:]
        if is_bias and beta == 1 and alpha == 1 and out_dtype is None:
            return functional.linear(a, b.t(), input, **mode._take())
        narrow = autocast_type(a)
        dtype = out_dtype or narrow or a.dtype
        if narrow is not None:  # torch.autocast casts `input` as it does a and b
            input = input.to(dtype)
        is_half = dtype in HALVES
        options = {"in_float32": True} if is_half else {"dtype": out_dtype}
        product = kind.compute(mode, a, b, **options)
        product = product if alpha == 1 else alpha * product
        if is_half and beta != 0:
            both = torch.promote_types(dtype, input.dtype)
            return torch.add(product, input.float(), alpha=beta).to(both)
        product = product.to(dtype) if is_half else product
        return _ignoring(input, product) if beta == 0 else torch.add(product, input, alpha=beta)

    return compute


def _ignoring(input: Tensor, product: Tensor) -> Tensor:
    """Returns `product` in the type that product + input has; the values of `input` are ignored.

    The gradient of `input` is zero, as in torch with beta=0.
    """
    return torch.where(torch.ones((), dtype=torch.bool, device=product.device), product, input)


def in_place(form: Form) -> Form:
    """Returns the in-place form of a function, which writes the result to its first operand."""

    def compute(mode: Any, input: Tensor, *operands: Tensor, **factors: Any) -> Tensor:
        result = form(mode, input, *operands, **factors)
        if result is NotImplemented or result.shape != input.shape:
            return NotImplemented
        return input.copy_(result)

    return compute


def _expands(input: Tensor, shape: Sequence[int]) -> bool:
    """Returns True if `input` broadcasts to `shape`."""
    sizes = tuple(input.shape)
    last = shape[len(shape) - len(sizes) :]
    return len(sizes) <= len(shape) and all(n in (1, m) for n, m in zip(sizes, last, strict=True))


def _holds(out_dtype: torch.dtype | None, a: Tensor) -> bool:
    """Returns True if `out_dtype` is None, a's dtype or float32."""
    return out_dtype in (None, a.dtype, torch.float32)


# ---- einsum and tensordot ------------------------------------------------------------------------


def inner(mode: Any, a: Tensor, b: Tensor) -> Tensor:
    """Computes torch.inner by the mode's recipe."""
    if not a.dim() or not b.dim() or a.shape[-1] != b.shape[-1]:
        return NotImplemented
    return tensordot(mode, a, b, ([-1], [-1]))


def tensordot(mode: Any, a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    """Computes torch.tensordot by the mode's recipe."""
    pairs = _paired(dims, a.dim(), b.dim())
    if pairs is None:
        return NotImplemented
    letters = iter(string.ascii_letters)
    in_a = [next(letters) for _ in range(a.dim())]
    in_b = [next(letters) for _ in range(b.dim())]
    for d, e in pairs:
        in_b[e] = in_a[d]
    free = [x for x in in_a + in_b if not (x in in_a and x in in_b)]
    return _pair(mode, a, b, in_a, in_b, free)


def _paired(dims: Any, of_a: int, of_b: int) -> list[tuple[int, int]] | None:
    """Returns the dimensions of a and b that tensordot sums over, counted from the front.

    Returns None if torch raises an error for `dims`.
    """
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        if not 0 <= dims <= min(of_a, of_b):
            return None
        dims = list(range(of_a - dims, of_a)), list(range(dims))
    both = [[ds] if isinstance(ds, int) else list(ds) for ds in dims]
    if len(both) != 2 or len(both[0]) != len(both[1]):
        return None
    for ds, rank in zip(both, (of_a, of_b), strict=True):
        if not all(-rank <= d < rank for d in ds) or len({d % rank for d in ds}) < len(ds):
            return None
    return [(d % of_a, e % of_b) for d, e in zip(*both, strict=True)]


def einsum(mode: Any, equation: Any, *operands: Any) -> Tensor:
    """Computes torch.einsum of two tensors by the recipe of the function mode `mode`."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    match = _TWO.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    if match is None or len(operands) != 2:
        return NotImplemented
    labels = [_labels(text, x.dim()) for text, x in zip(match.group(1, 2), operands, strict=True)]
    in_a, in_b = labels
    if in_a is None or in_b is None:
        return NotImplemented
    both = in_a + in_b
    unnamed = sorted({x for x in both if x not in string.ascii_letters}, key=int)
    if match[3] is None:
        out = unnamed + sorted(x for x in both if x not in unnamed and both.count(x) == 1)
    else:
        before, dots, after = match[3].partition("...")
        out = [*before, *(unnamed if dots else ()), *after]
    return _pair(mode, *operands, in_a, in_b, out)


_TERM = r"([a-zA-Z]*(?:\.\.\.[a-zA-Z]*)?)"
_TWO = re.compile(f"{_TERM},{_TERM}(?:->{_TERM})?")


def _labels(text: str, rank: int) -> list[str] | None:
    """Returns the labels of an operand's dimensions.

    A label is a letter of the equation. The dimensions that an ellipsis covers have numbers that
    count from the end: "-1" is the last. Returns None if the operand has another number of
    dimensions.
    """
    before, dots, after = text.partition("...")
    covered = rank - len(before) - len(after)
    if covered < 0 or (covered > 0 and not dots):
        return None
    return [*before, *map(str, range(-covered, 0)), *after]


def _pair(
    mode: Any,
    a: Tensor,
    b: Tensor,
    in_a: list[str],
    in_b: list[str],
    out: list[str],
    **of_result: Any,
) -> Tensor:
    """Returns the product of two tensors, given the labels of their dimensions.

    `out` has the result's labels. The product sums over all other labels, which both tensors have,
    in the order of these labels in the tensor a. A size of 1 broadcasts.
    """
    size = _sizes(a, b, in_a, in_b, out)
    batch = [x for x in in_a if x in in_b and x in out]
    if size is None or len(batch) + 2 > MAX_RANK:
        return NotImplemented
    summed = [x for x in in_a if x in in_b and x not in out]
    rows, columns = ([x for x in own if x in out and x not in batch] for own in (in_a, in_b))

    def arranged(x: Tensor, own: list[str], *parts: list[str]) -> Tensor:
        wide = [size[i] if i in summed else n for i, n in zip(own, x.shape, strict=True)]
        moved = x.expand(wide).permute([own.index(i) for part in (batch, *parts) for i in part])
        shape = [*moved.shape[: len(batch)], *(_count(size, part) for part in parts)]
        return moved.reshape(shape)

    left, right = arranged(a, in_a, rows, summed), arranged(b, in_b, summed, columns)
    has = batch + rows + columns
    product = matmul(mode, left, right, **of_result).reshape([size[x] for x in has])
    return product.permute([has.index(x) for x in out])


def _sizes(
    a: Tensor, b: Tensor, in_a: list[str], in_b: list[str], out: list[str]
) -> dict[str, int] | None:
    """Returns the size of each label; None for equations that `_pair` does not compute.

    `_pair` does not compute an equation in which a tensor repeats a label, or in which only one of
    the tensors has a summed label. Nor does it compute equations for which torch raises an error.
    """
    once = all(len(set(labels)) == len(labels) for labels in (in_a, in_b, out))
    alone = set(in_a) ^ set(in_b)
    if not once or not alone <= set(out) or not set(out) <= {*in_a, *in_b}:
        return None
    size = dict(zip(in_a, a.shape, strict=True))
    for label, n in zip(in_b, b.shape, strict=True):
        of_a = size.get(label, 1)
        if n != of_a and 1 not in (n, of_a):
            return None
        size[label] = of_a if n == 1 else n
    return size


def _count(size: dict[str, int], labels: list[str]) -> int:
    """Returns the product of the sizes of dimensions with these labels."""
    count = 1
    for label in labels:
        count *= size[label]
    return count


# ---- arguments -----------------------------------------------------------------------------------


def in_order(
    args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Returns a function's arguments with tensors by position and all others by keyword.

    Tensors that the caller gave by keyword follow the positional tensors: first `input`, then the
    others in alphabetical order of their keywords. (torch's functions have different keywords for
    the same operand.) Positional numbers become `beta` and `alpha` (an old form that torch still
    accepts). A positional dtype becomes `out_dtype`.
    """
    names = [n for n, x in keywords.items() if isinstance(x, Tensor) and n not in _FACTORS]
    rest = {name: value for name, value in keywords.items() if name not in names}
    names.sort(key=lambda name: (name not in ("input", "self"), name))
    tensors: list[Any] = []
    factors = iter(_FACTORS)
    for value in args:
        if isinstance(value, torch.dtype):
            rest["out_dtype"] = value
        elif isinstance(value, (int, float)) and len(tensors) < 2:
            rest[next(factors)] = value
        else:
            tensors.append(value)
    return (*tensors, *(keywords[name] for name in names)), rest


_FACTORS = ("beta", "alpha")
