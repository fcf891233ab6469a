# SPDX-License-Identifier: Apache-2.0
"""Lines of `cpd vectors`, all batches together."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpd.hardware import Vectors


def columns(made: Vectors) -> dict[str, Any]:
    """Each field's codes of all lines."""
    batches = list(made.batches())
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
