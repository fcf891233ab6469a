# SPDX-License-Identifier: Apache-2.0
"""Writes a folder with a test bench, its vectors and a Makefile that runs it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cpd._files import write_text
from cpd.hardware.testbench.bench import bench_text
from cpd.hardware.testbench.ports import Ports, header_ports
from cpd.hardware.testbench.units import Unit, formats_of, plain_unit, unit_of
from cpd.hardware.vectors.fields import Field
from cpd.numeric.checked import checked

_MAKEFILE = """\
# SPDX-License-Identifier: Apache-2.0
#
# make icarus | make verilator; RTL: the sources under test, DEFINES: macros for them;
# LINE: the one line of the vectors that is run; SEED: other gaps between lines;
# STOP: the number of failing lines after which the run ends.
RTL ?= {rtl}
DEFINES ?=
export OBJCACHE ?= $(shell command -v ccache)
RUN = $(if $(LINE),+line=$(LINE)) $(if $(SEED),+seed=$(SEED)) $(if $(STOP),+stop=$(STOP))
MACROS = $(addprefix -D,$(DEFINES))

icarus: sources
	iverilog -g2012 -s tb $(MACROS) -o tb.vvp tb.sv $(RTL)
	vvp -n tb.vvp $(RUN)
verilator: sources
	verilator --binary --timing -Wno-fatal -Wno-WIDTH --top-module tb $(MACROS) \\
		--Mdir obj_dir tb.sv $(RTL) >verilator.log 2>&1 || (cat verilator.log; false)
	obj_dir/Vtb $(RUN)
sources:
	@$(if $(strip $(RTL)),:,echo "give the sources under test: RTL='{module}.sv …'" >&2; false)
clean:
	rm -rf tb.vvp obj_dir verilator.log
.PHONY: icarus verilator sources clean
"""


@checked
def write_testbench(
    vectors: Any,
    folder: str | Path,
    rtl: Sequence[str | Path] = (),
    module: str | None = None,
    ports: Ports | None = None,
) -> Path:
    """Writes `tb.sv`, `vectors.hex` and a `Makefile` into a folder.

    `make -C FOLDER icarus` or `make -C FOLDER verilator` then runs the bench. The bench prints the
    lines (test vectors) that differ, then `PASS` or `FAIL` and counts. Its exit status is 0 for
    `PASS`. `make icarus LINE=N` runs only line N.

    Args:
        vectors: the vectors, as from `cpd.hardware.make_vectors`.
        folder: the folder, which is created if it is missing.
        rtl: the Verilog sources of the module under test. They are the default of the Makefile's
            variable `RTL` (`make icarus RTL=…` replaces them). Default (): no sources.
        module: the name of your module, which is instantiated without parameters. Its ports have
            the names of the vectors' fields (inputs, `result`, `flags`), or the names in `ports`.
            Default None: the operation's module in `tests/rtl`, with its parameters.
        ports: the module's other ports, such as the clock, and the names of ports that differ from
            their fields; default None: `Ports()`, a combinational module.

    Returns:
        The folder.

    Raises:
        ValueError: if `tests/rtl` has no module for the vectors, for an invalid module name, and if
            the module's header in `rtl` lacks a port.
        TypeError: for an argument of another type.
        OSError: if files cannot be written.
    """
    if not hasattr(vectors, "head"):
        raise TypeError(
            f"vectors must be what cpd.hardware.make_vectors makes, got {type(vectors).__name__}"
        )
    head, fields = vectors.head, tuple(Field(*field) for field in vectors.fields)
    ports = Ports() if ports is None else ports
    if not isinstance(ports, Ports):
        raise TypeError(f"ports must be a cpd.hardware.Ports, got {type(ports).__name__}")
    unit = unit_of(head, fields) if module is None else plain_unit(fields, module, ports)
    undriven = (
        [] if module is None else _checked_header(unit, ports, [Path(source) for source in rtl])
    )
    folder = Path(folder)
    sources = " ".join(map(_for_make, rtl))
    folder.mkdir(parents=True, exist_ok=True)
    vectors.write(folder / "vectors.hex", "readmemh")
    title = f"{unit.name} against vectors of {head['operation']}."
    formats = formats_of(head, fields)
    text = bench_text(
        unit,
        fields,
        vectors.count,
        title=title,
        formats=formats,
        ports=ports,
        undriven=undriven,
    )
    write_text(folder / "tb.sv", text)
    names = {"rtl": sources, "module": unit.name.replace("$", r"\$$")}
    write_text(folder / "Makefile", _MAKEFILE.format(**names))
    return folder


def _checked_header(unit: Unit, ports: Ports, rtl: Sequence[Path]) -> list[str]:
    """Returns the module's inputs that the bench does not drive; empty if its header is unreadable.

    Raises ValueError if the header lacks a port that the bench uses.
    """
    header = header_ports(rtl, unit.name)
    if header is None:
        return []
    controls = {port: role for role, port in ports.controls.items() if port is not None}
    fields = {ports.port(field.name): field.name for field in (*unit.inputs, *unit.outputs)}
    missing = [port for port in (*fields, *controls) if port not in header]
    if missing:
        raise ValueError(
            f"the module {unit.name} has no port {', '.join(missing)}: its ports are "
            f"{', '.join(header)}{_advice([fields[port] for port in missing if port in fields])}"
        )
    driven = {ports.port(field.name) for field in unit.inputs} | set(controls)
    return [name for name, way in header.items() if way == "input" and name not in driven]


def _advice(missing: Sequence[str]) -> str:
    """Returns a text that tells the user what to do about fields that have no port."""
    hints = [f"give other names with --ports {missing[0]}=PORT"] if missing else []
    if "flags" in missing:
        hints.append("leave out flags with --no-flags")
    if "special" in missing:
        hints.append("special marks the lines whose --signals are not compared, which need it")
    return "".join(f"; {hint}" for hint in hints)


def _for_make(path: str | Path) -> str:
    """Returns the absolute path, quoted for a Makefile variable that make passes to a shell."""
    whole = str(Path(path).resolve())
    if "\n" in whole:
        raise ValueError(f"a source's path must be of one line, got {whole!r}")
    word = re.sub(r"(\\*)#", r"\1\1\\#", shlex.quote(whole))
    return word.replace("$", "$$")
