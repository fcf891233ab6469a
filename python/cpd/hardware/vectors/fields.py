# SPDX-License-Identifier: Apache-2.0
"""`Field`: a field of a line (test vector). Converts its numbers from hexadecimal digits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

_BAD = 255
_NIBBLES = np.full(256, _BAD, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789ABCDEF", np.uint8)] = range(16)
_NIBBLES[np.frombuffer(b"abcdef", np.uint8)] = range(10, 16)


class Field(NamedTuple):
    """One field of a line (test vector).

    It has `count` elements of `bits / count` bits each; the first element is least significant.

    Attributes:
        name: the field's name.
        bits: the number of bits of all elements together.
        count: the number of its elements; default 1.
        role: `input` (default), `signal` (inside a unit) or `output`.
        signed: whether elements are in two's complement; default False.
    """

    name: str
    bits: int
    count: int = 1  # type: ignore[assignment]  # tuple's method
    role: str = "input"
    signed: bool = False

    @property
    def digits(self) -> int:
        """The number of hexadecimal digits of the field in a line."""
        return -(-self.bits // 4)

    @property
    def width(self) -> int:
        """The number of bits of one element, 1…64."""
        return self.bits // self.count

    @property
    def dtype(self) -> type[np.uint32 | np.uint64]:
        """The NumPy dtype of the field's elements."""
        return np.uint64 if self.signed else np.uint32

    def describe(self) -> dict[str, Any]:
        """Returns the field's description for the head of a file."""
        return dict(self._asdict())


def line_digits(fields: Sequence[Field]) -> int:
    """Returns the number of hexadecimal digits of all fields of a line."""
    return sum(field.digits for field in fields)


def field_of(given: Any) -> Field:
    """Makes a `Field` from its description in a file's head.

    Raises ValueError if the description is invalid.
    """
    if not isinstance(given, dict):
        raise ValueError("a field must be an object with name and bits")
    try:
        field = Field(**given)
    except TypeError:
        raise ValueError(f"a field must be an object with name and bits, got {given}") from None
    numbers = all(type(n) is int and n > 0 for n in (field.bits, field.count))
    if type(field.name) is not str or not numbers or field.bits % field.count or field.width > 64:
        raise ValueError(f"a field must have a name and positive numbers of bits, got {given}")
    return field


def from_digits(field: Field, digits: Bytes) -> Words | None:
    """Converts n numbers of hexadecimal digits, ASCII bytes of shape (n, digits), to an array.

    The array has shape (n,), or (n, count) for several elements. Returns None if a byte is not a
    digit or a number has too many bits.
    """
    nibbles = _NIBBLES[digits]
    if nibbles.max(initial=0) == _BAD:
        return None
    n = len(digits)
    if field.count == 1 or field.width % 4 == 0:
        element_digits = nibbles.reshape(n, field.count, -1)
        values = np.zeros((n, field.count), np.uint64)
        for place in range(element_digits.shape[2]):
            values = values << np.uint64(4) | element_digits[:, :, place]
        if field.width < 64 and (values >> np.uint64(field.width)).any():
            return None
    else:
        bits = np.unpackbits(nibbles[:, :, None], axis=2)[:, :, 4:].reshape(n, -1)
        spare = bits.shape[1] - field.bits
        if bits[:, :spare].any():
            return None
        columns = bits[:, spare:].reshape(n, field.count, field.width)
        values = np.zeros((n, field.count), np.uint64)
        for place in range(field.width):
            values = values << np.uint64(1) | columns[:, :, place]
    values = values[:, ::-1]
    return np.ascontiguousarray(values[:, 0] if field.count == 1 else values)


def from_number(field: Field, number: int) -> list[int]:
    """Splits the number that a line has for a field into the field's elements."""
    mask = (1 << field.width) - 1
    return [number >> field.width * i & mask for i in range(field.count)]
