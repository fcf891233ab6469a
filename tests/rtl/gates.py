#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts the gates of the modules with yosys, and writes them to `gates.json`.

    python tests/rtl/gates.py [PREFIX…]

A row of `gates.json` is a module with certain parameters. Counts all rows or, if a PREFIX is given,
the rows whose name begins with a PREFIX. Counts gates with two inputs; inverters do not count. The
rounding mode is fixed: nearest even, stochastic for `fp_cast_sr`, and toward zero for `block_fma`.
Signals inside a unit are not outputs.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
FORMATS = [(2, 1), (3, 2), (2, 3), (4, 3), (5, 2), (5, 10), (8, 7)]
ELEMENTWISE = {"fp_mul": "ab", "fp_add": "ab", "fp_fma": "abc"}
NEAREST, TOWARD_ZERO, STOCHASTIC = 0, 1, 6


def rows() -> list[tuple[str, str, dict[str, int], int]]:
    """Returns the rows of gates.json: name, module, parameters, rounding mode."""
    made = []
    for exp, man in FORMATS:
        parameters = {"EXP": exp, "MAN": man}
        made += [(f"{m} e{exp}m{man}", m, parameters, NEAREST) for m in ELEMENTWISE]
    for bits in (4, 8, 16):
        to = {"EXP": 8, "MAN": 23, "OUT_EXP": 4, "OUT_MAN": 3, "OUT_ENCODING": 1, "RANDOM": bits}
        made.append((f"fp_cast_sr e8m23 e4m3 {bits}", "fp_cast_sr", to, STOCHASTIC))
    for exp, man, encoding, fraction in (
        (4, 3, 1, 13), (5, 2, 0, 13), (4, 3, 1, 25), (5, 10, 0, 23), (5, 10, 0, 24),
    ):  # fmt: skip
        unit = {"PRODUCTS": 16, "EXP": exp, "MAN": man, "ENCODING": encoding, "F": fraction}
        if fraction == 13:
            unit["SUM_MAN"] = 13
        made.append((f"block_fma e{exp}m{man} F{fraction}", "block_fma", unit, TOWARD_ZERO))
    for bits, width in ((4, 16), (8, 24), (8, 32), (16, 40)):
        for saturate in (0, 1):
            mac = {"BITS": bits, "WIDTH": width, "SATURATE": saturate}
            name = f"int_mac int{bits} int{width}" + " saturate" * saturate
            made.append((name, "int_mac", mac, NEAREST))
    return made


def integer_wrapper(parameters: dict[str, int]) -> str:
    bits, width = parameters["BITS"], parameters["WIDTH"]
    ports = [f"input logic [{bits - 1}:0] a, b", f"input logic [{width - 1}:0] c"]
    ports += [f"output logic [{width - 1}:0] result", "output logic [4:0] flags"]
    given = ", ".join(f".{name}({value})" for name, value in parameters.items())
    unit = f"int_mac #({given}) unit(.term(), .sum(), .*);"
    return f"module top({', '.join(ports)});\n  {unit}\nendmodule\n"


def wrapper(module: str, parameters: dict[str, int], rounding: int) -> str:
    """Returns a module `top` whose only ports are the input values, the result and the flags."""
    if module == "int_mac":
        return integer_wrapper(parameters)
    wide = parameters["EXP"] + parameters["MAN"] + 1
    out = (
        parameters.get("OUT_EXP", parameters["EXP"])
        + parameters.get("OUT_MAN", parameters["MAN"])
        + 1
    )
    inputs = dict.fromkeys(ELEMENTWISE.get(module, "a"), wide)
    fixed = {"rounding": f"3'd{rounding}", "saturate": "1'b0"}
    if module == "fp_cast_sr":
        inputs["r"] = parameters["RANDOM"]
    elif module == "fp_mul":
        fixed["r"] = "1'b0"
    elif module == "block_fma":
        products = parameters["PRODUCTS"]
        inputs, out = {"a": products * wide, "b": products * wide, "c": 32}, 32
        del fixed["saturate"]
    ports = [f"input logic [{bits - 1}:0] {name}" for name, bits in inputs.items()]
    ports += [f"output logic [{out - 1}:0] result", "output logic [4:0] flags"]
    names = [f".{name}({name})" for name in (*inputs, "result", "flags")]
    names += [f".{name}({value})" for name, value in fixed.items()]
    given = ", ".join(f".{name}({value})" for name, value in parameters.items())
    unit = f"{module} #({given}) unit({', '.join(names)});"
    return f"module top({', '.join(ports)});\n  {unit}\nendmodule\n"


def count(module: str, parameters: dict[str, int], rounding: int) -> int:
    """Returns the number of gates, without inverters."""
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder, "top.sv")
        top.write_text(wrapper(module, parameters, rounding))
        sources = " ".join(map(str, [*sorted(FOLDER.glob("*.sv")), top]))
        script = (
            f"read_verilog -sv {sources}; hierarchy -check -top top; synth -flatten -top top; "
            "abc -g AND,NAND,OR,NOR,XOR,XNOR; opt_clean; stat"
        )
        done = subprocess.run(["yosys", "-p", script], capture_output=True, text=True, check=True)
    last = done.stdout.rsplit("Number of cells", 1)[1]
    cells = re.findall(r"\$_(\w+)_ +(\d+)", last)
    return sum(int(n) for kind, n in cells if kind != "NOT")


def main(prefixes: list[str]) -> None:
    version = subprocess.run(["yosys", "-V"], capture_output=True, text=True, check=True).stdout
    path = FOLDER / "gates.json"
    known = {row["name"]: row for row in json.loads(path.read_text())["rows"]} if prefixes else {}
    for name, module, parameters, rounding in rows():
        if not prefixes or name.startswith(tuple(prefixes)):
            gates = count(module, parameters, rounding)
            known[name] = {"name": name, "module": module, "parameters": parameters, "gates": gates}
            print(f"{gates:7}  {name}", flush=True)
    made = [known[name] for name, *_ in rows() if name in known]
    text = {"tool": " ".join(version.split()[:2]), "rows": made}
    path.write_text(json.dumps(text, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
