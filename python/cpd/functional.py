# SPDX-License-Identifier: Apache-2.0
from cpd.nn import functional
from cpd.nn.convolution import (
    PADDING_MODES,
    Pair,
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from cpd.nn.functional import linear, matmul
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
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
    "matmul",
    "recipe",
]
