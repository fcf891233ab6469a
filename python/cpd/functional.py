# SPDX-License-Identifier: Apache-2.0
from cpd.nn import functional
from cpd.nn.functional import PADDING_MODES, Pair, conv2d, linear, matmul

__doc__ = functional.__doc__
__all__ = ["PADDING_MODES", "Pair", "conv2d", "linear", "matmul"]
