# SPDX-License-Identifier: Apache-2.0
"""Answers requests of `cpd.hardware.probe.Command` for dot products, which `cpd.gemm` computes.

Usage: `probe_server.py ACC [IN OUT]`. The accumulator ACC must support tf32 operands and an addend.
"""

import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt

import cpd


def floats(words: list[list[int]], shift: int) -> npt.NDArray[np.float32]:
    return (np.array(words, np.uint32) << shift).view(np.float32)


def main(acc: str, given: str = "/dev/stdin", out: str = "/dev/stdout") -> None:
    lines = Path(given).read_text().splitlines()
    codes = [[int(word, 16) for word in line.split(" ")] for line in lines]
    k = len(codes[0]) // 2
    a, b = (floats([row[at : at + k] for row in codes], 13) for at in (0, k))
    c = floats([row[2 * k :] for row in codes], 0)
    sums = cpd.gemm(a[:, None, :], b[:, :, None], acc, c[:, :, None])[:, 0, 0]
    answers = "".join(f"0x{word:08x}\n" for word in sums.view(np.uint32).tolist())
    Path(out).write_text(f"# {len(lines)} sums\n{answers}- done\n")


main(*sys.argv[1:])
