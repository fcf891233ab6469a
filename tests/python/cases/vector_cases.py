# SPDX-License-Identifier: Apache-2.0
"""Collects the lines of golden vectors (`cpd vectors`) from all batches."""

from __future__ import annotations

from typing import Any

import numpy as np

from cpd.hardware import Vectors


def columns(made: Vectors) -> dict[str, Any]:
    """Returns the codes of all test vectors, with an array for each field (a, b, result, …)."""
    batches = list(made.batches())
    return {name: np.concatenate([b[name] for b in batches]) for name in batches[0]}
