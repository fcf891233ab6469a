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

    >>> small = Network("small", ((10, 4), (10,)), batch=8)
    >>> small.values, small.samples(16)
    (50, 128)
    """

    name: str
    shapes: tuple[tuple[int, ...], ...]
    """Of its parameters."""
    rate: float | None = None
    """Samples a second on one K80; None: not published."""
    batches: Mapping[int, int] = field(default_factory=dict)
    """Samples of a step, by the number of ranks."""
    batch: int | None = None
    """Samples of a step on each rank, where `batches` has no number."""
    epochs: int | None = None
    """Of a whole training."""
    examples: int | None = None
    """Samples of an epoch."""
    summary: str = ""
    published: str = ""
    """The papers' number of parameters."""
    source: str = ""

    @property
    def values(self) -> int:
        """The number of parameters."""
        return sum(map(math.prod, self.shapes))

    def samples(self, ranks: int, batch: int | None = None) -> int:
        """The samples of a step: `batch` on each rank; or the published number, beyond which each
        rank has as many as with the most ranks of these; 1 on each where nothing is known."""
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
    """The networks of `networks.toml`, by name."""
    with _FILE.open("rb") as file:
        return {name: _network(name, data) for name, data in tomllib.load(file).items()}


@checked
def network(name: str) -> Network:
    """The network of this name.

    Raises ValueError for a name that is not known, naming the nearest.

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
