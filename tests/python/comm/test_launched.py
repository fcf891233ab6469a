# SPDX-License-Identifier: Apache-2.0
"""Tests the error for a launcher whose environment variable promises more ranks than MPI has
started. The error names the variable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import forked
import spawn
from cpd.comm import launched
from patience import scaled

ALONE = """
import sys, cpd
comm = cpd.comm.mpi(timeout=float(sys.argv[1]))
print("size", comm.size)
comm.close()
"""
TRAIN = ["-m", "cpd", "train", "--epochs", "1", "--batch", "128", "--transport", "mpi"]
NAMES = tuple(launched._SIZES)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


def python(*arguments: object, **variables: str) -> forked.CompletedProcess[str]:
    """Runs Python in a process that no MPI launcher started, with additional environment
    variables."""
    spawn.skip_without("mpi")
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return forked.run(
        arguments,
        env=os.environ | root | variables,
        capture_output=True,
        text=True,
        timeout=scaled(60),
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("number", "size", "of_slurm", "of_others"),
    [
        ("4", 1, True, True),
        ("4", 2, False, True),  # mpirun may start fewer ranks than Slurm has tasks
        ("4", 4, False, False),
        ("1", 1, False, False),
        ("", 1, False, False),
        ("many", 1, False, False),
        ("\u0664", 1, False, False),
        ("2(x3)", 1, False, False),
    ],
)
def test_a_promise_is_compared(
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: str,
    size: int,
    of_slurm: bool,
    of_others: bool,
) -> None:
    monkeypatch.setenv(name, number)
    said = launched.broken_promise(size)
    assert bool(said) == (of_slurm if name.startswith("SLURM_") else of_others)
    assert not said or f"{name} is 4, but MPI has started {size} rank" in said


def test_mpirun_keeps_its_promise_within_an_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    assert launched.broken_promise(1) == ""


def test_srun_without_pmix_is_warned_of(tmp_path: Path) -> None:
    program, timeout = tmp_path / "alone.py", scaled(30)
    program.write_text(ALONE)
    done = python(program, timeout, SLURM_NTASKS="4", SLURM_PROCID="0")
    assert done.stdout == "size 1\n"
    assert "SLURM_NTASKS is 4, but MPI has started 1 rank" in done.stderr
    assert "srun --mpi=pmix" in done.stderr
    quiet = python(program, timeout)
    assert (quiet.stdout, quiet.stderr) == ("size 1\n", "")


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "MPI has started 1 rank, and no launcher has set OMPI_COMM_WORLD_SIZE, PMI_SIZE"),
        ({"SLURM_NTASKS": "4"}, "SLURM_NTASKS is 4, but MPI has started 1 rank"),
        ({"WORLD_SIZE": "2"}, "torchrun's processes call cpd.comm.distributed()"),
    ],
)
def test_training_alone_is_refused(variables: dict[str, str], said: str) -> None:
    done = python(*TRAIN, **variables)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert "--nodes 1" in done.stderr


@pytest.mark.parametrize(
    ("more", "variables"), [(["--nodes", "1"], {}), ([], {"SLURM_STEP_NUM_TASKS": "1"})]
)
def test_one_rank_that_is_asked_for_trains(more: list[str], variables: dict[str, str]) -> None:
    done = python(*TRAIN, *more, **variables)
    assert done.returncode == 0, done.stderr
    assert "rror" not in done.stderr
    assert "arning" not in done.stderr
    assert "weights" in done.stdout
