# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd roundoff` and its recommendations for codecs and scaled formats."""

import json

import numpy as np
import pytest

pytest.importorskip("torch")

import cpd
from cpd.cli import main
from cpd.study.resamples import shares_of_wins, undecided


@pytest.fixture
def normal_file(tmp_path):
    draw = np.random.default_rng(0)
    path = tmp_path / "normal.npz"
    np.savez(
        path, a=draw.normal(size=(8, 32, 32)).astype("f4"), b=draw.normal(size=(8, 20)).astype("f4")
    )
    return path


@pytest.mark.parametrize("wire", ["qsgd", "one_bit bucket=64", "int8_rows", "terngrad", "e4m3"])
def test_recommend_of_codecs(normal_file, tmp_path, wire):
    """`cpd roundoff --recommend` models the exchange `owner` for codecs.

    Codecs cannot encode the partial sums that a ring sends. The table has columns for bytes and
    times.
    """
    out = tmp_path / "table.json"
    arguments = [
        "--gradients",
        str(normal_file),
        "--reduce",
        wire,
        "--recommend",
        "--json",
        str(out),
    ]
    assert main(["roundoff", *arguments]) == 0
    table = json.loads(out.read_text())
    assert table["recommend"]["by_time_exchange"] in ("owner", "ring", "hierarchical")
    for row in table["roundoff"]:
        assert row["bytes_sent"] > 0
        assert row["seconds"] > 0
    if wire == "int8_rows":
        shapes = [(32, 32), (20,)]
        cost = cpd.study.cost(cpd.Reduce(wire, order="ring"), 8, shapes)
        assert {row["bytes_sent"] for row in table["roundoff"]} == {cost.bytes_sent}


def test_groups_that_change_nothing_are_not_recommended(normal_file, capsys):
    """A codec's sums do not depend on the group size: `cpd roundoff` states error, steps and time
    of exchange `owner` for every group size."""
    arguments = ["roundoff", "--gradients", str(normal_file), "--recommend", "--no-baselines"]
    assert main([*arguments, "--reduce", "int4", "--group-sizes", "2,4,8"]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines() if line.startswith(" int4")]
    assert [row[1] for row in rows] == ["2", "4", "8"]
    assert {row[9] for row in rows} == {"14"}  # 2 (8 - 1)
    assert "groups change nothing: exchange owner, relative RMS " in printed
    assert "by error" not in printed
    assert main([*arguments, "--reduce", "e5m2 aps"]) == 0
    assert "by error" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4"])
def test_scaled_formats_have_no_aps(normal_file, tmp_path, name):
    out = tmp_path / "table.json"
    arguments = ["--gradients", str(normal_file), "--reduce", name, "--json", str(out)]
    assert main(["roundoff", *arguments]) == 0
    assert json.loads(out.read_text())["aps"] is False


def test_a_text_may_have_its_group_size(normal_file, tmp_path):
    """A spec with `group_size=` in its text is measured with this group size, other specs with all
    sizes of --group-sizes."""
    out = tmp_path / "table.json"
    words = ["--gradients", str(normal_file), "--reduce", "e4m3 group_size=3, e4m3, e[3]m0"]
    assert main(["roundoff", *words, "--group-sizes", "2,8", "--json", str(out)]) == 0
    told = json.loads(out.read_text())["formats"]
    assert [[row["group_size"] for row in one["roundoff"]] for one in told] == [[3], [2, 8], [2, 8]]
    assert [one["name"] for one in told] == ["e4m3 group_size=3", "e4m3", "e3m0"]


@pytest.mark.parametrize("wire", ["one_bit bucket=64", "top_k 0.1", "feedback int4"])
def test_what_is_fed_back_is_measured_over_steps(wire):
    draw = np.random.default_rng(0)
    ranks = [[draw.normal(size=512).astype(np.float32)] for _ in range(4)]
    spec = cpd.Reduce(wire)
    states, total = cpd.compress.States(), np.zeros(512)
    for step in range(cpd.study.reduce.STEPS):
        total += cpd.simulate_all_reduce(ranks, spec, step=step, states=states)[0]
    reference = np.sum([rank[0].astype(np.float64) for rank in ranks], axis=0)
    mean = (total / cpd.study.reduce.STEPS).astype(np.float32)
    wanted = np.sqrt(np.square(reference - mean).sum() / np.square(reference).sum())
    found = cpd.study.roundoff(ranks, spec, [4])[4].relative_rms
    assert found == pytest.approx(wanted, rel=1e-6)
    first = cpd.simulate_all_reduce(ranks, spec)[0]
    assert found < np.sqrt(np.square(reference - first).sum() / np.square(reference).sum())


def test_rows_count_over_real_ranks():
    """`roundoff` over real ranks keeps the two dimensions of layers, on which int8_rows depends."""
    draw = np.random.default_rng(0)
    ranks = [[draw.normal(size=(16, 8)).astype(np.float32) * 2.0**rank] for rank in range(3)]
    spec = cpd.Reduce("int8_rows")
    with cpd.comm.local(3) as group:
        (told, *_) = group.run(lambda c: cpd.study.roundoff(ranks[c.rank], spec, [3], comm=c))
    assert told == cpd.study.roundoff(ranks, spec, [3])


def test_everything_lost_is_a_warning(tmp_path, capsys):
    path = tmp_path / "tiny.npz"
    np.savez(path, a=np.full((4, 100), 1e-30, "f4"))
    assert main(["roundoff", "--gradients", str(path), "--reduce", "e4m3"]) == 0
    assert "e4m3: everything is lost, every sum is 0" in capsys.readouterr().err
    assert main(["roundoff", "--gradients", str(path), "--reduce", "e4m3 aps"]) == 0
    assert "lost" not in capsys.readouterr().err


# ---- the order of the ranks ---------------------------------------------------------------------


def heavy_ranks(seed, world=64):
    """Returns layers with few large and many small values, whose sums depend on the order."""
    draw = np.random.default_rng(seed)
    return [[draw.standard_t(2.5, 600).astype(np.float32)] for _ in range(world)]


def recommended(ranks, sizes=(4, 8, 16, 64)):
    spec = cpd.Reduce("e5m2", order="ring", aps=True)
    return cpd.study.recommend(ranks, spec, sizes, "alpha=1e-5 beta=1.25e9")


def test_a_recommendation_is_the_same_in_every_order_of_the_ranks():
    ranks = heavy_ranks(0)
    told = set()
    for seed in range(8):
        order = np.random.default_rng(seed).permutation(len(ranks))
        best = recommended([ranks[rank] for rank in order])
        ties = [[one.group_size for one in tie] for tie in (best.exact_tie, best.balanced_tie)]
        told.add((best.by_error, best.by_time, best.compromise, str(ties)))
    assert len(told) == 1


def test_gradients_of_a_kind_have_one_recommendation_or_a_tie():
    by_error, compromise = set(), set()
    ties = 0
    for seed in range(20):
        best = recommended(heavy_ranks(seed))
        by_error |= {best.by_error} if len(best.exact_tie) == 1 else set()
        compromise |= {best.compromise} if len(best.balanced_tie) == 1 else set()
        ties += len(best.exact_tie) > 1
        assert best.most_exact == best.exact_tie[0]
    assert len(by_error) <= 1
    assert len(compromise) <= 1
    assert ties < 20


def test_resamples():
    """`undecided` gets, for each candidate, the share of random resamples of the data in which the
    candidate is best. It returns the candidates that together are best in nearly all resamples."""
    draw = np.random.default_rng(0)
    near = 1 + 0.1 * draw.random((2, 8, 16))
    errors = np.concatenate([near, near[:1] * 2])
    shares = shares_of_wins(errors, np.ones(16), np.ones(3))
    assert shares.sum() == pytest.approx(1)
    assert shares[2] == 0
    assert undecided(np.array([0.02, 0.96, 0.02])) == [1]
    assert undecided(np.array([0.3, 0.6, 0.1])) == [1, 0, 2]
    weighted = shares_of_wins(errors, np.ones(16), np.array([1.0, 3.0, 1.0]))
    assert weighted.tolist() == [1, 0, 0]


def test_a_tie_is_printed(tmp_path, capsys):
    """`cpd roundoff --recommend` prints that group sizes tie if their errors differ only by chance.

    Here e5m6 sums values that e4m3 has already rounded coarsely.
    """
    draw = np.random.default_rng(0)
    path, out = tmp_path / "g.npz", tmp_path / "table.json"
    np.savez(path, a=draw.normal(size=(8, 4000)).astype("f4"))
    arguments = ["--gradients", str(path), "--reduce", "e4m3 aps accumulator=e5m6 result=e5m6"]
    arguments += ["--machine", "alpha=1e-6 beta=1.25e9", "--group-sizes", "2,3,4", "--no-baselines"]
    assert main(["roundoff", *arguments, "--recommend", "--json", str(out)]) == 0
    told = json.loads(out.read_text())["recommend"]
    printed = capsys.readouterr().out
    assert (len(told["by_error_tie"]) > 1) == ("by error: a tie of groups of" in printed)
    assert told["by_error"] in told["by_error_tie"]


# ---- sums that are lost -------------------------------------------------------------------------


@pytest.fixture
def huge_file(tmp_path):
    """Writes a file of gradients beyond the range of e4m3."""
    path = tmp_path / "huge.npy"
    np.save(path, np.random.default_rng(0).normal(size=(8, 40)).astype("f4") * np.float32(1e30))
    return path


@pytest.mark.parametrize("values", [1, 100])
def test_a_sum_without_finite_values_has_an_infinite_roundoff(values):
    """The round-off of a sum without finite values is infinite, also if the inputs are NaN."""
    for value in (1e30, np.nan):
        ranks = [[np.full(values, value, np.float32)] for _ in range(4)]
        row = cpd.study.roundoff(ranks, "e4m3", [2])[2]
        assert (row.error, row.relative_rms, row.non_finite) == (np.inf, np.inf, values)
        best = cpd.study.recommend(ranks, "e4m3 order=ring", [2, 4], "alpha=1e-5 beta=1e9")
        assert {choice.error for choice in best.choices} == {np.inf}
    none = cpd.study.roundoff([[np.zeros(values, np.float32)]] * 4, "e4m3", [2])[2]
    assert (none.error, none.relative_rms, none.non_finite) == (0, 0, 0)


def test_a_lost_sum_is_a_dash_and_no_advice(huge_file, tmp_path, capsys):
    files = ["--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")]
    files += ["--plot", str(tmp_path / "t.svg")]
    words = ["roundoff", "--gradients", str(huge_file), "--reduce", "e4m3,e4m3 aps"]
    words += ["--group-sizes", "4,8", "--no-baselines"]
    assert main([*words, "--recommend", *files]) == 0
    printed = capsys.readouterr()
    rows = [line.split() for line in printed.out.splitlines() if line.startswith(" e4m3 ")]
    assert [row[2:4] for row in rows if row[1] != "aps"] == [["–", "–"]] * 2
    assert "e4m3:\nno advice: no group size has a finite sum\n" in printed.out
    assert printed.out.count("by error: ") == 1
    assert "e4m3: everything is lost, no sum is finite; scale the values (aps)" in printed.err
    lost, scaled = json.loads((tmp_path / "t.json").read_text())["formats"]
    assert {row["relative_rms"] for row in lost["roundoff"]} == {None}
    assert all(0 < row["relative_rms"] < 1 for row in scaled["roundoff"])
    assert (tmp_path / "t.csv").read_text().splitlines()[1].split(",")[12] == "inf"
    assert "<svg" in (tmp_path / "t.svg").read_text()
    assert main([*words[:3], "--reduce", "e4m3", "--plot", str(tmp_path / "none.png")]) == 0


def test_a_lost_sum_is_not_on_the_front_of_costs(huge_file, capsys):
    """In the table of `cpd cost`, e4m3 without APS is fastest. But none of its sums is finite, so
    it is not on the Pareto front."""
    words = ["cost", "--gradients", str(huge_file), "--compute", "0.1", "--ranks", "8"]
    assert main([*words, "--reduce", "e4m3,e4m3 aps,fp32", "--json", "-"]) == 0
    printed = capsys.readouterr()
    lost, scaled, plain = json.loads(printed.out)["rows"]
    assert (lost["roundoff"], lost["front"]) == (None, False)
    assert lost["samples_a_second"] > scaled["samples_a_second"]
    assert 0 < plain["roundoff"] < scaled["roundoff"] < 1
    assert plain["front"]
    assert "cpd cost: warning: e4m3: no sum is finite" in printed.err


def test_one_sum_that_is_not_finite_is_enough(tmp_path, capsys):
    path = tmp_path / "part.npy"
    values = np.random.default_rng(0).normal(size=(8, 40)).astype("f4")
    values[:, 0] = 100
    np.save(path, values)
    words = ["--gradients", str(path), "--reduce", "e4m3"]
    assert main(["cost", *words, "--compute", "0.1", "--ranks", "8"]) == 0
    assert "cpd cost: warning: e4m3: not all sums are finite" in capsys.readouterr().err
    assert main(["roundoff", *words, "--recommend"]) == 0
    advice = capsys.readouterr().out.split("by error: ")[1].splitlines()[0]
    assert advice.endswith(" ms")
    assert ", not all sums finite, " in advice


def test_inputs_that_are_not_finite_are_not_the_formats_fault(tmp_path, capsys):
    path = tmp_path / "nan.npy"
    np.save(path, np.full((4, 3), np.nan, "f4"))
    assert main(["roundoff", "--gradients", str(path), "--reduce", "e4m3"]) == 0
    assert "everything is lost, no sum is finite\n" in capsys.readouterr().err


# ---- steps, errors fed back, links --------------------------------------------------------------


@pytest.mark.parametrize("wire", ["qsgd", "top_k 0.1", "terngrad exchange=gather", "mxfp8", "e4m3"])
@pytest.mark.parametrize("size", [2, 8])
def test_steps_of_a_row_are_those_of_an_exchange_that_runs(normal_file, tmp_path, wire, size):
    """`cpd roundoff` states the steps that `cpd.study.cost` counts for a supported exchange.

    Formats take the hierarchical exchange or one ring, and codecs take their own exchange.
    """
    out = tmp_path / "table.json"
    words = ["--gradients", str(normal_file), "--reduce", wire, "--group-sizes", str(size)]
    assert main(["roundoff", *words, "--json", str(out)]) == 0
    (row,) = json.loads(out.read_text())["roundoff"]
    spec = cpd.Reduce(wire, order="ring")
    if spec.format is not None:
        group = {"group_size": size, "exchange": "hierarchical"} if size < 8 else {}
        spec = spec.replace(**group or {"exchange": "ring"})
    assert row["steps"] == cpd.study.cost(spec, 8, [(32, 32), (20,)]).steps


def test_codecs_that_are_measured_over_steps_are_named(normal_file, capsys):
    words = ["--gradients", str(normal_file), "--reduce", "one_bit,top_k 0.1 feedback=off,qsgd"]
    assert main(["roundoff", *words, "--group-sizes", "8"]) == 0
    assert capsys.readouterr().out.endswith("mean of 16 sums, with errors fed back: one_bit\n")
    assert main(["cost", *words, "--compute", "1", "--ranks", "8"]) == 0
    assert capsys.readouterr().out.endswith("mean of 16 sums, with errors fed back: one_bit\n")
    assert main(["roundoff", *words[:2], "--reduce", "e4m3,qsgd"]) == 0
    assert "mean of" not in capsys.readouterr().out


def test_the_time_has_the_narrowest_link(normal_file, tmp_path):
    """The predicted time of an all-reduce is the time of the slowest link.

    Eight ranks sum 1,044 values of one byte. In a ring, a link carries
    2 · 7 messages, each a slice of at most 131 bytes.
    """
    out = tmp_path / "table.json"
    words = ["roundoff", "--gradients", str(normal_file), "--reduce", "e4m3", "--group-sizes", "8"]
    for machine, bandwidth in (
        ("alpha=0 beta=1e9 port=1e8", 1e8),
        ("alpha=0 beta=1e9", 1e9),
        ("nvlink-like gpus=1 alpha_between=0", 5e10),
    ):
        assert main([*words, "--recommend", "--machine", machine, "--json", str(out)]) == 0
        (row,) = json.loads(out.read_text())["roundoff"]
        assert row["seconds"] == pytest.approx(14 * 131 / bandwidth)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([1, 2, 3, 7, 8, 64, 512], "1 2 3 8 64 none"),
        ([4, 8, 16, 32, 64, 256], "4 8 16 32 64 none"),
        ([510, 511, 512], "510 511 none"),
        ([8], "none"),
    ],
)
def test_labels_of_a_plot_that_would_touch_are_left_out(sizes, shown):
    picture = pytest.importorskip("cpd._picture")
    labels = [*map(str, sizes[:-1]), "none"]
    assert " ".join(filter(None, picture._apart(sizes, labels))) == shown
