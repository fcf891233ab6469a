# SPDX-License-Identifier: Apache-2.0
"""Networks as data: shapes of their parameters, batch sizes, and published rates."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from cpd.numeric.checked import checked
from cpd.numeric.names import nearest
from cpd.numeric.numbers import int64
from cpd.numeric.shown import shown

_FILE = Path(__file__).with_name("networks.toml")
_WORDS = ("name", "summary", "published", "source")


@checked
@dataclass(frozen=True, init=False)
class Network:
    """A network whose gradients are summed.

    Args:
        network: the name of a network (`Network.named()`). Default None: the keywords alone.
        shapes: the shapes of its parameters.
        rate: samples a second on one K80; default None: not published.
        batches: the samples of a step by number of ranks; default empty.
        batch: the samples of a step on each rank, if `batches` has no number; default None:
            unknown.
        epochs: the epochs of a whole training; default None: unknown.
        examples: the samples of an epoch; default None: unknown.

    A keyword replaces the named network's value. All keywords are attributes; further attributes
    are `name`, `summary` (the network in words), `published` (the papers' number of parameters) and
    `source` (the source of the numbers).

    Raises:
        ValueError: for an unknown name, with the nearest known one, for a length below 0, and
            without a name and shapes.
        TypeError: for an argument of another type.

    >>> Network("resnet50").values
    25557032
    >>> small = Network(shapes=[(10, 4), (10,)], batch=8)
    >>> small.values, small.samples(16)
    (50, 128)
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    rate: float | None
    batches: Mapping[int, int] = field(hash=False)
    batch: int | None
    epochs: int | None
    examples: int | None
    summary: str
    published: str
    source: str

    def __init__(
        self,
        network: str | None = None,
        /,
        *,
        shapes: Sequence[Sequence[int]] | None = None,
        rate: float | None = None,
        batches: Mapping[int, int] | None = None,
        batch: int | None = None,
        epochs: int | None = None,
        examples: int | None = None,
    ) -> None:
        arguments = locals()
        names = [attribute.name for attribute in fields(self) if attribute.name not in _WORDS]
        values = {name: arguments[name] for name in names if arguments[name] is not None}
        if network is None and shapes is None:
            raise ValueError("a network needs a name or shapes")
        self._set(({} if network is None else _of_name(network)) | values)

    def _set(self, values: dict[str, Any]) -> None:
        shapes = tuple(
            tuple(int64("a size in shapes", n) for n in shape) for shape in values["shapes"]
        )
        if any(size < 0 for shape in shapes for size in shape):
            raise ValueError(f"a size in shapes must be at least 0, got {shapes}")
        defaults = {"name": "a network", "batches": {}} | dict.fromkeys(_WORDS[1:], "")
        for attribute in fields(self):
            value = values.get(attribute.name, defaults.get(attribute.name))
            object.__setattr__(
                self, attribute.name, shapes if attribute.name == "shapes" else value
            )

    @classmethod
    def _of(cls, **values: Any) -> Self:
        """Returns the network of these fields; its name and its words can be chosen, too."""
        network = object.__new__(cls)
        network._set(values)
        return network

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the named networks.

        Returns:
            Name → a mapping with `summary`, the network in words, and `source`, where its numbers
            are from.

        >>> Network.named()["lstm"]["summary"]
        'LSTM of three layers, AN4'
        """
        words = ("summary", "source")
        return {name: {word: data[word] for word in words} for name, data in _named().items()}

    @property
    def values(self) -> int:
        """The number of parameters."""
        return sum(map(math.prod, self.shapes))

    def samples(self, world: int, batch: int | None = None) -> int:
        """Returns the samples of a step.

        Default: the published number of samples. Beyond the largest published number of ranks, each
            rank keeps its number of samples. If nothing is known, each rank has one sample.

        Args:
            world: the number of ranks.
            batch: samples on each rank; default None: the network's.

        Returns:
            The samples of all ranks.
        """
        if batch is not None:
            return batch * world
        if world in self.batches:
            return self.batches[world]
        if not self.batches:
            return world * (1 if self.batch is None else self.batch)
        near = max((count for count in self.batches if count < world), default=min(self.batches))
        return max(1, round(self.batches[near] * world / near))


def as_network(network: Network | str) -> Network:
    """Returns the network of a name; a `Network` as it is."""
    return network if isinstance(network, Network) else Network(network)


@functools.cache
def _named() -> dict[str, dict[str, Any]]:
    """Returns the networks of `networks.toml`, by name."""
    with _FILE.open("rb") as file:
        return {name: _values(name, data) for name, data in tomllib.load(file).items()}


def _values(name: str, data: dict[str, Any]) -> dict[str, Any]:
    shapes = [shape for times, *shape in data["shapes"] for _ in range(times)]
    batches = {int(ranks): batch for ranks, batch in data.get("batches", {}).items()}
    return data | {"name": name, "shapes": shapes, "batches": batches}


def _of_name(name: str) -> dict[str, Any]:
    known = _named()
    if name not in known:
        raise ValueError(f"no network {shown(name)}{nearest(name, known)}")
    return known[name]
