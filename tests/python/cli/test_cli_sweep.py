# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd sweep`: files, tables, errors in one line, and Ctrl-C, after which a sweep can
continue."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import forked  # noqa: E402
from cpd.cli import main  # noqa: E402
from cpd.study import sweep  # noqa: E402
from patience import scaled  # noqa: E402

X = np.random.default_rng(0).standard_normal((64, 96), np.float32)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "model.pt"
    state = {"w": torch.from_numpy(X), "b": torch.from_numpy(X[0]).bfloat16()}
    torch.save({"model": state, "step": 3, "ids": torch.arange(4)}, path)
    return path


def told(capsys, *arguments):
    assert main(["sweep", *map(str, arguments)]) == 0
    return capsys.readouterr()


def refused(capsys, *arguments):
    """Runs a command that must fail with status 2 and a single line of error."""
    assert main(["sweep", *map(str, arguments)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith("cpd sweep: error: ")
    return said


def test_files_of_a_sweep(checkpoint, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    monkeypatch.setenv("COLUMNS", "200")
    out = tmp_path / "out"
    choices = ["--formats=e[2-3]m[1-2],mxfp4", "--accumulator=fp32,fp16", "--scales=none,mx"]
    said = told(capsys, checkpoint, *choices, "-o", out)
    assert "2 tensors, 6,240 values; 16 cells; " in said.out
    assert said.out.count(" front") >= 2
    assert "report " in said.out
    assert {p.name for p in out.iterdir()} == {
        *("cells", "cells.csv", "sweep.json", "front.png", "report.html")
    }
    with (out / "cells.csv").open() as file:
        rows = list(csv.DictReader(file))
    expected = sweep(checkpoint, "e[2-3]m[1-2],mxfp4", "fp32,fp16", scales="none,mx")
    assert [float(row["dot_error"]) for row in rows] == [r.dot_error for r in expected]
    again = told(capsys, checkpoint, *choices, "-o", out)
    assert "16 cells, 16 of them from " in again.out
    file = next((out / "cells").iterdir())
    file.write_text("{")
    again = told(capsys, checkpoint, *choices, "-o", out, "--front", "--error=relative_rms")
    assert "cpd sweep: warning: " in again.err
    assert "damaged" in again.err
    assert "16 cells, 15 of them from " in again.out


def test_standard_output(checkpoint, capsys):
    said = told(capsys, checkpoint, "--formats=e2m1", "--json=-", "--no-dots")
    found = json.loads(said.out)
    assert found["cells"][0]["dot_error"] is None
    assert [one["name"] for one in found["tensors"]] == ["model.w", "model.b"]
    said = told(capsys, checkpoint, "--formats=e2m1", "--csv=-", "--sample=96", "--bits=4")
    assert len(said.out.splitlines()) == 2


def test_kinds_of_files(tmp_path, capsys):
    from safetensors.numpy import save_file

    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    save_file({"x": X}, tmp_path / "x.safetensors")
    torch.save({"x": torch.from_numpy(X)}, tmp_path / "x.pth")
    files = sorted(tmp_path.iterdir())
    every = [json.loads(told(capsys, f, "--formats=e2m1", "--json=-").out)["cells"] for f in files]
    assert every == [every[0]] * 4
    both = json.loads(told(capsys, *files[:2], "--formats=e2m1", "--json=-").out)
    assert [one["name"] for one in both["tensors"]] == [f"{f}:x" for f in files[:2]]


class Bad:
    def __reduce__(self):
        return os.system, ("echo executed",)


def test_refusals(checkpoint, tmp_path, capsys):
    assert "give either files of tensors or --capture, got neither" in refused(capsys)
    assert "No such file" in refused(capsys, tmp_path / "none.npy")
    assert "must end in .npy" in refused(capsys, tmp_path / "x.bin")
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00")
    assert "not a readable .npy file" in refused(capsys, tmp_path / "x.npy")
    np.save(tmp_path / "o.npy", np.array([Bad()]), allow_pickle=True)
    assert "holds pickled objects" in refused(capsys, tmp_path / "o.npy")
    (tmp_path / "p.pt").write_bytes(pickle.dumps({"x": Bad()}))
    assert "holds something else than tensors" in refused(capsys, tmp_path / "p.pt")
    torch.save({"x": Bad()}, tmp_path / "q.pt")
    assert "holds something else than tensors" in refused(capsys, tmp_path / "q.pt")
    torch.save({"x": 3}, tmp_path / "n.pt")
    assert "must have floating-point values" in refused(capsys, tmp_path / "n.pt")
    assert "is given twice" in refused(capsys, checkpoint, checkpoint)
    assert "is not closed" in refused(capsys, checkpoint, "--formats=e[2m1")
    assert "unknown format" in refused(capsys, checkpoint, "--formats=e4n3")
    assert "scales must be none, tensor, row, mx, nv, or" in refused(
        capsys, checkpoint, "--scales=many"
    )
    assert "of --csv and --json" in refused(capsys, checkpoint, "--csv=-", "--json=-")
    assert "was not measured" in refused(capsys, checkpoint, "--error=accuracy")
    assert "error must be one of" in refused(capsys, checkpoint, "--error=speed")
    assert "must end in .png or .svg" in refused(capsys, checkpoint, "--plot=x.gif")
    assert "a cluster needs a folder" in refused(capsys, checkpoint, "--cluster=local")
    assert "must be MODULE:FUNCTION" in refused(capsys, checkpoint, "--accuracy=here")
    assert "no module 'nowhere_at_all'" in refused(capsys, "--capture=nowhere_at_all:f")
    assert "has no function 'nothing'" in refused(capsys, "--capture=json:nothing")
    assert "must give (model, inputs)" in refused(capsys, "--capture=time:time")
    (tmp_path / "file").write_text("")
    assert "File exists" in refused(capsys, checkpoint, "-o", tmp_path / "file")


PROGRAM = """
import torch

def model():
    torch.manual_seed(0)
    layer = torch.nn.Linear(8, 4)
    return layer, torch.randn(16, 8), torch.sum

def accuracy(cell):
    return cell.element.man / 10
"""


def test_functions_of_ones_own(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    (tmp_path / "own_model.py").write_text(PROGRAM)
    given = ["--capture=own_model:model", "--accuracy=own_model:accuracy", "--formats=e3m[1-2]"]
    found = json.loads(told(capsys, *given, "--json=-").out)
    assert [one["name"] for one in found["tensors"]] == ["activation", "weight", "gradient"]
    assert [one["accuracy"] for one in found["cells"]] == [0.1, 0.2]
    assert found["error"] == "accuracy"


def workers_of(pid):
    """Returns the worker processes of a sweep that have started, even if they are still
    importing."""
    found = []
    with contextlib.suppress(OSError):  # a process may have ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"popen_loky" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


@pytest.mark.parametrize("after", [0, 0.02, 0.1, 0.4])
def test_interrupted_while_processes_start(tmp_path, after):
    """If Ctrl-C arrives while worker processes start, these print nothing: the sweep reports the
    interruption in one line."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((2048, 1024), np.float32))
    command = [
        *("-m", "cpd", "sweep", str(tmp_path / "x.npy")),
        *("--formats=e[2-6]m[1-10]", "--jobs=2", "-o", str(tmp_path / "out"), "--json=-"),
    ]
    with forked.Program(
        command, stdout=forked.PIPE, stderr=forked.PIPE, text=True, start_new_session=True
    ) as program:
        while not workers_of(program.pid):
            assert program.poll() is None, program.stderr.read()
            time.sleep(0.001)
        time.sleep(after)
        os.killpg(program.pid, signal.SIGINT)
        said = program.communicate(timeout=scaled(60))[1]
    assert program.returncode in (130, -signal.SIGINT), said
    assert said.splitlines()[-1] == "cpd sweep: interrupted", said
    assert "Traceback" not in said, said


@pytest.mark.parametrize("jobs", [1, 2])
def test_interrupted_and_taken_up(tmp_path, jobs):
    """Ctrl-C ends a sweep with one line. Finished measurements stay stored, and a second sweep does
    not repeat them."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((2048, 1024), np.float32))
    out = tmp_path / "out"
    command = [
        *("-m", "cpd", "sweep", str(tmp_path / "x.npy")),
        *("--formats=e[2-6]m[1-10]", f"--jobs={jobs}", "-o", str(out), "--json=-"),
    ]
    with forked.Program(
        command, stdout=forked.PIPE, stderr=forked.PIPE, text=True, start_new_session=True
    ) as program:
        while not (out / "cells").is_dir() or len(list((out / "cells").glob("*.json"))) < 2:
            assert program.poll() is None, program.stderr.read()
            time.sleep(0.05)
        os.killpg(program.pid, signal.SIGINT)
        said = program.communicate(timeout=scaled(60))[1]
    assert program.returncode in (130, -signal.SIGINT), said
    assert said.splitlines()[-1] == "cpd sweep: interrupted"
    assert "Traceback" not in said
    kept = len(list((out / "cells").glob("*.json")))
    assert 2 <= kept < 50
    found = sweep(tmp_path / "x.npy", "e[2-6]m[1-10]", folder=out, sample=None)
    assert found.reused == kept
    assert len(found) == 50


def test_arrays_of_integers_are_left_out(tmp_path, capsys):
    np.savez(tmp_path / "x.npz", w=X, ids=np.arange(5), mask=np.ones(3, bool))
    said = told(capsys, tmp_path / "x.npz", "--formats=e4m3")
    assert said.out.startswith("1 tensor, 6,144 values; 1 cell; ")
    np.savez(tmp_path / "x.npz", ids=np.arange(5))
    assert "must have floating-point values" in refused(capsys, tmp_path / "x.npz")


def test_patterns_that_mix_encodings(checkpoint, capsys):
    said = told(capsys, checkpoint, "--formats=e2m[1-2],e4m[2-3]")
    assert said.err == (
        "cpd sweep: warning: e2m[1-2] mixes encodings: finite e2m1; ieee e2m2; "
        "e2m[1-2]:ieee and :finite have one\n"
    )
    for kind, names in (("ieee", ["e2m1ieee", "e2m2ieee"]), ("finite", ["e2m1finite", "e2m2"])):
        said = told(capsys, checkpoint, f"--formats=e2m[1-2]:{kind}", "--csv=-")
        assert said.err == ""
        rows = list(csv.DictReader(said.out.splitlines()))
        assert len(rows) == len(names) == 2


def test_csv_marks_the_front(checkpoint, capsys):
    arguments = ["--formats=e[2-3]m[1-3]:ieee", "--error=relative_rms", "--cost=bits"]
    said = told(capsys, checkpoint, *arguments, "--front", "--csv=-")
    rows = list(csv.DictReader(said.out.splitlines()))
    marked = [row["operand"] for row in rows if row["front"] == "1"]
    found = sweep({"w": X, "b": X[0]}, "e[2-3]m[1-3]:ieee")
    assert len(marked) == len(found.front("relative_rms", "bits"))
    assert 0 < len(marked) < len(found)


def test_names_are_whole_where_there_is_room(checkpoint, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    arguments = ["--formats=e4m3", "--scales=nv", "--accumulator=e6m9 kahan,fp32"]
    said = told(capsys, checkpoint, *arguments, "--rounding=stochastic:8,nearest_even")
    assert said.out.count("(4,3) 16 scale=e4m3fn tensor_scale=fp32 ") == 4


def test_commas_in_brackets_are_no_lists(tmp_path, capsys):
    """A comma within brackets does not separate: `fixed<32,12>` may be in a list of accumulators,
    and `(4,3)` in a list of formats."""
    np.save(tmp_path / "x.npy", np.random.default_rng(1).standard_normal((4, 32)).astype("f"))
    lists = ["--formats=(4,3),e5m2", "--accumulator=fixed<32,12>,fp32"]
    assert main(["sweep", str(tmp_path / "x.npy"), *lists, f"--csv={tmp_path / 'cells.csv'}"]) == 0
    written = (tmp_path / "cells.csv").read_text(encoding="utf-8")
    assert written.count("fixed width=32 fraction=12") == 2
    assert "4 cells" in capsys.readouterr().out
