# SPDX-License-Identifier: Apache-2.0
"""Results in files, or on standard output."""

import json
import math
import sys
from pathlib import Path
from typing import Any

STDOUT = Path("-")
"""What stands for standard output in the place of a file."""


def write_json(path: Path, data: Any, indent: int | None = 2) -> None:
    """Writes strict JSON: NaN and Inf become null."""
    write_text(
        path, json.dumps(_finite(data), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    )


def write_text(path: Path, text: str) -> None:
    """Writes a file, or to standard output."""
    if path == STDOUT:
        sys.stdout.write(text)
    else:
        path.write_text(text, encoding="utf-8")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
