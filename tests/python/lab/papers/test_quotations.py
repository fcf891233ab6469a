# SPDX-License-Identifier: Apache-2.0
"""Tests that each quotation of quotations.toml is in its paper's text, in the given section or
table."""

import re
import tomllib
from pathlib import Path

import pytest

import paper_texts

pytest.importorskip("torch")

import cpd_lab.papers.catalogue as catalogue
from cpd_lab.papers.catalogue import papers
from cpd_lab.papers.quotations import labels_of, quotations, quoted

needs_texts = pytest.mark.skipif(
    not paper_texts.at_hand(), reason="the papers' texts are not at hand (../shared/papers)"
)


def places(quotation, near=None, value=None):
    """Returns the paper's sections, or its tables, in which a quotation is found."""
    paper = quotation.paper
    near = quotation.near if near is None else near
    found = paper_texts.found_at(paper, near, value or quotation.value)
    if quotation.place.startswith("section"):
        return {f"section {paper_texts.section_of(paper, at)}" for at in found}
    return {name for at in found for name in paper_texts.table_of(paper, at)}


def quotation(row, label):
    (one,) = (q for q in quotations() if f"{q.paper}.{q.row}" == row and q.label == label)
    return one


@needs_texts
@pytest.mark.parametrize("one", quotations(), ids=lambda q: f"{q.paper}.{q.row} {q.label}")
def test_a_quotation_is_in_the_paper_at_its_place(one):
    found = places(one)
    assert found, f"{one.paper}: {one.near!r} {one.value!r} is not in the text"
    assert one.place in found, f"found in {sorted(found)}"


@needs_texts
def test_exchanged_and_truncated_values_are_not_found():
    with_aps, without = quotation("aps.T5", "e4m3 aps"), quotation("aps.T5", "e4m3")
    assert not places(with_aps, value=without.value)
    assert not places(without, value=with_aps.value)
    assert not places(without, value="92.04")  # the text has 92.036
    assert not places(without, value="92.03")
    assert not places(quotation("oland.F4d", "fewer"), value="2")


@needs_texts
def test_another_place_is_not_this_one():
    assert places(quotation("oland.corr", "least")) == {"section 3.4"}
    assert places(quotation("aps.T6", "in table 7")) == {"section 4.2"}
    assert places(quotation("qsgd.slips", "variance")) == {"section 4"}
    assert "Table 7" in places(quotation("aps.T7", "(5,2)"))
    assert not {"Table 6", "Table 8"} & places(quotation("aps.T7", "(5,2)"))
    assert places(quotation("qsgd.T1", "LSTM")) == {"Table 1"}


@needs_texts
@pytest.mark.parametrize("paper", sorted(paper_texts.HEADINGS))
def test_headings_are_in_order(paper):
    """Each heading follows the previous one in the paper's text. So a section ends where the next
    section begins."""
    starts = [start for start, _ in paper_texts.sections(paper)]
    assert starts == sorted(set(starts))


def test_labels_and_places_are_distinct():
    every = [(one.paper, one.row, one.label) for one in quotations()]
    assert len(every) == len(set(every))
    assert len(every) > 150
    assert all(re.match(r"(Table \d|section \d)", one.place) for one in quotations())


def test_quotations_are_of_rows():
    rows = {row.name for paper in papers() for row in paper.rows}
    slips = {f"{paper.name}.slips" for paper in papers()}
    assert {f"{one.paper}.{one.row}" for one in quotations()} <= rows | slips


def test_the_table_of_rows_has_no_values_of_its_own():
    """papers.toml refers to quotations.toml for each value with decimals or a percent sign. Other
    tests look these values up in the paper's text."""
    text = Path(catalogue.__file__).with_name("papers.toml").read_text(encoding="utf-8")
    for paper, of in tomllib.loads(text).items():
        for name, row in of["rows"].items():
            own = re.sub(r"\{[^}]*\}", "", row.get("values", ""))
            assert not re.search(r"\d\.\d|\d ?%", own), f"{paper}.{name}: {own}"
            assert bool(re.search(r"\d", own)) <= ("{" in row["values"] if own else True)


def test_a_label_that_is_not_quoted_is_named():
    assert quoted("aps.T5", "{e4m3 aps} for {fp32}") == "92.44 for 92.072"
    assert labels_of("aps.F2") == {}
    message = r"aps\.T5 has no quotation 'e4m3 APS'; it has fp32, e4m3 aps, e4m3, "
    with pytest.raises(ValueError, match=message):
        quoted("aps.T5", "{e4m3 APS}")
