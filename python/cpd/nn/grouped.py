# SPDX-License-Identifier: Apache-2.0
"""`grouped_mm`: matrix products of groups of rows or columns, as in a mixture of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpd.nn.arguments import check_operand, recipe_of
from cpd.nn.delayed import at as delayed_at
from cpd.nn.functional import matmul
from cpd.nn.recipe import RecipeLike, Sums
from cpd.nn.streams import Bits
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number


@refused_by_torch
def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.grouped_mm by a recipe: a product for each group.

    Each product is a `cpd.functional.matmul` of the group's rows and columns; the recipe's
    `activation` casts the rows of a. Rows and columns of the result after the last group are zeros.
    The ends of groups are read on the host, which breaks the graph of a compiled program.

    Args:
        mat_a: a tensor of shape M × K or G × M × K. M, K or N is divided into G groups.
        mat_b: a tensor of shape G × K × N or K × N. The numbers of dimensions of mat_a and mat_b
            determine the dimension that is divided into groups. 2 and 3: the rows of mat_a; the
            result is M × N. 3 and 2: the columns of mat_b; the result is M × N. 2 and 2: the summed
            dimension K; the result is G × M × N. 3 and 3: none; the result is G × M × N.
        offs: an int32 tensor of G values: the end of each group, in ascending order. Required
            unless both operands have three dimensions. Default None.
        bias: not supported, as in torch.
        out_dtype: the result's type; default None: a's.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for all operands; default None:
            operands are not cast, and `sums` must be given.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default None: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor. A
            group uses the stream XOR its number. Give another number at each step. Default 0.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed` with a product for each
            group, or one product if both operands have three dimensions. Default None.

    Returns:
        The products of all groups, in one tensor of the shape above.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the sums' format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> a, b = torch.ones(3, 40), torch.ones(2, 40, 1)
    >>> ends = torch.tensor([1, 3], dtype=torch.int32)
    >>> grouped_mm(a, b, offs=ends, recipe=cpd.Recipe(sums="e4m3")).flatten().tolist()
    [16.0, 16.0, 16.0]
    """
    call_recipe = recipe_of(recipe, sums)
    check_operand("mat_a", mat_a, like="mat_a")
    check_operand("mat_b", mat_b, like="mat_a")
    if bias is not None:
        raise ValueError("bias must be None: torch's grouped_mm takes none; add it to the result")
    dims = mat_a.dim(), mat_b.dim()
    if not {*dims} <= {2, 3}:
        raise ValueError(
            f"mat_a and mat_b must have 2 or 3 dimensions, got {dims[0]} and {dims[1]}"
        )
    if dims == (3, 3):
        if offs is not None:
            raise ValueError("offs must be None where both operands have three dimensions")
        options: dict[str, Any] = {"seed": seed, "stream": stream, "delayed": delayed}
        return matmul(mat_a, mat_b, recipe=call_recipe, dtype=out_dtype, **options)
    begins, ends = _groups(mat_a, mat_b, offs)
    bits = Bits.of(call_recipe, seed, stream)
    parts = []
    for n, group in enumerate(zip(begins, ends, strict=True)):
        own: dict[str, Any] = {
            "recipe": call_recipe,
            "dtype": out_dtype,
            "delayed": delayed_at(delayed, n),
        }
        own |= bits.at(n)
        parts.append(matmul(*_parts(mat_a, mat_b, n, *group), **own))
    if dims == (2, 2):
        return torch.stack(parts)
    along = 0 if dims == (2, 3) else 1
    missing = (mat_a.shape[0] if along == 0 else mat_b.shape[1]) - (ends[-1] if ends else 0)
    if missing:
        rows, columns = mat_a.shape[-2], mat_b.shape[-1]
        shape = (missing, columns) if along == 0 else (rows, missing)
        parts.append(mat_a.new_zeros(shape, dtype=out_dtype or mat_a.dtype))
    return torch.cat(parts, along)


def _parts(a: Tensor, b: Tensor, group: int, begin: int, end: int) -> tuple[Tensor, Tensor]:
    """Returns the submatrices of a and b whose product is the result of one group."""
    if a.dim() == 2 and b.dim() == 2:
        return a[:, begin:end], b[begin:end]
    if a.dim() == 2:
        return a[begin:end], b[group]
    return a[group], b[:, begin:end]


def _groups(a: Tensor, b: Tensor, offs: Tensor | None) -> tuple[list[int], list[int]]:
    """Returns the first index and the end of each group. Raises ValueError for invalid ends."""
    if offs is None or offs.dim() != 1 or offs.is_floating_point():
        raise ValueError("offs must be a vector of integers, the end of each group")
    whole = b if b.dim() == 3 else a
    if whole.dim() == 3 and len(offs) != whole.shape[0]:
        raise ValueError(
            f"offs must have an end for each of {whole.shape[0]} groups, got {len(offs)}"
        )
    size = a.shape[0] if b.dim() == 3 else b.shape[1] if a.dim() == 3 else a.shape[1]
    ends: list[int] = offs.tolist()
    begins = [0, *ends[:-1]]
    if any(not 0 <= begin <= end <= size for begin, end in zip(begins, ends, strict=True)):
        raise ValueError(f"offs must not fall and lie in 0…{size}, got {ends}")
    return begins, ends
