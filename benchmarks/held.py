# SPDX-License-Identifier: Apache-2.0
"""Times AVX2 on a CPU that has AVX-512: `CPD_BACKEND=avx2 ./dev bench`.

CPD_BACKEND limits CPD's kernels to AVX2, but not the libraries that CPD is compared with. Each of
these libraries chooses its instruction set when it is loaded. So the process starts again, before
it loads them, with environment variables that limit them to AVX2.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from bounds import LANES
from timing import Row

CPUINFO = Path("/proc/cpuinfo")
LOADER = Path("/lib64/ld-linux-x86-64.so.2")
TUNABLES = "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX512BW,-AVX512DQ,-AVX512CD"
SWITCHES = {
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",  # torch's sgemm
    "OPENBLAS_CORETYPE": "Haswell",  # NumPy's and CPD's
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "ATEN_CPU_CAPABILITY": "avx2",  # torch's own loops
}
MARGIN = 1.1  # a clock that changes
BITS_OF_LEAF_7 = {"AVX2": 5, "AVX512F": 16, "AVX512VL": 31}  # of EBX


def has_avx512(text: str | None = None) -> bool:
    """Returns whether this CPU has AVX-512. `text`: the contents of /proc/cpuinfo; by default, the
    file is read."""
    if text is None:
        text = CPUINFO.read_text() if CPUINFO.exists() else ""
    return re.search(r"^flags\s*:.*\bavx512f\b", text, re.M) is not None


def is_held(environment: Mapping[str, str], text: str | None = None) -> bool:
    """Returns whether this process times AVX2 on a CPU that also has AVX-512."""
    return environment.get("CPD_BACKEND") == "avx2" and has_avx512(text)


def switched(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment with the variables that limit all libraries to AVX2. Replaces the
    values that the environment has for these variables."""
    tunables = environment.get("GLIBC_TUNABLES", "").split(":")
    others = [t for t in tunables if t and not t.startswith("glibc.cpu.hwcaps=")]
    return {**environment, **SWITCHES, "GLIBC_TUNABLES": ":".join([*others, TUNABLES])}


def usable(feature: str, environment: Mapping[str, str]) -> bool:
    """Returns whether glibc reports a CPU feature as usable in a process with this environment."""
    lines = subprocess.run(
        [LOADER, "--list-diagnostics"], env=environment, capture_output=True, text=True, check=True
    ).stdout
    match = re.search(r"features\[0x1\]\.(?:active|usable)\[0x1\]=(0x[0-9a-f]+)", lines)
    if match is None:
        sys.exit(f"{LOADER} --list-diagnostics does not say what memcpy may use")
    return bool(int(match[1], 16) >> BITS_OF_LEAF_7[feature] & 1)


def beyond_avx2(rows: Iterable[Row], rates: Mapping[str, Any]) -> list[str]:
    """Returns the names of rows whose sgemm is faster than AVX2's fused multiply-adds on registers.
    In these rows sgemm was not limited to AVX2."""
    most = MARGIN * LANES["avx2"] * rates["avx2/fma"]
    sgemms = (row for row in rows if row.get("against") == "torch sgemm")
    return [row["name"] for row in sgemms if row["baseline"] > most]


def start_again_where_needed() -> None:
    """Starts the process again, with the environment variables that limit libraries to AVX2, if
    CPD_BACKEND is avx2 and the CPU has AVX-512. Prints how memcpy and sgemm are limited to AVX2.
    Exits if memcpy still uses AVX-512."""
    if os.environ.get("CPD_BACKEND") != "avx2":
        return
    if not has_avx512():
        print("AVX2: this CPU has no AVX-512 for memcpy and sgemm")
        return
    environment = switched(os.environ)
    if environment != dict(os.environ):
        os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], environment)
    for feature in ("AVX512F", "AVX512VL"):
        if usable(feature, environment):
            sys.exit(f"glibc's memcpy still uses {feature}, whatever GLIBC_TUNABLES says")
    print("AVX2: memcpy and sgemm are held to it, by " + ", ".join(["GLIBC_TUNABLES", *SWITCHES]))
