# SPDX-License-Identifier: Apache-2.0
"""Loads pickles of the classes `Linear` and `Conv2d` of version 0.7, as converted torch layers."""

from __future__ import annotations

import functools
from typing import Any

from torch import nn

from cpd.nn.convert import convert
from cpd.numeric.warned import warn


class _Layer(nn.Module):
    """Loads a layer that version 0.7 pickled, as a converted layer of torch's class."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        recipe = state.pop("recipe")
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        base = type(self).__bases__[1]
        self.__class__ = base
        convert(self, recipe, coverage=False)
        _warn(base.__name__)


class Linear(_Layer, nn.Linear):
    """`cpd.nn.Linear` of 0.7."""


class Conv2d(_Layer, nn.Conv2d):
    """`cpd.nn.Conv2d` of 0.7."""


@functools.cache
def _warn(name: str) -> None:
    warn(
        f"a pickled cpd.nn.{name} of 0.7 is loaded as a torch.nn.{name} with cpd.convert, and its "
        "stochastic roundings draw anew in each step: pickle it again"
    )
