# SPDX-License-Identifier: Apache-2.0
"""Runs a program as several processes. Each process finds its rank in the environment.

    spawn.py RANKS PROGRAM [ARGS...]

Sets these variables: CPD_TEST_RANK, CPD_TEST_SIZE, CPD_TEST_FOLDER (a folder through which the
processes exchange files) and NCCL_HOSTID (different for each process, because NCCL then lets
several ranks use one GPU). In GTEST_OUTPUT, the word {rank} is replaced by the rank. Fails if a
process fails or takes longer than four minutes, and then ends all processes.
"""

import os
import subprocess
import sys
import tempfile
import time

PATIENCE = 240  # seconds


def main() -> int:
    ranks, command = int(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder:
        processes = [
            subprocess.Popen(
                command,
                env=os.environ
                | {
                    "CPD_TEST_RANK": str(rank),
                    "CPD_TEST_SIZE": str(ranks),
                    "CPD_TEST_FOLDER": folder,
                    "NCCL_HOSTID": f"cpd-test-{rank}",
                    "GTEST_OUTPUT": os.environ.get("GTEST_OUTPUT", "").replace("{rank}", str(rank)),
                },
            )
            for rank in range(ranks)
        ]
        end = time.monotonic() + PATIENCE
        try:
            return max(p.wait(max(0.0, end - time.monotonic())) != 0 for p in processes)
        except subprocess.TimeoutExpired:
            print(f"not all of {ranks} processes ended within {PATIENCE} s", file=sys.stderr)
            return 1
        finally:
            for process in processes:
                process.kill()
                process.wait()


if __name__ == "__main__":
    sys.exit(main())
