# SPDX-License-Identifier: Apache-2.0
"""`State`, the attribute `cpd` of a converted layer: its recipe, number, clock and scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cpd.nn.recipe import Recipe

if TYPE_CHECKING:
    from cpd.nn.clock import Clock
    from cpd.nn.delayed import Delayed


class State:
    """The state of a converted layer. It is not a module, and is copied with its layer.

    Attributes:
        recipe: how it computes now, with the layer's number; None: as torch does. It is never None
            within a mixin's forward.
        given: the recipe that `cpd.convert` chose for it, with its schedule.
        layer: its number in random streams.
        clock: counts the model's steps; None: nothing draws.
        delayed: the state of delayed scaling, a submodule of the layer; None: nothing delays.
    """

    recipe: Recipe | None
    given: Recipe
    layer: int
    clock: Clock | None
    delayed: Delayed | None

    def __init__(self, given: Recipe, layer: int = 0) -> None:
        self.given = given
        self.layer = layer
        self.clock = None
        self.delayed = None
        self._off = False
        self._units = {"step": 0, "epoch": 0}
        self._choose()

    def stream(self) -> Tensor | None:
        """The stream of the present step, an int64 tensor: for `stream=` of the functional forms;
        None: the recipe's own."""
        return None if self.clock is None else self.clock.stream()

    def arguments(self) -> dict[str, Any]:
        """What the functional form of a product takes."""
        return {"recipe": self.recipe, "stream": self.stream(), "delayed": self.delayed}

    def set_off(self, off: bool) -> None:
        """Sets whether the layer computes as torch does, whatever its recipe."""
        self._off = off
        self._choose()

    def set_step(self, step: int | None, epoch: int | None) -> None:
        """Sets the step and the epoch for the recipe's schedule; None: as before."""
        self._units["step"] = self._units["step"] if step is None else step
        self._units["epoch"] = self._units["epoch"] if epoch is None else epoch
        self._choose()

    def phases(self) -> Iterator[Recipe]:
        """All recipes that the layer may have, in their order."""
        for each in (self.given, *(how for _, _, how in self.given.schedule)):
            if each is not None:
                yield numbered(each, self.layer)

    def _choose(self) -> None:
        how: Recipe | None = self.given
        for unit, start, then in self.given.schedule:
            if self._units[unit] >= start:
                how = then
        self.recipe = None if how is None or self._off else numbered(how, self.layer)


def numbered(how: Recipe, layer: int) -> Recipe:
    """The recipe of one layer: with its number, and no rules or schedule, which have been
    followed."""
    attention = None if how.attention is None else how.attention.for_layer(layer)
    return replace(how, layer=layer, attention=attention, rules=(), schedule=())
