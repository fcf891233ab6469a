# SPDX-License-Identifier: Apache-2.0
"""An option of a text changes some result, or the text is refused and names the option to use."""

import itertools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import cpd

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
        (cpd.scaled, "mxfp8 random_bits=8", "unknown option 'random_bits' of a scaled format"),
        (cpd.scaled, "mxfp8 outer=row", "give tensor_scale"),
        (cpd.scaled, "mxfp8 scale_max=2", "give tensor_scale"),
        (cpd.comm.reduce_spec, "e4m3fn aps random_bits=8", DRAWS),
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
        (cpd.Accumulator, "int16 rounding=down", "sum_rounding= is how terms are rounded"),
        (cpd.Accumulator, "int32 variant=B", DRAWS),
        (cpd.compress.codec, "qsgd bits=4 random_bits=8", "'random_bits=8' is no option"),
        (cpd.compress.codec, "uniform bits=4 c=3", "'c=3' is no option"),
        (cpd.compress.codec, "terngrad share=off clip_at=workers", "each clips by its own"),
    ],
)
def test_a_text_without_effect_is_refused(make: Callable[[str], Any], text: str, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        make(text)


@pytest.mark.parametrize(
    "call",
    [
        lambda: cpd.cast(VALUES, "e4m3fn", random_bits=8),
        lambda: cpd.encode(VALUES, "mxfp8", variant="B"),
        lambda: cpd.add(VALUES, VALUES, "e4m3fn", random_bits=8),
        lambda: cpd.CastSpec("e4m3fn", "up", random_bits=8),
        lambda: cpd.ScaledCast("mxfp8", variant="B"),
        lambda: cpd.Accumulator("fp32", "kahan", random_bits=8),
        lambda: cpd.ReduceSpec("e4m3fn", random_bits=8),
        lambda: cpd.ReduceSpec("mxfp8", variant="B"),
    ],
)
def test_an_argument_without_effect_is_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError, match="are for rounding=stochastic"):
        call()


def test_a_units_argument_without_effect_is_refused() -> None:
    with pytest.raises(ValueError, match=r"fraction_bits=24 has no effect.*adders aligned, two_st"):
        cpd.BlockFma("fp16", "fp16", adder="exact", fraction_bits=24)
    unit = cpd.BlockFma("fp16", "fp16", adder="exact", fraction_bits=25, min_exponent=-133)
    assert unit == cpd.BlockFma("fp16", "fp16", adder="exact")
    assert "fraction_bits" not in repr(unit) + unit.text
    assert "min_exponent" not in repr(unit) + unit.text
    cdna = cpd.Accumulator("cdna1-fp16")
    assert cpd.Accumulator.parse(str(cdna)) == cdna
    old = cdna.__getstate__() | {"text": str(cdna).replace("sum=", "fraction_bits=24 sum=")}
    loaded = object.__new__(cpd.Accumulator)
    loaded.__setstate__(old)  # as version 0.7 pickled it
    assert loaded == cdna


def test_codecs_take_the_numbers_of_any_codec() -> None:
    for text in ("e4m3fn", "one_bit", "qsgd bits=4"):
        assert cpd.compress.codec(text, seed=1, random_bits=8).random_bits == 8
    assert cpd.ReduceSpec(wire="qsgd bits=4", random_bits=8).random_bits == 8


def outcome(text: str, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> bytes:
    return cpd.gemm(a, b, cpd.Accumulator(text, seed=3), c=c).tobytes()


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
"""Texts of the table with an option that changes no sum: drawn bits that nothing draws, and a
rounding or an overflow of sums that their format holds."""
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
    a[0], a[1] = np.inf, cpd.format("bf16").max
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
    assert str(cpd.CastSpec.parse("e4m3fn random_bits=24 variant=A")) == "e4m3fn"
    assert cpd.Accumulator("h100-fp8 overflow=ieee") == cpd.Accumulator("h100-fp8")


@pytest.mark.parametrize("element", ["(4,3)", "e4m3fn", "(5,2)", "e3m2", "e3m2ieee", "int8"])
def test_texts_are_read_back(element: str) -> None:
    """A format's own text is a name; within scaled formats and recipes (4,3) is not called e4m3."""
    f = cpd.format(element)
    assert cpd.format(f.name) == f
    scaled = cpd.scaled(f"{element} 32 scale=e8m0")
    assert cpd.scaled(scaled.text) == scaled
    assert scaled.element == f
    for operand in (f, scaled, f"{element} rounding=up"):
        made = cpd.Recipe("native", activation=operand, gradient=operand, norm=f)
        assert cpd.Recipe.parse(made.text) == made
        assert cpd.Recipe.from_toml(made.to_toml()) == made
