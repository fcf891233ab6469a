# SPDX-License-Identifier: Apache-2.0
"""Gives warnings that point to the line of the caller's program: `warn`."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from types import FrameType

from cpd.numeric.checked import is_compiling

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"


class PrecisionWarning(UserWarning):
    """A warning that a computation loses more precision, or is slower, than its arguments suggest.

    The text names the loss and the way to avoid it. There are five causes:

    - A sum of more ranks than its precision supports. Such a sum may stall.
    - A codec that does not suit a tensor.
    - A matrix product by code that is hundreds of times slower.
    - Products of a training step that are not emulated.
    - A layer that casts its operands to integers without a scale.
    """


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Warns at the innermost line of the stack that is neither in this package nor in torch.

    Any number of frames of decorators, hooks and autograd may be between that line and the warning.
    With a fixed `stacklevel`, `warnings.warn` would name one of these frames.

    Args:
        text: the warning's text.
        category: the warning's class.
    """
    if is_compiling():  # torch.compile cannot trace the reading of frames
        warnings.warn(text, category, stacklevel=2)
        return
    frame: FrameType | None = sys._getframe(1)
    level, after_package = 2, 0
    inside = _inside()
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith(inside):
            break
        if not after_package and not name.startswith(_PACKAGE):
            after_package = level
        frame, level = frame.f_back, level + 1
    if frame is None:  # a thread of torch
        level = after_package or 2
    warnings.warn(text, category, stacklevel=level)


def _inside() -> tuple[str, ...]:
    """Returns the folders of this package and of torch.

    A warning names the first line outside of these folders, which is the caller's.
    """
    torch = sys.modules.get("torch")
    file = getattr(torch, "__file__", None)
    return (_PACKAGE,) if file is None else (_PACKAGE, f"{Path(file).parent}{os.sep}")
