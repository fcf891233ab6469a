# SPDX-License-Identifier: Apache-2.0
"""Runs the modules of `tests/rtl` in a simulator; a test is skipped if its simulator is missing."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from patience import scaled

RTL = Path(__file__).parents[2] / "rtl"
SOURCES = sorted(RTL.glob("*.sv"))


def needs(*tools: str) -> pytest.MarkDecorator:
    missing = [tool for tool in tools if shutil.which(tool) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def call(*command: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(each) for each in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=scaled(280),
    )


def make(
    folder: Path,
    simulator: str,
    defines: Sequence[str] = (),
    rtl: Sequence[Path] = (),
    stop: int | None = None,
) -> tuple[int, int, str]:
    """Runs a test bench until it ends or `stop` lines have failed.

    `rtl` replaces the sources of the module. Returns the number of failed lines, the number of
    lines, and the output of the bench.
    """
    sources = [f"RTL={' '.join(map(str, rtl))}"] if rtl else []
    sources += [] if stop is None else [f"STOP={stop}"]
    done = call("make", "-s", "-C", folder, simulator, f"DEFINES={' '.join(defines)}", *sources)
    passed = re.search(r"PASS \w+: (\d+) vectors", done.stdout)
    failed = re.search(r"FAIL \w+: (\d+) of (\d+) vectors", done.stdout)
    if passed:
        assert done.returncode == 0
        return 0, int(passed[1]), done.stdout
    assert failed, done.stdout + done.stderr
    assert done.returncode != 0
    return int(failed[1]), int(failed[2]), done.stdout
