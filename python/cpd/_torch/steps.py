# SPDX-License-Identifier: Apache-2.0
"""Operators by which compiled programs report the progress of a training step to a model's clock.

The operators are torch.ops.cpd.begin_model, begin_layer and reach_layer. Each calls the method of
the clock with the same name (`cpd.nn.clock`). A clock's state is on the host, so that programs
neither guard on it nor are compiled again when it changes. Programs name a clock by its number in
`CLOCKS`.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator,arg-type"

from __future__ import annotations

from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from cpd._torch.derivatives import makes_nothing
from cpd._torch.table import operator

CLOCKS: WeakValueDictionary[int, Any] = WeakValueDictionary()
"""The clocks of all converted models of this process, by number."""

_numbers = count()


def enroll(clock: Any) -> int:
    """Adds `clock` to `CLOCKS` under a new number, and returns the number."""
    number = next(_numbers)
    CLOCKS[number] = clock
    return number


def _begin_model(step: Tensor, histories: list[Tensor], scales: list[Tensor], clock: int) -> None:
    CLOCKS[clock].begin_model(step, histories, scales)


def _begin_layer(
    step: Tensor,
    histories: list[Tensor],
    scales: list[Tensor],
    clock: int,
    delayed: int,
    gradients: bool,
    training: bool,
) -> None:
    CLOCKS[clock].begin_layer(step, histories, scales, delayed, gradients, training)


def _reach_layer(flag: Tensor, clock: int, training: bool) -> None:
    CLOCKS[clock].reach_layer(training)


_TAGS = (torch.Tag.cudagraph_unsafe,) if hasattr(torch.Tag, "cudagraph_unsafe") else ()
"""Keeps the operators out of CUDA graphs, because a replayed graph would not call the host."""

operator(
    "begin_model(Tensor(a!) step, Tensor(b!)[] histories, Tensor(c!)[] scales, int clock) -> ()",
    makes_nothing,
    computes=_begin_model,
    tags=_TAGS,
)
operator(
    "begin_layer(Tensor(a!) step, Tensor(b!)[] histories, Tensor(c!)[] scales, int clock, "
    "int delayed, bool gradients, bool training) -> ()",
    makes_nothing,
    computes=_begin_layer,
    tags=_TAGS,
)
operator(
    "reach_layer(Tensor(a!) flag, int clock, bool training) -> ()",
    makes_nothing,
    computes=_reach_layer,
    tags=_TAGS,
)
