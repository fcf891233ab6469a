# SPDX-License-Identifier: Apache-2.0
"""Tests a multiplier in cocotb with CPD as the model. Lines of `cpd.hardware.make_vectors` go
through a module with valid and ready ports on both sides, with random gaps and back-pressure.
Results and flags must equal the values in the lines.

Needs cocotb, and Icarus or Verilator from 5.036 on; prints a message if one is missing.

Run: python examples/23_cocotb.py
     python examples/23_cocotb.py --bug BUG_LINE_LOST   # or another bug of clocked/mul_elastic.sv
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np

from cpd.hardware import make_vectors

try:
    import cocotb
    from cocotb.clock import Clock
    from cocotb.triggers import ClockCycles, FallingEdge, RisingEdge, with_timeout
    from cocotb_tools.check_results import get_results
    from cocotb_tools.runner import get_runner
except ImportError:
    print("skipped: cocotb is not installed (pip install cocotb)")
    sys.exit(0)

RTL = Path(__file__).resolve().parents[1] / "tests" / "rtl"
NAMES = ("fp_mul.sv", "fp_round.sv", "fp_unpack.sv", "clocked/mul_elastic.sv")
GAPS, STALLS = 0.25, 0.4  # fractions of cycles without an input line, and without ready
SILENCE = 64  # cycles after the last result in which no further result may come


@cocotb.test()
async def products(dut) -> None:
    """Tests the module with all directed inputs (corner cases), and then with 1,000 random
    inputs."""
    batches = list(make_vectors("mul", "e4m3fn", directed=True, random=1000).batches())
    a, b, results, flags = (
        np.concatenate([batch[name] for batch in batches]).tolist()
        for name in ("a", "b", "result", "flags")
    )
    Clock(dut.clk_i, 2, "ns").start()
    dut.rst_ni.value, dut.in_valid_i.value, dut.out_ready_i.value = 0, 0, 0
    await ClockCycles(dut.clk_i, 2)
    dut.rst_ni.value = 1
    words = random.Random(2)
    sender = cocotb.start_soon(send(dut, list(zip(a, b, strict=True))))
    for i, expected in enumerate(zip(results, flags, strict=True)):
        result = await with_timeout(receive(dut, words), 10, "us")
        assert result == expected, (
            f"line {i}: {a[i]:02X} * {b[i]:02X}: {result}, expected {expected}"
        )
    await sender
    for _ in range(SILENCE):
        await RisingEdge(dut.clk_i)
        assert dut.out_valid_o.value == 0, "a result without a line"
    dut._log.info("%d products as the lines have them", len(results))


async def send(dut, operands) -> None:
    """Sends each pair of operands: holds valid until the module takes the pair. Inputs change at
    falling clock edges."""
    words = random.Random(1)
    for a, b in operands:
        await FallingEdge(dut.clk_i)
        while words.random() < GAPS:
            dut.in_valid_i.value = 0
            await FallingEdge(dut.clk_i)
        dut.op_a_i.value, dut.op_b_i.value, dut.in_valid_i.value = a, b, 1
        await RisingEdge(dut.clk_i)
        while dut.in_ready_o.value != 1:
            await RisingEdge(dut.clk_i)
    await FallingEdge(dut.clk_i)
    dut.in_valid_i.value = 0


async def receive(dut, words: random.Random) -> tuple[int, int]:
    """Returns the result at the next clock edge at which valid and ready are both set.

    While valid is set and ready is not, the module must not change the result.
    """
    previous = None
    while True:
        await FallingEdge(dut.clk_i)
        ready = words.random() >= STALLS
        dut.out_ready_i.value = int(ready)
        await RisingEdge(dut.clk_i)
        if dut.out_valid_o.value == 1:
            output = int(dut.res_o.value), int(dut.status_o.value)
            assert previous in (None, output), "a result changes before it is taken"
            if ready:
                return output
            previous = output


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    installed = [name for name in ("icarus", "verilator") if shutil.which(_PROGRAMS[name])]
    parser.add_argument("--simulator", choices=_PROGRAMS, default=next(iter(installed), None))
    parser.add_argument(
        "--bug", help="a macro in tests/rtl/clocked/mul_elastic.sv: simulate with this bug"
    )
    options = parser.parse_args(arguments)
    simulator = options.simulator
    if simulator not in installed:
        print(f"skipped: no {simulator or 'Icarus or Verilator'} on this machine")
        return 0
    runner = get_runner(simulator)
    with tempfile.TemporaryDirectory() as folder:
        runner.build(
            sources=[RTL / name for name in NAMES],
            hdl_toplevel="mul_elastic",
            defines={options.bug: 1} if options.bug else {},
            build_dir=folder,
            build_args=["-g2012"] if simulator == "icarus" else ["-Wno-fatal"],
            timescale=("1ns", "1ps"),
        )
        try:
            results = runner.test(
                hdl_toplevel="mul_elastic",
                test_module=Path(__file__).stem,
                test_dir=Path(__file__).parent,
                results_xml=str(Path(folder, "results.xml")),
                build_dir=folder,
            )
            failed = get_results(results)[1] > 0
        except SystemExit:  # cocotb 2.1 ends the process if a test fails
            failed = True
    print("FAIL" if failed else f"PASS: mul_elastic in {simulator} gives the lines' results")
    return int(failed)


_PROGRAMS = {"icarus": "iverilog", "verilator": "verilator"}

if __name__ == "__main__":
    sys.exit(main())
