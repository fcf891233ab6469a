# SPDX-License-Identifier: Apache-2.0
"""Names of recipes in reports, and notes on a recipe that `cpd.convert` adds to its report."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import Tensor, nn

from cpd._torch import operators
from cpd.nn.ready import READY
from cpd.nn.recipe import NATIVE, OPERANDS, Recipe, as_recipe
from cpd.numeric.cast import format_of, operand_text
from cpd.ops.arguments import holds


def on_recipe(how: Recipe) -> list[str]:
    """Returns notes on the recipe as a whole."""
    notes = []
    if how._is_native and not how._rounds and not how.schedule:
        notes.append("the recipe rounds nothing in layers: they compute as torch does")
    if how.residual is not None:
        notes.append(
            "residual: additions are rounded in modules of transformers and timm that name them, "
            "and where cpd.nn.register says so; cpd.autocast rounds all"
        )
    return notes


def of_integers(how: Recipe) -> Iterator[str]:
    """Yields notes on casts to integers without a scale."""
    for name in OPERANDS:
        spec = getattr(how, name)
        f = format_of(spec)
        if f is not None and f.encoding == "int":
            yield f"{name}={f.name!r} rounds to whole numbers: it has no scale; '{f} row' has one"


def of_types(how: Recipe, module: nn.Module) -> Iterator[str]:
    """Yields a note if a weight's type does not hold the format that the recipe rounds it to."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return
    held = operators.name_of(weight.dtype)
    f = format_of(how.weight)
    if f is not None and not holds(held, f.name):
        yield (
            f"weights in {held} do not hold {f.name}, which the recipe rounds them "
            "to: calls will raise; make them float32"
        )


def elsewhere(how: Recipe) -> list[str]:
    """Returns notes on the parts of the recipe that other functions apply."""
    notes = []
    beside = [n for n in ("optimizer", "loss_scale") if getattr(how, n) is not None]
    if beside:
        arguments = ", ".join(f"{name}={getattr(how, name)!r}" for name in beside)
        notes.append(f"{arguments}: the optimizer's, by cpd.optim.from_recipe")
    if how.reduce is not None:
        notes.append(
            f"reduce={how.reduce.text!r}: the exchange of gradients, by what takes a cpd.Reduce "
            "(VirtualNodes, ddp_hook)"
        )
    return notes


def name_of(how: Recipe) -> str:
    """The name of the recipe whose products compute as `how`'s, or its text."""
    return _names().get(how._kept.text, how._kept.text)


def title_of(how: Recipe) -> str:
    """Returns a recipe as a report's first line names it."""
    name = _names().get(how._kept.text)
    if name is not None:
        return f"recipe {name}"
    operands, sums = set(how._kept.operands), {str(sum_) for sum_ in how._sums[:3]}
    if operands == {None} and sums != {NATIVE} and len(sums) == 1:
        return f"sums in {sums.pop()}, operands not cast"
    cast = how.activation
    if cast is None or {how.activation, how.weight, how.gradient, *operands} != {cast}:
        return f"recipe {how._kept.text}"
    summed = "native sums" if sums == {NATIVE} else f"sums {', '.join(sorted(sums))}"
    return f"activation, weight and gradient of all three GEMMs in {operand_text(cast)}, {summed}"


@functools.cache
def _names() -> dict[str, str]:
    recipes = {name: as_recipe(name) for name in READY}
    return {recipe._kept.text: name for name, recipe in recipes.items() if recipe._rounds}
