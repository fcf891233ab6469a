# SPDX-License-Identifier: Apache-2.0
"""Torch's layers in a customized precision. See `Linear` and `Conv2d`."""

from cpd.nn.layers import Conv2d, Linear

__all__ = ["Conv2d", "Linear"]
