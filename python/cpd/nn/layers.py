# SPDX-License-Identifier: Apache-2.0
"""`Linear` and `Conv2d` of 0.7, for their pickles: they become converted layers of torch."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from cpd.nn.convert import convert
from cpd.numeric.warned import warn


class Linear(nn.Linear):
    """A layer that 0.7 has pickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        recipe = state.pop("recipe")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _become(self, nn.Linear, recipe)


class Conv2d(nn.Conv2d):
    """A layer that 0.7 has pickled."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        recipe = state.pop("recipe")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        _become(self, nn.Conv2d, recipe)


def _become(layer: nn.Module, cls: type[nn.Module], recipe: Any) -> None:
    layer.__class__ = cls
    convert(layer, recipe, coverage=False)
    _warn(cls.__name__)


@functools.cache
def _warn(name: str) -> None:
    warn(
        f"a pickled cpd.nn.{name} of 0.7 is loaded as a torch.nn.{name} with cpd.convert, and its "
        "stochastic roundings draw anew in each step: pickle it again"
    )
