# SPDX-License-Identifier: Apache-2.0
"""The base of specs: `Spec`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, ClassVar, Self

Option = tuple[str, str | float | None]
"""A name and a value of a spec's text."""


class Spec:
    """A spec of arithmetic: one native object, made and checked once in C++ and equal to its text.

    Immutable, hashable, picklable by its text. The fields that the native object names are
    attributes, plain values to a compiled program.
    """

    text: str
    """The text that str() returns."""
    _held: Any

    _SPECS: ClassVar[dict[str, Callable[[str], Any]]] = {}
    """The fields that are specs themselves, and what makes each of its text."""
    _parsed: ClassVar[Callable[[str], Any]]
    """Gives the spec of a text, one object for each text."""

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
        """The spec of a native object."""
        made = object.__new__(cls)
        put = object.__setattr__
        for name, value in held.fields().items():
            read = cls._SPECS.get(name)
            put(made, name, value if read is None or value is None else read(value))
        put(made, "text", held.text)
        put(made, "_held", held)
        return made

    def _share(self, like: Spec) -> None:
        """Takes the fields of `like`."""
        for name in self.__dataclass_fields__:  # type: ignore[attr-defined]
            object.__setattr__(self, name, getattr(like, name))

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text}

    def __setstate__(self, state: dict[str, Any]) -> None:
        warn_of_numbers(type(self).__name__, state)
        self._share(type(self)._parsed(_with_effect(state["text"])))

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


def warn_of_numbers(spec: str, state: Mapping[str, Any]) -> None:
    """Warns, once for each text, of numbers that a spec of version 0.7 had and calls have now."""
    had = {name: state.get(name, 0) for name in ("seed", "stream", "step", "layer")}
    numbers = " and ".join(f"{name} {value}" for name, value in had.items() if value)
    text = f"this {spec} of 0.7 had {numbers}: give {{}} to the call"
    if numbers and text not in _WARNED:
        from cpd.numeric.warned import warn

        _WARNED.add(text)
        warn(text.format("them" if " and " in numbers else "it"))


_WARNED: set[str] = set()


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
