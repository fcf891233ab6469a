# SPDX-License-Identifier: Apache-2.0
"""`State`, the attribute `cpd` of a converted layer: its recipe, number, clock and scales."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor

from cpd.nn.recipe import Recipe

if TYPE_CHECKING:
    from cpd.nn.delayed import Delayed


class State:
    """The state of a converted layer. It is not a module, and is copied with its layer.

    Attributes:
        recipe: how it computes now, with the layer's number; None: as torch does. It is never None
            within a mixin's forward.
        ahead: how it will compute in the step after the present one.
        upcoming: `ahead` if the next forward with gradients may begin a step, else `recipe`.
        given: the recipe that `cpd.convert` chose for it, with its schedule.
        layer: its number in random streams.
        clock: counts the model's steps; None: nothing draws, delays or has a schedule.
        counts: whether the layer's forward may begin a step: it draws, delays or has a schedule.
        delayed: the state of delayed scaling, a submodule of the layer; None: nothing delays.
    """

    recipe: Recipe | None
    ahead: Recipe | None
    upcoming: Recipe | None
    given: Recipe
    layer: int
    clock: Any  # a cpd.nn.clock.Clock, whose module imports this one; or None
    delayed: Delayed | None

    def __init__(self, given: Recipe, layer: int = 0) -> None:
        self.given = given
        self.layer = layer
        self.clock = None
        self.delayed = None
        self.counts = False
        self._off = False
        self._steps = 0, 0
        self._epoch: int | None = None
        self._follows = True
        self._numbered: dict[int, Recipe | None] = {}
        self._choose()

    def stream(self) -> Tensor | None:
        """Returns the stream of the present step, an int64 tensor.

        It is for `stream=` of the functional forms; None: the recipe's own.
        """
        return None if self.clock is None else self.clock.stream()

    def arguments(self) -> dict[str, Any]:
        """Returns the keywords of a product's functional form."""
        return {"recipe": self.recipe, "stream": self.stream(), "delayed": self.delayed}

    def set_off(self, off: bool) -> None:
        """Sets whether the layer computes as torch does, whatever its recipe."""
        self._off = off
        self._choose()

    def set_step(self, step: int | None, epoch: int | None) -> None:
        """Sets the step and the epoch for the recipe's schedule; None: as before.

        After a step was given the schedule no longer follows the clock.
        """
        if step is not None:
            self._steps, self._follows = (step, step), False
        self._epoch = self._epoch if epoch is None else epoch
        self._choose()

    def follow(self, step: int, then: int) -> None:
        """Sets the present step and the one after it, where the schedule follows the clock."""
        if self._follows:
            self._steps = step, then
            self._choose()

    def awaits_epochs(self) -> bool:
        """Returns whether the schedule counts epochs, and no epoch was given."""
        return self._epoch is None and any(unit == "epoch" for unit, _, _ in self.given.schedule)

    def phases(self) -> Iterator[Recipe]:
        """All recipes that the layer may have, in their order."""
        for each in (self.given, *(how for _, _, how in self.given.schedule)):
            if each is not None:
                yield numbered(each, self.layer)

    def _choose(self) -> None:
        self.recipe, self.ahead = (self._of(step) for step in self._steps)
        self.upcoming = self.recipe

    def _of(self, step: int) -> Recipe | None:
        """Returns the recipe of the layer in that step."""
        units = {"step": step, "epoch": self._epoch or 0}
        starts = [-1, *(n for n, (unit, start, _) in enumerate(self.given.schedule)
                        if units[unit] >= start)]  # fmt: skip
        phase = starts[-1]
        if self._off:
            return None
        if phase not in self._numbered:
            how = self.given if phase < 0 else self.given.schedule[phase][2]
            self._numbered[phase] = None if how is None else numbered(how, self.layer)
        return self._numbered[phase]


def numbered(how: Recipe, layer: int) -> Recipe:
    """Returns the recipe of one layer: with its number, and no rules or schedule.

    Rules and schedule have been followed.
    """
    attention = None if how.attention is None else how.attention._for_layer(layer)
    return replace(how, layer=layer, attention=attention, rules=(), schedule=())
