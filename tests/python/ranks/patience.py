# SPDX-License-Identifier: Apache-2.0
"""Time limits for tests: seconds on an idle machine, multiplied by this machine's slowness.

The slowness is the time that a program takes to start, relative to an idle machine. It is measured
again when a limit is requested and the last measurement is old, because other work may have begun.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

NAME = "CPD_TEST_SLOWNESS"
"""The environment variable with the last slowness and the time when it was measured."""
IDLE = 0.25
"""The seconds in which an interpreter starts, imports the package and ends, on an idle machine."""
FRESH = 20.0
"""The seconds after which the machine's slowness is measured again."""


def slowness() -> float:
    """Returns the time that a program takes to start, relative to an idle machine, at least 1."""
    value, _, when = os.environ.get(NAME, "").partition("@")
    if not when or not 0 <= time.time() - float(when) < FRESH:
        value = str(max(1.0, _start() / IDLE))
        os.environ[NAME] = f"{value}@{int(time.time())}"
    return float(value)


def scaled(seconds: float) -> float:
    """Returns this machine's limit for work that takes at most `seconds` on an idle machine."""
    return seconds * slowness()


def _start() -> float:
    """Starts a program twice. Returns the seconds of the second start, which needs no disk."""
    command = [sys.executable, "-c", "import cpd"]
    subprocess.run(command, check=True)
    begin = time.perf_counter()
    subprocess.run(command, check=True)
    return time.perf_counter() - begin
