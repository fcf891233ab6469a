# SPDX-License-Identifier: Apache-2.0
"""torch's normalizations, with results and their gradients rounded to a recipe's `norm`.

torch computes each normalization in float32, from the unrounded input, parameters and running
statistics. The result is rounded once by `recipe.norm`. In the backward pass, the result's gradient
is rounded by `recipe.norm` before torch's own backward pass. If the recipe has no `norm`, torch's
function is called. Inputs are float32, bfloat16 or float16; the result has the input's type, or
`dtype`, which must represent the format. With stochastic rounding, random bits depend on the
element's index in the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd._torch import operators
from cpd._torch.kept import kept
from cpd._torch.rounding import rounded
from cpd.nn.arguments import check_operand, recipe_of
from cpd.nn.recipe import Recipe, RecipeLike, Sums
from cpd.numeric.cast import element_of
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number
from cpd.ops.arguments import check_storage


@refused_by_torch
def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.layer_norm, rounded to `recipe.norm`.

    Args:
        input: any shape.
        normalized_shape: the last dimensions' sizes.
        weight: as in torch; default None: ones.
        bias: as in torch; default None: zeros.
        eps: the number that is added to the variance; default 1e-5.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `norm` is used; a format alone
            has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on a normalization,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's. It must represent the format.

    Returns:
        The result, of the input's shape.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x = torch.tensor([[1.0, 2.0, 4.0, 8.0]])
    >>> layer_norm(x, (4,), recipe=cpd.Recipe(norm="(4,3)"))
    tensor([[-1.0000, -0.6250,  0.0938,  1.6250]])
    """
    rounding = _Rounding(recipe_of(recipe, sums), seed, stream, dtype)
    return rounding.normed(_layer_norm, input, (weight, bias), list(normalized_shape), [eps])


@refused_by_torch
def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.rms_norm, rounded to `recipe.norm`.

    Args:
        input: any shape.
        normalized_shape: the last dimensions' sizes.
        weight: as in torch; default None: ones.
        eps: the number that is added to the mean square; default None: float32's epsilon.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `norm` is used; a format alone
            has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on a normalization,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's. It must represent the format.

    Returns:
        The result, of the input's shape.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> rms_norm(torch.tensor([[1.0, 7.0]]), (2,), recipe=cpd.Recipe(norm="(4,3)"))
    tensor([[0.2031, 1.3750]])
    """
    rounding = _Rounding(recipe_of(recipe, sums), seed, stream, dtype)
    numbers = [] if eps is None else [eps]
    return rounding.normed(_rms_norm, input, (weight,), list(normalized_shape), numbers)


@refused_by_torch
def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.group_norm, rounded to `recipe.norm`.

    Args:
        input: N × C × ….
        num_groups: the number of groups of channels.
        weight: as in torch; default None: ones.
        bias: as in torch; default None: zeros.
        eps: the number that is added to the variance; default 1e-5.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `norm` is used; a format alone
            has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on a normalization,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's. It must represent the format.

    Returns:
        The result, of the input's shape.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x = torch.arange(8.0).reshape(1, 4, 2)
    >>> group_norm(x, 2, recipe=cpd.Recipe(norm="(4,3)"))[0, :2].tolist()
    [[-1.375, -0.4375], [0.4375, 1.375]]
    """
    rounding = _Rounding(recipe_of(recipe, sums), seed, stream, dtype)
    return rounding.normed(_group_norm, input, (weight, bias), [num_groups], [eps])


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.batch_norm, rounded to `recipe.norm`.

    The running statistics are computed from the unrounded input, and rounded only into their own
    type.

    Args:
        input: N × C × ….
        running_mean: C, updated in place, or None.
        running_var: C, updated in place, or None.
        weight: as in torch; default None: ones.
        bias: as in torch; default None: zeros.
        training: whether the batch's statistics are used; default False.
        momentum: the weight of the batch in running statistics; default 0.1.
        eps: the number that is added to the variance; default 1e-5.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `norm` is used; a format alone
            has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on a normalization,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's. It must represent the format.

    Returns:
        The result, of the input's shape.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, mean, var = torch.tensor([[0.0], [3.0]]), torch.zeros(1), torch.ones(1)
    >>> how = cpd.Recipe(norm="(4,3)")
    >>> batch_norm(x, mean, var, training=True, recipe=how).flatten().tolist(), mean.item()
    ([-1.0, 1.0], 0.15000000596046448)
    """
    rounding = _Rounding(recipe_of(recipe, sums), seed, stream, dtype)
    others = (running_mean, running_var, weight, bias)
    return rounding.normed(_batch_norm, input, others, [int(training)], [momentum, eps])


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch.nn.functional.instance_norm, rounded to `recipe.norm`.

    Running statistics are as in `batch_norm`.

    Args:
        input: N × C × ….
        running_mean: C, updated in place, or None (default).
        running_var: C, updated in place, or None (default).
        weight: as in torch; default None: ones.
        bias: as in torch; default None: zeros.
        use_input_stats: whether the input's statistics are used; default True.
        momentum: as in `batch_norm`; default 0.1.
        eps: the number that is added to the variance; default 1e-5.
        recipe: a `cpd.Recipe`, or a recipe's name or text. Only its `norm` is used; a format alone
            has no effect here. Default None, allowed only with `sums`: nothing is rounded.
        sums: as for `cpd.Recipe`; default None: the recipe's. It has no effect on a normalization,
            which has no GEMM.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the input's. It must represent the format.

    Returns:
        The result, of the input's shape.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x = torch.tensor([[[0.0, 1.0, 5.0]]])
    >>> instance_norm(x, recipe=cpd.Recipe(norm="(4,3)")).tolist()
    [[[-0.9375, -0.46875, 1.375]]]
    """
    if (running_mean is None) != (running_var is None):
        raise ValueError("give both running_mean and running_var, or neither: one of them is None")
    rounding = _Rounding(recipe_of(recipe, sums), seed, stream, dtype)
    others = (running_mean, running_var, weight, bias)
    return rounding.normed(_instance_norm, input, others, [int(use_input_stats)], [momentum, eps])


# ---- torch's computations, as `kept` takes them --------------------------------------------------


@kept
def _layer_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, *, sizes: Any, numbers: Any
) -> list[Tensor]:
    return [F.layer_norm(x, sizes, w, b, *numbers)]


@kept
def _rms_norm(x: Tensor, w: Tensor | None, *, sizes: Any, numbers: Any) -> list[Tensor]:
    return [F.rms_norm(x, sizes, w, *numbers)]


@kept
def _group_norm(
    x: Tensor, w: Tensor | None, b: Tensor | None, *, sizes: Any, numbers: Any
) -> list[Tensor]:
    return [F.group_norm(x, sizes[0], w, b, numbers[0])]


@kept
def _batch_norm(*operands: Any, sizes: Any, numbers: Any) -> list[Tensor]:
    return _with_statistics(F.batch_norm, operands, bool(sizes[0]), numbers)


@kept
def _instance_norm(*operands: Any, sizes: Any, numbers: Any) -> list[Tensor]:
    return _with_statistics(F.instance_norm, operands, bool(sizes[0]), numbers)


def _with_statistics(
    compute: Callable[..., Tensor], operands: Any, of_input: bool, numbers: Any
) -> list[Tensor]:
    """Returns the normalized input and, if running statistics are updated, their new values.

    The given running statistics are not changed.
    """
    x, mean, var, w, b = operands
    if not of_input or mean is None:
        return [compute(x, mean, var, w, b, of_input, *numbers)]
    mean, var = mean.clone(), var.clone()
    return [compute(x, mean, var, w, b, of_input, *numbers), mean, var]


class _Rounding(NamedTuple):
    """The arguments that all normalizations have in common: how to round the result."""

    recipe: Recipe
    seed: Number
    stream: Number
    dtype: torch.dtype | None

    def normed(
        self,
        compute: Callable[..., Sequence[Tensor]],
        input: Tensor,
        others: tuple[Tensor | None, ...],
        sizes: list[int],
        numbers: list[float],
    ) -> Tensor:
        """Returns the first result of `compute`, rounded by the recipe's `norm` if it has one.

        With `norm`, `compute` gets float32 tensors. All other results of `compute` are new running
        statistics. These replace the old statistics, the first tensors of `others`, in place.
        """
        recipe = self.recipe
        if recipe.norm is None:
            y, *statistics = compute(input, *_values(others), sizes=sizes, numbers=numbers)
            y = y if self.dtype is None else y.to(self.dtype)
        else:
            check_operand("input", input, like="input")
            element = operators.result_type(input, self.dtype)
            check_storage(operators.name_of(element), element_of(recipe.norm).name)
            if mixes_types(input, others):
                compute(input, *_values(others), sizes=sizes, numbers=numbers)  # torch's own error
            in_float32 = _values(others, torch.float32)
            y, *statistics = compute(input.float(), *in_float32, sizes=sizes, numbers=numbers)
            y = rounded(y, recipe.norm, recipe.norm, seed=self.seed, stream=self.stream).to(element)
        for running, new in zip(others, statistics, strict=False):
            if running is not None:
                running.copy_(new.detach())
        return y


def mixes_types(input: Tensor, others: Iterable[Tensor | None]) -> bool:
    """Returns True if torch may not support the types of parameters and statistics.

    torch supports the input's type and float32.
    """
    types = {x.dtype for x in others if x is not None and x.is_floating_point()}
    return types not in (set(), {input.dtype}, {torch.float32})


def _values(others: tuple[Tensor | None, ...], dtype: torch.dtype | None = None) -> list[Any]:
    """Converts parameters and running statistics to `dtype`.

    Copies the statistics, which change later.
    """
    return [None if x is None else x.to(dtype or x.dtype, copy=not x.requires_grad) for x in others]
