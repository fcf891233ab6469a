# SPDX-License-Identifier: Apache-2.0
"""Tests benchmarks/training_step.py: the parts of a training step, with ranks that are threads.

No times are judged.
"""

from __future__ import annotations

import importlib
import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest

pytest.importorskip("torch")

import cpd
from cpd_lab.train import TrainOptions

sys.path.append(str(Path(__file__).resolve().parents[3] / "benchmarks"))
training_step = importlib.import_module("training_step")


def _rows(*wires):
    rows = []
    for wire in wires:
        chosen = TrainOptions(
            model="davidnet", width=4, nodes=2, batch=2, wire=wire, quantized_share=0.99,
            divide="after",
        )  # fmt: skip
        made = cpd.comm.local(2).run(lambda comm, of=chosen: training_step._measured(of, comm, 1))
        rows.append({"wire": wire, **made[0]})
    return rows


def test_the_parts_of_a_step():
    fp32, bits = _rows("fp32", "qsgd bits=8 bucket=512")
    for row in (fp32, bits):
        assert all(row[part] >= 0 for part in training_step.PARTS)
        assert row["computation"] > 0
    values = sum(layer.size for layer in TrainOptions(model="davidnet", width=4).layers)
    # In exchange `owner`, each of two ranks sends half of its values, and then half of the sums.
    assert fp32["bytes"] == pytest.approx(4 * values, rel=0.05)
    assert bits["bytes"] / fp32["bytes"] == pytest.approx(0.26, abs=0.03)
    assert training_step._text(fp32, fp32).splitlines()[0].split()[0] == "wire"
    stored = training_step._stored(Namespace(model="davidnet", width=4, batch=2, steps=1), [fp32])
    assert json.loads(stored)["tables"][0]["rows"][0][0] == "fp32"
