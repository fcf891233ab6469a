# SPDX-License-Identifier: Apache-2.0
"""The clock of a converted model: the number of its step, from which random streams follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from cpd.nn.delayed import Delayed

NAME = "cpd_clock"
"""Of the submodule, at the root of the model."""

SHIFT = 36
"""Where the step stands in a stream: below it are layers and positions within them."""


class Clock(nn.Module):
    """The steps of a converted model.

    `step`, an int64 buffer and so part of the state_dict, is the number of times that the model was
    called in training mode. `tick`, a forward pre-hook of the model, adds 1, and first has the
    layers with delayed scaling make their scales of the step. It does neither while a backward pass
    recomputes activations, nor within a transform of torch.func, which could not see the change:
    there the stream is that of the buffer that is given to torch.func.functional_call.
    """

    step: Tensor

    def __init__(self, delayed: list[Delayed] | None = None, device: Any = None) -> None:
        super().__init__()
        self.register_buffer("step", torch.zeros((), dtype=torch.int64, device=device))
        self._delayed = tuple(delayed or ())  # a tuple, that they are no submodules here

    def stream(self) -> Tensor:
        """The stream of the present step."""
        return self.step << SHIFT

    def tick(self, model: nn.Module, arguments: Any) -> None:
        """To be called before each call of `model`."""
        if not model.training or _recomputes_or_transforms():
            return
        if self._delayed:
            from cpd.nn.delayed import update

            update(self._delayed)
        self.step.add_(1)

    def attach(self, model: nn.Module) -> None:
        """Makes it the clock of `model`."""
        model.add_module(NAME, self)
        model.register_forward_pre_hook(self.tick)

    def reset_parameters(self) -> None:
        """The state before the first step."""
        self.step.zero_()

    def _apply(self, fn: Any, recurse: bool = True) -> Clock:
        was_empty = self.step.is_meta
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        if was_empty and not self.step.is_meta:
            self.reset_parameters()
        return self


def _recomputes_or_transforms() -> bool:
    """Whether a backward pass or a transform of torch.func is under way. Not within a compiled
    program, of which these are part."""
    if torch.compiler.is_compiling():
        return False
    in_backward: int = torch._C._current_graph_task_id()
    return in_backward != -1 or torch._C._functorch.maybe_current_level() is not None


def detach(model: nn.Module) -> None:
    """Takes the clock of `model`, if it has one, away."""
    clock = model._modules.pop(NAME, None)
    for number, hook in list(model._forward_pre_hooks.items()):
        if clock is not None and getattr(hook, "__self__", None) is clock:
            del model._forward_pre_hooks[number]
