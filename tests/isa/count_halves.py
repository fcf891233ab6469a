# SPDX-License-Identifier: Apache-2.0
"""Counts the vector operations of the loop over k of gemm_halves.h: `count_halves.py OBJECT`. They
are to be 8 for a vector of 32 sums. The environment's OBJDUMP reads the object."""

import os
import re
import subprocess
import sys
from collections import Counter

FUNCTION = "half_steps<8>"
KINDS = {"vmulph": 2, "vfmaddph": 2, "vfnmaddph": 1, "vaddph": 1, "vpandd": 1, "vpmaxsw": 1}
"""Operations, and how many of each there are to be for a vector."""
MOVES = re.compile(r"vmov|vpbroadcast")
INSTRUCTION = re.compile(r"^\s*([0-9a-f]+):\t(\S+)\s*([0-9a-f]*)", re.M)


def code_of(path: str) -> list[tuple[int, str, str]]:
    """The function's instructions: address, name, and of a jump the target."""
    command = [os.environ.get("OBJDUMP", "objdump"), "-dC", "--no-show-raw-insn", path]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    parts = [part for part in text.split("\n\n") if FUNCTION in part.partition("\n")[0]]
    return [(int(m[1], 16), m[2], m[3]) for part in parts for m in INSTRUCTION.finditer(part)]


def loops(code: list[tuple[int, str, str]]) -> list[Counter[str]]:
    """The vector operations from each backward jump's target to the jump."""
    made = []
    for at, name, target in code:
        if name.startswith("j") and target and int(target, 16) < at:
            body = [n for place, n, _ in code if int(target, 16) <= place <= at]
            operations = [n for n in body if n.startswith("v") and not MOVES.match(n)]
            made.append(Counter(re.sub(r"\d+ph$", "ph", n) for n in operations))
    return made


def main(path: str) -> int:
    found = [loop for loop in loops(code_of(path)) if loop["vaddph"]]
    if not found:
        print(f"no loop of {FUNCTION} adds halves")
        return 1
    innermost = min(found, key=Counter.total)
    sums = innermost["vaddph"]
    print(f"{innermost.total() / sums} operations a vector of sums: {dict(innermost)}")
    return 0 if innermost == {name: sums * count for name, count in KINDS.items()} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
