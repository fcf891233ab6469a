# SPDX-License-Identifier: Apache-2.0
"""`Network`: a network's parameter shapes, batch sizes and published training speed."""

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
    """A network in a data-parallel training: its sizes, batches and published speed.

    Args:
        network: the name of a network (`Network.named()`). Default None: the keywords define the
            network.
        shapes: the shapes of its parameters; default None: the shapes of the named network.
        rate: the training speed on one K80, in samples a second; default None: not published.
        batches: a dict from a number of ranks to the number of samples in a step of all ranks;
            default None: empty.
        batch: the number of samples in a step on each rank, if `batches` is empty; default None:
            unknown.
        epochs: the number of epochs in a whole training; default None: unknown.
        examples: the number of samples in an epoch; default None: unknown.

    A keyword replaces the named network's value. All keywords are attributes. Further attributes
    are `name`, `summary` (a description of the network), `published` (the number of parameters in
    the papers) and `source` (the source of the numbers).

    Raises:
        ValueError: for an unknown name (the text suggests the nearest known name), for a negative
            size in `shapes`, and if both the name and `shapes` are missing.
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
        """Returns a network with the attributes `values`, including its name and descriptions."""
        network = object.__new__(cls)
        network._set(values)
        return network

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the networks that CPD knows by name.

        Returns:
            A dict from each name to a mapping with `summary`, a description of the network, and
            `source`, the source of its numbers.

        >>> Network.named()["lstm"]["summary"]
        'LSTM of three layers, AN4'
        """
        words = ("summary", "source")
        return {name: {word: data[word] for word in words} for name, data in _named().items()}

    @property
    def values(self) -> int:
        """The number of parameters (single values) of the network."""
        return sum(map(math.prod, self.shapes))

    def samples(self, world: int, batch: int | None = None) -> int:
        """Returns the number of samples in one step of all ranks.

        If `batches` has the number of ranks, that entry is returned. Otherwise each rank has as
        many samples as with the next smaller number of ranks in `batches` (with the smallest
        number, if there is no smaller one). If `batches` is empty, each rank has `batch` samples,
        or one sample if that is unknown.

        Args:
            world: the number of ranks.
            batch: the number of samples on each rank; default None: the network's number.

        Returns:
            The number of samples of all ranks together.
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
    """Converts a network's name to a `Network`. Returns a `Network` unchanged."""
    return network if isinstance(network, Network) else Network(network)


@functools.cache
def _named() -> dict[str, dict[str, Any]]:
    """Returns the values of the networks in `networks.toml`, by name."""
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
