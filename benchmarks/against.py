# SPDX-License-Identifier: Apache-2.0
"""Compares this tree with another revision: `./dev bench --against REV [NAME]`.

Builds the other revision in a git worktree, build/against/<commit>, with this tree's CMake options.
Each version's own benchmarks (serve.py) check the bits and measure the rows. In each round, two
fresh processes, one for each version, measure each row alternately, TURNS times each. The ratio of
a round is the ratio of the two best rates.

A row is slower if the median ratio is below 0.97 and all rounds agree. If the first rounds find
that a row is slower or faster, the row is measured in up to CONFIRMING more rounds, until a round
disagrees.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shlex
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compare import aligned, are_alike, times_as_fast
from rich.console import Console
from timing import Row

ROOT = Path(__file__).resolve().parent.parent
SERVER = Path(__file__).resolve().parent / "serve.py"
WORST = 0.97
"""A row is slower if its median ratio is below this number, and faster if it is above its inverse.
"""
LEAST_ROUNDS = 3
CONFIRMING = 6
"""The largest number of further rounds for rows that the first rounds found slower or faster. A
round measures each row with both versions."""
TURNS = 3
"""The number of measurements of a row by each version in a round."""
IMPORTS = 5
"""The number of fresh processes that run `import cpd` in a round. The round's value is the median
of their times."""
OPTIONS = ("CPD_NATIVE", "CPD_CUDA", "CMAKE_CUDA_ARCHITECTURES", "CMAKE_BUILD_TYPE")
"""The CMake options with which both versions are built."""


class FailedError(Exception):
    """Raised if a version cannot be built or measured. The message gives the reason."""


# ---- rows and verdicts ---------------------------------------------------------------------------


def verdict(ratios: Sequence[float]) -> str:
    """Judges a row by the ratios of its rounds. A ratio is the speed of this tree divided by the
    other revision's."""
    middle = statistics.median(ratios)
    if middle < WORST and max(ratios) < 1:
        return "slower"
    return "faster" if middle > 1 / WORST and min(ratios) > 1 else ""


def agree(ratios: Sequence[float]) -> bool:
    """Returns whether this tree was slower than the other version in every round, or faster in
    every round."""
    return max(ratios) < 1 or min(ratios) > 1


@dataclass
class Measured:
    """The measurements of one benchmark row: for each round, one value of this tree and one of the
    other version."""

    name: str
    unit: str
    other: list[float] = field(default_factory=list)
    this: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Returns for each round how many times as fast as the other version this tree is."""
        pairs = zip(self.other, self.this, strict=True)
        return [times_as_fast(self.unit, a, b) for a, b in pairs]

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        return verdict(self.ratios)

    def add(self, other: Sequence[float], this: Sequence[float]) -> None:
        """Adds one round: stores the best of the values that each version measured in this
        round."""
        best = functools.partial(_best, self.unit)
        self.other.append(best(other))
        self.this.append(best(this))


def _best(unit: str, values: Sequence[float]) -> float:
    return functools.reduce(lambda a, b: b if times_as_fast(unit, a, b) > 1 else a, values)


def value_of(row: Row, other: Row) -> float:
    """Returns the best value of a row's turns, or the median if one of the versions reports no best
    value."""
    return float(row["best"] if "best" in row and "best" in other else row["value"])


@dataclass
class Found:
    """The result of a comparison: the rows that both versions have, notes on rows that cannot be
    compared, and rows with wrong bits."""

    rows: list[Measured] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def note_rows(self, label: str, others: dict[str, Row], own: dict[str, Row]) -> None:
        """Adds the rows that both versions have and that can be compared. Adds a note on every
        other row."""
        sides = {label: (others, own), "this tree": (own, others)}
        for name, (having, lacking) in sides.items():
            only = [row for row in having if row not in lacking]
            self.notes += [f"only {name} has: {', '.join(only)}"] if only else []
            skipped = [row for row in having.values() if "skipped" in row]
            self.notes += [f"{name} skips {row['name']}: {row['skipped']}" for row in skipped]
            self.add_wrong(name, having.values())
        both = [(row, own[name]) for name, row in others.items() if name in own]
        both = [pair for pair in both if all("value" in row for row in pair)]
        unlike = [row["name"] for row, own_row in both if not are_alike(row, own_row)]
        if unlike:
            self.notes.append(f"not compared, since they count something else: {', '.join(unlike)}")
        self.rows += [Measured(a["name"], a["unit"]) for a, b in both if are_alike(a, b)]

    def add_wrong(self, label: str, rows: Iterable[Row]) -> None:
        faults = [f"{label}: {row['name']}: {row['wrong']}" for row in rows if "wrong" in row]
        self.wrong += [text for text in faults if text not in self.wrong]

    def text(self, label: str) -> str:
        """Returns the text to print: the notes on rows that were not compared, the numbers of
        slower and faster rows, and the table with the slowest rows first."""
        order = ("slower", "", "faster")
        rows = sorted(self.rows, key=lambda row: (order.index(row.verdict), row.ratio))
        counts = [sum(row.verdict == word for row in rows) for word in order]
        lines = [*self.notes, *(f"wrong bits: {text}" for text in self.wrong)]
        lines.append(f"{len(rows)} rows: {counts[0]} slower, {counts[2]} faster than {label}")
        head = ("row", "unit", label, "this tree", "times as fast", "rounds", "", "")
        return "\n".join([*lines, "", *aligned([head, *map(_cells, rows)], texts=(0, 1, 7))])

    def data(self) -> dict[str, Any]:
        """Returns the comparison as data for JSON."""
        rows = [
            {"name": row.name, "unit": row.unit, "other": row.other, "this": row.this,
             "ratio": round(row.ratio, 4), "verdict": row.verdict}
            for row in self.rows
        ]  # fmt: skip
        return {"rows": rows, "notes": self.notes, "wrong": self.wrong}


def _cells(row: Measured) -> tuple[str, ...]:
    ratios = row.ratios
    medians = (f"{statistics.median(values):.4g}" for values in (row.other, row.this))
    spread = f"{min(ratios):.3f} … {max(ratios):.3f}"
    return (row.name, row.unit, *medians, f"{row.ratio:.3f}", spread, str(len(ratios)), row.verdict)


# ---- two versions --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Version:
    """A source tree that has been built."""

    label: str
    tree: Path

    @property
    def python(self) -> Path:
        return self.tree / "build/venv/bin/python"

    @property
    def built(self) -> Path:
        return self.tree / "build/release"


def git(*arguments: str | Path, root: Path = ROOT) -> str:
    command = ["git", "-C", root, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise FailedError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


def commit_of(revision: str, root: Path = ROOT) -> str:
    try:
        return git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}", root=root)
    except FailedError:
        raise FailedError(f"'{revision}' is not a revision of this repository") from None


def worktree(commit: str, root: Path = ROOT) -> Path:
    """Returns the folder of a commit's worktree. Creates the worktree if it is missing."""
    tree = root / "build/against" / commit[:12]
    if not (tree / ".git").exists():
        git("worktree", "prune", root=root)
        git("worktree", "add", "--force", "--detach", tree, commit, root=root)
    if git("rev-parse", "HEAD", root=tree) != commit or git("status", "--porcelain", root=tree):
        raise FailedError(f"{tree} was changed: remove it (git worktree remove --force {tree})")
    return tree


def cache_arguments(cache: str) -> list[str]:
    """Returns -D arguments for CMake with the options in the text of a CMakeCache.txt."""
    entries = (line.partition("=") for line in cache.splitlines())
    values = {key.partition(":")[0]: value for key, _, value in entries}
    return [f"-D{name}={values[name]}" for name in OPTIONS if values.get(name)]


def build_other(tree: Path, root: Path = ROOT) -> None:
    """Builds a tree by its own `./dev build`, with this tree's CMake options."""
    arguments = cache_arguments((root / "build/release/CMakeCache.txt").read_text())
    # `./dev` sets these variables for its own tree, so they must not be inherited.
    own = ("CCACHE_BASEDIR", "CPD_TIMES", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in own}
    environment["CMAKE_ARGS"] = f"{environment.get('CMAKE_ARGS', '')} {shlex.join(arguments)}"
    done = subprocess.run([tree / "dev", "build"], env=environment, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise FailedError(f"{tree}: ./dev build ended with status {done.returncode}")


class Server:
    """A process that measures rows of one version on request."""

    def __init__(self, version: Version, arguments: Sequence[str], log: Path) -> None:
        self._version, self._log = version, log
        command = [version.python, SERVER, version.tree, *arguments]
        with log.open("a") as errors:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
                cwd=version.tree,
            )  # fmt: skip

    def ask(self, name: str = "") -> list[Row]:
        """Returns the rows with this name, or every selected row if the name is empty."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        rows: list[Row] = []
        try:
            process.stdin.write(name + "\n")
            process.stdin.flush()
            while line := process.stdout.readline():
                if line == "\n":
                    return rows
                rows.append(json.loads(line))
        except BrokenPipeError:
            pass
        status = process.wait()
        raise FailedError(
            f"the benchmarks of {self._version.label} ended with status {status} "
            f"at '{name or 'all rows'}': see {self._log}"
        )

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


# ---- rounds --------------------------------------------------------------------------------------

IMPORT = "import cpd"
_TIMED_IMPORT = "import time; t = time.process_time(); import cpd; print(time.process_time() - t)"


def _import_ms(version: Version) -> float:
    """Returns the processor time in milliseconds of `import cpd` in one fresh process."""
    command = [version.python, "-P", "-c", _TIMED_IMPORT]
    # This tree and the other revision each have their own cache of compiled Python modules. The
    # first process fills the cache.
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(version.tree / "build/pycache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, cwd=version.tree, env=environment
    )
    return float(done.stdout) * 1e3


def in_turns(turns: int, first: int, *sides: Callable[[], Any]) -> list[list[Any]]:
    """Calls two functions alternately, `turns` times each, and returns the results of each. The
    function that is called first changes with each turn."""
    results: list[list[Any]] = [[], []]
    for turn in range(turns):
        order = (0, 1) if (first + turn) % 2 == 0 else (1, 0)
        for side in order:
            results[side].append(sides[side]())
    return results


@dataclass
class Rounds:
    """Measures rows of two versions in rounds."""

    versions: tuple[Version, Version]
    arguments: list[str]  # of run.py
    logs: Path
    found: Found
    done: int = 0

    def servers(self, stack: ExitStack) -> list[Server]:
        """Starts fresh processes of both versions."""
        started = []
        for index, version in enumerate(self.versions):
            log = self.logs / f"measured-{('other', 'this')[index]}.log"
            started.append(stack.enter_context(Server(version, self.arguments, log)))
        return started

    def one(self, rows: Sequence[Measured], status: Callable[[str], None]) -> None:
        """Measures one round of these rows."""
        if not rows:
            return
        self.done += 1
        with ExitStack() as stack:
            servers = self.servers(stack)
            for row in rows:
                status(f"round {self.done}, {row.name}")
                if row.name == IMPORT:
                    sides = (functools.partial(_import_ms, version) for version in self.versions)
                    times = in_turns(IMPORTS + 1, self.done, *sides)
                    times = [side[1:] for side in times]
                    row.add(*([statistics.median(side)] for side in times))
                    continue
                asks = (functools.partial(self._ask, server, row.name) for server in servers)
                other, this = in_turns(TURNS, self.done, *asks)
                for version, replies in zip(self.versions, (other, this), strict=True):
                    self.found.add_wrong(version.label, replies)
                pairs = [pair for pair in zip(other, this, strict=True)
                         if all("value" in reply for reply in pair)]  # fmt: skip
                if pairs:
                    row.add([value_of(a, b) for a, b in pairs], [value_of(b, a) for a, b in pairs])

    def _ask(self, server: Server, name: str) -> Row:
        return next((row for row in server.ask(name) if row["name"] == name), {"name": name})


def confirm(rows: Sequence[Measured], measure: Callable[[Sequence[Measured]], None]) -> None:
    """Measures again, in up to CONFIRMING more rounds, the rows that were judged slower or faster.
    Drops a row as soon as this tree was neither slower in all rounds nor faster in all rounds. A
    row whose median ratio alone returns within the limits (WORST) is not dropped, because later
    rounds may move the median."""
    called = [row for row in rows if row.verdict]
    for _ in range(CONFIRMING):
        called = [row for row in called if agree(row.ratios)]
        measure(called)


# ---- what is not timed by the benchmarks ---------------------------------------------------------


def library_sizes(built: Path) -> dict[str, float]:
    """Returns the size in MiB of each library, by name."""
    sizes = {}
    for path in sorted(built.glob("lib*/*.so")):
        sizes[f"size/{path.name.partition('.')[0]}"] = path.stat().st_size / 2**20
    return sizes


def sass_counts(version: Version, cuobjdump: str) -> dict[str, Any]:
    """Returns the instruction counts by loop, or {"skipped": reason}."""
    environment = os.environ | {"PATH": f"{cuobjdump}{os.pathsep}{os.environ['PATH']}"}
    command = [version.python, SERVER, version.tree, "--sass"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return {"skipped": (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    counts: dict[str, Any] = json.loads(done.stdout)
    return counts


def sources(commands: list[dict[str, str]], built: Path) -> dict[str, list[dict[str, str]]]:
    """Returns the compile commands of libcpd's own sources and of its CPU kernels."""
    groups: dict[str, list[dict[str, str]]] = {"compile/libcpd": [], "compile/kernels": []}
    for entry in commands:
        output = Path(_object(entry))
        if output.parts[:3] == ("cpd", "CMakeFiles", "cpd.dir") and output.suffix == ".o":
            groups["compile/libcpd"].append(entry)
        elif output.parts[:2] == ("cpd", "CMakeFiles") and "cpd_kernels_" in output.parts[2]:
            groups["compile/kernels"].append(entry)
    return groups


def processor_seconds(entry: dict[str, str]) -> float:
    """Returns the processor time of one compilation, without a compiler cache. The compilation
    writes no object."""
    words = shlex.split(entry["command"])
    words = words[1:] if Path(words[0]).name == "ccache" else words
    words[words.index("-o") + 1] = os.devnull
    process = subprocess.Popen(words, cwd=entry["directory"])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise FailedError(f"{entry['file']} does not compile")
    return used.ru_utime + used.ru_stime


def compile_times(
    versions: Sequence[Version], found: Found, status: Callable[[str], None]
) -> list[Measured]:
    """Returns the summed compile times of the sources that both versions have. The versions compile
    each source alternately. If the first round judges this tree's sum slower or faster, further
    rounds follow while they confirm it, up to LEAST_ROUNDS rounds in all."""
    rows = []
    listed = [json.loads((v.built / "compile_commands.json").read_text()) for v in versions]
    groups = [sources(entries, v.built) for entries, v in zip(listed, versions, strict=True)]
    for name in groups[0]:
        sides = [{_object(entry): entry for entry in group[name]} for group in groups]
        both = [(other, sides[1][path]) for path, other in sides[0].items() if path in sides[1]]
        alone = len(sides[0].keys() ^ sides[1].keys())
        found.notes += [f"{name} leaves out {alone} objects of one version alone"] if alone else []
        row = Measured(name, "s")
        while both and (not row.other or (row.verdict and len(row.other) < LEAST_ROUNDS)):
            totals = [0.0, 0.0]
            for index, pair in enumerate(both):
                status(f"{name}, round {len(row.other) + 1}, {index + 1} of {len(both)}")
                for side in (0, 1) if index % 2 == 0 else (1, 0):
                    totals[side] += processor_seconds(pair[side])
            row.other.append(totals[0])
            row.this.append(totals[1])
        rows += [row] if both else []
    return rows


def _object(entry: dict[str, str]) -> str:
    """Returns the path of the object that a compile command writes."""
    words = shlex.split(entry["command"])
    return words[words.index("-o") + 1]


def constants(other: dict[str, Any], this: dict[str, Any], unit: str) -> list[Measured]:
    """Returns a row for each figure that this tree and the other version both have, such as a
    library's size. These figures are not measured repeatedly."""
    return [Measured(name, unit, [other[name]], [this[name]]) for name in other if name in this]


def add_constants(found: Found, versions: tuple[Version, Version]) -> None:
    """Adds rows that compare the sizes of both versions' libraries and, if both versions can report
    them, their counts of GPU instructions."""
    other, this = (library_sizes(version.built) for version in versions)
    found.rows += constants(other, this, "MiB")
    for version, having, lacking in ((versions[0], other, this), (versions[1], this, other)):
        only = [name for name in having if name not in lacking]
        found.notes += [f"only {version.label} has: {', '.join(only)}"] if only else []
    tools = sorted(versions[1].tree.glob("build/venv/lib/*/site-packages/nvidia/cu*/bin"))
    counts = [sass_counts(version, os.pathsep.join(map(str, tools))) for version in versions]
    for version, count in zip(versions, counts, strict=True):
        if "skipped" in count:
            found.notes.append(f"no SASS counts of {version.label}: {count['skipped']}")
    if not any("skipped" in count for count in counts):
        rows = constants(*counts, "instructions")
        found.rows += [Measured(f"sass/{r.name}", r.unit, r.other, r.this) for r in rows]


# ---- the command ---------------------------------------------------------------------------------


def words_of(options: argparse.Namespace) -> list[str]:
    """Returns the arguments of run.py that select the rows and set their sizes."""
    words = [options.name] if options.name else []
    words += ["--all"] if options.all else []
    words += ["--floats", str(options.floats), "--values", str(options.values)]
    return [*words, "--repeats", str(options.repeats), "--seed", str(options.seed)]


def prepared(options: argparse.Namespace, console: Console) -> tuple[Version, Version]:
    """Builds both versions and their benchmark programs, and returns them."""
    import measure

    commit = commit_of(options.against)
    own = Version("this tree", ROOT)
    measure.build(console, own.built)
    check_name(options, own)
    tree = worktree(commit)
    console.print(f"{options.against} is {commit[:12]}, in {tree}", highlight=False)
    build_other(tree)
    other = Version(options.against, tree)
    measure.build(console, other.built)
    return other, own


def check_name(options: argparse.Namespace, own: Version) -> None:
    """Raises FailedError if no row of this tree has a name that contains options.name. Called
    before the other version is built."""
    if not options.name:
        return
    with Server(own, words_of(options), ROOT / "build/against.log") as server:
        if not server.ask():
            raise FailedError(f"no row of this tree has '{options.name}' in its name")


def measure_both(options: argparse.Namespace, versions: tuple[Version, Version],
                 console: Console) -> Found:  # fmt: skip
    """Measures the rows of both versions and returns them."""
    comparison = Found()
    rounds = Rounds(versions, words_of(options), ROOT / "build/against", comparison)
    with console.status("bits") as shown:
        with ExitStack() as stack:
            first = []
            for version, server in zip(versions, rounds.servers(stack), strict=True):
                shown.update(f"bits of {version.label}")
                first.append({row["name"]: row for row in server.ask()})
        comparison.note_rows(versions[0].label, *first)
        comparison.rows.append(Measured(IMPORT, "ms"))
        for _ in range(options.rounds):
            rounds.one(comparison.rows, shown.update)
        comparison.rows = [row for row in comparison.rows if row.this]
        confirm(comparison.rows, lambda rows: rounds.one(rows, shown.update))
        add_constants(comparison, versions)
        if options.compile:
            comparison.rows += compile_times(versions, comparison, shown.update)
        else:
            comparison.notes.append("compile time: with --compile")
    return comparison


def run(options: argparse.Namespace) -> int:
    """Compares the benchmarks of this tree and another revision. Returns 1 if bits are wrong, else
    0."""
    console = Console()
    try:
        versions = prepared(options, console)
        comparison = measure_both(options, versions, console)
    except FailedError as error:
        sys.exit(f"--against: {error}")
    print(comparison.text(options.against))
    head = {
        "revision": options.against,
        "commit": commit_of(options.against),
        "this": commit_of("HEAD"),
        "changed": bool(git("status", "--porcelain", "--untracked-files=no")),
        "seed": options.seed,
    }
    path = ROOT / "out/against.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(head | comparison.data(), indent=1, ensure_ascii=False) + "\n")
    print(f"rows in {path}")
    return int(bool(comparison.wrong))
