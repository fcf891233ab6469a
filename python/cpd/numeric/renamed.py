# SPDX-License-Identifier: Apache-2.0
"""Refuses keywords of 0.7, and names what takes their place."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from cpd._since import IN_TEXT, KEYWORDS
from cpd.numeric.shown import shown

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def numbers_go_to(call: str, *names: str) -> Callable[[FunctionT], FunctionT]:
    """Has the constructor of a spec refuse the numbers that it took in 0.7, as its calls take them.

    Args:
        call: The calls that take these numbers.
        names: The numbers: `seed`, `stream`, `step` or `layer`.

    Returns:
        A decorator. Its function raises TypeError for these keywords.

    >>> @numbers_go_to("cpd.cast", "seed")
    ... def cast_to(text): return text
    >>> cast_to("e4m3", seed=3)
    Traceback (most recent call last):
    TypeError: cast_to() takes no seed=: give it to the call, cpd.cast(…, seed=…)
    """

    def decorator(function: FunctionT) -> FunctionT:
        title = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def made(*args: Any, **given: Any) -> Any:
            for name in names:
                if name in given:
                    raise TypeError(
                        f"{title}() takes no {name}=: give it to the call, {call}(…, {name}=…)"
                    )
            return function(*args, **given)

        return cast(FunctionT, made)

    return decorator


REQUIRED: Any = inspect.Parameter.empty
"""The default of an argument that calls of 0.7 name otherwise: the function raises without it."""


def refuses_old(function: FunctionT) -> FunctionT:
    """Has a function refuse the keywords of 0.7 that `KEYWORDS` has by its name, by `refuse`.

    `checked` does so, too. A hot function takes what matches no parameter itself, as
    `**_renamed: Never`, and passes it to `refuse`: a call costs nothing more. Its signature then
    hides parameters of the type `Never` and the default `REQUIRED`.
    """
    signature = inspect.signature(function)
    kept = [p for p in signature.parameters.values() if p.annotation != "Never"]
    if len(kept) < len(signature.parameters):
        function.__dict__["__signature__"] = signature.replace(parameters=kept)
        return function
    name = function.__qualname__.removesuffix(".__init__")
    gone = tuple(KEYWORDS[name])  # which torch.compile takes

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if any(key in gone for key in keywords):
            _refuse_gone(function, name, args, keywords)
        return function(*args, **keywords)

    return cast(FunctionT, call)


def _refuse_gone(
    function: Callable[..., Any], name: str, args: tuple[Any, ...], keywords: Mapping[str, Any]
) -> None:
    """Raises TypeError for a call with keywords that are gone."""
    gone = KEYWORDS[name]
    rest = {key: value for key, value in keywords.items() if key not in gone}
    bound = inspect.signature(function).bind_partial(*args, **rest)
    bound.apply_defaults()
    refuse(
        name,
        {key: value for key, value in keywords.items() if key in gone},
        bound.arguments.get("to"),
    )


def refuse(
    function: str,
    given: Mapping[str, Any],
    to: Any = None,
    positional: Sequence[Any] = (),
    known: Iterable[str] = (),
    parameters: Sequence[str] = (),
) -> None:
    """Raises TypeError for arguments that a function does not take, or that are missing.

    Args:
        function: The name of the function, as in `KEYWORDS`.
        given: The keywords that matched no parameter.
        to: What the function rounds to, for the text that has these keywords now.
        positional: The arguments behind the last positional parameter.
        known: The keywords that the error for another one names.
        parameters: The parameters, of which an error names the nearest.

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
            new = names[keyword] if " " in names[keyword] else f"{names[keyword]}="
            raise TypeError(f"{function}() takes {new} in place of {keyword}=")
        if known:
            raise TypeError(f"{function}() takes {', '.join(known)}, not {keyword}=")
        near = difflib.get_close_matches(keyword, parameters, 1) if parameters else ()
        hint = f"; did you mean {near[0]}=?" if near else ""
        raise TypeError(f"{function}() got an unexpected keyword argument {shown(keyword)}{hint}")
    if to is REQUIRED:
        raise TypeError(f"{function}() lacks the format or the accumulator to round into")
