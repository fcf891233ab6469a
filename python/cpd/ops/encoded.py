# SPDX-License-Identifier: Apache-2.0
"""Packed values with all that is needed to read them: `Encoded`."""

from __future__ import annotations

from typing import Any, NamedTuple

from cpd.numeric.formats import FormatLike
from cpd.numeric.scaled import ScaledLike
from cpd.ops.arguments import Scales, Shape


class Encoded(NamedTuple):
    """What `encode` gave, and of what: an operand that is stored as codes and scales.

    >>> import numpy as np, cpd
    >>> x = np.float32([[1.0, -24.0], [0.5, 0.25]])
    >>> packed = Encoded(*cpd.encode(x, "mxfp4", axis=0), cpd.scaled("mxfp4"), x.shape, axis=0)
    >>> cpd.decode(packed).tolist()
    [[1.0, -24.0], [0.5, 0.0]]
    """

    codes: Any
    """uint8, 1-D: the elements' codes, in row-major order."""
    scales: Scales
    """The scales' codes, likewise; of two levels a pair, the blocks' and the tensor's."""
    format: FormatLike | ScaledLike
    shape: Shape
    """Of the values."""
    axis: int = -1
    """Along which blocks lie."""
