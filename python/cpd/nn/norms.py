# SPDX-License-Identifier: Apache-2.0
"""Torch's normalisations, of which the results and the gradients that return to them are rounded to
a recipe's `norm`.

Each is torch's own computation in float32: input, parameters and running statistics are taken as
they are, and what comes out is rounded once by `recipe.norm`, straight through; the gradient that
returns to it is rounded by the same before torch's own backward pass. Without `norm` it is torch's
function of that name. Inputs are float32, bfloat16 or float16; the result has the input's type,
unless `dtype` says otherwise, and that must hold the format. Stochastic casts draw from their own
stream, or from `stream`, by the elements of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch import operators
from cpd._torch.rounding import rounded
from cpd.nn.recipe import RecipeLike
from cpd.nn.recipe import recipe as _recipe
from cpd.numeric.options import Number
from cpd.ops.arguments import check_carrier


def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike,
    stream: Number | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.layer_norm, rounded to `recipe.norm`.

    >>> import cpd
    >>> x = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    >>> layer_norm(x, (4,), recipe=cpd.Recipe("fp32", norm="e4m3"))
    tensor([[-1.0000, -0.6250,  0.0938,  1.6250]])
    """

    def compute(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return F.layer_norm(x, normalized_shape, w, b, eps)

    return _normed(compute, input, (weight, bias), recipe, stream, dtype)


def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    recipe: RecipeLike,
    stream: Number | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.rms_norm, rounded to `recipe.norm`. `eps`: default that of float32.

    >>> import cpd
    >>> rms_norm(torch.tensor([[1.0, 7.0]]), (2,), recipe=cpd.Recipe("fp32", norm="e4m3"))
    tensor([[0.2031, 1.3750]])
    """

    def compute(x: Tensor, w: Tensor | None) -> Tensor:
        return F.rms_norm(x, normalized_shape, w, eps)

    return _normed(compute, input, (weight,), recipe, stream, dtype)


def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike,
    stream: Number | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.group_norm, rounded to `recipe.norm`.

    >>> import cpd
    >>> x = torch.arange(8.0).reshape(1, 4, 2)
    >>> group_norm(x, 2, recipe=cpd.Recipe("fp32", norm="e4m3"))[0, :2].tolist()
    [[-1.375, -0.4375], [0.4375, 1.375]]
    """

    def compute(x: Tensor, w: Tensor | None, b: Tensor | None) -> Tensor:
        return F.group_norm(x, num_groups, w, b, eps)

    return _normed(compute, input, (weight, bias), recipe, stream, dtype)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike,
    stream: Number | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.batch_norm, rounded to `recipe.norm`; the running statistics are those of
    what comes in, and not rounded but into their own type.

    >>> import cpd
    >>> x, mean, var = torch.tensor([[0.0], [3.0]]), torch.zeros(1), torch.ones(1)
    >>> how = cpd.Recipe("fp32", norm="e4m3")
    >>> batch_norm(x, mean, var, training=True, recipe=how).flatten().tolist(), mean.item()
    ([-1.0, 1.0], 0.15000000596046448)
    """

    def compute(
        x: Tensor, mean: Tensor | None, var: Tensor | None, w: Tensor | None, b: Tensor | None
    ) -> Tensor:
        return F.batch_norm(x, mean, var, w, b, training, momentum, eps)

    others = (running_mean, running_var, weight, bias)
    return _normed(compute, input, others, recipe, stream, dtype, statistics=2)


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike,
    stream: Number | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """torch.nn.functional.instance_norm, rounded to `recipe.norm`; running statistics as in
    `batch_norm`.

    >>> import cpd
    >>> x = torch.tensor([[[0.0, 1.0, 5.0]]])
    >>> instance_norm(x, recipe=cpd.Recipe("fp32", norm="e4m3")).tolist()
    [[[-0.9375, -0.46875, 1.375]]]
    """

    def compute(
        x: Tensor, mean: Tensor | None, var: Tensor | None, w: Tensor | None, b: Tensor | None
    ) -> Tensor:
        return F.instance_norm(x, mean, var, w, b, use_input_stats, momentum, eps)

    others = (running_mean, running_var, weight, bias)
    return _normed(compute, input, others, recipe, stream, dtype, statistics=2)


def _normed(
    compute: Callable[..., Tensor],
    input: Tensor,
    others: tuple[Tensor | None, ...],
    recipe: RecipeLike,
    stream: Number | None,
    dtype: torch.dtype | None,
    statistics: int = 0,
) -> Tensor:
    """`compute` of input and others in float32, rounded. The first of the others, as many as there
    are `statistics`, are updated by it."""
    how = _recipe(recipe)
    if how.norm is None:
        y = compute(input, *others)
        return y if dtype is None else y.to(dtype)
    operators.check_float("input", input, like="input")
    element = operators.result_type(input, dtype)
    check_carrier(operators.name_of(element), how.norm.format.name)
    wide = [None if x is None else x.float() for x in others]
    y = compute(input.float(), *wide)
    for kept, made in zip(others[:statistics], wide[:statistics], strict=True):
        if kept is not made and kept is not None:
            kept.copy_(made)
    return rounded(y, how.norm, how.norm, stream=stream, layer=how.layer).to(element)
