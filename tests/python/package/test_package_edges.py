# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of imports, signals, cpd.compat, communicators and written results."""

from __future__ import annotations

import importlib
import signal
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import cpd
from cpd import loading
from cpd._files import write_json, write_text
from cpd.study.jobs import _interruptions_held


def test_waiting_for_a_module_leaves_nothing_behind(tmp_path, monkeypatch):
    (tmp_path / "imported_by_a_test.py").write_text("x = 5")
    monkeypatch.syspath_prepend(tmp_path)
    before, seen = list(sys.meta_path), []
    loading._when_imported("imported_by_a_test", seen.append)
    assert len(sys.meta_path) == len(before) + 1
    module = importlib.import_module("imported_by_a_test")
    try:
        assert seen == [module]
        assert module.x == 5
        assert sys.meta_path == before
        for loader in (module.__loader__, module.__spec__.loader):
            assert not isinstance(loader, loading._Then)
        loading._when_imported("imported_by_a_test", seen.append)
        assert seen == [module, module]
        assert sys.meta_path == before
    finally:
        del sys.modules["imported_by_a_test"]


def test_interruptions_are_held_and_let_go():
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with _interruptions_held():
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_the_first_cpds_sums():
    """cpd.compat.cpd2020 sums as the CPD of 2020 did: its APS has the headroom of the APS paper.

    The test compares sums of three ranks. Without APS, ranks send contributions in fp32. The result
    is in the chosen format with and without APS.
    """
    pytest.importorskip("torch")
    from cpd.compat.cpd2020 import _reduction

    scaled, plain = (_reduction(aps, 4, 3, kahan=False) for aps in (True, False))
    assert (scaled.aps, plain.aps) == ("paper", False)
    assert (scaled.format, plain.format.name) == (cpd.Format(exp=4, man=3), "fp32")
    assert scaled.result == plain.result == cpd.Format(exp=4, man=3)
    x = [[np.float32([200.0, 1.0])] for _ in range(3)]
    assert np.array_equal(
        cpd.simulate_all_reduce(x, scaled)[0],
        cpd.simulate_all_reduce(x, cpd.Reduce("(4,3)", accumulator="(4,3)", aps="paper"))[0],
    )


def test_a_broken_communicator_is_made_anew(monkeypatch):
    pytest.importorskip("torch")
    from cpd.compat import cpd2020

    class Group:
        """An empty class in place of torch's process group."""

    made = []

    def distributed(group):
        made.append(SimpleNamespace(broken=""))
        return made[-1]

    monkeypatch.setattr(cpd2020, "_comm", SimpleNamespace(distributed=distributed))
    group = Group()
    first = cpd2020._communicator(group)
    assert cpd2020._communicator(group) is first
    first.broken = "rank 1 is lost"
    assert cpd2020._communicator(group) is made[1]
    assert len(made) == 2


@pytest.mark.parametrize("dim", [2, 3])
def test_blocks_of_a_dimension_that_there_is(dim):
    torch = pytest.importorskip("torch")
    from cpd.compat.qpytorch import BlockFloatingPoint

    x = torch.rand(4, 6)
    for there in (-1, 0, 1):
        assert BlockFloatingPoint(8, dim=there).round(x, "nearest").shape == x.shape
    with pytest.raises(ValueError, match=f"dim is {dim}, but x has 2 dimensions"):
        BlockFloatingPoint(8, dim=dim).round(x, "nearest")


def test_a_dash_is_standard_output(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_text("-", "told\n")
    write_json("-", [float("inf"), 1.0], indent=None)
    assert capsys.readouterr().out == "told\n[null, 1.0]\n"
    assert list(tmp_path.iterdir()) == []
