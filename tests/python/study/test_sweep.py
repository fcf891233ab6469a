# SPDX-License-Identifier: Apache-2.0
"""Tests that sweeps give the results of plain loops, for any division of the work.

Results are stored. A damaged result is reported, and an interrupted sweep continues.
"""

from __future__ import annotations

import csv
import json
import math
import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest

import cpd
from cpd.study import sweep
from cpd.study.sweeps import measure, run
from cpd.study.sweeps.cells import Cell, Losses, fitting, grid
from cpd.study.sweeps.patterns import expand, texts
from cpd.study.sweeps.tensors import load_workload, workload

RNG = np.random.default_rng(15)


def normal(*shape: int, scale: float = 1.0) -> np.ndarray:
    return RNG.standard_normal(shape, np.float32) * np.float32(scale)


# ---- what a sweep consists of --------------------------------------------------------------------


def test_patterns():
    assert expand("e[2-4]m[1,3]") == ["e2m1", "e2m3", "e3m1", "e3m3", "e4m1", "e4m3"]
    assert expand("int[8, 4-5]") == ["int8", "int4", "int5"]
    assert expand("e4m3 chunked chunk=[16,32]")[1] == "e4m3 chunked chunk=32"
    assert texts("formats", "(4,3),e[2,3]m1 , mxfp4,e2m1") == ["(4,3)", "e2m1", "e3m1", "mxfp4"]
    assert texts("formats", (4, 3)) == ["(4,3)"]
    assert texts("formats", [(4, 3), cpd.Format("e5m2"), cpd.Scaled("mxfp4")])[2] == "mxfp4"
    unit = cpd.Accumulator(a="e4m3fn", b="e4m3fn")
    assert cpd.Accumulator(texts("accumulators", [unit])[0]) == unit


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("e[2-5m1", "is not closed"),
        ("e2]m1", "is not closed, or not opened"),
        ("e[]m1", "must hold integers"),
        ("e[a-b]m1", "must hold integers"),
        ("e[2-]m1", "must hold integers"),
        ("e[-3]m1", "must hold integers"),
        ("e[5-2]m1", "runs down"),
        ("e[[2]]m1", "a bracket"),
        ("e[0-999]m[0-999]", "gives 1000000 texts, at most 10000 are taken"),
        ("e2m1,,e3m1", "a name is missing"),
        ("", "a name is missing"),
        ("e[2-4]n3", "unknown format"),
        ("e[0-1]m3", "format 'e0m3': exp must be"),
    ],
)
def test_bad_patterns(pattern, said):
    with pytest.raises(ValueError, match=re.escape(said)):
        grid(pattern)


def test_cells_are_each_combination_once():
    cells = grid("e[2-3]m[1-2],mxfp4,e2m1", "fp32,e6m9 kahan", "up,stochastic:4", "none,mx,row")
    assert len(cells) == len(set(cells)) == (4 * 3) * 2 * 2  # mxfp4 is e2m1 below mx
    assert {cell.to.random_bits for cell in cells} == {24, 4}
    assert [c.operand for c in grid("e[2-5]m[1-3]", bits=6)] == ["e2m3", "e3m2", "e4m1"]
    for said, arguments in (
        ("has 5 bits", {"formats": "e4m3", "bits": 5}),
        ("rounding must be nearest_even, ", {"formats": "e4m3", "rounding": "nearest"}),
        ("stochastic:N", {"formats": "e4m3", "rounding": "up:3"}),
        ("random_bits", {"formats": "e4m3", "rounding": "stochastic:99"}),
        ("scales must be none, tensor, row, mx, nv", {"formats": "e4m3", "scales": "mxx"}),
        ("overflow", {"formats": "e4m3", "overflow": "wrap"}),
    ):
        with pytest.raises(ValueError, match=said):
            grid(**arguments)


def test_matrix_units_take_what_their_formats_hold():
    kept, left = fitting(grid("e4m3fn,e2m1,e5m2,mxfp4", "h100-fp8,fp32"))
    assert [c.operand for c in kept if c.accumulator == "h100-fp8"] == ["e4m3fn", "e2m1"]
    assert left == ["h100-fp8 takes e4m3fn, at most with one scale a tensor; not e5m2, mxfp4"]
    with pytest.raises(ValueError, match=r"v100 takes fp16, .*; not fp32"):
        fitting(grid("fp32", "v100"))


def test_matrix_units_multiply_elements_below_a_tensors_scale():
    x = normal(24, 64, scale=1e-4)
    [row] = sweep(x, "fp8-tensor", "h100-fp8").rows
    codes, scale = cpd.encode(x, "fp8-tensor")
    elements = cpd.decode(codes, "e4m3fn", x.shape)
    factor = cpd.decode(scale, "fp32", ()) ** 2
    errors = [
        float(cpd.gemm(a[None], b[:, None], "h100-fp8").item() * factor) - np.float64(u) @ v
        for (a, b), (u, v) in zip(pairs(elements, 64), pairs(np.float64(x), 64), strict=True)
    ]
    assert row._tensors[0].dot_errors == pytest.approx(np.square(errors).sum(), rel=1e-6)
    assert row.dot_error < 0.1


def test_a_cells_recipe():
    recipe = Cell("mxfp4", "e6m9 kahan", "stochastic:8", seed=3).recipe(gradient="e5m2")
    assert recipe.forward.scheme == "kahan"
    assert recipe.activation.random_bits == 8
    assert str(recipe.gradient) == "e5m2"


# ---- what is measured ----------------------------------------------------------------------------


def pairs(x, length):
    """Yields the pairs of vectors whose dot products a sweep measures for the matrix x.

    The matrix rows are cut into vectors of about `length` values, and the vectors are divided into
    groups. Each vector of a group is paired with the first vector of the next group.
    """
    terms = x.shape[1] // math.ceil(x.shape[1] / length)
    vectors = [row[i : i + terms] for row in x for i in range(0, len(row) - terms + 1, terms)]
    size = min(64, max(1, len(vectors) // 2))
    groups = len(vectors) // size
    for g in range(groups):
        for vector in vectors[g * size : (g + 1) * size]:
            yield vectors[(g + 1) % groups * size], vector
    for vector in vectors[groups * size :]:
        yield vectors[size % (groups * size)], vector


def by_loops(x, cell, length):
    """Returns the errors of casting the matrix x and of dot products of the cast values.

    `cell` is one measurement of a sweep: it has the format `to` of the cast, and the accumulator
    `sum` of the dot products. NumPy computes the exact values in binary64.
    """
    y = cpd.cast(x, cell.to, seed=cell.seed)
    with np.errstate(invalid="ignore"):
        error = np.float64(y) - np.float64(x)
    dots = [
        (cpd.gemm(a[None], b[:, None], cell.sum).item(), np.float64(u) @ np.float64(v))
        for (a, b), (u, v) in zip(pairs(y, length), pairs(x, length), strict=True)
    ]
    got, expected = np.transpose(dots)
    return {
        "values": x.size,
        "squares": (np.float64(x) ** 2).sum(),
        "errors": (error**2).sum(),
        "absolute": np.abs(error).sum(),
        "worst": np.abs(error).max(),
        "underflows": ((y == 0) & (x != 0)).sum(),
        "dots": len(dots),
        "dot_squares": (expected**2).sum(),
        "dot_errors": ((got - expected) ** 2).sum(),
    }


CELLS = [
    ("e4m3fn", "fp32", "nearest_even"),
    ("e3m2", "e5m7 kahan", "up"),
    ("e2m1", "e6m9 chunked chunk=8", "stochastic:6"),
    ("int6", "fp16 fma", "toward_zero"),
    ("mxfp4", "fp32 pairwise", "nearest_even"),
    ("nvfp4", "bf16", "nearest_even"),
    ("e4m3fn 1x128", "fp32", "stochastic"),
    ("e4m3fn 4x8", "fp32", "nearest_even"),
    ("int8 row", "fp32", "nearest_even"),
    ("fp8-tensor", "e8m13", "nearest_away"),
]


@pytest.mark.parametrize(("operand", "total", "rounding"), CELLS)
@pytest.mark.parametrize("shape", [(37, 80), (1, 3000), (3, 1), (130, 33)])
def test_losses_are_those_of_plain_loops(operand, total, rounding, shape):
    x = normal(*shape, scale=3.0)
    cell = Cell(operand, cpd.Accumulator(total).text, rounding, seed=5)
    found = asdict(measure.Bench(workload(x, 50)).measure([cell])[0][0])
    overflows = found.pop("overflows")
    assert found == pytest.approx(by_loops(x, cell, 50), rel=1e-6)
    assert overflows == overflowing(x, cell)


def overflowing(x, cell):
    """Returns the number of values of x that overflow when cast to the format of `cell`, by the
    function with which observers of layers count overflows."""
    torch = pytest.importorskip("torch")
    from cpd.nn.losses import Judged, judge

    judged = Judged.total([judge(torch.from_numpy(x), cell.to, 1).tolist()])
    return judged.overflows


@pytest.mark.parametrize(
    "operand", ["e4m3fn", "mxfp4", "e2m1 24", "nvfp4", "e4m3fn 4x8", "int8 row"]
)
@pytest.mark.parametrize("piece", [64, 1000, 100_000])
def test_pieces_change_nothing_of_the_values(monkeypatch, operand, piece):
    """A sweep reads a matrix in pieces. The length of a piece does not change the measured errors,
    even if a piece ends within a row or a block of a scaled format."""
    monkeypatch.setattr(measure, "PIECE", piece)
    monkeypatch.setattr(measure, "GROUP", 4)
    for x in (normal(40, 96), normal(1, 5000), normal(7, 700)):
        cell = Cell(operand, "fp32")
        plain = {k: v for k, v in by_loops(x, cell, 30).items() if "dot" not in k}
        found = asdict(measure.Bench(workload(x, 30)).measure([cell])[0][0])
        assert {name: found[name] for name in plain} == pytest.approx(plain, rel=1e-6)
        assert found["overflows"] == overflowing(x, cell)
        terms = x.shape[1] // math.ceil(x.shape[1] / 30)
        assert found["dots"] == x.shape[0] * (x.shape[1] // terms)


def test_transformed_values():
    x = normal(8, 64)
    [row] = sweep(x, "mxfp4 transform=hadamard32").rows
    q = row._cell.format
    turned = cpd.hadamard(x, q.transform)
    y = cpd.cast(x, q)
    expected = ((np.float64(y) - turned) ** 2).sum()
    assert row._tensors[0].errors == pytest.approx(expected, rel=1e-6)
    assert row.dot_error < 0.5


def test_activations_are_multiplied_with_weights():
    x, w = normal(100, 48), normal(20, 48)
    given = {"a/activation": x, "a/weight": w, "b/activation": x, "b/weight": normal(4, 47)}
    [row] = sweep(given, "e4m3fn", "e6m9").rows
    assert [one.dots for one in row._tensors] == [100, 0, 100, 4]
    y, v = cpd.cast(x, "e4m3fn"), cpd.cast(w, "e4m3fn")
    every = cpd.gemm(y, np.ascontiguousarray(v.T), "e6m9") - np.float64(x) @ np.float64(w).T
    assert row._tensors[0].dot_errors < (every**2).max(1).sum()
    assert row._tensors[0].dot_errors == pytest.approx((every**2).mean(1).sum(), rel=0.5)


def test_values_without_errors_and_without_bounds():
    x = np.float32([[1, 2, np.nan, -np.inf], [4, 0.5, 0, 1e30]])
    found = sweep(x, "fp32,e4m3", overflow="ieee")
    [tensor], [exact, lossy] = found.tensors, found.rows
    assert (tensor["nonfinite"], tensor["zeros"], found.values) == (2, 3, 8)
    assert exact.sqnr == math.inf
    assert lossy.sqnr == -math.inf
    assert lossy._losses.overflows == 1
    assert [row.operand for row in found.front("relative_rms")] == ["fp32"]
    assert json.loads(json.dumps(found.json(), default=str))["cells"][1]["dot_error"]
    zero = sweep(np.zeros((2, 3), np.float32), "e4m3").rows[0]
    assert (zero.relative_rms, zero.dot_error, zero.underflow) == (0, 0, 0)


def test_the_share_of_overflows_is_no_mode():
    row = sweep(np.float32([[1.0, 1e9]]), "e4m3").rows[0]
    assert (row.overflow, row.value("overflow")) == ("saturate", 0.5)


def test_kinds_of_tensors():
    torch = pytest.importorskip("torch")
    x = normal(4, 3, 5)
    given = {
        "a": x.astype(np.float64),
        "b": torch.from_numpy(x).bfloat16().requires_grad_(),
        "i": np.arange(3),
        "none": np.zeros((0, 3), np.float32),
        "scalar": np.float32(3),
        "beyond": np.array([1e300, 1.0]),
    }
    work = workload(given)
    assert [(m.name, m.x.shape) for m in work.matrices] == [
        *(("a", (12, 5)), ("b", (12, 5)), ("scalar", (1, 1)), ("beyond", (1, 2)))
    ]
    assert work.matrices[3].nonfinite == 1
    with pytest.raises(TypeError, match="'x' must be a NumPy array or a torch tensor, got list"):
        workload({"x": [1.0]})
    with pytest.raises(TypeError, match="tensors must be a dict of arrays"):
        workload(3)
    with pytest.raises(ValueError, match="must have floating-point values, got none"):
        workload({"i": np.arange(3)})
    with pytest.raises(ValueError, match="length must be an int of at least 1, got 0"):
        workload(x, 0)


def test_a_sample_is_of_whole_rows_and_only_where_it_is_asked_for(tmp_path):
    x = normal(100, 10)
    assert workload(x).values == 1000
    work = workload({"x": x, "row": normal(1, 90)}, sample=55)
    assert [one.x.shape for one in work.matrices] == [(5, 10), (1, 55)]
    np.testing.assert_array_equal(work.matrices[0].x, x[::20])
    assert work.digest != workload({"x": x, "row": normal(1, 90)}).digest
    work.save(tmp_path)
    again = load_workload(tmp_path)
    assert again.digest == work.digest


def test_integers_sum_elements_below_a_tensors_scale():
    x = normal(24, 64, scale=1e-4)
    found = sweep(x, "int8", "int32,fp32", scales="tensor,row")
    assert [row._cell.total for row in found] == ["fp32 fixed width=32 fraction=0", "fp32", "fp32"]
    assert "at most with one scale a tensor; not int8 row" in found.left_out[0]
    by_integers, by_floats = (row.dot_error for row in found.rows[:2])
    assert by_integers == pytest.approx(by_floats, rel=1e-4)
    assert by_integers < 0.05


# ---- what is kept --------------------------------------------------------------------------------


def test_cells_are_taken_up(tmp_path):
    x = normal(16, 64)
    count = []
    first = sweep(x, "e[2-3]m[1-2]", "fp32,fp16", folder=tmp_path, done=count.append)
    assert (len(count), first.reused) == (8, 0)
    assert len(list((tmp_path / "cells").iterdir())) == 8
    again = sweep(x, "e[2-4]m[1-2]", "fp32,fp16", folder=tmp_path, done=count.append)
    assert (len(count), again.reused) == (8 + 12, 8)
    assert [r._losses for r in again.rows[:8]] == [r._losses for r in first.rows]
    for changed in (
        {"tensors": x + 1},
        {"length": 8},
        {"seed": 1},
        {"overflow": "ieee"},
        {"dots": False},
        {"sample": 64},
        {"accuracy": lambda _: 0.5},
    ):
        given = {"tensors": x, "formats": "e2m1", "folder": tmp_path} | changed
        assert sweep(**given).reused == 0
        assert sweep(**given).reused == 1


def flip(data: bytes) -> bytes:
    place = data.index(b'"errors": ') + 11
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES = {
    "empty": lambda data: b"",
    "cut": lambda data: data[: len(data) // 2],
    "flipped": flip,
    "binary": lambda data: b"\xff\x00" * 40,
    "deep": lambda data: b"[" * 100_000,
    "another kind": lambda data: b"[1, 2]",
    "without a field": lambda data: data.replace(b'"body"', b'"bodi"'),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_cells_are_told_and_measured_again(tmp_path, damage):
    x = normal(4, 32)
    first = sweep(x, "e[2-3]m1", folder=tmp_path)
    file = sorted((tmp_path / "cells").iterdir())[0]
    whole = file.read_bytes()
    file.write_bytes(DAMAGES[damage](whole))
    told = []
    again = sweep(x, "e[2-3]m1", folder=tmp_path, tell=told.append)
    assert again.reused == 1
    assert [row._losses for row in again] == [row._losses for row in first]
    assert len(told) == 1
    assert str(file) in told[0]
    assert "damaged" in told[0]
    assert "\n" not in told[0]
    assert file.read_bytes() == whole
    file.write_bytes(b"")
    with pytest.warns(UserWarning, match="damaged"):
        sweep(x, "e[2-3]m1", folder=tmp_path)


def test_a_file_of_another_cell_counts_as_damaged(tmp_path):
    x = normal(4, 32)
    sweep(x, "e[2-3]m1", folder=tmp_path)
    one, other = sorted((tmp_path / "cells").iterdir())
    shutil.copy(one, other)
    told = []
    sweep(x, "e[2-3]m1", folder=tmp_path, tell=told.append)
    assert "it is another cell's" in told[0]


def test_accuracy(tmp_path):
    x = normal(4, 32)

    def accuracy(cell: Cell) -> float:
        return cell.element.man / 4

    found = sweep(x, "e4m[1-3]", folder=tmp_path, accuracy=accuracy)
    assert [row.accuracy for row in found] == [0.25, 0.5, 0.75]
    assert found.best().operand == "e4m3"
    assert sweep(x, "e4m[1-3]", folder=tmp_path, accuracy=accuracy).reused == 3
    with pytest.raises(ValueError, match="accuracy was not measured"):
        sweep(x, "e4m3").front("accuracy")
    with pytest.raises(TypeError, match="accuracy must be a function"):
        sweep(x, "e4m3", accuracy=3)


# ---- who measures --------------------------------------------------------------------------------


def same(one, other):
    assert [(r._cell, r._losses, r.accuracy) for r in one] == [
        (r._cell, r._losses, r.accuracy) for r in other
    ]


def test_processes_give_the_same(tmp_path):
    pytest.importorskip("joblib")
    given = {"a": normal(60, 128), "b": normal(3, 40)}
    choices = ("e[2-3]m[1-2]", "fp32,e6m9")
    others = {"rounding": "nearest_even,stochastic", "scales": "none,mx,tensor"}
    alone = sweep(given, *choices, **others, jobs=1)
    same(alone, sweep(given, *choices, **others, jobs=2, folder=tmp_path, accuracy=None))
    assert sweep(given, *choices, **others, folder=tmp_path).reused == len(alone)


@pytest.mark.parametrize("cluster", ["debug", "local"])
def test_jobs_of_a_cluster(tmp_path, cluster):
    pytest.importorskip("submitit")
    x = normal(20, 64)
    options = {"timeout_min": 5}
    given = {"folder": tmp_path, "cluster": cluster, "jobs": 2, "cluster_options": options}
    found = sweep(x, "e[2-4]m1", **given)
    same(found, sweep(x, "e[2-4]m1"))
    assert sweep(x, "e[2-4]m1", **given).reused == 3


def test_where_jobs_cannot_be(tmp_path):
    x = normal(2, 4)
    with pytest.raises(ValueError, match="cluster must be one of slurm, local, debug, got 'moon'"):
        sweep(x, "e2m1", cluster="moon", folder=tmp_path)
    with pytest.raises(ValueError, match="a cluster needs a folder"):
        sweep(x, "e2m1", cluster="local")
    with pytest.raises(ValueError, match="jobs must be an int of at least 1, got 0"):
        sweep(x, "e2m1", jobs=0)


def test_an_error_in_the_middle_keeps_what_is_measured(tmp_path):
    x = normal(4, 32)

    def accuracy(cell: Cell) -> float:
        if cell.element.exp == 4:
            raise RuntimeError("here")
        return 1.0

    with pytest.raises(RuntimeError, match="here"):
        sweep(x, "e[2-5]m1", folder=tmp_path, accuracy=accuracy)
    assert len(list((tmp_path / "cells").iterdir())) == 2


# ---- what it tells -------------------------------------------------------------------------------


def test_fronts():
    found = sweep(normal(32, 64), "e[2-5]m[1-3],mxfp4", "fp32,e6m9")
    for error in ("dot_error", "relative_rms", "worst"):
        for cost in ("gates", "bits", "adder"):
            front = found.front(error, cost)
            for row in found:
                beaten = any(
                    o.value(cost) <= row.value(cost)
                    and o.value(error) <= row.value(error)
                    and (o.value(cost), o.value(error)) != (row.value(cost), row.value(error))
                    for o in found
                )
                assert not (row in front and beaten)
                equal = [(o.value(cost), o.value(error)) for o in front]
                assert beaten or (row.value(cost), row.value(error)) in equal
    assert found.best("relative_rms", within=5, cost="bits").bits <= 5
    with pytest.raises(ValueError, match="at most 1 bits"):
        found.best(within=1, cost="bits")
    with pytest.raises(ValueError, match="error must be one of dot_error"):
        found.front("gates")
    with pytest.raises(ValueError, match="must be one of"):
        found.front(cost="price")


def test_files_of_figures(tmp_path):
    found = sweep({"a": normal(8, 32), "b": normal(8, 32)}, "e[2-3]m1", "fp32,fp16")
    found.to_csv(tmp_path / "cells.csv")
    with (tmp_path / "cells.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["operand"] for row in rows] == ["e2m1", "e2m1", "e3m1", "e3m1"]
    assert float(rows[0]["sqnr"]) == found.rows[0].sqnr
    assert float(rows[3]["gates"]) == found.rows[3].cost.total
    found.to_json(tmp_path / "sweep.json")
    told = json.loads((tmp_path / "sweep.json").read_text(), parse_constant=pytest.fail)
    assert told["cost_model"] == "cpd-2026"
    assert set(told["cells"][0]["tensors"]) == {"a", "b"}
    assert [found.rows[n] for n in told["front"]] == found.front()
    assert str(found).count("\n") == 4
    assert str(found.rows[0]).startswith("e2m1, summed in fp32: 4 bits, SQNR ")


def test_losses_of_several_tensors_count_by_their_rms():
    large, small = Losses(10, 1e6, 1e4, 5.0, 3.0), Losses(10, 1e-6, 1e-10, 1e-3, 1e-4)
    total = Losses.total([large, small])
    assert total.relative_rms == pytest.approx(math.sqrt((0.01 + 0.0001) / 2))
    assert total.worst == pytest.approx(max(3 / math.sqrt(1e5), 1e-4 / math.sqrt(1e-7)))
    assert total.dot_error is None


def test_pictures_and_pages(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    given = {"<a>": normal(8, 64), "b": np.float32([[1, np.nan]])}
    found = sweep(given, "e[2-3]m[1-2],mxfp4", "fp32,fp16,h100-fp8", scales="none,tensor")
    found.report(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("<svg ") == 2
    assert "&lt;a&gt;" in page
    assert "<a>" not in page
    assert all(name not in page for name in ("http:", "https:", "<script", "{{", "@import"))
    assert "h100-fp8 takes e4m3fn, at most with one scale a tensor; not mxfp4" in page
    ids = [part.split('"')[0] for part in page.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    for name, error in (("a.png", None), ("b.svg", "underflow")):
        found.plot(tmp_path / name, error, "bits")
        assert (tmp_path / name).stat().st_size > 5000
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg"):
        found.plot(tmp_path / "a.gif")
    exact = sweep(np.ones((2, 2), np.float32), "fp32,bf16")
    exact.report(tmp_path / "exact.html")


def test_groups_share_a_cast():
    groups = run._groups(grid("e[2-3]m1", "fp32,fp16", "up,down"))
    assert [len(group) for group in groups] == [2, 2, 2, 2]


def test_pages_of_sweeps_without_a_front(tmp_path):
    """Reports of sweeps are written even if they have no Pareto front.

    There is no front if all values overflow, if no value changes, or if an accuracy is NaN.
    """
    pytest.importorskip("matplotlib")
    pytest.importorskip("jinja2")
    beyond = np.full((2, 4), 1e30, np.float32)
    for number, found in enumerate(
        (
            sweep(beyond, "e4m3,e5m2", overflow="ieee"),
            sweep(np.zeros((2, 4), np.float32), "e4m3"),
            sweep(normal(2, 4), "e4m3", accuracy=lambda _: math.nan),
            sweep(normal(2, 4), "e4m3", dots=False),
        )
    ):
        found.report(tmp_path / f"{number}.html")
        found.to_csv(tmp_path / f"{number}.csv")
        found.to_json(tmp_path / f"{number}.json")
        assert str(found)
    with pytest.raises(ValueError, match="no cell has finite errors"):
        sweep(beyond, "e4m3", overflow="ieee").best()
