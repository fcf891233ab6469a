# SPDX-License-Identifier: Apache-2.0
"""Recipes that cast the operands of a layer's three GEMMs, and functions that make each cast by
`cpd.cast`."""

from __future__ import annotations

import pytest

import cpd
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from cpd.numeric.cast import is_whole  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from cpd.numeric.streams import stream_tag  # noqa: E402

CURRENT = "e4m3fn block=tensor scale=fp32 arithmetic=te"
ROTATED = "nvfp4 transform=hadamard16:te rounding=stochastic"
RECIPES = {
    "formats": {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"},
    "current": {"activation": CURRENT, "weight": CURRENT, "gradient": CURRENT},
    "mxfp8": {"activation": "mxfp8", "weight": "mxfp8", "gradient": "mxfp8-e5m2"},
    "nvfp4": {
        "activation": "nvfp4",
        "weight": "nvfp4 block=16x16",
        "gradient": "nvfp4 rounding=stochastic",
        "grad_weight_activation": "nvfp4 transform=hadamard16:te",
        "grad_weight_gradient": ROTATED,
    },
    "mxfp4 backward": {
        "grad_input_gradient": "mxfp4 rounding=stochastic factor=0.75",
        "grad_input_weight": "mxfp4 rounding=stochastic factor=0.75",
        "grad_weight_activation": "mxfp4 rounding=stochastic factor=0.75",
        "grad_weight_gradient": "mxfp4 rounding=stochastic factor=0.75",
    },
    "high weight gradient": {
        "activation": "int8 row",
        "weight": "int8 row",
        "gradient": "e4m3fn",
        "grad_weight_activation": None,
        "grad_weight_gradient": None,
    },
}
PURPOSES = {
    "activation": "cast_activation",
    "weight": "cast_weight",
    "grad_input_gradient": "cast_gradient",
    "grad_input_weight": "recast_weight",
    "grad_weight_activation": "recast_activation",
    "grad_weight_gradient": "recast_gradient",
}
STREAM = 3 << 36


def by_hand(recipe, name, x, axis, layer=0):
    """Casts an operand as `recipe` demands, by `cpd.cast` with the random stream that cpd.Recipe
    documents. Returns the cast values and the factor by which the operand was multiplied."""
    spec = recipe._operand(name)
    if spec is None:
        return x, 1
    purpose = PURPOSES[name]
    usual = {"grad_input_weight": "weight", "grad_weight_activation": "activation"}.get(name)
    if usual and is_whole(spec.text) and getattr(recipe, name) == "same":
        purpose = PURPOSES[usual]  # one cast serves two products
    if name == "grad_weight_gradient" and is_whole(spec.text) and getattr(recipe, name) == "same":
        purpose = "cast_gradient"
    how = {"seed": 0, "stream": (STREAM ^ stream_tag(Purpose[purpose], layer)) % 2**64}
    if isinstance(spec.format, cpd.Format):
        return cpd.cast(x, spec, **how), 1
    transform = spec.format.transform
    to = cpd.Cast(spec.format, rounding=spec.rounding)
    if transform is not None and x.shape[axis] % size_of(transform):
        missing = size_of(transform) - x.shape[axis] % size_of(transform)
        shape = [missing if d == axis % x.dim() else n for d, n in enumerate(x.shape)]
        x = torch.cat([x, torch.zeros(shape)], axis)
    if spec.factor == 1:
        return by_keywords(cpd.cast, x, to, axis=axis, **how), 1
    scales = by_keywords(cpd.encode, x, to, axis=axis, **how)[1]
    return by_keywords(cpd.cast, x * spec.factor, to, axis=axis, scales=scales, **how), spec.factor


def size_of(transform: str) -> int:
    """Returns the size of a Hadamard transform: N of `hadamardN…`."""
    return int(transform.partition(":")[0].removeprefix("hadamard"))
