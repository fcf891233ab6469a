# SPDX-License-Identifier: Apache-2.0
"""The purpose of a rounding of a layer: `Purpose`.

Also the sums and operands of a layer's three GEMMs by purpose (cpd/spec/recipe.h).
"""

from cpd import _core
from cpd._core import Purpose as Purpose

_PARTS = _core.recipe_parts()

SUMS: dict[Purpose, str] = {purpose: field for purpose, field, tensor in _PARTS if not tensor}
"""The field of a recipe that says how a GEMM sums."""
OPERANDS: dict[Purpose, str] = {purpose: field for purpose, field, tensor in _PARTS if tensor}
"""The field with the cast of an operand, by purpose: of the forward GEMM (activation, weight), of
the input's gradient (gradient, weight), of the weight's gradient (activation, gradient)."""
TENSOR_OF: dict[Purpose, str] = {purpose: tensor for purpose, _, tensor in _PARTS if tensor}
"""The tensor of each operand."""
TENSORS = tuple(dict.fromkeys(TENSOR_OF.values()))
"""Activation, weight, gradient."""
