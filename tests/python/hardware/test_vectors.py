# SPDX-License-Identifier: Apache-2.0
"""Tests vectors of element-wise operations. Values and flags are compared with rational numbers,
and random operands with operands that Python makes one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cpd
import flags_oracle
import lines_oracle
import oracle
from arrays import spec_of
from cpd.hardware import Vectors, make_vectors
from cpd.hardware.vectors.corners import CORNERS, corner_of, flags_text
from cpd.hardware.vectors.inputs import Words
from cpd.hardware.vectors.values import values_of
from vector_cases import columns


def exact(f: cpd.Format, code: int) -> oracle.Value:
    return oracle.value_from_double(float(values_of(f, np.uint32([code]))[0]))


# ---- results ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tininess", ["after", "before"])
@pytest.mark.parametrize(
    ("operation", "name", "overflow"),
    [
        ("add", "e3m2ieee", "ieee"),
        ("mul", "e2m3ieee", "ieee"),
        ("mul", "e3m1:nosub", "saturate"),
        ("div", "e3m2fnuz", "ieee"),
        ("sqrt", "e4m3", "ieee"),
        ("add", "e2m2fn:unsigned", "saturate"),
        ("fma", "e2m1", "ieee"),
        ("div", "e1m3ieee", "ieee"),
        ("cast", "e4m3fnuz", "ieee"),
        ("cast", "e8m0", "ieee"),
    ],
)
def test_lines_are_those_of_rational_numbers(
    operation: str, name: str, overflow: str, tininess: str
) -> None:
    f = cpd.Format(name)
    for mode in ("nearest_even", "down", "stochastic"):
        how: dict[str, Any] = {"rounding": mode, "overflow": overflow, "tininess": tininess}
        how |= {"random_bits": 3} if mode == "stochastic" else {}
        made = make_vectors(operation, f, random=150, seed=7, **how)
        every = columns(made)
        for i in range(made.count):
            code, flags = rational(made, every, i)
            assert every["flags"][i] == flags, (i, mode, flags_text(flags))
            assert exact(f, every["result"][i]) == code, (i, mode)


def rational(made: Vectors, every: dict[str, Any], i: int) -> tuple[oracle.Value, int]:
    rule = made.rule
    names = zip("abc", rule.formats, strict=False)
    operands = [exact(f, every[n][i]) for n, f in names]
    how = rule.to
    random = int(every["r"][i]) if "r" in every else 0
    o = oracle.Options(how.rounding, how.overflow, how.variant, how.random_bits, random)
    signals = any(
        flags_oracle.is_signalling(spec_of(f), int(every[n][i]))
        for n, f in zip("abc", rule.formats, strict=False)
        if n in every
    )
    to = spec_of(rule.result)
    return flags_oracle.result(rule.operation, operands, to, o, rule.tininess, signals)


def test_signalling_nan_are_invalid() -> None:
    """e4m3 has three signaling NaNs of each sign, which raise the invalid flag. A NaN whose first
    mantissa bit is 1 is quiet and raises no flag."""
    every = columns(make_vectors("mul", "e4m3", exhaustive=True))
    lines = zip(every["a"], every["b"], every["flags"], strict=True)
    raised = {int(a): int(flags) for a, b, flags in lines if b == 0x38}  # times 1
    known = {code: flags for code, flags in raised.items() if code & 0x7F > 0x78}
    assert known == {c | s: 16 if c < 0x7C else 0 for c in range(0x79, 0x80) for s in (0, 0x80)}


@pytest.mark.parametrize(
    ("given", "silent"),
    [
        ({"operation": "mul", "formats": ["e4m3fn"]}, []),
        ({"operation": "fma", "formats": ["e2m1fnuz", "e2m3ieee", "e2m1"], "result": "e4m3"}, "b"),
        ({"operation": "cast", "formats": ["e2m3ieee", "e4m3fn"]}, "a"),
        ({"operation": "sum", "formats": "e4m3fn", "accumulator": "e6m9", "length": 3}, []),
        ({"operation": "dot", "formats": ["e4m3fn", "e5m2"], "accumulator": "fp32"}, "bc"),
    ],
)
def test_every_nan_is_invalid_where_asked(given: dict[str, Any], silent: Any) -> None:
    """With nan_signals=True, every NaN operand raises the invalid flag (NV), unless its format has
    signaling NaNs. Results and all other flags are the same as without the option."""
    plain = make_vectors(**given, random=2000)
    made = make_vectors(**given, random=2000, nan_signals=True)
    raised = set()
    for usual, line in zip(plain.batches(), made.batches(), strict=True):
        formats = dict(zip("abc", made.rule.formats, strict=False))
        loud = np.zeros(len(line["a"]), bool)
        for name, f in formats.items():
            if name not in silent:
                nan = [flags_oracle.is_nan(exact(f, code)) for code in line[name].reshape(-1)]
                loud |= np.reshape(nan, (len(loud), -1)).any(axis=1)
        for name in line:
            expected = usual[name] | np.where(loud, 16, 0) if name == "flags" else usual[name]
            assert np.array_equal(line[name], expected), name
        raised |= set(loud.tolist())
    assert raised == ({False} if silent == "a" else {False, True})
    assert make_again(made).describe() == made.rule.describe()
    assert made.rule != plain.rule


def make_again(made: Vectors) -> Any:
    from cpd.hardware.vectors.making import rule_of

    return rule_of(made.rule.describe())


def test_lines_by_hand() -> None:
    every = columns(make_vectors("mul", "e4m3fn"))
    lines = zip(*(every[n] for n in ("a", "b", "result", "flags")), strict=True)
    known = {(a, b): (result, flags) for a, b, result, flags in lines}
    assert known[0x38, 0x38] == (0x38, 0)  # 1 * 1
    assert known[0x39, 0x39] == (0x3A, 1)  # 1.125² = 1.265625
    assert known[0x7E, 0x7E] == (0x7F, 5)  # beyond 448 is NaN
    assert known[0x01, 0x81] == (0x80, 3)  # -2^-18 is -0
    assert known[0x01, 0x30] == (0x00, 3)  # a tie at half of the least number
    assert known[0x7F, 0x00] == (0x7F, 0)  # a NaN operand raises nothing
    every = columns(make_vectors("div", "e5m2"))
    division = dict(zip(zip(every["a"], every["b"], strict=True), every["flags"], strict=True))
    assert (division[0x3C, 0x00], division[0x00, 0x80], division[0x7C, 0xFC]) == (8, 16, 16)


def test_the_operand_and_the_result_have_their_formats() -> None:
    made = make_vectors("cast", ["fp16", "e4m3fn"])
    assert [f.bits for f in made.rule.fields] == [16, 8, 5]
    assert make_vectors("cast", "e2m1").rule.formats == (cpd.Format("fp32"),)
    assert make_vectors("cast", "fp16", "e2m1").rule.result == cpd.Format("e2m1")
    mixed = make_vectors("fma", ["e4m3fn", "e5m2", "fp16"], "bf16", random=100)
    assert [f.bits for f in mixed.rule.fields] == [8, 8, 16, 16, 5]
    assert columns(mixed)["result"].max() > 255


def test_every_random_integer_is_a_line() -> None:
    every = columns(
        make_vectors("cast", ["e3m2ieee", "e2m1"], rounding="stochastic", random_bits=4)
    )
    nan = corner_of(cpd.Format("e3m2ieee"), np.arange(64), "in") & 1 << CORNERS.index("nan_in")
    assert len(every["a"]) == 16 * np.count_nonzero(nan == 0)
    one_and_an_eighth = every["a"] == 0x0C + 0  # 1.0: exact whatever r is
    assert len(set(every["result"][one_and_an_eighth])) == 1


def test_nan_without_a_code_is_left_out_and_counted() -> None:
    made = make_vectors("cast", ["e5m2", "e2m1"])
    every = columns(made)
    assert (made.count, made.left_out) == (250, 6)
    assert len(every["a"]) == 250


# ---- which lines --------------------------------------------------------------------------------


def test_a_negative_number_over_zero_raises_one_flag_in_an_unsigned_format() -> None:
    every = columns(make_vectors("div", "int4", "binary8p3ue"))
    minus_eight_over_zero = (every["a"] == 0x8) & (every["b"] == 0)
    assert every["result"][minus_eight_over_zero] == 0xFF  # NaN
    assert every["flags"][minus_eight_over_zero] == 8  # DZ


@pytest.mark.parametrize("name", ["fp16", "fp32", "e6m9"])
@pytest.mark.parametrize("operation", ["add", "mul", "fma", "div", "sqrt", "cast"])
def test_directed_lines_have_every_corner(operation: str, name: str) -> None:
    made = make_vectors(operation, name, "e4m3" if operation == "cast" else name, directed=True)
    columns(made)
    lacking = {corner for corner, count in made.coverage.items() if count == 0}
    impossible = {
        "add": {"UF", "DZ"},
        "mul": {"cancellation", "DZ"},
        "fma": {"DZ"},
        "div": {"cancellation"},
        "sqrt": {"cancellation", "OF", "UF", "DZ", "subnormal_out", "largest", "carry", "tie"},
        "cast": {"cancellation", "DZ", "NV"},
    }
    assert lacking <= impossible[operation], lacking


@pytest.mark.parametrize("seed", [0, 9])
@pytest.mark.parametrize("formats", [("e4m3fn", "e4m3fn", "fp32"), "fp16"])
def test_directed_lines_cancel_to_a_unit_of_the_last_place(formats: Any, seed: int) -> None:
    """The directed test vectors of fma include results of exactly one unit in the last place (ulp)
    of c. In some of them, a and b are the least subnormal numbers; in others, a · b is over 100
    ulps of c."""
    made = make_vectors(
        "fma", formats, formats[-1] if len(formats) == 3 else None, directed=True, seed=seed
    )
    lines, rule = columns(made), made.rule
    a, b, c = (
        values_of(f, lines[n]).astype(float) for n, f in zip("abc", rule.formats, strict=True)
    )
    with np.errstate(invalid="ignore", over="ignore"):
        exact = a * b + c
        unit = np.spacing(c.astype(np.float32 if rule.formats[2].man == 23 else np.float16))
        apart = np.abs(exact) == np.abs(unit)
    least = rule.formats[0].min_subnormal
    if len(formats) == 3:
        assert (apart & (np.abs(a) == least) & (np.abs(b) == least)).sum() >= 2
    assert (apart & (c != 0) & (np.abs(a * b) > 100 * np.abs(unit))).sum() > 20


@pytest.mark.parametrize("operation", ["cast", "add", "mul", "fma", "div", "sqrt"])
@pytest.mark.parametrize(
    "names",
    ["bf16", "fp32,e4m3fn,int8", "e5m2,int4:full,e8m0", "e2m1,e4m3fn:unsigned,sm8", "int25"],
)
def test_random_inputs_are_those_of_the_words(operation: str, names: str) -> None:
    operands = {"cast": 1, "sqrt": 1, "fma": 3}.get(operation, 2)
    given = [cpd.Format(name) for name in names.split(",")]
    f, result = (given * 3)[:operands], given[-1]
    for random_bits in (0, 5):
        how = {"rounding": "stochastic", "random_bits": random_bits} if random_bits else {}
        rule = make_vectors(operation, f, result, random=1, **how).rule
        words, expected = Words(2**64 - 1), np.random.PCG64(2**64 - 1)
        for n in (1, 700):  # the second ones follow the first
            lines = rule.random_lines(words, n)
            right = lines_oracle.lines(operation, f, result, random_bits, expected, n)
            assert np.stack(list(lines.values()), axis=1).tolist() == right
        assert words.next(1) == expected.random_raw(1)


def test_random_inputs_of_many_lines() -> None:
    rule = make_vectors("fma", "bf16", random=1).rule
    n = 30_001
    which = [0, 1, 255, 256, 4095, 4096, 8191, 8192, 12345, n - 2, n - 1]
    lines = rule.random_lines(Words(3), n)
    right = lines_oracle.lines("fma", rule.formats, rule.result, 0, np.random.PCG64(3), n, which)
    assert np.stack([lines[name][which] for name in "abc"], axis=1).tolist() == right


def test_a_seed_means_the_same_lines() -> None:
    first = columns(make_vectors("fma", "fp16", random=1000, seed=3))
    again = columns(make_vectors("fma", "fp16", random=1000, seed=3))
    other = columns(make_vectors("fma", "fp16", random=1000, seed=4))
    assert all((first[name] == again[name]).all() for name in first)
    assert (first["a"] != other["a"]).any()


def test_the_default_is_all_up_to_a_million_lines() -> None:
    assert make_vectors("mul", "e4m3fn").source == "exhaustive"
    assert make_vectors("fma", "e3m2").source == "exhaustive"
    assert make_vectors("mul", "e4m5").source == "exhaustive"
    assert make_vectors("mul", ["e4m5", "e4m6"]).source == "directed+random"
    assert make_vectors("mul", "fp16", random=5).source == "random"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"operation": "mod", "formats": "e4m3"}, "operation must be"),
        ({"operation": "mul"}, "the operands' format is missing"),
        ({"operation": "mul", "formats": ["e4m3"] * 3}, "takes one format or 2"),
        ({"operation": "mul", "formats": "e4m3", "rounding": "odd"}, "rounding must be"),
        ({"operation": "mul", "formats": "e4m3", "tininess": "never"}, "tininess must be"),
        ({"operation": "mul", "formats": "fp32", "exhaustive": True}, "2\\^64 lines"),
        ({"operation": "mul", "formats": "e4m3", "exhaustive": True, "random": 1}, "all there are"),
        ({"operation": "mul", "formats": "e4m3", "random": -1}, "random must be"),
        ({"operation": "mul", "formats": "e4m3", "seed": -1}, "seed must be"),
        ({"operation": "mul", "formats": "e4m3", "length": 3}, "are for sums"),
        ({"operation": "dot", "formats": "e4m3"}, "needs an accumulator, such as int32"),
        ({"operation": "mma"}, "needs an accumulator, such as rtx-blackwell-mxfp8"),
        ({"operation": "mma", "accumulator": "e6m9"}, "such as rtx-blackwell-mxfp8, got e6m9"),
        (
            {"operation": "dot", "formats": "e4m3", "accumulator": "fp32", "length": 0},
            "length must be 1…4096, got 0",
        ),
        ({"operation": "mma", "accumulator": "h100-fp8"}, "takes no scales"),
        ({"operation": "mul", "formats": "fp64"}, "codes of at most 32 bits; fp64 has 64"),
        (
            {"operation": "block_fma", "accumulator": "fp32"},
            "needs a matrix unit as its accumulator",
        ),
        ({"operation": "dot", "accumulator": "cdna3-fp8", "nan_signals": True}, "has none"),
        ({"operation": "block_fma", "formats": "fp16", "accumulator": "h100-fp8"}, "operands are"),
        ({"operation": "sum", "formats": "fp32", "accumulator": "h100-fp8"}, "sum"),
    ],
)
def test_mistakes_are_told(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        make_vectors(**given)


# ---- oracle and kernels -------------------------------------------------------------------------


def test_a_kernel_that_differs_stops_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    from cpd.hardware.vectors import rules

    right = rules.ops.mul

    def wrong(*operands: Any, **how: Any) -> Any:
        values, flags = right(*operands, **how)
        values[7] *= np.float32(2)
        return values, flags

    monkeypatch.setattr(rules.ops, "mul", wrong)
    file = tmp_path / "x.tv"
    file.write_text("before")
    with pytest.raises(RuntimeError, match="line 7 of a batch"):
        make_vectors("mul", "fp16", random=50).write(file)
    assert file.read_text() == "before"


def test_flags_that_differ_stop_all(monkeypatch: pytest.MonkeyPatch) -> None:
    from cpd.hardware.vectors import rules

    right = rules.ops.add

    def wrong(*operands: Any, **how: Any) -> Any:
        values, flags = right(*operands, **how)
        return values, flags ^ np.uint8(2)

    monkeypatch.setattr(rules.ops, "add", wrong)
    with pytest.raises(RuntimeError, match="oracle"):
        list(make_vectors("add", "e4m3").batches())
