# SPDX-License-Identifier: Apache-2.0
"""Networks as data: shapes of their parameters, batch sizes, and rates that are published."""

from __future__ import annotations

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpd.numeric.checked import checked
from cpd.numeric.shown import shown
from cpd.study.machines import nearest

_FILE = Path(__file__).with_name("networks.toml")


@dataclass(frozen=True)
class Network:
    """A network whose gradients are summed.

    Attributes:
        name: the network's name.
        shapes: the shapes of its parameters.
        rate: samples a second on one K80; default None: not published.
        batches: number of ranks → samples of a step; default empty.
        batch: samples of a step on each rank, if `batches` has no number; default None: not known.
        epochs: the epochs of a whole training; default None: not known.
        examples: the samples of an epoch; default None: not known.
        summary: the network in words.
        published: the papers' number of parameters.
        source: where the numbers are from.

    >>> small = Network("small", ((10, 4), (10,)), batch=8)
    >>> small.values, small.samples(16)
    (50, 128)
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    rate: float | None = None
    batches: Mapping[int, int] = field(default_factory=dict)
    batch: int | None = None
    epochs: int | None = None
    examples: int | None = None
    summary: str = ""
    published: str = ""
    source: str = ""

    @property
    def values(self) -> int:
        """The number of parameters."""
        return sum(map(math.prod, self.shapes))

    def samples(self, ranks: int, batch: int | None = None) -> int:
        """Returns the samples of a step.

        Without `batch` it is the published number. Beyond the largest published number of ranks,
        each rank has the samples that it has with that number. If nothing is known, each rank has
        one sample.

        Args:
            ranks: the number of ranks.
            batch: samples on each rank; default None: the network's.

        Returns:
            The samples of all ranks.
        """
        if batch is not None:
            return batch * ranks
        if ranks in self.batches:
            return self.batches[ranks]
        if not self.batches:
            return ranks * (1 if self.batch is None else self.batch)
        near = max((one for one in self.batches if one < ranks), default=min(self.batches))
        return max(1, round(self.batches[near] * ranks / near))


@functools.cache
def networks() -> Mapping[str, Network]:
    """Returns the networks of `networks.toml`, by name."""
    with _FILE.open("rb") as file:
        return {name: _network(name, data) for name, data in tomllib.load(file).items()}


@checked
def network(name: str) -> Network:
    """Returns the network of this name.

    Args:
        name: a name of `networks.toml`, such as `resnet50`.

    Returns:
        The network.

    Raises:
        ValueError: for an unknown name, with the nearest known one.

    >>> network("resnet50").values
    25557032
    >>> network("resnet-50")
    Traceback (most recent call last):
    ...
    ValueError: no network 'resnet-50'; did you mean resnet50?
    """
    known = networks()
    if name not in known:
        raise ValueError(f"no network {shown(name)}{nearest(name, known)}")
    return known[name]


def _network(name: str, data: Mapping[str, Any]) -> Network:
    values = dict(data)
    shapes = tuple(tuple(shape) for times, *shape in values.pop("shapes") for _ in range(times))
    batches = {int(ranks): batch for ranks, batch in values.pop("batches", {}).items()}
    return Network(name, shapes, batches=batches, **values)
