# SPDX-License-Identifier: Apache-2.0
"""What NumPy arrays and torch tensors have in common: arguments, options and memory, checked."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from cpd import _core, formats
from cpd.compiling import constant

if TYPE_CHECKING:
    import torch

Array: TypeAlias = npt.NDArray[Any]
Number: TypeAlias = "int | torch.Tensor"
"""A 64-bit number: an int or a one-element integer tensor (of which int64 holds the bits)."""
Shape: TypeAlias = int | Sequence[int]
ArrayT = TypeVar("ArrayT", Array, "torch.Tensor")
"""NumPy array or torch tensor: what goes in comes out."""

MAX_RANK = 16
MAX_RANDOM_BITS = 24
FLOATS = ("float32", "float64", "bfloat16", "float16")
"""Element types that carry emulated values."""
NARROW_FLOATS = ("float32", "bfloat16", "float16")
"""Those that matrix products take: their exact products are binary64 numbers."""
_BITS64 = 2**64
_MOST_ELEMENTS = 2**58 - 1
"""Whose bits can be counted in 63 bits. A size of 0 does not make the others small: NumPy and torch
see it so too."""


class Options(NamedTuple):
    """How to round: the arguments that every rounding operation takes."""

    rounding: str = "nearest_even"
    overflow: str = "ieee"
    seed: Number = 0
    stream: Number = 0
    random_bits: int = 24
    variant: str = "A"

    def check(self) -> None:
        """Raises TypeError or ValueError where one of them is wrong."""
        for name in ("rounding", "overflow", "variant"):
            value = getattr(self, name)
            if not isinstance(value, str):
                raise TypeError(f"{name} must be a str, got {type(value).__name__}")
        check_names(self.rounding, self.overflow, self.variant)
        bits = integer("random_bits", self.random_bits)
        if not 1 <= bits <= MAX_RANDOM_BITS:
            raise ValueError(f"random_bits must be 1…{MAX_RANDOM_BITS}, got {bits}")
        check_number("seed", self.seed)
        check_number("stream", self.stream)

    def text(self, f: formats.Format) -> str:
        """Checked, with a format, as torch's operators of elements take them: "e4m3
        rounding=stochastic". Seed and stream are no part of it."""
        self.check()
        return cast_text(f.name, self.rounding, self.overflow, self.random_bits, self.variant)

    def native(self) -> _core.RoundingOptions:
        """Checked, as C++ takes them."""
        self.check()
        seed, stream = number("seed", self.seed), number("stream", self.stream)
        bits = index(self.random_bits)
        return _core.RoundingOptions(self.rounding, self.overflow, seed, stream, bits, self.variant)


@constant
def check_names(rounding: str, overflow: str, variant: str) -> None:
    """Raises ValueError for a name that does not exist. A constant to torch.compile."""
    _known_names(rounding, overflow, variant)


@constant
def cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """The canonical text of a rounding to a format. A constant to torch.compile."""
    return _cast_text(f, rounding, overflow, index(random_bits), variant)


@constant
def check_carrier(dtype: str, f: str) -> None:
    """Raises ValueError where an element type does not hold a format's values. A constant to
    torch.compile, so both are given by name."""
    _known_carrier(dtype, f)


@constant
def check_result(dtype: str, f: str) -> None:
    """The same for a matrix product, whose element type is an argument."""
    try:
        _known_carrier(dtype, f)
    except ValueError as error:
        raise ValueError(
            f"the result's type, {dtype}, does not hold {f}: give dtype= one that does, such as "
            f"float32, or an accumulator that fits ({error})"
        ) from None


@constant
def holds(dtype: str, f: str) -> bool:
    """Whether an element type holds a format's values. A constant to torch.compile."""
    try:
        _known_carrier(dtype, f)
    except ValueError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _known_names(rounding: str, overflow: str, variant: str) -> None:
    _core.RoundingOptions(rounding, overflow, 0, 0, 1, variant)


@functools.lru_cache(maxsize=1024)
def _cast_text(f: str, rounding: str, overflow: str, random_bits: int, variant: str) -> str:
    """A sequential accumulator's text without its scheme: its format and its options."""
    from cpd.accumulator import Accumulator  # which imports this module

    text = Accumulator(
        f, rounding=rounding, overflow=overflow, random_bits=random_bits, variant=variant
    ).text
    return text.replace(" sequential", "", 1)


@functools.lru_cache(maxsize=1024)
def _known_carrier(dtype: str, f: str) -> None:
    _core.check_carrier(dtype, formats.named(f)._native)


def integer(name: str, value: Any) -> int:
    """`value` as an int, which a bool or a float is not."""
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be an int, got bool")
    if isinstance(value, int):
        return value  # as it is: index() would fix a symbolic int of torch.compile to its value
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} must be an int, got {type(value).__name__}") from None


def number(name: str, value: Number) -> int:
    """A seed or stream as an int in [0, 2^64)."""
    check_number(name, value)
    return int(value.item()) % _BITS64 if is_torch(value) else index(value)


def check_number(name: str, value: Number) -> None:
    """Raises unless `value` is an int in [0, 2^64) or a one-element integer tensor."""
    if not is_torch(value):
        if not 0 <= integer(name, value) < _BITS64:
            raise ValueError(f"{name} must be 0…2^64 - 1, got {value}")
    elif value.numel() != 1:
        raise ValueError(f"{name} must have one element, got shape {tuple(value.shape)}")
    elif value.is_floating_point() or value.is_complex() or str(value.dtype) == "torch.bool":
        raise TypeError(f"{name} must be an integer tensor, got {value.dtype}")


def check_random_is_used(options: Options) -> None:
    if options.rounding != "stochastic":
        raise ValueError(
            f"random is for rounding='stochastic' only, got rounding={options.rounding!r}"
        )


def check_random_range(low: int, high: int, bits: int) -> None:
    if low < 0 or high >= 2**bits:
        raise ValueError(f"random must be 0…2^{bits} - 1, got {low}…{high}")


def shape_of(name: str, shape: Shape) -> tuple[int, ...]:
    """A shape given as an int or a sequence of ints, checked."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    sizes = tuple(integer(name, size) for size in sizes)
    if any(size < 0 for size in sizes):
        raise ValueError(f"{name} must not be negative, got {sizes}")
    if len(sizes) > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {len(sizes)}")
    if math.prod(size for size in sizes if size) > _MOST_ELEMENTS:
        raise ValueError(f"{name} must be of fewer than 2^58 elements, got {sizes}")
    return sizes


def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """The shape of a matrix product, … × M × K by … × K × N."""
    if len(a) < 2 or len(b) < 2:
        raise ValueError(
            f"a and b must have at least two dimensions, got shapes {tuple(a)}, {tuple(b)}"
        )
    if a[-1] != b[-2]:
        raise ValueError(
            f"a must be … × M × K and b … × K × N, got shapes {tuple(a)}, {tuple(b)}: "
            f"K is {a[-1]} in a, {b[-2]} in b"
        )
    batch: list[int] = []
    for d in range(max(len(a), len(b)), 2, -1):
        x = a[-d] if d <= len(a) else 1
        y = b[-d] if d <= len(b) else 1
        if x != y and x != 1 and y != 1:
            raise ValueError(
                "the dimensions of a and b before the last two must broadcast together, "
                f"got shapes {tuple(a)}, {tuple(b)}"
            )
        batch.append(y if x == 1 else x)
    return (*batch, a[-2], b[-1])


def check_addend(c: Sequence[int], shape: Sequence[int]) -> None:
    """Raises ValueError unless `c` broadcasts to a product's shape."""
    fits = len(c) <= len(shape)
    for d in range(1, len(c) + 1):
        fits = fits and (c[-d] == 1 or c[-d] == shape[-d])
    if not fits:
        raise ValueError(f"c must broadcast to the result, {tuple(shape)}, got {tuple(c)}")


def dimension(dim: Any, rank: int) -> int:
    """`dim`, counted from the end where negative, as 0…rank - 1."""
    number = integer("dim", dim)
    if rank == 0:
        raise ValueError("x must have at least one dimension to sum over, got none")
    if not -rank <= number < rank:
        raise ValueError(f"dim must be {-rank}…{rank - 1} for {rank} dimensions, got {number}")
    return number % rank


def is_torch(x: object) -> TypeGuard[torch.Tensor]:
    """Whether `x` is a torch tensor; does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


# ---- memory ------------------------------------------------------------------------------------


class Region(NamedTuple):
    """Where the elements of an array lie; strides in bytes."""

    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def bounds(self) -> tuple[int, int]:
        """First byte and the byte behind the last one."""
        if 0 in self.shape:
            return self.address, self.address
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(end for end in ends if end < 0)
        high = self.address + sum(end for end in ends if end > 0)
        return low, high + self.itemsize

    def touches(self, other: Region) -> bool:
        """Whether the two ranges of bytes meet."""
        low, high = self.bounds()
        other_low, other_high = other.bounds()
        return low < high and other_low < other_high and low < other_high and other_low < high

    def same_elements(self, other: Region) -> bool:
        """Whether each element lies where the other's does."""
        return (
            (self.address, self.itemsize, self.shape)
            == (other.address, other.itemsize, other.shape)
        ) and all(
            n == 1 or a == b
            for n, a, b in zip(self.shape, self.strides, other.strides, strict=True)
        )

    def overlaps_itself(self) -> bool:
        """Whether two elements may share bytes (exact unless dimensions interleave)."""
        if 0 in self.shape:
            return False
        reach = self.itemsize
        for stride, n in sorted(
            (abs(s), n) for n, s in zip(self.shape, self.strides, strict=True) if n > 1
        ):
            if stride < reach:
                return True
            reach += (n - 1) * stride
        return False


OVERLAPS_ITSELF = "out must not overlap itself (a stride of 0 or overlapping windows)"


def check_out_memory(out: Region, inputs: dict[str, Region]) -> None:
    """Raises unless `out` may be written while the inputs are read: it is an input itself, or lies
    apart from it."""
    if out.overlaps_itself():
        raise ValueError(OVERLAPS_ITSELF)
    for name, region in inputs.items():
        if out.touches(region) and not out.same_elements(region):
            raise ValueError(
                f"out must be {name} itself or lie apart from it; their memory overlaps in part"
            )
