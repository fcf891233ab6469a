# SPDX-License-Identifier: Apache-2.0
"""Tests gradients in files, and the command `cpd roundoff`."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import spawn  # noqa: E402
from cpd.cli import main  # noqa: E402
from cpd.study import Machine  # noqa: E402
from cpd.study.costs import transfer_seconds  # noqa: E402
from cpd.study.gradients import load_gradients, save_gradients  # noqa: E402
from cpd.study.series import group_sizes_for, hierarchical_steps  # noqa: E402
from patience import scaled  # noqa: E402

RANKS = 12
DEFAULT = Machine(alpha=10 / 1e6, beta=10 * 1e9 / 8)
"""The machine that `--recommend` assumes without `--machine`."""


@pytest.fixture
def per_rank():
    generator = torch.Generator().manual_seed(0)
    return [
        [torch.randn(5, 7, generator=generator) * 1e-3, torch.randn(11, generator=generator)]
        for _ in range(RANKS)
    ]


def assert_same(gradients, names, per_rank):
    assert gradients.names == names
    assert gradients.ranks == len(per_rank)
    for mine, yours in zip(gradients.per_rank, per_rank, strict=True):
        for a, b in zip(mine, yours, strict=True):
            assert a.dtype == np.float32
            np.testing.assert_array_equal(a, b.numpy())


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_save_and_load(tmp_path, per_rank, suffix):
    path = tmp_path / f"gradients{suffix}"
    save_gradients(path, ["a.weight", "b"], per_rank)
    assert_same(load_gradients(path), ["a.weight", "b"], per_rank)


def test_ranked_names(tmp_path, per_rank):
    path = tmp_path / "ranked.npz"
    np.savez(
        path,
        **{
            f"rank{r}/{name}": layer.numpy()
            for r, layers in enumerate(per_rank)
            for name, layer in zip(("a", "block/b"), layers, strict=True)
        },
    )
    assert_same(load_gradients(path), ["a", "block/b"], per_rank)


def test_other_float_types(tmp_path):
    from safetensors.torch import save_file

    x = torch.tensor([[1.5, -2.0], [0.25, float("nan")]])
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        path = tmp_path / "x.safetensors"
        save_file({"x": x.to(dtype)}, path)
        loaded = load_gradients(path).per_rank
        assert loaded[0][0].tolist() == x[0].tolist()
        assert np.isnan(loaded[1][0][1])
    np.savez(tmp_path / "big.npz", x=x.numpy().astype(">f4"))
    assert load_gradients(tmp_path / "big.npz").per_rank[0][0].tolist() == x[0].tolist()


@pytest.mark.parametrize(
    ("nodes", "group", "steps"),
    [(128, 16, 74), (256, 16, 90), (256, 256, 510), (256, 1, 510), (10, 4, 16), (1, 1, 0)],
)
def test_steps(nodes, group, steps):
    assert hierarchical_steps(nodes, group) == steps


def test_default_group_sizes():
    assert group_sizes_for(256) == [4, 8, 16, 32, 64, 256]
    assert group_sizes_for(64) == [4, 8, 16, 32, 64]
    assert group_sizes_for(10) == [4, 8, 10]
    assert group_sizes_for(1) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "e5m2 aps order=sequential",
        "e5m2 aps order=sequential accumulator='e5m2 kahan'",
        "e5m2 aps order=ring",
        "e5m2 aps order=ring accumulator='e5m2 kahan'",
        "e5m2 aps order=tree",
        "qsgd bits=4 bucket=8 order=sequential",
        "fp8_rows order=sequential",
    ],
)
def test_table_of_a_file(tmp_path, capsys, per_rank, text):
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    save_gradients(path, ["a", "b"], per_rank)
    arguments = ["--gradients", str(path), "--json", str(out), "--reduce", text, "--seed", "3"]
    assert main(["roundoff", *arguments]) == 0
    written = json.loads(out.read_text())
    spec = cpd.Reduce(text)
    expected = cpd.study.roundoff(per_rank, spec, group_sizes=[4, 8, 12], seed=3)
    assert [row["group_size"] for row in written["roundoff"]] == [4, 8, 12]
    for row in written["roundoff"]:
        assert row["error"] == expected[row["group_size"]].error
        assert row["relative_rms"] == expected[row["group_size"]].relative_rms
        assert row["count"] == 46
    assert (written["order"], written["nodes"]) == (spec.order, RANKS)
    assert written["accumulator"] == str(spec.accumulator)
    lines = capsys.readouterr().out.splitlines()
    assert any(f"{100 * expected[12].error:.2f} %" in line for line in lines[-3:])


def test_error_is_equation_5(tmp_path, per_rank):
    """The error for one node equals equation 5 of the APS paper, computed directly.

    The values of one node are rounded but not summed.
    """
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    x = per_rank[0][0].clone()
    x[0, 0] = 0
    save_gradients(path, ["a"], [[x]])
    assert main(["roundoff", "--gradients", str(path), "--reduce=e5m2", "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["roundoff"]
    exact = x.double()
    rounded = cpd.cast(x, cpd.Format("e5m2")).double()
    chosen = exact != 0
    error = ((exact - rounded).abs()[chosen] / exact.abs()[chosen]).mean().item()
    rms = ((exact - rounded).norm() / exact.norm()).item()
    assert row["error"] == pytest.approx(error, rel=1e-12)
    assert row["relative_rms"] == pytest.approx(rms, rel=1e-12)
    assert (row["count"], row["zero_references"], row["non_finite"]) == (35, 1, 0)


def test_one_layer(tmp_path, capsys, per_rank):
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    save_gradients(path, ["a", "b"], per_rank)
    arguments = ["roundoff", "--gradients", str(path), "--json", str(out), "--layer"]
    assert main([*arguments, "b"]) == 0
    written = json.loads(out.read_text())
    assert written["layers"] == ["b"]
    assert written["roundoff"][0]["count"] == 11
    assert main([*arguments, "c"]) == 2
    assert "a, b" in capsys.readouterr().err


def test_groups_near_the_root_lose_least_on_the_models_gradients(tmp_path, capsys):
    pytest.importorskip("sklearn")
    out = tmp_path / "table.json"
    text = "e5m2 aps order=ring"
    assert main(["roundoff", "--epochs", "2", "--reduce", text, "--json", str(out)]) == 0
    rows = {row["group_size"]: row for row in json.loads(out.read_text())["roundoff"]}
    assert list(rows) == [4, 8, 16, 32, 64, 256]
    for name in ("error", "relative_rms"):
        assert min(rows[8][name], rows[16][name], rows[32][name]) < rows[64][name]
        assert rows[64][name] < rows[256][name]
    assert "e5m2 aps order=ring, 256 nodes, all" in capsys.readouterr().out


# ---- cpd roundoff --recommend --------------------------------------------------------------------


def test_recommend_on_a_file(tmp_path, capsys, per_rank):
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    save_gradients(path, ["a", "b"], per_rank)
    arguments = ["--gradients", str(path), "--json", str(out), "--group-sizes", "2,4,12"]
    machine = "alpha=5e-6 beta=2.5e8"
    assert main(["roundoff", *arguments, "--recommend", "--machine", machine]) == 0
    written = json.loads(out.read_text())
    spec = cpd.Reduce("e5m2", order="ring", aps=True)
    best = cpd.study.recommend(per_rank, spec, [2, 4, 12], Machine(machine))
    assert written["order"] == "ring"
    assert written["recommend"] == {
        "by_error": best.by_error,
        "by_time": best.by_time,
        "compromise": best.compromise,
        "by_error_tie": [one.group_size for one in best.exact_tie],
        "compromise_tie": [one.group_size for one in best.balanced_tie],
        "by_error_exchange": best.most_exact.exchange,
        "by_time_exchange": best.fastest.exchange,
        "compromise_exchange": best.balanced.exchange,
        "owner_seconds": best.owner_seconds,
        "draws": 0,
        "alpha_us": 5.0,
        "bandwidth_gbps": 2.0,
    }
    for row, choice in zip(written["roundoff"], best.choices, strict=True):
        assert row["group_size"] == choice.group_size
        assert row["error"] == choice.roundoff.error
        assert row["steps"] == choice.steps
        assert row["bytes_sent"] == choice.bytes_sent
        assert row["seconds"] == choice.seconds
        assert row["spread"] is choice.spread is None
    lines = capsys.readouterr().out.splitlines()
    (by_error,) = (line for line in lines if line.startswith("by error: "))
    (by_time,) = (line for line in lines if line.startswith("by modeled time: "))
    names = {2: "groups of 2", 4: "groups of 4", 12: "no groups"}
    assert by_error.startswith(f"by error: {names[best.by_error]}, ")
    assert f"exchange {best.most_exact.exchange}, " in by_error
    assert by_time.startswith(f"by modeled time: {names[best.by_time]}, ")
    assert any(line.startswith("compromise ") for line in lines)
    assert any("exchange owner" in line for line in lines)


def test_recommend_has_defaults(tmp_path, capsys, per_rank):
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    save_gradients(path, ["a", "b"], per_rank)
    arguments = ["roundoff", "--gradients", str(path), "--json", str(out)]
    assert main([*arguments, "--recommend"]) == 0
    written = json.loads(out.read_text())
    assert written["recommend"]["alpha_us"] == written["recommend"]["bandwidth_gbps"] == 10
    assert main(arguments) == 0
    assert "recommend" not in json.loads(out.read_text())
    assert "by error" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--recommend", "--reduce", "e5m2 order=sequential"], "order ring"),
        (["--recommend", "--reduce", "e5m2 order=tree"], "order ring"),
        (["--machine", "ethernet-10g"], "--machine needs --recommend"),
        (["--recommend", "--machine", "ec2p2"], "did you mean ec2-p2?"),
        (["--recommend", "--machine", "ec2-p2"], "ec2-p2 has GPUs that share a host"),
        (["--recommend", "--machine", "alpha=-1 beta=1"], "at least 0"),
        (["--recommend", "--machine", "alpha=1 beta=0"], "above 0"),
        (["--recommend", "--machine", "alpha=1 beta=nan"], "above 0"),
        (["--epochs", "3"], "--epochs is the model's"),
        (["--batch", "3"], "--batch is the model's"),
        (["--train-nodes", "3"], "--train-nodes is the model's"),
        (["--depth", "3"], "--depth is the model's"),
        (["--width", "3"], "--width is the model's"),
    ],
)
def test_options_that_do_not_go_with_a_file(tmp_path, capsys, per_rank, arguments, told):
    path = tmp_path / "g.npz"
    save_gradients(path, ["a", "b"], per_rank)
    assert main(["roundoff", "--gradients", str(path), *arguments]) == 2
    said = capsys.readouterr()
    assert told in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""


# ---- formats, accumulators, baselines, files -----------------------------------------------------


@pytest.fixture
def saved(tmp_path, per_rank):
    path = tmp_path / "g.npz"
    save_gradients(path, ["a.weight", "b"], per_rank)
    return str(path)


def as_json(capsys, *arguments):
    """Returns the output of `cpd roundoff ARGUMENTS --json -`, which is only JSON."""
    capsys.readouterr()
    assert main(["roundoff", *arguments, "--json", "-"]) == 0
    return json.loads(capsys.readouterr().out)


def as_csv(capsys, *arguments):
    capsys.readouterr()
    assert main(["roundoff", *arguments, "--csv", "-"]) == 0
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_accumulator_and_result(capsys, saved, per_rank):
    told = as_json(
        capsys, "--gradients", saved, "--reduce", "e5m2 accumulator='e6m9 kahan' result=fp16"
    )
    spec = cpd.Reduce("e5m2", accumulator="e6m9 kahan", result="fp16")
    expected = cpd.study.roundoff(per_rank, spec, [4, 8, 12])
    assert (told["accumulator"], told["result"]) == ("e6m9 kahan", "fp16")
    assert [row["relative_rms"] for row in told["roundoff"]] == [
        one.relative_rms for one in expected.values()
    ]


def test_a_stochastic_accumulator_has_the_seed(capsys, saved, per_rank):
    words = (
        "--gradients",
        saved,
        "--reduce",
        "e5m2 accumulator='e6m9 sequential rounding=stochastic'",
    )
    told = as_json(capsys, *words, "--seed", "3")
    expected = cpd.study.roundoff(per_rank, words[-1], [4, 8, 12], seed=3)
    assert told["roundoff"][2]["error"] == expected[12].error
    assert as_json(capsys, *words, "--seed", "4")["roundoff"] != told["roundoff"]


@pytest.mark.parametrize(
    "words",
    [
        ["--reduce", "e4m3 aps,e5m2 aps", "--reduce", "e3m0 aps"],
        ["--reduce", "e4m3 aps", "--reduce", "e5m2 aps", "--reduce=e3m0 aps"],
        ["--reduce", "e4m3 aps, e5m2 aps ,e3m0 aps"],
        ["--reduce", "e[4]m3 aps, e5m[2] aps ,e3m0 aps"],
    ],
)
def test_several_formats(capsys, saved, words):
    told = as_json(capsys, "--gradients", saved, "--recommend", *words)
    assert [one["format"] for one in told["formats"]] == ["e4m3", "e5m2", "e3m0"]
    for one in told["formats"]:
        alone = as_json(capsys, "--gradients", saved, "--recommend", "--reduce", one["name"])
        assert one["roundoff"] == alone["roundoff"]
        assert one["recommend"] == alone["recommend"]
    assert main(["roundoff", "--gradients", saved, "--recommend", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("e4m3 aps, e5m2 aps, e3m0 aps, order ring, 12 nodes, all")
    for name in ("e4m3", "e5m2", "e3m0"):
        assert sum(line.lstrip().startswith(f"{name} aps  ") for line in lines) == 3
        assert f"{name} aps:" in lines


def test_baselines_are_todays_stacks(capsys, saved, per_rank):
    ring, owner = as_json(capsys, "--gradients", saved, "--reduce", "e5m2 order=tree")["baselines"]
    for told, spec in (
        (ring, cpd.Reduce("bf16", accumulator="bf16", order="ring")),
        (owner, cpd.Reduce("fp32", accumulator="fp32")),
    ):
        (row,) = told["roundoff"]
        expected = cpd.study.roundoff(per_rank, spec, [RANKS])[RANKS]
        assert (row["group_size"], row["steps"]) == (RANKS, 2 * (RANKS - 1))
        assert (row["error"], row["relative_rms"]) == (expected.error, expected.relative_rms)
    assert (ring["name"], owner["name"]) == ("bf16 ring", "fp32 owner")
    assert as_json(capsys, "--gradients", saved, "--no-baselines")["baselines"] == []
    (timed, _) = as_json(capsys, "--gradients", saved, "--recommend")["baselines"]
    spec = cpd.Reduce("bf16", order="ring", exchange="ring")
    assert timed["roundoff"][0]["seconds"] == transfer_seconds(spec, DEFAULT, RANKS, [35, 11])


def test_csv_holds_what_json_holds(capsys, saved):
    words = ("--gradients", saved, "--recommend", "--reduce", "e4m3 aps,e5m2 aps", "--per-tensor")
    rows, told = as_csv(capsys, *words), as_json(capsys, *words)
    assert [row["name"] for row in rows[:2]] == ["bf16 ring", "bf16 ring"]
    whole = [row for row in rows if row["layer"] == "" and row["baseline"] == "0"]
    wanted = [line for one in told["formats"] for line in one["roundoff"]]
    assert len(whole) == len(wanted) == 6
    for row, line in zip(whole, wanted, strict=True):
        for name, value in line.items():
            assert row[name] == ("" if value is None else str(value))
    layers = [row for row in rows if row["layer"] and row["baseline"] == "0"]
    assert [row["layer"] for row in layers[:4]] == ["a.weight", "b", "a.weight", "b"]
    assert [int(row["count"]) for row in layers[:2]] == [35, 11]


def test_per_layer(capsys, saved, per_rank):
    told = as_json(capsys, "--gradients", saved, "--per-tensor")
    spec = cpd.Reduce("e5m2", aps=True)
    expected = cpd.study.roundoff(per_rank, spec, [4, 8, 12], per_tensor=True)
    assert [
        (row["layer"], row["group_size"], row["relative_rms"]) for row in told["per_layer"]
    ] == [
        (name, size, one.relative_rms)
        for size, layers in expected.items()
        for name, one in zip(("a.weight", "b"), layers, strict=True)
    ]
    assert main(["roundoff", "--gradients", saved, "--per-tensor"]) == 0
    out = capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if line.startswith(" a.weight"))
    for layers in expected.values():
        assert f"{100 * layers[0].relative_rms:.2f} %" in line
    assert "relative RMS of each layer" in out


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_plot(tmp_path, saved, suffix):
    pytest.importorskip("matplotlib")
    path = tmp_path / f"plot{suffix}"
    words = ["roundoff", "--gradients", saved, "--reduce", "e4m3 aps,e5m2 aps", "--plot", str(path)]
    for recommend in ([], ["--recommend"]):
        assert main([*words, *recommend]) == 0
        content = path.read_bytes()
        if suffix == ".png":
            assert content.startswith(b"\x89PNG")
        else:
            for text in (b"e4m3 aps", b"e5m2 aps", b"bf16 ring", b"fp32 owner", b"group size"):
                assert text in content
    assert main([*words, *recommend]) == 0
    assert path.read_bytes() == content


def test_plot_without_error(tmp_path):
    """A plot is written even if all errors are 0, which a logarithmic axis cannot show."""
    pytest.importorskip("matplotlib")
    save_gradients(tmp_path / "g.npz", ["a"], [[torch.ones(100)]] * 2)
    words = ["--gradients", str(tmp_path / "g.npz"), "--plot", str(tmp_path / "p.svg")]
    assert main(["roundoff", *words]) == 0
    assert b"<svg" in (tmp_path / "p.svg").read_bytes()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--reduce", "e5m2 accumulator='e6m9 stochastic'"], "scheme must be"),
        (["--reduce", "e5m2 accumulator=h100-fp8"], "block_fma"),
        (["--reduce", "e5m2 accumulator=''"], ""),
        (["--reduce", "e5m2 result=e99m1"], "1…8, got 99"),
        (["--reduce", "e5m2 apps"], "'apps'"),
        (["--reduce", "e4m3,what"], "what"),
        (["--reduce", "e4m3 group_size=13"], "1…12"),
        (["--csv", "-", "--json", "-"], "only one of --csv and --json"),
        (["--csv", "no/such/folder/x.csv"], "no/such/folder"),
        (["--plot", "x.jpg"], ".png or .svg"),
        (["--plot", "no/such/folder/x.png"], "no/such/folder"),
        (["--plot", "-"], ".png or .svg"),
        (["--nodes", "5"], "holds 12 ranks, not 5"),
        (["--group-sizes", "13"], "1…12"),
        (["--reduce", "fp8_rows aps"], "has scales of its own"),
    ],
)
def test_options_that_are_refused(capsys, saved, words, told):
    assert main(["roundoff", "--gradients", saved, *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err
    assert said.err.count("\n") == 1
    assert said.err.endswith("(see cpd roundoff --help)\n")


def test_one_node_and_one_value(tmp_path, capsys):
    save_gradients(tmp_path / "g.npz", ["a"], [[torch.tensor([0.0])]])
    assert main(["roundoff", "--gradients", str(tmp_path / "g.npz")]) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert "1 node, " in first
    assert "a (1 value); 1 reference is zero" in first


@pytest.mark.parametrize("columns", [80, 100])
def test_tables_fit_the_screen(capsys, monkeypatch, saved, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    words = ["roundoff", "--gradients", saved, "--reduce", "e4m3 aps,e5m2 aps", "--per-tensor"]
    assert main([*words, "--recommend"]) == 0
    ring = transfer_seconds(cpd.Reduce("bf16"), DEFAULT, RANKS, [35, 11])
    lines = [
        line for line in capsys.readouterr().out.splitlines() if "%" in line and "," not in line
    ]
    assert len(lines) == 2 + 6 + 4
    assert max(map(len, lines)) <= columns
    assert lines[0].rstrip().endswith(f" {ring * 1e3:.4g}")  # the last column is not cut


def in_a_process(*words, terminal=False):
    """Runs `cpd roundoff WORDS` in a process and returns its standard output and error.

    If `terminal`, the command runs in a terminal, and the first text holds both outputs.
    """
    command = [sys.executable, "-m", "cpd", "roundoff", *words]
    if terminal:
        command = ["script", "-qec", shlex.join(command), "/dev/null"]
    done = subprocess.run(
        command,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        timeout=scaled(120),
    )
    return done.stdout, done.stderr


def test_a_pipe_gets_no_codes_of_a_terminal(saved):
    out, error = in_a_process("--gradients", saved, "--recommend", "--per-tensor")
    assert "\x1b" not in out
    assert error == ""
    assert "by error: " in out


def test_a_terminal_shows_progress(saved):
    if shutil.which("script") is None:
        pytest.skip("no script(1)")
    out, _ = in_a_process("--gradients", saved, terminal=True)
    assert "measuring" in out
    assert re.search(r"[0-5]/5 sums", re.sub(r"\x1b\[[0-9;]*m", "", out))


# ---- between processes ---------------------------------------------------------------------------


@pytest.mark.parametrize("transport", ["mpi", pytest.param("torch", marks=pytest.mark.exhaustive)])
def test_processes_find_what_virtual_nodes_find(tmp_path, capsys, transport):
    from launchers import LAUNCHERS, MPI_SETTINGS

    spawn.skip_without({"torch": "gloo"}.get(transport, transport))
    path, real, virtual = (tmp_path / name for name in ("g.npz", "real.json", "virtual.json"))
    generator = torch.Generator().manual_seed(0)
    save_gradients(path, ["a"], [[torch.randn(500, generator=generator)] for _ in range(2)])
    words = ["roundoff", "--gradients", str(path), "--recommend", "--group-sizes", "1,2"]
    assert main([*words, "--json", str(virtual)]) == 0
    printed = capsys.readouterr().out
    command = [*LAUNCHERS[transport], "-m", "cpd", *words, "--json", str(real)]
    done = subprocess.run(
        [*command, "--transport", transport],
        env=os.environ | MPI_SETTINGS | {"CPD_NUM_THREADS": "1", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(120),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == printed
    assert real.read_bytes() == virtual.read_bytes()


def test_a_transport_needs_its_launcher(tmp_path, capsys, monkeypatch, per_rank):
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "g.npz"
    save_gradients(path, ["a", "b"], per_rank)
    assert main(["roundoff", "--gradients", str(path), "--transport", "torch"]) == 2
    assert "torchrun" in capsys.readouterr().err
