# SPDX-License-Identifier: Apache-2.0
"""Judges papers' claims by the ranges of figures over seeds: `above`, `below`, `keeps`, `trains`.

A verdict is yes, no or "cannot tell". With fewer than three seeds it is always "cannot tell".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cpd_lab.papers.quotations import quoted
from cpd_lab.papers.study import Finding, Measured, Range

CHANCE = 10.0
"""The accuracy in percent of a random guess among ten classes."""
LEARNED = 5.0
"""A run has trained if its accuracy is more than this many percentage points above CHANCE."""
_FEW = "one seed or two do not decide"
_MEET = "the ranges over seeds meet: this setting cannot tell"
_LOWER = "the mean is lower, but the ranges over seeds meet"
_MIXED = "the seeds disagree"
Verdict = tuple[bool | None, str]


def is_above(a: Range, b: Range, by: float = 0.0) -> Verdict:
    """Judges whether figure `a` is above figure `b` by at least `by`, from their ranges over seeds.

    If the ranges overlap, or with fewer than three seeds, the verdict is "cannot tell". If `a` is
    above `b` in all seeds, the verdict is yes if the means differ by at least `by`, else no. If `a`
    is below `b` in all seeds, it is no.
    """
    if min(a.seeds, b.seeds) < 3:
        return None, _FEW
    if a.low > b.high:
        return round(a.mean - b.mean - by, 6) >= 0, ""
    return (False, "") if b.low > a.high else (None, _MEET)


def is_kept(a: Range, b: Range, within: float = 0.0) -> Verdict:
    """Judges whether `a` is at most `within` below `b`.

    Yes: the mean of `a` is at most `within` below the mean of `b`. No: the mean is lower than that,
    and every seed of `a` is below every seed of `b`. Otherwise the verdict is "cannot tell".
    """
    if min(a.seeds, b.seeds) < 3:
        return None, _FEW
    if round(a.mean - b.mean + within, 6) >= 0:
        return True, ""
    return (False, "") if a.high < b.low else (None, _LOWER)


def is_trained(a: Range) -> Verdict:
    """Judges whether runs have trained.

    Yes: every seed is more than LEARNED points above CHANCE. No: no seed is. Otherwise the verdict
    is "cannot tell".
    """
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
    """Judges the claim that one row of a study's tables is above another row.

    Args:
        measured: the study's tables.
        row: the paper's table or figure in papers.toml, such as `aps.T4`.
        claim: the paper's claim, as a sentence.
        paper: the paper's figures, as a template of `quoted`.
        better: the label of the row that should be above.
        worse: the label of the row that should be below.
        by: the least claimed difference of the means, in the figures' unit; default 0.
        column: the head of the compared column; default the second column.

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
    """Judges the claim that the figure of row `label` is below the figure of row `base`.

    `by` and all other arguments have the meanings that `above` describes.
    """
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
    """Judges the claim that row `label`'s figure is at most `within` below row `base`'s figure.

    `within` is in the figures' unit. `above` describes all other arguments.
    """
    return _judged(measured, (row, claim, paper), (label, base), column,
                   lambda a, b: is_kept(a, b, within))  # fmt: skip


def trains(
    measured: Measured, row: str, claim: str, paper: str, label: str, *, fails: bool = False
) -> Finding | None:
    """Judges the claim that the runs of row `label` train or, if `fails`, that they do not.

    All other arguments have the meanings that `above` describes.
    """
    a = measured.range(label)
    if a is None:
        return None
    holds, why = is_trained(a)
    if fails and holds is not None:
        holds = not holds
    return Finding(row, claim, quoted(row, paper), f"{label}: {a.text}", holds, why)


def stated(row: str, claim: str, paper: str, ours: str, verdict: Verdict | bool) -> Finding:
    """Returns a judged claim (a finding) with a verdict that the study computed.

    `paper` has the paper's figures: a text with labels in braces, which `quoted` fills.
    """
    holds, why = (verdict, "") if isinstance(verdict, bool) else verdict
    return Finding(row, claim, quoted(row, paper), ours, holds, why)


def present(findings: Iterable[Finding | None]) -> list[Finding]:
    """Returns the judged claims (findings); drops None, which stands for an unmeasured claim."""
    return [finding for finding in findings if finding is not None]


def _judged(
    measured: Measured,
    statement: tuple[str, str, str],
    labels: tuple[str, str],
    column: str | None,
    verdict: Callable[[Range, Range], Verdict],
) -> Finding | None:
    """Returns the judged claim (the finding) on two rows of the study's tables.

    `statement` is a tuple of the row of papers.toml, the claim and the paper's figures. Returns
    None if one of the two rows is not measured.
    """
    a, b = (measured.range(label, column) for label in labels)
    if a is None or b is None:
        return None
    row, claim, paper = statement
    ours = f"{labels[0]}: {a.text}; {labels[1]}: {b.text}"
    return Finding(row, claim, quoted(row, paper), ours, *verdict(a, b))
