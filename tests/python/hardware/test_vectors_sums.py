# SPDX-License-Identifier: Apache-2.0
"""Tests vectors of sums and matrix units. Python computes each stage of a sum again, and compares
it with the vector's inner signals and result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cpd
from arrays import fixed_of
from cpd import _core
from cpd.hardware import Vectors, check_vectors, make_vectors
from cpd.hardware.testbench.units import Ports, plain_unit, unit_of
from cpd.hardware.vectors.lines import SUFFIXES, head_text, lines_of
from cpd.hardware.vectors.values import values_of
from rationals import Fraction
from vector_cases import columns

UNITS = {name: cpd.Accumulator(name) for name in cpd.Accumulator.named()}
ALIGNED = [name for name, unit in UNITS.items() if unit.adder == "aligned"]
OTHERS = [name for name in UNITS if name not in ALIGNED]


# ---- ordered sums -------------------------------------------------------------------------------

DOTS = [
    ("e4m3fn", "e6m9", 16),
    ("e4m3fn", "e6m9 kahan", 7),
    ("e5m2", "e4m3 chunked chunk=3", 8),
    ("fp16", "fp32 pairwise", 7),
    ("e4m3fn", "e6m9 fma rounding=down", 5),
    ("e5m2", "e6m5 chunked chunk=4 inner=e4m3 rounding=stochastic random_bits=6", 9),
    ("e4m3", "e5m2 kahan rounding=stochastic random_bits=10", 4),
    ("e4m3", "e5m2 pairwise rounding=stochastic random_bits=10", 7),
    ("e5m2", "e4m3fn sequential product=e5m2 overflow=saturate rounding=up", 4),
    ("fp16", "e2m1", 3),
    ("int8", "int32", 16),
    ("e4m3fn", "fixed<24,6> overflow=saturate sum_rounding=nearest_even", 8),
    ("e5m2", "fixed<16,4>", 4),
    ("fp32", "fixed<64,30>", 4),
    ("fp16", "fp16 fixed width=14 fraction=-3 rounding=up", 5),
]
SUMS = [
    ("fp32", "e6m9 kahan", 6),
    ("fp32", "e6m9", 1),
    ("fp16", "fixed<20,8>", 5),
    ("e5m2", "e6m9 chunked chunk=3 rounding=up", 8),
    ("fp16", "e6m9 pairwise", 7),
    ("fp16", "e6m9 pairwise rounding=stochastic random_bits=5", 7),
    ("fp32", "e5m2 kahan rounding=stochastic random_bits=5", 5),
    ("fp32", "e5m2 chunked chunk=2 rounding=stochastic random_bits=5", 5),
]


@pytest.mark.parametrize(
    ("operation", "case"), [*(("dot", d) for d in DOTS), *(("sum", s) for s in SUMS)]
)
def test_oracle_and_kernels_agree(operation: str, case: tuple[str, str, int]) -> None:
    f, acc, length = case
    how: dict[str, Any] = {"accumulator": acc, "length": length}
    columns(make_vectors(operation, f, random=200, seed=5, tininess="before", **how))
    made = make_vectors(operation, f, directed=True, random=300, **how)
    every = columns(made)
    assert len(every["a"]) + made.left_out >= 300
    assert all(each.name in every for each in made.rule.fields)
    assert every["flags"].max() < 32


def each_step(f: cpd.Format, every: dict[str, Any]) -> dict[str, Any]:
    return {n: values_of(f, v.astype(np.uint32)) for n, v in every.items() if n not in "abcrflags"}


@pytest.mark.parametrize(
    ("formats", "text", "length"),
    [
        ("int8", "int32", 16),
        ("int8:full", "int16", 8),
        ("int8:full", "int16 overflow=saturate", 8),
        (("int4", "e4m3fn"), "fixed<24,6> sum_rounding=down overflow=saturate", 5),
        ("int8", "int64", 4),
        ("e5m2", "fixed<9,2>", 3),
    ],
)
def test_an_integer_accumulators_c_and_results_are_integers(
    formats: Any, text: str, length: int
) -> None:
    """With an integer accumulator, the addend c and the result are integers. Python's integers give
    the same sums from the codes."""
    made = make_vectors("dot", formats, accumulator=text, length=length, directed=True, random=300)
    acc = cpd.Accumulator(text)
    width, unit = acc.width, Fraction(2) ** -acc.fraction
    of = fixed_of(acc)
    widths = {field.name: (field.bits, field.signed) for field in made.rule.fields}
    assert widths["c"] == widths["result"] == (width, True)
    every = columns(made)
    a, b = (
        values_of(f, every[name]).astype(float)
        for name, f in zip("ab", made.rule.formats, strict=True)
    )
    for i in range(len(a)):
        s, flags = signed(int(every["c"][i]), width), 0
        for x, y in zip(a[i], b[i], strict=True):
            if not np.isfinite(x * y):
                flags |= 16
                continue
            units = of.units(Fraction(x) * Fraction(y))
            kept = of.kept(s + units)
            flags |= (units * unit != Fraction(x) * Fraction(y)) | 5 * (kept != s + units)
            s = kept
        assert signed(int(every["result"][i]), width) == s
        assert every["flags"][i] == flags
    assert every["result"][0] == every["sum"][0, -1]


def test_the_signals_of_kahan_are_its_operations() -> None:
    f = cpd.Format("e6m9")
    made = make_vectors("dot", "e4m3fn", accumulator="e6m9 kahan", length=6, random=500)
    every = columns(made)
    step = each_step(f, every)
    s = step["start"]
    compensation = np.zeros_like(s)
    for k in range(6):
        product = step["product"][:, k]
        for name, expected in (
            ("y", cpd.add(product, -compensation, f)),
            ("t", cpd.add(s, step["y"][:, k], f)),
            ("grown", cpd.add(step["t"][:, k], -s, f)),
            ("compensation", cpd.add(step["grown"][:, k], -step["y"][:, k], f)),
        ):
            np.testing.assert_array_equal(step[name][:, k], expected)
        s = step["t"][:, k]
        compensation = np.where(np.isfinite(s), step["compensation"][:, k], np.float32(0))
    np.testing.assert_array_equal(step["result"], s)


def test_the_signals_of_chunks_and_trees_are_their_sums() -> None:
    f = cpd.Format("e6m9")
    every = columns(
        make_vectors("dot", "e4m3fn", accumulator="e6m9 chunked chunk=4", length=6, random=300)
    )
    step = each_step(f, every)
    t = np.zeros_like(step["start"])
    s = step["start"]
    for k in range(6):
        t = cpd.add(np.zeros_like(t) if k == 4 else t, step["product"][:, k], f)
        np.testing.assert_array_equal(step["partial"][:, k], t)
        if k in (3, 5):
            s = cpd.add(s, t, f)
            np.testing.assert_array_equal(step["sum"][:, k // 4], s)
    every = columns(make_vectors("sum", "fp16", accumulator="e6m9 pairwise", length=4, random=300))
    step = each_step(f, every)
    x = values_of(cpd.Format("fp16"), every["a"])
    left, right = cpd.add(x[:, 0], x[:, 1], f), cpd.add(x[:, 2], x[:, 3], f)
    for i, expected in enumerate((left, right, cpd.add(left, right, f))):
        np.testing.assert_array_equal(step["tree"][:, i], expected)


def test_flags_are_those_of_all_roundings() -> None:
    """The flags of a sum are the union of the flags of all its roundings. The test repeats each
    rounding by cpd.cast, cpd.mul or cpd.add."""
    f = cpd.Format("e4m3")
    every = columns(make_vectors("dot", "e5m2", accumulator="e4m3", length=3, random=2000))
    step = each_step(f, every)
    a, b = (values_of(cpd.Format("e5m2"), every[n]) for n in "ab")
    s, flags = cpd.cast(values_of(f, every["c"]), f, flags=True)
    for k in range(3):
        product, of_product = cpd.mul(a[:, k], b[:, k], f, flags=True)
        np.testing.assert_array_equal(step["product"][:, k], product)
        s, of_sum = cpd.add(s, product, f, flags=True)
        flags |= of_product | of_sum
    np.testing.assert_array_equal(every["flags"], flags)


# ---- matrix units -------------------------------------------------------------------------------


def signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> (bits - 1) else value


class Block:
    """The inner signals (intermediate results) of a matrix unit for one block of products in one
    test vector, as integers."""

    def __init__(self, made: Vectors, every: dict[str, Any], line: int, block: int) -> None:
        fields = {field.name: field for field in made.rule.fields}
        blocks = fields["special"].count
        self.value: dict[str, list[int]] = {}
        for name, field in fields.items():
            if field.role != "signal" or name == "promoted":
                continue
            numbers = [int(x) for x in np.atleast_1d(every[name][line])]
            if field.signed:
                numbers = [signed(x, field.width) for x in numbers]
            each = field.count // blocks
            self.value[name] = numbers[block * each : (block + 1) * each]
        self.width = {name: field.width for name, field in fields.items()}

    def __getattr__(self, name: str) -> Any:
        numbers = self.__dict__["value"][name]
        return numbers if name.startswith("p_") else numbers[0]


def two(k: int) -> Fraction:
    return Fraction(1 << k) if k >= 0 else Fraction(1, 1 << -k)


def exact_terms(made: Vectors, every: dict[str, Any], line: int, block: int) -> list[Fraction]:
    """Computes each term of a block exactly from the operands."""
    unit = made.rule.accumulator
    a, b = (values_of(cpd.Format(getattr(unit, n)), every[n][line]) for n in "ab")
    k = range(block * unit.block, min((block + 1) * unit.block, len(a)))
    products = [Fraction(float(a[i])) * Fraction(float(b[i])) for i in k]
    if unit.scale is None:
        return products
    scale = cpd.Format(unit.scale)
    x, y = (values_of(scale, np.atleast_1d(every[f"{n}_scale"][line])) for n in "ab")
    scales = [
        abs(Fraction(float(x[i // unit.scale_block])) * Fraction(float(y[i // unit.scale_block])))
        for i in k
    ]
    scaled = [p * s for p, s in zip(products, scales, strict=True)]
    return [sum(scaled[i : i + unit.dot], Fraction(0)) for i in range(0, len(scaled), unit.dot)]


def fraction_bits_of(made: Vectors) -> int:
    unit = made.rule.accumulator
    a, b = cpd.Format(unit.a), cpd.Format(unit.b)
    fraction = a.man + b.man
    if unit.dot > 1:
        fraction -= 1 - a.bias + 1 - b.bias
    return fraction + (0 if unit.scale is None else 2 * cpd.Format(unit.scale).man)


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", ALIGNED)
def test_the_signals_of_a_unit_are_an_aligned_sum(name: str) -> None:
    """The inner signals are the stages of an aligned sum: terms, terms shifted and truncated, sum,
    normalized sum, rounded sum. Python's integers compute each stage again."""
    unit = UNITS[name]
    made = make_vectors("block_fma" if unit.scale is None else "mma", accumulator=name, random=120)
    every = columns(made)
    seen = 0
    for line in range(made.count):
        block = Block(made, every, line, 0)
        if block.special:
            continue
        seen += 1
        check_block(made, every, line, block)
    assert seen > 60


def check_block(made: Vectors, every: dict[str, Any], line: int, block: Block) -> None:
    unit = made.rule.accumulator
    f = fraction_bits_of(made)
    terms = exact_terms(made, every, line, 0)
    total, cuts = 0, 0
    greatest = unit.min_exponent
    for i, term in enumerate(terms):
        e, significand = block.p_exp[i], block.p_sig[i]
        assert abs(term) == significand * two(e - f)
        assert block.p_sign[i] == (term < 0) or term == 0
        greatest = max(greatest, e)
        drop = block.p_shift[i] + f - unit.fraction_bits
        assert block.p_shift[i] == block.max_exp - e
        kept = significand >> drop if drop >= 0 else significand << -drop
        cut = significand - (kept << drop) if drop > 0 else 0
        assert block.p_cut[i] == cut
        total += -kept if block.p_sign[i] else kept
        cuts |= cut
    man = cpd.Format(unit.sum).man
    c = (-1) ** block.c_sign * block.c_sig * two(block.c_exp - man)
    exact = total * two(block.max_exp - unit.fraction_bits)
    if unit.addend == "aligned":
        greatest = max(greatest, block.c_exp)
        drop = block.c_shift + man - unit.fraction_bits
        kept = block.c_sig >> drop if drop >= 0 else block.c_sig << -drop
        cuts |= block.c_cut
        assert block.c_cut == (block.c_sig - (kept << drop) if drop > 0 else 0)
        total += -kept if block.c_sign else kept
        exact = total * two(block.max_exp - unit.fraction_bits)
    else:
        exact += c
    assert block.max_exp == greatest
    assert block.sum == total
    if exact:
        width = block.width["n_sig"]
        assert block.n_sig >> (width - 1) == 1
        normalised = block.n_sig * two(block.n_exp - width + 1)
        assert normalised <= abs(exact) < normalised + two(block.n_exp - width + 1)
        assert unit.addend != "aligned" or normalised == abs(exact)
        assert block.n_sign == (exact < 0)
    inexact = check_rounded(unit, exact, every["block_sum"][line])
    if cuts or inexact:
        assert every["flags"][line] & 1


def check_rounded(unit: Any, exact: Fraction, code: Any) -> bool:
    """Asserts that the rounded sum is a neighbor of the exact sum. Returns True if the rounding is
    inexact."""
    f = cpd.Format(unit.sum)
    value = float(values_of(f, np.uint32([np.atleast_1d(code)[0]]))[0])
    if not np.isfinite(value):
        assert abs(exact) > f.max
        return True
    rounded, flags = cpd.cast(
        np.float64([float(exact)]), cpd.Cast(f, rounding=unit.sum_rounding), flags=True
    )
    assert rounded[0] == value or abs(exact) > f.max
    return bool(flags[0] & 1)


def test_blocks_follow_each_other() -> None:
    """A matrix unit adds a long dot product block by block: each block of products is added to the
    sum of the block before. The first block is added to the addend c."""
    made = make_vectors("block_fma", accumulator="v100", length=12, random=200)
    every = columns(made)
    sums = values_of(cpd.Format("fp32"), every["block_sum"])
    for line in range(made.count):
        for block in (1, 2):
            now = Block(made, every, line, block)
            if now.special:
                continue
            c = (-1) ** now.c_sign * now.c_sig * two(now.c_exp - 23)
            assert c == Fraction(float(sums[line, block - 1]))
    np.testing.assert_array_equal(every["result"], every["block_sum"][:, -1])


def test_promotion_adds_the_units_sum() -> None:
    made = make_vectors("block_fma", accumulator="deepseek-promoted", length=256, random=60)
    every = columns(made)
    total = values_of(cpd.Format("fp32"), every["c"])
    unit = values_of(cpd.Format("e8m13"), every["block_sum"])
    for i in range(2):
        total = cpd.add(total, unit[:, 4 * i + 3], "fp32")
        promoted = values_of(cpd.Format("fp32"), every["promoted"][:, i].astype(np.uint32))
        np.testing.assert_array_equal(promoted, total)


def test_a_unit_by_its_rule() -> None:
    """A user-defined matrix unit computes as its options say. They differ from all presets' in
    operand format, block length and fraction bits. The unit aligns the addend c with the products,
    or adds c separately."""
    for separate in (False, True):
        unit = cpd.Accumulator(
            a="e5m2",
            b="e5m2",
            block=16,
            fraction_bits=9,
            sum="e6m9",
            addend="separate" if separate else "aligned",
            sum_rounding="nearest_even",
            min_exponent=-20,
        )
        made = make_vectors("block_fma", accumulator=unit.replace(format="fp16"), random=150)
        every = columns(made)
        for line in range(made.count):
            block = Block(made, every, line, 0)
            if not block.special:
                check_block(made, every, line, block)


def test_scales_below_every_normal_number() -> None:
    """Random test vectors contain e8m0's least scale, 2^-127 (code 0), which is below binary32's
    normal numbers."""
    made = make_vectors("mma", accumulator="rtx-blackwell-mxfp8", random=2000)
    every = columns(made)
    assert (every["a_scale"] == 0).any()


# ---- units that do not align every term ----------------------------------------------------------


@pytest.mark.few("", 3)
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("kind", ["testfloat", "csv", "jsonl", "readmemh"])
def test_units_without_a_trace_have_results_alone(name: str, kind: str, tmp_path: Path) -> None:
    """The vectors have the results of cpd.gemm. A file of the vectors can be read back, and
    check_vectors finds lines with wrong results."""
    made = make_vectors("block_fma", accumulator=name, random=60, directed=True)
    assert [(f.name, f.role) for f in made.rule.fields if f.role != "input"] == [
        ("result", "output")
    ]
    every = columns(made)
    a, b, c = (
        values_of(f, every[field]) for field, f in zip("abc", made.rule.formats, strict=True)
    )
    product = cpd.gemm(a[:, None, :], b[:, :, None], name, c[:, None, None])[:, 0, 0]
    results = values_of(made.rule.result, every["result"])
    assert np.array_equal(product, results, equal_nan=True)
    assert "tie" not in made.coverage
    path = made.write(tmp_path / f"unit{SUFFIXES[kind]}", kind)
    found = check_vectors(path, kind)
    assert (found.lines, found.wrong) == (made.count, 0)
    assert found.coverage == made.coverage
    every["result"] = every["result"] ^ np.uint32(1)
    head = head_text(kind, made.head, made.rule.fields).encode()
    path.write_bytes(head + lines_of(kind, made.rule.fields, every))
    assert check_vectors(path, kind).wrong + check_vectors(path, kind).other_nans == made.count


def test_units_without_a_trace_and_modules(tmp_path: Path) -> None:
    """If a matrix unit does not align the products and the addend c, its vectors have no inner
    signals, and tests/rtl has no module for it. The test bench then fits a module that outputs only
    a result."""
    made = make_vectors("block_fma", accumulator="cdna3-fp16", random=5)
    with pytest.raises(ValueError, match="units that align products and c"):
        unit_of(made.head, made.rule.fields)
    unit = plain_unit(made.rule.fields, "mma", Ports())
    assert [f.name for f in unit.outputs] == ["result"]
    with pytest.raises(ValueError, match="these vectors have none"):
        plain_unit(made.rule.fields, "mma", Ports(signals=("sum",)))
    unit = cpd.Accumulator("cdna3-fp16")
    drawn = unit.replace(format="bf16", rounding="stochastic")
    with pytest.raises(ValueError, match="round to nearest, not at random"):
        make_vectors("block_fma", accumulator=drawn, random=5)


@pytest.mark.parametrize("length", [1, 2])
def test_all_sums_of_integers(length: int) -> None:
    """In every test vector, the result equals a sum in Python's integers, modulo 2^3. The sum adds
    products of two-bit operands to the addend c; c and the result have three bits."""
    made = make_vectors("dot", "int2:full", accumulator="int3", length=length)
    seen = set()
    for batch in made.batches():
        operands = (np.reshape(batch[name], (-1, length)).tolist() for name in "ab")
        lines = zip(*operands, batch["c"].tolist(), batch["result"].tolist(), strict=True)
        for a, b, c, result in lines:
            signed = [[x - 4 * (x > 1) for x in each] for each in (a, b)]
            exact = c + sum(x * y for x, y in zip(*signed, strict=True))
            assert result == exact % 8, (a, b, c)
            seen.add((*a, *b, c))
    assert (made.source, made.count, len(seen)) == ("exhaustive", *[8 << 4 * length] * 2)


@pytest.mark.parametrize("seed", [0, 9])
def test_infinite_products_of_either_sign_are_in_each_lane(seed: int) -> None:
    """For each product of a block and each sign, a directed test vector has an infinity in this
    product alone, and an addend c of 0. In other directed vectors, c is the opposite infinity."""
    made = make_vectors("block_fma", accumulator="h100-fp16", directed=True, seed=seed)
    lines = columns(made)
    a, b = (values_of(cpd.Format("fp16"), lines[name]) for name in "ab")
    c = values_of(cpd.Format("fp32"), lines["c"])
    with np.errstate(invalid="ignore"):
        products = a * b
    alone = np.isfinite(products).sum(axis=1) == products.shape[1] - 1
    for infinity in (np.inf, -np.inf):
        assert ((products == infinity) & (alone & (c == 0))[:, None]).any(axis=0).all()
        assert ((products == infinity).any(axis=1) & alone & (c == -infinity)).any()


@pytest.mark.parametrize("seed", [0, 9])
def test_zeros_with_a_scale_that_is_nan(seed: int) -> None:
    """In some directed test vectors, all products and the addend c are zero, but the scale of
    operand a or b is NaN. The matrix unit's result is then NaN."""
    made = make_vectors("mma", accumulator="rtx-blackwell-mxfp8", directed=True, seed=seed)
    lines = columns(made)
    a, b = (values_of(cpd.Format("e4m3fn"), lines[name]) for name in "ab")
    zero = (a * b == 0).all(axis=1) & (lines["c"] == 0)
    for name in ("a_scale", "b_scale"):
        rows = zero & (lines[name].reshape(len(zero), -1) == 0xFF).all(axis=1)
        assert rows.any()
        assert np.isnan(values_of(cpd.Format("fp32"), lines["result"][rows])).all()


def test_the_oracle_takes_strided_addends() -> None:
    """The oracle accepts addends that are not contiguous in memory, and gives the sums of a
    contiguous copy."""
    e4m3, fixed = _core.Format.parse("e4m3"), _core.Accumulator.parse("fixed<32,12>")
    rule = _core.SumRule(fixed, [e4m3, e4m3], 1, "before")
    addends, zeros = np.arange(8, dtype=np.uint64)[::2], np.zeros(4, np.uint32)
    signals = _core.oracle_sums(rule, 4, zeros, zeros, c_units=addends)[3]
    assert signals[:, -1].tolist() == [0, 2, 4, 6]
