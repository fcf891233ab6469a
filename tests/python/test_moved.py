# SPDX-License-Identifier: Apache-2.0
"""Modules are still there under the names that they had, and so are pickles that hold them."""

from __future__ import annotations

import importlib
import io
import pickle
import subprocess
import sys

import pytest

import cpd
from cpd._moved import MOVED
from cpd.loading import SPECS

FORMER = {
    "cpd.accumulator": ["Accumulator", "BlockFma", "accumulator", "parsed", "presets"],
    "cpd.compiling": ["constant"],
    "cpd.formats": ["Format", "format", "flag", "named"],
    "cpd.functional": ["conv2d", "linear", "matmul", "Pair", "PADDING_MODES"],
    "cpd.gradients": ["Gradients", "NotFinite", "load_gradients", "save_gradients"],
    "cpd.gradient_files": ["read_arrays", "shown"],
    "cpd.numpy_ops": ["cast", "gemm", "random_integers"],
    "cpd.ops": ["cast", "encode", "decode", "add", "mul", "fma", "sum", "gemm", "random_integers"],
    "cpd.recipes": ["CastSpec", "Recipe", "recipe", "MAX_LAYERS"],
    "cpd.reduce": [
        *("ORDERS", "EXCHANGES", "LayerReport", "ReduceSpec", "StallWarning", "Layers", "PerRank"),
        *("Source", "check_layer", "host_values", "may_stall", "simulate_all_reduce"),
    ],
    "cpd.report.results": ["Demo", "Run", "RoundoffRow", "STDOUT", "write_json", "write_text"],
    "cpd.report.roundoff": ["Series", "Network", "measure_series", "group_sizes_for"],
    "cpd.report.roundoff_plot": ["check_plot_path", "draw"],
    "cpd.report.figures": ["BLUE", "percent", "share_lost"],
    "cpd.schedule": ["Schedule", "all_reduce_numbered", "as_schedule", "numbered"],
    "cpd.study": ["Choice", "Cost", "DRAWS", "Recommendation", "Roundoff", "choose", "roundoff"],
    "cpd.tensors": [
        *("Array", "Number", "Options", "Region", "Shape", "integer", "is_torch"),
        *("FLOATS", "MAX_RANDOM_BITS", "check_carrier", "product_shape"),
    ],
    "cpd.torch_ops": ["cast", "gemm", "name_of"],
    "cpd.ddp": ["HookState", "ddp_hook"],
    "cpd.fsdp": ["ReduceScatter", "set_reduce_scatter"],
    "cpd.training": ["TrainOptions", "VirtualRanks", "RealRanks", "open_ranks", "train"],
    "cpd.training.ranks": ["Ranks", "RealRanks", "VirtualRanks", "gather_integers", "open_ranks"],
}
"""Some of what each had."""
WITHOUT_TORCH = [
    *("cpd.accumulator", "cpd.formats", "cpd.ops", "cpd.recipes", "cpd.reduce", "cpd.schedule"),
    *("cpd.study", "cpd.tensors"),
]


@pytest.mark.parametrize("name", sorted({*FORMER, *MOVED}))
def test_former_names(name):
    if name not in WITHOUT_TORCH:
        pytest.importorskip("torch")
    if name.startswith("cpd.report"):
        pytest.importorskip("matplotlib")
    module = importlib.import_module(name)
    assert importlib.import_module(name) is module
    for one in FORMER.get(name, []):
        getattr(module, one)
    found: object = cpd
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found is module
    for now in MOVED.get(name, ()):
        there = vars(importlib.import_module(now))
        assert all(getattr(module, k) is v for k, v in there.items() if not k.startswith("_"))


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'recipies'"):
        cpd.recipies  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'cpd\.recipies'"):
        importlib.import_module("cpd.recipies")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if number % 8 == 0 else pytest.mark.exhaustive)
        for number, name in enumerate(sorted(FORMER))
    ],
)
def test_first_import_by_a_former_name(name):
    """In a process that has imported nothing else."""
    if name not in WITHOUT_TORCH:
        pytest.importorskip("torch")
    program = (
        f"from {name} import {', '.join(FORMER[name])}\n"
        f"import sys, {name} as module\n"
        f"assert module.{FORMER[name][0]} is {FORMER[name][0]}\n"
        f"assert {name not in WITHOUT_TORCH} or 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


VALUES = [
    cpd.format("e4m3fn:bias=11"),
    cpd.Accumulator("e6m9", "chunked", product="exact", rounding="stochastic", seed=3),
    cpd.Accumulator(preset="h100-fp8"),
    cpd.BlockFma("fp16", "fp16", block=4, fraction_bits=23),
    cpd.CastSpec("e5m2", "stochastic", random_bits=8),
    cpd.Recipe("e4m3 kahan", weight="e5m2"),
    cpd.ReduceSpec("e4m3", order="ring", aps=True),
    cpd.Schedule(cpd.ReduceSpec("e4m3"), exempt=["*.bias"]),
]
FORMER_HOMES = {
    "cpd.numeric.formats": "cpd.formats",
    "cpd.numeric.accumulator": "cpd.accumulator",
    "cpd.nn.recipe": "cpd.recipes",
    "cpd.numeric.cast": "cpd.recipes",
    "cpd.comm.spec": "cpd.reduce",
    "cpd.comm.schedule": "cpd.schedule",
}
NEW_HOMES = {
    "cpd.compress.codec",
    "cpd.compress.states",
    "cpd.numeric.hadamard",
    "cpd.numeric.scaled",
    "cpd.numeric.scaled_cast",
    "cpd.ops.encoded",
}
"""Modules of later specs, which no checkpoint of before holds."""


def formerly(data: bytes) -> bytes:
    """A pickle of protocol 2, whose globals are lines, as it was before the modules moved."""
    for now, former in FORMER_HOMES.items():
        data = data.replace(f"c{now}\n".encode(), f"c{former}\n".encode())
    assert b"cpd.n" not in data
    assert b"cpd.comm" not in data
    return data


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_pickles_of_before(value):
    assert pickle.loads(formerly(pickle.dumps(value, protocol=2))) == value


def test_torch_loads_checkpoints_of_before():
    torch = pytest.importorskip("torch")
    assert {module for module, _ in SPECS} == set(FORMER_HOMES) | NEW_HOMES

    class Former:
        """torch.save's pickler, whose output is changed as above."""

        def __getattr__(self, name):
            return getattr(pickle, name)

        class Pickler(pickle._Pickler):
            def save_global(self, obj, name=None):
                home = FORMER_HOMES.get(obj.__module__)
                if home is None:
                    return super().save_global(obj, name)
                self.write(f"c{home}\n{name or obj.__qualname__}\n".encode())
                return self.memoize(obj)

            dispatch = {**pickle._Pickler.dispatch, type(formerly): save_global, type: save_global}  # noqa: RUF012

    file = io.BytesIO()
    torch.save({"specs": VALUES}, file, pickle_module=Former())
    assert b"cpd.recipes" in file.getvalue()
    assert b"cpd.nn" not in file.getvalue()
    file.seek(0)
    assert torch.load(file, weights_only=True)["specs"] == VALUES
