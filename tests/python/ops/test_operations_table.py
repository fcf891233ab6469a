# SPDX-License-Identifier: Apache-2.0
"""Tests the two tables of kernels/cuda/README.md.

The first table says which operations take a GPU's tensors, as the program of
tests/backend/test_operations.cpp measures. The second lists the torch operators that CPD registers.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
from pathlib import Path

import pytest

from front_ends import REFUSED

_ROOT = Path(__file__).resolve().parents[3]
_BUILD = _ROOT / "build/release"
_README = _ROOT / "kernels/cuda/README.md"
_HEADS = ("| operation", "| torch's operators")


def _table(head: str) -> list[str]:
    """Its rows."""
    lines = _README.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith(head)) + 2
    rows = []
    for line in lines[first:]:
        if not line.startswith("|"):
            break
        rows.append(line)
    return rows


def test_operations() -> None:
    program = _BUILD / "tests/test_backend_operations"
    shim = _BUILD / "cuda_on_cpu"
    if not program.exists() or not (shim / "libcpd_cuda.so").exists():
        pytest.skip("the C++ tests were not built (cmake --build build/release --target cpd_tests)")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(shim),
        "CPD_CUDA_ON_CPU": "1",
        "CPD_REQUIRE_GPU": "1",
        "CPD_TEST_BACKENDS": "cuda",
    }
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=True)
    assert _table(_HEADS[0]) == [line for line in done.stdout.splitlines() if line[:2] == "| "]


def test_what_is_refused_is_known_to_the_tests_on_a_gpu() -> None:
    texts = [row.split(" | ")[1] for row in _table(_HEADS[0]) if row.split(" | ")[1] != "yes"]
    assert len(texts) > 3
    assert [text for text in texts if not REFUSED.search(text)] == []


def test_docstrings_refuse_no_more_than_the_table() -> None:
    """No docstring says 'CPU only' for an operation that takes GPU tensors by README's table."""
    import cpd

    rows = [row for row in _table(_HEADS[0]) if row.split(" | ")[1] == "yes"]
    taken = {name for row in rows for name in re.findall(r"`(\w+)`", row.split(" | ")[0])}
    named = [getattr(cpd, name) for name in sorted(taken) if hasattr(cpd, name)]
    assert len(named) > 10
    for thing in (*named, cpd.Accumulator):
        assert "CPU only" not in " ".join((thing.__doc__ or "").split()), thing


def test_torchs_operators() -> None:
    """The page's table lists each torch operator of CPD in the row that names its kernels.

    A row names which parts are registered: a kernel for CPU tensors, a kernel for CUDA tensors, and
    a shape function.
    """
    torch = pytest.importorskip("torch")
    import cpd._torch

    for module in pkgutil.iter_modules(cpd._torch.__path__):
        importlib.import_module(f"cpd._torch.{module.name}")

    rows: dict[str, list[str]] = {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        if not name.startswith("cpd::"):
            continue
        has = [torch._C._dispatch_has_kernel_for_dispatch_key(name, key) for key in ("CPU", "CUDA")]
        fake = torch._library.simple_registry.singleton.find(name).fake_impl.kernel is not None
        words = ["yes" if x else "no" for x in (*has, fake)]
        rows.setdefault(" | ".join(words), []).append(f"`{name.removeprefix('cpd::')}`")
    expected = [f"| {', '.join(names)} | {words} |" for words, names in rows.items()]
    assert sorted(_table(_HEADS[1])) == sorted(expected)
