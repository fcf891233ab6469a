# SPDX-License-Identifier: Apache-2.0
"""The examples that train a model run, small, and say what is wrong with wrong arguments."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import runpy
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

FOLDER = Path(__file__).parents[2] / "examples"
SMALL_GPT = "--steps 2 --batch 2 --context 8 --width 16 --depth 1".split()


def run(name: str, *arguments: object) -> None:
    """`main` of an example, in this process."""
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys_modules_entry(name, module)
    spec.loader.exec_module(module)
    module.main([str(each) for each in arguments])
