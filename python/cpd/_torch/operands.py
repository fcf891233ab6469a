# SPDX-License-Identifier: Apache-2.0
"""What enters a product: the casts of the operands of a layer's three GEMMs, within the operators
that compute them (`cpd._torch.gemm`, `cpd._torch.conv`). Documented in `cpd.Recipe`."""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from cpd._torch.library import ops
from cpd.numeric.cast import CastSpec
from cpd.numeric.compiling import constant
from cpd.numeric.scaled_cast import OperandSpec, draws, is_whole, operand_spec
from cpd.ops.arguments import holds

Pair: TypeAlias = "tuple[Tensor | None, Tensor | None]"
"""Seed and stream of a rounding; None where it draws nothing."""

FORWARD_ACTIVATION, FORWARD_WEIGHT = 0, 1
INPUT_GRADIENT, INPUT_WEIGHT = 2, 3
WEIGHT_ACTIVATION, WEIGHT_GRADIENT = 4, 5
"""The operands of forward, of the GEMM that gives the input's gradient, and of the weight's."""

_TENSOR = (0, 1, 2, 1, 0, 2)
"""Which of activation, weight and gradient an operand is."""

SUMS = 4
"""Rows of `numbers` before those of the operands."""


def _parsed(text: str) -> OperandSpec | None:
    return operand_spec(text) if text else None


@constant
def parts(text: str) -> tuple[str, str, str, int, float, int]:
    """Of a cast: the format, the scaled format's text or none, the cast's or the elements' text,
    the transform's size or 0, the factor, the history: plain values, as torch.compile keeps no
    others."""
    spec = operand_spec(text)
    if isinstance(spec, CastSpec):
        return spec.format.name, "", spec.text, 0, 1.0, 0
    q = spec.scaled
    size = 0 if q.transform is None else q.transform.size
    return q.element.name, q.text, spec.cast.text, size, spec.factor, spec.history


@constant
def factor_of(text: str) -> float:
    """What an operand's values are multiplied by beside its scales."""
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


@constant
def shared(first: str, second: str) -> bool:
    """Whether one cast serves as both."""
    spec = _parsed(first)
    return first == second and (spec is None or is_whole(spec))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def cast_operand(
    x: Tensor, text: str, axis: int, numbers: Pair = (None, None), multiplier: Tensor | None = None
) -> Tensor:
    """`x` cast as `text` says, its blocks along `axis`; as it is for an empty text. A type that
    does not hold the format becomes float32. Before a transform whose size does not divide the
    extent, zeros are put behind it. `multiplier`: of delayed scaling, in the place of a scale."""
    if not text:
        return x
    element, scaled, how, size, factor, history = parts(text)
    if not holds(name_of(x.dtype), element):
        x = x.float()
    if not scaled:
        return ops.cast(x, how, *numbers, None)
    if history:
        if multiplier is None:
            raise ValueError(
                f"{text} follows former steps, whose state a layer keeps: cpd.convert makes it, or "
                "give delayed="
            )
        return ops.cast_delayed(x, how, multiplier, *numbers)
    if size:
        x = whole_transforms(x, axis, size)
    if factor == 1:
        return ops.cast_scaled(x, scaled, axis, how, None, None, None, *numbers, None)
    scales = ops.encode_scaled(x, scaled, axis, how, None, None, None, *numbers, None)[1]
    return ops.cast_scaled(x * factor, scaled, axis, how, scales, None, None, *numbers, None)


def whole_transforms(x: Tensor, axis: int, size: int) -> Tensor:
    """`x` with zeros behind it along `axis`, up to a multiple of `size`: both operands of a product
    take the same transform, and the sum runs over zeros more."""
    missing = -x.shape[axis] % size
    if missing == 0:
        return x
    shape = list(x.shape)
    shape[axis] = missing
    return torch.cat([x, x.new_zeros(shape)], axis)


def cast_delayed(x: Tensor, how: str, multiplier: Tensor, numbers: Pair = (None, None)) -> Tensor:
    """cast(fl(x * multiplier)) * fl(1 / multiplier), each product rounded once in float32."""
    y = ops.cast(x.float() * multiplier, how, *numbers, None)
    return (y * multiplier.reciprocal()).to(x.dtype)


class Operands(NamedTuple):
    """The casts of the six operands, and their numbers."""

    texts: Sequence[str]
    numbers: Tensor | None
    multipliers: Tensor | None
    """Of activation, weight and gradient, where scaling is delayed."""

    def multiplier(self, which: int) -> Tensor | None:
        """Of one operand."""
        return None if self.multipliers is None else self.multipliers[_TENSOR[which]]

    def pair(self, which: int) -> Pair:
        """Seed and stream of one."""
        if self.numbers is None or not operand_draws(self.texts[which]):
            return None, None
        row = self.numbers[SUMS + which]
        return row[0], row[1]

    def cast(self, which: int, x: Tensor, axis: int) -> Tensor:
        """One operand as it enters its product."""
        return cast_operand(x, self.texts[which], axis, self.pair(which), self.multiplier(which))

    def gradients(
        self, g: Tensor, needs: Sequence[bool], axes: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        """The gradient as it enters the GEMMs of the input's and of the weight's gradient, as far
        as they are needed; cast once where one cast serves as both."""
        for_input, for_weight = needs
        if shared(self.texts[INPUT_GRADIENT], self.texts[WEIGHT_GRADIENT]):
            cast = self.cast(INPUT_GRADIENT, g, axes[0])
            return cast, cast
        return (
            self.cast(INPUT_GRADIENT, g, axes[0]) if for_input else g,
            self.cast(WEIGHT_GRADIENT, g, axes[1]) if for_weight else g,
        )

    def leave_factors(self) -> bool:
        """Whether the product of the forward pass must be multiplied by what factors leave out."""
        first, second = self.texts[FORWARD_ACTIVATION], self.texts[FORWARD_WEIGHT]
        return factor_of(first) * factor_of(second) != 1

    def unfactored(self, y: Tensor, first: int, second: int) -> Tensor:
        """A product of two operands without their factors."""
        left_out = factor_of(self.texts[first]) * factor_of(self.texts[second])
        return y if left_out == 1 else y * (1 / left_out)
