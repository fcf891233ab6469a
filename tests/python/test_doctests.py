# SPDX-License-Identifier: Apache-2.0
"""The examples in the documentation of `cpd` run, and give what they say."""

from __future__ import annotations

import doctest
import importlib

import pytest

MODULES = ("cpd", "cpd.accumulator", "cpd.formats", "cpd.ops", "cpd.reduce", "cpd.study")


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.attempted > 0
    assert result.failed == 0
