# SPDX-License-Identifier: Apache-2.0
"""Judges papers' claims by ranges over seeds: `above`, `below`, `keeps`, `trains`, `fails`.

Every verdict is yes, no or cannot tell. Fewer than three seeds never decide.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cpd_lab.papers.quotations import quoted
from cpd_lab.papers.study import Finding, Measured, Range

CHANCE = 10.0
"""Percent of ten classes that a guess gets right."""
LEARNED = 5.0
"""A run has trained if it is more than this many points above CHANCE."""
_FEW = "one seed or two do not decide"
_MEET = "the ranges over seeds meet: this setting cannot tell"
_LOWER = "the mean is lower, but the ranges over seeds meet"
_MIXED = "the seeds disagree"
Verdict = tuple[bool | None, str]


def is_above(a: Range, b: Range, by: float = 0.0) -> Verdict:
    """Yes: every seed of `a` is above all of `b`, the means by at least `by`.

    No: the same the other way round, or the means differ by less than `by` although the ranges are
    apart.
    """
    if min(a.seeds, b.seeds) < 3:
        return None, _FEW
    if a.low > b.high:
        return round(a.mean - b.mean - by, 6) >= 0, ""
    return (False, "") if b.low > a.high else (None, _MEET)


def is_kept(a: Range, b: Range, within: float = 0.0) -> Verdict:
    """Yes: the mean of `a` is at most `within` below `b`'s mean.

    No: it is lower, and every seed of `a` is below all of `b`.
    """
    if min(a.seeds, b.seeds) < 3:
        return None, _FEW
    if round(a.mean - b.mean + within, 6) >= 0:
        return True, ""
    return (False, "") if a.high < b.low else (None, _LOWER)


def is_trained(a: Range) -> Verdict:
    """Yes: every seed is more than LEARNED points above CHANCE. No: none is."""
    if a.seeds < 3:
        return None, _FEW
    limit = CHANCE + LEARNED
    return (True, "") if a.low > limit else (False, "") if a.high <= limit else (None, _MIXED)


def above(
    measured: Measured,
    row: str,
    claim: str,
    paper: str,
    better: str,
    worse: str,
    *,
    by: float = 0.0,
    column: str | None = None,
) -> Finding | None:
    """Judges that one row of the tables is above another.

    Args:
        measured: the study's tables.
        row: of papers.toml, such as `aps.T4`.
        claim: the paper's claim in a sentence.
        paper: the paper's figures, a template of `quoted`.
        better: the row of the tables that should be above.
        worse: the row that should be below.
        by: the least difference of the means that the paper claims, in points; default 0.
        column: the head of the column that is compared; default the second.

    Returns:
        The finding; None if one of the two rows is not measured.
    """
    return _judged(measured, (row, claim, paper), (better, worse), column,
                   lambda a, b: is_above(a, b, by))  # fmt: skip


def below(
    measured: Measured,
    row: str,
    claim: str,
    paper: str,
    label: str,
    base: str,
    *,
    by: float = 0.0,
    column: str | None = None,
) -> Finding | None:
    """Judges that `label` is below `base`, by at least `by` points. Arguments as in `above`."""
    return _judged(measured, (row, claim, paper), (label, base), column,
                   lambda a, b: is_above(b, a, by))  # fmt: skip


def keeps(
    measured: Measured,
    row: str,
    claim: str,
    paper: str,
    label: str,
    base: str,
    *,
    within: float = 0.0,
    column: str | None = None,
) -> Finding | None:
    """Judges that `label` is at most `within` points below `base`. Arguments as in `above`."""
    return _judged(measured, (row, claim, paper), (label, base), column,
                   lambda a, b: is_kept(a, b, within))  # fmt: skip


def trains(
    measured: Measured, row: str, claim: str, paper: str, label: str, *, fails: bool = False
) -> Finding | None:
    """Judges that `label` trains or, with `fails`, that it does not. Arguments as in `above`."""
    a = measured.range(label)
    if a is None:
        return None
    holds, why = is_trained(a)
    if fails and holds is not None:
        holds = not holds
    return Finding(row, claim, quoted(row, paper), f"{label}: {a.text}", holds, why)


def stated(row: str, claim: str, paper: str, ours: str, verdict: Verdict | bool) -> Finding:
    """Returns a finding whose verdict a study computes. `paper` is a template of `quoted`."""
    holds, why = (verdict, "") if isinstance(verdict, bool) else verdict
    return Finding(row, claim, quoted(row, paper), ours, holds, why)


def present(findings: Iterable[Finding | None]) -> list[Finding]:
    """Returns the findings of what is measured."""
    return [finding for finding in findings if finding is not None]


def _judged(
    measured: Measured,
    statement: tuple[str, str, str],
    labels: tuple[str, str],
    column: str | None,
    verdict: Callable[[Range, Range], Verdict],
) -> Finding | None:
    """Returns the finding on two rows.

    `statement`: the row of papers.toml, the claim and the paper's figures. None if one of the
    two is not measured.
    """
    a, b = (measured.range(label, column) for label in labels)
    if a is None or b is None:
        return None
    row, claim, paper = statement
    ours = f"{labels[0]}: {a.text}; {labels[1]}: {b.text}"
    return Finding(row, claim, quoted(row, paper), ours, *verdict(a, b))
