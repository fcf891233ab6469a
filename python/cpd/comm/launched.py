# SPDX-License-Identifier: Apache-2.0
"""Compares the ranks that a launcher's environment variables promise with MPI's ranks."""

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
"""The environment variables in which launchers pass the number of processes. Each has the advice
that is given if MPI has started fewer processes."""


def promised() -> dict[str, int]:
    """Returns the launchers' variables (`_SIZES`) that are set to a number, with the numbers."""
    settings = ((name, os.environ.get(name, "").strip()) for name in _SIZES)
    return {name: int(text) for name, text in settings if text.isascii() and text.isdigit()}


def broken_promise(size: int) -> str:
    """Returns a warning if a launcher's variable exceeds the `size` ranks of MPI; "" otherwise.

    A Slurm allocation may have more tasks than the user starts with mpirun. So Slurm's variables
    are used only if MPI has started a single rank. If mpirun's variable (`OMPI_COMM_WORLD_SIZE` or
    `PMI_SIZE`) equals `size`, there is no warning.
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
    """Returns a text which says that MPI has one rank and that no launcher variable is set.

    Returns "" if a launcher variable is set.
    """
    if promised():
        return ""
    return (
        "MPI has started 1 rank, and no launcher has set "
        f"{', '.join(name for name in _SIZES if name != 'WORLD_SIZE')}"
    )
