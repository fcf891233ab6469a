# SPDX-License-Identifier: Apache-2.0
"""Tests that result files are replaced completely or not at all.

Links and file modes are preserved. On a full disk, every command leaves the old files and no new
ones.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cpd import _files
from cpd.cli import main
from cpd.hardware import make_vectors

OLD = "what was there"


@contextlib.contextmanager
def full_disk(room: int = 90) -> Iterator[None]:
    """Limits the size of files to `room` bytes, as on a full disk.

    Python writes no cached modules meanwhile, because later tests would read incomplete ones.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_block_that_raises_leaves_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(OLD)

    def interrupted() -> None:
        with _files.replaced(path) as file:
            file.write(b"half")
            assert path.read_text() == OLD
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert content(tmp_path) == {"x": OLD}


def test_several_files_are_replaced_together(tmp_path: Path) -> None:
    for name in "xy":
        (tmp_path / name).write_text(OLD)

    def written() -> None:
        with _files.replaced_together([tmp_path / "x", tmp_path / "y"]) as (x, y):
            x.write(b"new")
            y.write(bytes(100))

    with full_disk(), pytest.raises(OSError, match=r"File too large: '.*/y'"):
        written()
    assert content(tmp_path) == {"x": OLD, "y": OLD}


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/target").write_text(OLD)
    (tmp_path / "link").symlink_to("inner/middle")
    (tmp_path / "inner/middle").symlink_to("target")
    (tmp_path / "dangling").symlink_to("inner/new")
    _files.write_text(tmp_path / "link", "new")
    _files.write_text(tmp_path / "dangling", "made")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "inner/middle").is_symlink()
    assert content(tmp_path / "inner") == {"target": "new", "middle": "new", "new": "made"}
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        _files.write_text(tmp_path / "loop", "x")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o664, 0o755])
def test_mode_and_owner_stay(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "x"
    path.write_text(OLD)
    path.chmod(mode)
    if os.geteuid() == 0:
        os.chown(path, 12345, 54321)
    before = path.stat()
    _files.write_text(path, "new")
    after = path.stat()
    assert after.st_ino != before.st_ino
    assert stat.S_IMODE(after.st_mode) == mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)


def test_a_new_file_has_the_mode_of_any_other(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    _files.write_text(tmp_path / "x", "new")
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "other").stat().st_mode


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
def test_what_must_not_be_written_is_not(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_text(OLD)
    path.chmod(0o444)
    with pytest.raises(PermissionError, match="x"):
        _files.write_text(path, "new")
    path.chmod(0o644)
    tmp_path.chmod(0o555)  # no new file beside it: it is written in place
    _files.write_text(path, "new")
    tmp_path.chmod(0o755)
    assert content(tmp_path) == {"x": "new"}


def test_an_owner_who_would_not_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is overwritten, not replaced, if a new file could not get its owner or mode."""

    def refuse(*_: Any) -> None:
        raise PermissionError(1, "no")

    path = tmp_path / "x"
    path.write_text(OLD)
    before = path.stat().st_ino
    monkeypatch.setattr(os, "fchmod", refuse)
    _files.write_text(path, "new")
    assert content(tmp_path) == {"x": "new"}
    assert path.stat().st_ino == before


def test_pipes_and_devices_are_written_straight(
    tmp_path: Path, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    _files.write_npz(pipe, {"a": np.arange(3)})
    reader.join()
    assert read[0][:2] == b"PK"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    _files.write_text("/dev/null", "x")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with (tmp_path / "out").open("w") as out:
        _files.write_text(f"/dev/fd/{out.fileno()}", "straight")
        assert (tmp_path / "out").stat().st_ino == os.fstat(out.fileno()).st_ino
    assert (tmp_path / "out").read_text() == "straight"
    with _files.replaced("-") as file:
        file.write(b"to standard output")
    assert capfdbinary.readouterr().out == b"to standard output"


def test_errors_name_the_file(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError, match=re.escape(str(tmp_path))):
        _files.write_text(tmp_path, "x")
    with pytest.raises(FileNotFoundError, match=re.escape("none/x'")):
        _files.write_text(tmp_path / "none/x", "x")


def test_arrays_of_any_name(tmp_path: Path) -> None:
    arrays = {name: np.arange(n) for n, name in enumerate(["a", "file", "allow_pickle", "a/ä b"])}
    _files.write_npz(tmp_path / "x.npz", arrays)
    with np.load(tmp_path / "x.npz") as found:
        assert found.files == list(arrays)
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)


# ---- every writer --------------------------------------------------------------------------------

SHORT = ["--nodes=2", "--batch=600", "--epochs=1", "--depth=1", "--width=4"]
COMMANDS = {
    "compress --out": ["compress", "IN", "--codec=e4m3", "--out=x.npz"],
    "compress --json": ["compress", "IN", "--codec=e4m3", "--json=x.json"],
    "vectors testfloat": ["vectors", "mul", "e2m2", "-ox.tv"],
    "vectors readmemh": ["vectors", "mul", "e2m2", "-ox.hex", "x_pkg.sv"],
    "vectors csv": ["vectors", "mul", "e2m2", "-ox.csv"],
    "vectors jsonl": ["vectors", "mul", "e2m2", "-ox.jsonl"],
    "show": ["show", "--units", "--json=x.json"],
    "show --picture": ["show", "e4m3", "--picture=x.svg"],
    "roundoff --csv": ["roundoff", "--gradients=IN", "--csv=x.csv"],
    "roundoff --json": ["roundoff", "--gradients=IN", "--json=x.json"],
    "roundoff --plot": ["roundoff", "--gradients=IN", "--plot=x.png"],
    "probe": ["probe", "--accumulator=e6m9", "--c=none", "--k=4", "--json=x.json"],
    "replay": ["replay", "DOTS", "--json=x.json"],
    "train --json": ["train", *SHORT, "--json=x.json"],
    "train --save-gradients": ["train", *SHORT, "--save-gradients=x.npz"],
}


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_commands_on_a_full_disk(
    words: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    if any(word.endswith((".svg", ".png")) for word in words):
        pytest.importorskip("matplotlib")
    given = tmp_path / "in.npy"
    np.save(given, np.random.default_rng(0).standard_normal((4, 60), np.float32))
    if "DOTS" in words:
        dots = make_vectors("block_fma", accumulator="v100", random=4)
        dots.write(tmp_path / "dots.csv")
    names = {"IN": given, "DOTS": tmp_path / "dots.csv"}
    for name, path in names.items():
        words = [word.replace(name, str(path)) for word in words]
    folder = tmp_path / "out"
    folder.mkdir()
    monkeypatch.chdir(folder)
    for name in re.findall(r"\bo?(x[\w.]+)", " ".join(words)):
        (folder / name).write_text(OLD)
    words = [word for word in words if word != "x_pkg.sv"]
    before = content(folder)
    assert before
    with full_disk():
        assert main(words) in (1, 2)
    said = capsys.readouterr().err
    assert re.fullmatch(r"(training: .*\n)?cpd \w+: error: .*x[\w.]+: File too large.*\n", said)
    assert content(folder) == before
    assert main(words) == 0
    assert set(os.listdir(folder)) == set(before)
    assert OLD not in [path.read_text("latin-1") for path in folder.iterdir()]


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_gradients_on_a_full_disk(tmp_path: Path, suffix: str) -> None:
    torch = pytest.importorskip("torch")
    from cpd.study.gradients import load_gradients, save_gradients

    path = tmp_path / f"x{suffix}"
    path.write_text(OLD)
    names, ranks = ["file", "allow_pickle"], [[torch.ones(30), torch.ones(3)]] * 2
    with full_disk(), pytest.raises(OSError, match="File too large"):
        save_gradients(path, names, ranks)
    assert content(tmp_path) == {path.name: OLD}
    save_gradients(path, names, ranks)
    assert sorted(load_gradients(path).names) == sorted(names)


@pytest.mark.parametrize("kind", ["to_csv", "to_json", "plot", "report"])
def test_sweeps_on_a_full_disk(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    from cpd.study import sweep

    path = tmp_path / ("x.svg" if kind == "plot" else "x")
    path.write_text(OLD)
    found = sweep({"a": np.ones((4, 60), np.float32)}, "e4m3")
    with full_disk(), pytest.raises(OSError, match=r"File too large: '.*/x"):
        getattr(found, kind)(path)
    assert content(tmp_path) == {path.name: OLD}
    getattr(found, kind)(path)
    assert OLD not in content(tmp_path)[path.name]


def test_a_bench_is_replaced_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("vectors.hex", "vectors_pkg.sv", "tb.sv", "Makefile")
    for name in names:
        (tmp_path / name).write_text(OLD)
    with full_disk(1500):  # enough for the Makefile
        assert main(["vectors", "mul", "e2m2", "--testbench", str(tmp_path)]) in (1, 2)
    assert "File too large" in capsys.readouterr().err
    assert content(tmp_path) == dict.fromkeys(names, OLD)


def test_nothing_else_writes_files() -> None:
    """Only the module `_files` opens files for writing.

    `probe` is an exception: it writes the input of a command to a file in a temporary folder.
    """
    root = Path(_files.__file__).parent
    writes = re.compile(
        r"\.write_(text|bytes)\(|\bopen\([^)\n]*[\"'][wax]|np\.savez|np\.save\((?!file,)"
        r"|savefig\((?!file,|stream,)|torch\.save\(|save_file\("
    )
    found = {
        path.relative_to(root).as_posix()
        for path in root.rglob("*.py")
        if path.name != "_files.py" and writes.search(path.read_text())
    }
    assert found == {"hardware/probing/command.py"}
