# SPDX-License-Identifier: Apache-2.0
"""Tests the package's types with mypy: programs of three kinds of users, and all names.

The programs in `typed` are checked with `--strict` and also run. A line that must be an error has a
comment that ignores the error. mypy reports a comment on a line without an error. Tests that run
mypy are exhaustive, because `./dev check types` runs this file.
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "testing"))

import surface

import forked
from patience import scaled

pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]
USERS = sorted((Path(__file__).parent / "typed").glob("*.py"))
MAY_BE_ANY = {
    "cpd.Encoded.codes",  # arrays of either kind
    "cpd.Encoded.scales",
    "cpd.comm.Communicator.all_gather",
    "cpd.compress.Packet.values",  # of a packet whose arrays' kind is not known
    "cpd.optim.LARS.step",  # a closure's result
    "cpd.optim.LossScaler.step",
    "cpd.optim.LowPrecision.step",
    "cpd.track.hugging_face",  # classes of packages that may be missing
    "cpd.track.lightning",
}
"""Public names that may have the type `Any` or, if they are functions, return `Any`."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder like an installed package: sources next to the compiled module."""
    import cpd

    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("site")
    (folder / "cpd").mkdir()
    for path in cpd.__path__:
        for file in Path(path).iterdir():
            if not (folder / "cpd" / file.name).exists():
                (folder / "cpd" / file.name).symlink_to(file)
    assert (folder / "cpd/py.typed").is_file()
    assert (folder / "cpd/_core.pyi").is_file()
    return folder


def checked(package: Path, *programs: Path) -> str:
    """Returns what `mypy --strict` prints about programs that use the package."""
    command = [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--no-error-summary"]
    options = [f"--cache-dir={ROOT / 'build/mypy_users'}", "--follow-imports=silent"]
    run = subprocess.run(
        [*command, *options, *map(str, programs)],
        env=os.environ | {"MYPYPATH": str(package)},
        capture_output=True,
        text=True,
        timeout=scaled(240),
    )
    assert run.stderr == ""
    return run.stdout


@pytest.mark.exhaustive
def test_programs_of_users(package: Path) -> None:
    assert len(USERS) == 3
    assert checked(package, *USERS) == ""


@pytest.mark.parametrize("user", USERS, ids=lambda path: path.stem)
def test_programs_run(user: Path, tmp_path: Path) -> None:
    run = forked.run([user, tmp_path], capture_output=True, text=True, timeout=scaled(120))
    assert run.returncode == 0, run.stderr


@pytest.mark.exhaustive
def test_every_name_has_a_type(package: Path, tmp_path: Path) -> None:
    """Every public function, class, member and attribute has a type."""
    expressions = {name: name for name in surface.surface()["names"]}
    for name, thing in {name: surface.found_at(name) for name in expressions}.items():
        if inspect.isclass(thing) and surface.is_ours(thing):
            members = {*surface.members(thing), *surface.attributes(thing)}
            expressions |= {f"{name}.{one}": f"of({name}).{one}" for one in members}
    modules = sorted({name.rpartition(".")[0] for name in surface.surface()["names"]})
    lines = [*HEAD.splitlines(), *(f"import {module}" for module in modules)]
    lines += [f"reveal_type({expression})" for expression in expressions.values()]
    program = tmp_path / "names.py"
    program.write_text("\n".join(lines) + "\n")
    found = re.findall(r"(?m)^.*?names\.py:(\d+): (\w+): (.*)$", checked(package, program))
    assert [text for _, kind, text in found if kind != "note"] == []
    types = dict(zip(expressions, (text for *_, text in found), strict=True))
    untyped = {name for name, text in types.items() if re.search(r'is "(Any|.*\) -> Any)"$', text)}
    assert untyped - MAY_BE_ANY == set()


HEAD = """# mypy: disable-error-code="type-abstract"
from typing import Any, TypeVar
T = TypeVar("T")
def of(cls: type[T]) -> T: return cls()
"""
