# SPDX-License-Identifier: Apache-2.0
"""Tests that `cpd compress` reports each codec's results for a file of tensors."""

from __future__ import annotations

import importlib.util
import json
import sys
import types

import numpy as np
import pytest
import torch

import cpd
from cpd import compress
from cpd.cli import main
from cpd.study import compression

SHAPES = {"weight": (30, 20), "bias": (30,), "scale": ()}


@pytest.fixture
def tensors():
    rng = np.random.default_rng(7)
    return {
        name: np.asarray(rng.standard_normal(shape), np.float32) for name, shape in SHAPES.items()
    }


@pytest.fixture
def checkpoint(tmp_path, tensors):
    """A checkpoint with a model's tensors and the other objects that a training saves."""
    path = tmp_path / "checkpoint.pt"
    state = {name: torch.from_numpy(np.array(x)) for name, x in tensors.items()}
    options = {"step": 12, "options": {"lr": 0.1, "betas": (0.9, 0.99), "none": {}}}
    torch.save({"model": state, "optimizer": options, "count": torch.tensor([3])}, path)
    return path


def figures(path, capsys, *arguments):
    assert main(["compress", str(path), *arguments, "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    return {one["codec"]: one for one in told["codecs"]}


def test_figures_are_those_of_the_codecs(capsys, checkpoint, tensors):
    wires = ["e4m3", "qsgd bits=4 bucket=64"]
    told = figures(checkpoint, capsys, *(f"--codec={wire}" for wire in wires))
    for wire in wires:
        codec = cpd.Codec(wire)
        row = told[codec.text]
        packets = {name: codec.encode(x) for name, x in tensors.items()}
        assert list(row["tensors"]) == [f"model.{name}" for name in tensors]
        assert row["bytes"] == sum(packet.bytes for packet in packets.values())
        assert row["values"] == sum(x.size for x in tensors.values())
        assert row["bits_a_value"] == 8 * row["bytes"] / row["values"]
        assert row["ratio"] == 4 * row["values"] / row["bytes"]
        errors = sum(((np.float64(p.values) - tensors[n]) ** 2).sum() for n, p in packets.items())
        squares = sum((np.float64(x) ** 2).sum() for x in tensors.values())
        assert row["relative_rms"] == pytest.approx(np.sqrt(errors / squares), rel=1e-12)
        for name, packet in packets.items():
            assert row["tensors"][f"model.{name}"]["bytes"] == packet.bytes
    assert told["e4m3"]["variance"] is None  # nothing is random


def test_variance_is_that_of_the_seeds(capsys, tmp_path, tensors):
    x = tensors["weight"]
    np.save(tmp_path / "x.npy", x)
    codec = cpd.Codec("qsgd", bits=2)
    told = figures(tmp_path / "x.npy", capsys, "--codec", codec.text, "--seeds=5", "--seed=3")
    drawn = [codec.encode(x, seed=s).values for s in range(3, 8)]
    expected = np.var(np.float64(drawn), axis=0, ddof=1).sum() / (np.float64(x) ** 2).sum()
    assert told[codec.text]["variance"] == pytest.approx(expected, rel=1e-12)
    assert list(told[codec.text]["tensors"]) == ["x"]
    once = figures(tmp_path / "x.npy", capsys, "--codec", codec.text, "--seeds=1")
    assert once[codec.text]["variance"] is None


def test_kinds_of_files(capsys, tmp_path, tensors):
    from safetensors.numpy import save_file

    save_file(tensors, tmp_path / "x.safetensors")
    np.savez(tmp_path / "x.npz", **tensors)
    torch.save({n: torch.from_numpy(np.array(x)) for n, x in tensors.items()}, tmp_path / "x.pth")
    rows = [figures(p, capsys, "--codec=mxfp8")["mxfp8"] for p in sorted(tmp_path.iterdir())]
    assert len({row["bytes"] for row in rows}) == 1
    assert [row["relative_rms"] for row in rows] == pytest.approx([rows[0]["relative_rms"]] * 3)
    half = {"a": torch.ones(5, dtype=torch.bfloat16), "b": torch.ones(3, dtype=torch.float64)}
    torch.save(half, tmp_path / "half.pt")
    row = figures(tmp_path / "half.pt", capsys, "--codec=e4m3")["e4m3"]
    assert (row["bytes"], row["relative_rms"]) == (8, 0)


def test_tables(capsys, monkeypatch, checkpoint, tmp_path):
    monkeypatch.setenv("COLUMNS", "200")
    json_file = tmp_path / "told.json"
    arguments = ["compress", str(checkpoint), "--codec=e4m3", "--codec=terngrad", "--per-tensor"]
    assert main([*arguments, f"--json={json_file}"]) == 0
    told = capsys.readouterr().out
    assert f"{checkpoint}: 3 tensors, 631 values, 2,524 bytes in binary32" in told.replace("\n", "")
    rows = [line.split() for line in told.splitlines()]
    assert [row[1:4] for row in rows if row and row[0] == "e4m3" and len(row) > 1] == [
        ["631", "8.000", "4.00"]
    ]
    by_zstd = importlib.util.find_spec("zstandard") is not None
    rows_of_one = 2 + by_zstd
    assert told.count("model.weight") == rows_of_one == json_file.read_text().count("model.weight")
    assert cpd.Codec("terngrad").text in [
        one["codec"] for one in json.loads(json_file.read_text())["codecs"]
    ]


def test_values_that_are_not_finite(capsys, tmp_path):
    np.save(tmp_path / "x.npy", np.float32([1, np.nan, np.inf, 0.3]))
    row = figures(tmp_path / "x.npy", capsys, "--codec=e5m2")["e5m2"]
    assert 0 < row["relative_rms"] < 0.1
    np.save(tmp_path / "zero.npy", np.zeros(4, np.float32))
    assert figures(tmp_path / "zero.npy", capsys, "--codec=e5m2")["e5m2"]["relative_rms"] == 0
    np.save(tmp_path / "none.npy", np.zeros(0, np.float32))
    assert figures(tmp_path / "none.npy", capsys, "--codec=e5m2")["e5m2"]["bits_a_value"] == 0


def test_zstd_is_the_baseline_where_it_is_there(capsys, monkeypatch, checkpoint):
    def codec(work):
        return lambda **_: types.SimpleNamespace(compress=work, decompress=lambda data: data)

    fake = types.ModuleType("zstandard")
    fake.ZstdCompressor = codec(lambda raw: raw[: len(raw) // 2])
    fake.ZstdDecompressor = codec(None)
    monkeypatch.setitem(sys.modules, "zstandard", fake)
    told = figures(checkpoint, capsys, "--codec=e4m3")
    assert told["zstd"]["ratio"] == 2
    assert told["zstd"]["relative_rms"] == 0
    monkeypatch.setitem(sys.modules, "zstandard", None)  # makes the import of zstandard fail
    assert "zstd" not in figures(checkpoint, capsys, "--codec=e4m3")


def test_names_of_tensors_and_of_their_shapes_differ(tmp_path):
    """Tensors with names such as a, a.shape, a.data, file and x.npy are all stored under their own
    names."""
    rng = np.random.default_rng(1)
    given = {
        name: np.asarray(rng.standard_normal((2, n)), np.float32)
        for n, name in enumerate(("a", "a.shape", "a.data", "a.shape.data", "file", "x.npy"), 1)
    }
    torch.save({name: torch.from_numpy(x) for name, x in given.items()}, tmp_path / "in.pt")
    out = tmp_path / "out.npz"
    assert main(["compress", str(tmp_path / "in.pt"), "--codec=fp32", f"--out={out}"]) == 0
    with np.load(out) as kept:
        assert len(kept.files) == 2 * len(given)
        for name, x in given.items():
            shape = tuple(kept[f"{name}.shape"])
            values = compress.Packet.from_bytes(kept[f"{name}.data"].tobytes(), shape).values
            np.testing.assert_array_equal(values, x)


def test_encoded_tensors_are_kept(checkpoint, tmp_path, tensors):
    out = tmp_path / "out.npz"
    codec = cpd.Codec("qsgd", bits=4)
    assert (
        main(["compress", str(checkpoint), "--codec", codec.text, "--seed=5", f"--out={out}"]) == 0
    )
    with np.load(out) as kept:
        for name, x in tensors.items():
            values = compress.Packet.from_bytes(
                kept[f"model.{name}.data"].tobytes(), tuple(kept[f"model.{name}.shape"])
            ).values
            np.testing.assert_array_equal(values, codec.encode(x, seed=5).values)


def status_of(arguments):
    try:
        return main(arguments)
    except SystemExit as left:  # argparse
        return left.code


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["missing.pt", "--codec=e4m3"], "missing.pt: No such file or directory"),
        (["x.txt", "--codec=e4m3"], "must end in .npy"),
        (["x.npy", "--codec=e99"], "unknown codec 'e99'"),
        (["x.npy", "--codec=qsgd bits=1"], "bits must be"),
        (["x.npy", "--codec=e4m3", "--seeds=0"], "--seeds must be at least 1, got 0"),
        (["x.npy", "--codec=e4m3", "--json=no/such.json"], "cannot write no/such.json"),
        (["x.npy", "--codec=e4m3", "--out=x.bin"], "--out takes one codec's tensors"),
        (
            ["x.npy", "--codec=e4m3", "--codec=fp32", "--out=y.npz"],
            "--out takes one codec's tensors",
        ),
        (["x.npy"], "--codec"),
        (["ints.pt", "--codec=e4m3"], "holds no floating-point tensors"),
        (["nan.npy", "--codec=e2m1"], "'nan' by e2m1: tensor 0, value 1 is NaN"),
        (["broken.npy", "--codec=e4m3"], "broken.npy: not a readable .npy file"),
    ],
)
def test_mistakes(capsys, monkeypatch, tmp_path, arguments, told):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(3, np.float32))
    np.save("nan.npy", np.float32([1, np.nan]))
    torch.save({"step": torch.tensor(3), "more": [1, "two"]}, "ints.pt")
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    assert status_of(["compress", *arguments]) == 2
    output = capsys.readouterr()
    assert told in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_an_array_of_all_ranks_is_one_tensor(capsys, tmp_path):
    """A file with a single array is one tensor: top_k 0.25 sends the largest of its four values. An
    archive with an array for each of two ranks has two tensors: top_k sends the larger value of
    each."""
    ranks = np.float32([[4, 3], [2, 1]])
    np.save(tmp_path / "rows.npy", ranks)
    np.savez(tmp_path / "ranks.npz", **{f"rank{r}/w": row for r, row in enumerate(ranks)})
    codec = "top_k 0.25"
    rows = figures(tmp_path / "rows.npy", capsys, "--codec", codec)[codec]
    assert rows["relative_rms"] == pytest.approx(np.sqrt((3**2 + 2**2 + 1) / 30))
    each = figures(tmp_path / "ranks.npz", capsys, "--codec", codec)[codec]
    assert each["relative_rms"] == pytest.approx(np.sqrt((3**2 + 1) / 30))


def test_a_time_of_encoding_leaves_out_the_fastest_decoding(monkeypatch):
    """Encoding is timed together with one decoding, whose time is then subtracted. Here 10 s minus
    the fastest of three decodings, 4 s, gives 6 s."""
    seconds = iter([0, 10, 20, 29, 30, 34, 40, 46])
    monkeypatch.setattr(compression.time, "perf_counter", lambda: next(seconds))
    figures, _ = compression.measured("e4m3", range(1), np.ones(4, np.float32))
    assert (figures.encode, figures.decode) == (6, 4)
