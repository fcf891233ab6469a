# SPDX-License-Identifier: Apache-2.0
"""Files that version 0.7 wrote are read with the values that it gave them."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import cpd
import cpd.hardware.vectors
import golden
import golden_files
import golden_training
from golden_files import STORED

TEXTS = json.loads((STORED / "texts.json").read_text())
OBJECTS = json.loads((STORED / "objects.json").read_text())
SIZE = 200 * 1024
"""The most bytes of all stored files."""


@pytest.mark.parametrize("kind", ["toml", "json"])
@pytest.mark.parametrize("name", golden_files.RECIPES)
def test_a_recipe_file_is_read(name: str, kind: str) -> None:
    path = STORED / f"recipe_{name}.{kind}"
    made = golden_files.RECIPES[name]()
    assert cpd.recipe(path) == made
    assert path.read_text() == golden_files.recipe_file(name, kind)


def test_seeds_of_a_recipe_file() -> None:
    """The numbers stand in the file, also those that TOML's integers do not hold."""
    found = cpd.recipe(STORED / "recipe_seeds.toml")
    assert (found.layer, found.forward.seed, found.forward.stream) == (9, 3, 2**40)
    assert (found.activation.seed, found.activation.stream) == (7, 5)
    assert (found.gradient.seed, found.gradient.stream) == (2**63, 0)


@pytest.mark.parametrize("kind", golden_files.READERS)
def test_a_text_has_its_canonical_text(kind: str) -> None:
    assert tuple(TEXTS[kind]) == golden_files.TEXTS[kind]
    for text, canonical in TEXTS[kind].items():
        assert golden_files.canonical(kind, text) == canonical, text
        if isinstance(canonical, str):
            assert golden_files.canonical(kind, canonical) == canonical, text


@pytest.mark.parametrize("name", golden_files.VECTORS)
def test_a_file_of_vectors_is_right(name: str) -> None:
    checked = cpd.hardware.check_vectors(STORED / name)
    lines = 4 if name.startswith("block") else 2 if name.startswith("mma") else 8
    assert (checked.lines, checked.wrong, checked.other_nans) == (lines, 0, 0)


@pytest.mark.parametrize("name", golden_files.VECTORS)
def test_a_file_of_vectors_is_written_again(name: str, tmp_path: Path) -> None:
    golden_files.VECTORS[name]().write(tmp_path / name)
    assert (tmp_path / name).read_bytes() == (STORED / name).read_bytes()


def test_a_machine_file_is_read() -> None:
    made = cpd.study.Machine(golden_files.MACHINE)
    assert (made.name, made.gpus, made.alpha) == ("two-racks", 4, 1e-5)
    assert (made.beta_between, made.port, made.codec_gbps) == (1.25e9, 6e8, 90.0)


@pytest.mark.parametrize("name", OBJECTS)
def test_a_pickled_object_loads(name: str) -> None:
    loaded = pickle.loads(golden_files.OBJECTS.read_bytes())
    assert list(loaded) == list(OBJECTS)
    assert golden_files.plain(name, loaded[name]) == OBJECTS[name]


def test_seeds_of_pickled_objects() -> None:
    loaded = pickle.loads(golden_files.OBJECTS.read_bytes())
    found = {name: loaded[name] for name in ("scaled cast", "codec", "wire")}
    assert {name: it.seed for name, it in found.items()} == {
        "scaled cast": 3,
        "codec": 3,
        "wire": 5,
    }
    assert loaded["recipe"].forward.seed == 3


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return torch.load(golden_training.STATES, weights_only=True)


def test_every_state_has_its_case(states: dict[str, Any]) -> None:
    assert list(states) == list(golden_training.cases())


@pytest.mark.parametrize(
    "name",
    [
        *("states", "hook", "nodes", "diloco", "scaler", "low_precision", "stochastic"),
        *("kahan_sgd", "low_precision_adamw", "kahan_adamw", *golden_training.RECIPES),
    ],
)
def test_a_training_goes_on_from_its_state(states: dict[str, Any], name: str) -> None:
    """The results are those that version 0.7 gave, to the bit."""
    _, result = golden_training.cases()[name]
    state = golden_training.copied(states[name]["state"])
    assert golden_training.recorded_results(result(state)) == states[name]["result"]


def test_a_whole_converted_model_loads() -> None:
    torch = pytest.importorskip("torch")
    import io

    stored = torch.load(golden_training.MODEL, weights_only=True)
    model = torch.load(io.BytesIO(stored["model"]), weights_only=False)
    assert golden_training.whole_result(model) == stored["result"]


def test_stored_files_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in STORED.iterdir()}
    assert sum(sizes.values()) <= SIZE, sizes


def test_every_stored_file_has_its_writer() -> None:
    known = golden_files.writers() | golden_training.writers()
    there = {path.relative_to(golden.FOLDER).as_posix() for path in STORED.iterdir()}
    assert there == {*known, "stored/dot_pkg.sv"}, "dot.hex is written with a package"
