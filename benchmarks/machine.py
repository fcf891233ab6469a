# SPDX-License-Identifier: Apache-2.0
"""Identifies the CPU of this machine and reads the rates that bench_machine measures."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import held

import cpd

CPUINFO = Path("/proc/cpuinfo")
GOVERNOR = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
VENDORS = {"GenuineIntel": "intel", "AuthenticAMD": "amd", "0x41": "arm"}


@dataclass(frozen=True)
class Cpu:
    """The CPU under which results are stored."""

    cpu: str  # as the system calls it
    vendor: str
    family: str
    model: str
    isa: str  # the backend in use
    cores: int
    governor: str = "unknown"

    @property
    def file(self) -> str:
        return f"cpu-{self.vendor}-{self.family}-{self.model}-{self.isa}.json"


def this_cpu(text: str | None = None) -> Cpu:
    """Returns a description of this CPU. `text`: the contents of /proc/cpuinfo; by default, the
    file is read."""
    if text is None:
        text = CPUINFO.read_text() if CPUINFO.exists() else ""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    known = {key.strip(): value.strip() for key, _, value in pairs}

    def first(*keys: str) -> str:
        return next((known[key] for key in keys if key in known), "unknown")

    vendor = first("vendor_id", "CPU implementer")
    return Cpu(
        cpu=first("model name", "CPU part") if known else platform.processor(),
        vendor=VENDORS.get(vendor, vendor.lower()),
        family=first("cpu family", "CPU architecture"),
        model=first("model", "CPU part"),
        isa=cpd.backend(),
        cores=len(os.sched_getaffinity(0)),
        governor=GOVERNOR.read_text().strip() if GOVERNOR.exists() else "unknown",
    )


def rates(program: Path, mixtures: Iterable[str], floats: int, repeats: int) -> dict[str, Any]:
    """Runs bench_machine and returns the values that it prints, by name without `machine/`."""
    command = [str(program), "--floats", str(floats), "--repeats", str(repeats)]
    for text in mixtures:
        command += ["--mix", text]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = map(json.loads, lines.splitlines())
    return {row["name"].removeprefix("machine/"): row["value"] for row in rows}


def header(measured: dict[str, Any]) -> dict[str, Any]:
    """Returns the header of a file of results."""
    try:
        import torch
    except ImportError:
        version = "none"
    else:
        version = torch.__version__
    compiler = measured.get("compiler", "unknown")
    limit = {"held": "avx2"} if held.is_held(os.environ) else {}
    return (
        asdict(this_cpu())
        | limit
        | {
            "compiler": compiler,
            "torch": version,
            "version": cpd.__version__,
            "machine": {name: rate for name, rate in measured.items() if name != "compiler"},
        }
    )
