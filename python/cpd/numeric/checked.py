# SPDX-License-Identifier: Apache-2.0
"""Checks the types of arguments against a function's annotations before a call: `checked`.

The function itself checks the values of its arguments.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import index
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from cpd._since import KEYWORDS, refuse_members
from cpd.numeric.renamed import name_of, refuse_call
from cpd.numeric.shown import kind_of

CallableT = TypeVar("CallableT", bound=Callable[..., Any])
Test = Callable[[Any], bool]


def checked(of: CallableT, own: tuple[str, ...] = ()) -> CallableT:
    """Returns a function, or a class, that checks the types of its arguments before each call.

    A call raises TypeError if an argument does not match its annotation, and ValueError for a text
    that UTF-8 cannot encode. Both errors name the argument. Arguments and members that version 0.7
    had are refused as `refuses_old` does. For a class, its constructor and public methods are
    checked.

    `own`: arguments that the function checks itself.

    Arguments with an annotation that `_TYPES` and `_OURS` do not have are not checked, such as
    `Any` and `FormatLike`. Under torch.compile, nothing is checked.

    >>> @checked
    ... def twice(number: int, name: str = "") -> int:
    ...     return 2 * number
    >>> twice("3")
    Traceback (most recent call last):
    ...
    TypeError: number must be an int, got str
    """
    if isinstance(of, type):
        refuse_members(of)
        _check_methods(of, own)
        return cast(CallableT, of)
    return cast(CallableT, _checked_function(of, own))


def refused_by_torch(of: CallableT, own: tuple[str, ...] = ()) -> CallableT:
    """Returns a function that calls torch, with its arguments checked as by `checked`.

    If torch refuses shapes or values, the call raises a ValueError with the first line of torch's
    error.
    `own`: arguments that the function checks itself.
    """
    function = _checked_function(of, own)

    @functools.wraps(of)
    def call(*args: Any, **named: Any) -> Any:
        if is_compiling():
            return of(*args, **named)
        try:
            return function(*args, **named)
        except (RuntimeError, LookupError, AssertionError, ArithmeticError) as error:
            if not _is_of_arguments(error):
                raise
            raise ValueError(f"{name_of(of)}: {_first_line(error)}") from error

    return cast(CallableT, call)


def check_text(name: str, text: str) -> None:
    """Raises ValueError for a text that UTF-8 cannot encode, because it has a lone surrogate."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{name} must be text that UTF-8 can hold, got {text!r}") from None


def check_module(name: str, value: Any) -> None:
    """Raises TypeError unless `value` is a torch.nn.Module."""
    _kind_of("Module").check(name, value)


def check_keys(name: str, given: Mapping[str, Any], *keys: str) -> None:
    """Raises TypeError unless `given` is a mapping, and ValueError if it lacks one of `keys`."""
    if not isinstance(given, Mapping):
        raise TypeError(f"{name} must be a mapping, got {kind_of(given)}")
    missing = [key for key in keys if key not in given]
    if missing:
        raise ValueError(f"{name} must have the keys {', '.join(keys)}; it has no {missing[0]!r}")


# ---- functions and classes -----------------------------------------------------------------------


def _checked_function(
    function: Callable[..., Any], own: tuple[str, ...] = ()
) -> Callable[..., Any]:
    plan: dict[str, _Kind] = {}
    order: list[str] = []
    positions = 0
    takes_any = False
    gone = KEYWORDS.get(name_of(function), {})

    def prepare() -> None:
        nonlocal positions, takes_any
        parameters = inspect.signature(function).parameters.values()
        # A function with a `**` parameter refuses unknown keywords itself. The parameter is read
        # from the function's code, because `refuses_old` may hide the parameter in the signature.
        takes_any = bool(inspect.unwrap(function).__code__.co_flags & inspect.CO_VARKEYWORDS)
        for parameter in parameters:
            if parameter.kind is parameter.VAR_POSITIONAL:
                takes_any = True  # the parameters after it are not checked
                break
            if parameter.kind is not parameter.VAR_KEYWORD:
                positions += parameter.kind is not parameter.KEYWORD_ONLY
                order.append(parameter.name)
                is_own = parameter.name in own
                plan[parameter.name] = _ANY if is_own else _kind_of(parameter.annotation)

    @functools.wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not is_compiling():
            if not order:
                prepare()
            if positions < len(args) and positions < len(order) and not takes_any:
                refuse_call(function, args, named)
            for name, value in zip(order, args, strict=False):
                plan[name].check(name, value)
            for name, value in named.items():
                kind = plan.get(name)
                if kind is not None:
                    kind.check(name, value)
                elif not takes_any or name in gone:
                    refuse_call(function, args, named)
        return function(*args, **named)

    return call


def _check_methods(cls: type, own: tuple[str, ...]) -> None:
    """Makes `__init__`, `__call__` and all public methods of a class check their arguments."""
    for name, member in list(vars(cls).items()):
        if name.startswith("_") and name not in ("__init__", "__call__"):
            continue
        if isinstance(member, (classmethod, staticmethod)):
            setattr(cls, name, type(member)(_checked_function(member.__func__, own)))
        elif inspect.isfunction(member):
            setattr(cls, name, _checked_function(member, own))


def is_compiling() -> bool:
    """Returns whether torch.compile traces this call."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


_OF_THE_MACHINE = (
    *("CUDA", "cuda", "NCCL", "memory", "enforce fail", "not initialized", "not initialised"),
    *("cannot be loaded", "under torch.vmap"),
)
"""Words in errors of torch that are due to the machine or the installation, not to an argument."""


def _is_of_arguments(error: BaseException) -> bool:
    """Returns whether an error of torch is about wrong arguments, judged by its class and words."""
    if type(error) in (IndexError, AssertionError, ZeroDivisionError):
        return True
    is_known = type(error) in (RuntimeError, NotImplementedError)
    return is_known and not any(words in str(error) for words in _OF_THE_MACHINE)


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else "torch refuses these arguments"


# ---- annotations ---------------------------------------------------------------------------------


class _Kind(NamedTuple):
    """The allowed types of an argument."""

    tests: tuple[Test, ...]
    """Predicates of an argument's value, one for each allowed type. A value is allowed if at least
    one predicate is true. All values are allowed if there are no predicates."""
    noun: str

    def check(self, name: str, value: Any) -> None:
        """Raises TypeError if the value has none of the allowed types.

        Raises ValueError for a text that UTF-8 cannot encode.
        """
        if isinstance(value, str):
            check_text(name, value)
        for test in self.tests:
            if test(value):
                return
        if self.tests:
            raise TypeError(f"{name} must be {self.noun}, got {kind_of(value)}")


_ANY = _Kind((), "anything")


@functools.cache
def _kind_of(annotation: Any) -> _Kind:
    if annotation is inspect.Parameter.empty:
        return _ANY
    text = annotation if isinstance(annotation, str) else _text_of(annotation)
    parts = [_TYPES.get(_bare(part)) or _ours(_bare(part)) for part in _parts(text)]
    if not parts or any(part is None for part in parts):
        return _ANY
    kinds = [part for part in parts if part is not None]
    nouns = list(dict.fromkeys(noun for _, noun in kinds))
    noun = nouns[0] if len(nouns) == 1 else f"{', '.join(nouns[:-1])} or {nouns[-1]}"
    return _Kind(tuple(test for test, _ in kinds), noun)


def _text_of(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def _parts(text: str) -> list[str]:
    """Returns the members of a union: 'int | None' gives 'int' and 'None'."""
    text, depth, parts = text.strip("\"' "), 0, [""]
    for letter in text:
        depth += (letter in "[(") - (letter in "])")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _bare(part: str) -> str:
    """Removes modules from a type's name: 'torch.nn.Module' becomes 'Module'.

    Keeps the item type of sequences in `_TYPES`: 'collections.abc.Sequence[int]' becomes
    'Sequence[int]'.
    """
    name, bracket, rest = part.partition("[")
    inner = rest.removesuffix("]").strip()
    last = name.rpartition(".")[2].strip()
    if last in ("Sequence", "Iterable", "list", "tuple") and f"{last}[{inner}]" in _TYPES:
        return f"{last}[{inner}]"
    return "Literal" if last == "Literal" and bracket else last


def _is_int(value: Any) -> bool:
    if isinstance(value, (bool, np.bool_, np.ndarray)):
        return False
    if isinstance(value, int):
        return True
    if _is_torch(value, "Tensor"):
        return bool(value.dim() == 0) and not value.is_floating_point() and not value.is_complex()
    try:
        index(value)
    except TypeError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return _is_int(value) or isinstance(value, (float, np.floating)) or _is_one_number(value)


def _is_one_number(value: Any) -> bool:
    return _is_torch(value, "Tensor") and value.dim() == 0 and value.is_floating_point()


def _is_sequence(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, (str, bytes, bytearray, Mapping))


def _are_ints(value: Any) -> bool:
    if not isinstance(value, (Sequence, np.ndarray)) and not _is_torch(value, "Tensor"):
        return False
    return _is_sequence(value) and _is_flat(value) and all(_is_int(item) for item in value)


def _are_tensors(value: Any) -> bool:
    return isinstance(value, (tuple, list)) and all(_is_torch(item, "Tensor") for item in value)


def _is_flat(value: Any) -> bool:
    return getattr(value, "ndim", 1) == 1


def _is_torch(value: Any, name: str) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, getattr(torch, name))


def _is_named(name: str, package: str) -> Test:
    """Returns a predicate: is the value an instance of the class `name` of the package `package`?

    The predicate compares names, so the package is not imported.
    """

    @functools.lru_cache(maxsize=256)
    def is_one(cls: Any) -> bool:
        return any(b.__name__ == name and b.__module__.startswith(package) for b in cls.__mro__)

    def test(value: Any) -> bool:
        cls: Any = type(value)
        return is_one(cls)

    return test


def _is_size(value: Any) -> bool:
    return _is_int(value) or _are_ints(value)


_SIZE: tuple[Test, str] = (_is_size, "an int or a sequence of ints")
_TYPES: dict[str, tuple[Test, str]] = {
    "None": (lambda value: value is None, "None"),
    "NoneType": (lambda value: value is None, "None"),
    "int": (_is_int, "an int"),
    "float": (_is_number, "a number"),
    "bool": (lambda value: isinstance(value, (bool, np.bool_)), "a bool"),
    "str": (lambda value: isinstance(value, str), "a str"),
    "bytes": (lambda value: isinstance(value, (bytes, bytearray, memoryview)), "bytes"),
    "Path": (lambda value: isinstance(value, os.PathLike), "a path"),
    "Callable": (callable, "a function"),
    "dict": (lambda value: isinstance(value, dict), "a dict"),
    "Mapping": (lambda value: isinstance(value, Mapping), "a mapping"),
    "list": (_is_sequence, "a list"),
    "tuple": (_is_sequence, "a tuple"),
    "Sequence": (_is_sequence, "a sequence"),
    "Iterable": (_is_sequence, "a sequence"),
    "Sequence[int]": (_are_ints, "a sequence of ints"),
    "Sequence[Tensor]": (_are_tensors, "a sequence of torch tensors"),
    "tuple[Tensor, Tensor]": (
        lambda value: _are_tensors(value) and len(value) == 2,
        "a pair of torch tensors",
    ),
    **dict.fromkeys(("Single", "Pair", "Triple", "Shape"), _SIZE),
    "Tensor": (lambda value: _is_torch(value, "Tensor"), "a torch tensor"),
    "GradBucket": (_is_named("GradBucket", "torch"), "a GradBucket of torch"),
    "dtype": (lambda value: _is_torch(value, "dtype"), "a torch.dtype"),
    "Module": (_is_named("Module", "torch.nn"), "a torch.nn.Module"),
    "Optimizer": (_is_named("Optimizer", "torch.optim"), "a torch.optim.Optimizer"),
}
_OURS = (
    *("HookState", "Accumulator", "Codec", "Communicator", "LocalGroup", "Reduce", "Schedule"),
    *("States", "Network", "Machine", "Roundoff", "ElementRule", "SumRule", "Vectors", "Sweep"),
    *("SweepRow", "Field"),
)
"""Names of this package's classes. Arguments annotated with one of the names are checked."""


def _ours(name: str) -> tuple[Test, str] | None:
    """Returns a type check, and the name in errors, for a class in `_OURS`; else None."""
    if name not in _OURS:
        return None
    homes = {
        "Communicator": "comm.",
        "LocalGroup": "comm.",
        "Codec": "compress.",
        "Machine": "study.",
        "Network": "study.",
        "States": "compress.",
    }
    return _is_named(name, "cpd"), f"a cpd.{homes.get(name, '')}{name}"
