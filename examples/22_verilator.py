# SPDX-License-Identifier: Apache-2.0
"""Verifies RTL for a chosen accumulator: writes vectors with all inner signals and a test bench,
and runs the RTL of `tests/rtl` with them in Verilator or Icarus.

Makes golden vectors with all inner signals for a chosen accumulator, generates a test bench, and
simulates the bench with the RTL of `tests/rtl`.

If a program is missing, the example prints which program.

Run: python examples/22_verilator.py --accumulator h100-fp16
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import cpd
from cpd.hardware import make_vectors, write_testbench

RTL = Path(__file__).resolve().parents[1] / "tests" / "rtl"
PROGRAMS = {"verilator": "verilator", "icarus": "iverilog"}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--accumulator", default="h100-fp16", help="a preset or an accumulator's text"
    )
    parser.add_argument("--simulator", choices=PROGRAMS, default="verilator")
    parser.add_argument("--lines", type=int, default=1000, help="number of random lines")
    parser.add_argument(
        "--bug", default="", help="a macro in tests/rtl/mutants.toml: simulate with this bug"
    )
    options = parser.parse_args(arguments)
    for program in ("make", PROGRAMS[options.simulator]):
        if shutil.which(program) is None:
            print(f"skipped: no {program} on this machine")
            return 0
    accumulator = cpd.Accumulator(options.accumulator)
    unit = accumulator
    operation = "mma" if unit is not None and unit.scale is not None else "block_fma"
    vectors = make_vectors(operation, accumulator=accumulator, random=options.lines)
    with tempfile.TemporaryDirectory() as folder:
        write_testbench(vectors, folder, sorted(RTL.glob("*.sv")))
        print(f"{accumulator}: {', '.join(name for name, *_ in vectors.fields)}", flush=True)
        command = ["make", "-s", "-C", folder, options.simulator, f"DEFINES={options.bug}"]
        return int(subprocess.run(command).returncode != 0)


if __name__ == "__main__":
    sys.exit(main())
