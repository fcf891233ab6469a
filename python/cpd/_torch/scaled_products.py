# SPDX-License-Identifier: Apache-2.0
"""Computes matrix products that apply block scales after summing, as hardware does.

Scales multiply the sum of each block or the whole sum, as `Recipe.scales_at` selects. `cpd.gemm`
documents the arithmetic for encoded operands.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from cpd._torch.derivatives import run
from cpd._torch.library import ops
from cpd._torch.operands import parts, whole_transforms
from cpd._torch.recipe import RecipeCall
from cpd.numeric.formats import Format
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled import named_scaled
from cpd.ops.encoded import Encoded
from cpd.ops.products import Operand, encoded_operand


def _decoded(codes: Tensor, f: Format, shape: Any) -> Tensor:
    return ops.decode(codes, f.name, list(shape), torch.float32)


def scaled_product(
    a: Operand, b: Operand, c: Tensor | None, summation: Any, at: str, dtype: torch.dtype
) -> Tensor:
    """Returns a @ b + c. Scales multiply each block's sum (`at` is "block") or the whole sum."""
    epilogue = at == "epilogue"
    y = ops.gemm_scaled(*a, *b, c, summation.text, epilogue, summation.seed, summation.stream, None)
    return y.to(dtype)


def encoded(call: RecipeCall, which: Purpose, x: Tensor, axis: int) -> Operand:
    """Casts an operand `x` with blocks along `axis`. Returns its elements and their scales."""
    text, numbers = call.rounding(which), call.pair(which)
    if not text:
        return Operand(x.float(), None, 0, 1, None)
    _, scaled, element_cast, size, factor, history, *_ = parts(text)
    if factor != 1:
        raise ValueError(f"a factor goes with scales at each operand, got {text}")
    if not scaled:
        return Operand(run("cast", x.float(), element_cast, *numbers, None), None, 0, 1, None)
    if history:
        multiplier = call.multiplier(which)
        assert multiplier is not None  # `cpd.nn.arguments` requires its state
        elements = run("cast", x.float() * multiplier, element_cast, *numbers, None)
        return Operand(elements, multiplier.reciprocal().reshape(1, 1), 0, 0, None)
    if size:
        x = whole_transforms(x.float(), axis, size)
    q = named_scaled(scaled)
    codes, blocks, tensor = ops.encode_scaled(
        x, scaled, axis, element_cast, *(None,) * 3, *numbers, None
    )
    scales = blocks if q.tensor_scale is None else (blocks, tensor)
    return encoded_operand(Encoded(codes, scales, scaled, tuple(x.shape), axis), _decoded)


def turned(x: Operand) -> Operand:
    """Returns an operand with transposed matrices of elements and scales."""
    elements, scales, block, lines, factor = x
    return Operand(
        elements.mT,
        None if scales is None else scales.mT,
        block,
        lines,
        None if factor is None else factor.mT,
    )
