# SPDX-License-Identifier: Apache-2.0
"""Tests the package as a new user installs it.

`pip install .`, the same next to an installed torch, and the wheel are tested in separate virtual
environments. The tests build the library and download packages.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import time
import venv
import zipfile
from pathlib import Path

import pytest

import patience

ROOT = Path(__file__).parents[3]
TORCH = "torch==2.13.0"
OLDEST_TORCH = "torch==2.11.0"

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(1800)]

NUMPY_WORKS = """
import cpd, numpy as np, pathlib
assert pathlib.Path(cpd.__file__).with_name("_core.pyi").exists()  # its types
assert cpd.cast(np.float32([0.3, 17.0]), "e4m3").tolist() == [0.3125, 16.0]
assert cpd.gemm(np.float32([[1, 2]]), np.float32([[3], [4]]), "e4m3 kahan").item() == 11
"""
TORCH_WORKS = """
import cpd, torch
assert cpd.cast(torch.tensor([0.3, 17.0]), "e4m3").tolist() == [0.3125, 16.0]
x = torch.randn(1 << 20)
assert torch.equal(cpd.cast(x, "e5m2"), torch.from_numpy(cpd.cast(x.numpy(), "e5m2")))
with open("/proc/self/maps") as maps:
    openmp = {line.split()[-1] for line in maps if "libgomp" in line}
assert len(openmp) == 1, openmp
"""
TORCH_IS_TOLD_OF = """
import cpd, torch
try:
    cpd.cast(torch.tensor([0.3]), "e4m3")
except ImportError as error:
    print(str(error).partition("with this torch: ")[2])
"""


@pytest.fixture(autouse=True)
def _registry() -> None:
    if os.environ.get("CPD_OFFLINE") == "1":
        pytest.skip("CPD_OFFLINE=1: no packages can be fetched")


class Venv:
    """A new virtual environment. Commands run in a folder outside the sources."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        venv.create(folder, with_pip=True)
        self.variables = {
            **{k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV")},
            "PATH": f"{folder}/bin:/usr/local/bin:/usr/bin:/bin",
        }

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self.variables,
            capture_output=True,
            text=True,
            check=False,
        )
        if check:
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done

    def pip(self, *arguments: str) -> None:
        begun = time.monotonic()
        self.run("pip", "install", "--quiet", *arguments)
        print(f"pip install {' '.join(arguments)}: {time.monotonic() - begun:.0f} s")

    def python(self, program: str) -> str:
        return self.run("python", "-c", program).stdout.strip()


@pytest.fixture
def bare(tmp_path: Path) -> Venv:
    return Venv(tmp_path / "venv")


def test_pip_install_in_a_bare_venv_then_the_command_that_a_tensor_names(bare):
    bare.pip(str(ROOT))
    bare.python(NUMPY_WORKS)
    assert "e4m3" in bare.run("cpd", "show", "e4m3").stdout
    told = bare.run("cpd", "train", "--epochs", "1", check=False)
    assert told.returncode == 1
    assert "needs the Python package" in told.stderr
    assert "Traceback" not in told.stderr
    bare.pip(TORCH)
    command = bare.python(TORCH_IS_TOLD_OF)
    assert "--no-build-isolation" in command
    assert str(ROOT) in command
    bare.run("sh", "-c", command)
    bare.python(NUMPY_WORKS)
    bare.python(TORCH_WORKS)


def test_pip_install_beside_a_torch(bare):
    bare.pip(TORCH, "scikit-build-core", "pybind11", "pybind11-stubgen", "numpy")
    bare.pip("--no-build-isolation", str(ROOT))
    bare.python(NUMPY_WORKS)
    bare.python(TORCH_WORKS)


def made_wheel() -> Path:
    subprocess.run([ROOT / "dev", "wheel"], check=True)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    (wheel,) = (ROOT / "out").glob(f"cpd-*-{tag}-{tag}-manylinux_*.whl")
    return wheel


def test_the_same_wheel_twice():
    first, second = (hashlib.sha256(made_wheel().read_bytes()).hexdigest() for _ in range(2))
    assert first == second


def test_materials_of_the_wheel():
    """The wheel's bill of materials lists the libraries' hashes, requirements and built-in parts.

    Its date is the commit's date.
    """
    with zipfile.ZipFile(made_wheel()) as wheel:
        (name,) = (n for n in wheel.namelist() if n.endswith("/sboms/cpd.cdx.json"))
        bom = json.loads(wheel.read(name))
        record = wheel.read(f"{name.split('/')[0]}/RECORD").decode()
        libraries = {n: wheel.read(n) for n in wheel.namelist() if n.startswith("cpd/lib")}
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    assert bom["metadata"]["component"]["purl"].startswith("pkg:pypi/cpd@")
    assert name in record
    components = {component["name"]: component for component in bom["components"]}
    assert {"numpy", "rich", "tomli-w", "torch", "pybind11"} <= set(components)
    assert components["numpy"]["scope"] == "required"
    assert components["torch"]["scope"] == "optional"
    assert components["pybind11"]["licenses"] == [{"license": {"id": "BSD-3-Clause"}}]
    assert libraries
    for library, content in libraries.items():
        (found,) = components[library]["hashes"]
        assert found == {"alg": "SHA-256", "content": hashlib.sha256(content).hexdigest()}


def test_the_lab_is_a_wheel_of_its_own(bare):
    """Commands of the second package, cpd_lab, run if its wheel is installed, too. Without that
    wheel, they name what to install."""
    bare.pip(str(made_wheel()), TORCH)
    words = ("cpd", "train", "--epochs", "1", "--no-baseline")
    needs = "needs the Python package 'cpd-lab' (pip install cpd-lab)"
    without = bare.run(*words, check=False)
    assert (without.returncode, without.stderr) == (1, f"cpd train: error: {needs}\n")
    (lab,) = (ROOT / "out").glob("cpd_lab-*-py3-none-any.whl")
    bare.pip(str(lab))
    assert "weights" in bare.run(*words).stdout
    bare.pip("--force-reinstall", "--no-deps", str(ROOT / "python"))  # cpd_lab from its sources
    assert "weights" in bare.run(*words).stdout


def test_wheel(bare):
    bare.pip(str(made_wheel()))
    bare.python(NUMPY_WORKS)
    for torch in (OLDEST_TORCH, TORCH):
        bare.pip(torch)
        bare.python(TORCH_WORKS)


README = (ROOT / "README.md").read_text()
(MODEL,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
FIRST_TABLE = "\n".join(re.findall(r"^\$ ((?:python|cpd roundoff) .*)$", README, re.M))


def test_first_results_from_the_wheel(tmp_path):
    """A new user gets README's first table within 60 s and its first report within 180 s.

    The times include the installation of the wheel. The limits are for an idle machine.
    """
    wheel = str(made_wheel())
    begun = time.monotonic()
    bare = Venv(tmp_path / "venv")
    bare.pip(wheel)
    assert "e5m2 + APS" in bare.run("sh", "-c", FIRST_TABLE).stdout
    table = time.monotonic() - begun
    bare.pip("torch>=2.11")
    assert "98.3 % emulated" in bare.python(MODEL)
    report = time.monotonic() - begun
    print(f"first table {table:.0f} s, first report {report:.0f} s")
    assert table < patience.scaled(60)
    assert report < patience.scaled(180)


def test_run_stays_in_the_folder_where_it_is_called(tmp_path):
    done = subprocess.run(
        [ROOT / "dev", "run", "pwd"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert Path(done.stdout.strip().splitlines()[-1]) == tmp_path
