# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks that launchers promise in the environment with the ranks of MPI."""

from __future__ import annotations

import os

_SRUN = "srun --mpi=pmix starts ranks of one group, where Slurm and MPI share PMIx; else use mpirun"
_MPIRUN = "use the mpirun of the MPI library that cpd was built with"
_TORCHRUN = "torchrun's processes call cpd.comm.distributed()"
_SIZES = {
    "OMPI_COMM_WORLD_SIZE": _MPIRUN,
    "PMI_SIZE": _MPIRUN,
    "SLURM_STEP_NUM_TASKS": _SRUN,
    "SLURM_NTASKS": _SRUN,
    "WORLD_SIZE": _TORCHRUN,
}
"""The variables in which launchers pass the number of processes, each with the advice for the case
that MPI has started fewer."""


def promised() -> dict[str, int]:
    """Returns the variables of `_SIZES` that are set to a number, in that order."""
    settings = ((name, os.environ.get(name, "").strip()) for name in _SIZES)
    return {name: int(text) for name, text in settings if text.isascii() and text.isdigit()}


def broken_promise(size: int) -> str:
    """Returns which variable promises more than the `size` ranks of MPI; "" if none.

    An allocation of Slurm may have more tasks than mpirun is asked for. So Slurm's variables count
    only if MPI has started a single rank, and none counts if mpirun has promised `size`.
    """
    promises = promised()
    if size in (promises.get("OMPI_COMM_WORLD_SIZE"), promises.get("PMI_SIZE")):
        return ""
    for name, number in promises.items():
        if number > size and (size == 1 or not name.startswith("SLURM_")):
            ranks = "1 rank, so that each process is alone" if size == 1 else f"{size} ranks"
            return f"{name} is {number}, but MPI has started {ranks}: {_SIZES[name]}"
    return ""


def no_launcher() -> str:
    """Returns a text if no launcher has asked for a single rank; "" if one has."""
    if promised():
        return ""
    return (
        "MPI has started 1 rank, and no launcher has set "
        f"{', '.join(name for name in _SIZES if name != 'WORLD_SIZE')}"
    )
