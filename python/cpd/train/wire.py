# SPDX-License-Identifier: Apache-2.0
"""The all-reduce of a training: `reduce_spec`."""

import math
import shlex
from typing import Literal

from cpd.comm.spec import Reduce, sums_format
from cpd.compress.table import is_compressor
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.scaled import format_or_scaled

APS: dict[str, bool | Literal["paper"]] = {"off": False, "on": True, "paper": "paper"}


def is_power_of_two(value: float) -> bool:
    """Returns whether a number is a finite power of two."""
    return math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5


def power_of_two(exponent: int) -> str:
    """'2⁸' for 8."""
    return "2" + str(exponent).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def reduce_spec(
    *,
    format: str = "fp32",
    wire: str | None = None,
    aps: str = "off",
    loss_scale: float = 1.0,
    kahan: bool = False,
    group_size: int | None = None,
    order: str = "sequential",
    exchange: str = "owner",
    rounding: str = "nearest_even",
    overflow: str | None = None,
) -> Reduce:
    """Returns the all-reduce that these options name.

    `wire`: a codec, in place of `format`, or the name of a format, which is that format. Raises
    ValueError for what CPD refuses.
    """
    if wire is not None and not is_compressor(wire):
        format, wire = wire, None
    codec = format if wire is None else wire
    cast = None if wire is not None else format_or_scaled(format)
    accumulator = Accumulator(
        sums_format(cast),
        scheme="kahan" if kahan else "sequential",
        rounding=rounding,
        overflow=overflow or "ieee",
    )
    return Reduce(
        codec,
        accumulator=accumulator,
        order=order,
        exchange=exchange,
        group_size=group_size,
        aps=APS[aps],
        loss_scale=loss_scale,
        rounding=rounding,
        overflow=overflow,
    )


def reduce_text(spec: Reduce) -> str:
    """Returns the text of a training's all-reduce."""
    plain = Reduce(spec.format) if spec.format is not None else Reduce(spec.codec.text)
    words = [str(spec.codec)]
    if str(spec.accumulator) != str(plain.accumulator):
        words.append(f"accumulator={shlex.quote(str(spec.accumulator))}")
    if spec.aps:
        words.append("aps=paper" if spec.aps == "paper" else "aps")
    if spec.loss_scale != 1:
        words.append(f"loss_scale={spec.loss_scale!r}".removesuffix(".0"))
    for name in _KEYS:
        value = getattr(spec, name)
        if value != getattr(plain, name):
            words.append(f"{name}={shlex.quote(str(value))}")
    return " ".join(words)


_KEYS = (
    *("order", "exchange", "group_size", "rounding", "overflow", "random_bits", "variant"),
    "result",
)

CODECS = (
    "qsgd bits=4 bucket=512",
    "qsgd bits=2 bucket=128",
    "terngrad",
    "one_bit",
    "one_bit bucket=64",
    "top_k 0.01",
    "top_k 0.01 qsgd bits=4 bucket=512",
    "int8_rows",
    "fp8_rows",
    "feedback int4",
)
"""Compressors whose accuracies are shown next to one another."""
