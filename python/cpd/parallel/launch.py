# SPDX-License-Identifier: Apache-2.0
"""The variables that torch's launcher sets for its processes. Imports no torch."""

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_launched() -> None:
    """Raises ValueError where torchrun did not start this process."""
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ValueError(
            f"transport torch needs {', '.join(_VARIABLES)} in the environment, as torchrun sets "
            f"them; there is no {', '.join(missing)}"
        )
