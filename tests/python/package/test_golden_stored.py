# SPDX-License-Identifier: Apache-2.0
"""Tests that files written by version 0.7 are read with the values that version 0.7 gave them."""

from __future__ import annotations

import json
import pickle
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

import cpd
import cpd.hardware.vectors
import golden
import golden_files
import golden_training
from cpd.numeric import spec
from golden_files import STORED

TEXTS = json.loads((STORED / "texts.json").read_text())
OBJECTS = json.loads((STORED / "objects.json").read_text())
SIZE = 200 * 1024
"""The greatest total size of all stored files, in bytes."""
OLD_TYPE = ":".join(("type", "Conv2d"))
"""The words by which a recipe of version 0.7 selects all layers of class Conv2d."""


def with_optimizer(data: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's data with new keys (the error for the old keys names them) in place of the
    keys of version 0.7."""
    kept = {key: value for key, value in data.items() if key not in ("wire", "update", "state")}
    optimizer = "bf16 update=stochastic random_bits=16 momentum=bf16"
    return kept | {"optimizer": optimizer, "reduce": "e4m3 aps rounding=stochastic"}


def with_types(data: Any) -> Any:
    """Returns a recipe's data with the selector `type Conv2d` in place of 0.7's selector."""
    return json.loads(json.dumps(data).replace(OLD_TYPE, "type Conv2d"))


def without_numbers(data: Any) -> Any:
    """Returns the data of version 0.7 without the seeds and steps, which specs no longer have.

    A dictionary of only a text, a seed and a stream becomes the text. Keys such as layer, seed and
    step are removed. In saved states of codecs, `seed=` is removed from the codec's text.
    """
    if isinstance(data, list) and data and isinstance(data[0], dict) and "codec" in data[0]:
        return [one | {"codec": re.sub(r" seed=\d+", "", one["codec"])} for one in data]
    if not isinstance(data, dict):
        return data
    if set(data) <= {"text", "seed", "stream"}:
        return data["text"]
    kept = {key: value for key, value in data.items() if key not in NUMBERS}
    return {key: without_numbers(value) for key, value in kept.items()}


NUMBERS = ("seed", "stream", "step", "layer")
REFUSED = {
    "seeds": ("a recipe has no layer: cpd.convert numbers the layers", without_numbers),
    "optimizer": (
        "wire and update and state of version 0.7: a recipe has reduce='e4m3 aps "
        "rounding=stochastic seed=3' optimizer='bf16 update=stochastic random_bits=16 "
        "momentum=bf16' now",
        with_optimizer,
    ),
    "parts": (f"a selector of a class is 'type Conv2d' in place of '{OLD_TYPE}'", with_types),
}
"""Maps each refused file to the error's text and to the change that makes the file readable."""


@pytest.mark.parametrize("kind", ["toml", "json"])
@pytest.mark.parametrize("name", golden_files.RECIPES)
def test_a_recipe_file_is_read(name: str, kind: str) -> None:
    path = STORED / f"recipe_{name}.{kind}"
    made, written = golden_files.RECIPES[name](), golden_files.recipe_file(name, kind)
    if name not in REFUSED:
        assert cpd.Recipe(path) == made
        assert path.read_text() == written
        return
    with pytest.raises(ValueError, match=f"{path}: .*{REFUSED[name][0]}"):
        cpd.Recipe(path)
    loads = tomllib.loads if kind == "toml" else json.loads
    data = REFUSED[name][1](loads(path.read_text()))
    assert data == loads(written)
    assert cpd.Recipe(data) == made


def test_a_table_of_a_recipe_file_is_refused() -> None:
    data = tomllib.loads((STORED / "recipe_seeds.toml").read_text())
    del data["layer"]
    with pytest.raises(ValueError, match="must be a text, got a table"):
        cpd.Recipe(data)


@pytest.mark.parametrize("kind", golden_files.READERS)
def test_a_text_has_its_canonical_text(kind: str) -> None:
    assert tuple(TEXTS[kind]) == golden_files.TEXTS[kind]
    for text, canonical in TEXTS[kind].items():
        if kind == "all-reduce" and "seed=" in text:
            with pytest.raises(ValueError, match="an all-reduce has no seed: give it to the call"):
                golden_files.canonical(kind, text)
            continue
        if isinstance(canonical, dict):
            canonical = without_numbers(canonical)
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
    assert golden_files.plain(name, loaded[name]) == with_types(without_numbers(OBJECTS[name]))


def test_seeds_of_pickled_objects_are_told() -> None:
    spec._WARNED.clear()
    with pytest.warns(UserWarning, match="of 0.7 had") as warned:
        [pickle.loads(golden_files.OBJECTS.read_bytes()) for _ in range(2)]
    assert sorted(str(one.message) for one in warned) == [
        "this Accumulator of 0.7 had seed 3 and stream 1099511627776: give them to the call",
        "this Cast of 0.7 had seed 3 and stream 4: give them to the call",
        "this Cast of 0.7 had seed 7 and stream 5: give them to the call",
        "this Cast of 0.7 had seed 9223372036854775808: give it to the call",
        "this Codec of 0.7 had seed 3: give it to the call",
        "this Recipe of 0.7 had layer 9: give it to the call",
        "this Reduce of 0.7 had seed 5: give it to the call",
    ]


@pytest.fixture(scope="module")
def states() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return torch.load(golden_training.STATES, weights_only=True)


def test_every_state_has_its_case(states: dict[str, Any]) -> None:
    assert set(states) == {*golden_training.cases(), *golden_training.GONE}


@pytest.mark.parametrize("name", golden_training.GONE)
def test_a_state_of_an_optimizer_that_is_gone_is_refused(states: dict[str, Any], name: str) -> None:
    optimizer = golden_training.GONE[name](golden_training.linear(900))
    with pytest.raises(ValueError, match="KahanSGD or KahanAdamW of version"):
        optimizer.load_state_dict(states[name]["state"]["optimizer"])


@pytest.mark.parametrize(
    "name",
    [
        *("states", "hook", "nodes", "diloco", "scaler", "low_precision", "stochastic"),
        *("low_precision_adamw", *golden_training.RECIPES),
    ],
)
def test_a_training_goes_on_from_its_state(states: dict[str, Any], name: str) -> None:
    """A training that continues from a state of version 0.7 gives the bits of version 0.7."""
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
