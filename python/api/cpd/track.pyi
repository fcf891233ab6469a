# SPDX-License-Identifier: Apache-2.0
"""Numbers of trainings, written where a training already writes."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import nn

class Writer(Protocol):
    """Anything that takes the numbers of a step."""

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Takes the numbers of a step."""

class Tracker:
    """Measures a converted model and its reductions, and writes the numbers."""

    def __init__(
        self,
        model: nn.Module,
        writer: Any = None,
        *,
        every: int = 100,
        what_if: Any = (),
        reducer: Any = None,
    ) -> None: ...
    def step(self, number: int | None = None) -> dict[str, float]:
        """Writes and returns the numbers of a step."""

    def remove(self) -> None:
        """Removes the hooks from the model."""

def hugging_face(trainer: Any, *, every: int = 100, what_if: Any = (), reducer: Any = None) -> Any:
    """Adds a callback to a `transformers.Trainer`, and returns it."""

def lightning(module: str = "", *, every: int = 100, what_if: Any = (), reducer: Any = None) -> Any:
    """Returns a callback for `lightning.Trainer`."""
