# SPDX-License-Identifier: Apache-2.0
"""Checks that each kernel object contains only instructions of its ISA.

    check_objects.py ISA=OBJECT:OBJECT...

An object must contain a feature of its own ISA and no feature of a wider one. With other code,
forcing a backend would not have the promised effect. A feature is the use of a certain class of
vector registers. Three kinds of objects are exceptions:

- The checksum's object must contain the crc32 instruction instead.
- The object of the function table needs no feature, because it holds only pointers.
- The object of bf16 products has code for AVX-512 only. Its objects for other ISAs must contain no
  feature of any ISA.

Weak symbols must belong to the inline namespace of their ISA. The linker keeps only one copy of a
weak symbol for the whole library, and a copy made with AVX-512 would crash an older CPU.

The environment variables OBJDUMP and NM name the tools that read objects of another CPU.
"""

import os
import re
import subprocess
import sys

# Maps each ISA to two sets: features that its kernel objects must contain, and must not contain.
FEATURES = {
    "scalar": (set(), {"ymm", "zmm", "crc32"}),
    "avx2": ({"ymm"}, {"zmm"}),
    "avx512": ({"zmm"}, {"fp16"}),
    "neon": ({"4s"}, set()),
}
CHECKSUM = re.compile(r"/crc32c\.cpp\.o$")
TABLE = re.compile(r"/table\.cpp\.o$")
AVX512_ALONE = re.compile(r"/product_bf16\.cpp\.o$")
WEAK = frozenset("WwVvu")
# GCC emits this weak symbol for unwinding. It is a pointer to GCC's personality routine, not code.
HARMLESS = re.compile(r"^DW\.ref\.")


def output(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def weak_symbols(path: str) -> list[str]:
    """Returns the demangled names of the weak definitions in an object."""
    names = []
    for line in output(
        os.environ.get("NM", "nm"), "--demangle", "--defined-only", path
    ).splitlines():
        _, kind, name = line.split(maxsplit=2)
        if kind in WEAK and not HARMLESS.match(name):
            names.append(name)
    return names


def features(path: str) -> set[str]:
    """Returns the classes of vector registers that an object uses, `crc32` if it uses that
    instruction, and `fp16` if it computes in half precision."""
    objdump = os.environ.get("OBJDUMP", "objdump")
    code = output(objdump, "--disassemble", "--no-show-raw-insn", path)
    found = set(re.findall(r"%([xyz]mm)\d", code)) | set(re.findall(r"\bv\d+\.(4s)\b", code))
    for name, instruction in {
        "crc32": r"\tcrc32\w*\s",
        "fp16": r"\tv(add|mul|fn?madd\d+)ph\s",
    }.items():
        if re.search(instruction, code):
            found.add(name)
    return found


def faults(isa: str, path: str) -> list[str]:
    if isa not in FEATURES:
        return [f"ISA must be one of {sorted(FEATURES)}, got '{isa}'"]
    required, forbidden = FEATURES[isa]
    if required and CHECKSUM.search(path):
        required = {"crc32"}
    if TABLE.search(path) or (AVX512_ALONE.search(path) and isa != "avx512"):
        required, forbidden = set(), FEATURES["scalar"][1]
    own = re.compile(rf"\b{isa}::")
    found = features(path)
    result = [f"holds no {name}" for name in sorted(required - found)]
    result += [f"holds {name}" for name in sorted(forbidden & found)]
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
