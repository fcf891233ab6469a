# SPDX-License-Identifier: Apache-2.0
"""Runs one all-reduce in (4,3) by five exchanges: over threads, or over MPI's processes.

Prints the messages of each exchange, and hashes of its sums and of the sums over virtual ranks.

Run: python examples/08_all_reduce.py
  or mpirun -n 4 python examples/08_all_reduce.py
"""

import hashlib
import os

import torch

import cpd
from cpd.comm import Communicator, ReduceReport

SIZES = {"hidden": (300, 200), "output": (10, 300), "bias": (10,)}
SPECS = {
    "owner": cpd.Reduce("e4m3", aps=True, order="ring"),
    "gather": cpd.Reduce("e4m3", aps=True, order="ring", exchange="gather"),
    "ring": cpd.Reduce("e4m3", aps=True, order="ring", exchange="ring"),
    "owner, groups of 2": cpd.Reduce("e4m3", aps=True, order="ring", group_size=2),
    "hierarchical, groups of 2": cpd.Reduce(
        "e4m3", aps=True, order="ring", group_size=2, exchange="hierarchical"
    ),
}


def gradients(rank: int) -> list[torch.Tensor]:
    """Returns the tensors that one rank contributes."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(size, generator=generator) * 2.0**-14 for size in SIZES.values()]


def reduce(comm: Communicator) -> list[tuple[list[torch.Tensor], ReduceReport]]:
    """Reduces one rank's tensors by each spec in SPECS; returns the sums and reports."""
    layers = gradients(comm.rank)
    return [comm.all_reduce(layers, spec, report=True) for spec in SPECS.values()]


def fingerprint(layers: list[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(layer.numpy().tobytes() for layer in layers)).hexdigest()[:12]


def main() -> None:
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        comm = cpd.comm.mpi()
        world, results = comm.size, reduce(comm)
        if comm.rank != 0:
            return
    else:
        world = 4
        results = cpd.comm.local(world).run(reduce)[0]
    values = sum(torch.Size(size).numel() for size in SIZES.values())
    print(f"{world} ranks, {len(SIZES)} layers, {values} values, {4 * values} bytes in fp32")
    print("messages of rank 0           steps    bytes sent   sum            virtual ranks' sum")
    per_rank = [gradients(rank) for rank in range(world)]
    for (name, spec), (sums, report) in zip(SPECS.items(), results, strict=True):
        virtual = fingerprint(cpd.simulate_all_reduce(per_rank, spec))
        moved = report.traffic
        print(
            f"{name:27}  {moved.steps:5}  {moved.bytes_sent:12}   {fingerprint(sums)}   {virtual}"
        )


if __name__ == "__main__":
    main()
