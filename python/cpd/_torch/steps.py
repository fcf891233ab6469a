# SPDX-License-Identifier: Apache-2.0
"""Operators by which compiled programs report to a model's clock.

They are torch.ops.cpd.begin_model, begin_layer and reach_layer.

A clock's state is on the host, so programs neither guard on it nor compile again for it. Programs
name a clock by its number in `CLOCKS`. Each operator calls the method of its name. Documented in
`cpd.nn.clock`.
"""

# torch's registries are untyped.
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
"""The clocks of all converted models of this process, by their numbers."""

_numbers = count()


def enroll(clock: Any) -> int:
    """Gives `clock` a number of its own."""
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
"""A replayed CUDA graph would not call the host."""

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
