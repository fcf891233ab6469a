# SPDX-License-Identifier: Apache-2.0
"""Lists a model's parameter tensors, which the lab calls layers, without allocating the model.

`layers_of` lists the layers. Other functions find the layers that `exempt=` sums in fp32.
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
    """A parameter tensor: its name, its shape, and the class name of the module that owns it."""

    name: str
    shape: tuple[int, ...]
    module: str

    @property
    def size(self) -> int:
        """The number of values in the tensor."""
        return math.prod(self.shape)


_ORDINALS = {"conv": "Conv", "fc": "Linear"}


def weight_named(name: str, layers: Sequence[Layer]) -> str:
    """Returns the name of the weight that `convN` or `fcN` means; returns other names unchanged.

    `convN` means the Nth convolution, `fcN` the Nth linear layer; N starts at 1. Raises ValueError
    if the model has fewer such layers.

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
    """Returns the layers of a model in `MODELS`, in their order, without allocating weights.

    `taken` has the options that the model takes, as pairs of name and value.
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
    """Returns the names of the layers whose module belongs to one of the classes `types`.

    Raises ValueError for a class in `types` that no layer's module has.
    """
    known = sorted({layer.module for layer in layers})
    chosen = [checked_name("exempt type", kind, known) for kind in types]
    return tuple(layer.name for layer in layers if layer.module in chosen)


def share_of(layers: Sequence[Layer], exempt: Sequence[str], min_size: int) -> float:
    """Returns the share of a model's values that are in layers of at least `min_size` values.

    Layers whose names match a pattern of `exempt` count only in the total.
    """
    eligible = sum(size for size in _sizes(layers, exempt) if size >= min_size)
    return eligible / sum(layer.size for layer in layers)


def largest_min_size(layers: Sequence[Layer], exempt: Sequence[str], share: float) -> int:
    """Returns the largest `min_size` with which at least `share` of the values is not in fp32.

    Layers below this size, and exempt layers, are summed in fp32. Raises ValueError if exempt
    layers leave less than `share` of the values.
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
