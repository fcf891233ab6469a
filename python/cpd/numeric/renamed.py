# SPDX-License-Identifier: Apache-2.0
"""Refuses keywords of 0.7, and names what takes their place."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from cpd._since import IN_TEXT, KEYWORDS
from cpd.numeric.shown import shown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def takes(**names: str) -> Callable[[FunctionT], FunctionT]:
    """Returns a decorator: keywords of 0.7 raise TypeError with what took their place.

    >>> @takes(watch="coverage")
    ... def count(*, coverage=True): ...
    >>> count(watch=False)
    Traceback (most recent call last):
    TypeError: count() takes coverage= in place of watch=
    """

    def decorate(function: FunctionT) -> FunctionT:
        name = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            for keyword in names:
                if keyword in keywords:
                    raise TypeError(f"{name}() takes {names[keyword]}= in place of {keyword}=")
            return function(*args, **keywords)

        return cast(FunctionT, call)

    return decorate


REQUIRED: Any = inspect.Parameter.empty
"""The default of an argument that calls of 0.7 name otherwise: the function raises without it."""


def refuses_old(function: FunctionT) -> FunctionT:
    """Hides from a function's signature what only serves calls of version 0.7.

    These are parameters of the type `Never`, which take the arguments of such calls, and the
    default `REQUIRED`. The function passes both to `refuse`.
    """
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.annotation != "Never"]
    function.__dict__["__signature__"] = signature.replace(parameters=kept)
    return function


def refuse(
    function: str, given: Mapping[str, Any], to: Any = None, positional: Sequence[Any] = ()
) -> None:
    """Raises TypeError for arguments that a function does not take, or that are missing.

    Args:
        function: The name of the function, as in `KEYWORDS`.
        given: The keywords that matched no parameter.
        to: What the function rounds to, for the text that has these keywords now.
        positional: The arguments behind the last positional parameter.

    >>> refuse("sum", {"dim": 0})
    Traceback (most recent call last):
    TypeError: sum() takes axis= in place of dim=
    >>> refuse("cast", {"rounding": "up"}, "e4m3fn")
    Traceback (most recent call last):
    TypeError: cast() takes rounding= in its format: "e4m3fn rounding=up"
    """
    names = KEYWORDS.get(function, {})
    options = {**dict(zip(("rounding", "overflow"), positional, strict=False)), **given}
    moved = [name for name in options if names.get(name) == IN_TEXT]
    if moved and (not positional or isinstance(positional[0], str)):
        to = given.get("f", "…") if to is REQUIRED else to
        words = "".join(f" {name}={options[name]}" for name in moved)
        keywords = " and ".join(f"{name}=" for name in moved)
        text = f"{getattr(to, 'text', to)}{words}"
        raise TypeError(f'{function}() takes {keywords} in its format: "{text}"')
    if positional:
        raise TypeError(f"{function}() takes all that follows its format by keyword")
    for keyword in given:
        if keyword in names:
            raise TypeError(f"{function}() takes {names[keyword]}= in place of {keyword}=")
        raise TypeError(f"{function}() got an unexpected keyword argument {shown(keyword)}")
    if to is REQUIRED:
        raise TypeError(f"{function}() lacks the format or the accumulator to round into")
