# SPDX-License-Identifier: Apache-2.0
"""Tests that results and texts equal the bits in `tests/golden`.

Objects pickled for that folder must still load. `tests/golden/make.py` writes its files.
"""

from __future__ import annotations

import importlib
import json
import pickle
from typing import Any

import pytest

import cpd
import golden
import golden_results
import golden_stored
import golden_texts
from cpd._since import MOVED

TEXTS = {
    "texts": golden_texts.texts_cases,
    "torch_texts": golden_texts.torch_texts_cases,
    "cli": golden_texts.cli_cases,
}


def stored(name: str) -> dict[str, Any]:
    return json.loads((golden.FOLDER / f"{name}.json").read_text())  # type: ignore[no-any-return]


RUNS = [
    *((name, front_end) for name in golden_results.BOTH for front_end in ("numpy", "tensor")),
    *((name, "tensor") for name in golden_results.OF_TORCH),
]


def checksum(name: str, front_end: str) -> str:
    cases = (golden_results.BOTH | golden_results.OF_TORCH)[name]
    return golden.checksum(cases(getattr(golden, front_end)))


@pytest.mark.parametrize(("name", "front_end"), RUNS)
def test_results(name, front_end):
    """The results of an operation's calls in golden_results.py have the stored checksum.

    The checksum shows only whether bits have changed. Other tests show that the bits are right.
    """
    pytest.importorskip("ml_dtypes")
    if front_end == "tensor":
        pytest.importorskip("torch")
    assert checksum(name, front_end) == stored("results")[name]


@pytest.mark.parametrize("name", TEXTS)
def test_texts(name):
    if name.startswith("torch"):
        pytest.importorskip("torch")
    expected, got = stored(name), dict(TEXTS[name]())
    assert list(got) == list(expected), "the cases are not those of the file"
    assert {case: got[case] for case in got if got[case] != expected[case]} == {}


# ---- what was stored -----------------------------------------------------------------------------


def test_pickled_objects_load():
    loaded = pickle.loads(golden_stored.PICKLE.read_bytes())
    fresh = golden_texts.objects()
    # Some Python expressions that make these objects have changed since the golden pickle was
    # written, but the objects are equal. The pickle also has objects of a former class, the options
    # of accumulators. The test leaves these objects out.
    kept = [value for name, value in loaded.items() if not name.endswith(".options")]
    for stored, (expression, value) in zip(kept, fresh.items(), strict=True):
        assert golden_stored.same(stored, value), expression


def test_a_checkpoint_loads_weights_only():
    torch = pytest.importorskip("torch")
    loaded = torch.load(golden_stored.CHECKPOINT, weights_only=True)
    # When the checkpoint was written, its last two objects had a seed in a tensor. Specs have no
    # seed now, so they load without the seed.
    fresh = golden_stored.specs() | {"sum": cpd.Accumulator("e4m3"), "cast": cpd.Cast("e4m3")}
    for stored, (expression, value) in zip(loaded["specs"].values(), fresh.items(), strict=True):
        assert golden_stored.same(stored, value), expression
    for name, value in golden_stored.state().items():
        assert torch.equal(loaded["state"][name], value)


def same_parameters(one: Any, other: Any) -> bool:
    pairs = zip(one.state_dict().items(), other.state_dict().items(), strict=True)
    return all(name == also and (x == y).all() for (name, x), (also, y) in pairs)


def test_whole_layers_load():
    torch = pytest.importorskip("torch")
    from cpd.nn import layers

    layers._warn.cache_clear()
    with pytest.warns(
        UserWarning, match="a pickled cpd.nn.* of 0.7 is loaded as a torch"
    ) as warned:
        loaded = [torch.load(golden_stored.MODULES, weights_only=False) for _ in range(2)][1]
    texts = [str(one.message) for one in warned]
    named = [text.split()[2] for text in texts if text.startswith("a pickled")]
    assert named == ["cpd.nn.Linear", "cpd.nn.Conv2d"]  # each once; specs warn of their own
    fresh = golden_stored.layers()
    given = {"linear": golden.floats((5, 4), 604), "conv": golden.floats((1, 2, 4, 3), 605)}
    for name, x in given.items():
        x = golden.tensor(x)
        assert torch.equal(loaded[name](x), fresh[name](x))
        assert type(loaded[name]) is type(fresh[name])
        assert loaded[name].cpd.recipe == fresh[name].cpd.recipe
        assert same_parameters(loaded[name], fresh[name])
    hook, state = loaded["hook"], fresh["hook"]
    assert type(hook) is type(state)
    assert (hook.schedule, hook.step, hook.names) == (state.schedule, state.step, state.names)


# ---- names ---------------------------------------------------------------------------------------

NAMES = stored("names")


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cpd":
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize("module", NAMES)
def test_public_names_stay(module):
    found = imported(MOVED.get(module, module).split()[0])
    assert set(NAMES[module]) <= set(found.__all__)
    missing = [name for name in NAMES[module] if not hasattr(found, name)]
    assert not missing, f"{module} had {', '.join(missing)}"


def test_the_package_has_its_parts():
    """`import cpd` alone provides all parts of the package."""
    assert cpd.study is importlib.import_module("cpd.study")
    assert cpd.comm is importlib.import_module("cpd.comm")
    for name in ("functional", "nn"):
        assert getattr(cpd, name) is imported(f"cpd.{name}")
    assert cpd.fsdp_hook is imported("cpd.parallel.fsdp").fsdp_hook
    hook = imported("cpd.parallel.ddp").ddp_hook
    assert cpd.ddp_hook is hook
