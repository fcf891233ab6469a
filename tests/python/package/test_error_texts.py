# SPDX-License-Identifier: Apache-2.0
"""Tests that the calls of cases/refused.toml and refused_inside.toml raise the stored errors.

The whole text must be equal. Calls of refused.toml must not write anything.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import types
from typing import Any

import numpy as np
import pytest

import cpd
from cpd import _core as core

importlib.import_module("cpd.hardware")
CASES = pathlib.Path(__file__).parents[1] / "cases"
REFUSED: dict[str, Any] = {
    kind: cases
    for name in ("refused.toml", "refused_inside.toml")
    for kind, cases in tomllib.loads((CASES / name).read_text()).items()
}


def is_text(text: str, wanted: str) -> bool:
    """Returns True if a text equals the wanted text, where [...] stands for any text."""
    pattern = ".*".join(map(re.escape, wanted.split("[...]")))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def says(error: Exception, told: str) -> bool:
    """Returns True if an error has the type and the text that a table states."""
    return is_text(f"{type(error).__name__}: {error}", told)


def raised(call: str, **names: Any) -> Exception:
    """Returns the error that a call raises; fails if the call raises no error."""
    try:
        eval(call, {"cpd": cpd, "np": np, "pathlib": pathlib, **names})
    except Exception as error:  # its text is compared
        return error
    return pytest.fail(f"{call} raises nothing")


def cases(kind: str) -> list[Any]:
    return [pytest.param(call, told, id=call[:60]) for call, told in REFUSED[kind].items()]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """Returns an empty folder, which is the working directory of the test."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("call", "told"), cases("arrays"))
def test_arrays(call: str, told: str, folder: pathlib.Path) -> None:
    if "g.npz" in call:
        np.savez("g.npz", a=np.ones((2, 8), np.float32))
    error = raised(call, x=np.ones((3, 4), np.float32))
    assert says(error, told), error
    assert [path.name for path in folder.iterdir()] in ([], ["g.npz"])


@pytest.mark.parametrize(("call", "told"), cases("tensors"))
def test_tensors(call: str, told: str, folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    importlib.import_module("cpd.compat.qpytorch")
    names = {"torch": torch, "nn": torch.nn, "t": torch.ones(3, 4)}
    error = raised(call, x=np.ones((3, 4), np.float32), **names)
    assert says(error, told), error
    assert not any(folder.iterdir())


def rounding(mode: str = "nearest_even", random_bits: int = 24) -> Any:
    return core.RoundingOptions(mode, core.OVERFLOWS[0], random_bits, "A")


@pytest.mark.parametrize(("call", "told"), cases("inside"))
def test_inside(call: str, told: str, folder: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")
    for name in ("cpd._torch.operators", "cpd._torch.convolution", "cpd.hardware.vectors"):
        importlib.import_module(name)
    names = {"torch": torch, "nn": torch.nn, "t": torch.ones(3, 4), "ops": torch.ops.cpd}
    names |= {"core": core, "F": core.Format.parse, "A": core.Accumulator.parse, "R": rounding}
    names |= {"u32": lambda *n: np.zeros(n, np.uint32), "plain": types.SimpleNamespace}
    names |= {"module": importlib.import_module}
    error = raised(call, x=np.ones((3, 4), np.float32), **names)
    assert says(error, told), error


@pytest.mark.parametrize(("codec", "data", "n", "told"), REFUSED["damaged"])
def test_damaged(codec: str, data: str, n: int, told: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(told)}$"):
        cpd.Codec(codec)._held.decode(bytes.fromhex(data), n)


# ---- commands ------------------------------------------------------------------------------------

PROGRAM = """
import contextlib, io, json, os, shlex, sys
from cpd.cli import main
found = {}
for text in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = main(shlex.split(text))
        except SystemExit as stop:
            status = stop.code
    late = [name for name in ("torch", "rich") if name in sys.modules]
    found[text] = status, out.getvalue(), err.getvalue(), os.listdir(), late
print(json.dumps(found))
"""
RANKS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
Commands = dict[str, list[Any]]


@pytest.fixture(scope="module")
def commands(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Commands:
    """Runs, in one process, the `cpd` commands of one table of refused.toml, which must all fail.

    Returns each command's status, outputs and written files, and which modules were imported.
    """
    if request.param == "commands_with_torch":
        pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*REFUSED[request.param]])],
        env={name: value for name, value in os.environ.items() if name not in RANKS},
        capture_output=True,
        text=True,
        cwd=tmp_path_factory.mktemp("commands"),
        check=True,
    )
    return json.loads(done.stdout)  # type: ignore[no-any-return]


def check_command(call: str, told: str, status: int, out: str, err: str, files: list[str]) -> None:
    """A refused command prints one line, with command, mistake and help, and writes no file."""
    (line,) = err.splitlines()
    found = re.fullmatch(r"cpd(.*?): error: (.*) \(see cpd\1 --help\)", line)
    assert found, line
    assert call.startswith(found[1].strip()), line
    assert is_text(found[2], told), line
    assert (status, out, files) == (2, "", [])


@pytest.mark.parametrize("commands", ["commands"], indirect=True)
@pytest.mark.parametrize(("call", "told"), cases("commands"))
def test_commands(commands: Commands, call: str, told: str) -> None:
    *found, late = commands[call]
    check_command(call, told, *found)
    assert late == []


@pytest.mark.parametrize("commands", ["commands_with_torch"], indirect=True)
@pytest.mark.parametrize(("call", "told"), cases("commands_with_torch"))
def test_commands_with_torch(commands: Commands, call: str, told: str) -> None:
    check_command(call, told, *commands[call][:-1])
