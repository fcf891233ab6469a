# SPDX-License-Identifier: Apache-2.0
"""Defines `Purpose`: the use of a rounding in a layer, such as a sum or an operand of a GEMM.

Tables map the purposes in the layer's three GEMMs to the fields of a recipe (cpd/spec/recipe.h).
"""

from cpd import _core
from cpd._core import Purpose as Purpose

_PARTS = _core.recipe_parts()

SUMS: dict[Purpose, str] = {purpose: field for purpose, field, tensor in _PARTS if not tensor}
"""Maps the `Purpose` of each GEMM's sum to the name of the recipe's field for its accumulator."""
OPERANDS: dict[Purpose, str] = {purpose: field for purpose, field, tensor in _PARTS if tensor}
"""Maps the `Purpose` of each operand to the name of the recipe's field for its cast. The
forward GEMM has the operands activation and weight. The GEMM for the input's gradient has gradient
and weight. The GEMM for the weight's gradient has activation and gradient."""
TENSOR_OF: dict[Purpose, str] = {purpose: tensor for purpose, _, tensor in _PARTS if tensor}
"""Maps the purpose of each operand to the operand's tensor: activation, weight or gradient."""
TENSORS = tuple(dict.fromkeys(TENSOR_OF.values()))
"""Activation, weight, gradient."""
