# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of commands: signs and limits of printed numbers, and errors, which must fit in
one line."""

from __future__ import annotations

import argparse
import importlib
import io
from types import SimpleNamespace

import pytest
from rich.console import Console

import cpd
from cpd.cli import nodes as nodes_of
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.format import _print_values
from cpd.cli.options import json_object
from cpd.cli.output import exact, short
from cpd.cli.roundoff import _nodes
from cpd.cli.scaled import scaled_table
from cpd.comm import RankLost


@pytest.mark.parametrize("error", [ValueError, TypeError, OverflowError])
def test_users_mistakes_are_told_in_a_line(error):
    with pytest.raises(UsageError, match="told"), users_mistakes():
        raise error("told")


def test_options_in_json_are_objects():
    assert json_object('{"a": 1}') == {"a": 1}
    for text in ("[1]", "5", "null"):
        with pytest.raises(argparse.ArgumentTypeError, match="must be a JSON object"):
            json_object(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((2.0**-13, "2^-13"), (-(2.0**-13), "-2^-13"), (-(2.0**14), "-2^14"), (3.5, "3.5")),
        *((2.0**20, "2^20"), (-1.0, "-1"), (None, "none")),
    ],
)
def test_short_numbers(value, text):
    assert short(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.0**-40, "2^-40"),
        (-(2.0**-40), "-2^-40"),
        (3 * 2.0**-40, "3·2^-40"),
        (-3 * 2.0**-40, "-3·2^-40"),
        (0.1, "0.1"),
        (2.0**60, "2^60"),
    ],
)
def test_exact_numbers(value, text):
    assert exact(value) == text


def test_codes_have_the_digits_of_their_width():
    stream = io.StringIO()
    _print_values(Console(file=stream, width=200), cpd.Format(exp=2, man=2))  # 5 bits
    text = stream.getvalue()
    for code in ("00  ", "0f  ", "10  ", "1f  "):
        assert code in text


@pytest.mark.parametrize(("nodes", "world", "fits"), [
    *((None, 4, True), (4, 4, True), (2, 4, False), (5, 4, False), (0, None, False)),
    *((3, None, True),),
])  # fmt: skip
def test_nodes_are_as_many_as_the_ranks(nodes, world, fits):
    if fits:
        assert _nodes(nodes, world) == (world or nodes)
    else:
        with pytest.raises(UsageError, match="nodes must be"):
            _nodes(nodes, world)


def test_a_rank_alone_is_told(monkeypatch):
    """A launcher that starts a single rank raises an error, unless the user asks for one node
    (--nodes 1)."""
    monkeypatch.setattr(nodes_of, "broken_promise", lambda size: "")
    monkeypatch.setattr(nodes_of, "no_launcher", lambda: "no launcher")
    alone, two = SimpleNamespace(world=1), SimpleNamespace(world=2)
    nodes_of._check_not_alone("mpi", 1, alone)
    nodes_of._check_not_alone("torch", None, alone)
    nodes_of._check_not_alone("mpi", None, two)
    with pytest.raises(ValueError, match=r"no launcher .* one rank alone is --nodes 1"):
        nodes_of._check_not_alone("mpi", None, alone)


def test_lost_ranks_end_in_a_line():
    ranks = SimpleNamespace(mine=range(1, 2), world=3)
    with pytest.raises(RunError, match="rank 1: gone"), nodes_of._failures_between(ranks):
        raise RankLost("gone", [2])


def test_a_replay_with_a_mismatch_ends_with_1(monkeypatch):
    from cpd.cli import replay as command

    module = importlib.import_module("cpd.hardware.replay")
    one = {"json": None, "file": "x", "accumulator": None, "operands": None, "result": None}
    options = argparse.Namespace(**one, no_c=False, mutations=False)
    monkeypatch.setattr(command, "_show", lambda found: None)
    for counts, status in (((3, 3), 0), ((3, 2), 1), ((2, 2), 1)):
        found = [SimpleNamespace(matches=count, total=3) for count in counts]
        monkeypatch.setattr(module, "replay", lambda *args, found=found, **options: found)
        assert command._run(options) == status


@pytest.mark.parametrize("error", [KeyError, IndexError, ZeroDivisionError, StopIteration])
def test_a_page_that_cannot_be_made_is_told(monkeypatch, error):
    from cpd_lab.cli import report as command
    from cpd_lab.demo import report as page
    from cpd_lab.demo import results

    def write_report(demo, folder):
        raise error("told")

    monkeypatch.setattr(results, "load", lambda folder: None)
    monkeypatch.setattr(page, "write_report", write_report)
    with pytest.raises(UsageError, match="no page can be made of it"):
        command._run(argparse.Namespace(folder="x"))


def test_margins_are_factors():
    table = scaled_table(
        [cpd.Scaled("e4m3fn", block=32, scale="e8m0", margin=3), cpd.Scaled("mxfp8")]
    )
    rows = dict(zip(*(list(column.cells) for column in table.columns[:2]), strict=True))
    assert rows["Margin"] == "2^3"
    assert list(table.columns[2].cells)[list(rows).index("Margin")] == "-"


@pytest.mark.parametrize(
    ("epochs", "heads"), [(1, ["1"]), (5, ["1", "2", "5"]), (10, ["1", "2", "5", "10"])]
)
def test_epochs_are_shown_once(epochs, heads):
    from cpd_lab.cli.train import epochs_table

    curve = [0.5 + n / 100 for n in range(epochs)]
    options = SimpleNamespace(epochs=epochs, label=lambda: "(4,3)")
    table = epochs_table(SimpleNamespace(options=options, metric="accuracy", curve=curve), None)
    assert [str(column.header) for column in table.columns][1:] == heads
    assert [next(iter(column.cells)) for column in table.columns][1:] == [
        f"{curve[int(head) - 1]:.3f}" for head in heads
    ]
