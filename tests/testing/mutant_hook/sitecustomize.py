# SPDX-License-Identifier: Apache-2.0
"""Loads one file of the package with a planted fault.

Python runs this file in every process that has its folder in PYTHONPATH: the process of the tests,
the ranks that it spawns, and the commands that it starts. $CPD_PYTHON_MUTANT names a folder
(mutants_python.py). Its file `file` contains the path of the file with the fault, and `text` the
faulty text. The first process that loads the file creates `loaded`. No bytecode is read or written
for the faulty file.
"""

from __future__ import annotations

import builtins
import importlib.machinery
import importlib.util
import io
import os
import sys
from pathlib import Path
from types import CodeType
from typing import Any

FOLDER = Path(__file__).resolve().parent


def plant(mutant: Path) -> None:
    file = os.path.realpath((mutant / "file").read_text())
    if file.endswith(".py"):
        plant_module(mutant, file)
    else:
        plant_data(mutant, file)


def plant_data(mutant: Path, file: str) -> None:
    """Makes `open` return the faulty text when the data file is opened."""
    usual = io.open

    def open_faulty(path: Any, *args: Any, **options: Any) -> Any:
        if isinstance(path, (str, os.PathLike)) and os.path.realpath(path) == file:
            (mutant / "loaded").touch()
            path = mutant / "text"
        return usual(path, *args, **options)

    builtins.open = io.open = open_faulty  # type: ignore[assignment]  # pathlib takes io's


def plant_module(mutant: Path, file: str) -> None:
    """Makes Python compile the faulty text when the module is imported."""
    text = (mutant / "text").read_bytes()
    loader = importlib.machinery.SourceFileLoader
    usual = loader.get_code

    def get_code(self: importlib.machinery.SourceFileLoader, fullname: str) -> CodeType | None:
        path = self.get_filename(fullname)
        if os.path.realpath(path) != file:
            return usual(self, fullname)
        (mutant / "loaded").touch()
        return self.source_to_code(text, path)

    loader.get_code = get_code  # type: ignore[assignment, method-assign]


def run_next() -> None:
    """Runs the next sitecustomize in the path, which this file hides. The CUDA emulation has
    one."""
    rest = [path for path in sys.path if Path(path or ".").resolve() != FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if "CPD_PYTHON_MUTANT" in os.environ:
    plant(Path(os.environ["CPD_PYTHON_MUTANT"]))
run_next()
