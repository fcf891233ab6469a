# SPDX-License-Identifier: Apache-2.0
"""`from_recipe`: makes the optimizer and the loss scaler that a recipe describes."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from cpd.nn.recipe import RecipeLike, as_recipe
from cpd.nn.recipe_files import OPTIMIZER
from cpd.numeric.checked import checked
from cpd.numeric.spec_text import head_and_keys
from cpd.optim.loss_scaler import LossScaler
from cpd.optim.low_precision import LowPrecision


@checked
def from_recipe(
    optimizer: Optimizer, recipe: RecipeLike, *, seed: int = 0
) -> tuple[Optimizer, LossScaler]:
    """Returns the optimizer and the loss scaler that a recipe describes.

    `Recipe.optimizer` is a text. It begins with the weights' format and the format's options, if
    weights are rounded. The keys `update=`, `master=`, `momentum=`, `second_moment=` and
    `gradient=` follow in any order, as for `LowPrecision`. A format with options is in quotes.
    Examples: `"bf16 update=stochastic random_bits=16"`, `"e4m3fn master=fp32"`, `"momentum=bf16
    second_moment='e4m3fn 256'"`. A format for state that the optimizer lacks (SGD without momentum)
    is ignored, with a warning at the first step.

    `Recipe.loss_scale` is a constant number, or `"dynamic"`: a scale that begins with 65536 and
    changes.

    Args:
        optimizer: a torch optimizer, as for `LowPrecision`.
        recipe: a `cpd.Recipe`, or a recipe's name, text or file.
        seed: the seed of stochastic roundings, as for `LowPrecision`; default 0.

    Returns:
        A tuple of an optimizer and a `LossScaler`. The optimizer is a `LowPrecision`, or the
        argument itself if the recipe has no `optimizer`. The scale is constant unless `loss_scale`
        is `"dynamic"`; it is 1 if `loss_scale` is None.

    Raises:
        ValueError: for an invalid text. The message names the recipe's key.

    >>> import cpd, torch
    >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    >>> recipe = cpd.Recipe("native", optimizer="bf16 update=kahan", loss_scale="dynamic")
    >>> optimizer, scaler = cpd.optim.from_recipe(sgd, recipe)
    >>> print(optimizer.formats)
    weight='bf16', update='kahan'
    """
    resolved = as_recipe(recipe)
    scaler = LossScaler()
    if resolved.loss_scale != "dynamic":
        scale = 1.0 if resolved.loss_scale is None else resolved.loss_scale
        scaler = LossScaler(scale, dynamic=False, least=scale, most=scale)
    if resolved.optimizer is None:
        return optimizer, scaler
    try:
        head, options = head_and_keys(resolved.optimizer, OPTIMIZER)
        formats: dict[str, Any] = {"weight": head or None, **options}
        if not head and not options:
            raise ValueError("an optimizer's text is empty")
        low_precision = LowPrecision(optimizer, **formats, seed=seed)
    except ValueError as error:
        own = (
            f", and of an optimizer {', '.join(OPTIMIZER)}"
            if "unknown option" in str(error)
            else ""
        )
        raise ValueError(f"the recipe's optimizer={resolved.optimizer!r}: {error}{own}") from None
    low_precision._leaves_out = True
    return low_precision, scaler
