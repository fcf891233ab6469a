# SPDX-License-Identifier: Apache-2.0
"""Finds words, values and their sections in the text extractions of the papers."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from pathlib import Path

FOLDER = Path(__file__).parents[4] / "shared/papers"
_FILES = {
    "aps": "001_144be12629269b12.txt",
    "grubic": "000_31f4455fa21d0a7c.txt",
    "qsgd": "003_bc370f3576d74ddc.txt",
    "terngrad": "002_cfa0b6de1bc19b45.txt",
    "oland": "004_acae04cfc7f7765d.txt",
}
CAPTION_FIRST = {"qsgd", "terngrad"}
"""Papers in whose extractions the caption of a table comes before the table's values."""
HEADINGS = {
    "aps": [
        "1 Introduction", "2 Related Work", "2.1 Gradient synchronization",
        "2.2 Low-Precision for Deep", "2.3 Customized-Precision", "3 APS: Auto-Precision",
        "3.1 The limitation of", "3.2 Layer-wise precision", "3.3 Technical details",
        "3.3.1 Using the power", "3.3.2 Trade-off", "3.3.3 Find the maximum", "4 Experiments",
        "4.1 Training on small-scale", "4.2 Training on large-scale", "4.3 Performance Analysis",
        "5 CPD: Customized", "5.1 Features of CPD", "5.1.1 Low-precision accumulation",
        "6 Conclusion", "References -",
    ],
    "grubic": [
        "1. Does low-precision always hurt", "2 PRELIMINARIES", "2.1 Stochastic Gradient",
        "2.2 One-Bit", "2.3 SGD with", "2.4 Communication Primitives", "3 SYSTEM DESCRIPTION",
        "3.1 CNTK", "3.2 Low-Precision Support", "4 EXPERIMENTAL SETUP", "4.1 DataSets",
        "4.2 Networks", "4.3 Machines", "4.4 Tuning", "5 ANALYSIS", "5.1 Accuracy",
        "5.2 Performance", "5.3 Scalability", "5.4 Discussion", "6 OUTLOOK", "7 RELATED WORK",
    ],
    "qsgd": [
        "2 Preliminaries", "3 Quantized Stochastic", "3.1 Generalized Stochastic",
        "3.2 QSGD Guarantees", "3.3 Quantized Variance", "4 QSGD Variants", "5 Experiments",
        "6 Conclusions",
    ],
    "terngrad": [
        "2 Related work", "3 Problem Formulation", "3.1 Problem Formulation",
        "3.2 Convergence Analysis", "3.3 Feasibility", "4 Experiments", "4.1 We study the",
        "4.2 Scaling to", "5 Performance Model", "Acknowledgments",
    ],
    "oland": [
        "1. INTRODUCTION", "2. DISTRIBUTED TRAINING", "3. PARAMETER COMPRESSION",
        "3.1. Quantizing", "3.2. Dynamic Selection", "3.3. Lossless", "3.4. Bits Required",
        "4. AN ALGORITHM", "5. EXPERIMENTS", "5.1. Establishing", "5.2. Going beyond",
        "6. CONCLUSION",
    ],
}  # fmt: skip
"""The first words of each section, with the section's number, in the paper's order. The text before
the first entry belongs to section 1. For Grubic et al. the first entry begins the list of insights
in section 1; it is not a heading."""


def at_hand() -> bool:
    """Returns True if the papers' texts are in the folder next to the checkout."""
    return FOLDER.is_dir()


def plain(text: str) -> str:
    """Normalizes a text in which extractions differ: ligatures, dashes, spaces and TeX markup."""
    text = unicodedata.normalize("NFKC", text)
    text = text.replace("\\times", "×").translate(str.maketrans("−–—∼“”", '---~""'))
    return " ".join(re.sub(r"[*${}\\`]", "", text).split())


@functools.cache
def paper_text(paper: str) -> str:
    """Returns the normalized text of a paper."""
    text = (FOLDER / _FILES[paper]).read_text(encoding="utf-8")
    if text.startswith("{"):
        text = json.loads(text)["full_text"]
    return plain(text)


def found_at(paper: str, near: str, value: str) -> list[int]:
    """Returns the positions at which `value` follows the words `near`. A position is left out if a
    digit stands between the words and the value, or directly before or after the value."""
    words = re.escape(plain(near)) + r"[^0-9]{0,40}?" if near else ""
    start = r"(?<![\d.])" if value[:1].isdigit() else ""
    end = r"(?!\.?\d)" if value[-1:].isdigit() else ""
    pattern = words + start + f"(?P<value>{re.escape(plain(value))})" + end
    return [match.start("value") for match in re.finditer(pattern, paper_text(paper))]


def section_of(paper: str, position: int) -> str:
    """Returns the number of the section that contains this position."""
    number = "1"
    for start, heading in sections(paper):
        if start > position:
            break
        number = heading
    return number


@functools.cache
def sections(paper: str) -> list[tuple[int, str]]:
    """Returns the position at which each section begins, with the section's number."""
    text, begin, found = paper_text(paper), 0, []
    for heading in HEADINGS[paper]:
        begin = text.find(plain(heading), begin)
        assert begin >= 0, heading
        found.append((begin, heading.split()[0].rstrip(".")))
    return found


def table_of(paper: str, position: int) -> set[str]:
    """Returns the tables to which the text at a position in the paper may belong. 'Table 5' means
    that Table 5 has the nearest caption. 'Table 5 caption' means that this caption begins up to 600
    characters before the position."""
    captions = [
        (match.start(), match[1])
        for match in re.finditer(r"(Table \d+)[.:] [A-Z]", paper_text(paper))
    ]
    before = [name for start, name in captions if start <= position]
    if paper in CAPTION_FIRST:
        return set(before[-1:])
    after = [name for start, name in captions if start > position]
    inside = [name for start, name in captions if start <= position < start + 600]
    return {*after[:1], *(f"{name} caption" for name in inside[-1:])}
