# SPDX-License-Identifier: Apache-2.0
"""`reduce_spec`: makes the all-reduce of a training from its options."""

import math
from typing import Literal

from cpd.comm.spec import Reduce
from cpd.numeric.accumulator import Accumulator

APS: dict[str, bool | Literal["paper"]] = {"off": False, "on": True, "paper": "paper"}


def is_power_of_two(value: float) -> bool:
    """Returns True if a number is a finite power of two."""
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
    """Returns the all-reduce that a training's options describe.

    `wire` is a codec or the name of a format; if it is given, it replaces `format`. `cpd.Reduce`
    describes the other parameters. Raises ValueError for values that `cpd.Reduce` refuses.
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
    """Returns the text of an all-reduce without the options `average` and `divide`.

    A training divides by the number of nodes through its own option `divide`.
    """
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
"""The compressors whose accuracies the demo and a study compare."""
