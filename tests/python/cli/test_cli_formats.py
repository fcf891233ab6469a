# SPDX-License-Identifier: Apache-2.0
"""Tests that the properties of matrix units and formats that `cpd show` and `cpd show --compare`
print equal the properties that the package itself computes."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

import cpd
from cpd.cli import main
from cpd.cli.compare import Comparison, comparison_rows, specials
from cpd.cli.scaled import SOURCES, largest, least

# ---- matrix units --------------------------------------------------------------------------------

WITH_FP16_RESULTS = (
    *("v100", "turing-fp16", "a100", "ada-fp16", "ada-fp8", "h100-fp16", "hopper-mma-fp8"),
    *("b200-fp16", "b200-fp8", "rtx-blackwell-fp16", "rtx-blackwell-fp8"),
    *("b200-tcgen05-fp16", "b200-tcgen05-fp8"),
)


def test_presets_as_json(capsys, tmp_path):
    assert main(["show", "--units", "--json"]) == 0
    text = capsys.readouterr().out
    rows = json.loads(text)
    assert [row["name"] for row in rows] == [*cpd.Accumulator.named()]
    for row, (one, told) in zip(rows, cpd.Accumulator.named().items(), strict=True):
        acc = cpd.Accumulator(one)
        given = row["evidence"], row["source"], row["text"]
        assert given == (told["evidence"], told["source"], str(acc))
        assert row["operands"] == [str(acc.a), str(acc.b)]
        for name in ("block", "promote"):
            assert row[name] == getattr(acc, name)
        assert row["rounding"] == acc.sum_rounding
        cuts = acc.adder not in ("exact", "flushed_pairs")
        for name in ("fraction_bits", "min_exponent"):
            assert row[name] == (getattr(acc, name) if cuts else None)
        assert cpd.Format(row["sum"]) == acc.sum
        assert row["outputs"] == ["fp32", *["fp16"] * (one in WITH_FP16_RESULTS)]
        is_amd = one.startswith("cdna")
        nans = {} if is_amd else {"fp32": "7FFFFFFF", "fp16": "7FFF"}
        assert row["nan"] == {name: nans[name] for name in row["outputs"] if name in nans}
        assert row.get("adder", "aligned") == acc.adder
        assert is_amd == ("adder" in row)
    assert main(["show", "--units", "--json", "-"]) == 0
    assert capsys.readouterr().out == text
    file = tmp_path / "presets.json"
    assert main(["show", "--units", "--json", str(file)]) == 0
    assert file.read_text() == text
    assert "h100-fp8" in capsys.readouterr().out  # the table, too


@pytest.mark.parametrize("columns", [30, 80, 120])
def test_presets_table_cuts_nothing(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", "--units"]) == 0
    told = capsys.readouterr().out
    table, notes = told.split("v100, h100-fp16", 1)
    assert columns < 80 or max(map(len, table.splitlines())) <= 80
    lines = [line.split() for line in table.splitlines()]
    for one, named in cpd.Accumulator.named().items():
        unit = cpd.Accumulator(one)
        kept = "-" if unit.adder in ("exact", "flushed_pairs") else unit.fraction_bits
        figures = [str(unit.a), *map(str, (unit.block, kept, unit.sum))]
        assert [*figures, unit.sum_rounding, named["evidence"]] in [line[1:] for line in lines]
        assert columns < 80 or one in [line[0] for line in lines if line]
        assert named["source"] in notes


# ---- two formats ---------------------------------------------------------------------------------

PAIRS = [
    *(
        ("e4m3", "e5m2"),
        ("e4m3", "e4m3fn"),
        ("e4m3fn", "e4m3fnuz"),
        ("e4m3fnuz:bias=11", "e5m2fnuz"),
    ),
    *(("e2m1", "e3m2"), ("e3m0", "e8m0"), ("e8m0", "e2m1"), ("fp16", "bf16"), ("e4m3", "fp16")),
    *(("e4m3:nosub", "e4m3"), ("e4m3:unsigned", "e4m3"), ("e1m3", "e2m2"), ("e1m0", "e3m3")),
    *(("binary8p4se", "e4m3fn"), ("binary8p3ue", "e5m2"), ("e8m4", "bf16"), ("tf32", "fp16")),
]


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_counts_and_values_are_those_of_all_values(one, other):
    """`cpd show --compare` prints how many values two formats have in common, and how many only one
    has. Python's sets of all values of both formats give the expected numbers."""
    a, b = cpd.Format(one), cpd.Format(other)
    mine, theirs = set(a.values().tolist()), set(b.values().tolist())
    for rows, of, first, second in (
        (comparison_rows(a, b), (a, b), mine, theirs),
        (comparison_rows(b, a), (b, a), theirs, mine),
    ):
        assert rows["common"] == len(first & second)
        for told, f, own, others in zip(
            rows["only"], of, (first, second), (second, first), strict=True
        ):
            assert (told["name"], told["count"]) == (str(f), len(own - others))
            if told["count"] <= 2**16 and max(a.bits, b.bits) <= 20:
                assert told["values"] == sorted(own - others)
            else:
                assert told["values"] is None
    for run in comparison_rows(a, b)["spacings"]:
        low, high = 2.0 ** run["first_exponent"], 2.0 ** (run["last_exponent"] + 1)
        within = [{v for v in values if low <= v < high} for values in (mine, theirs)]
        assert run["positive_values"] == [len(values) for values in within]
        assert run["in_both"] == len(within[0] & within[1])
        for values, spacing in zip(within, run["relative"], strict=True):
            assert (spacing is None) == (not values)
            here = sorted(v for v in values if v < 2 * low)
            if len(here) > 1:
                assert spacing == (here[1] - here[0]) / low


def test_wide_formats_are_counted_too():
    rows = comparison_rows(cpd.Format("fp32"), cpd.Format("tf32"))
    assert rows["common"] == cpd.Format("tf32").num_values
    assert rows["only"][0]["count"] == cpd.Format("fp32").num_values - rows["common"]
    assert rows["only"][1] == {"name": "tf32", "count": 0, "values": []}
    wide = comparison_rows(cpd.Format("e8m22"), cpd.Format("e7m23"))
    e8m22, e7m23 = cpd.Format("e8m22"), cpd.Format("e7m23")
    assert wide["common"] + wide["only"][0]["count"] == e8m22.num_values
    assert wide["common"] + wide["only"][1]["count"] == e7m23.num_values


@pytest.mark.parametrize(
    ("name", "infinity", "nan", "negative_zero", "subnormals"),
    [
        ("e4m3", True, True, True, True),
        ("e4m3fn", False, True, True, True),
        ("e4m3fnuz", False, True, False, True),
        ("binary8p4se", True, True, False, True),
        ("e2m1", False, False, True, True),
        ("e3m0", True, False, True, False),
        ("e8m0", False, True, False, False),
        ("e4m3:nosub", True, True, True, False),
        ("e5m2:unsigned", True, True, False, True),
    ],
)
def test_special_values(name, infinity, nan, negative_zero, subnormals):
    assert specials(cpd.Format(name)) == {
        "infinity": infinity,
        "nan": nan,
        "negative_zero": negative_zero,
        "subnormals": subnormals,
    }


def test_comparing_prints_both(capsys):
    assert main(["show", "--compare", "E4M3", "float8_e4m3fn"]) == 0
    told = capsys.readouterr().out
    for line in (
        "Max                    240      448",
        "Infinity               yes       no",
        "239 values in both",
        "none in e4m3 alone",
        "14 in e4m3fn alone: ±(256, 288, 320, 352, 384, 416, 448)",
    ):
        assert line in told
    assert main(["show", "--compare", "e4m3", "fp16"]) == 0
    assert "±(2^-24, 2^-23, 3·2^-24, " in capsys.readouterr().out


def test_comparing_a_format_with_itself(capsys):
    assert main(["show", "--compare", "(4,3)", "float8_e4m3"]) == 0
    told = capsys.readouterr().out
    assert "both names are of the same format, e4m3" in told
    assert "alone" not in told


def test_comparison_as_json(capsys):
    for tail in ([], ["-"]):
        assert main(["show", "--compare", "e4m3", "e5m2", "--json", *tail]) == 0
        found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
        assert [one["name"] for one in found["formats"]] == ["e4m3", "e5m2"]
        assert found["formats"][0]["max"] == 240
        a, b = cpd.Format("e4m3"), cpd.Format("e5m2")
        assert found["common"] == Comparison.of(a, b).common == 127


@pytest.mark.parametrize("columns", [20, 40, 60])
def test_a_narrow_window_cuts_no_number(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", "e4m3", "fp32"]) == 0
    words = capsys.readouterr().out.split()
    for word in ("e4m3", "4,3,7", "240", "2^-9", "0.125", "8,23,127", "3.40282e+38", "4278190079"):
        assert word in words
    assert main(["show", "--compare", "e4m3", "fp16"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["2^-14", "…", "2^-10", "-", "2^-10", "0", "5120", "0"] in lines


# ---- scaled formats ------------------------------------------------------------------------------

SCALED = (
    *("mxfp8", "mxfp4", "mxint8", "nvfp4", "fp8-row", "fp8-block", "int8 row", "bfp8"),
    *(
        "fp8-block 128x128",
        "nvfp4 scale_max=256 choose=mae",
        "nvfp4 outer=row",
        "e2m1 8 scale=e5m2",
    ),
    *("e4m3fn tensor scale=fp32 margin=2", "mxfp8 rule=rceil", "e3m2 1x16 scale=bf16 rule=up"),
)


@pytest.mark.parametrize("name", SCALED)
def test_scaled_formats_as_json(capsys, name):
    assert main(["show", name, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    q = cpd.Scaled(name)
    assert cpd.Scaled(row["name"]) == q
    for field in ("block", "rule", "outer", "arithmetic", "margin", "choose", "scale_max"):
        assert row[field] == getattr(q, field)
    assert cpd.Format(row["element"]) == q.element
    assert cpd.Format(row["scale"]) == q.scale
    assert (row["tensor_scale"] is None) == (q.tensor_scale is None)
    example = row["example"]
    assert example["bits_per_value"] == q.bits_per_value(example["shape"])
    assert example["scales"] == math.prod(q.scales_shape(example["shape"]))
    assert (row["source"] is None) == (name not in SOURCES)


@pytest.mark.parametrize("name", [*SCALED, "e2m1 8 scale=e2m1", "int4 8 scale=e4m3", "e5m2 4"])
def test_least_and_largest_of_scaled_formats(name):
    """`cpd show` prints the least and largest values of a scaled format. The printed values equal
    values decoded from codes: the least and the largest element, with the least and the largest
    scale."""
    q = cpd.Scaled(name)

    def levels(values):
        blocks = cpd.encode(np.full(q.scales_shape((1,)), values(q.scale), np.float32), q.scale)
        if q.tensor_scale is None:
            return blocks
        outer = np.full(q.tensor_scales_shape((1,)), values(q.tensor_scale), np.float32)
        return blocks, cpd.encode(outer, q.tensor_scale)

    def decoded(element, scales):
        codes = cpd.encode(np.float32([element]), q.element)
        return float(cpd.decode(codes, q, 1, scales=scales)[0])

    low = decoded(q.element.min_subnormal, levels(lambda f: f.min_subnormal))
    assert low in (least(q), 0.0)
    assert low or least(q) == 2.0**-149
    elements = q.element.values()
    found = [
        decoded(e, levels(lambda f, k=k: f.max / 2.0**k))
        for e in elements[elements > 0][-64:]
        for k in range(0 if q.scale.man else 12)
    ] or [decoded(q.element.max, levels(lambda f: f.max))]
    finite = [value for value in found if math.isfinite(value)]
    if finite:
        assert max(finite) == largest(q)
    else:
        assert largest(q) == float(np.finfo(np.float32).max)


@pytest.mark.parametrize("columns", [20, 80])
def test_scaled_formats_as_tables(capsys, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["show", "nvfp4", "e4m3", "mxfp8", "int8 row"]) == 0
    told = capsys.readouterr().out
    lines = [line.split() for line in told.splitlines()]
    assert ["Element", "e2m1", "e4m3fn", "int8"] in lines
    assert ["Block", "16", "32", "row"] in lines
    assert ["Scale", "e4m3fn", "e8m0", "fp32"] in lines
    assert ["Second", "level", "fp32", "-", "-"] in lines
    assert ["Bits", "a", "value*", "4.5", "8.25", "8.00781"] in lines
    assert ["Scales*", "1048576", "+", "1", "524288", "4096"] in lines
    assert lines[[line[:1] for line in lines].index(["e4m3"])][1:4] == ["8", "4,3,7", "240"]
    words = " ".join(told.split())
    for note in (
        "* of a 4096 x 4096 matrix",
        "floor: 2^(floor(log2 A) - emax)",
        "te: the binary32 steps of TransformerEngine's CUDA kernels",
        "e2m1: ±(0, 0.5, 1, 1.5, 2, 3, 4, 6) times the scale",
        "mxfp8: OCP Microscaling Formats (MX) 1.0",
    ):
        assert note in words
    assert columns < 80 or max(map(len, told.splitlines())) <= 80


def test_all_terms_are_told(capsys):
    """`cpd show` explains every rule, arithmetic and choice of scaled formats in words."""
    for rule in ("floor", "ceil", "rceil", "even", "max", "max_pow2", "up"):
        assert main(["show", f"mxfp8 rule={rule}"]) == 0
        assert f"\n{rule}: " in capsys.readouterr().out
    for arithmetic in ("exact", "te", "torchao", "deepgemm", "microxcaling"):
        name = "fp8-block arithmetic=deepgemm" if arithmetic == "deepgemm" else "mxfp8"
        assert main(["show", f"{name.split()[0]} arithmetic={arithmetic}"]) == 0
        assert f"\n{arithmetic}: " in capsys.readouterr().out
    for choose in ("mae", "mse"):
        assert main(["show", f"nvfp4 choose={choose}"]) == 0
        assert f"\n{choose}: " in capsys.readouterr().out
    for name, stands_for in SOURCES.items():
        assert main(["show", name]) == 0
        assert f": {stands_for}\n" in capsys.readouterr().out


def test_elements_of_scaled_formats(capsys):
    assert main(["show", "nvfp4", "--values"]) == 0
    assert "e2m1: codes (hexadecimal) and values" in capsys.readouterr().out
    assert main(["show", "nvfp4", "--values", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert [one["value"] for one in row["elements"]["values"]][:4] == [0, 0.5, 1, 1.5]


def test_formats_without_mantissa_bits_have_no_subnormals(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["show", "e3m0", "e8m0", "e2m1"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "," in line]
    assert [row[5] for row in rows if row[0] != "Format"] == ["none", "none", "0.5"]


# ---- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--compare", "e4m3"], "expected 2 arguments"),
        (["--compare", "e4m3", "e5m2", "fp16"], "two formats and no more, got fp16 too"),
        (["--compare", "e4m3", "e4m3fnn"], "did you mean 'e4m3fn'?"),
        (["--compare", "e4m3", "nvfp4"], "--compare takes formats without scales, got nvfp4"),
        (["--compare", "e4m3", "e5m2", "--tables", "ocp"], "takes two formats and no table"),
        (["--compare", "e4m3", "e5m2", "--units"], "--compare shows formats, --units does not"),
        (["e4m3fnn"], "did you mean 'e4m3fn'?"),
        (["int64"], "of integers there are int2 … int25"),
        (["-"], "unknown format '-'"),
        (
            ["h100"],
            "unknown name 'h100'; matrix units are h100-fp16, h100-bf16, h100-tf32, h100-fp8 (",
        ),
        (["e6m9 kahan"], "'e6m9 kahan' is an accumulator, which cpd.gemm takes"),
        (["fixed<40,12>"], "'fixed<40,12>' is an accumulator, which cpd.gemm takes"),
        (["nvfp5"], "unknown format 'nvfp5'; did you mean nvfp4?"),
        (["MXFP9"], "unknown format 'MXFP9'; did you mean mxfp8?"),
        (["int8", "row"], "unknown format 'row': quote a format of several words, as 'int8 row'"),
        (["e4m3fn", "128"], "unknown format '128': quote a format of several words"),
        (["mxfp8", "rule=up"], "unknown format 'rule=up': quote a format of several words"),
        (["mxfp8 rul=up"], "unknown option 'rul' of a scaled format"),
        (["mxfp8 rule=flor"], "did you mean 'floor'?"),
        (["int16 row", "--values"], "--values lists formats of up to 8 bits, int16 has 16"),
        *(
            (["e4m3", f"--neighbors={text}"], "--neighbors must be a number such as 0.3")
            for text in ("", "x", "1.2.3", "0x", "1e", "--1")
        ),
        (["e4m3", "--picture", "a.gif"], "a plot must end in .png or .svg"),
        (["mxfp8", "--picture", "a.png"], "--picture takes formats without scales, got mxfp8"),
        (["--recipes", "mxfp8", "nvfp4"], "one recipe at a time"),
        (["--recipes", "nvpf4"], "did you mean nvfp4?"),
        (["--recipes", "nowhere.toml"], "No such file or directory"),
        (["--recipes", "native weigth=mxfp8"], "weigth"),
        (["mxfp8", "--schema"], "--schema is of all recipes, got 'mxfp8' too"),
    ],
)
def test_mistakes(capsys, arguments, told):
    try:
        status = main(["show", *arguments])
    except SystemExit as stop:
        status = stop.code
    captured = capsys.readouterr()
    assert (status, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert told in captured.err
    assert captured.err.endswith(" (see cpd show --help)\n")
