# SPDX-License-Identifier: Apache-2.0
"""Marks functions of this package for torch.compile, without importing torch."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from cpd.numeric.checked import check_text

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def constant(function: FunctionT) -> FunctionT:
    """Returns `function` with its results cached, and marked for torch.compile.

    The arguments must be hashable plain values. A compiled program uses the results as constants,
    as torch.compiler.assume_constant_result documents.
    """
    code = function.__code__
    several = function.__defaults__ or code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
    count = 0 if several else code.co_argcount
    lookup = _of_one if count == 1 else _of_two if count == 2 else _of_several
    known = functools.update_wrapper(lookup(function), function)
    known.__dict__["_dynamo_marked_constant"] = True
    return cast(FunctionT, known)


_MOST = 1024
"""The largest number of cached results of a function. If the cache is full, a function of one or
two parameters empties it; other functions remove the least recently used result."""


def _of_one(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Returns a function of one parameter that caches results.

    A call takes half the time of a call of a cached function with `*args`.
    """
    results: dict[Any, Any] = {}

    def known(value: Any) -> Any:
        try:
            return results[value]
        except KeyError:
            pass
        if len(results) >= _MOST:
            results.clear()
        results[value] = result = _called(function, value)
        return result

    return known


def _of_two(function: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Returns a function of two parameters that caches results, in nested dicts for speed."""
    results: dict[Any, dict[Any, Any]] = {}
    count = 0

    def known(first: Any, second: Any) -> Any:
        nonlocal count
        try:
            return results[first][second]
        except KeyError:
            pass
        if count >= _MOST:
            results.clear()
            count = 0
        count += 1
        result = _called(function, first, second)
        results.setdefault(first, {})[second] = result
        return result

    return known


def _of_several(function: Callable[..., Any]) -> Callable[..., Any]:
    cached = functools.lru_cache(maxsize=_MOST)(function)
    return lambda *args: _called(cached, *args)


def _called(function: Callable[..., Any], *args: Any) -> Any:
    """Calls `function`. Raises ValueError if an argument is a text that UTF-8 cannot encode."""
    try:
        return function(*args)
    except TypeError:
        for value in args:
            if isinstance(value, str):
                check_text("a text", value)
        raise
