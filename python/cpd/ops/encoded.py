# SPDX-License-Identifier: Apache-2.0
"""`Encoded`: packed values with all that is needed to decode them."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd.numeric.formats import FormatLike
from cpd.numeric.scaled import ScaledLike
from cpd.ops.arguments import Scales, Shape


class Encoded(NamedTuple):
    """An operand stored as codes and scales: the results of `encode` and its arguments.

    >>> import numpy as np, cpd
    >>> x = np.float32([[1.0, -24.0], [0.5, 0.25]])
    >>> packed = Encoded(*cpd.encode(x, "mxfp4", axis=0), cpd.Scaled("mxfp4"), x.shape, axis=0)
    >>> cpd.decode(packed).tolist()
    [[1.0, -24.0], [0.5, 0.0]]
    """

    codes: Any
    """uint8, 1-D: the elements' codes, in row-major order."""
    scales: Scales
    """uint8, 1-D: the scales' codes; of two levels a pair, the blocks' and the tensor's."""
    format: FormatLike | ScaledLike
    shape: Shape
    """The shape of the values."""
    axis: int = -1
    """The axis along which blocks run."""
