# SPDX-License-Identifier: Apache-2.0
"""Notes on a recipe that `cpd.convert` adds to its report."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from cpd._torch import operators
from cpd.nn.recipe import OPERANDS, CastSpec, Recipe
from cpd.ops.arguments import holds


def on_recipe(how: Recipe) -> list[str]:
    """Returns notes on the recipe as a whole."""
    found = []
    if how.is_native and not how.rounds and not how.schedule:
        found.append("the recipe rounds nothing in layers: they compute as torch does")
    if how.residual is not None:
        found.append(
            "residual: additions are rounded in modules of transformers and timm that name them, "
            "and where cpd.nn.register says so; cpd.autocast rounds all"
        )
    return found


def of_integers(how: Recipe) -> Iterator[str]:
    """Yields notes on casts to integers without a scale."""
    for name in OPERANDS:
        spec = getattr(how, name)
        if isinstance(spec, CastSpec) and spec.format.encoding == "int":
            f = spec.format.name
            yield f"{name}={f!r} rounds to whole numbers: it has no scale; '{f} row' has one"


def of_types(how: Recipe, module: nn.Module) -> Iterator[str]:
    """Yields a note if a weight's type does not hold the format that the recipe rounds it to."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.is_floating_point():
        return
    held = operators.name_of(weight.dtype)
    if isinstance(how.weight, CastSpec) and not holds(held, how.weight.format.name):
        yield (
            f"weights in {held} do not hold {how.weight.format.name}, which the recipe rounds them "
            "to: calls will raise; make them float32"
        )


def elsewhere(how: Recipe) -> list[str]:
    """Returns notes on the parts of the recipe that other functions apply."""
    found = []
    beside = [n for n in ("update", "state", "loss_scale") if getattr(how, n) is not None]
    if beside:
        arguments = ", ".join(f"{name}={getattr(how, name)!r}" for name in beside)
        found.append(f"{arguments}: the optimizer's, by cpd.optim.from_recipe")
    if how.wire is not None:
        found.append(
            f"wire={how.wire!r}: the exchange of gradients, by cpd.Reduce and what takes "
            "its spec (VirtualNodes, ddp_hook)"
        )
    return found
