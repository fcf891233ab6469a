# SPDX-License-Identifier: Apache-2.0
"""Defines `Encoded`: codes with the format, shape and scales that decode them.

Also decodes codes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from cpd.numeric.formats import Format, FormatLike
from cpd.numeric.scaled import Scaled, ScaledLike, named_scaled
from cpd.ops.arguments import (
    FLOATS,
    LEVELS,
    NARROW_FLOATS,
    Scales,
    Shape,
    check_scaled_bytes,
    check_storage,
    scale_levels,
)
from cpd.ops.front_ends import front_end_of


class Encoded(NamedTuple):
    """A tensor stored as packed codes and scales, with the format, shape and axis to decode them.

    `encode` returns the codes and scales. `decode` and `gemm` take an `Encoded` as an operand.

    >>> import numpy as np, cpd
    >>> x = np.float32([[1.0, -24.0], [0.5, 0.25]])
    >>> packed = Encoded(*cpd.encode(x, "mxfp4", axis=0), cpd.Scaled("mxfp4"), x.shape, axis=0)
    >>> cpd.decode(packed).tolist()
    [[1.0, -24.0], [0.5, 0.0]]
    """

    codes: Any
    """The packed codes of the elements in row-major order: uint8, 1-D."""
    scales: Scales
    """The packed codes of the scales: uint8, 1-D. With outer scales, a pair: the codes of the
    blocks' scales and of the outer scales. None for a format without scales."""
    format: FormatLike | ScaledLike
    shape: Shape
    """The shape of the values."""
    axis: int = -1
    """The axis along which the blocks of a scaled format run."""


def decoded(codes: Any, f: Format, shape: Shape, dtype: Any = None, out: Any = None) -> Any:
    """Returns the values of packed codes.

    Under torch.compile, the C++ library checks sizes when the program runs.
    """
    kind = front_end_of(codes)
    sizes = kind.sizes(shape)
    kind.check_codes("codes", codes, codes)
    if not kind.compiling():
        need, size = f._held.packed_bytes(math.prod(sizes)), codes.shape[0]
        if size != need:
            raise ValueError(f"codes must have {need} bytes for {sizes} of {f}, got {size}")
    element = kind.element(dtype, FLOATS, out)
    check_storage(kind.name_of(element), f.name)
    codes = kind.contiguous(codes)
    if out is not None:
        kind.check_out(out, sizes, element, codes, {"codes": codes})
    return kind.decode(codes, f, sizes, element, out)


def decoded_scaled(
    codes: Any, q: Scaled, shape: Shape, dtype: Any, out: Any, axis: int, scales: Any
) -> Any:
    """Returns the values of a scaled format's codes and scales.

    Under torch.compile, the C++ library checks sizes when the program runs.
    """
    kind = front_end_of(codes)
    if kind.compiling():
        q = named_scaled(q.text)  # as in `cast`: a compiled program must get the format in one way
    sizes = kind.sizes(shape)
    levels = scale_levels(q, scales)[: 1 if q.tensor_scale is None else 2]
    parts = dict(zip(("codes", *LEVELS), (codes, *levels), strict=False))
    for name, part in parts.items():
        kind.check_codes(name, part, codes)
    if not kind.compiling():
        check_scaled_bytes(q, sizes, axis, [part.shape[0] for part in parts.values()])
    element = kind.element(dtype, NARROW_FLOATS, out)
    parts = {name: kind.contiguous(part) for name, part in parts.items()}
    if out is not None:
        kind.check_out(out, sizes, element, parts["codes"], parts)
    packed, blocks, *tensor = parts.values()
    return kind.decode_scaled(
        packed, q, axis, blocks, tensor[0] if tensor else None, sizes, element, out
    )
