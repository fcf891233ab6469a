# SPDX-License-Identifier: Apache-2.0
"""Prints scaled formats for `cpd show`: blocks, scales and bits per value."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from cpd.cli.errors import UsageError
from cpd.cli.output import exact, new_table, short
from cpd.numeric.formats import Format
from cpd.numeric.names import did_you_mean
from cpd.numeric.scaled import Scaled, format_or_scaled, named_scaled

if TYPE_CHECKING:
    from rich.table import Table

SOURCES = {
    **dict.fromkeys(
        ("mxfp8", "mxfp8-e5m2", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp4", "mxint8"),
        "OCP Microscaling Formats (MX) 1.0",
    ),
    "nvfp4": "NVIDIA's NVFP4, as TransformerEngine makes it",
    "fp8-tensor": "FP8 with one scale a tensor",
    "fp8-row": "FP8 with one scale a row",
    "fp8-block": "DeepSeek-V3's FP8, as DeepGEMM makes it",
    "bfp8": "block floating point",
}
"""The description of each named scaled format."""
TERMS = {
    "floor": "2^(floor(log2 A) - emax)",
    "ceil": "2^(ceil(log2 A) - emax)",
    "rceil": "2^ceil(log2(A/M))",
    "even": "floor's, of A rounded half up to the elements' mantissa bits",
    "max": "A/M, rounded to nearest-even",
    "max_pow2": "M/A rounded down to a power of two, inverted",
    "up": "A/M, rounded up",
    "exact": "exact quotients, each rounded once",
    "te": "the binary32 steps of TransformerEngine's CUDA kernels",
    "torchao": "the binary32 steps of torchao",
    "deepgemm": "the binary32 steps of DeepGEMM",
    "microxcaling": "the binary32 steps of microxcaling",
    "block": "a NaN or Inf makes its block NaN",
    "element": "NaN stays NaN, Inf saturates",
    "mae": "A mapped to M or to M/1.5, whichever has the smaller sum of errors",
    "mse": "A mapped to M or to M/1.5, whichever has the smaller sum of squared errors",
}
"""Maps values of a scaled format's keys rule, arithmetic, non_finite and choose to texts that
explain the values."""
_KEYS = (
    *("element", "block", "scale", "rule", "tensor_scale", "outer", "arithmetic", "margin"),
    *("non_finite", "choose", "scale_max"),
)
"""The keys of a scaled format that are written to the JSON output."""
EXAMPLE = (4096, 4096)
_FLT_MAX, _FLT_LEAST = 2.0**128 - 2.0**104, 2.0**-149
_LISTED_BITS = 4
"""`cpd show` lists the values of a scaled format's elements up to this number of bits."""


def find_format(name: str) -> Format | Scaled:
    """Returns the format that `name` denotes.

    Raises UsageError for an unknown name that is similar to a scaled format's, and suggests it.
    """
    try:
        return format_or_scaled(name)
    except ValueError as error:
        meant = did_you_mean(name, SOURCES, 0.7)
        if meant and str(error).startswith("unknown") and "did you mean" not in str(error):
            raise UsageError(f"unknown format {name!r}; {meant}") from error
        if name in ("tensor", "row") or name.isdigit() or ("=" in name and " " not in name):
            message = f"unknown format {name!r}: quote a format of several words, as 'int8 row'"
            raise UsageError(message) from error
        raise


def describe_scaled(q: Scaled) -> dict[str, Any]:
    """For programs."""
    keys = {name: getattr(q, name) for name in _KEYS}
    return {
        "name": q.text,
        **{name: key.name if isinstance(key, Format) else key for name, key in keys.items()},
        "max": largest(q),
        "min_positive": least(q),
        "example": {
            "shape": list(EXAMPLE),
            "bits_per_value": q.bits_per_value(EXAMPLE),
            "scales": math.prod(q.scales_shape(EXAMPLE)),
            "tensor_scales": _outer_scales(q),
        },
        "source": source(q),
    }


def scaled_table(formats: list[Scaled]) -> Table:
    """Side by side."""
    rows: list[tuple[str, Callable[[Scaled], str | None]]] = [
        ("Element", lambda q: str(q.element)),
        ("its bits", lambda q: str(q.element.bits)),
        ("its max", lambda q: short(q.element.max)),
        ("its least", lambda q: short(q.element.min_subnormal)),
        ("Block", lambda q: q.block),
        ("Scale", lambda q: str(q.scale)),
        ("Rule", lambda q: q.rule),
        ("Margin", lambda q: f"2^{q.margin}" if q.margin else None),
        ("Choose", lambda q: None if q.choose == "none" else q.choose),
        ("Second level", lambda q: None if q.tensor_scale is None else str(q.tensor_scale)),
        ("shared by", lambda q: None if q.tensor_scale is None else q.outer),
        ("Scale's max", lambda q: None if q.scale_max is None else short(q.scale_max)),
        ("Arithmetic", lambda q: q.arithmetic),
        ("NaN, Inf", lambda q: q.non_finite),
        ("Largest", lambda q: short(largest(q))),
        ("Least positive", lambda q: short(least(q))),
        ("Bits a value*", lambda q: f"{q.bits_per_value(EXAMPLE):.6g}"),
        ("Scales*", _scales),
    ]
    table = new_table("", *(q.text for q in formats))
    table.columns[0].no_wrap = True
    for name, cell in rows:
        cells = [cell(q) for q in formats]
        if any(cell is not None for cell in cells):
            table.add_row(name, *(cell or "-" for cell in cells))
    return table


def notes(formats: list[Scaled]) -> Iterator[str]:
    """Yields the lines of the description of a scaled format."""
    yield f"* of a {' x '.join(map(str, EXAMPLE))} matrix, blocks along its rows"
    yield "A: a block's largest magnitude; M: the elements' max, of exponent emax"
    for terms in (
        [q.rule for q in formats],
        [q.choose for q in formats if q.choose != "none"],
        [q.arithmetic for q in formats],
        [q.non_finite for q in formats],
    ):
        for term in dict.fromkeys(terms):
            yield f"{term}: {TERMS[term]}"
    for f in dict.fromkeys(q.element for q in formats):
        if f.bits <= _LISTED_BITS:
            values = f.values()
            listed = ", ".join(exact(v) for v in values[values >= 0].tolist())
            yield f"{f}: ±({listed}) times the scale"
    for q in formats:
        meaning = source(q)
        if meaning is not None:
            yield f"{q}: {meaning}"


def largest(q: Scaled) -> float:
    """Returns the largest finite value.

    Values beyond the range of binary32 do not count.
    """
    f = q.element
    value = f.max * q.scale.max * (1.0 if q.tensor_scale is None else q.tensor_scale.max)
    if value <= _FLT_MAX:
        return value
    if q.scale.man > 0 or q.tensor_scale is not None:
        return _FLT_MAX
    has_whole_binade = f.min_normal is not None and f.max >= 2 * f.min_normal
    top = 2 - 2.0**-f.man if has_whole_binade else 2 * math.frexp(f.max)[0]
    return top * 2.0**127


def least(q: Scaled) -> float:
    """Returns the least positive value.

    The result is at least 2^-149, the least positive binary32 value.
    """
    value = 1.0
    for f in (q.element, q.scale, q.tensor_scale):
        if f is not None:
            assert f.min_subnormal is not None
            value *= f.min_subnormal
    return max(value, _FLT_LEAST)


def source(q: Scaled) -> str | None:
    """Returns the description of a format's name."""
    return next((meaning for name, meaning in SOURCES.items() if named_scaled(name) == q), None)


def _outer_scales(q: Scaled) -> int:
    return 0 if q.tensor_scale is None else math.prod(q.tensor_scales_shape(EXAMPLE))


def _scales(q: Scaled) -> str:
    blocks = math.prod(q.scales_shape(EXAMPLE))
    return f"{blocks}" if q.tensor_scale is None else f"{blocks} + {_outer_scales(q)}"
