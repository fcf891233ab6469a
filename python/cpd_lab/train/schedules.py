# SPDX-License-Identifier: Apache-2.0
"""`RateSchedule`: the changes of the learning rate during a training, given as a text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from cpd.numeric.names import checked_name
from cpd.numeric.shown import shown

SHAPES = ("constant", "steps", "linear", "polynomial")
_FORMS = "[warmup N [from F]] constant | steps N… [factor F] | linear | polynomial [power P]"


@dataclass(frozen=True)
class RateSchedule:
    """The factor of the learning rate, as a function of the training's progress.

    The class is immutable; `rate_schedule` makes it from a text. A number below 1 in `warmup` or
    `places` is a fraction of the whole training instead of a number of epochs.

    Attributes:
        shape: the factor after the warm-up. `"constant"`: 1. `"steps"`: 1, multiplied by `factor`
            at each of `places`. `"linear"`: falls linearly from 1 at the end of the warm-up to 0 at
            the end of the training. `"polynomial"`: the linear factor to the power of `power`.
        warmup: the number of first epochs, in which the factor rises linearly from `begin` to 1.
        begin: the factor at the start of the warm-up.
        places: the epochs at which `"steps"` multiplies, counted from the start of the training,
            warm-up included.
        factor: the factor of `"steps"`; default 0.1.
        power: the power of `"polynomial"`; default 0.5.
    """

    shape: str = "constant"
    warmup: float = 0.0
    begin: float = 0.0
    places: tuple[float, ...] = ()
    factor: float = 0.1
    power: float = 0.5

    def at(self, progress: float, epochs: float) -> float:
        """Returns the factor after `progress` of `epochs` epochs; both may be fractions.

        >>> rate_schedule("warmup 5 steps 40 80").at(progress=2.5, epochs=100)
        0.5
        >>> rate_schedule("linear").at(progress=6, epochs=8)
        0.25
        """
        warmup = _in_epochs(self.warmup, epochs)
        if progress < warmup:
            return self.begin + (1 - self.begin) * (progress / warmup)
        if self.shape == "steps":
            passed = sum(progress >= _in_epochs(place, epochs) for place in self.places)
            return float(self.factor**passed)
        if self.shape == "constant" or epochs <= warmup:
            return 1.0
        left = max(0.0, 1 - (progress - warmup) / (epochs - warmup))
        return left if self.shape == "linear" else float(left**self.power)


@lru_cache(maxsize=64)
def rate_schedule(text: str) -> RateSchedule:
    """Returns the schedule that a text describes.

    Texts are `constant`, `steps 40 80`, `steps 0.5 0.75 factor 0.2`, `linear`, `polynomial` (of
    power 0.5) and `polynomial power 2`. `warmup 5` or `warmup 5 from 0.1` may precede any of them.
    After a `warmup 5` alone, the rate stays constant.

    Raises ValueError for any other text.

    >>> rate_schedule("warmup 0.2 linear").warmup
    0.2
    """
    words = _Words(text)
    values: dict[str, object] = {}
    if words.take("warmup"):
        values["warmup"] = words.number("warmup", least=0)
        if words.take("from"):
            values["begin"] = words.number("from", least=0)
    shape = words.shape()
    if shape == "steps":
        places = [words.number("steps", least=0)]
        while words.is_number():
            places.append(words.number("steps", least=0))
        if places != sorted(places) and not _mixed(places):
            raise ValueError(f"steps must ascend, in the schedule {shown(text)}")
        values["places"] = tuple(places)
        if words.take("factor"):
            values["factor"] = words.number("factor", least=0)
    if shape == "polynomial" and words.take("power"):
        values["power"] = words.number("power", least=0)
    words.end()
    return RateSchedule(shape, **values)  # type: ignore[arg-type]


def _in_epochs(number: float, epochs: float) -> float:
    return number * epochs if number < 1 else number


def _mixed(places: list[float]) -> bool:
    """Returns True if some numbers are fractions of the training and others are epochs.

    The order of such numbers depends on the length of the training.
    """
    return min(places) < 1 <= max(places)


class _Words:
    """Parses the text of a schedule word by word."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._words = text.split()

    def take(self, word: str) -> bool:
        """Skips the next word and returns True if it is `word`; otherwise returns False."""
        if self._words[:1] != [word]:
            return False
        self._words.pop(0)
        return True

    def is_number(self) -> bool:
        return bool(self._words) and _number(self._words[0]) is not None

    def number(self, name: str, least: float) -> float:
        word = self._words.pop(0) if self._words else ""
        value = _number(word)
        if value is None or value < least:
            raise ValueError(
                f"{name} takes a number of at least {least:g}, got {shown(word)}, in the schedule "
                f"{shown(self._text)}"
            )
        return value

    def shape(self) -> str:
        if not self._words:
            if self._text.split():
                return "constant"  # behind a warm-up
            raise ValueError(f"a schedule must be {_FORMS}, got {shown(self._text)}")
        return checked_name("schedule", self._words.pop(0), SHAPES)

    def end(self) -> None:
        if self._words:
            raise ValueError(
                f"{shown(self._words[0])} does not fit in the schedule {shown(self._text)}; it "
                f"must be {_FORMS}"
            )


def _number(word: str) -> float | None:
    try:
        value = float(word)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
