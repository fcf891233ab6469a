# SPDX-License-Identifier: Apache-2.0
"""The clock of a converted model: the number of its step, from which random streams follow."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cpd.nn.checkpoints import activation_checkpoint
from cpd.nn.delayed import Delayed, update

NAME = "cpd_clock"
"""The buffer of the model itself: a submodule would be one more layer to a Sequential."""

SHIFT = 36
"""The lowest bit of the step in a stream; below it are layers and positions within them."""

_STREAMS: WeakKeyDictionary[Any, WeakKeyDictionary[Clock, Tensor]] = WeakKeyDictionary()
"""For each activation checkpoint whose backward pass may come, the streams of clocks within it."""


class Clock:
    """The steps of a converted model: the number of its calls in training mode, an int64 buffer of
    the model, so part of its state_dict.

    `tick`, a forward pre-hook of the model, adds 1, and first makes the scales of the step where
    scaling is delayed. It does neither while a backward pass recomputes activations, nor within a
    transform of torch.func, which could not see the change: there the stream follows from the
    buffer passed to torch.func.functional_call.
    """

    def __init__(self, model: nn.Module, delayed: Iterable[Delayed], step: Tensor) -> None:
        model.register_buffer(NAME, step)
        model.register_forward_pre_hook(self.tick)
        model.register_load_state_dict_pre_hook(keep_the_present)  # type: ignore[no-untyped-call]
        self._buffers = model._buffers  # not the model: a layer is copied with its clock
        self._delayed = tuple(delayed)

    @property
    def step(self) -> Tensor:
        """The number, a tensor."""
        found = self._buffers[NAME]
        assert found is not None
        return found

    def stream(self) -> Tensor:
        """The stream of the present step; of the step that an activation checkpoint belongs to as
        it computes its function again."""
        checkpoint = activation_checkpoint()
        if checkpoint is None:
            return self.step << SHIFT
        of_clocks = _STREAMS.setdefault(checkpoint, WeakKeyDictionary())
        if self not in of_clocks:
            of_clocks[self] = self.step << SHIFT
        return of_clocks[self]

    def tick(self, model: nn.Module, arguments: Any) -> None:
        """The forward pre-hook: begins a step."""
        if not model.training or recomputes_or_transforms():
            return
        if self._delayed:
            update(self._delayed)
        self.step.add_(1)


def keep_the_present(model: nn.Module, state_dict: Any, prefix: str, *rest: Any) -> None:
    """A hook of load_state_dict: the clock keeps its value where `state_dict` is of a model that
    was not converted."""
    state_dict.setdefault(prefix + NAME, model._buffers[NAME])


def recomputes_or_transforms() -> bool:
    """Whether a backward pass or a transform of torch.func is under way; False in a compiled
    program."""
    if torch.compiler.is_compiling():
        return False
    in_backward: int = torch._C._current_graph_task_id()
    return in_backward != -1 or torch._C._functorch.maybe_current_level() is not None


def clock_of(model: nn.Module) -> Clock | None:
    """The clock of `model`, or None."""
    hooks = model._forward_pre_hooks.values()
    owners = (getattr(hook, "__self__", None) for hook in hooks)
    return next((one for one in owners if isinstance(one, Clock)), None)


def detach(model: nn.Module) -> None:
    """Removes the clock of `model`, if it has one."""
    clock = clock_of(model)
    if clock is None:
        return
    del model._buffers[NAME]
    for number, hook in list(model._forward_pre_hooks.items()):
        if getattr(hook, "__self__", None) is clock:
            del model._forward_pre_hooks[number]
    for number, hook in list(model._load_state_dict_pre_hooks.items()):
        if getattr(hook, "hook", None) is keep_the_present:
            del model._load_state_dict_pre_hooks[number]
