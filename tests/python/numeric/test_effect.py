# SPDX-License-Identifier: Apache-2.0
"""Tests that every option in the text of a spec changes some result. Otherwise the text must be
refused, by an error that names the option to use."""

import itertools
import re
import tomllib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cpd
from cpd import _core

VALUES = np.float32([1.1, -1.1, 3.3, -0.26, 2.0**-9, 1e-7, 449, -1e5, 3.3e38, np.inf, -np.inf])
DRAWS = "random_bits= and variant= are for rounding=stochastic"


def recipe(text: str) -> Any:
    return cpd.Recipe("native", activation=text)


@pytest.mark.parametrize(
    ("make", "text", "told"),
    [
        (recipe, "e4m3fn random_bits=8", DRAWS),
        (recipe, "e4m3fn rounding=up variant=B", "variant=B has no effect with rounding=up"),
        (recipe, "mxfp8 random_bits=8", DRAWS),
        (recipe, "nvfp4 variant=C rounding=nearest_away", DRAWS),
        (recipe, "fp8-tensor amax=most_recent", "give history="),
        (cpd.Scaled, "mxfp8 random_bits=8", "unknown option 'random_bits' of a scaled format"),
        (cpd.Scaled, "mxfp8 outer=row", "give tensor_scale"),
        (cpd.Scaled, "mxfp8 scale_max=2", "give tensor_scale"),
        (cpd.Reduce, "e4m3fn aps random_bits=8", DRAWS),
        (cpd.Accumulator, "fp32 kahan random_bits=8", DRAWS),
        (cpd.Accumulator, "e6m9 chunked rounding=down variant=B", DRAWS),
        (cpd.Accumulator, "fp32 sequential chunk=32", "chunk is for scheme chunked"),
        (cpd.Accumulator, "fp32 pairwise inner=e5m2", "inner is for scheme chunked"),
        (cpd.Accumulator, "h100-fp8 rounding=up", "sum_rounding= is how the unit rounds"),
        (cpd.Accumulator, "h100-fp8 random_bits=8", DRAWS),
        (cpd.Accumulator, "h100-fp8 dot=2", "scale_block and dot are for units with a scale"),
        (
            cpd.Accumulator,
            "fp32 block_fma a=e4m3fn b=e4m3fn block=4 sum=e4m3fn overflow=saturate",
            "sum= is the format of its sums",
        ),
        *(
            (
                cpd.Accumulator,
                f"fp32 block_fma a=bf16 b=bf16 block=4 sum_rounding=nearest_even {cut} {adder}",
                f"{cut} has no effect, as {adder.replace('=', ' ')} cuts no term",
            )
            for adder in ("adder=exact", "adder=flushed_pairs")
            for cut in ("fraction_bits=24", "min_exponent=-126")
        ),
        (cpd.Accumulator, "cdna1-fp16 fraction_bits=20", "fraction_bits=20 has no effect"),
        (
            cpd.Accumulator,
            "b200-fp8 group=32",
            "group=32 has no effect, as a block's products are summed at once: give a multiple of "
            "the block, such as 64",
        ),
        (
            cpd.Accumulator,
            "b200-fp8 addend=separate",
            "addend=separate has no effect, as promote=32 starts every block",
        ),
        (cpd.Accumulator, "int16 rounding=down", "sum_rounding= is how terms are rounded"),
        (cpd.Accumulator, "int32 variant=B", DRAWS),
        (cpd.Codec, "qsgd bits=4 random_bits=8", "unknown option 'random_bits' of qsgd"),
        (cpd.Codec, "uniform bits=4 c=3", "unknown option 'c' of uniform"),
        (cpd.Codec, "terngrad share=off clip_at=workers", "each clips by its own"),
    ],
)
def test_a_text_without_effect_is_refused(make: Callable[[str], Any], text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        make(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda: cpd.cast(VALUES, "e4m3fn random_bits=8"),
        lambda: cpd.encode(VALUES, "mxfp8 variant=B"),
        lambda: cpd.add(VALUES, VALUES, "e4m3fn random_bits=8"),
        lambda: cpd.Cast("e4m3fn", rounding="up", random_bits=8),
        lambda: cpd.Cast("mxfp8", variant="B"),
        lambda: cpd.Accumulator("fp32 kahan", random_bits=8),
        lambda: cpd.Reduce("e4m3fn", random_bits=8),
        lambda: cpd.Reduce("mxfp8", variant="B"),
    ],
)
def test_an_argument_without_effect_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="are for rounding=stochastic"):
        call()


def test_a_units_argument_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fraction_bits=24 has no effect.*adders aligned, two_st"):
        cpd.Accumulator(a="fp16", b="fp16", adder="exact", fraction_bits=24)
    unit = cpd.Accumulator(a="fp16", b="fp16", adder="exact", fraction_bits=25, min_exponent=-133)
    assert unit == cpd.Accumulator(a="fp16", b="fp16", adder="exact")
    assert "fraction_bits" not in unit.text
    assert "min_exponent" not in unit.text
    cdna = cpd.Accumulator("cdna1-fp16")
    assert cpd.Accumulator(str(cdna)) == cdna
    old = cdna.__getstate__() | {"text": str(cdna).replace("sum=", "fraction_bits=24 sum=")}
    loaded = object.__new__(cpd.Accumulator)
    loaded.__setstate__(old)  # as version 0.7 pickled it
    assert loaded == cdna


def test_codecs_take_the_numbers_of_any_codec() -> None:
    for text in ("e4m3fn", "one_bit", "qsgd bits=4"):
        assert cpd.Codec(text, random_bits=8).random_bits == 8
    assert cpd.Reduce("qsgd bits=4", random_bits=8).random_bits == 8


def outcome(text: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bytes:
    return cpd.gemm(a, b, text, c=c, seed=3).tobytes()


UNITS = (
    "fp32 block_fma a=bf16 b=bf16 block=4 fraction_bits=10",
    "bf16 block_fma a=bf16 b=bf16 block=4 sum=fp32 fraction_bits=20",
    "fp32 block_fma a=bf16 b=bf16 block=4 sum=e8m20fnuz fraction_bits=20",
    "fp32 block_fma a=bf16 b=bf16 block=4 sum=bf16 promote=8 fraction_bits=10",
)
INTEGERS = ("int9", "int24", "int25", "int26", "int40", "fixed<25,4>", "bf16 fixed width=9")
REFUSED = (
    "(?!.*rounding=stochastic).* (random_bits|variant)=.*",
    "fp32 block_fma (?!.*promote).* rounding=up",
    "fp32 block_fma .*fnuz.* overflow=saturate",
    "(int9|int24|int25|fixed<25,4>|bf16 fixed width=9) rounding=up",
)
"""Patterns of texts that `cpd.Accumulator` must refuse, because an option has no effect on sums:
random bits without stochastic rounding, or a rounding or overflow policy although the accumulator's
format can represent every sum."""
SCHEMES = ("e5m2 sequential", "bf16 kahan", "e4m3fn pairwise", "e6m9 chunked chunk=4", "e5m2 fma")


@pytest.mark.parametrize(
    ("base", "option"),
    [
        *itertools.product(
            (*UNITS, *INTEGERS, *SCHEMES),
            ("rounding=up", "overflow=saturate", "random_bits=4", "variant=B"),
        ),
        *itertools.product(
            [f"{scheme} rounding=stochastic random_bits=2" for scheme in SCHEMES], ("variant=B",)
        ),
    ],
)
def test_an_option_changes_a_sum_or_is_refused(base: str, option: str) -> None:
    draw = np.random.default_rng(4)
    sizes = np.float32(2) ** draw.integers(-8, 26, (64, 12))
    sizes[32:] = 0.1
    a = cpd.cast((sizes * draw.normal(size=(64, 12))).astype(np.float32), "bf16")
    b = cpd.cast((np.sign(draw.normal(size=(12, 16))) * 1.5).astype(np.float32), "bf16")
    a[0], a[1] = np.inf, cpd.Format("bf16").max
    b[:, 0] = abs(b[:, 0])
    c = np.zeros((64, 16), np.float32)
    text = f"{base} {option}"
    if any(re.fullmatch(pattern, text) for pattern in REFUSED):
        with pytest.raises(ValueError, match="has no effect"):
            cpd.Accumulator(text)
    else:
        assert outcome(text, a, b, c) != outcome(base, a, b, c)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_bits_change_a_stochastic_sum(scheme: str) -> None:
    a = np.random.default_rng(5).normal(size=(64, 12)).astype(np.float32)
    texts = [f"{scheme} rounding=stochastic{bits}" for bits in ("", " random_bits=2")]
    first, second = (outcome(t, a, a.T.copy(), np.zeros((64, 64), np.float32)) for t in texts)
    assert first != second


def test_the_default_may_be_said() -> None:
    assert str(cpd.Cast("e4m3fn random_bits=24 variant=A")) == "e4m3fn"
    assert cpd.Accumulator("h100-fp8 overflow=ieee") == cpd.Accumulator("h100-fp8")


@pytest.mark.parametrize("element", ["(4,3)", "e4m3fn", "(5,2)", "e3m2", "e3m2ieee", "int8"])
def test_texts_are_read_back(element: str) -> None:
    """Parsing a spec's text gives the same spec. A format's text is its name, such as e4m3; in the
    texts of scaled formats and recipes the same format is written (4,3)."""
    f = cpd.Format(element)
    assert cpd.Format(f.name) == f
    scaled = cpd.Scaled(f"{element} 32 scale=e8m0")
    assert cpd.Scaled(scaled.text) == scaled
    assert scaled.element == f
    for operand in (f, scaled, f"{element} rounding=up"):
        made = cpd.Recipe("native", activation=operand, gradient=operand, norm=f)
        assert cpd.Recipe(made.text) == made
        assert cpd.Recipe(tomllib.loads(made.to_toml())) == made


# ---- every option with every head ---------------------------------------------------------------

Outcome = Callable[[str], Any]
"""A function that computes, by a spec given as text, the results for fixed test inputs."""
Options = dict[str, tuple[str, ...]]
"""Maps each option of a spec to the values to test. At least one value must change a result;
otherwise the parser of the spec must refuse all values of the option."""


def without_effect(head: str, options: Options, parse: Callable[[str], Any], of: Outcome) -> list:
    """Adds each option to `head`, the text of a spec, and computes results by `of`. Returns the
    options that `parse` accepts although none of the option's values changes a result. Also returns
    the options that `parse` refuses with an error that does not name the option."""
    found, usual = [], of(head)
    for name, values in options.items():
        words = [w for w in head.split(" ") if not w.startswith(f"{name}=")]
        taken = changes = False
        for value in values:
            text = " ".join([*words, value if value == name else f"{name}={value}"])
            try:
                made = parse(text)
            except ValueError as error:
                if name not in str(error):
                    found.append((name, str(error)))
                continue
            if made != parse(head):  # else the value is the head's own
                taken, changes = True, changes or of(text) != usual
        if taken and not changes:
            found.append((name, "no effect"))
    return found


def told_options(parse: Callable[[str], Any], head: str) -> set[str]:
    """Returns the options that the error for an unknown option lists."""
    with pytest.raises(ValueError, match="unknown option") as error:
        parse(f"{head} none=1")
    listed = str(error.value).partition("there are ")[2]
    return set(re.split(r", and |, | and ", listed.partition("; ")[0]))


UNIT = "fp32 block_fma a=bf16 b=bf16 block=4"
NEAREST = "sum_rounding=nearest_even"
SUM_HEADS = (
    *SCHEMES,
    *INTEGERS,
    f"{UNIT} fraction_bits=28 group=16",
    f"{UNIT} addend=separate",
    f"{UNIT} promote=8 sum=bf16 fraction_bits=12",
    *(f"{UNIT} {NEAREST} adder={a}" for a in ("exact", "flushed_pairs", "two_steps")),
    f"{UNIT} {NEAREST} adder=two_steps_even",
    "fp32 block_fma a=e4m3fn b=e4m3fn block=8 fraction_bits=28 scale=e8m0 scale_block=4",
    "fp32 block_fma a=e4m3fn b=e4m3fn block=8 scale=e4m3fn scale_block=4 dot=2",
    *("h100-fp8", "cdna1-fp16", "cdna2-bf16", "b200-fp8", "rtx-blackwell-mxfp8"),
)
SUM_OPTIONS: Options = {
    "product": ("exact", "e4m3fn"),
    "inner": ("e4m3fn", "bf16"),
    "chunk": ("3",),
    "rounding": ("up", "stochastic"),
    "overflow": ("saturate",),
    "variant": ("B",),
    "random_bits": ("4",),
    "a": ("e5m2", "e4m3fn"),
    "b": ("e5m2", "e4m3fn"),
    "block": ("2", "8"),
    "fraction_bits": ("6",),
    "min_exponent": ("20",),
    "sum": ("bf16", "fp16"),
    "sum_rounding": ("nearest_even", "toward_zero"),
    "addend": ("separate", "aligned"),
    "promote": ("8", "32"),
    "scale": ("e8m0", "e4m3fn"),
    "scale_block": ("2", "8", "16"),
    "dot": ("2", "4"),
    "adder": ("exact", "two_steps"),
    "group": ("8", "64"),
    "stride": ("2",),
    "take": ("1",),
    "width": ("7",),
    "fraction": ("3",),
}


def probe_sums(head: str) -> Outcome:
    """Returns a function that takes the text of an accumulator, and multiplies fixed random
    operands in this accumulator. The operands have scales if this text or the text `head` declares
    scales. If a matrix unit refuses the operands, the function returns the error."""
    draw = np.random.default_rng(11)
    of = cpd.Accumulator(head)
    unit = of if of.form == "unit" else None
    formats = (unit.a, unit.b) if unit else (cpd.Format("bf16"),) * 2

    def values(f: cpd.Format, *shape: int) -> np.ndarray:
        wide = draw.normal(size=shape) * 2.0 ** draw.integers(
            -12, 17 if of.form == "integer" else 8, shape
        )
        return cpd.cast(np.clip(wide, -f.max, f.max).astype(np.float32), f)

    a, b = values(formats[0], 192, 64), values(formats[1], 64, 8)
    a[0], a[1], a[2] = abs(a[0]), 0, formats[0].max
    b[:, 0] = abs(b[:, 0])
    c = (draw.normal(size=(192, 8)) * 2.0 ** draw.integers(-40, 16, (192, 8))).astype(np.float32)
    c[3], c[4] = np.inf, of.format.max
    block = unit.scale_block if unit and unit.scale else 4

    def scaled(acc: cpd.Accumulator, block: int) -> Any:
        """Multiplies operands with one scale for each `block` values along k. The scales make many
        sums small."""
        scales = np.random.default_rng(block)
        of_a = 2.0 ** scales.integers(-9, 4, (192, 64 // block)).astype(np.float32)
        of_b = 2.0 ** scales.integers(-9, 4, (64 // block, 8)).astype(np.float32)
        of_a[96:], of_b[:, 4:] = 2.0**-9, 2.0**-9
        out = np.empty_like(c)
        sides = (a, (of_a, block, 1, None), b, (of_b, block, 1, None))
        try:
            _core.gemm_scaled(*sides, acc._held, False, out, c, (3, 0))
        except ValueError as error:
            return str(error)
        return out.tobytes()

    def outcome_of(text: str) -> Any:
        acc = cpd.Accumulator(text)
        if acc.scale or of.scale:
            return scaled(acc, block), scaled(acc, block // 2)
        try:
            return cpd.gemm(a, b, acc, c=c, seed=3).tobytes()
        except ValueError as error:
            return str(error)

    return outcome_of


@pytest.mark.parametrize("head", SUM_HEADS)
def test_every_option_of_a_sum_changes_one_or_is_refused(head: str) -> None:
    assert {*SUM_OPTIONS, "format", "scheme"} == told_options(cpd.Accumulator, "fp32 kahan")
    found = without_effect(head, SUM_OPTIONS, cpd.Accumulator, probe_sums(head))
    said = {"sum_rounding"} if "adder=" in head or head.startswith("cdna") else set()
    for name, why in found:
        assert name in said, (head, name, why)
        assert "nearest_even" in why or "toward_zero" in why


SCALED_HEADS = (
    *("mxfp8", "mxfp8-e5m2", "mxfp6-e3m2", "mxfp6-e2m3", "mxfp4", "mxint8", "bfp8", "nvfp4"),
    *("fp8-tensor", "fp8-row", "fp8-block", "int8 row", "e4m3fn 1x64", "int8:full row"),
    "e4m3fn 16 tensor_scale=fp32 scale=e4m3fn",
)
SCALED_OPTIONS: Options = {
    "element": ("e5m2", "e2m1"),
    "block": ("16", "row", "4x4"),
    "scale": ("e8m0", "fp32", "e4m3fn"),
    "rule": ("floor", "ceil", "rceil", "even", "max", "max_pow2", "up"),
    "tensor_scale": ("fp32", "none"),
    "outer": ("row",),
    "margin": ("1", "-1"),
    "choose": ("mae", "mse"),
    "arithmetic": ("exact", "te", "torchao", "deepgemm", "microxcaling"),
    "non_finite": ("block", "element"),
    "scale_max": ("2", "7"),
    "transform": ("hadamard16",),
}
CAST_HEADS = ("e4m3fn", "(4,3)", "e4m3fnuz", "e5m2", "fp16", "bf16", "binary8p4se")
FINITE = ("e2m1", "int8", "sm8", "mxfp4", "mxfp6-e3m2", "mxfp6-e2m3", "mxint8", "nvfp4", "bfp8")
CAST_OPTIONS: Options = {
    "rounding": ("up", "stochastic"),
    "overflow": ("ieee", "saturate"),
    "random_bits": ("4",),
    "variant": ("B",),
    "factor": ("0.5",),
    "history": ("4",),
    "amax": ("most_recent",),
}


def probe_values() -> list[np.ndarray]:
    """Returns two arrays whose rows have many magnitudes, with and without special values."""
    draw = np.random.default_rng(5)
    plain = draw.normal(size=(32, 64)) * 2.0 ** draw.integers(-6, 6, (32, 64))
    wide = (plain * 2.0 ** draw.integers(-12, 12, (32, 1))).astype(np.float32)
    wide[1, 3], wide[2, 5], wide[9, 0] = np.nan, np.inf, -np.inf
    wide[3], wide[4], wide[8] = wide[3] * 2.0**-125, wide[4] * 2.0**100, 3e38
    plain[0], plain[5], plain[6, :32] = 0, 448, np.linspace(0.4, 7, 32)
    return [plain.astype(np.float32), wide, (plain[7] / 31).astype(np.float32)]


@pytest.mark.parametrize("head", SCALED_HEADS)
def test_every_option_of_a_scaled_format_changes_a_value_or_is_refused(head: str) -> None:
    def outcome_of(text: str) -> list[bytes]:
        return [cpd.cast(x, cpd.Scaled(text)).tobytes() for x in probe_values()]

    assert set(SCALED_OPTIONS) == told_options(cpd.Scaled, "mxfp8")
    options = SCALED_OPTIONS
    if cpd.Scaled(head).block != "tensor":
        options = options | {"block": (*options["block"], "tensor")}
    found = without_effect(head, options, cpd.Scaled, outcome_of)
    assert [pair for pair in found if not re.match("arithmetic [a-z]+ has", pair[1])] == []


@pytest.mark.parametrize(
    "head", [*CAST_HEADS, "e4m3fn rounding=stochastic random_bits=4", *FINITE, *SCALED_HEADS]
)
def test_every_option_of_a_cast_changes_a_product_or_is_refused(head: str) -> None:
    """Every option of a layer's cast changes the layer's result or is refused. The exception is
    `overflow=` in scaled formats and in formats with neither Inf nor NaN: it is accepted although
    both its values saturate."""
    torch = pytest.importorskip("torch")

    def outcome_of(text: str) -> list[bytes]:
        layer = torch.nn.Linear(64, 4, bias=False)
        torch.nn.init.constant_(layer.weight, 0.1).data[1:] = torch.eye(64)[:3]
        cpd.convert(layer, cpd.Recipe("native", activation=text), coverage=False)
        results = []
        for factor in (1, 8, 0.25):
            for x in probe_values():
                y = layer(torch.from_numpy(x * np.float32(factor)))
                y.nan_to_num().clamp(-1, 1).sum().backward()
                results.append(y.detach().numpy().tobytes())
        return results

    found = without_effect(head, CAST_OPTIONS, recipe, outcome_of)
    allowed = [("overflow", "no effect")] if head in FINITE or head in SCALED_HEADS else []
    assert [pair for pair in found if pair not in allowed] == []


CODEC_HEADS = (
    *("qsgd bits=4", "qsgd bits=4 bucket=tensor", "qsgd s=3 norm=2", "qsgd levels=intervals"),
    *("qsgd bits=4 coding=smallest", "terngrad", "terngrad share=off bucket=64"),
    *("terngrad clip=none", "one_bit", "one_bit bucket=16", "top_k 0.1", "top_k 0.5 qsgd bits=4"),
    *("fp8_rows", "int8_rows", "int4", "quantized mxfp8", "quantized int8 row", "sparse"),
    *("blockwise nvfp4", "feedback e4m3", "uniform bits=4", "uniform", "e4m3", "mxfp8"),
)
CODEC_OPTIONS: Options = {
    "bits": ("3",),
    "s": ("5",),
    "bucket": ("32", "tensor"),
    "whole": ("8", "5"),
    "axis": ("0", "1"),
    "norm": ("2", "max"),
    "levels": ("intervals", "signed"),
    "coding": ("elias-dense", "elias-sparse", "trits", "fixed", "huffman"),
    "spacing": ("optimal", "uniform"),
    "clip": ("1", "none"),
    "share": ("off", "on"),
    "clip_at": ("workers", "scaler"),
    "feedback": ("off", "on"),
    "row": ("16",),
    "stochastic": ("stochastic",),
    "c": ("3",),
    "sample": ("1",),
    "fraction": ("0.5",),
    "c0": ("2",),
    "c1": ("1",),
    "results": ("encoded", "exact"),
}


@pytest.mark.parametrize("head", CODEC_HEADS)
def test_every_option_of_a_codec_changes_a_message_or_is_refused(head: str) -> None:
    draw = np.random.default_rng(5)
    wide = draw.normal(size=(4, 64, 48)) * 2.0 ** draw.integers(-6, 3, (4, 64, 48))
    ranks = [[x] for x in wide.astype(np.float32)]
    ranks[0][0][0] = ranks[1][0][3:7] = 0

    def parse(text: str) -> str:
        try:
            return cpd.Codec(text).text
        except ValueError as error:
            raise ValueError(f"{text}: {error}") from None  # an error may quote the value alone

    def outcome_of(text: str) -> list[Any]:
        spec = cpd.Reduce(text)
        found: list[Any] = [cpd.simulate_all_reduce(ranks, spec)[0].tobytes()]
        if text.startswith(("top_k", "feedback", "one_bit")):  # the next call sends their errors
            states = cpd.compress.States()
            steps = [cpd.simulate_all_reduce(ranks, spec, states=states)[0] for _ in range(2)]
            found.append(steps[1].tobytes())
        data = cpd.Codec(text).encode(ranks[0][0]).data
        return [*found, bytes(data)]

    assert without_effect(head, CODEC_OPTIONS, parse, outcome_of) == []
