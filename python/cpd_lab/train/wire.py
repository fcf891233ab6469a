# SPDX-License-Identifier: Apache-2.0
"""The all-reduce of a training: `reduce_spec`."""

import math
from typing import Literal

from cpd.comm.spec import Reduce
from cpd.numeric.accumulator import Accumulator

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
    spec = Reduce(
        format if wire is None else wire,
        order=order,
        exchange=exchange,
        group_size=group_size,
        aps=APS[aps],
        loss_scale=loss_scale,
        rounding=rounding,
        overflow=overflow,
    )
    sums = Accumulator(
        spec.accumulator,
        scheme="kahan" if kahan else "sequential",
        rounding=rounding,
        overflow=overflow or "ieee",
    )
    return spec.replace(accumulator=sums)


def reduce_text(spec: Reduce) -> str:
    """Returns the text of a training's all-reduce, whose averages are an option of their own."""
    return spec.replace(average=None, divide=None).text


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
