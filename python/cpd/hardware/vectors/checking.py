# SPDX-License-Identifier: Apache-2.0
"""`check_vectors`: compares the test vectors in a file with CPD's own results."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.hardware.vectors.corners import CORNERS, FLAGS, corner_of, count_corners, flags_text
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.files import File
from cpd.hardware.vectors.making import NEAREST, element_rule, rule_of
from cpd.hardware.vectors.rules import NO_CODE, OPERANDS, ROUNDING_WORDS, ElementRule
from cpd.hardware.vectors.sums import SumRule
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format

_SHOWN = 10
_NV = 1 << FLAGS.index("NV")
_NAN_OUT = np.uint16(1 << CORNERS.index("nan_out"))


@dataclass
class VectorCheck:
    """The result of `check_vectors`.

    Attributes:
        rule: the operation of the lines (test vectors), with formats and roundings.
        lines: the number of lines.
        wrong: the number of lines in which a result, a signal or a flag differs.
        other_nans: the number of lines with another NaN code than CPD's, which count as correct.
        wrong_in: a dict from a field's name to the number of lines in which it differs.
        shown: the first wrong lines, at most ten, as texts with the file, the line's number and
            both values.
        coverage: a dict from the name of a corner case to the number of its lines.
        quiet_nan_fma: for fma(0, ∞, quiet NaN), the number of lines that raise the flag NV (key
            "raise NV"), and the number that do not (key "raise nothing"). IEEE 754 allows both, so
            both count as correct.
    """

    rule: ElementRule | SumRule
    lines: int = 0
    wrong: int = 0
    other_nans: int = 0
    wrong_in: Counter[str] = field(default_factory=Counter)
    shown: list[str] = field(default_factory=list)
    coverage: Counter[str] = field(default_factory=Counter)
    quiet_nan_fma: Counter[str] = field(default_factory=Counter)

    def rule_of_quiet_nans(self) -> str:
        """Returns a sentence: do the file's lines fma(0, ∞, quiet NaN) have the flag NV (invalid)?

        The result is empty if the file has no such lines.
        """
        raised, lines = self.quiet_nan_fma["raise NV"], self.quiet_nan_fma.total()
        if not lines:
            return ""
        if not raised:
            return "fma(0, ∞, quiet NaN) raises nothing"
        if raised == lines:
            return "fma(0, ∞, quiet NaN) raises NV, as RISC-V and TestFloat"
        return f"fma(0, ∞, quiet NaN) raises NV in {raised} of {lines} lines: two rules in one file"


@checked
def check_vectors(path: str | Path, kind: str | None = None) -> VectorCheck:
    """Compares each line (test vector) of a file with CPD's results for its inputs.

    The file's head defines the operation, the formats and the rounding. If there is no head, the
    file's name defines them, as in TestFloat: e4m3_mul_rne.tv. Code in the file is never executed.

    Args:
        path: the file.
        kind: the kind of file: `testfloat`, `readmemh`, `csv` or `jsonl`; default None: the kind
            that the suffix gives.

    Returns:
        The numbers of lines and wrong lines, and texts for the first wrong lines.

    Raises:
        ValueError: if the file has an invalid line (the text has its number), has no lines, or does
            not define the operation.
        OSError: if the file cannot be opened.
    """
    return checked_lines(path, kind)


def checked_lines(
    path: Any, kind: str | None = None, rule: ElementRule | SumRule | None = None
) -> VectorCheck:
    """Checks the lines of a file by the rule `rule`.

    If `rule` is None, the file's head defines the rule. If there is no head, the file's name does.
    """
    line_rule = rule or _rule_by_head(path, kind) or rule_by_name(path)
    if line_rule is None:
        raise ValueError(
            f"{path}:1: neither a head nor the file's name gives the operation and its formats: "
            f"name them, as in `cpd vectors mul e4m3fn --check {path}`"
        )
    file = File(path, kind, line_rule.fields)
    check = VectorCheck(line_rule)
    for columns in file.batches():
        _compare(check, line_rule, file, columns)
    if not check.lines:
        raise ValueError(f"{path}: no lines")
    return check


def _rule_by_head(path: Any, kind: str | None) -> ElementRule | SumRule | None:
    file = File(path, kind, (Field("a", 1),))
    if file.head is None:
        return None
    try:
        return rule_of(file.head)
    except ValueError as error:
        raise ValueError(f"{path}:1: {error}") from None


def rule_by_name(path: Any) -> ElementRule | None:
    """Returns the rule that a file name such as e4m3_mul_rne.tv defines; None for other names.

    The name may have two formats, as in fp16_e4m3_cast_rtz.tv.
    """
    stem = str(path).replace("\\", "/").rpartition("/")[2].partition(".")[0]
    *formats, operation, word = stem.split("_") if stem.count("_") > 1 else ("", "")
    modes = {word: mode for mode, word in ROUNDING_WORDS.items() if mode != "stochastic"}
    if operation not in OPERANDS or word not in modes:
        return None
    try:
        return element_rule(operation, formats, None, NEAREST | {"rounding": modes[word]}, "after")
    except ValueError:
        return None


def _compare(
    check: VectorCheck, rule: ElementRule | SumRule, file: File, columns: dict[str, Any]
) -> None:
    inputs = {f.name: columns[f.name] for f in rule.inputs}
    right, corners = rule.results(inputs)
    wrong = np.zeros(len(columns["line"]), bool)
    names = [f.name for f in rule.fields if f.role != "input"]
    either = _either_rule(check, rule, columns, right)
    for name in names:
        differs = columns[name] != right[name]
        if name == "result" and not rule.has_integer_result:
            same = _both_nan(rule.result, columns[name], right[name]) & differs
            check.other_nans += int(np.count_nonzero(same))
            differs &= ~same
        if name == "flags":
            differs &= ~either
        differs = differs if differs.ndim == 1 else differs.any(axis=1)
        check.wrong_in[name] += int(np.count_nonzero(differs))
        wrong |= differs
    check.lines += len(wrong)
    check.wrong += int(np.count_nonzero(wrong))
    count_corners(check.coverage, right.get("flags"), corners)
    for i in np.flatnonzero(wrong)[: max(0, _SHOWN - len(check.shown))]:
        check.shown.append(_told(rule, file, columns, right, int(i)))


def _either_rule(
    check: VectorCheck, rule: ElementRule | SumRule, columns: dict[str, Any], right: dict[str, Any]
) -> npt.NDArray[np.bool_]:
    """Returns a mask: True for test vectors of fma(0, ∞, quiet NaN) with correct flags.

    The flag NV (invalid) may be raised or not, as IEEE 754 allows. Also counts in `check` the test
    vectors that raise NV and those that do not.
    """
    lines = np.zeros(len(columns["line"]), bool)
    if isinstance(rule, SumRule) or rule.operation != "fma":
        return lines
    corners = [
        corner_of(f, columns[name].astype(np.uint32), "in")
        for name, f in zip("abc", rule.formats, strict=True)
    ]
    zero, infinite, nan = (
        [c & (1 << CORNERS.index(name)) != 0 for c in corners]
        for name in ("zero_in", "infinity_in", "nan_in")
    )
    undefined = zero[0] & infinite[1] | infinite[0] & zero[1]
    lines = undefined & nan[2] & (right["flags"] & _NV == 0)
    raises = lines & (columns["flags"] == right["flags"] | _NV)
    silent = lines & (columns["flags"] == right["flags"])
    check.quiet_nan_fma["raise NV"] += int(np.count_nonzero(raises))
    check.quiet_nan_fma["raise nothing"] += int(np.count_nonzero(silent))
    allowed: npt.NDArray[np.bool_] = raises | silent
    return allowed


def _both_nan(
    f: Format, actual: npt.NDArray[Any], right: npt.NDArray[Any]
) -> npt.NDArray[np.bool_]:
    """Returns a mask of the lines in which any NaN is correct.

    In such a line both results are NaN, or the format cannot encode the NaN result.
    """
    nans = [
        corner_of(f, codes.astype(np.uint32), "out") & _NAN_OUT != 0 for codes in (actual, right)
    ]
    both: npt.NDArray[np.bool_] = nans[0] & nans[1] | (right == NO_CODE)
    return both


def _told(
    rule: ElementRule | SumRule, file: File, columns: dict[str, Any], right: dict[str, Any], i: int
) -> str:
    inputs = " ".join(f"{f.name}={_hex(f, columns[f.name][i])}" for f in rule.inputs)
    parts = []
    for f in rule.fields:
        if f.role == "input" or np.array_equal(columns[f.name][i], right[f.name][i]):
            continue
        here, there = columns[f.name][i], right[f.name][i]
        texts = (
            (flags_text(int(here)), flags_text(int(there)))
            if f.name == "flags"
            else (_hex(f, here), _hex(f, there))
        )
        parts.append(f"{f.name} is {texts[0]}, must be {texts[1]}")
    return f"{file.path}:{columns['line'][i]}: {inputs}: {'; '.join(parts)}"


def _hex(f: Field, value: Any) -> str:
    elements = np.atleast_1d(value)
    number = sum(int(x) << f.width * k for k, x in enumerate(elements))
    return f"{number:0{f.digits}X}"


Check = VectorCheck  # the name in pickles of version 0.7
