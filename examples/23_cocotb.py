# SPDX-License-Identifier: Apache-2.0
"""cocotb with CPD as the model: a SystemVerilog multiplier is driven with codes, and `cpd.mul` says
what it must answer, flags included.

Run: python examples/23_cocotb.py   (needs cocotb and Icarus or Verilator; else it says so)
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

import cpd

try:
    import cocotb
    from cocotb.triggers import Timer
    from cocotb_tools.runner import get_runner
except ImportError:
    print("skipped: cocotb is not installed (pip install cocotb)")
    sys.exit(0)

RTL = Path(__file__).resolve().parents[1] / "tests" / "rtl"
SOURCES = [RTL / name for name in ("fp_mul.sv", "fp_round.sv", "fp_unpack.sv")]
FORMAT = cpd.format("e4m3fn")


@cocotb.test()
async def products(dut) -> None:
    """2,000 random products, rounded to nearest even."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(256, size=(2, 2000), dtype=np.uint8)
    values, flags = cpd.mul(
        cpd.decode(a, FORMAT, a.shape), cpd.decode(b, FORMAT, b.shape), FORMAT, flags=True
    )
    codes = cpd.encode(values, FORMAT)
    dut.rounding.value, dut.saturate.value, dut.r.value = 0, 0, 0
    for x, y, code, raised in zip(a, b, codes, flags, strict=True):
        dut.a.value, dut.b.value = int(x), int(y)
        await Timer(1, "ns")
        got = int(dut.result.value), int(dut.flags.value)
        assert got == (code, raised), f"{x:02X} * {y:02X}: got {got}, expected {code, raised}"
    dut._log.info("%d products as cpd.mul has them", len(a))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    found = [name for name in ("icarus", "verilator") if shutil.which(_PROGRAMS[name])]
    parser.add_argument("--simulator", choices=_PROGRAMS, default=next(iter(found), None))
    simulator = parser.parse_args(arguments).simulator
    if simulator not in found:
        print(f"skipped: no {simulator or 'Icarus or Verilator'} on this machine")
        return 0
    runner = get_runner(simulator)
    with tempfile.TemporaryDirectory() as folder:
        runner.build(
            sources=SOURCES,
            hdl_toplevel="fp_mul",
            parameters={"EXP": FORMAT.exp, "MAN": FORMAT.man, "ENCODING": 1},
            build_dir=folder,
            build_args=["-g2012"] if simulator == "icarus" else ["-Wno-fatal"],
            timescale=("1ns", "1ps"),
        )
        results = runner.test(
            hdl_toplevel="fp_mul",
            test_module=Path(__file__).stem,
            test_dir=Path(__file__).parent,
            results_xml=str(Path(folder, "results.xml")),
            build_dir=folder,
        )
        failed = "<failure" in Path(results).read_text() or "<error" in Path(results).read_text()
    print("FAIL" if failed else f"PASS: fp_mul in {simulator} equals cpd.mul")
    return int(failed)


_PROGRAMS = {"icarus": "iverilog", "verilator": "verilator"}

if __name__ == "__main__":
    sys.exit(main())
