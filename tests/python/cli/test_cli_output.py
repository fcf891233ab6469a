# SPDX-License-Identifier: Apache-2.0
"""Tests that tables printed into a pipe fit 80 columns, and that no number is cut."""

import shlex

import numpy as np
import pytest

from cpd.cli import main
from cpd.cli.tables import _parted

COMMANDS = [
    "show",
    "show --tables p3109",
    "show --tables ocp",
    "show e4m3 e5m2fnuz --neighbors 0.3",
    "show --compare e4m3 e5m2fnuz",
    "show --units",
    "show --codecs",
    "show --recipes",
    "compress t.npz --codec mxfp8 --codec 'qsgd bits=4 bucket=512' --per-tensor",
    "cost --model resnet50 --codec-gbps 1",
    "cost --model resnet50 --codec-gbps 1 --reduce 'e4m3 aps,qsgd bits=4 bucket=512'",
    "study figure qsgd-2",
    "study figure grubic-10",
    "sweep t.npz --formats e[2-3]m[1-2],mxfp4",
    "roundoff --gradients g.npz --reduce 'e5m2 aps,qsgd bits=4 bucket=512' --per-tensor",
    "study list",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("tables")
    draw = np.random.default_rng(0)
    names = [f"model.layers.{n}.self_attn.q_proj.weight" for n in range(2)]
    for file, shape in (("t", (16, 16)), ("g", (4, 16, 16))):
        arrays = {name: draw.standard_normal(shape).astype(np.float32) for name in names}
        np.savez(made / f"{file}.npz", **arrays)
    return made


def tables(capsys, command: str) -> list[str]:
    """Returns the lines of the tables that the command prints. Table lines begin with a blank; all
    other lines do not."""
    assert main(shlex.split(command)) == 0
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line[:1] == " "]


@pytest.mark.parametrize("command", COMMANDS)
def test_tables_fit_a_pipe(capsys, monkeypatch, folder, command):
    pytest.importorskip("torch")
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.chdir(folder)
    lines = tables(capsys, command)
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


def test_no_number_is_cut(capsys, monkeypatch, folder):
    """A narrow table prints the same words and numbers as a wide one; only the blanks differ."""
    monkeypatch.chdir(folder)
    found = []
    for columns in ("60", "200"):
        monkeypatch.setenv("COLUMNS", columns)
        lines = tables(capsys, "cost --model resnet50 --codec-gbps 1 --ranks 4,8,16")
        found.append([line.split() for line in lines if line.lstrip().startswith("fp32")])
    assert len(found[0]) == 3
    assert found[0] == found[1]


def test_headers_break_where_the_table_is_narrow(capsys, monkeypatch):
    command = "cost --model resnet50 --codec-gbps 1"
    monkeypatch.setenv("COLUMNS", "200")
    assert "Computation ms" in " ".join(tables(capsys, command))
    monkeypatch.setenv("COLUMNS", "60")
    narrow = " ".join(tables(capsys, command))
    assert "Compu-" in narrow
    assert "\u00ad" not in narrow


def test_words_break_at_signs(capsys, monkeypatch):
    """A long codec text in a narrow column breaks at blanks, `=` and hyphens."""
    monkeypatch.setenv("COLUMNS", "80")
    wire = "qsgd bits=4 bucket=512 coding=elias-dense"
    lines = tables(capsys, f"cost --model resnet50 --codec-gbps 1 --ranks 4 --reduce '{wire}'")
    words = [line.split()[0] for line in lines if line.strip()]
    begin = words.index("qsgd")
    assert words[begin:] == ["qsgd", "bits=4", "bucket=", "512", "coding=", "elias-", "dense"]


def test_no_number_breaks():
    assert _parted("eps=1e-05 coding=0.0078125", 8) == "eps=\n1e-05 coding=\n0.0078125"
    assert _parted("layers.10.self_attn", 8) == "layers.10.\nself_attn"
