# SPDX-License-Identifier: Apache-2.0
"""The times of `./dev`'s steps: the printed lines, and the stored file."""

import json
import os
import subprocess
import sys
from pathlib import Path

TIMES = Path(__file__).parents[2] / "testing/times.py"


def run(*words):
    command = [sys.executable, TIMES, *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_steps_of_one_name_are_one(tmp_path):
    steps = tmp_path / "times.tsv"
    steps.write_text("Python packages\t1.5\ncompile: asan\t20.0\nPython packages\t0.7\n")
    kept = tmp_path / "out/ci.json"
    printed = run(steps, kept).splitlines()
    assert printed[:3] == [
        "     2.2 s  Python packages",
        "    20.0 s  compile: asan",
        "    22.2 s  all",
    ]
    assert printed[3].startswith(f"of which 2.2 s for downloads and installs; {os.cpu_count()} ")
    result = json.loads(kept.read_text())
    assert result["steps"] == {"Python packages": 2.2, "compile: asan": 20.0}
    assert result["seconds"] == 22.2
    assert result["of which downloads and installs"] == 2.2
    assert result["cpu"]
    assert result["date"].endswith("+00:00")


def test_without_steps(tmp_path):
    steps = tmp_path / "times.tsv"
    steps.write_text("")
    assert run(steps).splitlines()[0] == "     0.0 s  all"
    assert os.listdir(tmp_path) == ["times.tsv"]
