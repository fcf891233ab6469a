# SPDX-License-Identifier: Apache-2.0
"""The base of specs: `Spec`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, ClassVar, Self

from cpd.numeric.numbers import same_number

Option = tuple[str, str | float | None]
"""A name and a value of a spec's text."""


class Spec:
    """A spec of arithmetic: one native object, made and checked once in C++ and equal to its text.

    Immutable, hashable, picklable by its text. The fields that the native object names are
    attributes, plain values to a compiled program. A seed and a stream, where a spec has them, are
    Python's own: each counts by its value, be it an int or a tensor, whose value may change, so
    that they leave the hash as it is.
    """

    text: str
    """The text that str() returns."""
    _held: Any

    _SPECS: ClassVar[dict[str, Callable[[str], Any]]] = {}
    """The fields that are specs themselves, and what makes each of its text."""
    _NUMBERS: ClassVar[tuple[str, ...]] = ()
    """`seed` and `stream` of specs that draw."""
    _parsed: ClassVar[Callable[[str], Any]]
    """Gives the spec of a text, with numbers 0: one object for each text."""

    def replace(self, **keys: Any) -> Self:
        """Returns a copy with these keys changed.

        Args:
            keys: keywords of the constructor. None keeps a key.

        Returns:
            The copy.

        Raises:
            ValueError: for a key that does not go with the others.
            TypeError: for an unknown key.
        """
        return type(self)(self, **keys)  # type: ignore[call-arg]

    @classmethod
    def named(cls) -> dict[str, dict[str, str]]:
        """Returns the named specs of this class.

        Each has a `summary`, a `source`, and its `evidence`: `standard` (a published
        specification), `library` (a library's own type), `literature` (papers), or `replayed`
        (published results of the hardware, given bit for bit).
        """
        return {}

    @classmethod
    def _of(cls, held: Any) -> Self:
        """The spec of a native object; its numbers are 0."""
        made = object.__new__(cls)
        put = object.__setattr__
        for name, value in held.fields().items():
            read = cls._SPECS.get(name)
            put(made, name, value if read is None or value is None else read(value))
        for name in cls.__dataclass_fields__.keys() & cls._NUMBERS:  # type: ignore[attr-defined]
            put(made, name, 0)
        put(made, "text", held.text)
        put(made, "_held", held)
        return made

    def _share(self, like: Spec, **numbers: Any) -> None:
        """Takes the fields of `like`, but for these numbers."""
        put = object.__setattr__
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            if name not in numbers:
                put(self, name, getattr(like, name))
        for name, value in numbers.items():
            put(self, name, value)

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("text", *self._NUMBERS)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        text = _with_effect(state["text"])
        self._share(type(self)._parsed(text), **{n: state.get(n, 0) for n in self._NUMBERS})

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self.text == other.text and all(
            same_number(getattr(self, name), getattr(other, name)) for name in self._NUMBERS
        )

    def __hash__(self) -> int:
        return hash(self.text)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self  # with its stream, if that is a tensor: whoever holds it looks at the same one

    def __str__(self) -> str:
        return self.text


def _with_effect(text: str) -> str:
    """Returns a text that version 0.7 pickled, without options of no effect, which raise now.

    These are `random_bits` and `variant` without stochastic rounding, and cuts of an adder that
    cuts no term.
    """
    words = text.split(" ")
    without: tuple[str, ...] = ()
    if "rounding=stochastic" not in words:
        without += ("random_bits", "variant")
    if "adder=exact" in words or "adder=flushed_pairs" in words:
        without += ("fraction_bits", "min_exponent")
    return " ".join(w for w in words if w.partition("=")[0] not in without)


def named_word(name: str, value: Any) -> str:
    """`value`, the name of an enumerator. Raises TypeError for what is not a str."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def word(name: str, value: Any) -> str | None:
    """`value`, the name of an enumerator, or None."""
    return None if value is None else named_word(name, value)


def options(**values: str | float | None) -> tuple[Option, ...]:
    """Options by their names, for a function of plain values."""
    return tuple(values.items())


def texts(options: tuple[Option, ...]) -> list[tuple[str, str]]:
    """Options as the native objects take them, without those whose value is None."""
    return [(name, str(value)) for name, value in options if value is not None]


def with_options(text: str, given: tuple[Option, ...]) -> str:
    """A spec's text with these options in place of its own of the same names."""
    replaced = dict(texts(given))
    words = [word for word in text.split() if word.partition("=")[0] not in replaced]
    return " ".join([*words, *(f"{name}={value}" for name, value in replaced.items())])


def take(spec: Any, held: Any, **others: Any) -> None:
    """Gives a spec without a text its native object and that one's fields, but for `others`."""
    others["_held"] = held
    for name in spec.__dataclass_fields__:
        value = others[name] if name in others else getattr(held, name)
        object.__setattr__(spec, name, value)


def arguments(spec: Any) -> dict[str, Any]:
    """The keyword arguments that make the same spec: what is pickled of one without a text."""
    return {one.name: getattr(spec, one.name) for one in fields(spec) if one.init}
