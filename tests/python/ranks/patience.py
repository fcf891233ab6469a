# SPDX-License-Identifier: Apache-2.0
"""Limits of time for tests: an idle machine's seconds times this machine's slowness.

The slowness is how many times longer than on an idle machine a program takes to start. It is
measured again whenever a limit is asked for and the last measurement is old: other work may have
begun since."""

from __future__ import annotations

import os
import subprocess
import sys
import time

NAME = "CPD_TEST_SLOWNESS"
"""The environment variable that holds the last measurement, and when it was made: child processes
read it."""
IDLE = 0.25
"""Seconds in which an interpreter starts, imports the package and ends, on an idle machine."""
FRESH = 20.0
"""Seconds for which a measurement holds."""


def slowness() -> float:
    """Returns 1 on an idle machine, 3 where a program takes three times as long to start."""
    value, _, when = os.environ.get(NAME, "").partition("@")
    if not when or not 0 <= time.time() - float(when) < FRESH:
        value = str(max(1.0, _start() / IDLE))
        os.environ[NAME] = f"{value}@{int(time.time())}"
    return float(value)


def scaled(seconds: float) -> float:
    """Returns the limit that this machine keeps where an idle one keeps `seconds`."""
    return seconds * slowness()


def _start() -> float:
    """Returns the seconds of the second of two starts: the first may wait for a disk."""
    command = [sys.executable, "-c", "import cpd"]
    subprocess.run(command, check=True)
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin
