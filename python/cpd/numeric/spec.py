# SPDX-License-Identifier: Apache-2.0
"""Defines `Spec`, the base class of `Format`, `Scaled`, `Cast`, `Accumulator` and other specs."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple, Never, Self, TypeVar

import numpy as np

from cpd._since import KEYWORDS, refuse_members
from cpd.numeric.checked import check_text, is_compiling
from cpd.numeric.compiling import constant
from cpd.numeric.names import did_you_mean
from cpd.numeric.numbers import int64
from cpd.numeric.renamed import refuse
from cpd.numeric.shown import shown

SpecT = TypeVar("SpecT", bound="Spec")
Keys = tuple[tuple[str, str], ...]
"""Pairs of a key of a spec's text, such as `sum`, and the text of the key's value."""


class Kind(NamedTuple):
    """The conversions of a key's values to text and back."""

    text: Callable[[str, Any], str]
    """A function of the key's name (for errors) and the caller's value, which returns the value's
    text."""
    read: Callable[[str], Any] | None = None
    """A function that converts a value's text to the spec's attribute, such as a `Format`. None:
    the attribute is the value that C++ parsed."""


class Spec:
    """An immutable description of arithmetic, such as a format or a cast, that a text determines.

    A spec holds one C++ object, which C++ parses from the text and checks once. Specs are hashable
    and picklable by their texts.

    A subclass names its C++ class: `class Cast(Spec, native=_core.CastSpec)`. Its constructor is
    made from the table of keys of the C++ class. The `__init__` of the subclass gives only the
    signature and has an empty body. The keys are attributes, which are plain values to a program
    compiled by torch.compile.
    """

    text: str
    """The text that str() returns."""
    _held: Any

    _native: ClassVar[Any]
    _stored: ClassVar[tuple[str, ...]]
    """The names of the attributes in the `__dict__` of each object of the class."""
    _kinds: ClassVar[dict[str, Kind]]
    """The `Kind` of each key, which converts the key's values. The C++ class lists the keys."""
    _reads: ClassVar[dict[str, Callable[[str], Any]]] = {}
    """The functions that make attributes from the texts of their keys, for example a format from
    its name."""

    def __init_subclass__(cls, native: Any = None) -> None:
        """Sets a subclass's constructor and the types of its keywords, from the C++ class `native`.

        Access to a removed member of version 0.7 raises an error.
        """
        if native is None:
            return
        refuse_members(cls)
        cls._native = native
        cls._kinds = {name: KINDS[kind] for name, kind in native.keys().items()}
        reads = {name: kind.read for name, kind in cls._kinds.items() if kind.read is not None}
        cls._reads = reads | cls._reads
        cls.__init__ = _constructor(cls)  # type: ignore[method-assign]

    @classmethod
    @abstractmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        """Returns the text of a constructor's first argument, `spec`.

        A subclass may put `spec` into `keys` and return "", as `Scaled` does with element formats.
        """

    def replace(self, **keys: Any) -> Self:
        """Returns a copy in which the given keys have new values.

        Args:
            keys: keywords of the constructor with their new values. None leaves a key unchanged.

        Returns:
            The copy, of the same class.

        Raises:
            ValueError: for an invalid value, or for a key that cannot be combined with the other
                keys.
            TypeError: for an unknown key, or a value of another type.
        """
        changed = {}
        for name, key in keys.items():
            if name not in self._kinds:
                refuse_key(type(self), name, key, list(self._kinds))
            own = getattr(self, name)
            if key is not None and not (type(key) is type(own) and key == own):
                changed[name] = key
        return made(type(self), self.text, texts_of(type(self), changed))

    @classmethod
    def named(cls) -> dict[str, dict[str, str]]:
        """Returns the names that texts of this class may use, each with a description.

        The description is a dict with a `summary`, a `source` and the `evidence`. `evidence` is
        `standard` (a published specification), `library` (a library's own type), `literature`
        (papers) or `replayed` (CPD reproduces published results of the hardware bit for bit). Empty
        for a class without names.
        """
        return cls._native.named() if hasattr(cls._native, "named") else {}

    @classmethod
    def _of(cls, held: Any) -> Self:
        """Returns a new spec with the fields of the C++ object `held`, which the spec stores."""
        spec = object.__new__(cls)
        for name, value in held.fields().items():
            read = cls._reads.get(name)
            spec.__dict__[name] = value if read is None or value is None else read(value)
        spec.__dict__.update(text=held.text, _held=held)
        return spec

    def _share(self, like: Spec) -> None:
        """Copies the fields of `like` to this object."""
        if is_compiling():  # torch 2.11 cannot trace an object's `__dict__`
            for name in _stored_names(type(self)):
                object.__setattr__(self, name, getattr(like, name))
        else:
            self.__dict__.update(like.__dict__)

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text}

    def __setstate__(self, state: dict[str, Any]) -> None:
        warn_of_numbers(type(self).__name__, state)
        self._share(made(type(self), _with_effect(state["text"]), ()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise self._immutable(f"assign to {name!r}")

    def __delattr__(self, name: str) -> None:
        raise self._immutable(f"delete {name!r}")

    def _immutable(self, what: str) -> AttributeError:
        from dataclasses import FrozenInstanceError  # the import takes a millisecond

        return FrozenInstanceError(f"cannot {what}: a {type(self).__name__} is immutable")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"cpd.{type(self).__name__}({self.text!r})"


# ---- constructors --------------------------------------------------------------------------------


@constant
def _stored_names(spec: type[Spec]) -> tuple[str, ...]:
    return spec._stored


@constant
def made(spec: type[SpecT], text: str, keys: Keys) -> SpecT:
    """Returns the spec of a text, in which the values of `keys` replace the text's own values.

    Equal texts give the same object. The result is a constant to torch.compile.
    """
    held = spec._native.parse(text, list(keys))
    if held.text != text or keys:
        return made(spec, held.text, ())
    parsed = spec._of(held)
    spec._stored = tuple(parsed.__dict__)
    return parsed


def _constructor(spec: type[Spec]) -> Callable[..., None]:
    """Returns the constructor of the class `spec`, with the signature in the class's source."""
    parameters = [*inspect.signature(spec.__init__).parameters.values()][2:]
    names = [p.name for p in parameters]
    by_place = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]

    @functools.wraps(spec.__init__)
    def construct(self: Any, format: Any = None, /, *others: Any, **keys: Any) -> None:
        if not others and not keys and type(format) is str:
            text = spec._head(format, keys)  # `_head` may move the format into `keys`
            self._share(made(spec, text, texts_of(spec, keys) if keys else ()))
            return
        if len(others) > len(by_place):
            spec._head(format, {})  # raises a better error if the first argument is invalid
            raise TypeError(
                f"{spec.__name__} takes one text or format, and all else in it or by keyword: "
                f"{', '.join(names)}"
            )
        if others:
            keys = {**dict(zip(by_place, others, strict=False)), **keys}
        options = {}
        for name, key in keys.items():
            if name not in names:
                refuse_key(spec, name, key, names)
            if key is not None:
                options[name] = key
        text = spec._head(format, options)
        self._share(made(spec, text, texts_of(spec, options)))

    return construct


def texts_of(spec: type[Spec], keys: Mapping[str, Any]) -> Keys:
    """Returns pairs (key, text of its value). Raises TypeError for a value of another type."""
    kinds = spec._kinds
    texts = tuple((name, kinds[name].text(name, key)) for name, key in keys.items())
    for name, text in texts:
        check_text(name, text)
    return texts


def refuse_key(spec: type[Spec], name: str, value: Any, names: list[str]) -> Never:
    """Raises TypeError for a key that a spec does not have.

    The error names the replacement of a key of version 0.7, or all keys and the nearest one.
    """
    title = spec.__name__
    if name in KEYWORDS.get(title, {}):
        refuse(title, {name: value})
    hint = did_you_mean(name, names)
    raise TypeError(f"{title}() takes {', '.join(names)}, not {name}={hint and f'; {hint}'}")


# ---- kinds of keys -------------------------------------------------------------------------------


def named_word(name: str, value: Any) -> str:
    """Returns `value`, the name of an option. Raises TypeError unless it is a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def flag(name: str, value: Any) -> bool:
    """Returns `value` as a bool. Raises TypeError for any other type, such as 'no' or 0."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")
    return bool(value)


def _number(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"{name} must be a number, got {type(value).__name__}")
    if not isinstance(value, (int, np.integer)):
        return repr(float(value))
    if not (abs(int(value)) < 2**1023 and int(float(value)) == value):
        raise ValueError(f"{name} must be a number of binary64, got {shown(value)}")
    return str(value)


KINDS: dict[str, Kind] = {
    "word": Kind(named_word),
    "integer": Kind(lambda name, value: str(int64(name, value))),
    "number": Kind(_number),
    "switch": Kind(lambda name, value: "true" if flag(name, value) else "false"),
}
"""Maps the name of a type of values to the `Kind` that converts such values to text and back. A C++
class lists its keys, each with the name of the type. Modules add types for their own specs."""


# ---- pickles of version 0.7 ----------------------------------------------------------------------


def warn_of_numbers(spec: str, state: Mapping[str, Any]) -> None:
    """Warns of a seed, stream, step or layer in the pickle of a spec of version 0.7.

    These numbers are now arguments of calls. Each warning is given once.
    """
    had = {name: state.get(name, 0) for name in ("seed", "stream", "step", "layer")}
    numbers = " and ".join(f"{name} {value}" for name, value in had.items() if value)
    text = f"this {spec} of 0.7 had {numbers}: give {{}} to the call"
    if numbers and text not in _WARNED:
        from cpd.numeric.warned import warn

        _WARNED.add(text)
        warn(text.format("them" if " and " in numbers else "it"))


_WARNED: set[str] = set()


def _with_effect(text: str) -> str:
    """Returns a text of version 0.7 without options that have no effect, which raise errors now.

    Removes `random_bits` and `variant` without stochastic rounding, and `fraction_bits` and
    `min_exponent` of an adder that does not truncate terms.
    """
    words = text.split(" ")
    without: tuple[str, ...] = ()
    if "rounding=stochastic" not in words:
        without += ("random_bits", "variant")
    if "adder=exact" in words or "adder=flushed_pairs" in words:
        without += ("fraction_bits", "min_exponent")
    return " ".join(w for w in words if w.partition("=")[0] not in without)
