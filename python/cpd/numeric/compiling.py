# SPDX-License-Identifier: Apache-2.0
"""What torch.compile is told about functions of this package, without importing torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def constant(function: FunctionT) -> FunctionT:
    """Marks a function of plain values whose result is a constant to a compiled program, as
    torch.compiler.assume_constant_result does."""
    function.__dict__["_dynamo_marked_constant"] = True
    return function
