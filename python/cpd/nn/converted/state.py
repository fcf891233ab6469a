# SPDX-License-Identifier: Apache-2.0
"""`State`: the attribute `cpd` of a converted layer.

It has the layer's recipe, number, clock and scales.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cpd.nn.recipe import Recipe
from cpd.numeric.purposes import Purpose
from cpd.numeric.streams import stream_tag

if TYPE_CHECKING:
    from cpd.nn.delayed import Delayed


class State:
    """The state of a converted layer. It is not a module, and is copied with its layer.

    Args:
        given: the recipe that `cpd.convert` chose for the layer, with its schedule.
        layer: the layer's number in random streams; default 0.
        seed: the seed of the layer's random bits; default 0.

    Attributes:
        recipe: the recipe of the present step; None: torch computes. In an emulation's forward it
            is not None.
        ahead: the recipe of the step after the present one.
        upcoming: `ahead` if the next forward with gradients may begin a step, else `recipe`.
        given: the recipe that `cpd.convert` chose: the first argument.
        layer: the layer's number.
        seed: the seed.
        clock: the clock that counts the model's steps; None if nothing is stochastic, delayed or
            scheduled.
        draws: whether a rounding of the layer is stochastic, at some step.
        counts: whether the layer's forward may begin a step: whether it rounds stochastically,
            delays scales or has a schedule.
        delayed: the state of delayed scaling, a submodule of the layer; None: nothing is delayed.
    """

    recipe: Recipe | None
    ahead: Recipe | None
    upcoming: Recipe | None
    given: Recipe
    layer: int
    clock: Any  # a cpd.nn.clock.Clock, whose module imports this one; or None
    delayed: Delayed | None
    seed = 0  # of a model that 0.7 has pickled
    draws = True

    def __init__(self, given: Recipe, layer: int = 0, seed: int = 0) -> None:
        self.given = given
        self.layer = layer
        self.seed = seed
        self.clock = None
        self.delayed = None
        self.counts = False
        self._off = False
        self._steps = 0, 0
        self._epoch: int | None = None
        self._recipes: dict[int, Recipe | None] = {}
        self.draws = any(recipe._kept.draws for recipe in self.phases())
        self._choose()

    def numbers(self) -> dict[str, Any]:
        """Returns arguments of `cpd.functional`, by name: the present step's seed and stream."""
        if self.clock is None or not self.draws:
            return {"seed": self.seed, "stream": 0}
        stream = self.clock.stream() ^ stream_tag(Purpose.given, self.layer)
        return {"seed": self.seed, "stream": stream}

    def arguments(self) -> dict[str, Any]:
        """Returns arguments of `cpd.functional`, by name: recipe, delayed scales, seed, stream."""
        return {"recipe": self.recipe, "delayed": self.delayed, **self.numbers()}

    def set_off(self, off: bool) -> None:
        """Sets whether the layer ignores its recipe and computes as torch does."""
        self._off = off
        self._choose()

    def set_epoch(self, epoch: int) -> None:
        """Sets the number of the epoch, which a schedule of epochs follows."""
        self._epoch = epoch
        self._choose()

    def follow(self, step: int, then: int) -> None:
        """Sets the numbers of the present step (`step`) and of the step after it (`then`)."""
        self._steps = step, then
        self._choose()

    def awaits_epochs(self) -> bool:
        """Returns True if the schedule counts epochs and `set_epoch` was not called."""
        return self._epoch is None and any(unit == "epoch" for unit, _, _ in self.given.schedule)

    def phases(self) -> Iterator[Recipe]:
        """Yields the recipes that the layer may have: its first, then its schedule's recipes."""
        for recipe in (self.given, *(scheduled for _, _, scheduled in self.given.schedule)):
            if recipe is not None:
                yield _followed(recipe)

    def _choose(self) -> None:
        self.recipe, self.ahead = (self._of(step) for step in self._steps)
        is_over = self.clock is not None and self.clock.is_over()
        self.upcoming = self.ahead if is_over else self.recipe

    def _of(self, step: int) -> Recipe | None:
        """Returns the layer's recipe in the step `step`; None if torch computes the layer."""
        units = {"step": step, "epoch": self._epoch or 0}
        starts = [-1, *(n for n, (unit, start, _) in enumerate(self.given.schedule)
                        if units[unit] >= start)]  # fmt: skip
        phase = starts[-1]
        if self._off:
            return None
        if phase not in self._recipes:
            recipe = self.given if phase < 0 else self.given.schedule[phase][2]
            self._recipes[phase] = None if recipe is None else _followed(recipe)
        return self._recipes[phase]

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_recipes" not in state:  # of a model that 0.7 has pickled
            self._recipes = {}
            self.draws = any(recipe._kept.draws for recipe in self.phases())
            self._choose()


def _followed(recipe: Recipe) -> Recipe:
    """Returns a layer's recipe without rules and schedule, which `convert` has already applied."""
    return replace(recipe, rules=(), schedule=())
