# SPDX-License-Identifier: Apache-2.0
"""Casts the operands of a layer's three GEMMs, as `cpd.Recipe` documents.

The operators that compute the GEMMs make the casts (`cpd._torch.gemm`, `cpd._torch.convolution`).
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
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
"""The seed and the stream of a rounding. Both are None if the rounding uses no random bits."""


class Parts(NamedTuple):
    """The properties of an operand's cast, computed once from its text.

    All are texts and numbers, because torch.compile supports no other constants.
    """

    element: str
    """The name of the format, or of the elements' format for a scaled format."""
    scaled: str
    """The text of the scaled format, or "" for a format without scales."""
    how: str
    """The text of the elements' cast: the text of the operand's cast without scales."""
    transform: int
    """The size of the Hadamard transform, or 0 without a transform."""
    factor: float
    """The key `factor` of the cast: elements are computed from values times this factor."""
    history: int
    draws: bool
    """True if the cast rounds stochastically."""
    is_short: bool
    """True if all scales are powers of two, and results have at most eight significant bits, as in
    bfloat16."""
    is_scaled: bool
    """True if the format is scaled, without transform, delayed scaling and the key `factor`."""
    fits_bfloat16: bool
    """True if the format has no scales and bfloat16 represents all its values."""
    covers_a_tensor: bool
    """True if one scale covers a whole tensor."""
    splits: str
    """The scales that `split_operand` returns: one for the "tensor", or one for each "row". "":
    `split_operand` does not support the cast."""

    @property
    def narrows(self) -> bool:
        """True if `narrow_operand` supports the cast."""
        return self.is_scaled and self.is_short

    def splits_at(self, rank: int) -> bool:
        """Returns whether `split_operand` supports the cast of tensors with `rank` dimensions."""
        return self.splits == "tensor" or (self.splits == "row" and rank == 2)


UNCAST = Parts("", "", "", 0, 1.0, 0, *(False,) * 5, "")


@constant
def parts(text: str) -> Parts:
    """Parses the text of a cast and returns the cast's properties. An empty text means no cast."""
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
    """Returns whether `split_operand` can separate scales from the values: "tensor", "row" or "".

    "tensor" means one scale for the tensor, "row" one for each row. With outer scales, the outer
    scale is separated. "" means that `split_operand` does not support the cast, for example because
    bfloat16 does not represent the values without the scale.
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
    """Returns whether a dtype represents the results of a cast of any tensor of that dtype.

    `text` is the text of the cast. For example, a bfloat16 number rounded to at most eight
    significant bits is again a bfloat16 number.
    """
    cast = parts(text)
    if not cast.scaled:
        return holds(dtype, cast.element)
    return dtype == "float32" or (holds_scaled(dtype, cast.scaled) and cast.is_scaled)


SHORT = 8
"""The number of significant bits of bfloat16."""
_LEAST_BFLOAT16 = 2.0**-133


def significant_bits(f: Format) -> int:
    """Returns the greatest number of significant bits of a format's values."""
    return f.man + 1


def is_plain(x: Tensor) -> bool:
    """Returns whether `x` is contiguous float32 on the CPU, and no tracer or mode of torch sees it.

    Only for such an `x` may the dtype of a cast's result depend on the values of `x`.
    """
    seen = type(x) not in (Tensor, torch.nn.Parameter) or dispatch_modes()
    if seen and not explains():
        return False
    return x.is_cpu and x.dtype == torch.float32 and x.is_contiguous()


def narrow_operand(x: Tensor, text: str, axis: int, numbers: Pair = (None, None)) -> Tensor:
    """Returns the same values as `cast_operand`, in bfloat16 if bfloat16 represents all of them.

    The result is float32 if a value is too small for bfloat16. The caller must have checked
    `is_plain(x)` and `parts(text).narrows`.
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
    """Returns the cast of `x` as values and a separate scale.

    The values have at most eight significant bits. The values are float32, or bfloat16 on the CPU
    if `narrow`. The caller must have checked that `Parts.splits_at` is True.
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
    """Returns the dtype of a cast of `x`: x's dtype if it represents the result, else float32."""
    return x.dtype if keeps_type(name_of(x.dtype), text) else torch.float32


def cast_operand(
    x: Tensor, text: str, axis: int, numbers: Pair = (None, None), multiplier: Tensor | None = None
) -> Tensor:
    """Returns `x` after the cast `text`, with blocks along `axis`, or `x` itself for an empty text.

    The result has x's dtype if that dtype represents all results, else float32. If the size of a
    Hadamard transform does not divide the extent, zeros are appended first. `multiplier` is the
    scale of delayed scaling.
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
    """Returns two casts of `x`: with blocks along the first axis, and along the second axis.

    The results are the same as from two calls of `cast_operand`. On a GPU, x is read only once if
    possible (`CastBoth`, cpd/ops/scaled.h). The cast must be `Parts.is_scaled` and not stochastic.
    """
    cast = parts(text)
    element = type_of_cast(x, text)
    both = run("cast_scaled_both", x, cast.scaled, list(axes), cast.how, element)
    first, second = both.unbind()
    return first, second


def whole_transforms(x: Tensor, axis: int, size: int) -> Tensor:
    """Returns `x` with zeros appended along `axis`, up to a multiple of `size`.

    Both operands of a product are extended and transformed in the same way. The appended zeros do
    not change the exact value of the product.
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
    """Returns cast(fl(x * multiplier)) * fl(1 / multiplier).

    Each product is rounded once in float32.
    """
    y = run("cast", x.float() * multiplier, element_cast, *numbers, None)
    return (y * multiplier.reciprocal()).to(x.dtype)
