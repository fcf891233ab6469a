# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd cost`: its table, its files, figures that papers published, and errors for wrong
arguments."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.study import Network

FAST = ["--codec-gbps", "100"]


def run(*arguments):
    try:
        return main(["cost", *map(str, arguments)])
    except SystemExit as stop:
        return int(stop.code or 0)


def as_json(capsys, *arguments):
    assert run(*arguments, "--json", "-") == 0
    return json.loads(capsys.readouterr().out)


def test_a_table(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    wires = "fp32,e4m3 aps,qsgd bits=4 bucket=512"
    assert run("--model", "resnet50", "--ranks", "4,8,16", "--reduce", wires, *FAST) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("resnet50, 25,557,032 values, on ec2-p2 (Amazon")
    assert sum(line.rstrip().endswith("front") for line in lines) == 3
    assert any("qsgd bits=4 bucket=512" in line and "16" in line for line in lines)
    assert "$ / 1,000 steps" in "".join(lines)
    assert "Round-off" not in "".join(lines)


def test_rows_are_those_of_the_functions(capsys):
    told = as_json(
        capsys, "--model", "alexnet", "--machine", "dgx-1", "--ranks", "8,16", *FAST,
        "--reduce", "fp32", "--reduce", "e5m2,terngrad",
    )  # fmt: skip
    assert [row["wire"] for row in told["rows"]] == ["fp32"] * 2 + ["e5m2"] * 2 + ["terngrad"] * 2
    assert told["machine"]["gpus"] == 8
    for row in told["rows"]:
        step = cpd.study.step_time(
            Network("alexnet"), cpd.study.Machine("dgx-1"), row["ranks"], row["wire"],
            codec_gbps=100.0,
        )  # fmt: skip
        assert row["step_seconds"] == step.apart
        assert row["overlapped_seconds"] == step.overlapped
        assert row["samples_a_second"] == step.samples_a_second
        assert row["bytes_sent"] == step.bytes_sent
        assert row["dollars_1000_steps"] == step.dollars()
    assert told["rows"][0]["speedup"] == 1 < told["rows"][4]["speedup"]


def test_exchanges_and_groups(capsys):
    base = ["--model", "resnet50", "--machine", "ethernet-10g", "--ranks", "16", *FAST]
    groups = "order=ring exchange=hierarchical group_size=4"
    wires = ["--reduce", f"fp32 {groups},e4m3 aps {groups},terngrad"]
    told = as_json(capsys, *base, *wires)
    assert [row["exchange"] for row in told["rows"]] == ["hierarchical", "hierarchical", "owner"]
    owner = as_json(capsys, *base, "--reduce", "fp32,e4m3 aps,terngrad")
    assert told["rows"][0]["messages"] < owner["rows"][0]["messages"]  # 4 GPUs share a link
    assert told["rows"][0]["dollars_1000_steps"] is None
    ring = as_json(capsys, *base, "--reduce", "fp32 order=ring exchange=ring")
    assert [row["steps"] for row in ring["rows"]] == [30]


def test_files(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    files = {kind: tmp_path / f"cost.{kind}" for kind in ("csv", "json", "png", "svg")}
    base = ["--model", "resnet50", "--ranks", "4,8,...,64", *FAST]
    one = ["--csv", files["csv"], "--json", files["json"], "--plot", files["png"]]
    assert run(*base, *one) == 0
    assert run(*base, "--plot", files["svg"]) == 0
    table = list(csv.DictReader(io.StringIO(files["csv"].read_text())))
    rows = json.loads(files["json"].read_text())["rows"]
    assert [int(row["ranks"]) for row in table] == [4, 8, 16, 32, 64]
    assert [float(row["step_seconds"]) for row in table] == [row["step_seconds"] for row in rows]
    assert files["png"].read_bytes().startswith(b"\x89PNG")
    picture = files["svg"].read_text()
    assert "computation alone" in picture
    rates = ("200", "500", "1,000", "2,000")
    assert all(f">{rate}</text>" in picture for rate in rates)
    capsys.readouterr()
    assert run(*base, "--csv", "-") == 0
    assert capsys.readouterr().out == files["csv"].read_text()


def test_a_machine_of_ones_own(tmp_path, capsys):
    path = tmp_path / "mine.toml"
    path.write_text("gpus = 2\nspeed = 10.0\nwithin = { alpha = 1e-6, bandwidth = 1e10 }\n")
    base = ["--model", "alexnet", "--ranks", "2", *FAST]
    by_file = as_json(capsys, *base, "--machine", path)
    by_text = as_json(capsys, *base, "--machine", "alpha=1e-6 beta=1e10 gpus=2 speed=10")
    assert by_file["rows"] == by_text["rows"]
    assert by_file["machine"]["name"] == "mine"
    given = as_json(capsys, *base, "--machine", "alpha=1e-6 beta=1e10", "--compute", "0.5")
    assert given["rows"][0]["computation"] == 0.5


def test_mean_bits(capsys):
    base = ["--model", "alexnet", "--ranks", "8", *FAST, "--reduce"]
    wire = "qsgd bits=4 bucket=512 coding=elias-sparse"
    most = as_json(capsys, *base, f"fp32,{wire}")
    mean = as_json(capsys, *base, f"fp32,{wire}", "--mean-bits", "2.8")
    assert most["rows"][0] == mean["rows"][0]
    assert mean["rows"][1]["messages"] < most["rows"][1]["messages"]
    assert not mean["rows"][1]["exact"]


def test_round_off_of_gradients(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setenv("COLUMNS", "250")
    draw = np.random.default_rng(0)
    path = tmp_path / "g.npz"
    np.savez(path, a=draw.normal(size=(4, 64, 32)).astype("f4"))
    base = ["--gradients", path, "--compute", "0.001", "--ranks", "4", *FAST]
    wires = ["--reduce", "fp32,e4m3 aps,terngrad"]
    told = as_json(capsys, *base, *wires)
    assert (told["network"], told["values"]) == ("g", 2048)
    errors = [row["roundoff"] for row in told["rows"]]
    assert errors == sorted(errors)
    ranks = [[layer] for layer in np.load(path)["a"]]
    spec = cpd.Reduce("e4m3", aps=True)
    assert errors[1] == cpd.study.roundoff(ranks, spec, [4])[4].relative_rms
    assert run(*base, *wires) == 0
    printed = capsys.readouterr().out
    assert "Round-off" in printed
    assert "ranks, in every row" not in printed
    assert run(*base, *wires, "--ranks", "8") == 0
    assert "round-off: of the file's 4 ranks, in every row" in capsys.readouterr().out
    packed = as_json(capsys, *base, "--reduce", "fp32,e3m0 aps")  # no sum overflows
    agreed = 2 * (4 + 4)  # the layer's largest magnitude, and whether any value is infinite
    assert packed["rows"][1]["bytes_sent"] == packed["rows"][0]["bytes_sent"] / 8 + agreed
    other = as_json(capsys, *base, *wires, "--model", "resnet50")
    assert other["values"] == Network("resnet50").values
    assert [row["roundoff"] for row in other["rows"]] == errors


def test_wires_with_short_rows_are_a_warning(capsys):
    assert run("--model", "resnet50", "--ranks", "4,8", "--reduce", "one_bit", *FAST) == 0
    said = capsys.readouterr().err
    assert said.startswith("cpd cost: warning: one_bit takes 96 bits a value")
    assert said.count("\n") == 1


# ---- mistakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "--model"),
        (["--model", "resnet5"], "did you mean resnet50"),
        (["--model", "resnet50", "--machine", "ec2"], "did you mean ec2-p2"),
        (["--model", "resnet50", "--machine", "none.toml"], "none.toml"),
        (["--model", "resnet50", "--machine", "alpha=1"], "has no beta"),
        (["--model", "resnet50", "--ranks", "4,x"], "must be integers"),
        (["--model", "resnet50", "--ranks", "0"], "at least 1"),
        (["--model", "resnet50", "--ranks", "4,…"], "stands between"),
        (["--model", "resnet50", "--ranks", "8,4,…,64"], "must rise"),
        (["--model", "resnet50", "--reduce", "e4m"], "e4m"),
        (["--model", "resnet50", "--reduce", "qsgd bits=99"], "99"),
        (["--model", "resnet50", "--reduce", "qsgd aps"], "aps"),
        (["--model", "resnet50", "--reduce", "fp32 exchange=star"], "hierarchical"),
        (["--model", "resnet50", "--reduce", "fp32 group_size=0"], "group_size"),
        (["--model", "resnet50", "--reduce", "fp32,,e4m3"], "a name is missing"),
        (
            ["--model", "resnet50", "--codec-gbps", "fast"],
            "--codec-gbps must be a number or 'measured', got 'fast'",
        ),
        (["--model", "resnet50", "--compute", "-1"], "at least 0"),
        (["--model", "resnet50", "--batch", "0"], "at least 1"),
        (["--model", "resnet50", "--codec-gbps", "0"], "above 0"),
        (["--model", "resnet50", "--reduce", "top_k 0.1", "--mean-bits", "0"], "above 0"),
        (["--model", "lstm"], "computation of lstm"),
        (["--model", "resnet50", "--machine", "alpha=1 beta=1"], "speed"),
        (["--model", "resnet50", "--round"], "--round needs --gradients"),
        (["--model", "resnet50", "--plot", "x.pdf"], ".png"),
        (["--model", "resnet50", "--csv", "no/such/folder.csv"], "no/such"),
        (["--model", "resnet50", "--csv", "-", "--json", "-"], "only one"),
        (["--gradients", "none.npz"], "none.npz"),
    ],
)
def test_mistakes(capsys, arguments, told):
    has_rate = "--codec-gbps" in arguments
    assert run(*arguments, *([] if has_rate else FAST)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("cpd cost: error: ")
    assert said.err.count("\n") == 1
    assert told in said.err


def test_the_table_names_the_source_of_each_codec_rate(capsys):
    arguments = ["--model", "resnet50", "--machine", "nvlink-like", "--ranks", "8", "--reduce"]
    assert run(*arguments, "fp32,bf16") == 0
    assert "codec: an H200's encode and decode of e4m3" in capsys.readouterr().out
    assert run(*arguments, "fp32,bf16", "--codec-gbps", "5") == 0
    assert "codec: given: 5 GB/s" in capsys.readouterr().out
    assert run(*arguments, "bf16,e4m3", "--codec-gbps", "measured") == 0
    found = capsys.readouterr().out
    assert "codec: bf16 measured on this CPU: " in found
    assert "codec: e4m3 measured on this CPU: " in found
    assert run(*arguments, "fp32") == 0
    assert "codec: " not in capsys.readouterr().out


def test_small_messages_have_digits(tmp_path, capsys):
    """Four ranks all-reduce 1,000 one-byte values (e4m3). Each rank sends 2 · 3/4 of the bytes,
    0.0015 MB."""
    path = tmp_path / "small.npy"
    np.save(path, np.ones((4, 1000), "f4"))
    words = ["cost", "--gradients", str(path), "--compute", "1", "--machine", "alpha=0 beta=1e9"]
    assert main([*words, "--ranks", "4", "--reduce", "e4m3"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if "1.00×" in line]
    assert row[row.index("1.00×") + 1] == "0.0015"
