# SPDX-License-Identifier: Apache-2.0
"""The examples in the documentation of `cpd` run, and give what they say; the READMEs' run."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import numpy as np
import pytest

import cpd

MODULES = (
    "cpd",
    "cpd.comm",
    "cpd.comm.schedule",
    "cpd.comm.spec",
    "cpd.comm.virtual",
    "cpd.nn.functional",
    "cpd.nn.layers",
    "cpd.nn.recipe",
    "cpd.numeric.accumulator",
    "cpd.numeric.formats",
    "cpd.ops.verbs",
    "cpd.study.choices",
    "cpd.study.costs",
    "cpd.study.reduce",
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    if name in ("cpd.nn.functional", "cpd.nn.layers"):
        pytest.importorskip("torch")
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["README.md", "python/README.md"])
def test_readme(name):
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, name, "exec"), {})


def test_accumulators_of_the_readme():
    texts = re.findall(r'`"([^"`]+)"`', (ROOT / "README.md").read_text())
    assert len(texts) >= 7
    ones = np.ones((1, 1), np.float32)
    for text in texts:
        assert cpd.gemm(ones, ones, text).item() == 1
