# SPDX-License-Identifier: Apache-2.0
"""Measures all-reduces of ResNet-50's gradients over MPI with four ranks: rows `all_reduce/…`. In
the setting `1gbps`, each rank is a host of its own (a network namespace) behind links of 1 Gb/s. In
`loopback`, all ranks are on this machine without limits. bench_all_reduce.cpp checks the bits and
then times CPD and MPI alternately."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import namespaces
from selection import Selection
from timing import Row

RANKS = 4
VALUES = 25_557_032  # of ResNet-50
LONGEST = 900  # seconds until mpirun gives up

FORMATS = ("e4m3", "e3m0", "bf16", "fp16", "e4m3-vs-bf16")
CODECS = ("qsgd4", "terngrad", "terngrad-but-last", "one_bit", "int8-rows")
ALGORITHMS = (
    "default",
    "linear",
    "nonoverlapping",
    "recursive_doubling",
    "ring",
    "segmented_ring",
    "rabenseifner",
)
EXCHANGES = ("owner", "gather", "ring", "hierarchical2")
LAYERS = ("2048x512", "512x512x3x3", "512x2048", "apart", "merged")

BARS = {
    "all_reduce/1gbps/e4m3": 3.5,
    "all_reduce/1gbps/e3m0": 6.0,
    "all_reduce/1gbps/e4m3-vs-bf16": 1.8,
    "all_reduce/1gbps/bytes": 0.97,
    "all_reduce/1gbps/qsgd4": 6.0,
    "all_reduce/1gbps/terngrad": 7.5,
    "all_reduce/1gbps/terngrad-but-last": 4.5,
    "all_reduce/1gbps/one_bit": 10.0,
    "all_reduce/1gbps/int8-rows": 3.4,
    "all_reduce/loopback/e4m3": 0.667,
}

SETTINGS = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",  # the program chooses MPI's algorithms
    "OMPI_MCA_mpi_yield_when_idle": "1",  # four ranks share this machine's cores
}


@dataclass(frozen=True)
class Setting:
    name: str
    parts: dict[str, tuple[str, ...]]  # of the program: their rows

    @property
    def prefix(self) -> str:
        return f"all_reduce/{self.name}"

    def wanted(self, selection: Selection) -> list[str]:
        """Returns the values for bench_all_reduce's option --parts (`formats`, `codecs`, …) that
        cover the selected benchmark rows."""
        return [
            part
            for part, rows in self.parts.items()
            if any(selection.wants(f"{self.prefix}/{row}") for row in rows)
        ]


_FORMATS = (*FORMATS, *(f"mpi/{name}" for name in ALGORITHMS))
LIMITED = Setting(
    "1gbps",
    {
        "formats": (*_FORMATS, "bytes"),
        "codecs": CODECS,
        "exchanges": tuple(f"exchange/{name}" for name in EXCHANGES),
        "figure11": tuple(f"fig11/{name}" for name in LAYERS),
    },
)
FREE = Setting("loopback", {"formats": _FORMATS})


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    process.terminate()  # mpirun then ends the ranks
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()


def launch(arguments: list[str], program: list[str]) -> Iterator[Row]:
    """Runs the program and yields the rows that it prints, as soon as each is printed."""
    command = ["mpirun", "--timeout", str(LONGEST), *arguments, *program]
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, env=os.environ | SETTINGS
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
        finally:
            _stop(process)
        if process.wait() in (0, 1):
            return
        errors.seek(0)
        sys.stderr.write(errors.read()[-4000:])
        sys.exit(f"mpirun ended with status {process.returncode}")


def _setting_rows(
    setting: Setting, parts: list[str], program: Path, options: argparse.Namespace
) -> Generator[Row, None, None]:
    command = [str(program), "--setting", setting.name, "--parts", ",".join(parts)]
    command += ["--values", str(options.values), "--repeats", str(options.repeats)]
    command += ["--seed", str(options.seed)]
    if setting is FREE:
        yield from launch(["-n", str(RANKS), "--oversubscribe"], command)
        return
    with namespaces.hosts(RANKS, "1gbit") as hosts:
        command += ["--gbps", "1", "--interface", namespaces.INTERFACE]
        yield from launch(hosts.mpirun(), command)


def _with_bar(row: Row, options: argparse.Namespace) -> Row:
    """Returns the benchmark row with its bar, the least ratio that it must reach. A run with fewer
    values than all of ResNet-50's layers has no bars."""
    bar = BARS.get(row["name"])
    return row if bar is None or options.values < VALUES else row | {"bar": bar}


def _why_not(program: Path) -> str:
    if shutil.which("mpirun") is None:
        return "no mpirun (Debian: openmpi-bin)"
    return "" if program.exists() else "built without MPI (Debian: libopenmpi-dev)"


def rows(options: argparse.Namespace, programs: Path) -> Iterator[Row]:
    """Yields the selected benchmark rows. A row that cannot run is yielded with the reason."""
    program = programs / "bench_all_reduce"
    for setting in (LIMITED, FREE):
        parts = setting.wanted(options.selection)
        if not parts:
            continue
        reason = _why_not(program)
        if reason:
            yield {"name": setting.prefix, "skipped": reason}
            continue
        try:
            with contextlib.closing(_setting_rows(setting, parts, program, options)) as measured:
                for row in measured:
                    if options.selection.wants(row["name"]):
                        yield _with_bar(row, options)
        except namespaces.SetUpError as error:
            yield {"name": setting.prefix, "skipped": str(error)}
