# SPDX-License-Identifier: Apache-2.0
"""Finds corner cases that are impossible, not only absent from the lines (test vectors)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from cpd.hardware.vectors.corners import (
    CORNERS,
    corner_of,
    corner_of_integer,
    count_corners,
    largest_code,
)
from cpd.hardware.vectors.inputs import corner_codes, exhaustive, exhaustive_lines
from cpd.hardware.vectors.rules import ElementRule
from cpd.hardware.vectors.sums import SumRule
from cpd.hardware.vectors.values import has_signalling
from cpd.numeric.formats import Format

MOST_ENUMERATED = 1 << 24
"""All combinations of an element-wise operation's inputs are tried up to this number of them."""
_MOST_SUMS = 1 << 21
"""All combinations of a sum's inputs are tried up to this number of combinations."""


def cannot_happen(
    rule: ElementRule | SumRule, counts: Mapping[str, int], is_exhaustive: bool = False
) -> set[str]:
    """Returns the corner cases with count 0 that no input can reach.

    A case is impossible if the operation or its formats exclude it. If there are up to 2^24
    combinations of inputs (for sums up to 2^21), all are tried, and a case that none of them
    reaches is also impossible. With more combinations, the result may lack impossible cases.

    Args:
        rule: the operation.
        counts: a dict from each case to its number of lines.
        is_exhaustive: whether `counts` is over all inputs; default False.

    Returns:
        The names of the impossible cases.
    """
    missing = {name for name, count in counts.items() if count == 0}
    if is_exhaustive:
        return missing
    excluded = missing & _excluded_by_formats(rule)
    most = MOST_ENUMERATED if isinstance(rule, ElementRule) else _MOST_SUMS
    if missing > excluded and exhaustive_lines(rule.inputs) <= most:
        excluded |= _without_input(rule, missing - excluded)
    return excluded


def _excluded_by_formats(rule: ElementRule | SumRule) -> set[str]:
    """Returns the special cases that cannot happen with these formats and this operation."""
    possible = set(CORNERS[: CORNERS.index("cancellation")])
    if isinstance(rule, SumRule) or rule.operation in ("add", "fma"):
        possible.add("cancellation")
    operands = [f for _, f in rule.operands] if isinstance(rule, SumRule) else rule.formats
    for f in operands:
        possible |= _kinds(f, "in")
    if rule.has_integer_result:
        possible |= _named(corner_of_integer(2, np.arange(4, dtype=np.uint32), "out"))
    else:
        possible |= _kinds(rule.result, "out")
        if not rule.result.subnormals:
            possible.discard("subnormal_out")
    unit = rule.unit if isinstance(rule, SumRule) and rule.has_trace else None
    if unit is not None and not unit.promote:
        possible.discard("negative_zero")  # a block that aligns every term gives +0
    flags = set() if rule.operation == "div" else {"DZ"}
    if isinstance(rule, ElementRule) and not _can_be_invalid(rule):
        flags.add("NV")
    return (set(CORNERS) - possible) | flags


def _can_be_invalid(rule: ElementRule) -> bool:
    """Returns whether any operands raise the flag NV (invalid).

    NV is raised by a NaN operand that signals, or by a NaN result without a NaN operand.
    """
    if rule.nan_signals or any(map(has_signalling, rule.formats)):
        return True
    if rule.operation in ("add", "mul", "fma"):
        return any("infinity_in" in _kinds(f, "in") for f in rule.formats)
    return rule.operation != "cast"


def _kinds(f: Format, side: str) -> set[str]:
    """Returns the special cases (such as infinity) that a format's codes include.

    `side` is "in" for operands and "out" for results.
    """
    top = np.array([largest_code(f)], np.uint32)
    short = f.bits <= 16
    codes = np.arange(1 << f.bits, dtype=np.uint32) if short else np.append(corner_codes(f), top)
    return _named(corner_of(f, codes, side))


def _named(corners: npt.NDArray[np.uint16]) -> set[str]:
    return {name for i, name in enumerate(CORNERS) if (corners >> i & 1).any()}


def _without_input(rule: ElementRule | SumRule, names: set[str]) -> set[str]:
    """Returns the cases in `names` that no input reaches; tries all inputs."""
    left = set(names)
    for lines in exhaustive(rule.inputs):
        outputs, corners = rule.results(lines)
        has_code = ~rule.missing(outputs["result"])
        counts: Counter[str] = Counter()
        flags = outputs["flags"][has_code] if "flags" in outputs else None
        count_corners(counts, flags, corners[has_code])
        left -= {name for name, count in counts.items() if count}
        if not left:
            break
    return left
