# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of reports and judgments: limits of texts and claims, and damaged files."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from unittest.mock import MagicMock

import numpy as np
import pytest

import cpd
from cpd_lab.demo.cells import DemoOptions, cells, scaled_cells, table_rows
from cpd_lab.demo.figures import lost_below
from cpd_lab.demo.report import _find, _power, power_of_two
from cpd_lab.papers import catalogue, distributions, page, ternary, trained
from cpd_lab.papers.run import _read
from cpd_lab.papers.studies import oland
from cpd_lab.papers.study import Range
from cpd_lab.shares import percent


@pytest.mark.parametrize(
    ("share", "text"),
    [
        *((0, "0 %"), (1, "100 %"), (0.995, "99.5 %"), (0.999, "99.9 %"), (0.9991, "> 99.9 %")),
        *((0.001, "0.1 %"), (0.0009, "< 0.1 %"), (0.5, "50.0 %")),
    ],
)
def test_shares(share, text):
    assert percent(share) == text


def test_states_of_rows_are_known(monkeypatch):
    row = {"what": "a table", "state": "no such state"}
    fields = [field.name for field in dataclasses.fields(catalogue.Row)]
    given = {name: "" for name in fields if name != "name"} | row
    given = {name: given[name] for name in fields if name in given}
    monkeypatch.setattr(catalogue, "quoted", lambda name, values: values)
    with pytest.raises(ValueError, match=r"paper\.row: state must be one of"):
        catalogue._row("paper", "row", given)


def test_a_cells_result_is_an_object():
    body = {"result": [], "seconds": 1.0, "cpu": "", "version": "", "sources": ""}
    with pytest.raises(TypeError, match="its result is no object"):
        _read(None, body)
    assert _read(None, body | {"result": {"a": 1}}).result == {"a": 1}


def range_of(low, mean, high):
    return Range(low, mean, high, 3, f"{mean} ({low} … {high})")


def judged(values, judge):
    measured = SimpleNamespace(range=lambda label, column: values.get(label))
    return judge(measured).holds


def test_the_best_split_is_better_than_every_other():
    def splits(others):
        ranges = {m: others.get(m, range_of(80, 80, 80)) for m in (2, 3, 5, 6, 8)}
        found = {f"c = {10 - m}, M = {m}": best for m, best in ranges.items()}
        return found | {"c = 6, M = 4": range_of(90, 90, 90)}

    assert judged(splits({}), oland._best_split) is True
    assert judged(splits({8: range_of(95, 95, 95)}), oland._best_split) is False
    assert judged(splits({2: range_of(89, 90, 91)}), oland._best_split) is None


def test_a_fifth_fewer_epochs():
    def epochs(few):
        return {"c = 6, M = 4": range_of(few, few, few), "fp32": range_of(100, 100, 100)}

    assert judged(epochs(79), oland._fewer_epochs) is True
    assert judged(epochs(85), oland._fewer_epochs) is False
    assert judged(epochs(120), oland._fewer_epochs) is False


def test_layers_that_are_drawn():
    """The layers to plot are the first convolution and the largest matrix."""
    weights = [("a", 2, 5), ("k", 4, 10), ("b", 2, 9), ("l", 4, 99), ("c", 2, 7), ("bias", 1, 500)]
    assert ternary._drawn(weights) == {"k", "b"}
    assert ternary._drawn([("bias", 1, 5)]) == set()


def test_lost_gradients_are_a_share_of_those_that_were_not_zero():
    totals = {"nonzero": 8, "underflowed": 2, "values": 100, "overflowed": 0}
    result = MagicMock(total=totals.get, curve=[0.5], loss=[1.0], steps_per_epoch=3)
    assert trained._summary(result)["lost"] == 0.25
    totals["nonzero"] = 0
    assert trained._summary(result)["lost"] == 0.0


def test_studies_without_results_are_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "summary", lambda study, results: {"count": len(results)})
    every = {"aps-4": [1, 2], "digits": []}
    monkeypatch.setattr(page, "STUDIES", dict.fromkeys(every))
    assert page.write_summaries(every, tmp_path) == [tmp_path / "aps-4.json"]
    assert [path.name for path in tmp_path.iterdir()] == ["aps-4.json"]


def test_the_demos_table_has_each_format_with_and_without_aps():
    rows = [(row["format"], row.get("aps")) for row in table_rows(3).values()]
    assert len(set(rows[:-1])) == len(rows) - 1 == 7
    for name in ("e4m3", "e5m2", "e3m0"):
        assert {(name, "on")} < set(rows)
        assert any(format == name and aps != "on" for format, aps in rows)


def test_the_demos_cells_are_distinct_and_of_the_seeds_that_are_asked_for():
    options = DemoOptions(seed=3, seeds=3)
    made = cells(options) + scaled_cells(options, SimpleNamespace(loss_scale=2.0))
    assert len({cell.key for cell in made}) == len(made)
    for label, seeds in (("fp32", [3, 4, 5]), ("scale 2^1", [3]), ("scaled", [4, 5])):
        assert [cell.options["seed"] for cell in made if cell.label == label] == seeds
    assert scaled_cells(DemoOptions(), SimpleNamespace(loss_scale=2.0)) == []


def test_powers_of_two_in_the_page():
    assert _power(None) == "none"
    for exponent in (-3, 0, 10):
        assert _power(2.0**exponent) == power_of_two(exponent)
    assert _power(3.0) == "3"


def test_rows_are_found_by_their_loss_scale():
    rows = [SimpleNamespace(format="e4m3", aps=False, loss_scale=scale) for scale in (1.0, 1024.0)]
    for is_scaled in (False, True):
        assert _find(SimpleNamespace(table=rows), "e4m3", False, is_scaled) is rows[is_scaled]


def test_values_are_lost_below_half_of_the_least():
    """Values below half of a format's least value round to zero. e4m3's least value is 2^-9. 2^-10
    is a tie and rounds to 0, but 1.5 · 2^-10 does not. So all magnitudes from 2^-11 up to 2^-10
    become zero."""
    e4m3 = cpd.Format("e4m3")
    assert lost_below(e4m3) == -10
    for exponent, is_lost in ((-10, False), (-11, True)):
        inner = np.float32([1.01, 1.5, 1.99]) * np.float32(2.0**exponent)
        assert (cpd.cast(inner, e4m3) == 0).all() == is_lost


@pytest.fixture
def two_workers(monkeypatch):
    """Replaces trainings by a fake result: a 64 x 64 layer and two workers with equal gradients."""
    torch = pytest.importorskip("torch")
    gradients = [torch.linspace(-1, 1, 64 * 64).reshape(64, 64), torch.ones(64)]
    options = SimpleNamespace(load_data=lambda: None, seed=3)
    trained_ = SimpleNamespace(model=torch.nn.Linear(64, 64))
    for module in (ternary, distributions):
        monkeypatch.setattr(module, "chosen_options", lambda given: options)
        monkeypatch.setattr(module, "train", lambda *given, **others: trained_)
        monkeypatch.setattr(module, "sampled_gradients", lambda *given: [gradients, gradients])


def test_workers_draw_bits_of_their_own(two_workers):
    """Two workers use different random bits. So the average of both has more than the three levels
    of one worker."""
    found = ternary.ternary(2, 8)["histograms"]["weight"]
    assert found["ternary"]["levels"] == 3
    assert found["average of 2"]["levels"] > 3


def test_layers_of_a_round_off_are_chosen_by_a_pattern(two_workers):
    for pattern, names in (("w*", ["weight"]), ("*", ["weight", "bias"]), ("bias", ["bias"])):
        found = distributions.roundoff(pattern, 2, 8, [2], "e4m3")
        assert found["layers"] == names
    with pytest.raises(ValueError, match="no layer is named 'x"):
        distributions.roundoff("x*", 2, 8, [2], "e4m3")
