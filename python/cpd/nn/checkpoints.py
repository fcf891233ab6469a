# SPDX-License-Identifier: Apache-2.0
"""Finds the activation checkpoint (torch.utils.checkpoint) that surrounds a call.

The checkpoint is found in its forward pass, and while the backward pass recomputes it.
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

    The object is the same in the forward pass and in the recomputation. Returns None outside of a
    checkpoint. Also returns None in compiled code, whose graph recomputes the casts too.
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
    return _reentrant()  # a use_reentrant=True checkpoint has no hooks


def makes_gradients() -> bool:
    """Returns True if a call may need gradients.

    It may if gradients are on. It also may within a checkpoint with use_reentrant=True: this
    switches gradients off, but calls the function again with gradients.
    """
    return torch.is_grad_enabled() or any(ctx.next_functions for ctx in _reentrants())


def _variable(function: Callable[..., Any], name: str) -> Any:
    """Returns the value of the variable `name` in the closure of `function`, or None."""
    names = function.__code__.co_freevars
    cells = function.__closure__
    return cells[names.index(name)].cell_contents if cells and name in names else None


_CODES = (CheckpointFunction.forward.__code__, CheckpointFunction.backward.__code__)


def _reentrant() -> Any:
    """Returns the autograd context of the innermost running checkpoint with use_reentrant=True."""
    return next(_reentrants(), None)


def _reentrants() -> Iterator[Any]:
    """Yields the autograd contexts of running use_reentrant=True checkpoints, innermost first."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code in _CODES:
            yield frame.f_locals["ctx"]
        frame = frame.f_back
