# SPDX-License-Identifier: Apache-2.0
"""The operands of products: casts of the operands of a layer's three GEMMs.

The operators that compute the GEMMs make the casts (`cpd._torch.gemm`, `cpd._torch.conv`).
Documented in `cpd.Recipe`.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,attr-defined"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from cpd._torch.arguments import name_of
from cpd._torch.derivatives import run
from cpd._torch.library import ops
from cpd._torch.native import Factor
from cpd._torch.private import dispatch_modes
from cpd.numeric.cast import Cast, as_cast, elements
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format
from cpd.numeric.hadamard import transform_of
from cpd.numeric.scaled import Scaled, named_scaled
from cpd.ops.arguments import holds, holds_scaled
from cpd.ops.explaining import explains

Pair: TypeAlias = "tuple[Tensor | None, Tensor | None]"
"""The seed and the stream of a rounding; None if it uses no random bits."""


class Parts(NamedTuple):
    """The cast of an operand, resolved once from its text.

    All are texts and numbers, as torch.compile stores no other values.
    """

    element: str
    """The format of the elements."""
    scaled: str
    """The scaled format's text; "": values have no scales."""
    how: str
    """The text of the cast of the elements."""
    transform: int
    """The size of the transform; 0: none."""
    factor: float
    """The factor by which values are multiplied, in addition to their scales."""
    history: int
    draws: bool
    """True if the cast rounds stochastically."""
    is_short: bool
    """True if values have at most eight significant bits, times powers of two."""
    is_scaled: bool
    """True if the cast is to a scaled format, without factor, transform and history."""
    fits_bfloat16: bool
    """True if values have no scales, and bfloat16 holds all of them."""
    covers_a_tensor: bool
    """True if one scale covers a whole tensor."""
    splits: str
    """The block, "tensor" or "row", of a scale that `split_operand` takes apart; "": none."""

    @property
    def narrows(self) -> bool:
        """True if `narrow_operand` takes the cast."""
        return self.is_scaled and self.is_short

    def splits_at(self, rank: int) -> bool:
        """Returns whether `split_operand` takes the cast, of tensors of `rank` dimensions."""
        return self.splits == "tensor" or (self.splits == "row" and rank == 2)


UNCAST = Parts("", "", "", 0, 1.0, 0, *(False,) * 5, "")


@constant
def parts(text: str) -> Parts:
    """Returns the parts of a cast, by its text. An empty text means no cast."""
    if not text:
        return UNCAST
    spec = as_cast(text)
    draws = spec.rounding == "stochastic"
    q = spec.format
    if isinstance(q, Format):
        is_short, fits = significant_bits(q) <= SHORT, holds("bfloat16", q.name)
        flags = draws, is_short, False, fits, False
        return Parts(q.name, "", spec.text, 0, 1.0, 0, *flags, "")
    size = 0 if q.transform is None else transform_of(q.transform).size
    powers = q.scale.name == "e8m0" and q.tensor_scale is None
    is_short = powers and significant_bits(q.element) <= SHORT and not spec.history
    is_scaled = not (size or spec.factor != 1 or spec.history)
    covers = q.block == "tensor" or (q.tensor_scale is not None and q.outer == "tensor")
    flags = draws, is_short, is_scaled, False, covers
    numbers = size, spec.factor, spec.history
    return Parts(q.element.name, q.text, elements(spec), *numbers, *flags, _splits(spec, q))


def _splits(spec: Cast, q: Scaled) -> str:
    """Returns the block of values that share a scale, if bfloat16 holds values times scale.

    A scale belongs to a whole tensor, or to each row.
    """
    block, factors = q.block, [q.element]
    if q.tensor_scale is not None:
        block, factors = q.outer, [q.element, q.scale]
        if q.tensor_scale.name != "fp32":
            return ""
    is_held = (
        sum(map(significant_bits, factors)) <= SHORT
        and math.prod(f.min_subnormal or 0.0 for f in factors) >= _LEAST_BFLOAT16
        and math.prod(max(f.max, -f.lowest) for f in factors) <= torch.finfo(torch.bfloat16).max
    )
    return block if is_held and spec.factor == 1 and block in ("tensor", "row") else ""


@constant
def keeps_type(dtype: str, text: str) -> bool:
    """Returns whether the cast of that text, of any tensor of that type, gives values of that type.

    A bfloat16 number rounded to at most eight significant bits, at any power of two, is one.
    """
    cast = parts(text)
    if not cast.scaled:
        return holds(dtype, cast.element)
    return dtype == "float32" or (holds_scaled(dtype, cast.scaled) and cast.is_scaled)


SHORT = 8
"""The significant bits of bfloat16."""
_LEAST_BFLOAT16 = 2.0**-133


def significant_bits(f: Format) -> int:
    """Returns the greatest number of significant bits of a format's values."""
    return f.man + 1


def is_plain(x: Tensor) -> bool:
    """Returns whether `x` is contiguous float32 in the CPU's memory and nothing traces its use.

    Types of results may then depend on values.
    """
    seen = type(x) not in (Tensor, torch.nn.Parameter) or dispatch_modes()
    if seen and not explains():
        return False
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def narrow_operand(x: Tensor, text: str, axis: int, numbers: Pair = (None, None)) -> Tensor:
    """Returns `cast_operand` of a tensor that `is_plain`, to a scaled format of short values.

    The cast has no factor and no transform (`Parts.narrows`). It is in bfloat16 if that holds all
    values. Only subnormal ones may be too small for it.
    """
    cast = parts(text)
    return ops.cast_scaled_narrow(x, cast.scaled, axis, cast.how, *numbers)


def split_operand(
    x: Tensor,
    text: str,
    axis: int,
    numbers: Pair = (None, None),
    multiplier: Tensor | None = None,
    narrow: bool = False,
) -> Factor:
    """Returns the short values of a cast apart from their scale, as `Parts.splits` says.

    `narrow`: in bfloat16 instead of float32, on the CPU.
    """
    _, scaled, element_cast, size, _, history, *_ = parts(text)
    if x.numel() == 0:
        return Factor(x.float(), None, True)
    if history:
        assert multiplier is not None  # `cpd.nn.arguments` requires its state
        values = run("cast", x.float() * multiplier, element_cast, *numbers, None)
        return Factor(values, multiplier.reciprocal(), True)
    if size:
        x = whole_transforms(x.float(), axis, size)
    if x.is_cpu:
        dtype = torch.bfloat16 if narrow else torch.float32
        values, scales = ops.cast_scaled_apart(x, scaled, axis, element_cast, *numbers, dtype)
        return Factor(values, scales, dtype == torch.float32)
    codes, blocks, outer = ops.encode_scaled(
        x, scaled, axis, element_cast, None, None, None, *numbers, None
    )
    q, shape = named_scaled(scaled), list(x.shape)
    if q.tensor_scale is None:
        values = ops.decode(codes, q.element.name, shape, torch.float32)
        grid = q.scales_shape(tuple(shape), axis)
        return Factor(values, ops.decode(blocks, q.scale.name, list(grid), torch.float32), True)
    grid = q.tensor_scales_shape(tuple(shape), axis)
    ones = torch.ones_like(outer.view(torch.float32)).view(torch.uint8)
    values = ops.decode_scaled(codes, scaled, axis, blocks, ones, shape, torch.float32)
    return Factor(values, ops.decode(outer, q.tensor_scale.name, list(grid), torch.float32), True)


def type_of_cast(x: Tensor, text: str) -> torch.dtype:
    """Returns the type of the cast of that text: float32 where x's does not hold the result."""
    return x.dtype if keeps_type(name_of(x.dtype), text) else torch.float32


def cast_operand(
    x: Tensor, text: str, axis: int, numbers: Pair = (None, None), multiplier: Tensor | None = None
) -> Tensor:
    """Returns `x`, cast by `text` with blocks along `axis`; unchanged for an empty text.

    The result is float32 if x's type does not hold it. Before a transform whose size does not
    divide the extent, zeros are appended. `multiplier`: the scale of delayed scaling.
    """
    if not text:
        return x
    cast = parts(text)
    scaled, element_cast, size = cast.scaled, cast.how, cast.transform
    element = type_of_cast(x, text)
    if not scaled:
        return run("cast", x.to(element), element_cast, *numbers, None)
    if cast.history:
        if multiplier is None:
            raise ValueError(
                f"the scales of {text} depend on past steps: use cpd.convert, whose layers store "
                "them, or give delayed="
            )
        return run("cast_delayed", x.to(element), element_cast, multiplier, *numbers)
    if size:
        x = whole_transforms(x.to(element), axis, size)
    if cast.factor == 1:
        return run(
            "cast_scaled", x, scaled, axis, element_cast, *(None,) * 3, *numbers, None, element
        )
    scales = ops.encode_scaled(x, scaled, axis, element_cast, None, None, None, *numbers, None)[1]
    x = x.to(element) * cast.factor
    return run(
        "cast_scaled", x, scaled, axis, element_cast, scales, None, None, *numbers, None, element
    )


def cast_operand_both(x: Tensor, text: str, axes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Returns `x` cast with blocks along each of two axes.

    It is `cast_operand` twice, of a cast that `is_scaled` and draws nothing; a GPU reads x once
    where it can (`CastBoth`, ops/scaled.h).
    """
    cast = parts(text)
    element = type_of_cast(x, text)
    both = run("cast_scaled_both", x, cast.scaled, list(axes), cast.how, element)
    first, second = both.unbind()
    return first, second


def whole_transforms(x: Tensor, axis: int, size: int) -> Tensor:
    """Returns `x` with zeros appended along `axis`, up to a multiple of `size`.

    Both operands of a product take the same transform, and the sum gets only zero terms from the
    appended values.
    """
    missing = -x.shape[axis] % size
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


def cast_delayed(
    x: Tensor, element_cast: str, multiplier: Tensor, numbers: Pair = (None, None)
) -> Tensor:
    """cast(fl(x * multiplier)) * fl(1 / multiplier), each product rounded once in float32."""
    y = run("cast", x.float() * multiplier, element_cast, *numbers, None)
    return (y * multiplier.reciprocal()).to(x.dtype)
