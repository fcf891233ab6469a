# SPDX-License-Identifier: Apache-2.0
"""Marks functions of this package for torch.compile, without importing torch."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cpd.numeric.checked import check_text

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def constant(function: FunctionT) -> FunctionT:
    """Marks a function of plain values whose results are stored.

    They are constants to a compiled program, as torch.compiler.assume_constant_result documents.
    """
    kept = functools.lru_cache(maxsize=1024)(function)

    @functools.wraps(function)
    def known(*args: Any) -> Any:
        try:
            return kept(*args)
        except TypeError:
            for value in args:
                if isinstance(value, str):
                    check_text("a text", value)
            raise

    known.__dict__["_dynamo_marked_constant"] = True
    return cast(FunctionT, known)
