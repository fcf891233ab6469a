# SPDX-License-Identifier: Apache-2.0
from cpd.nn import functional
from cpd.nn.functional import PADDING_MODES, Pair, conv2d, linear, matmul
from cpd.nn.recipe import CastSpec, Recipe, RecipeLike, recipe
from cpd.numeric.accumulator import AccumulatorLike

__doc__ = functional.__doc__
__all__ = [
    "PADDING_MODES",
    "AccumulatorLike",
    "CastSpec",
    "Pair",
    "Recipe",
    "RecipeLike",
    "conv2d",
    "linear",
    "matmul",
    "recipe",
]
