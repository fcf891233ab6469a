# SPDX-License-Identifier: Apache-2.0
"""Tests the printed table of the errors that formats cause in a model's layers."""

from __future__ import annotations

import re

import torch

import cpd


def test_a_table_of_many_layers_shows_the_greatest_losses():
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(20)))
    cpd.convert(model, "mxfp8", coverage=False)
    with cpd.observe(model, every=1, what_if=["nvfp4"]) as watch:
        model(torch.randn(4, 8)).sum().backward()
    assert len(watch.rows) > 100
    *_, last = lines = str(watch).splitlines()
    losses = sorted(row.sqnr for row in watch.rows if row.sqnr is not None)
    table = [line for line in lines if re.match(r"\d+ +\w+ +(own|nvfp4)", line)]
    assert len(table) == 40
    assert all(f"{loss:.4g}" in line for line, loss in zip(table, losses, strict=False))
    assert last == f"the 40 rows with the lowest SQNR, of {len(watch.rows)}: watch.rows and " + (
        "watch.to_csv() have all"
    )
