# SPDX-License-Identifier: Apache-2.0
"""The operands of products: casts of the operands of a layer's three GEMMs, within the operators
that compute them (`cpd._torch.gemm`, `cpd._torch.conv`). Documented in `cpd.Recipe`."""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from cpd._torch.arguments import name_of
from cpd._torch.derivatives import run
from cpd._torch.library import ops
from cpd.numeric.cast import CastSpec
from cpd.numeric.compiling import constant
from cpd.numeric.scaled_cast import OperandSpec, draws, operand_spec
from cpd.ops.arguments import holds

Pair: TypeAlias = "tuple[Tensor | None, Tensor | None]"
"""Seed and stream of a rounding; None where it draws nothing."""


def _parsed(text: str) -> OperandSpec | None:
    return operand_spec(text) if text else None


@constant
def parts(text: str) -> tuple[str, str, str, int, float, int]:
    """The parts of a cast: the format, the scaled format's text or "", the cast's or the elements'
    text, the transform's size or 0, the factor, the history; all of them texts and numbers, as
    torch.compile keeps no other values."""
    spec = operand_spec(text)
    if isinstance(spec, CastSpec):
        return spec.format.name, "", spec.text, 0, 1.0, 0
    q = spec.scaled
    size = 0 if q.transform is None else q.transform.size
    return q.element.name, q.text, spec.cast.text, size, spec.factor, spec.history


@constant
def factor_of(text: str) -> float:
    """The factor by which an operand's values are multiplied, in addition to its scales."""
    return parts(text)[4] if text else 1.0


@constant
def operand_draws(text: str) -> bool:
    """Whether the cast of that text rounds stochastically."""
    spec = _parsed(text)
    return spec is not None and draws(spec)


@constant
def covers_a_tensor(text: str) -> bool:
    """Whether one scale of the cast of that text covers a whole tensor."""
    spec = _parsed(text)
    if spec is None or isinstance(spec, CastSpec):
        return False
    q = spec.scaled
    return q.block == "tensor" or (q.tensor_scale is not None and q.outer == "tensor")


def cast_operand(
    x: Tensor, text: str, axis: int, numbers: Pair = (None, None), multiplier: Tensor | None = None
) -> Tensor:
    """`x` cast as `text` says, its blocks along `axis`; as it is for an empty text. A type that
    does not hold the format becomes float32. Before a transform whose size does not divide the
    extent, zeros are appended. `multiplier`: the scale of delayed scaling."""
    if not text:
        return x
    element, scaled, how, size, factor, history = parts(text)
    if not holds(name_of(x.dtype), element):
        x = x.float()
    if not scaled:
        return run("cast", x, how, *numbers, None)
    if history:
        if multiplier is None:
            raise ValueError(
                f"{text} follows former steps, whose state a layer keeps: cpd.convert makes it, or "
                "give delayed="
            )
        return run("cast_delayed", x, how, multiplier, *numbers)
    if size:
        x = whole_transforms(x, axis, size)
    if factor == 1:
        return run("cast_scaled", x, scaled, axis, how, None, None, None, *numbers, None)
    scales = ops.encode_scaled(x, scaled, axis, how, None, None, None, *numbers, None)[1]
    return run("cast_scaled", x * factor, scaled, axis, how, scales, None, None, *numbers, None)


@constant
def casts_both(text: str) -> bool:
    """Whether `cast_operand_both` takes the cast of that text: to a scaled format, without factor,
    transform, history and random bits."""
    if not text or operand_draws(text):
        return False
    _, scaled, _, size, factor, history = parts(text)
    return bool(scaled) and not size and factor == 1 and not history


def cast_operand_both(x: Tensor, text: str, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """`x` cast with blocks along each of two axes: `cast_operand` twice, of a text that
    `casts_both`; a GPU reads x once where it can (`CastBoth`, ops/scaled.h)."""
    element, scaled, how, *_ = parts(text)
    if not holds(name_of(x.dtype), element):
        x = x.float()
    first, second = run("cast_scaled_both", x, scaled, list(axes), how).unbind()
    return first, second


def whole_transforms(x: Tensor, axis: int, size: int) -> Tensor:
    """`x` with zeros appended along `axis`, up to a multiple of `size`: both operands of a product
    take the same transform, and the sum gets only zero terms from them."""
    missing = -x.shape[axis] % size
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


def cast_delayed(x: Tensor, how: str, multiplier: Tensor, numbers: Pair = (None, None)) -> Tensor:
    """cast(fl(x * multiplier)) * fl(1 / multiplier), each product rounded once in float32."""
    y = run("cast", x.float() * multiplier, how, *numbers, None)
    return (y * multiplier.reciprocal()).to(x.dtype)
