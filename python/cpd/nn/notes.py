# SPDX-License-Identifier: Apache-2.0
"""Writes names of recipes for reports, and the notes that `cpd.convert` adds to its report."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from torch import Tensor, nn

from cpd._torch import operators
from cpd.nn.ready import READY
from cpd.nn.recipe import NATIVE, OPERANDS, Recipe, as_recipe
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import element_of, format_of, operand_text
from cpd.numeric.formats import Format
from cpd.ops.arguments import holds


def on_recipe(how: Recipe, emulates: bool) -> list[str]:
    """Returns remarks on the whole recipe, for the report of `cpd.convert`.

    `emulates`: True if at least one layer of the model is emulated.
    """
    notes = []
    if not emulates and how._is_native and not how._rounds and not how.schedule:
        notes.append("the recipe rounds nothing in layers: they compute as torch does")
    if how.residual is not None:
        notes.append(
            "residual: additions are rounded in modules of transformers and timm that name them, "
            "and where cpd.nn.register says so; cpd.autocast rounds all"
        )
    return notes


def of_integers(how: Recipe) -> Iterator[str]:
    """Yields a note for each integer format without a scale to which operands are cast."""
    operands: dict[str, list[str]] = {}
    for name in OPERANDS:
        f = format_of(getattr(how, name))
        if f is not None and f.encoding == "int":
            operands.setdefault(f.name, []).append(name)
    for text, names in operands.items():
        yield (
            f"{text} has no scale: it rounds {', '.join(names)} to whole numbers, small values to "
            f"zero; {f'{text} row'!r} has a scale for each row"
        )


def of_types(how: Recipe, module: nn.Module) -> Iterator[str]:
    """Yields a note if a weight's type cannot represent the format of the recipe's cast."""
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


def of_units(how: Recipe) -> Iterator[str]:
    """Yields a note for each GEMM whose matrix unit cannot represent the cast operands."""
    casts = how._kept.operands
    for number, unit in enumerate(how._sums[:3]):
        if not isinstance(unit, Accumulator) or unit.form != "unit":
            continue
        lacking = [
            f"{role}={element_of(cast)}"
            for role, cast in zip("ab", casts[2 * number : 2 * number + 2], strict=True)
            if cast is not None
            and (format_of(cast) is not None or how.scales_at != "operand")
            and not _contains(getattr(unit, role), element_of(cast))
        ]
        if lacking:
            yield (
                f"{GEMMS[number]}: the matrix unit takes a={unit.a} and b={unit.b}, the recipe "
                f"casts to {' and '.join(lacking)}: values that the unit does not hold raise; give "
                f"the unit {' '.join(lacking)} (sums= takes three, for {', '.join(GEMMS)})"
            )


GEMMS = ("forward", "grad_input", "grad_weight")
"""A layer's GEMMs; a list of three accumulators in `sums=` has the same order."""


def _contains(held: Format, f: Format) -> bool:
    """Returns True if the format `held` has every finite value of the floating-point format `f`."""
    least_held, least = (x.min_subnormal or x.min_normal or x.max for x in (held, f))
    return held.man >= f.man and held.max >= f.max and least_held <= least


def elsewhere(how: Recipe) -> list[str]:
    """Returns remarks on the parts of a recipe that `convert` ignores: optimizer, reduction."""
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
    """Returns the name of the named recipe with the sums, casts and `scales_at` of recipe `how`.

    If there is no such named recipe, returns the text of the sums, casts and `scales_at`.
    """
    return _names().get(how._kept.text, how._kept.text)


def title_of(how: Recipe) -> str:
    """Returns the text that describes a recipe in the first line of a report."""
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
