# SPDX-License-Identifier: Apache-2.0
"""NumPy's front end: the functions by which operations handle arrays (`cpd.ops.front_ends`)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from cpd import _core
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Drawing
from cpd.numeric.formats import Format, dtype_name
from cpd.numeric.hadamard import Hadamard
from cpd.numeric.numbers import Number, key_of
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import alternatives
from cpd.ops.arguments import (
    FLOATS,
    MAX_RANK,
    Array,
    Region,
    Scales,
    Shape,
    check_level_type,
    check_out_memory,
    check_random_is_used,
    check_random_range,
    check_type,
    product_shape,
    scaled_bytes,
    shape_of,
)
from cpd.ops.slow import warn_if_slow

if TYPE_CHECKING:
    import numpy.typing as npt

new: Callable[..., Any] = np.empty
new_like: Callable[..., Any] = np.empty_like
"""`new` and `new_like` make the arrays of results, as `np.empty` and `np.empty_like` do. While a
thread explains a call, `cpd.ops.explaining` replaces the two functions."""
sizes: Callable[[Shape], tuple[int, ...]] = functools.partial(shape_of, "shape")
"""Checks the shape of a result and returns it as a tuple."""
compiling: Callable[[], bool] = bool
"""Returns False, as `bool()` does: torch.compile never traces a call with NumPy arrays."""
promote_types = np.promote_types
broadcast = np.broadcast_arrays
name_of = functools.lru_cache(maxsize=256)(dtype_name)  # NumPy takes 2 µs to make a name

# ---- arguments ---------------------------------------------------------------------------------


def array(
    name: str,
    x: Any,
    allowed: tuple[str, ...] = FLOATS,
    like: str = "x",
    first: Array | None = None,
) -> Array:
    """Checks `x` and returns it as an array that C++ can read; copies it if it is not aligned.

    Raises TypeError unless `x` is an array of an allowed dtype in native byte order. `like` is the
    name of the call's first operand: the error asks for an array of the same kind. Only torch's
    front end uses `first`, the first operand.
    """
    y: Array = x if type(x) is ndarray else _of_other_type(name, x, like)
    _check_dtype(name, y.dtype, allowed)
    if y.ndim > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {y.ndim}")
    return y if y.flags.aligned else y.copy()


def _of_other_type(name: str, x: object, like: str) -> Array:
    """Returns a NumPy scalar as an array, and an array of a subclass unchanged.

    Raises TypeError for masked arrays and all other objects.
    """
    if isinstance(x, np.generic):
        return np.asarray(x)
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return x
    expected = "a NumPy array or a torch tensor" if name == like else f"a NumPy array like {like}"
    raise TypeError(f"{name} must be {expected}, got {_describe(x)}")


def to(x: Array, element: Any) -> Array:
    """Returns `x` converted to the dtype `element`."""
    return x.astype(element, copy=False)


def check_codes(name: str, codes: Any, like: Any) -> None:
    """Raises TypeError unless `codes` is a 1-D array of uint8.

    In torch's front end, `codes` must also be on the device of the tensor `like`.
    """
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8 or codes.ndim != 1:
        raise TypeError(f"{name} must be a 1-D uint8 array, got {_describe(codes)}")


def contiguous(x: Array) -> Array:
    """Returns `x` as a contiguous aligned array in row-major order; copies it if needed."""
    flags = x.flags
    is_ready = flags.c_contiguous and flags.aligned
    return x if is_ready else np.require(x, requirements=("C", "A"))


def scales(name: str, value: Any, x: Array) -> Array:
    """Checks and returns the caller's block or outer scales: packed codes or float32 numbers."""
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value, np.float32)
        except (TypeError, ValueError):
            check_level_type(name, "", _describe(value))
    check_level_type(name, name_of(value.dtype), _describe(value))
    _check_dtype(name, value.dtype, ("float32", "uint8"))
    level: Array = value
    return level


def flat(x: Array) -> Array:
    """Returns the elements in row-major order as a 1-D array, a view if possible."""
    if x.flags.c_contiguous or not _core.explains():
        return x.reshape(-1)
    y: Array = new(x.size, x.dtype)
    return y


def check_out(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], x: Array, inputs: dict[str, Any]
) -> None:
    """Raises TypeError or ValueError unless `out` can take the result.

    `out` must have the result's shape and dtype, be writable, and be an input or not overlap any
    input. Inputs are arrays or None. In torch's front end, `out` must be on the device of `x`.
    """
    if not isinstance(out, np.ndarray) or isinstance(out, np.ma.MaskedArray):
        raise TypeError(f"out must be a NumPy array like x, got {_describe(out)}")
    if out.dtype != dtype:
        raise TypeError(f"out must be of type {dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"out must have shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out must be writable, it is read-only")
    if not out.flags.aligned:
        raise ValueError("out must be aligned to its element size")
    arrays = {name: y for name, y in inputs.items() if y is not None}
    if not out.flags.forc or any(
        y is not out and np.may_share_memory(out, y) for y in arrays.values()
    ):
        check_out_memory(_region(out), {name: _region(y) for name, y in arrays.items()})


def integers(
    random: Any,
    x: Array,
    shape: tuple[int, ...],
    wanted: str,
    options: Drawing | Accumulator,
    like: str = "x",
) -> Array:
    """Checks the caller's random integers and returns them as uint32.

    `wanted` describes the required shape in errors. In torch's front end, the integers must be on
    the device of the operand `x`. `like` is the name of `x` in errors.
    """
    check_random_is_used(options.rounding)
    if not isinstance(random, np.ndarray) or random.dtype.kind not in "iu":
        raise TypeError(f"random must be an array of integers, got {_describe(random)}")
    if random.shape != shape:
        raise ValueError(f"random must have {wanted}, {shape}, got {random.shape}")
    if random.size:
        check_random_range(int(random.min()), int(random.max()), options.random_bits)
    return np.asarray(random, dtype=np.uint32, order="C")


@functools.lru_cache(maxsize=256)
def _check_dtype(name: str, dtype: np.dtype[Any], allowed: tuple[str, ...]) -> None:
    check_type(name, name_of(dtype), allowed, dtype)
    if not dtype.isnative:
        raise TypeError(f"{name} must be in native byte order, got {dtype.str}")


def element(dtype: Any, allowed: tuple[str, ...], out: Any = None) -> np.dtype[Any]:
    """Checks and returns the dtype of a result: `dtype`, or else out's dtype, or else float32."""
    if dtype is None:
        dtype = out.dtype if isinstance(out, np.ndarray) else np.float32
    try:
        resolved: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        names = alternatives(allowed)
        raise TypeError(f"dtype must be NumPy's {names}, got {dtype!r}") from None
    _check_dtype("dtype", resolved, allowed)
    return resolved


def _region(x: Array) -> Region:
    return Region(x.__array_interface__["data"][0], x.itemsize, x.shape, x.strides)


def _describe(x: object) -> str:
    if isinstance(x, np.ndarray):
        return f"{type(x).__name__} of {x.dtype} with shape {x.shape}"
    return type(x).__name__


# ---- calls of the library ------------------------------------------------------------------------

_ROUNDED = {name: getattr(_core, name) for name in ("cast", "add", "mul", "fma", "div", "sqrt")}


def rounded(
    operation: str,
    operands: Sequence[Array],
    f: Format,
    options: Drawing,
    integers: Array | None,
    out: Array | None,
) -> Array:
    """Returns the results of an elementwise operation, each rounded once."""
    y = out
    if y is None:
        x = operands[0]
        y = new_like(x, subok=False) if operation == "cast" else new(x.shape, x.dtype)
    key = options.key or options.read_key()
    _ROUNDED[operation](*operands, f._held, options.cast._options, y, key, integers)
    return y


def flags(
    operation: str,
    operands: Sequence[Array],
    f: Format,
    options: Drawing,
    integers: Array | None,
    tininess: str,
) -> npt.NDArray[np.uint8]:
    """Returns the IEEE 754 exception flags that each result of an elementwise operation raises."""
    raised: npt.NDArray[np.uint8] = new(operands[0].shape, np.uint8)
    rule = f._held, options.cast._options, tininess
    key = options.key or options.read_key()
    _core.flags(operation, operands, *rule, raised, key, integers)
    return raised


def encode(x: Array, f: Format, options: Drawing, integers: Array | None) -> npt.NDArray[np.uint8]:
    """Rounds the elements of x to the format `f` and returns their packed codes."""
    packed: npt.NDArray[np.uint8] = new(f._held.packed_bytes(x.size), np.uint8)
    key = options.key or options.read_key()
    _core.encode(x, f._held, options.cast._options, packed, key, integers)
    return packed


def decode(codes: Array, f: Format, shape: tuple[int, ...], dtype: Any, out: Array | None) -> Array:
    """Returns the values of packed codes of a format without scales."""
    y: Array = new(shape, dtype) if out is None else out
    _core.decode(codes, f._held, y)
    return y


def cast_scaled(
    x: Array,
    q: Scaled,
    options: Drawing,
    axis: int,
    levels: tuple[Any, Any, Any],
    integers: Array | None,
    dtype: Any,
    out: Array | None,
) -> Array:
    """Rounds the elements of x to a scaled format and returns their values."""
    y: Array = new_like(x, dtype, subok=False) if out is None else out
    rule = q._held, axis, options.cast._options
    _core.cast_scaled(x, *rule, y, levels, options.key or options.read_key(), integers)
    return y


def encode_scaled(
    x: Array,
    q: Scaled,
    options: Drawing,
    axis: int,
    levels: tuple[Any, Any, Any],
    integers: Array | None,
) -> tuple[Array, Scales]:
    """Rounds x to a scaled format. Returns the packed codes of elements and scales."""
    packed, blocks, *more = (new(n, np.uint8) for _, n in scaled_bytes(q, x.shape, axis))
    tensor = more[0] if more else None
    rule = q._held, axis, options.cast._options
    key = options.key or options.read_key()
    _core.encode_scaled(x, *rule, packed, blocks, tensor, levels, key, integers)
    return packed, blocks if tensor is None else (blocks, tensor)


def decode_scaled(
    codes: Array,
    q: Scaled,
    axis: int,
    blocks: Array,
    tensor: Array | None,
    shape: tuple[int, ...],
    dtype: Any,
    out: Array | None,
) -> Array:
    """Returns the values of scaled formats from the packed codes of elements and scales."""
    y: Array = new(shape, dtype) if out is None else out
    _core.decode_scaled(codes, q._held, axis, blocks, tensor, y)
    return y


def sum(
    x: Array,
    axis: int,
    acc: Accumulator,
    seed: Number,
    stream: Number,
    integers: Array | None,
    tininess: str | None,
) -> Any:
    """Returns ordered sums along an axis.

    Unless `tininess` is None, returns a pair: the sums, and the exception flags of each sum.
    """
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    y, key = new(shape, x.dtype), key_of(seed, stream)
    if tininess is None:
        _core.sum(x, axis, acc._held, y, key, integers)
        return y
    raised = new(shape, np.uint8)
    _core.sum_flagged(x, axis, acc._held, tininess, y, raised, key, integers)
    return y, raised


def gemm(
    a: Array,
    b: Array,
    c: Array | None,
    shape: tuple[int, ...],
    acc: Accumulator,
    seed: Number,
    stream: Number,
    dtype: Any,
    blas: bool,
    integers: Array | None,
    tininess: str | None,
) -> Any:
    """Returns the matrix product.

    Unless `tininess` is None, returns a pair: the product, and the exception flags of each element.
    """
    key = key_of(seed, stream)
    warn_if_slow(acc, a, b)
    y = new(shape, dtype)
    if tininess is not None:
        raised = new(shape, np.uint8)
        _core.gemm_flagged(a, b, acc._held, tininess, y, raised, c, key, integers)
        return y, raised
    if blas:
        _core.gemm_by_blas(a, b, acc._held, y, c)
    else:
        _core.gemm(a, b, acc._held, y, c, key, integers)
    return y


def gemm_scaled(
    a: Array,
    a_scales: Array | None,
    a_block: int,
    a_lines: int,
    a_factor: Array | None,
    b: Array,
    b_scales: Array | None,
    b_block: int,
    b_lines: int,
    b_factor: Array | None,
    c: Array | None,
    acc: Accumulator,
    epilogue: bool,
    seed: Number,
    stream: Number,
    random: Any,
) -> Array:
    """Returns the product of two scaled matrices, given by the fields of `products.Operand`."""
    y: Array = new(product_shape(a.shape, b.shape), np.float32)
    of_a = a_scales, a_block, a_lines, a_factor
    of_b = b_scales, b_block, b_lines, b_factor
    integers = None if random is None else np.ascontiguousarray(random, np.uint32)
    key = key_of(seed, stream)
    _core.gemm_scaled(a, of_a, b, of_b, acc._held, epilogue, y, c, key, integers)
    return y


def hadamard(x: Array, transform: Hadamard, axis: int, inverse: bool, out: Array | None) -> Array:
    """Returns the Hadamard transform, or its inverse, of groups of values along an axis."""
    y: Array = new_like(x, subok=False) if out is None else out
    _core.hadamard(x, transform._held, axis, inverse, y)
    return y


def random_integers(shape: Shape, options: Drawing) -> npt.NDArray[np.uint32]:
    """Returns the random integers that stochastic rounding uses for a result of this shape."""
    y: npt.NDArray[np.uint32] = new(shape_of("shape", shape), np.uint32)
    _core.random_integers(options.cast._options, 0, y, options.key or options.read_key())
    return y
