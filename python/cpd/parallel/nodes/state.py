# SPDX-License-Identifier: Apache-2.0
"""Saves and restores what a forward pass changes: a model's buffers and random generators."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

Values: TypeAlias = dict[str, torch.Tensor | None]
"""The values of a model's buffers, by qualified name; None for a buffer that is None."""


def histories(values: Values) -> Values:
    """Returns the buffers that have histories of largest magnitudes, for delayed scaling.

    A step replaces each number in a history by its maximum over the nodes.
    """
    return {name: value for name, value in values.items() if _is_history(name)}


def _is_history(name: str) -> bool:
    """Returns whether a buffer of this name is a history of delayed scaling."""
    parts = name.split(".")
    return parts[-1] == "amax_history" and "cpd_delayed" in parts


class Buffers:
    """A model's buffers: references to their tensors, and copies of their first values."""

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (f"{name}.{key}" if name else key, module._buffers, key, buffer)
            for name, module in model.named_modules()
            for key, buffer in module._buffers.items()
        ]
        self.values = self.read()

    def read(self) -> Values:
        """Returns copies of the buffers' present values, even if the model has replaced tensors."""
        held = ((name, owner[key]) for name, owner, key, _ in self._places)
        return {name: None if now is None else now.detach().clone() for name, now in held}

    def put(self, values: Values) -> None:
        """Sets the model's buffers to these values, in the original tensors if shapes are equal."""
        for name, owner, key, buffer in self._places:
            value = values[name]
            if value is None:
                owner[key] = None
            elif buffer is None or buffer.shape != value.shape:
                owner[key] = value.clone()
            else:
                owner[key] = buffer
                buffer.detach().copy_(value)

    def raise_histories(self, values: Values) -> None:
        """Raises each history of delayed scaling in `values` to at least the model's history.

        The maximum is taken element by element.
        """
        for name, owner, key, _ in self._places:
            value, now = values[name], owner[key]
            if _is_history(name) and value is not None and now is not None:
                torch.maximum(value, now, out=value)

    def check(self, values: Values) -> None:
        """Raises ValueError unless `values` has the names of this model's buffers, in order."""
        if list(values) != list(self.values):
            raise ValueError(
                f"the buffers are {', '.join(self.values) or 'none'}, got "
                f"{', '.join(values) or 'none'}"
            )


@dataclass(frozen=True)
class Generators:
    """The states of torch's random generators of the CPU and of some GPUs."""

    host: torch.Tensor
    gpus: dict[int, torch.Tensor]

    @classmethod
    def now(cls, gpus: Iterable[int]) -> Generators:
        """Returns the present states of the generators; `gpus` are indices of CUDA devices."""
        return cls(torch.get_rng_state(), {gpu: torch.cuda.get_rng_state(gpu) for gpu in gpus})

    @classmethod
    def seeded(cls, seed: int, gpus: Iterable[int]) -> Generators:
        """Returns the states that torch.manual_seed(seed) would set, without setting them."""
        generators = {gpu: torch.Generator(f"cuda:{gpu}").manual_seed(seed) for gpu in gpus}
        host = torch.Generator().manual_seed(seed)
        return cls(
            host.get_state(), {gpu: generator.get_state() for gpu, generator in generators.items()}
        )

    def restore(self) -> None:
        """Sets torch's generators to these states."""
        torch.set_rng_state(self.host)
        for gpu, state in self.gpus.items():
            torch.cuda.set_rng_state(state, gpu)


@dataclass(frozen=True)
class Randomness:
    """The states of the random generators of torch, Python and NumPy."""

    generators: Generators
    python: Any
    numpy: Any

    @classmethod
    def now(cls, gpus: Iterable[int]) -> Randomness:
        """Returns the present states of the generators; `gpus` are indices of CUDA devices."""
        return cls(Generators.now(gpus), random.getstate(), np.random.get_state())

    def restore(self) -> None:
        """Sets all generators to these states."""
        self.generators.restore()
        random.setstate(self.python)
        np.random.set_state(self.numpy)
