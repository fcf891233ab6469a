# SPDX-License-Identifier: Apache-2.0
"""Starts two processes of a command as a user does, with the options that mpirun needs here."""

import sys

# Unlike the options in spawn.py, these do not turn on mpirun's recovery from lost ranks, with which
# mpirun's exit status would always be 0.
MPI_SETTINGS = {
    "TERM": "dumb",  # mpirun gives its ranks a terminal
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
}
LAUNCHERS = {
    "mpi": ["mpirun", "-n", "2", sys.executable],
    "torch": [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"],
}
