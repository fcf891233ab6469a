# SPDX-License-Identifier: Apache-2.0
"""Tests which modules `import cpd` loads at once, on first use, or never.

torch.load must read the specs.
"""

from __future__ import annotations

import importlib
import io
import subprocess
import sys

import pytest

import cpd
from cpd._lazy import later
from cpd.loading import SPECS
from cpd.numeric.hadamard import transform_of
from patience import scaled

LAZY = ("comm", "compat", "compress", "hardware", "study")
LAZY_WITH_TORCH = ("fsdp_hook", "functional", "nn", "optim")
VALUES = [
    cpd.Format("e4m3fn:bias=11"),
    cpd.Accumulator("e6m9 chunked", product="exact", rounding="stochastic"),
    cpd.Accumulator("h100-fp8"),
    cpd.Accumulator(a="fp16", b="fp16", block=4, fraction_bits=23),
    cpd.Accumulator(width=40, fraction=12),
    cpd.Cast("e5m2", rounding="stochastic", random_bits=8),
    transform_of("hadamard32"),  # which checkpoints of 0.7 may hold
    cpd.Cast("mxfp8"),
    cpd.Scaled("nvfp4"),
    cpd.Recipe(sums="e4m3 kahan", weight="e5m2"),
    cpd.Codec("qsgd bits=4"),
    cpd.Reduce("e4m3", order="ring", aps=True),
    cpd.Schedule(cpd.Reduce("e4m3"), exempt=["*.bias"]),
]


@pytest.mark.parametrize("name", LAZY)
def test_a_module_on_first_use_without_torch(name):
    program = f"import cpd, sys; cpd.{name}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(120))


SLOW = ("ast", "dataclasses", "difflib", "numpy.typing", "shlex", "cpd.nn.recipe", "cpd.comm.spec")


def test_what_takes_time_is_not_imported():
    """`import cpd` loads no module that takes long to import.

    Exceptions are NumPy's imports, `dataclasses` and `numpy.typing`.
    """
    program = (
        "import numpy, sys; before = {*sys.modules}; import cpd; print(*{*sys.modules} - before)"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, timeout=scaled(120), capture_output=True, text=True)
    assert {*done.stdout.split()}.isdisjoint(SLOW)
    assert cpd.Recipe is importlib.import_module("cpd.nn.recipe").Recipe


def test_modules_on_first_use_with_torch():
    pytest.importorskip("torch")
    program = f"import cpd; [getattr(cpd, name) for name in {LAZY_WITH_TORCH}]"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=scaled(120))
    assert {*LAZY, *LAZY_WITH_TORCH} <= set(dir(cpd))


def test_what_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'recipies'"):
        cpd.recipies  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'cpd\.recipies'"):
        importlib.import_module("cpd.recipies")


def test_a_package_without_its_source(monkeypatch):
    class Frozen:
        @staticmethod
        def get_source(name):
            return None

    monkeypatch.setattr(cpd.compat, "__loader__", Frozen)
    error = "cpd.compat needs its source, which lists what is loaded at first use"
    with pytest.raises(ImportError, match=error):
        later.__wrapped__("cpd.compat")


def test_torch_loads_every_spec():
    torch = pytest.importorskip("torch")
    file = io.BytesIO()
    torch.save({"specs": VALUES}, file)
    file.seek(0)
    assert torch.load(file, weights_only=True)["specs"] == VALUES
    kinds = {type(value).__name__ for value in VALUES}
    makers = {"format": "Format", "scaled": "Scaled"}
    makers |= {"CastSpec": "Cast", "ScaledCast": "Cast"}
    makers |= dict.fromkeys(("BlockFma", "FixedPoint"), "Accumulator")  # of 0.7
    makers |= {"ReduceSpec": "Reduce"}
    assert {makers.get(name, name) for _, name in SPECS} <= kinds | {"Encoded", "States"}


def test_a_build_without_torch_says_how_to_build_again(monkeypatch, tmp_path):
    pytest.importorskip("torch")
    library = importlib.import_module("cpd._torch.library")
    monkeypatch.setattr(library._core, "__file__", str(tmp_path / "_core.so"))
    with pytest.raises(ImportError, match="this cpd was built without torch, so it takes NumPy"):
        library._load()
