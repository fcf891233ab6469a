# SPDX-License-Identifier: Apache-2.0
"""Prints torch's version, its include folders (joined by |) and its library folder, one a line."""

import pathlib

import torch
from torch.utils.cpp_extension import include_paths, library_paths

folders = [pathlib.Path(p) for p in library_paths()]
libraries = [p for p in folders if (p / "libtorch_cpu.so").exists()]
if not libraries:
    raise SystemExit(f"no libtorch_cpu.so under {folders}")
print(torch.__version__.partition("+")[0])
print("|".join(include_paths()))
print(libraries[0])
