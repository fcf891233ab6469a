# SPDX-License-Identifier: Apache-2.0
"""Checks what is inside the kernel objects: `check_objects.py ISA=OBJECT:OBJECT...`.

An object must hold the registers of its own ISA and of no wider one, or forcing a backend would
force nothing. Its weak symbols must belong to its own inline namespace: the linker keeps one copy
of a weak symbol for the whole library, and a copy made with AVX-512 would crash an older CPU.
"""

import re
import subprocess
import sys

# ISA: the register classes that must occur, and those that must not.
REGISTERS = {
    "scalar": (set(), {"ymm", "zmm"}),
    "avx2": ({"ymm"}, {"zmm"}),
    "avx512": ({"zmm"}, set()),
}
WEAK = frozenset("WwVvu")
# The reference to the personality routine that GCC emits beside unwinding code: a pointer, no code.
HARMLESS = re.compile(r"^DW\.ref\.")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def weak_symbols(path: str) -> list[str]:
    """Demangled names of the weak definitions in an object."""
    names = []
    for line in output("nm", "--demangle", "--defined-only", path).splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind in WEAK and not HARMLESS.match(name):
            names.append(name)
    return names


def registers(path: str) -> set[str]:
    code = output("objdump", "--disassemble", "--no-show-raw-insn", path)
    return set(re.findall(r"%([xyz]mm)\d", code))


def faults(isa: str, path: str) -> list[str]:
    if isa not in REGISTERS:
        return [f"ISA must be one of {sorted(REGISTERS)}, got '{isa}'"]
    required, forbidden = REGISTERS[isa]
    own = re.compile(rf"\b{isa}::")
    found = registers(path)
    result = [f"holds no {name} register" for name in sorted(required - found)]
    result += [f"holds a {name} register" for name in sorted(forbidden & found)]
    result += [f"weak symbol outside {isa}: {n}" for n in weak_symbols(path) if not own.search(n)]
    return result


def main(arguments: list[str]) -> int:
    if not arguments:
        print("no object given")
        return 1
    failed = 0
    given = [(isa, paths) for isa, _, paths in (a.partition("=") for a in arguments)]
    for isa, path in ((isa, path) for isa, paths in given for path in paths.split(":")):
        found = faults(isa, path)
        failed += bool(found)
        print(f"{'FAILED' if found else 'ok'}: {isa} {path}")
        for fault in found[:20]:
            print(f"  {fault}")
        if len(found) > 20:
            print(f"  and {len(found) - 20} more")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
