# SPDX-License-Identifier: Apache-2.0
"""How much longer than on an idle machine things take here and now, by the start of a program:
tests' limits and timeouts are multiples of it."""

from __future__ import annotations

import os
import subprocess
import sys
import time

NAME = "CPD_TEST_SLOWNESS"
"""The environment's name of what was measured at the beginning (conftest.py)."""
IDLE = 0.25
"""Seconds in which an interpreter starts, imports the package and ends, on an idle machine."""


def slowness() -> float:
    """1 on an idle machine, 3 where a program takes three times as long to start; measured once."""
    if NAME not in os.environ:
        os.environ[NAME] = str(max(1.0, _start() / IDLE))
    return float(os.environ[NAME])


def scaled(seconds: float) -> float:
    """A limit that this machine keeps where an idle one keeps so many seconds."""
    return seconds * slowness()


def _start() -> float:
    """Of the second of two starts: the first may wait for a disk."""
    command = [sys.executable, "-c", "import cpd"]
    subprocess.run(command, check=True)
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin
