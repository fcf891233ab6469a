# SPDX-License-Identifier: Apache-2.0
"""Measures the error of an all-reduce over 256 nodes in (5,2) with APS, for several group sizes.

Compares plain sums with Kahan sums.

Run: python examples/03_roundoff.py
"""

import numpy as np

import cpd

NODES = 256
VALUES = 20_000


def gradients(node: int) -> list[np.ndarray]:
    """Returns one node's gradients as one tensor: values common to all nodes plus its own noise."""
    common = np.random.default_rng(0).normal(size=VALUES)
    noise = np.random.default_rng([1, node]).normal(size=VALUES)
    return [((common + noise) * 1e-4).astype(np.float32)]


def main() -> None:
    # Each rank is a function that makes the rank's tensors, so the tensors of all ranks need not be
    # stored at once.
    per_rank = [lambda node=node: gradients(node) for node in range(NODES)]
    wire = cpd.Format("e5m2")
    plain = cpd.Reduce(wire, order="ring", aps=True)
    kahan = cpd.Reduce(
        wire, accumulator=cpd.Accumulator(wire, scheme="kahan"), order="ring", aps=True
    )
    sizes = [4, 8, 16, 32, 64, 256]
    tables = [cpd.study.roundoff(per_rank, spec, group_sizes=sizes) for spec in (plain, kahan)]
    print(f"(5,2) + APS over {NODES} nodes: mean relative error")
    print("group size     plain     Kahan")
    for size in sizes:
        print(f"{size:10}  {tables[0][size].error:8.1%}  {tables[1][size].error:8.1%}")


if __name__ == "__main__":
    main()
