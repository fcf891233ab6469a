# SPDX-License-Identifier: Apache-2.0
"""The optimizer's part of a recipe: `from_recipe`, and the texts that it reads."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from cpd.nn.ready import recipe
from cpd.nn.recipe import RecipeLike
from cpd.numeric.checked import checked
from cpd.numeric.shown import shown
from cpd.optim.loss_scaler import LossScaler
from cpd.optim.low_precision import LowPrecision

_recipe = recipe  # the parameter of the same name hides it

UPDATE = ("update", "master")
STATE = ("momentum", "second_moment", "gradient")


@checked
def from_recipe(
    optimizer: Optimizer, recipe: RecipeLike, *, seed: int = 0
) -> tuple[Optimizer, LossScaler]:
    """Returns the optimizer of a recipe's `update` and `state`, and the scaler of its `loss_scale`.

    - update: the weight's format, with its options, then `update=` and `master=`, as for
      `LowPrecision`: `"bf16"`, `"bf16 update=stochastic random_bits=16"`, `"e4m3fn master=fp32"`.
    - state: `momentum=`, `second_moment=` and `gradient=`, each followed by a format and its
      options: `"momentum=bf16 second_moment=e4m3fn 256"`. A state that the optimizer does not have,
      as SGD without momentum, is left out, with a warning at the first step.
    - loss_scale: a number, or `"dynamic"`, which begins with 65536.

    Args:
        optimizer: an optimizer of torch.
        recipe: a `cpd.Recipe`, or anything that `cpd.recipe` takes.
        seed: the seed of stochastic roundings, as for `LowPrecision`; default 0.

    Returns:
        A `LowPrecision`, or `optimizer` itself if `update` and `state` are None; and a
        `LossScaler`, of a constant 1 if `loss_scale` is None.

    Raises:
        ValueError: for an invalid text; it names the key.

    >>> import cpd, torch
    >>> sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    >>> recipe = cpd.Recipe("native", update="bf16 update=kahan", loss_scale="dynamic")
    >>> optimizer, scaler = cpd.optim.from_recipe(sgd, recipe)
    >>> print(optimizer.formats)
    weight='bf16', update='kahan'
    """
    how = _recipe(recipe)
    scaler = LossScaler()
    if how.loss_scale != "dynamic":
        scale = 1.0 if how.loss_scale is None else how.loss_scale
        scaler = LossScaler(scale, dynamic=False, least=scale, most=scale)
    options: dict[str, Any] = {}
    if how.update is not None:
        options |= parsed("update", how.update, UPDATE, "weight")
    if how.state is not None:
        options |= parsed("state", how.state, STATE)
    if not options:
        return optimizer, scaler
    try:
        made = LowPrecision(optimizer, **options, seed=seed)
    except ValueError as error:
        given = f"update={how.update!r}, state={how.state!r}"
        raise ValueError(f"the recipe's {given}: {error}") from None
    made._leaves_out = True
    return made, scaler


def parsed(key: str, text: str, names: tuple[str, ...], first: str = "") -> dict[str, str]:
    """Returns the parts of a text: what begins with `name=`, and the words that follow it.

    Words before the first of them are `first`. An option of a format belongs to the part that it is
    in. Raises ValueError, naming the key.
    """
    parts: dict[str, list[str]] = {}
    name = first
    for word in text.split():
        begins, equals, value = word.partition("=")
        if equals and begins in names:
            if begins in parts:
                raise ValueError(f"{key}: {begins} is given twice in {shown(text)}")
            name, word = begins, value
        if not name:
            raise ValueError(f"{key} must begin with one of {_listed(names)}, got {shown(text)}")
        if word:
            parts.setdefault(name, []).append(word)
    if first and first not in parts:
        raise ValueError(f"{key} must begin with the {first}'s format, got {shown(text)}")
    if not parts:
        raise ValueError(f"{key} must name one of {_listed(names)}, got {shown(text)}")
    return {name: " ".join(words) for name, words in parts.items()}


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(f"{name}=" for name in names)
