# SPDX-License-Identifier: Apache-2.0
"""`cpu_name`: the name of this machine's processor."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path


@functools.cache
def cpu_name() -> str:
    """Returns the processor's name, such as 'AMD EPYC, family 25, model 17, 2 cores'.

    The numbers of family and model identify processors of virtual machines, which hide model names.
    """
    fields: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), value.strip())
    except OSError:
        pass
    name = fields.get("model name") or platform.processor() or platform.machine()
    family = "".join(f", {key} {fields[of]}" for key, of in _NUMBERS if of in fields)
    return f"{name}{family}, {len(os.sched_getaffinity(0))} cores"


_NUMBERS = (("family", "cpu family"), ("model", "model"))
