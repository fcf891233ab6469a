# SPDX-License-Identifier: Apache-2.0
"""Machine code of the GPU's kernels: how many instructions a thread issues for one element.

`cuobjdump` (PyPI: nvidia-cuda-cuobjdump, with nvidia-cuda-nvdisasm beside it) disassembles what
nvcc has made. Loops are found by their branches backward; what one turn of a loop takes is the
shortest way through it, or the shortest that goes through certain runs without a branch.
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
        """True if what follows may be reached from it: a branch with a predicate of its own, or of
        its operands, or one that only the threads of a warp that has diverged take."""
        conditions = r"BRA(\.\w+)* !?U?P\d|BRA\.DIV"
        return self.text.startswith("@") or bool(re.match(conditions, self.text))

    @property
    def target(self) -> int | None:
        found = _ADDRESS.search(self.text)
        return int(found.group(1), 16) if found and self.name in {"BRA", "BSSY"} else None


Cost = Callable[[Instruction], int]


class Loop(NamedTuple):
    """Instructions from a branch's target to the branch."""

    code: list[Instruction]

    def has(self, operation: str, count: int = 1) -> bool:
        """Returns whether `count` instructions begin with this."""
        return sum(i.operation.startswith(operation) for i in self.code) >= count

    def turn(
        self,
        *,
        by_longest: bool = False,
        cost: Cost = lambda _: 1,
        longest_in: str = "",
        through: str = "",
    ) -> int:
        """Instructions of one turn, or what they `cost`: of the shortest way from its head to the
        branch back; where `by_longest`, of the shortest through the run without a branch that has
        most instructions which begin with `longest_in`; with `through`, of the shortest through
        all runs that have one which begins with it."""
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
    """The most reads of global memory by this operation without a branch or a store between them:
    those that a thread, which issues in order, asks for before it waits for one."""
    run = most = 0
    for instruction in code:
        if instruction.operation == operation:
            run += 1
            most = max(most, run)
        elif instruction.name in _ENDS or instruction.name in _STORES:
            run = 0
    return most


def slots(instruction: Instruction) -> int:
    """Returns what an instruction takes of the lanes that a multiprocessor of sm_90 issues to in a
    clock (128 of binary32 arithmetic, 16 of conversions, 64 of others, of which some are
    faster)."""
    if instruction.name in {"FADD", "FMUL", "FFMA"}:
        return 1
    return 8 if instruction.name in {"F2I", "I2F", "F2F", "MUFU"} else 2


def _blocks(code: list[Instruction]) -> list[list[Instruction]]:
    """Runs without a branch."""
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
    """The costs of the shortest way that begins with block `first` and ends with `last`."""
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
    """Returns the loops in the order of the addresses of their first instructions."""
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
    """The code of each kernel whose name in C++, without its namespaces, holds one of `wanted`."""
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
