# SPDX-License-Identifier: Apache-2.0
"""Tests training over processes: hash, counts, losses and gradients are the same as over virtual
ranks."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import spawn
from cpd.cli import main
from cpd_lab.train import train
from launchers import LAUNCHERS, MPI_SETTINGS
from patience import scaled
from train_ranks import options_of, run_all, told

QUICK = {
    "epochs": 1,
    "batch": 80,
    "depth": 2,
    "width": 16,
    "nodes": 4,
    "format": "e4m3",
    "aps": "on",
}
RUNS = [
    {},
    {"format": "e5m2", "aps": "off", "loss_scale": 2.0**10},
    {"aps": "paper", "rounding": "up"},
    {"seed": 1, "rounding": "stochastic"},
    {"order": "ring", "exchange": "ring", "kahan": True},
    {"order": "ring", "group_size": 2, "exchange": "hierarchical"},
    {"order": "ring", "group_size": 3, "rounding": "stochastic"},
    {"format": "e5m2", "order": "tree", "exchange": "gather"},
    {"format": "e3m0", "last_layer_fp32": True, "rounding": "stochastic"},
    {"epochs": 2, "fp32_epochs": 1, "exempt": ["*.bias"], "overflow": "saturate"},
    {"format": "e5m2", "aps": "off", "loss_scale": 2.0**100, "epochs": 2},  # diverges
    {"recipe": "te-delayed", "rounding": "stochastic"},
    {"format": "fp32", "aps": "off", "wire": "qsgd bits=4 bucket=512"},
    {"format": "fp32", "aps": "off", "wire": "terngrad", "last_layer_fp32": True},
    {"format": "fp32", "aps": "off", "wire": "int4", "exchange": "gather", "min_size": 100},
]
RUNS += [
    {"format": "fp32", "aps": "off", "wire": wire, "group_size": 2}
    for wire in ("one_bit", "one_bit bucket=64", "top_k 0.05", "feedback int4")
]
SMALL = {"depth": None, "batch": 4, "images": 36, "tests": 9}
RUNS += [
    {**SMALL, "model": "lenet", "width": 6, "dropout": 0.25, "ema": 0.5, "divide": "after"},
    {**SMALL, "model": "fcn", "width": 4, "exempt_types": ["BatchNorm2d"], "schedule": "linear"},
    {**SMALL, "model": "text_lstm", "width": 8, "dropout": 0.5, "length": 8, "optimizer": "lars"},
]
SUMS = "e4m3 aps rounding=stochastic accumulator='e4m3 sequential rounding=stochastic'"
WORDS = ["--reduce", SUMS, "--epochs", "1", "--batch", "90", "--depth", "2", "--seed", "5"]
CODEC_WORDS = ["--reduce", "qsgd bits=4 bucket=512", "--min-size", "100"]
CODEC_WORDS += ["--epochs", "1", "--batch", "90", "--depth", "2", "--seed", "5"]
LATER = pytest.mark.exhaustive


@pytest.fixture(scope="module")
def expected() -> list[dict]:
    return [told(train(options_of({**QUICK, **run}), histogram_epochs=(1,))) for run in RUNS]


def test_the_runs_differ(expected):
    assert len({result["weights"] for result in expected}) == len(RUNS)


@pytest.mark.parametrize("transport", ["gloo", pytest.param("mpi", marks=pytest.mark.exhaustive)])
def test_processes_train_as_virtual_ranks_do(transport, expected):
    runs = [{**QUICK, **run} for run in RUNS]
    for rank in spawn.spawn_ranks(transport, 4, f"{run_all.__module__}:run_all", runs, limit=240):
        for run, result, wanted in zip(RUNS, rank.result, expected, strict=True):
            for name, value in wanted.items():
                assert repr(result[name]) == repr(value), f"{name} of {run}"  # NaN is NaN


def launched(transport: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs `cpd train` over two processes."""
    spawn.skip_without({"torch": "gloo"}.get(transport, transport))
    return finished([*LAUNCHERS[transport], "-m", "cpd", "train", "--transport", transport, *words])


def finished(command: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | MPI_SETTINGS
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=scaled(240)
    )


@pytest.mark.slow("starts processes that import torch")
@pytest.mark.parametrize(
    ("transport", "words"),
    [
        ("mpi", WORDS),
        pytest.param("mpi", CODEC_WORDS, marks=LATER),
        pytest.param("torch", WORDS, marks=LATER),
        pytest.param("torch", CODEC_WORDS, marks=LATER),
    ],
)
def test_command_prints_what_virtual_ranks_print(transport, words, capsys, tmp_path):
    files = {name: tmp_path / f"{name}.json" for name in ("real", "virtual")}
    done = launched(transport, *words, "--json", str(files["real"]))
    assert done.returncode == 0, done.stderr
    arguments = [*words, "--nodes", "2", "--json", str(files["virtual"])]
    assert main(["train", *arguments]) == 0
    assert done.stdout == capsys.readouterr().out
    assert re.search(r"^weights [0-9a-f]{16}$", done.stdout, re.MULTILINE)
    assert files["real"].read_text() == files["virtual"].read_text()


@pytest.mark.slow("starts processes that import torch")
def test_a_mistake_is_told_once():
    done = launched("torch", "--nodes", "3")
    assert done.returncode != 0
    assert done.stdout == ""
    assert errors_of(done) == ["nodes must be the number of ranks, 2, got 3"]


def test_ranks_with_other_options_do_not_begin():
    spawn.skip_without("mpi")
    part = ["-n", "1", sys.executable, "-m", "cpd", "train", "--transport", "mpi", "--lr"]
    done = finished(["mpirun", *part, "0.1", ":", *part, "0.2"])
    assert done.returncode != 0
    assert errors_of(done) == ["rank 1 was started with other options than rank 0"]


def errors_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Returns a command's error lines, without the command's name and '(see cpd train --help)'."""
    start, end = "cpd train: error: ", " (see cpd train --help)"
    said = [s for s in done.stderr.splitlines() if s.startswith(start)]
    assert all(s.endswith(end) for s in said)
    return [s.removeprefix(start).removesuffix(end) for s in said]
