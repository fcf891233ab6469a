# SPDX-License-Identifier: Apache-2.0
"""Torch's functions in a customized precision.

`help(cpd.functional)` shows the documentation of `cpd.nn.functional`.
"""

from cpd._lazy import attach
from cpd.nn import functional
from cpd.nn.attention import multi_head_attention, scaled_dot_product_attention
from cpd.nn.convolution import (
    conv1d,
    conv2d,
    conv3d,
    conv_transpose1d,
    conv_transpose2d,
    conv_transpose3d,
)
from cpd.nn.embedding import embedding
from cpd.nn.functional import bilinear, linear, matmul
from cpd.nn.grouped import grouped_mm
from cpd.nn.norms import batch_norm, group_norm, instance_norm, layer_norm, rms_norm
from cpd.nn.recurrent import gru, gru_cell, lstm, lstm_cell, rnn, rnn_cell

__doc__ = functional.__doc__
__all__ = [
    "batch_norm",
    "bilinear",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "embedding",
    "group_norm",
    "grouped_mm",
    "gru",
    "gru_cell",
    "instance_norm",
    "layer_norm",
    "linear",
    "lstm",
    "lstm_cell",
    "matmul",
    "multi_head_attention",
    "rms_norm",
    "rnn",
    "rnn_cell",
    "scaled_dot_product_attention",
]

attach(__name__)
