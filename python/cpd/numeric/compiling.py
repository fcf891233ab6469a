# SPDX-License-Identifier: Apache-2.0
"""What torch.compile is told about functions of this package, without importing torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


def constant(function: Callable[Given, Result]) -> Callable[Given, Result]:
    """Marks a function of plain values whose results are kept, and are constants to a compiled
    program, as torch.compiler.assume_constant_result says."""
    kept = functools.lru_cache(maxsize=1024)(function)

    @functools.wraps(function)
    def known(*args: Given.args, **kwargs: Given.kwargs) -> Result:
        return kept(*args, **kwargs)  # type: ignore[arg-type]

    known.__dict__["_dynamo_marked_constant"] = True
    return known
