# SPDX-License-Identifier: Apache-2.0
"""Tests the package where only NumPy, rich and tomli_w are installed. The commands here work, and
other commands name the package that they need."""

import json
import subprocess
import sys

import numpy as np
import pytest

WORKS = [
    "",
    "--version",
    "show e4m3 --neighbors 0.3",
    "show --recipes",
    "show --recipes mxfp8",
    "show --schema",
    "show --units",
    "show --codecs",
    "vectors mul e2m1 --exhaustive -o mul.tv",
    "vectors --check mul.tv",
    "roundoff --gradients g.npz --reduce '(5,2)' --group-sizes 2,4 --per-tensor",
    "roundoff --gradients g.npz --recommend",
    "sweep g.npz --formats 'e[2-3]m[1-2]'",
    "compress g.npz --codec 'qsgd bits=4 bucket=64' --out small.npz",
    "cost --model resnet50 --ranks 4,8",
    "cost --gradients g.npz --reduce fp32,mxfp8 --compute 0.1",
    "study figure grubic-10",
    "study list",
    "env",
]
NEEDS = {
    "train": "torch",
    "roundoff": "torch",
    "roundoff --gradients g.npz --plot x.svg": "matplotlib",
    "cost --model resnet50 --plot x.svg": "matplotlib",
    "sweep g.npz --formats e4m3 --plot x.svg": "matplotlib",
    "show e3m2 --picture x.svg": "matplotlib",
    "sweep g.safetensors": "safetensors",
    "sweep g.pt": "torch",
    "completion bash": "shtab",
}
PROGRAM = """
import contextlib, io, json, shlex, sys

missing = json.loads(sys.argv[2])

class Without:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in missing:
            return self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Without, sys.meta_path)
from cpd.cli import main
found = {}
for text in json.loads(sys.argv[1]):
    out, told = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.redirect_stdout(out):
        try:
            status = main(shlex.split(text))
        except SystemExit as stop:
            status = stop.code or 0
    found[text] = status, out.getvalue(), told.getvalue()
print(json.dumps(found))
"""
MISSING = ("torch", "matplotlib", "sklearn", "ml_dtypes", "safetensors", "jinja2", "joblib",
           "zstandard", "shtab", "scipy", "pandas")  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("numpy_alone")
    draw = np.random.default_rng(0)
    np.savez(folder / "g.npz", a=draw.standard_normal((4, 60), "f"), b=np.ones((4, 5), "f"))
    for name in ("g.safetensors", "g.pt"):
        (folder / name).write_bytes(b"not read")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps([*WORKS, *NEEDS]), json.dumps(MISSING)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("text", WORKS)
def test_commands_that_need_numpy_alone(found, text):
    status, out, told = found[text]
    assert status == 0, told
    assert out


@pytest.mark.parametrize("text", NEEDS)
def test_the_package_that_another_command_needs(found, text):
    status, out, told = found[text]
    assert status == 1
    assert out == ""
    assert f"needs the Python package '{NEEDS[text]}' (pip install {NEEDS[text]})" in told
    assert told.count("\n") == 1
