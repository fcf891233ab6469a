# SPDX-License-Identifier: Apache-2.0
"""Tests which names belong to the package's public surface, and that the surface does not grow."""

from __future__ import annotations

import argparse
import functools
import inspect
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import surface

pytestmark = pytest.mark.timeout(120)

MOST_NAMES = 100
GONE = {
    "f",
    "acc",
    "dim",
    "per_rank",
    "layers",
    "per_layer",
    "watch",
    "calls",
    "wire",
    "layer",
    "directory",
}
"""Parameter names that are not allowed, because another name has the same meaning."""

PAGE = """# Models
.. automodule:: cpd.nn
   :no-members:
.. automodule:: cpd.optim
   :members:
.. currentmodule:: cpd
.. autofunction:: convert
.. autoclass:: observe
   :members:
"""
GUIDE = """Give `cpd.Recipe.replace` to `cpd.nn.functional.linear`, see python/cpd/README.md.
>>> from cpd_lab.train.models import Gpt, TextLstm as Lstm
>>> from cpd.comm import (
...     local,
...     mpi)
>>> import torch
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return surface.surface()


def test_the_surface_does_not_grow(found: dict[str, Any]) -> None:
    """No count of public names, parameters or options exceeds its stored count.

    To store smaller counts: `tests/testing/surface.py --store`.
    """
    stored = json.loads(surface.STORED.read_text())
    mirrors = "mirrors of torch in cpd.functional"
    counts, limits = (one["counts"] | one["apart"] for one in (found, stored))
    assert counts.keys() == limits.keys()
    grown = {
        name: (limits[name], count)
        for name, count in counts.items()
        if count > limits[name] and name != mirrors
    }
    added = sorted(set(found["names"]) - set(stored["names"]))
    assert not grown, f"grown: {grown}; new names: {added}"


def test_the_names_fit_in_a_head(found: dict[str, Any]) -> None:
    assert 90 <= found["counts"]["public names"] <= MOST_NAMES


def test_one_word_has_one_meaning(found: dict[str, Any]) -> None:
    """No public parameter has one of the names in GONE.

    These are names of version 0.7, or second names for a meaning that has another name.
    """
    wrong = {
        f"{name}: {parameter}"
        for name in found["names"]
        for parameter in every_parameter(surface.found_at(name))
        if parameter in GONE and name != "cpd.study.capture"  # whose layers are a model's
    }
    assert not wrong


def every_parameter(it: Any) -> set[str]:
    """Returns the parameters of a function, or of a class's constructor and methods."""
    methods = [getattr(it, name) for name in surface.members(it)] if inspect.isclass(it) else []
    return {name for one in (it, *methods) for name in surface.parameters(one)}


def test_specs_have_no_numbers(found: dict[str, Any]) -> None:
    """A spec says how a call computes; seed, stream and random are arguments of the call alone."""
    for spec in surface.SPECS - {"Hadamard"}:
        cls = surface.found_at(f"cpd.{spec}")
        assert not set(surface.parameters(cls)) & {"seed", "stream", "step"}, spec
        first = next(iter(inspect.signature(cls).parameters.values()))
        assert first.kind.name.startswith("POSITIONAL"), spec


@pytest.mark.parametrize(
    "name",
    [
        *("cpd.cast", "cpd.convert", "cpd.Codec", "cpd.observe"),
        *("cpd.comm.HookState", "cpd.nn.register", "cpd.hardware.Ports"),
    ],
)
def test_what_a_user_is_told_of_counts(found: dict[str, Any], name: str) -> None:
    """Public names outside of `__all__` and names imported at first use are in the surface."""
    assert name in found["names"]


@pytest.mark.parametrize(
    "name",
    [
        *("cpd.comm", "cpd.functional.linear", "cpd.functional.lstm_cell"),
        *("cpd.compat.qpytorch.Quantizer", "cpd_lab.train.train", "cpd_lab.train.models.Gpt"),
        *("cpd.numeric.formats.named", "cpd.nn.convert"),
    ],
)
def test_what_does_not_count(found: dict[str, Any], name: str) -> None:
    """The counted public names exclude modules, torch's functions, separately counted names, and
    names that no page mentions."""
    assert name not in found["names"]


def test_what_is_counted_apart(found: dict[str, Any]) -> None:
    """Names of cpd.compat, of cpd_lab and of torch (in cpd.functional) are counted separately."""
    import cpd.functional
    import cpd_lab.train
    from cpd.compat import cpd2020, qpytorch, transformer_engine

    compat = [name for module in (cpd2020, qpytorch, transformer_engine) for name in module.__all__]
    apart = found["apart"]
    assert apart["names of cpd.compat"] == len(compat)
    assert apart["names of cpd_lab.train"] >= len(cpd_lab.train.__all__)
    assert 20 <= apart["mirrors of torch in cpd.functional"] <= len(cpd.functional.__all__)


def test_names_that_mislead() -> None:
    import cpd
    import cpd.functional
    import cpd.hardware

    names = {
        "cpd.gemm": cpd.gemm,
        "cpd.comm.gemm": cpd.Recipe,
        "cpd.hardware.probing": cpd.hardware.probe,
        "cpd.cast": cpd.cast,
    }
    assert surface.ambiguous(names) == {"gemm"}
    assert surface.hiding(names) == ["cpd.hardware.probing"]


def test_names_of_the_reference() -> None:
    names = list(surface.documented(PAGE))
    assert names == ["cpd.optim", "cpd.convert", "cpd.observe"]


def test_names_of_a_module_without_a_list() -> None:
    names = surface.members_of("cpd.parallel.ddp")
    assert names[0] == "cpd.parallel.ddp"
    assert {"cpd.parallel.ddp.ddp_hook", "cpd.parallel.ddp.HookState"} <= set(names)
    assert not {"cpd.parallel.ddp.Communicator", "cpd.parallel.ddp.nn"} & set(names)
    assert surface.members_of("cpd.optim") == ["cpd.optim"]


def test_names_of_guides_and_examples() -> None:
    assert sorted(surface.used(GUIDE)) == [
        "cpd.Recipe.replace",
        "cpd.comm",
        "cpd.comm.local",
        "cpd.comm.mpi",
        "cpd.nn.functional.linear",
        "cpd_lab.train.models",
        "cpd_lab.train.models.Gpt",
        "cpd_lab.train.models.TextLstm",
    ]


def test_names_of_files_are_none(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("See cpd._core.Format, and cpd/nn.")
    assert surface.mentioned(tmp_path) == {"cpd"}


def test_a_module_counts_once() -> None:
    names = {"cpd.study.roundoff", "cpd.study.cost"}
    assert surface.public_modules(names) == {"cpd.study": {"roundoff", "cost"}}


def test_a_function_wins_over_a_module_of_its_name() -> None:
    assert inspect.isfunction(surface.found_at("cpd.hardware.probe"))
    assert inspect.ismodule(surface.found_at("cpd.nn.registered"))
    assert surface.found_at("cpd.nn.nothing") is None


@dataclass
class Point:
    x: int
    y: int = 0
    _hidden: int = 0

    def moved(self, by: int, *, times: int = 1) -> Point:
        return self

    @property
    def norm(self) -> float:
        return 0.0


class Scaled(Point):
    def __init__(self, scale: int) -> None:
        pass

    @classmethod
    def parse(cls, text: str) -> Scaled:
        return cls(0)

    @functools.cached_property
    def kept(self) -> int:
        return 0

    def _own(self, a: int) -> None:
        pass


def test_what_a_class_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The constructor of a dataclass takes its attributes and is not counted a second time."""
    monkeypatch.setattr(surface, "is_ours", lambda cls: cls is not object)
    assert set(surface.members(Point)) == {"moved", "norm"}
    assert set(surface.members(Scaled)) == {"moved", "norm", "parse", "kept"}
    assert surface.attributes(Scaled) == {"x", "y"}
    assert surface.parameters(Point) == []
    assert surface.parameters(Scaled) == ["scale"]
    assert surface.parameters_of(Point) == 2
    assert surface.parameters_of(Scaled) == 4


def test_options_of_subcommands_count() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--seed", "-s", type=int)
    commands = parser.add_subparsers()
    inner = commands.add_parser("run", aliases=["r"])
    inner.add_argument("--json")
    assert [action.dest for action in surface.actions(parser)] == ["file", "seed", "json"]


@pytest.mark.parametrize("grammar", surface.GRAMMARS)
def test_every_grammar_has_its_reader(grammar: str) -> None:
    assert callable(surface.found_at(surface.GRAMMARS[grammar]))


def test_every_public_spec_has_its_keys_counted(found: dict[str, Any]) -> None:
    """A class with a canonical text that its constructor accepts is a spec."""
    classes = [surface.found_at(name) for name in found["names"]]
    specs = {
        cls.__name__
        for cls in filter(inspect.isclass, classes)
        if "text" in surface.members(cls).keys() | surface.attributes(cls) and hasattr(cls, "parse")
    }
    assert specs <= surface.SPECS
    assert surface.spec_keys({"cpd.Format": surface.found_at("cpd.Format")})["Format"] == [
        *("format", "exp", "man", "bias", "encoding", "signed", "subnormals")
    ]


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"counts": {"public names": 2}, "apart": {"mirrors": 1}, "names": ["cpd.a", "cpd.b"]}
    monkeypatch.setattr(surface, "surface", lambda: made)
    monkeypatch.setattr(surface, "STORED", tmp_path / "stored.json")
    assert surface.main(["--json", str(tmp_path / "counts.json"), "--store"]) == 0
    assert capsys.readouterr().out == "    2  public names\n    1  mirrors\n"
    assert json.loads((tmp_path / "counts.json").read_text()) == made
    assert json.loads((tmp_path / "stored.json").read_text()) == made
    assert surface.main(["--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out) == made
