# SPDX-License-Identifier: Apache-2.0
"""The values that the papers state, by table or figure and label.

The functions are `quotations`, `labels_of` and `quoted`.
"""

from __future__ import annotations

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from cpd.numeric.shown import shown


@dataclass(frozen=True)
class Quotation:
    """A value, or a sentence, that a paper's text states.

    Attributes:
        paper, row: names of papers.toml, such as `aps` and `T5`.
        label: the name of the value within the row.
        place: where the paper states it: `Table N`, `Figure N` or `section N`.
        near: the words before the value in the paper's text, without a digit between them and the
            value. If empty, the text is searched for the value itself.
        value: the value, or the words, as the paper prints them.
    """

    paper: str
    row: str
    label: str
    place: str
    near: str
    value: str


@functools.cache
def _read() -> dict[str, dict[str, dict[str, list[list[str]]]]]:
    text = Path(__file__).with_name("quotations.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def quotations() -> tuple[Quotation, ...]:
    """Returns all quotations, in the order of quotations.toml."""
    return tuple(
        Quotation(paper, row, label, place, near, value)
        for paper, rows in _read().items()
        for row, places in rows.items()
        for place, quotes in places.items()
        for label, near, value in quotes
    )


def labels_of(row: str) -> dict[str, str]:
    """Returns the values that a paper's table or figure states, by label; empty for no values."""
    return {
        quotation.label: quotation.value
        for quotation in quotations()
        if f"{quotation.paper}.{quotation.row}" == row
    }


def quoted(row: str, template: str) -> str:
    """Fills a text with a row's quotations.

    Args:
        row: a row of papers.toml, such as `aps.T5`.
        template: a text with labels in braces: `"{e4m3 aps} for {fp32}"`.

    Returns:
        The text, with the quoted values in place of the labels.

    Raises:
        ValueError: for a label that the row does not quote; the message lists the row's labels.

    >>> quoted("aps.T5", "{e4m3 aps} for {fp32}")
    '92.44 for 92.072'
    """
    labels = labels_of(row)
    try:
        return template.format_map(labels)
    except KeyError as error:
        known = ", ".join(labels) or "none"
        raise ValueError(f"{row} has no quotation {shown(error.args[0])}; it has {known}") from None
