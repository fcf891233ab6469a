#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws comments, docstrings and paragraphs at random, for a reader who has not seen them.

    reading.py SEED N [--of TEXT]
    reading.py SEED N --answers FILE

The texts are comments of C++, CUDA and Python, docstrings, and paragraphs of pages. Each has the
same chance, and long texts are shortened. The same seed draws the same texts from the same tree.
The reader notes for each text whether it was understood at first reading. FILE has one line for
each text: its number, and `y` or `n`. --answers prints the share of `y` in all and by kind, with
its 95 % confidence interval (Wilson), and the locations of the texts that were not understood.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections import defaultdict
from collections.abc import Sequence
from math import sqrt
from pathlib import Path

import prose

LEAST, MOST = 4, 90
"""The least and the greatest number of words of a text. Shorter texts are not drawn. Longer texts
are cut at the end of a sentence."""
Z = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def draw(seed: int, count: int, texts: Sequence[prose.Text]) -> list[prose.Text]:
    """Draws `count` different texts, each with the same chance. Raises ValueError if there are
    fewer."""
    candidates = [text for text in texts if is_read(text)]
    if count > len(candidates):
        raise ValueError(f"N must be at most the {len(candidates)} texts, got {count}")
    return random.Random(seed).sample(candidates, count)


def is_read(text: prose.Text) -> bool:
    """Returns whether a text is prose: it has at least LEAST words, and more letters than other
    characters."""
    words = re.findall(r"[A-Za-z]{2,}", text.text)
    return text.kind != "table" and len(words) >= LEAST and len("".join(words)) > len(text.text) / 2


def shortened(text: str) -> str:
    """Returns the first sentences of a text: at least one, and together at most MOST words if
    possible."""
    parts = prose.sentences(text)
    kept = parts[:1]
    for part in parts[1:]:
        if len(" ".join([*kept, part]).split()) > MOST:
            return " ".join(kept) + " […]"
        kept.append(part)
    return " ".join(kept)


def answers(file: Path, count: int) -> list[bool]:
    """Reads a reader's answers for texts 1…count. Raises ValueError if an answer is missing, given
    twice, or neither `y` nor `n`."""
    found: dict[int, bool] = {}
    for line in file.read_text().splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        given = re.match(r"(\d+)\s+([yn])\b", line)
        number = int(given[1]) if given else 0
        if given is None or not 1 <= number <= count or number in found:
            raise ValueError(f"a line must be a number 1…{count}, once, and y or n, got {line!r}")
        found[number] = given[2] == "y"
    if missing := [str(n) for n in range(1, count + 1) if n not in found]:
        raise ValueError(f"no verdict on {', '.join(missing)}")
    return [found[n] for n in range(1, count + 1)]


def interval(hits: int, count: int) -> tuple[float, float]:
    """Returns Wilson's 95 % confidence interval of a share, given `hits` of `count`."""
    share, square = hits / count, Z * Z / count
    middle = (share + square / 2) / (1 + square)
    half = Z / (1 + square) * sqrt(share * (1 - share) / count + square / count / 4)
    return max(0.0, middle - half), min(1.0, middle + half)


def line_of(name: str, verdicts: Sequence[bool]) -> str:
    """Returns a line with the share of understood texts and its confidence interval."""
    hits, count = sum(verdicts), len(verdicts)
    low, high = interval(hits, count)
    return f"{name}: {hits} of {count}, {hits / count:.0%} ({low:.0%} to {high:.0%})"


def verdict(drawn: Sequence[prose.Text], verdicts: Sequence[bool]) -> list[str]:
    """Returns the lines to print about a reader's answers."""
    by_kind = defaultdict(list)
    for text, understood in zip(drawn, verdicts, strict=True):
        by_kind[f"{Path(text.file).suffix[1:]} {text.kind}s"].append(understood)
    lines = [line_of("understood at first reading", verdicts)]
    lines += [f"  {line_of(kind, by_kind[kind])}" for kind in sorted(by_kind)]
    return lines + [
        f"{number}. {text.file}:{text.line}"
        for number, (text, understood) in enumerate(zip(drawn, verdicts, strict=True), 1)
        if not understood
    ]


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="draws texts for a reader's test")
    parser.add_argument("seed", type=int)
    parser.add_argument("count", type=int, metavar="N")
    parser.add_argument("--of", default="", metavar="TEXT", help="only files whose name has TEXT")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="a reader's verdicts")
    given = parser.parse_args(words)
    texts = list(prose.texts(of=given.of))
    try:
        drawn = draw(given.seed, given.count, texts)
        if given.answers:
            print("\n".join(verdict(drawn, answers(given.answers, given.count))))
            return 0
    except ValueError as error:
        parser.error(str(error))
    for number, text in enumerate(drawn, 1):
        print(f"{number}. {text.file}:{text.line} ({text.kind})\n   {shortened(text.text)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
