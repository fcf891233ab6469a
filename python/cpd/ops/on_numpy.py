# SPDX-License-Identifier: Apache-2.0
"""The operations on NumPy arrays. `cpd.ops` documents them."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Drawing
from cpd.numeric.formats import Format, dtype_name
from cpd.numeric.hadamard import Hadamard
from cpd.numeric.numbers import Number, key_of
from cpd.numeric.scaled import Scaled
from cpd.ops.arguments import (
    FLOATS,
    LEVELS,
    MAX_RANK,
    NARROW_FLOATS,
    Array,
    Region,
    Scales,
    ScaleSource,
    Shape,
    check_addend,
    check_cast,
    check_level,
    check_level_type,
    check_out_memory,
    check_random_is_used,
    check_random_range,
    check_result,
    check_scaled_bytes,
    check_storage,
    dimension,
    product_shape,
    scale_grids,
    scale_levels,
    scaled_bytes,
    shape_of,
    source_levels,
    transform_axis,
)
from cpd.ops.slow import warn_if_slow

new: Callable[..., Any] = np.empty
new_like: Callable[..., Any] = np.empty_like
"""Make results. While a call is explained, `cpd.ops.explaining` has others in their place."""


def cast(x: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Rounds each element, as `cpd.cast` says."""
    native = options.native()
    x = _array("x", x)
    check_cast(_name(x.dtype), f)
    integers = None if random is None else _random(random, x.shape, "x's shape", options)
    y: Array = new_like(x, subok=False) if out is None else out
    if out is not None:
        _check_out(out, x.shape, x.dtype, x=x, random=integers)
    _core.cast(x, f._held, native, y, options.key or options.read_key(), integers)
    return y


def widened(x: Any, dtype: Any) -> Array:
    """`x` in a wider type."""
    x = _array("x", x)
    y: Array = x.astype(_wider_type(x, dtype, FLOATS), copy=False)
    return y


def _wider_type(x: Array, dtype: Any, allowed: tuple[str, ...]) -> Any:
    """The type `dtype`. Raises ValueError where it does not hold every value of `x`."""
    element = _element(dtype, allowed)
    if _name(x.dtype) != _name(element) and np.promote_types(x.dtype, element) != element:
        raise ValueError(f"dtype must hold every value of x, which is {x.dtype}, got {element}")
    return element


def encode(x: Any, f: Format, options: Drawing, random: Any) -> npt.NDArray[np.uint8]:
    """Packs the codes of the rounded elements."""
    native = options.native()
    x = _array("x", x)
    integers = None if random is None else _random(random, x.shape, "x's shape", options)
    packed: npt.NDArray[np.uint8] = new(f._held.packed_bytes(x.size), np.uint8)
    _core.encode(x, f._held, native, packed, options.key or options.read_key(), integers)
    return packed


def decode(codes: Any, f: Format, shape: Shape, dtype: Any, out: Any) -> Array:
    """Returns the values of packed codes."""
    sizes = shape_of("shape", shape)
    if not isinstance(codes, np.ndarray) or codes.dtype != np.uint8 or codes.ndim != 1:
        raise TypeError(f"codes must be a 1-D uint8 array, got {_describe(codes)}")
    need = f._held.packed_bytes(math.prod(sizes))
    if codes.size != need:
        raise ValueError(f"codes must have {need} bytes for {sizes} of {f}, got {codes.size}")
    default = out.dtype if isinstance(out, np.ndarray) else np.float32
    element = _element(default if dtype is None else dtype, FLOATS)
    check_storage(_name(element), f.name)
    codes = np.ascontiguousarray(codes)
    y: Array = new(sizes, element) if out is None else out
    if out is not None:
        _check_out(out, sizes, element, codes=codes)
    _core.decode(codes, f._held, y)
    return y


def cast_scaled(
    x: Any,
    q: Scaled,
    options: Drawing,
    out: Any,
    axis: int,
    source: ScaleSource,
    random: Any,
    dtype: Any,
) -> Array:
    """Rounds to a scaled format."""
    native = options.native()
    x = _array("x", x, NARROW_FLOATS)
    element = x.dtype if dtype is None else _wider_type(x, dtype, NARROW_FLOATS)
    check_cast(_name(element), q)
    levels = _scale_levels(q, x, axis, source)
    integers = None if random is None else _random(random, x.shape, "x's shape", options)
    y: Array = new_like(x, element, subok=False) if out is None else out
    if out is not None:
        inputs = dict(zip(LEVELS, levels, strict=True))
        _check_out(out, x.shape, element, x=x, random=integers, **inputs)
    _core.cast_scaled(
        x, q._held, axis, native, y, levels, options.key or options.read_key(), integers
    )
    return y


def encode_scaled(
    x: Any, q: Scaled, options: Drawing, axis: int, source: ScaleSource, random: Any
) -> tuple[Array, Scales]:
    """Packs the codes of elements and scales of a scaled format."""
    native = options.native()
    x = _array("x", x, NARROW_FLOATS)
    levels = _scale_levels(q, x, axis, source)
    integers = None if random is None else _random(random, x.shape, "x's shape", options)
    packed, blocks, *more = (new(n, np.uint8) for _, n in scaled_bytes(q, x.shape, axis))
    tensor = more[0] if more else None
    made = packed, blocks, tensor
    _core.encode_scaled(
        x, q._held, axis, native, *made, levels, options.key or options.read_key(), integers
    )
    return packed, blocks if tensor is None else (blocks, tensor)


def decode_scaled(
    codes: Any, q: Scaled, shape: Shape, dtype: Any, out: Any, axis: int, scales: Any
) -> Array:
    """Returns the values of a scaled format's codes."""
    sizes = shape_of("shape", shape)
    parts = dict(zip(("codes", *LEVELS), (codes, *scale_levels(q, scales)), strict=False))
    if q.tensor_scale is None:
        del parts["tensor scales"]
    for name, each in parts.items():
        if not isinstance(each, np.ndarray) or each.dtype != np.uint8 or each.ndim != 1:
            raise TypeError(f"{name} must be a 1-D uint8 array, got {_describe(each)}")
    check_scaled_bytes(q, sizes, axis, [each.size for each in parts.values()])
    default = out.dtype if isinstance(out, np.ndarray) else np.float32
    element = _element(default if dtype is None else dtype, NARROW_FLOATS)
    parts = {name: np.ascontiguousarray(each) for name, each in parts.items()}
    y: Array = new(sizes, element) if out is None else out
    if out is not None:
        _check_out(out, sizes, element, **parts)
    packed, blocks, *tensor = parts.values()
    _core.decode_scaled(packed, q._held, axis, blocks, tensor[0] if tensor else None, y)
    return y


def _scale_levels(
    q: Scaled, x: Array, axis: int, source: ScaleSource
) -> tuple[Array | None, Array | None, Array | None]:
    """The caller's scales and magnitudes, as C++ takes them."""
    levels = source_levels(q, source)
    if all(level is None for level in levels):
        return None, None, None
    grids = scale_grids(q, x.shape, axis)
    blocks, tensor, amax = map(_given_level, (q,) * 3, LEVELS, levels, grids)
    return blocks, tensor, amax


def _given_level(q: Scaled, name: str, value: Any, grid: tuple[int, ...]) -> Array | None:
    """One level of the caller's: packed codes, or float32 numbers of the grid."""
    if value is None:
        return None
    if not isinstance(value, np.ndarray):
        value = np.asarray(value, np.float32)
    check_level_type(name, _name(value.dtype), _describe(value))
    _check_dtype(name, value.dtype, ("float32", "uint8"))
    check_level(q, name, value.dtype == np.uint8, value.shape, grid)
    taken: Array = np.require(value, requirements=("C", "A"))
    return taken


def add(x: Any, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Returns x + y, rounded once."""
    return _arithmetic(_core.add, {"x": x, "y": y}, f, options, out, random)


def mul(x: Any, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Returns x * y, rounded once."""
    return _arithmetic(_core.mul, {"x": x, "y": y}, f, options, out, random)


def fma(x: Any, y: Any, z: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Returns x * y + z, rounded once."""
    return _arithmetic(_core.fma, {"x": x, "y": y, "z": z}, f, options, out, random)


def div(x: Any, y: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Returns x / y, rounded once."""
    return _arithmetic(_core.div, {"x": x, "y": y}, f, options, out, random)


def sqrt(x: Any, f: Format, options: Drawing, out: Any, random: Any) -> Array:
    """Returns the square root, rounded once."""
    return _arithmetic(_core.sqrt, {"x": x}, f, options, out, random)


def flags(
    operation: str,
    operands: Sequence[Any],
    f: Format,
    options: Drawing,
    random: Any,
    tininess: str,
) -> npt.NDArray[np.uint8]:
    """Returns the flags that the results of an operation raise."""
    native = options.native()
    views, shape = _together(dict(zip("xyz", operands, strict=False)))
    integers = _random(random, shape, "the result's shape", options)
    raised: npt.NDArray[np.uint8] = new(shape, np.uint8)
    operands = list(views.values())
    rule = f._held, native, tininess
    _core.flags(operation, operands, *rule, raised, options.key or options.read_key(), integers)
    return raised


def sum(
    x: Any,
    acc: Accumulator,
    axis: Any,
    seed: Number,
    stream: Number,
    random: Any,
    tininess: str | None = None,
) -> Any:
    """The ordered sum; with `tininess` a pair of it and the flags of its roundings."""
    x = _array("x", x)
    if axis is None:
        x, axis = _flat(x), 0
    axis = dimension(axis, x.ndim)
    check_storage(_name(x.dtype), acc.format.name)
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    integers = None
    if random is not None:
        integers = _draws(random, shape, acc, acc.sum_integers(x.shape[axis]))
    native, key = acc._held, key_of(seed, stream)
    y = new(shape, x.dtype)
    if tininess is None:
        _core.sum(x, axis, native, y, key, integers)
        return y
    raised = new(shape, np.uint8)
    _core.sum_flagged(x, axis, native, tininess, y, raised, key, integers)
    return y, raised


def gemm(
    a: Any,
    b: Any,
    acc: Accumulator,
    c: Any,
    seed: Number,
    stream: Number,
    dtype: Any,
    blas: bool,
    random: Any,
    tininess: str | None = None,
) -> Any:
    """The matrix product; with `tininess` a pair of it and the flags of its roundings."""
    a = _array("a", a, NARROW_FLOATS, "a")
    b = _array("b", b, NARROW_FLOATS, "a")
    c = None if c is None else _array("c", c, NARROW_FLOATS, "a")
    shape = product_shape(a.shape, b.shape)
    if c is not None:
        check_addend(c.shape, shape)
    element = a.dtype if dtype is None else _element(dtype, NARROW_FLOATS)
    check_result(_name(element), acc.format.name)
    integers = None
    if random is not None:
        integers = _draws(random, shape, acc, acc.gemm_integers(a.shape[-1]))
    native, key = acc._held, key_of(seed, stream)
    warn_if_slow(acc, a, b)
    y = new(shape, element)
    if tininess is not None:
        raised = new(shape, np.uint8)
        _core.gemm_flagged(a, b, native, tininess, y, raised, c, key, integers)
        return y, raised
    if blas:
        _core.gemm_by_blas(a, b, native, y, c)
    else:
        _core.gemm(a, b, native, y, c, key, integers)
    return y


def hadamard(x: Any, transform: Hadamard, axis: Any, inverse: bool, out: Any) -> Array:
    """Transforms groups of values along an axis."""
    x = _array("x", x, NARROW_FLOATS)
    along = transform_axis(axis, x.shape, transform.size)
    if transform.bf16:
        check_storage(_name(x.dtype), "bf16")
    y: Array = new_like(x, subok=False) if out is None else out
    if out is not None:
        _check_out(out, x.shape, x.dtype, x=x)
    _core.hadamard(x, transform._held, along, inverse, y)
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
    acc: Accumulator,
    epilogue: bool,
    c: Any,
    seed: Number,
    stream: Number,
    random: Any,
) -> Array:
    """The matrix product of scaled operands, with the fields of two `products.Operand`."""
    c = None if c is None else _array("c", c, NARROW_FLOATS, "a")
    shape = product_shape(a.shape, b.shape)
    if c is not None:
        check_addend(c.shape, shape)
    y: Array = new(shape, np.float32)
    of_a = a_scales, a_block, a_lines, a_factor
    of_b = b_scales, b_block, b_lines, b_factor
    integers = None if random is None else np.ascontiguousarray(random, np.uint32)
    native, key = acc._held, key_of(seed, stream)
    _core.gemm_scaled(a, of_a, b, of_b, native, epilogue, y, c, key, integers)
    return y


def random_integers(shape: Shape, options: Drawing) -> npt.NDArray[np.uint32]:
    """Returns the random integers of stochastic rounding."""
    y: npt.NDArray[np.uint32] = new(shape_of("shape", shape), np.uint32)
    _core.random_integers(options.native(), 0, y, options.key or options.read_key())
    return y


def _arithmetic(
    run: Callable[..., None],
    operands: dict[str, Any],
    f: Format,
    options: Drawing,
    out: Any,
    random: Any,
) -> Array:
    native = options.native()
    views, shape = _together(operands)
    element = views["x"].dtype
    check_storage(_name(element), f.name)
    integers = _random(random, shape, "the result's shape", options)
    y: Array = new(shape, element) if out is None else out
    if out is not None:
        _check_out(out, shape, element, **views, random=integers)
    run(*views.values(), f._held, native, y, options.key or options.read_key(), integers)
    return y


def _together(operands: dict[str, Any]) -> tuple[dict[str, Array], tuple[int, ...]]:
    """Operands as arrays of one type and one shape, and the shape."""
    arrays = {name: _array(name, x) for name, x in operands.items()}
    first = arrays["x"]
    shape, is_common = first.shape, True
    for name, x in arrays.items():
        if x.dtype != first.dtype:
            raise TypeError(f"{name} must have x's type, {first.dtype}, got {x.dtype}")
        is_common = is_common and x.shape == shape
    if is_common:
        return arrays, shape
    shape = _common_shape(arrays)
    views = {n: x if x.shape == shape else np.broadcast_to(x, shape) for n, x in arrays.items()}
    return views, shape


def _common_shape(arrays: dict[str, Array]) -> tuple[int, ...]:
    shapes = [x.shape for x in arrays.values()]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        names = ", ".join(arrays)
        raise ValueError(f"{names} must broadcast together, got shapes {shapes}") from None


# ---- arguments ---------------------------------------------------------------------------------


def _array(name: str, x: Any, allowed: tuple[str, ...] = FLOATS, like: str = "x") -> Array:
    """Returns `x` as an array that C++ can read: of an allowed type, native, aligned.

    It is copied if it is not. `like`: the first operand's name.
    """
    y: Array = x if type(x) is np.ndarray else _of_other_type(name, x, like)
    _check_dtype(name, y.dtype, allowed)
    if y.ndim > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {y.ndim}")
    return y if y.flags.aligned else y.copy()


def _of_other_type(name: str, x: object, like: str) -> Array:
    """Returns as an array a NumPy scalar, or an array of a subclass without a mask.

    Raises TypeError for other objects.
    """
    if isinstance(x, np.generic):
        return np.asarray(x)
    if isinstance(x, np.ndarray) and not isinstance(x, np.ma.MaskedArray):
        return x
    wanted = "a NumPy array or a torch tensor" if name == like else f"a NumPy array like {like}"
    raise TypeError(f"{name} must be {wanted}, got {_describe(x)}")


def _flat(x: Array) -> Array:
    """The elements in row-major order; a copy if they are not contiguous."""
    if x.flags.c_contiguous or not _core.explains():
        return x.reshape(-1)
    flat: Array = new(x.size, x.dtype)
    return flat


def _check_out(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], **inputs: Array | None
) -> None:
    """Raises unless `out` may be written while the inputs are read."""
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
    arrays = {name: x for name, x in inputs.items() if x is not None}
    if not out.flags.forc or any(
        x is not out and np.may_share_memory(out, x) for x in arrays.values()
    ):
        check_out_memory(_region(out), {name: _region(x) for name, x in arrays.items()})


def _draws(random: Any, shape: tuple[int, ...], acc: Accumulator, count: int) -> Array | None:
    """The random integers of an ordered sum: `count` for each element of the result."""
    return _random(random, (*shape, count), f"the result's shape and {count} draws", acc)


def _random(
    random: Any, shape: tuple[int, ...], wanted: str, options: Drawing | Accumulator
) -> Array | None:
    """The random integers as uint32, checked; `wanted` describes their shape in error texts."""
    if random is None:
        return None
    check_random_is_used(options.rounding)
    if not isinstance(random, np.ndarray) or random.dtype.kind not in "iu":
        raise TypeError(f"random must be an array of integers, got {_describe(random)}")
    if random.shape != shape:
        raise ValueError(f"random must have {wanted}, {shape}, got {random.shape}")
    if random.size:
        check_random_range(int(random.min()), int(random.max()), options.random_bits)
    return np.asarray(random, dtype=np.uint32, order="C")


_name = functools.lru_cache(maxsize=256)(dtype_name)  # NumPy takes 2 µs to make a name


@functools.lru_cache(maxsize=256)
def _check_dtype(name: str, dtype: np.dtype[Any], allowed: tuple[str, ...]) -> None:
    if _name(dtype) not in allowed:
        raise TypeError(f"{name} must be of type {', '.join(allowed)}, got {dtype}")
    if not dtype.isnative:
        raise TypeError(f"{name} must be in native byte order, got {dtype.str}")


def _element(dtype: Any, allowed: tuple[str, ...]) -> np.dtype[Any]:
    """The type of a result, from anything that NumPy takes as a type."""
    try:
        element: np.dtype[Any] = np.dtype(dtype)
    except TypeError:
        names = ", ".join(allowed)
        raise TypeError(f"dtype must be one of NumPy's {names}, got {dtype!r}") from None
    _check_dtype("dtype", element, allowed)
    return element


def _region(x: Array) -> Region:
    return Region(x.__array_interface__["data"][0], x.itemsize, x.shape, x.strides)


def _describe(x: object) -> str:
    if isinstance(x, np.ndarray):
        return f"{type(x).__name__} of {x.dtype} with shape {x.shape}"
    return type(x).__name__
