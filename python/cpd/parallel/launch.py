# SPDX-License-Identifier: Apache-2.0
"""Checks the environment variables that torchrun sets. This module does not import torch."""

import os

_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check_launched() -> None:
    """Raises ValueError unless the variables that torchrun sets are in the environment."""
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ValueError(
            f"transport torch needs {', '.join(_VARIABLES)} in the environment, as torchrun sets "
            f"them; there is no {', '.join(missing)}"
        )
