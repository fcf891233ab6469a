# SPDX-License-Identifier: Apache-2.0
"""torch's embedding, with the selected rows rounded."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch.rounding import rounded
from cpd.nn.arguments import recipe_of
from cpd.nn.recipe import RecipeLike, Sums
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number


@refused_by_torch
def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.embedding, weight[input], rounded to `recipe.embedding`.

    The gradient passes through the rounding unchanged, so the weight's gradient is torch's own.
    With stochastic rounding, random bits depend on the position in the result: a weight's row that
    is selected twice may be rounded differently.

    Args:
        input: indices of rows, an integer tensor of any shape.
        weight: rows × size.
        padding_idx: as in torch; default None.
        max_norm: the largest norm of the selected rows. Rows of larger norm are first renormalized
            in place, not rounded; default None: no row is renormalized.
        norm_type: the norm of `max_norm`; default 2.
        scale_grad_by_freq: as in torch; default False.
        sparse: whether the weight's gradient is sparse; default False.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `embedding` is used; a format
            alone has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on an embedding,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the weight's. It must represent the format.

    Returns:
        The selected rows, of shape (input's shape) × size.

    Raises:
        ValueError: if the result's type cannot represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> table, how = torch.tensor([[0.3, 17.0], [1.0, 1.1]]), cpd.Recipe(embedding="(4,3)")
    >>> embedding(torch.tensor([1, 0]), table, recipe=how).tolist()
    [[1.0, 1.125], [0.3125, 16.0]]
    """
    call_recipe = recipe_of(recipe, sums)
    rows = F.embedding(input, weight, padding_idx, max_norm, norm_type, scale_grad_by_freq, sparse)
    y = rounded(rows, call_recipe.embedding, None, seed=seed, stream=stream)
    return y if dtype is None else y.to(dtype)
