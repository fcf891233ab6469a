# SPDX-License-Identifier: Apache-2.0
"""Tests that a program that flushes subnormals gets the same bits from every operation.

torch.set_flush_denormal sets the flags. NumPy, torch and measurements are tested in a process of
their own, because the flags hold for a whole thread.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from patience import scaled

CASES = Path(__file__).parents[1] / "cases" / "environment_cases.py"


def results(flush: bool, folder: Path) -> dict[str, str]:
    command = [sys.executable, str(CASES), "flush" if flush else "keep", str(folder)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=scaled(240), check=False)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


def test_flushing_changes_nothing(tmp_path):
    pytest.importorskip("torch")
    kept = results(False, tmp_path)
    flushed = results(True, tmp_path)
    assert kept.pop("flushes") == "no"
    if flushed.pop("flushes") != "yes":
        pytest.skip("this CPU's torch does not flush subnormals")
    assert len(kept) > 100
    assert kept.keys() == flushed.keys()
    other = [name for name in kept if kept[name] != flushed[name]]
    assert not other, other[:12]
