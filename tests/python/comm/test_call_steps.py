# SPDX-License-Identifier: Apache-2.0
"""Tests the overhead of a communicator's call in Python, counted in function calls."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import cpd

FP32 = cpd.Reduce("fp32")


@pytest.mark.parametrize(("front_end", "most"), [("numpy", 20), ("torch", 40)])
def test_a_call_takes_few_steps_of_python_for_a_layer(front_end, most):
    """A call runs few Python functions per layer, because models have thousands of layers. The test
    counts function calls, which do not depend on the machine's load."""

    def calls(layers):
        x = [np.ones(3, np.float32)] * layers
        if front_end == "torch":
            x = [pytest.importorskip("torch").from_numpy(one) for one in x]
        counted = 0

        def count(frame, event, argument):
            nonlocal counted
            counted += event in ("call", "c_call")

        with cpd.comm.local(1) as group:
            group.ranks[0].all_reduce(x, FP32)  # first call: imports modules
            sys.setprofile(count)
            group.ranks[0].all_reduce(x, FP32)
            sys.setprofile(None)
        return counted

    assert calls(1000) - calls(0) <= most * 1000
