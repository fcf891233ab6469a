# SPDX-License-Identifier: Apache-2.0
"""Lists a model's parameter tensors without making the model (`layers_of`).

It also finds those that `exempt=` leaves in fp32. An all-reduce calls each such tensor a layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from cpd.numeric.names import checked_name
from cpd_lab.train.table import MODELS, Sample


@dataclass(frozen=True)
class Layer:
    """One parameter tensor: its name, its shape, and the class of the module that has it."""

    name: str
    shape: tuple[int, ...]
    module: str

    @property
    def size(self) -> int:
        """The number of its values."""
        return math.prod(self.shape)


_ORDINALS = {"conv": "Conv", "fc": "Linear"}


def weight_named(name: str, layers: Sequence[Layer]) -> str:
    """Returns the name of the weight that `convN` or `fcN` means.

    It is the Nth convolution's or linear layer's. Another name is returned unchanged. Raises
    ValueError if there are fewer layers.

    >>> layers = [Layer("0.weight", (8, 3, 3, 3), "Conv2d"), Layer("0.bias", (8,), "Conv2d")]
    >>> weight_named("conv1", layers)
    '0.weight'
    """
    match = re.fullmatch(r"(conv|fc)([1-9]\d{0,5})", name)
    if match is None:
        return name
    kind = _ORDINALS[match[1]]
    names = [
        layer.name for layer in layers if layer.module.startswith(kind) and len(layer.shape) > 1
    ]
    if int(match[2]) > len(names):
        raise ValueError(f"there is no {name}: the model has {len(names)} layers {kind}")
    return names[int(match[2]) - 1]


@lru_cache(maxsize=64)
def layers_of(model: str, sample: Sample, taken: tuple[tuple[str, Any], ...]) -> tuple[Layer, ...]:
    """Returns the layers of a model in `MODELS`, in their order, without making weights.

    `taken`: the options that it takes, by name.
    """
    import torch

    with torch.device("meta"):
        net = MODELS[model].make(sample, **dict(taken))
    layers = []
    for name, parameter in net.named_parameters():
        module = net.get_submodule(name.rpartition(".")[0])
        layers.append(Layer(name, tuple(parameter.shape), type(module).__name__))
    return tuple(layers)


def exempt_names(layers: Sequence[Layer], types: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of the layers whose module is of one of the classes.

    Raises ValueError for a class that none has.
    """
    known = sorted({layer.module for layer in layers})
    chosen = [checked_name("exempt type", kind, known) for kind in types]
    return tuple(layer.name for layer in layers if layer.module in chosen)


def share_of(layers: Sequence[Layer], exempt: Sequence[str], min_size: int) -> float:
    """Returns the share of the values that are in layers of at least `min_size` values.

    Layers with a name that a pattern of `exempt` matches do not count.
    """
    eligible = sum(size for size in _sizes(layers, exempt) if size >= min_size)
    return eligible / sum(layer.size for layer in layers)


def largest_min_size(layers: Sequence[Layer], exempt: Sequence[str], share: float) -> int:
    """Returns the largest `min_size` for which `share_of` is at least `share`.

    Raises ValueError where none is, because of what is exempt.
    """
    for size in sorted(set(_sizes(layers, exempt)), reverse=True):
        if share_of(layers, exempt, size) >= share:
            return size
    raise ValueError(
        f"quantized share must be at most {share_of(layers, exempt, 0):.6g}, which the exempt "
        f"layers leave, got {share}"
    )


def _sizes(layers: Sequence[Layer], exempt: Sequence[str]) -> Iterator[int]:
    for layer in layers:
        if not any(fnmatchcase(layer.name, pattern) for pattern in exempt):
            yield layer.size
