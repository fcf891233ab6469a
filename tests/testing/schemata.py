# SPDX-License-Identifier: Apache-2.0
"""Wraps compiled mutants, so that one build holds all of them and a number selects one.

An expression becomes `(::cpd_mutant::on(N) ? (after) : (before))`, and a statement becomes
`if (on(N)) {after} else {before}`. The smallest whole expression or statement around the change is
wrapped. Several changes within it form one chain of such choices. Constant expressions keep the
original.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mutants import ROOT, Mutant

HEADER = """\
// Chooses one of the mutants that this build holds; `record` notes which are reached.
#pragma once
extern "C" {
__attribute__((visibility("default"))) extern int cpd_mutant_number;
__attribute__((visibility("default"), cold)) bool cpd_mutant_record(int number);
}
namespace cpd_mutant {
__attribute__((always_inline)) inline constexpr bool on(int number) {
  if (__builtin_is_constant_evaluated()) return false;
  return cpd_mutant_number == number || (cpd_mutant_number < 0 && cpd_mutant_record(number));
}
}  // namespace cpd_mutant
"""
SOURCE = """\
#include <atomic>
#include <cstdio>
#include <cstdlib>
static std::atomic<unsigned char> reached[1 << 21];
int cpd_mutant_number = std::getenv("CPD_MUTANT") ? std::atoi(std::getenv("CPD_MUTANT")) : 0;
// Appends a number to the file CPD_MUTANT_REACHED at once: a process may be ended at any time.
bool cpd_mutant_record(int number) {
  const auto bit = static_cast<unsigned char>(1 << (number & 7));
  if ((reached[number >> 3].fetch_or(bit) & bit) != 0) return false;
  const char* path = std::getenv("CPD_MUTANT_REACHED");
  std::FILE* file = path == nullptr ? nullptr : std::fopen(path, "a");
  if (file == nullptr) return false;
  std::fprintf(file, "%d\\n", number);
  std::fclose(file);
  return false;
}
"""
_BRACKETS = {")": "(", "]": "[", "}": "{"}
_CLOSING = {opening: closing for closing, opening in _BRACKETS.items()}
_HEADS = re.compile(r"\b(if|for|while|switch|constexpr)\s*$")
_STOPS = re.compile(r"\b(return|throw|case|else|do|co_return)$")
_STATEMENT = re.compile(r";|\b(return|throw|break|continue|else|if|for|while)\b")
_DECLARATION = re.compile(r"\s*(const|constexpr|auto|static|using)\b[^;]*;\s*")
_NOISE = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'", re.S
)


def number_of(mutant: Mutant) -> int:
    """Returns the number of a mutant, to which CPD_MUTANT is set. The number has 24 bits and does
    not depend on the list's other entries."""
    return int(hashlib.sha256(mutant.name.encode()).hexdigest()[:6], 16) or 1


class Region(NamedTuple):
    """An expression or a statement of a file, as a range of its text. It is wrapped in a choice
    between the original and the mutants."""

    begin: int
    end: int
    form: str


def wrapped(text: str, mutants: Sequence[Mutant]) -> str:
    """Returns the text of a file with its mutants."""
    masked = _masked(text)
    changes = [(m, *_change(text, m)) for m in mutants]
    regions = [region(masked, begin, end, after, m.form) for m, begin, end, after in changes]
    for whole in reversed(_merged(zip(regions, mutants, strict=True))):
        versions = []
        original = text[whole.begin : whole.end]
        for (mutant, begin, end, after), own in zip(changes, regions, strict=True):
            if whole.begin <= own.begin and own.end <= whole.end:
                version = text[whole.begin : begin] + after + text[end : whole.end]
                versions.append((number_of(mutant), version))
                for each in (version, original):
                    _check(whole.form, each, mutant)
        text = text[: whole.begin] + _chain(whole.form, versions, original) + text[whole.end :]
    return text


def _change(text: str, mutant: Mutant) -> tuple[int, int, str]:
    """Returns the change that a mutant makes: a range of the text, and the text that replaces the
    range."""
    before, after = mutant.before, mutant.after
    same = 0
    while same < min(len(before), len(after)) and before[same] == after[same]:
        same += 1
    tail = 0
    while tail < min(len(before), len(after)) - same and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    begin = text.index(mutant.before)
    return begin + same, begin + len(before) - tail, after[same : len(after) - tail]


def _merged(regions: Iterable[tuple[Region, Mutant]]) -> list[Region]:
    whole: list[Region] = []
    for own, mutant in sorted(regions, key=lambda pair: (pair[0].begin, -pair[0].end)):
        if not whole or own.begin >= whole[-1].end:
            whole.append(own)
        elif own.end > whole[-1].end:
            raise ValueError(f"{mutant.name}: crosses another mutant's text; write it otherwise")
    return whole


def _chain(form: str, versions: Iterable[tuple[int, str]], original: str) -> str:
    if form == "statement":
        parts = [f"if (::cpd_mutant::on({n})) {{ {v}\n}} else " for n, v in versions]
        return "".join(parts) + f"{{ {original}\n}}"
    parts = [f"::cpd_mutant::on({n}) ? ({v}\n) : " for n, v in versions]
    return f"({''.join(parts)}({original}\n))"


def _check(form: str, version: str, mutant: Mutant) -> None:
    """Raises ValueError if a text cannot be a version of a choice.

    An expression must not be empty or a list in braces. A declaration would end with its choice.
    """
    text = _masked(version).strip()
    if form == "expression" and (not text or text[0] in "{."):
        raise ValueError(f"{mutant.name}: replace a whole expression; no choice is {version!r}")
    if form == "statement" and _DECLARATION.fullmatch(text):
        raise ValueError(f"{mutant.name}: replace an expression, so that the name stays: {version}")


def _masked(text: str) -> str:
    """Returns the text with comments replaced by blanks, and quoted text by letters."""

    def blank(found: re.Match[str]) -> str:
        letter = " " if found[0].startswith("/") else "x"
        return re.sub(r"[^\n]", letter, found[0])

    return _NOISE.sub(blank, text)


def region(masked: str, begin: int, end: int, after: str, form: str = "") -> Region:
    """Returns the smallest whole expression or statement around the range [begin, end)."""
    while begin > 0 and _is_word(masked[begin - 1 : begin + 1]):
        begin -= 1
    while _is_word(masked[end - 1 : end + 1]):
        end += 1
    core = masked[begin:end] + " " + _masked(after)
    if not form:
        form = "statement" if _STATEMENT.search(core) else "expression"
    if form == "statement":
        return _statement(masked, begin, end)
    while begin > 0 and _is_token(masked, begin - 1):
        begin -= 1
    while end < len(masked) and _is_token(masked, end):
        end += 1
    begin, end = _balanced(masked, begin, end)
    open_choices = core.count("?") - len(re.findall(r"(?<!:):(?!:)", core))
    left = _left(masked, begin, is_choice=open_choices < 0)
    whole = Region(left, _right(masked, end, is_choice=open_choices > 0), form)
    while masked[whole.begin].isspace():
        whole = whole._replace(begin=whole.begin + 1)
    while masked[whole.end - 1].isspace():
        whole = whole._replace(end=whole.end - 1)
    is_list = masked[whole.begin] == "{"  # a list in braces cannot be an operand of ?:
    before = masked[: whole.begin].rstrip()[-1:]
    is_all = masked[whole.end] == ";" and before in (";", "{", "}", ")")
    if is_list or (is_all and masked[_around(masked, whole.begin)] == "{"):
        return _statement(masked, whole.begin, whole.end)
    return whole


def _is_word(pair: str) -> bool:
    """Returns whether two characters belong to one word."""
    return re.fullmatch(r"\w\w", pair) is not None


def _is_token(masked: str, at: int) -> bool:
    """Returns whether a character belongs to a word or an operator. A single colon does not."""
    if masked[at] == ":":
        return masked[at - 1] == ":" or masked[at + 1] == ":"
    return re.match(r"[\w+\-*/%<>=!&|^~.]", masked[at]) is not None


def _balanced(masked: str, begin: int, end: int, splits: bool = True) -> tuple[int, int]:
    """Extends the range until its brackets match. If `splits` is true and the range contains a
    comma outside brackets, extends it to the surrounding brackets."""
    while True:
        depth = 0
        for i in range(begin, end):
            if masked[i] in _CLOSING:
                depth += 1
            elif masked[i] in _BRACKETS:
                depth -= 1
            if depth < 0:
                begin = _partner(masked, i)
                break
            if splits and depth == 0 and masked[i] == ",":
                begin = _around(masked, begin)
                end = max(end, _partner(masked, begin) + 1)
                break
        else:
            if depth == 0:
                return begin, end
            unclosed = [i for i in range(begin, end) if masked[i] in _CLOSING]
            end = max(end, *(_partner(masked, i) + 1 for i in unclosed))


def _around(masked: str, at: int) -> int:
    """Returns the index of the innermost bracket that is open at the index `at`."""
    depth = 0
    for i in range(at - 1, -1, -1):
        if masked[i] in _BRACKETS:
            depth += 1
        elif masked[i] in _CLOSING:
            if depth == 0:
                return i
            depth -= 1
    raise ValueError("no bracket is open")


def _partner(masked: str, at: int) -> int:
    """Returns the index of the bracket that matches the bracket at `at`."""
    step = 1 if masked[at] in _CLOSING else -1
    depth = 0
    for i in range(at, len(masked) if step > 0 else -1, step):
        if masked[i] in _CLOSING:
            depth += step
        elif masked[i] in _BRACKETS:
            depth -= step
        if depth == 0:
            return i
    raise ValueError("brackets do not match")


def _is_block_end(masked: str, at: int) -> bool:
    return masked[at] == "}" and bool(re.match(r"\}\s*\n", masked[at:]))


def _left(masked: str, at: int, is_choice: bool) -> int:
    """Returns the index at which the expression that contains the index `at` begins."""
    while at > 0:
        c = masked[at - 1]
        if c in ";,{([" or (c == "?" and not is_choice) or _is_block_end(masked, at - 1):
            return at
        if c in _BRACKETS:
            opening = _partner(masked, at - 1)
            if _HEADS.search(masked[:opening][-20:]):
                return at
            at = opening
            continue
        if c == ":" and not is_choice and masked[at - 2] != ":" and masked[at] != ":":
            return at
        is_equality = masked[at] == "=" or masked[at - 2] in "=!"
        is_order = masked[at - 2] in "<>" and masked[at - 3] != masked[at - 2]
        if c == "=" and not is_equality and not is_order:
            return at
        if _STOPS.search(masked[max(0, at - 12) : at]) and not masked[at].isalnum():
            return at
        at -= 1
    return at


def _right(masked: str, at: int, is_choice: bool) -> int:
    """Returns the index at which the expression that contains the index `at` ends."""
    while at < len(masked):
        c = masked[at]
        if c in ";,)]}":
            return at
        if c in _CLOSING:
            at = _partner(masked, at) + 1
            continue
        is_colon = c == ":" and masked[at + 1] != ":" and masked[at - 1] != ":"
        if (c == "?" or is_colon) and not is_choice:
            return at
        at += 1
    return at


def _statement(masked: str, begin: int, end: int) -> Region:
    """Returns the range of whole statements that contains the given range."""
    while masked[begin].isspace() and begin < end:
        begin += 1
    while masked[end - 1].isspace() and begin < end:
        end -= 1
    at = begin
    while at > 0 and masked[at - 1] not in ";{" and not _is_block_end(masked, at - 1):
        at = _partner(masked, at - 1) if masked[at - 1] in _BRACKETS else at - 1
    label = re.match(r"\s*(case\b[^;{?]*?[^:]:|default:)(?!:)", masked[at:begin])
    begin = at + (label.end() if label else 0)
    begin, end = _balanced(masked, begin, end, splits=False)
    if end == begin or not (masked[end - 1] == ";" or _is_block_end(masked, end - 1)):
        while masked[end] != ";":
            end = _partner(masked, end) + 1 if masked[end] in _CLOSING else end + 1
            if masked[end - 1] == "}" and _is_block_end(masked, end - 1):
                return Region(begin, end, "statement")
        end += 1
    return Region(begin, end, "statement")


def files(mutants: Iterable[Mutant]) -> dict[str, str]:
    """Returns the texts of all files that mutants change. Raises ValueError if two mutants have the
    same number."""
    by_file: dict[str, list[Mutant]] = {}
    numbers: dict[int, str] = {}
    for mutant in mutants:
        by_file.setdefault(mutant.file, []).append(mutant)
        other = numbers.setdefault(number_of(mutant), mutant.name)
        if other != mutant.name:
            raise ValueError(f"{mutant.name} and {other} have one number; name one of them")
    return {file: wrapped((ROOT / file).read_text(), own) for file, own in by_file.items()}
