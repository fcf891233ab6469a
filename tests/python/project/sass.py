# SPDX-License-Identifier: Apache-2.0
"""Counts the machine instructions that a GPU thread issues for one element of a kernel.

`cuobjdump` (PyPI: nvidia-cuda-cuobjdump, with nvidia-cuda-nvdisasm) disassembles the code that nvcc
compiled. A branch backward marks a loop. The cost of one iteration is the shortest path through the
loop, or the shortest path that includes certain blocks.
"""

from __future__ import annotations

import heapq
import itertools
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_INSTRUCTION = re.compile(r"^\s+/\*([0-9a-f]{4,})\*/\s+(.*?);\s", re.MULTILINE)
_PREDICATE = re.compile(r"^@!?U?P\w+\s+")
_ADDRESS = re.compile(r"(0x[0-9a-f]+)$")
_AWAY = {"BRA", "EXIT", "RET", "CALL"}  # a call is for what is rare
_ENDS = {"BRA", "EXIT", "RET", "BREAK", "BSYNC", "CALL", "BRX", "JMP"}

_STORES = {"ST", "STG", "STL", "STS"}


class Instruction(NamedTuple):
    address: int
    text: str

    @property
    def operation(self) -> str:
        """The operation with its modifiers, such as LDG.E.128."""
        return _PREDICATE.sub("", self.text).split()[0]

    @property
    def name(self) -> str:
        return self.operation.split(".")[0]

    @property
    def is_conditional(self) -> bool:
        """True if execution may continue after this branch.

        Such a branch has a predicate, by prefix or operand, or only the threads of a diverged warp
        take it.
        """
        conditions = r"BRA(\.\w+)* !?U?P\d|BRA\.DIV"
        return self.text.startswith("@") or bool(re.match(conditions, self.text))

    @property
    def target(self) -> int | None:
        found = _ADDRESS.search(self.text)
        return int(found.group(1), 16) if found and self.name in {"BRA", "BSSY"} else None


Cost = Callable[[Instruction], int]


class Loop(NamedTuple):
    """A loop: the instructions from the target of a backward branch to that branch."""

    code: list[Instruction]

    def has(self, operation: str, count: int = 1) -> bool:
        """Returns True if at least `count` instructions begin with `operation`."""
        return sum(i.operation.startswith(operation) for i in self.code) >= count

    def turn(
        self,
        *,
        by_longest: bool = False,
        cost: Cost = lambda _: 1,
        longest_in: str = "",
        through: str = "",
    ) -> int:
        """Returns the number of instructions of one iteration, or the sum of their `cost`.

        Counts the instructions on the shortest path from the loop's head to the branch back. A
        basic block is a range without a branch. With `by_longest`, the path must include the block
        with the most instructions whose name begins with `longest_in`. With `through`, it must
        include all blocks with an instruction whose name begins with `through`.
        """
        blocks = _blocks(self.code)
        costs = [sum(map(cost, block)) for block in blocks]
        last = len(blocks) - 1
        stops = []
        if through:
            stops = [i for i, block in enumerate(blocks) if Loop(block).has(through)]
        elif by_longest:
            counts = [sum(i.operation.startswith(longest_in) for i in block) for block in blocks]
            stops = [counts.index(max(counts))]
        ways = itertools.pairwise([0, *stops, last])
        return sum(_shortest(blocks, costs, *way) for way in ways) - sum(costs[i] for i in stops)


def reads_together(code: list[Instruction], operation: str) -> int:
    """Returns the greatest number of read instructions `operation` without a branch or store
    between them. A thread issues in order, so it requests all these reads before it waits for the
    first one.
    """
    run = most = 0
    for instruction in code:
        if instruction.operation == operation:
            run += 1
            most = max(most, run)
        elif instruction.name in _ENDS or instruction.name in _STORES:
            run = 0
    return most


def slots(instruction: Instruction) -> int:
    """Returns the cost of an instruction, in 128ths of the clock of a multiprocessor of sm_90.

    In one clock, a multiprocessor issues binary32 arithmetic to 128 lanes (cost 1), conversions to
    16 lanes (cost 8), and other instructions to 64 lanes (cost 2). In fact, a few of the other
    instructions are faster.
    """
    if instruction.name in {"FADD", "FMUL", "FFMA"}:
        return 1
    return 8 if instruction.name in {"F2I", "I2F", "F2F", "MUFU"} else 2


def _blocks(code: list[Instruction]) -> list[list[Instruction]]:
    """Splits code into basic blocks: a block ends after a branch and before a branch's target."""
    targets = {i.target for i in code}
    blocks: list[list[Instruction]] = [[]]
    for instruction in code:
        if instruction.address in targets and blocks[-1]:
            blocks.append([])
        blocks[-1].append(instruction)
        if instruction.name in _ENDS:
            blocks.append([])
    return [block for block in blocks if block]


def _shortest(blocks: list[list[Instruction]], costs: list[int], first: int, last: int) -> int:
    """Returns the cost of the cheapest path from block `first` to block `last`, both included."""
    at = {block[0].address: i for i, block in enumerate(blocks)}
    reached = {first: costs[first]}
    waiting = [(costs[first], first)]
    while waiting:
        length, here = heapq.heappop(waiting)
        if here == last:
            return length
        end = blocks[here][-1]
        following = [here + 1] if end.name not in _AWAY or end.is_conditional else []
        if end.name == "BRA" and end.target in at:
            following.append(at[end.target])
        for block in following:
            total = length + costs[block] if block < len(blocks) else 0
            if total and total < reached.get(block, total + 1):
                reached[block] = total
                heapq.heappush(waiting, (total, block))
    raise AssertionError("no way through the loop")


def loops(code: list[Instruction]) -> list[Loop]:
    """Returns the loops, sorted by the addresses of their first instructions."""
    at = {instruction.address: i for i, instruction in enumerate(code)}
    found = [
        Loop(code[at[i.target] : n + 1])
        for n, i in enumerate(code)
        if i.name == "BRA" and i.target is not None and i.target < i.address
    ]
    return sorted(found, key=lambda loop: loop.code[0].address)


def kernels(
    library: Path, cuobjdump: Path, architecture: str, wanted: list[str]
) -> dict[str, list[Instruction]]:
    """Returns the code of the kernels whose name contains a text of `wanted`, by short name.

    A short name is the C++ name without namespaces.
    """
    environment = {**os.environ, "PATH": f"{cuobjdump.parent}:{os.environ['PATH']}"}

    def listed(*options: str) -> str:
        command = [str(cuobjdump), "-arch", architecture, *options, str(library)]
        return _output(command, env=environment)

    symbols = re.findall(r"Function (_Z\w+):", listed("-res-usage"))
    plain = _output(["c++filt"], input="\n".join(symbols)).splitlines()
    short = [re.sub(r"(cpd|host|cuda|\(anonymous namespace\))::", "", name) for name in plain]
    names = {
        symbol: name
        for symbol, name in zip(symbols, short, strict=True)
        if any(text in name for text in wanted)
    }
    if not names:
        return {}
    parts = listed("-sass", "-fun", ",".join(names)).split("Function : ")[1:]
    functions = dict(part.split("\n", 1) for part in parts)
    return {
        names[symbol]: [
            Instruction(int(found[1], 16), found[2].strip())
            for found in _INSTRUCTION.finditer(code)
        ]
        for symbol, code in functions.items()
    }


def _output(command: list[str], **options: Any) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, **options)
    return done.stdout
