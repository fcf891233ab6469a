# SPDX-License-Identifier: Apache-2.0
"""Finds from results alone how sums are added: by NumPy's dot product, by NumPy's sum, by a matrix
unit whose rule is hidden, and by a command, which stands for a circuit's simulation.

Each answer is a tree of additions with their rounding. For the matrix unit the answer is the text
of an accumulator, which `cpd.gemm` accepts. The command is this file with --answer: it reads one
dot product a line, as hexadecimal codes, and writes the code of its sum.

Run: python examples/25_probe.py
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

HIDDEN = "h100-fp16"


def dots(a: Any, b: Any) -> Any:
    """Returns NumPy's dot products, which a BLAS computes."""
    return np.array([np.dot(x, y) for x, y in zip(a, b, strict=True)])


def sums(a: Any, b: Any) -> Any:
    return (a * b).sum(axis=1)


def answer() -> None:
    """Adds the products of float16 numbers to one float32 number, one after another."""
    for line in sys.stdin:
        *codes, c = line.split()
        x = np.array([int(code, 16) for code in codes], np.uint16).view(np.float16)
        total = np.array([int(c, 16)], np.uint32).view(np.float32)
        for product in np.multiply(*np.split(x.astype(np.float32), 2)):
            with np.errstate(all="ignore"):
                total = total + product
        print(f"{int(total.view(np.uint32)[0]):08X}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--answer", action="store_true", help="act as the probed command")
    parser.add_argument("--k", type=int, default=32, help="products in a dot product; default 32")
    options = parser.parse_args(arguments)
    if options.answer:
        answer()
        return

    import cpd

    def unit(a: Any, b: Any, c: Any) -> Any:
        return cpd.gemm(a[:, None, :], b[:, :, None], HIDDEN, c[:, None, None])[:, 0, 0]

    for name, function in (("numpy.dot", dots), ("numpy.sum", sums)):
        print(f"--- {name}: {cpd.hardware.probe(function, 'fp16', c=None, k=options.k)}\n")
    result = cpd.hardware.probe(unit, "fp16", k=options.k)
    print(f"--- a unit: {result}\n")
    assert result.accumulator == cpd.Accumulator(HIDDEN)
    command = cpd.hardware.Command([sys.executable, __file__, "--answer"], "fp16")
    print(f"--- a command: {cpd.hardware.probe(command, 'fp16', k=8)}")


if __name__ == "__main__":
    main()
