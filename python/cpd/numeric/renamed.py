# SPDX-License-Identifier: Apache-2.0
"""Refuses arguments and members that version 0.7 had: `refuses_old`.

The error of a refused call names the replacement.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from cpd._since import IN_TEXT, KEYWORDS, TO_CALL, refuse_members
from cpd.numeric.shown import shown

OfT = TypeVar("OfT", bound=Callable[..., Any])

REQUIRED: Any = inspect.Parameter.empty
"""Marks a required argument that had another name in version 0.7. A call without the argument
raises an error with the argument's new name."""


def refuses_old(of: OfT) -> OfT:
    """Makes a function or a class refuse the old names that the tables of `cpd._since` list for it.

    Access to a removed member of a class (`MEMBERS`) raises an error. The class's constructor and
    methods refuse removed keywords (`KEYWORDS`). The decorator `checked` refuses them, too.

    A function that must be fast has a parameter `**_renamed: Never` and passes unknown keywords to
    `refuse` itself. Valid calls then need no wrapper. The function's signature hides parameters of
    the type `Never`.
    """
    if not isinstance(of, type):
        return cast(OfT, _refusing(of))
    refuse_members(of)
    for name, method in list(vars(of).items()):
        if name == "__init__" or (inspect.isfunction(method) and name_of(method) in KEYWORDS):
            setattr(of, name, _refusing(method))
    return cast(OfT, of)


def name_of(function: Callable[..., Any]) -> str:
    """Returns the name of a function in `KEYWORDS`. A constructor has the name of its class."""
    return function.__qualname__.removesuffix(".__init__")


def _refusing(function: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.annotation != "Never"]
    if len(parameters) < len(signature.parameters):
        function.__dict__["__signature__"] = signature.replace(parameters=parameters)
    gone = tuple(KEYWORDS.get(name_of(function), ()))  # torch.compile can trace tuples
    refuses_itself = function.__code__.co_flags & inspect.CO_VARKEYWORDS
    if refuses_itself or not gone:
        return function

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for key in keywords:
            if key in gone:
                refuse_call(function, args, keywords)
        return function(*args, **keywords)

    return call


def refuse_call(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> None:
    """Raises the TypeError of `refuse` for a call with arguments that match no parameter."""
    name = name_of(function)
    parameters = inspect.signature(function).parameters.values()
    names = [
        parameter.name
        for parameter in parameters
        if parameter.kind is not parameter.POSITIONAL_ONLY
    ]
    by_position = [
        parameter for parameter in parameters if parameter.kind < parameter.VAR_POSITIONAL
    ]
    others = {key: value for key, value in keywords.items() if key not in names}
    gone = {key: value for key, value in others.items() if key in KEYWORDS.get(name, {})}
    default = next((parameter.default for parameter in parameters if parameter.name == "to"), None)
    to = dict(zip((parameter.name for parameter in by_position), args, strict=False)) | dict(
        keywords
    )
    last = by_position[-1].name if by_position else ""
    rest = args[len(by_position) :]
    refuse(name, gone or others, to.get("to", default), rest, last=last, parameters=names)


def refuse(
    function: str,
    given: Mapping[str, Any],
    to: Any = None,
    positional: Sequence[Any] = (),
    known: Iterable[str] = (),
    last: str = "to",
    parameters: Sequence[str] = (),
) -> None:
    """Raises TypeError for arguments that a function does not take, or that are missing.

    Args:
        function: the name of the function in `KEYWORDS`.
        given: the keywords that matched no parameter.
        to: the format that the call passes; `REQUIRED` if the call passes no format. If an option
            is now part of a format's text, the error shows this format with the option.
        positional: the call's positional arguments beyond the last positional parameter.
        known: the keywords that the error for an unknown keyword lists. Default: the error suggests
            the nearest of `parameters` instead.
        last: the name of the last positional parameter; empty if there is none.
        parameters: the names of all parameters. An error suggests the nearest name.

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
        names_after = parameters if not last else ()
        if last in parameters:
            names_after = parameters[parameters.index(last) + 1 :]
        by_keyword = ": " + ", ".join(f"{name}=" for name in names_after) if names_after else ""
        after = f" after {last}=" if last else ""
        raise TypeError(f"{function}() takes all arguments{after} by keyword{by_keyword}")
    for keyword in given:
        if names.get(keyword, "").startswith(TO_CALL):
            raise TypeError(f"{function}() takes no {keyword}=: give it to {names[keyword]}")
        if keyword in names:
            new = names[keyword] if " " in names[keyword] else f"{names[keyword]}="
            raise TypeError(f"{function}() takes {new} in place of {keyword}=")
        if known:
            raise TypeError(f"{function}() takes {', '.join(known)}, not {keyword}=")
        from difflib import get_close_matches  # which takes a millisecond

        near = get_close_matches(keyword, parameters, 1) if parameters else ()
        hint = f"; did you mean {near[0]}=?" if near else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {shown(keyword)}{hint}")
    if to is REQUIRED:
        needed = "a format, such as to='e4m3fn'"
        if function in ("sum", "gemm"):
            needed = "an accumulator, such as accumulator='fp32'"
        raise TypeError(f"{function}() needs {needed}")
