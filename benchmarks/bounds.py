# SPDX-License-Identifier: Apache-2.0
"""Computes the rate that the machine allows for a row (its bound), and the row's fraction of the
bound.

A row's key `bound` is its bound in the row's unit. The key `bound_is` names the kind of bound:
- issue: the rate at which the machine issues the operations of the row's loop (operations.toml) on
  registers.
- bytes: the rate at which the bytes that must move are copied by memcpy or, if nothing is written,
  are read by a plain sum.
- link: the rate at which the host's link sends the bytes that the host must send.
- products: the rate of the model's matrix products alone.
- peer: no bound is known; the row is compared to its baseline.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from timing import Row

FILE = Path(__file__).resolve().parent / "operations.toml"
LANES = {"avx512": 16, "avx2": 8}
KINDS = ("mul", "add", "integer", "shift", "directed", "wide", "pairs")
READS = ("memcpy", "plain fp32 sum")  # baselines that are a bandwidth
TIMES = ("µs", "ms", "ms a step")  # units in which less is better
LOW = 0.7  # of the bound: what is lower has a reason in reasons.toml

Machine = Mapping[str, Any]
Counts = Mapping[str, float]


@dataclass(frozen=True)
class Mixture:
    """The number of operations of each kind that a row's loop executes for one vector of elements
    (an entry of operations.toml)."""

    name: str
    rows: tuple[str, ...]
    how: str
    words: float  # of random bits for each lane
    counts: Counts  # including the operations that compute the random words
    on_avx2: Counts  # replaces `counts` on AVX2 unless it is empty

    def on(self, isa: str) -> dict[str, float]:
        """Returns the counts of operations on an instruction set. Operations that it lacks are
        counted as the operations that replace them."""
        counts = dict(self.on_avx2 if isa == "avx2" and self.on_avx2 else self.counts)
        if isa == "avx2":
            for what, times in (("directed", counts.pop("directed", 0)), ("philox", self.words)):
                for kind, amount in _data()[f"{what}_on_avx2"].items():
                    counts[kind] = counts.get(kind, 0) + times * amount
        return {kind: counts[kind] for kind in KINDS if counts.get(kind)}

    def text(self, isa: str) -> str:
        """Returns the loop's counts of operations in the form of bench_machine's option --mix."""
        return " ".join(f"{kind}={count:g}" for kind, count in self.on(isa).items())


@cache
def _data() -> dict[str, Any]:
    return tomllib.loads(FILE.read_text())


@cache
def mixtures() -> tuple[Mixture, ...]:
    """Returns all entries of operations.toml."""

    def made(entry: dict[str, Any]) -> Mixture:
        words = entry.get("words", 0)
        word = _data()["philox"]
        counts = {kind: entry.get(kind, 0) + words * word.get(kind, 0) for kind in KINDS}
        on_avx2 = entry.get("avx2", {})
        return Mixture(entry["name"], tuple(entry["rows"]), entry["how"], words, counts, on_avx2)

    return tuple(made(entry) for entry in _data()["mixture"])


def texts() -> list[str]:
    """Returns the values of bench_machine's option --mix: for every loop in operations.toml and
    each instruction set, the counts of its operations."""
    return list(dict.fromkeys(m.text(isa) for isa in LANES for m in mixtures()))


def mixture_of(row: Row) -> Mixture | None:
    """Returns the counts of operations in the loop that a benchmark row measures.

    A row's key `like` names another row whose loop has the same operations; then the counts of the
    other row are returned. Returns None if operations.toml has no counts for the row."""
    name = row.get("like", row["name"]).removeprefix(f"{row.get('backend')}/")
    return next((m for m in mixtures() if any(fnmatchcase(name, p) for p in m.rows)), None)


def threads_of(row: Row) -> int:
    """Returns the number of threads at the end of the row's name, or 1."""
    digits = row["name"].rpartition("/threads")[2]
    return int(digits) if digits.isdigit() and "/threads" in row["name"] else 1


def issue_bound(row: Row, machine: Machine) -> float | None:
    """Returns the row's rate if its loop took only the time in which the machine issues the loop's
    operations on registers (in the row's unit, GMAC/s or GB/s). Returns None if bench_machine did
    not measure these operations."""
    mixture, isa = mixture_of(row), row.get("backend", "")
    if mixture is None or isa not in LANES:
        return None
    rate = machine.get(f"{isa}/{mixture.text(isa)}")
    if rate is None or (row["unit"] == "GB/s" and "counted" not in row):
        return None
    vectors = rate / sum(mixture.on(isa).values())
    return float(vectors * LANES[isa] * threads_of(row) * row.get("counted", 1))


def bytes_bound(row: Row, machine: Machine) -> float | None:
    """Returns the row's rate in GB/s if its loop took only the time in which the machine moves the
    bytes that must be read and written."""
    threads = threads_of(row)
    if row["against"] in READS:
        memory = row["baseline"]
    else:
        memory = machine.get("copy" if threads == 1 else f"copy/threads{threads}")
    if memory is None:
        return None
    return float(memory * row.get("counted", 1) / row.get("moved", row.get("counted", 1)))


def bound(row: Row, machine: Machine) -> tuple[float, str] | None:
    """Returns the lowest known bound of the row's rate and its kind (`issue`, `bytes`, …). Returns
    None if this run measured nothing from which a bound follows."""
    if row["unit"] == "GB/s":
        both = (bytes_bound(row, machine), "bytes"), (issue_bound(row, machine), "issue")
        return min(((value, kind) for value, kind in both if value is not None), default=None)
    if row["unit"] == "GMAC/s" and mixture_of(row) is not None and "device" not in row:
        issue = issue_bound(row, machine)
        return None if issue is None else (issue, "issue")
    if "link" in row:
        return row["value"] * row["link"], "link"
    if "/exchange/" in row["name"]:
        return row["baseline"], "link"  # the alpha-beta model
    return row["baseline"], "peer"


def with_bound(row: Row, machine: Machine) -> Row:
    """Returns the row with its bound (the rate that the machine allows) and the fraction of the
    bound that the row reaches, if they are known. Values that the row already has are preserved."""
    if "skipped" in row or "wrong" in row:
        return row
    if "bound" not in row:
        limit = bound(row, machine)
        if limit is None:
            return row
        row = row | {"bound": round(limit[0], 3), "bound_is": limit[1]}
    share = row["value"] / row["bound"]
    return row | {"share": round(1 / share if row["unit"] in TIMES else share, 3)}


def is_low(row: Row) -> bool:
    return bool(row.get("share", 1) < LOW)


def is_missed(row: Row) -> bool:
    """Returns whether the benchmark row's ratio to its baseline is below the ratio that it must
    reach (its bar)."""
    return "bar" in row and bool(row["ratio"] < row["bar"])
