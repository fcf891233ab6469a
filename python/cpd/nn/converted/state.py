# SPDX-License-Identifier: Apache-2.0
"""What a converted layer knows: `State`, the attribute `cpd` of the module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from cpd.nn.recipe import Recipe

if TYPE_CHECKING:
    from cpd.nn.clock import Clock
    from cpd.nn.delayed import Delayed


class State:
    """What a converted layer knows. A plain object, which is copied with its module.

    Attributes:
        recipe: how it computes now, with the layer's number; None: as torch does. It is never None
            within a mixin's forward.
        layer: its number in random streams.
        clock: counts the model's steps; None: nothing draws.
        delayed: the state of delayed scaling, a submodule of the layer; None: nothing delays.
    """

    recipe: Recipe | None
    layer: int
    clock: Clock | None
    delayed: Delayed | None

    def __init__(
        self,
        recipe: Recipe | None,
        layer: int = 0,
        clock: Clock | None = None,
        delayed: Delayed | None = None,
    ) -> None:
        self.recipe = recipe if recipe is None else recipe.for_layer(layer)
        self.layer = layer
        self.clock = clock
        self.delayed = delayed

    def stream(self) -> Tensor | None:
        """The stream of the present step, an int64 tensor: for `stream=` of the functional forms;
        None: the recipe's own."""
        return None if self.clock is None else self.clock.stream()
