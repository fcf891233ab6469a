# SPDX-License-Identifier: Apache-2.0
"""Torch's front end: the functions by which operations handle tensors (`cpd.ops.front_ends`).

`cpd.ops.on_numpy` documents the functions. Python checks as much as possible before it calls an
operator, because errors of operators would lose their type. The C++ library checks values that are
unknown while torch compiles.
"""

# Relaxes mypy's checks: many functions of torch have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpd._torch.arguments import NAMES, cast_arguments, has_no_memory, sum_numbers
from cpd._torch.arguments import name_of as name_of
from cpd._torch.derivatives import OUT_AND_AUTOGRAD, check_no_derivative, run, write
from cpd._torch.explain import explain as explain
from cpd._torch.library import ops
from cpd._torch.private import FakeTensor, unwrapped
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast, Drawing
from cpd.numeric.formats import Format
from cpd.numeric.hadamard import Hadamard
from cpd.numeric.numbers import Number
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import alternatives
from cpd.ops.arguments import (
    FLOATS,
    MAX_RANK,
    NARROW_FLOATS,
    OVERLAPS_ITSELF,
    Region,
    Scales,
    Shape,
    check_level_type,
    check_out_memory,
    check_random_is_used,
    check_random_range,
    check_type,
    check_whole,
    shape_of,
)
from cpd.ops.slow import warn_if_slow

Levels: TypeAlias = tuple[Tensor | None, Tensor | None, Tensor | None]

compiling = torch.compiler.is_compiling
promote_types = torch.promote_types
broadcast = torch.broadcast_tensors


def array(
    name: str,
    x: Any,
    allowed: tuple[str, ...] = FLOATS,
    like: str = "x",
    first: Tensor | None = None,
) -> Tensor:
    if not isinstance(x, Tensor):
        expected = "a torch tensor" if name == like else f"a torch tensor like {like}"
        raise TypeError(f"{name} must be {expected}, got {type(x).__name__}")
    if NAMES[x.dtype] not in allowed:
        check_type(name, NAMES[x.dtype], allowed, x.dtype)
    check_place(name, x)
    if first is not None and x is not first and x.device != first.device:
        raise ValueError(f"{name} must be on {like}'s device, {first.device}, got {x.device}")
    return x


def check_float(name: str, x: Any, like: str) -> None:
    """Raises TypeError or ValueError unless `x` is a tensor of a dtype that products support.

    `like` is the name of the first operand, for errors.
    """
    array(name, x, NARROW_FLOATS, like)


def check_place(name: str, x: Tensor) -> None:
    """Raises an error unless `x` is dense and on the CPU, a CUDA device or `meta`."""
    check_whole(name, x)
    if x.layout is not torch.strided:
        raise TypeError(f"{name} must be a dense (strided) tensor, got {x.layout}")
    if not (x.is_cpu or x.is_cuda or x.is_meta):
        raise ValueError(f"{name} must be on the CPU or a CUDA device, got {x.device}")
    if x.dim() > MAX_RANK:
        raise ValueError(f"{name} must have at most {MAX_RANK} dimensions, got {x.dim()}")


def to(x: Tensor, element: torch.dtype) -> Tensor:
    return x.to(element)


def sizes(shape: Any) -> tuple[Any, ...]:
    if not compiling():
        return shape_of("shape", shape)
    return tuple(shape) if isinstance(shape, (tuple, list, torch.Size)) else (shape,)


def check_codes(name: str, codes: Any, like: Any) -> None:
    is_bytes = isinstance(codes, Tensor) and codes.dtype == torch.uint8
    if not is_bytes or codes.is_nested or codes.dim() != 1:
        raise TypeError(f"{name} must be a 1-D uint8 tensor, got {_describe(codes)}")
    check_place(name, codes)
    if codes.device != like.device:
        raise ValueError(f"{name} must be on codes' device, {like.device}, got {codes.device}")


def contiguous(x: Tensor) -> Tensor:
    return x.contiguous()


def scales(name: str, value: Any, x: Tensor) -> Tensor:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = torch.full((), value, dtype=torch.float32, device=x.device)
    element = name_of(value.dtype) if isinstance(value, Tensor) else ""
    check_level_type(name, element, _describe(value))
    if value.device != x.device:
        raise ValueError(f"{name} must be on x's device, {x.device}, got {value.device}")
    return value.detach()


def flat(x: Tensor) -> Tensor:
    return x.reshape(-1)


def check_out(
    out: Any, shape: Any, dtype: torch.dtype, x: Tensor, inputs: dict[str, Tensor | None]
) -> None:
    if not isinstance(out, Tensor):
        raise TypeError(f"out must be a torch tensor like x, got {type(out).__name__}")
    if out.dtype != dtype:
        raise TypeError(f"out must be of type {dtype}, got {out.dtype}")
    check_whole("out", out)
    if out.layout is not torch.strided or out.shape != shape or out.device != x.device:
        check_place("out", out)
        if out.shape != shape:
            raise ValueError(f"out must have shape {tuple(shape)}, got {tuple(out.shape)}")
        raise ValueError(f"out must be on x's device, {x.device}, got {out.device}")
    tensors = [out]
    tensors += [t for t in inputs.values() if t is not None]
    if compiling():
        if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
            raise ValueError(OUT_AND_AUTOGRAD)
        repeats = (n > 1 and step == 0 for n, step in zip(out.shape, out.stride(), strict=True))
        if 0 not in out.shape and any(repeats):
            raise ValueError(OVERLAPS_ITSELF)
        return
    check_no_derivative(*tensors)
    if out.is_meta or FakeTensor in map(type, tensors):
        return
    if all(_are_disjoint(out, t) for t in tensors[1:]):
        return
    regions = {name: _region(t) for name, t in inputs.items() if t is not None}
    check_out_memory(_region(out), regions)


def _are_disjoint(x: Tensor, y: Tensor) -> bool:
    """Returns True if two tensors are contiguous and share no byte.

    This check is quick. If it returns False, the caller makes an exact check.
    """
    if not (x.is_contiguous() and y.is_contiguous()):
        return False
    of_x, of_y = x.data_ptr(), y.data_ptr()
    return of_x + x.nbytes <= of_y or of_y + y.nbytes <= of_x


def _region(x: Tensor) -> Region:
    size = x.element_size()
    return Region(x.data_ptr(), size, tuple(x.shape), tuple(s * size for s in x.stride()))


def integers(
    random: Any,
    x: Tensor,
    shape: Sequence[int] | None,
    wanted: str,
    options: Drawing | Accumulator | Cast,
    like: str = "x",
) -> Tensor:
    """Checks random integers and returns them as int32, which holds integers below 2^24.

    `shape` None: the C++ library checks the shape.
    """
    check_random_is_used(options.rounding)
    if not isinstance(random, Tensor) or random.dtype not in _INTEGERS:
        raise TypeError(f"random must be a tensor of integers, got {_describe(random)}")
    check_whole("random", random)
    if shape is not None and tuple(random.shape) != tuple(shape):
        raise ValueError(f"random must have {wanted}, {tuple(shape)}, got {tuple(random.shape)}")
    if random.device != x.device:
        raise ValueError(f"random must be on {like}'s device, {x.device}, got {random.device}")
    at_once = not (compiling() or _checked_by_kernels(random))
    if at_once and random.numel() and not has_no_memory(random):
        low, high = unwrapped(random).to(torch.int64).aminmax()
        check_random_range(int(low), int(high), options.random_bits)
    return random.to(torch.int32)


def _checked_by_kernels(random: Tensor) -> bool:
    """Returns True if a kernel checks the random integers, and `cpd.check_cuda` raises the error.

    This is so on a GPU, because the host would have to wait to read the integers. The host reads
    64-bit integers anyway: the conversion to int32 would hide values out of range.
    """
    is_kept = random.element_size() <= 4
    return random.device.type == "cuda" and is_kept and os.environ.get("CPD_CHECK") != "sync"


_INTEGERS = frozenset(
    getattr(torch, f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)
)


def element(dtype: Any, allowed: tuple[str, ...], out: Any = None) -> torch.dtype:
    if dtype is None:
        dtype = out.dtype if isinstance(out, Tensor) else torch.float32
    if not isinstance(dtype, torch.dtype) or name_of(dtype) not in allowed:
        raise TypeError(f"dtype must be torch's {alternatives(allowed)}, got {dtype}")
    return dtype


def result_type(a: Tensor, dtype: Any) -> torch.dtype:
    """Returns the dtype of a matrix product: `dtype`, or a's dtype if `dtype` is None."""
    return a.dtype if dtype is None else element(dtype, NARROW_FLOATS)


def _describe(x: object) -> str:
    if isinstance(x, Tensor) and x.is_nested:
        return f"nested tensor of {x.dtype}"
    if isinstance(x, Tensor):
        return f"tensor of {x.dtype} with shape {tuple(x.shape)}"
    return type(x).__name__


# ---- calls of the operators ----------------------------------------------------------------------


def rounded(
    operation: str,
    operands: Sequence[Tensor],
    f: Format,
    options: Drawing,
    integers: Tensor | None,
    out: Tensor | None,
) -> Tensor:
    rounding = cast_arguments(options, operands[0])
    if out is None:
        return run(operation, *operands, *rounding, integers)
    write(operation, *operands, *rounding, integers, out=out)
    return out


def flags(
    operation: str,
    operands: Sequence[Tensor],
    f: Format,
    options: Drawing,
    integers: Tensor | None,
    tininess: str,
) -> Tensor:
    padded = (*operands, None, None)[:3]
    return ops.flags(*padded, operation, *cast_arguments(options, operands[0]), integers, tininess)


def encode(x: Tensor, f: Format, options: Drawing, integers: Tensor | None) -> Tensor:
    return ops.encode(x, *cast_arguments(options, x), integers)


def decode(
    codes: Tensor, f: Format, shape: Shape, dtype: torch.dtype, out: Tensor | None
) -> Tensor:
    if out is None:
        return ops.decode(codes, f.name, shape, dtype)
    write("decode", codes, f.name, out=out)
    return out


def cast_scaled(
    x: Tensor,
    q: Scaled,
    options: Drawing,
    axis: int,
    levels: Levels,
    integers: Tensor | None,
    dtype: torch.dtype,
    out: Tensor | None,
) -> Tensor:
    arguments = _scaled(x, q, options, axis, levels, integers)
    if out is None:
        return run("cast_scaled", *arguments, dtype)
    write("cast_scaled", *arguments, out=out)
    return out


def encode_scaled(
    x: Tensor, q: Scaled, options: Drawing, axis: int, levels: Levels, integers: Tensor | None
) -> tuple[Tensor, Scales]:
    arguments = _scaled(x, q, options, axis, levels, integers)
    codes, blocks, tensor = ops.encode_scaled.default(*arguments)
    return codes, blocks if q.tensor_scale is None else (blocks, tensor)


def _scaled(
    x: Tensor, q: Scaled, options: Drawing, axis: int, levels: Levels, integers: Tensor | None
) -> tuple[Any, ...]:
    """Converts a cast to a scaled format to the arguments of cast_scaled and encode_scaled."""
    element_cast, seed, stream = cast_arguments(options, x)
    return x, q.text, axis, element_cast, *levels, seed, stream, integers


def decode_scaled(
    codes: Tensor,
    q: Scaled,
    axis: int,
    blocks: Tensor,
    tensor: Tensor | None,
    shape: Shape,
    dtype: torch.dtype,
    out: Tensor | None,
) -> Tensor:
    arguments = codes, q.text, axis, blocks, tensor
    if out is None:
        return ops.decode_scaled.default(*arguments, shape, dtype)
    write("decode_scaled", *arguments, out=out)
    return out


def sum(
    x: Tensor,
    axis: int,
    acc: Accumulator,
    seed: Number,
    stream: Number,
    integers: Tensor | None,
    tininess: str | None,
) -> Any:
    integers = None if integers is None else integers.contiguous()
    arguments = x, axis, acc.text, *sum_numbers(acc, seed, stream, x), integers
    if tininess is None:
        return run("sum", *arguments)
    raised = ops.sum_flags(*arguments, tininess)
    return run("sum", *arguments), raised


def gemm(
    a: Tensor,
    b: Tensor,
    c: Tensor | None,
    shape: Sequence[int],
    acc: Accumulator,
    seed: Number,
    stream: Number,
    dtype: torch.dtype,
    blas: bool,
    integers: Tensor | None,
    tininess: str | None,
) -> Any:
    if a.is_cpu and not compiling():
        warn_if_slow(acc, a, b)
    integers = None if integers is None else integers.contiguous()
    product = a, b, c, acc.text, *sum_numbers(acc, seed, stream, a), dtype
    if tininess is None:
        return run("gemm", *product, blas, integers)
    raised = ops.gemm_flags(*product, integers, tininess)
    return run("gemm", *product, blas, integers), raised


def gemm_scaled(
    a: Tensor,
    a_scales: Tensor | None,
    a_block: int,
    a_lines: int,
    a_factor: Tensor | None,
    b: Tensor,
    b_scales: Tensor | None,
    b_block: int,
    b_lines: int,
    b_factor: Tensor | None,
    c: Tensor | None,
    acc: Accumulator,
    epilogue: bool,
    seed: Number,
    stream: Number,
    random: Any,
) -> Tensor:
    of_a = a, a_scales, a_block, a_lines, a_factor
    of_b = b, b_scales, b_block, b_lines, b_factor
    c = None if c is None else c.detach()
    numbers = sum_numbers(acc, seed, stream, a)
    return ops.gemm_scaled.default(*of_a, *of_b, c, acc.text, epilogue, *numbers, random)


def hadamard(
    x: Tensor, transform: Hadamard, axis: int, inverse: bool, out: Tensor | None
) -> Tensor:
    arguments = x, transform.text, axis, inverse
    if out is None:
        return run("hadamard", *arguments)
    write("hadamard", *arguments, out=out)
    return out
