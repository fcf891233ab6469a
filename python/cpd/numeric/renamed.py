# SPDX-License-Identifier: Apache-2.0
"""Refuses keywords of 0.7 that have another name now."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from cpd.numeric.shown import shown

CallableT = TypeVar("CallableT", bound=Callable[..., Any])


def takes(**names: str) -> Callable[[CallableT], CallableT]:
    """Returns a decorator: keywords of 0.7 raise TypeError with what took their place.

    >>> @takes(watch="coverage")
    ... def count(*, coverage=True): ...
    >>> count(watch=False)
    Traceback (most recent call last):
    TypeError: count() takes coverage= in place of watch=
    """

    def decorate(function: CallableT) -> CallableT:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            for keyword in names:
                if keyword in keywords:
                    refuse_renamed(name, {keyword: None}, names)
            return function(*args, **keywords)

        return cast(CallableT, call)

    return decorate


def refuse_renamed(function: str, given: Mapping[str, object], names: Mapping[str, str]) -> None:
    """Raises TypeError for keywords that `function` does not take.

    Args:
        function: The name of the function, for the error.
        given: The keywords that matched no parameter.
        names: The new name of each keyword of 0.7.

    >>> refuse_renamed("sum", {"dim": 0}, {"dim": "axis"})
    Traceback (most recent call last):
    TypeError: sum() takes axis= in place of dim=
    """
    for keyword in given:
        if keyword in names:
            raise TypeError(f"{function}() takes {names[keyword]}= in place of {keyword}=")
        raise TypeError(f"{function}() got an unexpected keyword argument {shown(keyword)}")
