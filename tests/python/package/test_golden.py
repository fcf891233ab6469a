# SPDX-License-Identifier: Apache-2.0
"""Results, texts and errors are, to the bit, those that `tests/golden` holds; what was pickled and
imported there still can be. `tests/golden/make.py` writes these files."""

from __future__ import annotations

import importlib
import json
import pickle
from typing import Any

import pytest

import cpd
import golden
import golden_elements
import golden_reduce
import golden_stored
import golden_sums
import golden_texts
import golden_torch
from cpd._since import MOVED

FILES = {
    case.__name__.removesuffix("_cases"): case
    for case in (
        golden_elements.cast_cases,
        golden_elements.encode_cases,
        golden_elements.decode_cases,
        golden_elements.add_cases,
        golden_elements.mul_cases,
        golden_elements.fma_cases,
        golden_elements.random_integers_cases,
        golden_sums.sum_cases,
        golden_sums.gemm_cases,
        golden_torch.matmul_cases,
        golden_torch.linear_cases,
        golden_torch.conv2d_cases,
        golden_torch.derivatives_cases,
        golden_reduce.simulate_all_reduce_cases,
        golden_reduce.communicator_cases,
        golden_reduce.mismatch_cases,
        golden_reduce.study_cases,
        golden_reduce.cost_cases,
        golden_texts.texts_cases,
        golden_texts.torch_texts_cases,
        golden_texts.errors_cases,
        golden_texts.torch_errors_cases,
        golden_texts.cli_cases,
    )
}
BOTH = (
    *("cast", "encode", "decode", "add", "mul", "fma", "sum", "gemm", "simulate_all_reduce"),
    *("communicator", "study"),
)
"""The cases that are the same for arrays and tensors."""
OF_TORCH = ("matmul", "linear", "conv2d", "derivatives", "torch_texts", "torch_errors")
WITH_BFLOAT16 = ("cast", "encode", "add", "mul", "fma", "sum", "gemm")


def recomputed(name: str, make: golden.Make) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for case, value in FILES[name](make):
        assert case not in found, f"two cases are called {case!r}"
        found[case] = golden.recorded(value)
    return found


def runs() -> list[Any]:
    front_ends = {name: ("numpy", "tensor") if name in BOTH else ("numpy",) for name in FILES}
    front_ends |= dict.fromkeys(OF_TORCH, ("tensor",))
    return [pytest.param(n, f, id=f"{n}-{f}") for n, given in front_ends.items() for f in given]


@pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
@pytest.mark.parametrize(("name", "front_end"), runs())
def test_results(name, front_end):
    if front_end == "tensor":
        pytest.importorskip("torch")
    if name in WITH_BFLOAT16:
        pytest.importorskip("ml_dtypes")
    expected = json.loads((golden.FOLDER / f"{name}.json").read_text())
    got = recomputed(name, getattr(golden, front_end))
    assert list(got) == list(expected), "the cases are not those of the file"
    wrong = [case for case in expected if got[case] != expected[case]]
    shown = [f"{case}: {golden.difference(expected[case], got[case])}" for case in wrong[:5]]
    assert not wrong, f"{len(wrong)} of {len(expected)} cases differ\n" + "\n".join(shown)


# ---- what was stored -----------------------------------------------------------------------------


def test_pickled_objects_load():
    loaded = pickle.loads(golden_stored.PICKLE.read_bytes())
    fresh = golden_texts.objects()
    # Expressions differ, values do not. The options of an accumulator have no object any more.
    kept = [value for name, value in loaded.items() if not name.endswith(".options")]
    for stored, (expression, value) in zip(kept, fresh.items(), strict=True):
        assert golden_stored.same(stored, value), expression


def test_a_checkpoint_loads_weights_only():
    torch = pytest.importorskip("torch")
    loaded = torch.load(golden_stored.CHECKPOINT, weights_only=True)
    # The last two had a seed in a tensor.
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
    assert [str(one.message).split()[2] for one in warned] == ["cpd.nn.Linear", "cpd.nn.Conv2d"]
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

NAMES = json.loads((golden.FOLDER / "names.json").read_text())


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
    """What `import cpd` alone gives."""
    assert cpd.study is importlib.import_module("cpd.study")
    assert cpd.comm is importlib.import_module("cpd.comm")
    for name in ("functional", "nn"):
        assert getattr(cpd, name) is imported(f"cpd.{name}")
    assert cpd.fsdp_hook is imported("cpd.parallel.fsdp").fsdp_hook
    hook = imported("cpd.parallel.ddp").ddp_hook
    assert cpd.ddp_hook is hook
