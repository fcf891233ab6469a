# SPDX-License-Identifier: Apache-2.0
"""Checks of arguments for both NumPy arrays and torch tensors: types, shapes and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypedDict, TypeVar

from cpd import _core
from cpd.numeric import formats, scaled
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import Number, integer
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import alternatives, kind_of, shown

if TYPE_CHECKING:
    import numpy.typing as npt  # which takes half a millisecond
    import torch

    from cpd.numeric.accumulator import Accumulator

Array: TypeAlias = "npt.NDArray[Any]"
Shape: TypeAlias = int | Sequence[int]
Scales: TypeAlias = Any
"""Packed codes of a scaled format's scales. With an outer scale, a pair: the codes of the blocks'
scales and of the outer scales."""
ArrayT = TypeVar("ArrayT", "Array", "torch.Tensor")
"""A NumPy array or a torch tensor. Results are of the same kind as the arguments."""


class Drawn(TypedDict, Generic[ArrayT], total=False):
    """The keywords that every rounding operation has. Overloads of public functions unpack them."""

    seed: Number
    stream: Number
    random: ArrayT | None


class Rounded(Drawn[ArrayT], total=False):
    """The keywords that the ordered sum and the matrix product share."""

    tininess: str


class Elementwise(Rounded[ArrayT], total=False):
    """The keywords that cast and elementwise arithmetic share."""

    out: ArrayT | None


class Blockwise(Drawn[ArrayT], total=False):
    """The keywords of `encode`."""

    axis: int
    scales: Any
    amax: Any


MAX_RANK: int = _core.MAX_RANK
FLOATS = ("float32", "float64", "bfloat16", "float16")
"""The dtypes that can store values of emulated formats."""
NARROW_FLOATS = ("float32", "bfloat16", "float16")
"""The dtypes of matrix products. The exact product of two of their values is a binary64 number."""
_MOST_ELEMENTS = 2**58 - 1
"""The largest number of elements of an array, because its size in bits must be less than 2^63. The
number is checked as if dimensions of size 0 had size 1, as in NumPy and torch."""


@constant
def check_storage(dtype: str, f: str) -> None:
    """Raises ValueError if a dtype does not represent every value of a format.

    The check is a constant to torch.compile, so both arguments are names: `dtype` is the name of
    the dtype, `f` the name of the format.
    """
    _core.check_storage(dtype, formats.named(f)._held)


@constant
def check_result(dtype: str, f: str) -> None:
    """Raises ValueError if a matrix product's dtype does not represent every value of a format.

    The text of the error suggests another `dtype=`.
    """
    try:
        check_storage(dtype, f)
    except ValueError:
        raise ValueError(
            f"the result is {dtype}, which cannot represent every value of {f}: give dtype=, such "
            "as float32, or a narrower accumulator"
        ) from None


@constant
def holds(dtype: str, f: str) -> bool:
    """Returns whether a dtype represents every value of a format. A constant to torch.compile."""
    try:
        check_storage(dtype, f)
    except ValueError:
        return False
    return True


def check_type(name: str, element: str, allowed: tuple[str, ...], got: Any) -> None:
    """Raises TypeError unless a dtype is allowed.

    `name` is the argument's name in the error, and `got` the description of its value.
    """
    if element not in allowed:
        raise TypeError(f"{name} must be of type {alternatives(allowed)}, got {got}")


def check_whole(name: str, x: Any) -> None:
    """Raises TypeError for a nested torch tensor, and for a DTensor (a tensor on several ranks).

    Args:
        name: the tensor's name in the error.
        x: a torch tensor.
    """
    if x.is_nested:
        raise TypeError(
            f"{name} must be a dense tensor, got a nested one (torch.nn.TransformerEncoder makes "
            "them of padded batches: give it enable_nested_tensor=False)"
        )
    if hasattr(x, "device_mesh"):
        raise TypeError(
            f"{name} must be a tensor of this rank, got a DTensor: tensor parallelism "
            "(parallelize_module) is not supported; DDP and FSDP2 are"
        )


SIGNIFICANT_BITS = {"bfloat16": 8, "float16": 11}
"""The number of significant bits of each 16-bit dtype."""


@constant
def holds_scaled(dtype: str, q: str) -> bool:
    """Returns whether a dtype represents all results of casts from this dtype to a scaled format.

    `q` is the text of the scaled format. The dtype float32 represents all results of casts. A
    16-bit dtype represents them if the scales are powers of two and the elements have at most as
    many significant bits as the dtype. float16 also needs rule `floor` without a margin, because
    other rules can round the largest float16 values up beyond the range of float16.
    """
    if dtype not in SIGNIFICANT_BITS:
        return True
    f = scaled.named_scaled(q)
    is_power = f.scale.name == "e8m0" and f.tensor_scale is None and f.transform is None
    is_short = f.element.man + 1 <= SIGNIFICANT_BITS[dtype]
    return is_power and is_short and (dtype == "bfloat16" or (f.rule, f.margin) == ("floor", 0))


def check_cast(dtype: str, f: formats.Format | Scaled) -> None:
    """Raises ValueError unless a dtype represents all results of casts from this dtype to `f`."""
    fits = holds_scaled(dtype, f.text) if isinstance(f, Scaled) else holds(dtype, f.name)
    if not fits:
        is_wide = not isinstance(f, Scaled) and not holds("float32", f.name)
        wider = "float64" if is_wide else "float32"
        name = f.text if isinstance(f, Scaled) else f.name
        raise ValueError(
            f"x is {dtype}, which cannot represent every value of a cast to {name}: give "
            f"dtype={wider}, the result's type, or an x of that type"
        )


def check_tininess(tininess: str) -> None:
    """Raises ValueError unless `tininess` is "after" or "before"."""
    if tininess not in ("after", "before"):
        raise ValueError(f"tininess must be after or before, got {shown(tininess)}")


def check_random_is_used(rounding: str) -> None:
    """Raises ValueError unless the rounding is `stochastic`, the only one that uses `random=`."""
    if rounding != "stochastic":
        raise ValueError(f"random is for rounding='stochastic' only, got rounding={rounding!r}")


def check_random_range(low: int, high: int, bits: int) -> None:
    """Raises ValueError unless the least and the greatest random integer are in [0, 2^bits)."""
    if low < 0 or high >= 2**bits:
        raise ValueError(f"random must be 0…2^{bits} - 1, got {low}…{high}")


def shape_of(name: str, shape: Shape) -> tuple[int, ...]:
    """Checks a shape, an int or a sequence of ints, and returns it as a tuple."""
    is_text = isinstance(shape, (str, bytes))
    sizes = tuple(shape) if isinstance(shape, Sequence) and not is_text else (shape,)
    try:
        sizes = tuple(integer(name, size) for size in sizes)
    except TypeError:
        raise TypeError(
            f"{name} must be an int or a sequence of ints, got {kind_of(shape)}"
        ) from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"{name} must not be negative, got {sizes}")
    if len(sizes) > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {len(sizes)}")
    if math.prod(size for size in sizes if size) > _MOST_ELEMENTS:
        raise ValueError(f"{name} must be of fewer than 2^58 elements, got {sizes}")
    return sizes


def product_shape(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    """Returns the shape of the product of matrices of shapes … × M × K and … × K × N."""
    if len(a) < 2 or len(b) < 2:
        raise ValueError(
            f"a and b must have at least two dimensions, got shapes {tuple(a)}, {tuple(b)}"
        )
    if a[-1] != b[-2]:
        raise ValueError(
            f"a must be … × M × K and b … × K × N, got shapes {tuple(a)}, {tuple(b)}: "
            f"K is {a[-1]} in a, {b[-2]} in b"
        )
    batch = () if len(a) == len(b) == 2 else _batch(a, b)
    return (*batch, a[-2], b[-1])


def _batch(a: Sequence[int], b: Sequence[int]) -> Sequence[int]:
    """Returns the batch dimensions of a matrix product: all dimensions before the last two."""
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
    return batch


def check_addend(c: Sequence[int], shape: Sequence[int]) -> None:
    """Raises ValueError unless `c` broadcasts to a product's shape."""
    fits = len(c) <= len(shape)
    for d in range(1, len(c) + 1):
        fits = fits and (c[-d] == 1 or c[-d] == shape[-d])
    if not fits:
        raise ValueError(f"c must broadcast to the result, {tuple(shape)}, got {tuple(c)}")


def dimension(axis: Any, rank: int, use: str = "to sum over") -> int:
    """Returns `axis` as a number in 0…rank - 1. A negative axis counts from the end.

    `use` describes the purpose of the axis in errors.
    """
    number = integer("axis", axis)
    if rank == 0:
        raise ValueError(f"x must have at least one dimension {use}, got none")
    if not -rank <= number < rank:
        raise ValueError(f"axis must be {-rank}…{rank - 1} for {rank} dimensions, got {number}")
    return number % rank


def transform_axis(axis: Any, shape: Sequence[int], size: int) -> int:
    """Returns the axis of a Hadamard transform, counted from the first dimension.

    Raises ValueError unless the extent along the axis is a multiple of `size`.
    """
    along = dimension(axis, len(shape), "to transform along")
    if shape[along] % size != 0:
        raise ValueError(
            f"the extent along axis {along} must be a multiple of the transform's size, {size}, "
            f"got {shape[along]}"
        )
    return along


# ---- with the front end of the arrays' kind (`cpd.ops.front_ends`) -------------------------------


def wider_type(kind: Any, x: Any, dtype: Any, allowed: tuple[str, ...]) -> Any:
    """Returns the dtype of an operation's result: `dtype`, or the default if `dtype` is None.

    Raises ValueError if the result's dtype does not represent all values of x's dtype.
    """
    element = kind.element(dtype, allowed)
    if x.dtype != element and kind.promote_types(x.dtype, element) != element:
        raise ValueError(f"dtype must hold every value of x, which is {x.dtype}, got {element}")
    return element


def together(kind: Any, operands: dict[str, Any]) -> dict[str, Any]:
    """Returns operands, by name, as arrays of one dtype, broadcast to one shape.

    Raises TypeError if an operand has another dtype than `x`, and ValueError if shapes do not
    broadcast.
    """
    first_operand = operands["x"]
    first = kind.array("x", first_operand)
    arrays, shape, is_common = {}, first.shape, not kind.compiling()
    for name, operand in operands.items():
        x = first if operand is first_operand else kind.array(name, operand, FLOATS, "x", first)
        if x.dtype != first.dtype:
            raise TypeError(f"{name} must have x's type, {first.dtype}, got {x.dtype}")
        is_common = is_common and x.shape == shape
        arrays[name] = x
    if is_common:
        return arrays
    try:
        return dict(zip(arrays, kind.broadcast(*arrays.values()), strict=True))
    except (ValueError, RuntimeError):
        shapes = " and ".join(str(tuple(x.shape)) for x in arrays.values())
        raise ValueError(
            f"{' and '.join(arrays)} must broadcast together, got shapes {shapes}"
        ) from None


def draws(
    kind: Any,
    random: Any,
    x: Any,
    shape: Sequence[int],
    acc: Accumulator,
    integers_of: Callable[[int], int],
    terms: int,
    like: str = "x",
) -> Any:
    """Checks and returns the caller's random integers of ordered sums.

    `integers_of` returns the number of integers of one sum, given its number of terms. Under
    torch.compile, the C++ library checks the shape when the program runs.
    """
    if kind.compiling():
        return kind.integers(random, x, None, "", acc, like)
    count = integers_of(terms)
    shape_text = f"the result's shape and {count} draws"
    return kind.integers(random, x, (*shape, count), shape_text, acc, like)


# ---- scaled formats ----------------------------------------------------------------------------


class ScaleSource(NamedTuple):
    """The arguments `scales` and `amax` of a call. They replace scales computed from the tensor."""

    scales: Any = None
    amax: Any = None


LEVELS = ("scales", "tensor scales", "amax")
"""The names that errors use for the scales of blocks, for the outer scales, and for the largest
magnitudes."""


def scale_levels(q: Scaled, scales: Any) -> tuple[Any, Any]:
    """Returns the scales of blocks and the outer scales of the argument `scales`.

    The outer scales are None for a format without them. Raises ValueError if `scales` is a pair and
    the format has no outer scales, or the reverse.
    """
    is_pair = isinstance(scales, (tuple, list))
    if q.tensor_scale is None:
        if is_pair:
            raise ValueError(f"scales of {q.text} are one array, got a {type(scales).__name__}")
        return scales, None
    if not is_pair or len(scales) != 2:
        raise ValueError(f"scales of {q.text} are a pair, the blocks' and the tensor's")
    return scales[0], scales[1]


def source_levels(q: Scaled, source: ScaleSource) -> tuple[Any, Any, Any]:
    """Returns the scales of blocks, the outer scales and the largest magnitudes.

    Each is None if the caller did not give it.
    """
    if source.scales is None:
        return None, None, source.amax
    return *scale_levels(q, source.scales), source.amax


def given_levels(
    kind: Any, q: Scaled, x: Any, axis: int, source: ScaleSource
) -> tuple[Any, Any, Any]:
    """Checks the caller's scales and largest magnitudes, and returns them for C++.

    Under torch.compile, the C++ library checks their shapes when the program runs.
    """
    if source.scales is None and source.amax is None:
        return None, None, None
    levels = source_levels(q, source)
    grids = [None] * 3 if kind.compiling() else scale_grids(q, x.shape, axis)
    blocks, tensor, amax = [
        None if level is None else _given_level(kind, q, name, level, grid, x)
        for name, level, grid in zip(LEVELS, levels, grids, strict=True)
    ]
    return blocks, tensor, amax


def _given_level(kind: Any, q: Scaled, name: str, value: Any, grid: Any, x: Any) -> Any:
    """Checks and returns the caller's block scales, outer scales, or largest magnitudes.

    Scales are packed codes or float32 numbers of the shape `grid`.
    """
    level = kind.scales(name, value, x)
    if grid is not None:
        check_level(q, name, kind.name_of(level.dtype) == "uint8", level.shape, grid)
    return kind.contiguous(level)


def scale_grids(q: Scaled, shape: Sequence[int], axis: int) -> list[tuple[int, ...]]:
    """Returns the shapes of the scales of blocks, the outer scales and the largest magnitudes.

    `shape` is the shape of the tensor, in which blocks run along `axis`. Raises ValueError if
    `shape` does not have the axis.
    """
    blocks = q.scales_shape(shape, axis)
    outer = blocks if q.tensor_scale is None else q.tensor_scales_shape(shape, axis)
    return [blocks, outer, outer]


def check_level(
    q: Scaled, name: str, of_codes: bool, got: Sequence[int], grid: tuple[int, ...]
) -> None:
    """Raises ValueError unless the caller's block scales, or outer scales, fit the shape `grid`.

    `grid` is the number of scales along each dimension; `got` is the shape of the caller's scales.
    float32 scales must have the shape `grid`, but a single scale can have any shape. Packed codes
    (`of_codes`) must have the number of bytes that the codes of all scales need.
    """
    count, size = math.prod(grid), math.prod(got)
    if not of_codes:
        if tuple(got) != grid and not count == size == 1:
            raise ValueError(f"{name} must have shape {grid}, got {tuple(got)}")
        return
    f = q.scale if name == "scales" else q.tensor_scale
    assert f is not None
    need = f._held.packed_bytes(count)
    if size != need:
        raise ValueError(f"{name} must have {need} bytes for {count} codes of {f}, got {size}")


def check_level_type(name: str, element: str, got: str) -> None:
    """Raises TypeError unless scales are of float32 or uint8 (codes), and `amax` is of float32."""
    if element == "float32" or (element == "uint8" and name != "amax"):
        return
    codes = "" if name == "amax" else " or of packed codes (uint8)"
    raise TypeError(f"{name} must be of float32 numbers{codes}, got {got}")


def scaled_bytes(q: Scaled, shape: Sequence[int], axis: int) -> list[tuple[str, int]]:
    """Returns the names of the packed arrays of a scaled tensor, each with its number of bytes."""
    blocks, outer, _ = scale_grids(q, shape, axis)
    parts = [("codes", q.element, shape), ("scales", q.scale, blocks)]
    if q.tensor_scale is not None:
        parts.append(("tensor scales", q.tensor_scale, outer))
    return [(name, f._held.packed_bytes(math.prod(sizes))) for name, f, sizes in parts]


def check_scaled_bytes(q: Scaled, shape: tuple[int, ...], axis: int, sizes: Sequence[int]) -> None:
    """Raises ValueError unless codes and scales have the bytes that values of this shape need."""
    for (name, need), size in zip(scaled_bytes(q, shape, axis), sizes, strict=False):
        if size != need:
            raise ValueError(f"{name} must have {need} bytes for {shape} of {q}, got {size}")


# ---- memory ------------------------------------------------------------------------------------


class Region(NamedTuple):
    """The memory of an array's elements. Strides and the item size are in bytes."""

    address: int
    itemsize: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def bounds(self) -> tuple[int, int]:
        """Returns the addresses of the array's first byte and of the byte after its last byte."""
        if 0 in self.shape:
            return self.address, self.address
        ends = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low = self.address + sum(end for end in ends if end < 0)
        high = self.address + sum(end for end in ends if end > 0)
        return low, high + self.itemsize

    def touches(self, other: Region) -> bool:
        """Returns whether the byte ranges of two regions, from first to last byte, overlap."""
        low, high = self.bounds()
        other_low, other_high = other.bounds()
        return low < high and other_low < other_high and low < other_high and other_low < high

    def same_elements(self, other: Region) -> bool:
        """Returns whether both arrays have one shape, and each element the same address in both."""
        return (
            (self.address, self.itemsize, self.shape)
            == (other.address, other.itemsize, other.shape)
        ) and all(
            n == 1 or a == b
            for n, a, b in zip(self.shape, self.strides, other.strides, strict=True)
        )

    def overlaps_itself(self) -> bool:
        """Returns whether two elements of the array may share bytes.

        If dimensions are interleaved, the result may be True although no elements share bytes.
        In all other cases the result is exact.
        """
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
    """Raises ValueError unless `out` can be written while the inputs are read.

    `out` must be an input itself, or must not overlap any input. The elements of `out` must not
    overlap each other.
    """
    if out.overlaps_itself():
        raise ValueError(OVERLAPS_ITSELF)
    for name, region in inputs.items():
        if out.touches(region) and not out.same_elements(region):
            raise ValueError(
                f"out must be {name} itself or lie apart from it; their memory overlaps in part"
            )
