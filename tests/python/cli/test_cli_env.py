# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd env`, which prints the environment in a form to paste into a bug report."""

import json
import platform

import numpy as np
import pytest

import cpd
from cpd import _core
from cpd.cli import main


def told(capsys) -> dict[str, str]:
    assert main(["env", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_lines_are_those_of_the_json(capsys):
    found = told(capsys)
    assert main(["env"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(found)
    assert all(line.endswith(value) for line, value in zip(lines, found.values(), strict=True))


def test_versions_and_kernels(capsys):
    found = told(capsys)
    assert found["cpd"] == cpd.__version__
    assert found["python"].startswith(platform.python_version())
    assert f"numpy {np.__version__}" in found["packages"]
    assert found["kernels"].split()[0] == cpd.backend()
    assert all(name in found["kernels"] for name in _core.backends())
    assert found["built with"] == _core.PARTS


def test_torch(capsys):
    torch = pytest.importorskip("torch")
    found = told(capsys)
    assert found["torch"].startswith(f"{torch.__version__}, {torch.get_num_threads()} threads; ")
    assert found["torch"].endswith("cpd's operators are loaded")
    assert ("no device" in found["cuda"]) == (not torch.cuda.is_available())


def test_variables_are_those_that_change_what_cpd_does(capsys, monkeypatch):
    monkeypatch.setenv("CPD_NUM_THREADS", "1")
    monkeypatch.setenv("SECRET_TOKEN", "hidden")
    found = told(capsys)
    assert "CPD_NUM_THREADS=1" in found["variables"]
    assert "hidden" not in json.dumps(found)
