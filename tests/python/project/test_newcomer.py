# SPDX-License-Identifier: Apache-2.0
"""Runs a new user's tasks with public names, and compares the results to arithmetic by hand."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import surface

torch = pytest.importorskip("torch")

PAGE = (Path(__file__).parents[3] / "python/docs/tasks/newcomer.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def ran(number: int) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[number], "newcomer.md", "exec"), names)
    return names


def test_a_stochastic_cast_by_given_random_bits() -> None:
    """A stochastic cast with given random bits rounds as computed by hand in binary64.

    Neighboring values differ by 1/8 around 1 and by 2 around 17, so the computation is exact.
    """
    it = ran(0)
    spacing = np.array([1 / 8, 1 / 8, 1 / 8, 2])
    below = np.floor(np.abs(it["x"]) / spacing)
    fraction = np.abs(it["x"]) / spacing - below
    away = np.floor(4 * fraction) + it["bits"] >= 4
    expected = np.sign(it["x"]) * (below + away) * spacing
    assert it["rounded"].tolist() == expected.tolist()
    assert away.tolist() == [True, False, True, False]


def test_a_model_with_a_custom_rule_and_a_schedule() -> None:
    it = ran(1)
    linear = torch.nn.functional.linear
    for step, (x, weight, bias, result) in enumerate(it["steps"]):
        formats = ["e5m2", "e4m3fn"] if step < 2 else ["e4m3fn", "e5m2"]
        now, other = (linear(cpd.cast(x, f), cpd.cast(weight, f), bias) for f in formats)
        assert torch.equal(result, now)
        assert not torch.equal(result, other)
    assert len(it["steps"]) == 4
    assert type(it["model"][2]).forward is torch.nn.Linear.forward


def test_gradients_over_16_ranks_in_groups_with_error_feedback() -> None:
    it = ran(2)
    errors = [np.zeros(64, np.float32) for _ in range(16)]
    assert len(it["means"]) > 1
    for mean in it["means"]:
        sent = []
        for (gradient,), error in zip(it["ranks"], errors, strict=True):
            given = (gradient + error).reshape(2, 32)
            scale = np.abs(given).max(1, keepdims=True) / np.float32(7)
            decoded = np.rint(given / scale) * scale
            error[:] = (given - decoded).ravel()
            sent.append(decoded.ravel())
        groups = [in_order(sent[first : first + 4]) for first in range(0, 16, 4)]
        assert mean.tolist() == (in_order(groups) / np.float32(16)).tolist()


def in_order(terms: list[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def test_public_names_alone() -> None:
    public = set(surface.surface()["names"]) | {"cpd.compress"}
    for block in BLOCKS:
        used = {ast.unparse(node) for node in ast.walk(ast.parse(block)) if is_path(node)}
        assert {name for name in used if name.startswith("cpd.")} <= public


def is_path(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute)


def test_help_is_enough() -> None:
    """Each `help(...)` that newcomer.md names shows the words that a reader needs for the task."""
    texts = {
        "cpd.cast": ("random", "cpd.Cast"),
        "cpd.Cast": ("stochastic", "random_bits", "⌊f · 2^N⌋ + R ≥ 2^N"),
        "cpd.convert": ("function", "recipe's"),
        "cpd.Recipe": ("schedule", '"step"'),
        "cpd.simulate_all_reduce": ("states", "ranks", "step"),
        "cpd.Reduce": ("group_size", "average", "gather"),
        "cpd.Codec": ("`feedback CODEC`", "`int4`"),
    }
    assert set(re.findall(r"`help\(([\w.]+)\)`", PAGE)) == set(texts)
    for name, words in texts.items():
        text = surface.found_at(name).__doc__
        assert not [word for word in words if word not in text], name
