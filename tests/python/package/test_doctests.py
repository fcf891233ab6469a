# SPDX-License-Identifier: Apache-2.0
"""Tests that the examples in docstrings and READMEs of `cpd` run and print the shown output."""

from __future__ import annotations

import doctest
import importlib
import inspect
import re
from pathlib import Path

import numpy as np
import pytest

import cpd

PACKAGE = Path(cpd.__file__).parent
MODULES = sorted(
    ".".join(("cpd", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if re.search(r"(?m)^ *>>> ", path.read_text())
)
"""The modules of `cpd` whose docstrings have examples."""
TORCH = ("cpd.compat.", "cpd.nn.", "cpd.optim", "cpd.parallel.", "cpd.track.")
"""Prefixes of the modules whose examples need torch. The modules in PLAIN have such a prefix, but
run without torch."""
PLAIN = ("cpd.nn.recipe", "cpd.nn.recipe_files", "cpd.nn.recipe_schema")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name.startswith(TORCH) and name not in PLAIN:
        pytest.importorskip("torch")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


# Maps a public name without an example to the name whose example shows it. Some of these need ranks
# that a launcher has started (tests/python/ranks/spawn.py).
SHOWN_BY = {
    "TensorReport": "Communicator",
    "ReduceReport": "Communicator",
    "Traffic": "Communicator",
    "Choice": "recommend",
    "Explanation": "explain",
    "Recommendation": "recommend",
    "Cost": "cost",
    "Roundoff": "roundoff",
    "Sweep": "sweep",
    "SweepRow": "sweep",
    **dict.fromkeys(("Products", "Report", "ReportRow"), "convert"),
    **dict.fromkeys(("Watch", "WatchRow"), "observe"),
}
NEED_A_LAUNCHER = {
    *("distributed", "mpi", "nccl"),
    *("ddp_hook", "HookState", "ReduceScatter", "fsdp_hook"),
}


def public():
    """Returns the names and the objects of all functions and classes that users import."""
    pytest.importorskip("torch")
    from cpd.parallel import ddp, fsdp

    found = {"ddp_hook": ddp.ddp_hook, "HookState": ddp.HookState}
    found |= {name: getattr(fsdp, name) for name in ("ReduceScatter", "fsdp_hook")}
    found |= {name: getattr(cpd, name) for name in ("convert", "observe", "quantizer")}
    for name in (
        "cpd",
        "cpd.comm",
        "cpd.functional",
        "cpd.nn",
        "cpd.optim",
        "cpd.study",
    ):
        module = importlib.import_module(name)
        names = getattr(module, "__all__", None) or [n for n in dir(module) if n[0] != "_"]
        found |= {n: getattr(module, n) for n in names}
    objects = {n: o for n, o in found.items() if inspect.isclass(o) or inspect.isfunction(o)}
    return {n: o for n, o in objects.items() if o.__module__.startswith("cpd.")}


def test_every_public_name_has_a_text_and_an_example():
    names = public()
    assert len(names) > 50
    assert [n for n, o in names.items() if not (o.__doc__ or "").strip()] == []
    shown = {n for n, o in names.items() if ">>>" in o.__doc__}
    errors = {n for n, o in names.items() if isinstance(o, type) and issubclass(o, Exception)}
    assert set(SHOWN_BY.values()) <= shown
    assert set(names) - shown - errors - set(SHOWN_BY) - NEED_A_LAUNCHER == set()


ROOT = Path(__file__).parents[3]


PAGES = (
    *("README.md", "python/README.md", "python/GUIDE.md", "python/MODELS.md", "python/HARDWARE.md"),
    *("python/docs/first_steps.md", "python/docs/porting.md"),
    *(f"python/docs/tasks/{name}.md" for name in ("autocast", "collective", "models", "newcomer")),
    *("python/docs/tasks/quantize.md", "python/docs/tasks/reduce.md"),
)


@pytest.mark.parametrize("name", PAGES)
def test_readme(name, capsys):
    """Each Python block of a page runs by itself and prints the text block right below."""
    pytest.importorskip("torch")
    text = (ROOT / name).read_text()
    found = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)
    assert found
    for block, shown in found:
        exec(compile(block, name, "exec"), {})
        printed = capsys.readouterr().out
        assert not shown or printed == shown


def test_every_page_with_code_is_run():
    pages = [ROOT / "README.md", *(ROOT / "python").rglob("*.md")]
    assert {str(p.relative_to(ROOT)) for p in pages if "```python" in p.read_text()} <= set(PAGES)


def test_accumulators_of_the_guide():
    texts = re.findall(r'`"([^"`]+)"`', (ROOT / "python/GUIDE.md").read_text())
    assert len(texts) >= 7
    ones = np.ones((1, 1), np.float32)
    for text in texts:
        assert cpd.gemm(ones, ones, text).item() == 1
