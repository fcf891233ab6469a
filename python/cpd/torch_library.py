# SPDX-License-Identifier: Apache-2.0
"""Loads libcpd_torch, the operators torch.ops.cpd.*."""

from __future__ import annotations

from pathlib import Path

import torch

from cpd import _core


def _load() -> None:
    library = Path(_core.__file__).with_name("libcpd_torch.so")
    if not library.exists():
        raise ImportError(
            "this cpd was built without torch, so it takes NumPy arrays only; build it anew in an "
            "environment that has torch"
        )
    torch.ops.load_library(library)  # type: ignore[no-untyped-call]


_load()
ops = torch.ops.cpd
