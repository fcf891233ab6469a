# SPDX-License-Identifier: Apache-2.0
"""The activation checkpoint (torch.utils.checkpoint) around a call.

It is found in its forward pass and as the backward pass computes it again.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from cpd._torch.private import graph_task, saved_tensors_hooks


def activation_checkpoint() -> Any:
    """Returns an object that identifies the innermost surrounding activation checkpoint.

    It is the same whenever the checkpoint computes its function. None without a checkpoint, and in
    compiled code, whose graph is recomputed with the casts in it.
    """
    if torch.compiler.is_compiling():
        return None
    hooks = saved_tensors_hooks(True)
    if hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint":
        pack = inspect.unwrap(hooks[0])
        frame = _variable(pack, "frame")
        return frame if frame is not None else _variable(pack, "target_frame_ref")()
    if torch.is_grad_enabled() and graph_task() == -1:
        return None
    return _reentrant()  # which has no hooks


def makes_gradients() -> bool:
    """Returns whether a call may get gradients.

    It may if they are on, or if a surrounding checkpoint with use_reentrant=True, which switches
    them off, will compute the call again with gradients.
    """
    return torch.is_grad_enabled() or any(ctx.next_functions for ctx in _reentrants())


def _variable(function: Callable[..., Any], name: str) -> Any:
    """Returns the value of a variable of the function around `function`; None where it has none."""
    names = function.__code__.co_freevars
    cells = function.__closure__
    return cells[names.index(name)].cell_contents if cells and name in names else None


_CODES = (CheckpointFunction.forward.__code__, CheckpointFunction.backward.__code__)


def _reentrant() -> Any:
    """Returns the context of the innermost running checkpoint with use_reentrant=True."""
    return next(_reentrants(), None)


def _reentrants() -> Iterator[Any]:
    """Yields the contexts of the running checkpoints with use_reentrant=True, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _CODES:
            yield frame.f_locals["ctx"]
        frame = frame.f_back
