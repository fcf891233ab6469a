# SPDX-License-Identifier: Apache-2.0
"""Each call of cases/refused.toml and refused_inside.toml raises its error with its whole text.
Calls of refused.toml write nothing."""

from __future__ import annotations

import importlib
import pathlib
import re
import shlex
import tomllib
import types
from typing import Any

import numpy as np
import pytest

import cpd
import forked
from cpd import _core as core

importlib.import_module("cpd.hardware")
CASES = pathlib.Path(__file__).parents[1] / "cases"
REFUSED: dict[str, Any] = {
    kind: cases
    for name in ("refused.toml", "refused_inside.toml")
    for kind, cases in tomllib.loads((CASES / name).read_text()).items()
}


def is_text(text: str, wanted: str) -> bool:
    """Returns whether a text is the wanted one, in which [...] stands for any text."""
    pattern = ".*".join(map(re.escape, wanted.split("[...]")))
    return re.fullmatch(pattern, text, re.DOTALL) is not None


def says(error: Exception, told: str) -> bool:
    """Returns whether an error has the type and the text of a table."""
    return is_text(f"{type(error).__name__}: {error}", told)


def raised(call: str, **names: Any) -> Exception:
    """The error that a call raises."""
    try:
        eval(call, {"cpd": cpd, "np": np, "pathlib": pathlib, **names})
    except Exception as error:  # its text is compared
        return error
    return pytest.fail(f"{call} raises nothing")


def cases(kind: str) -> list[Any]:
    return [pytest.param(call, told, id=call[:60]) for call, told in REFUSED[kind].items()]


@pytest.fixture
def folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    """An empty folder, the current one."""
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


@pytest.mark.parametrize(("call", "told"), cases("commands"))
def test_commands(call: str, told: str, folder: pathlib.Path) -> None:
    pytest.importorskip("torch")
    words = shlex.split(call)
    done = forked.run(
        ["-m", "cpd", *words], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    command = next(w for w in words if not w.startswith("-"))
    assert is_text(line, f"cpd {command}[...]: error: {told} (see cpd {command}[...] --help)"), line
    assert done.stdout == ""
    assert not any(folder.iterdir())
