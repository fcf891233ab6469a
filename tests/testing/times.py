# SPDX-License-Identifier: Apache-2.0
"""Prints how long the steps of `./dev` took, from the file to which `./dev` writes the times.

    times.py TIMES.tsv [RESULT.json]

Prints one line for each step, and separately what was downloaded and installed. With RESULT.json,
also stores the times there, with a description of the machine.
"""

import json
import os
import platform
import re
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

INSTALLS = ("system packages", "Python packages", "NCCL's package")


def steps(path: Path) -> dict[str, float]:
    """Returns the seconds of each step, in the order in which steps began. Steps of the same name
    are added."""
    seconds: dict[str, float] = {}
    for line in path.read_text().splitlines():
        name, _, taken = line.partition("\t")
        seconds[name] = round(seconds.get(name, 0.0) + float(taken), 1)
    return seconds


def cpu_name() -> str:
    info = Path("/proc/cpuinfo").read_text()
    found = {
        key: re.search(rf"^{key}\s*: (.*)$", info, re.M)
        for key in ("model name", "cpu family", "model")
    }
    words = [match[1] for match in found.values() if match]
    return (
        f"{words[0]}, family {words[1]}, model {words[2]}"
        if len(words) == 3
        else platform.machine()
    )


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def summary(seconds: dict[str, float]) -> dict[str, Any]:
    installs = sum(taken for name, taken in seconds.items() if name in INSTALLS)
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "seconds": round(sum(seconds.values()), 1),
        "of which downloads and installs": round(installs, 1),
        "steps": seconds,
    }


def lines(result: dict[str, Any]) -> list[str]:
    rows = [*result["steps"].items(), ("all", result["seconds"])]
    text = [f"{taken:8.1f} s  {name}" for name, taken in rows]
    apart = result["of which downloads and installs"]
    machine = f"{result['cores']} cores of {result['cpu']}"
    return [*text, f"of which {apart} s for downloads and installs; {machine}"]


def main() -> None:
    result = summary(steps(Path(sys.argv[1])))
    print("\n".join(lines(result)))
    for target in map(Path, sys.argv[2:3]):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
