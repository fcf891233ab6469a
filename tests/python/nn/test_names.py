# SPDX-License-Identifier: Apache-2.0
"""Tests texts that are given as a recipe. A format's name casts the operands of all three GEMMs,
and names of recipes have priority. Accumulators and a bare e4m3 are refused."""

from __future__ import annotations

import json
import pickle
import tomllib

import numpy as np
import pytest

import cpd

torch = pytest.importorskip("torch")
F = torch.nn.functional

FORMATS = [
    "e4m3fn",
    "int8",
    "int8 row",
    "mxfp4",
    "fp8-row",
    "(5,2)",
    (5, 2),
    torch.float8_e4m3fn,
    np.float16,
    cpd.Format("(4,3)"),
    cpd.Scaled("nvfp4"),
    "e5m2 overflow=saturate",
]
ACCUMULATORS = ["e4m3 kahan", "fp32 sequential", "h100-fp8", "int32", "fixed<32,12>"]


def taken_by(given):
    """Yields calls of each function and class that takes a recipe, with the text `given` as the
    recipe."""
    x, model = torch.ones(2, 4), lambda: torch.nn.Linear(4, 3)
    yield lambda: cpd.Recipe(given)
    yield lambda: cpd.convert(model(), given, coverage=False)
    yield lambda: cpd.convert(torch.nn.Sequential(model()), "native", [("0", given)])
    yield lambda: cpd.convert(torch.nn.Sequential(model()), "native", lambda name, module: given)
    yield lambda: cpd.autocast(given).__enter__()
    yield lambda: cpd.Recipe("native", rules=[("0", given)])
    yield lambda: cpd.Recipe("native", schedule=[("step", 1, given)])
    yield lambda: cpd.Recipe("native", attention=given)
    yield lambda: cpd.functional.linear(x, x, recipe=given)


def rounded(x, given, dim):
    """Casts an operand of a GEMM. The blocks of a scaled format lie along `dim`, over which the
    GEMM sums."""
    to = cpd.Cast(given)
    x = x.transpose(dim, -1).contiguous()
    return cpd.cast(x, to).transpose(dim, -1)


@pytest.mark.parametrize("given", FORMATS, ids=str)
def test_a_format_casts_the_operands_of_all_three_gemms(given):
    generator = torch.Generator().manual_seed(3)
    x, w, g = (torch.randn(n, generator=generator) for n in ((32, 64), (48, 64), (32, 48)))
    layer = torch.nn.Linear(64, 48, bias=False)
    layer.weight.data = w.clone()
    cpd.convert(layer, given, coverage=False)
    leaf = x.clone().requires_grad_()
    y = layer(leaf)
    y.backward(g)
    exact = (
        rounded(x, given, -1).double() @ rounded(w, given, -1).double().T,
        rounded(g, given, -1).double() @ rounded(w, given, 0).double(),
        rounded(g, given, 0).double().T @ rounded(x, given, 0).double(),
    )
    for got, wanted in zip((y, leaf.grad, layer.weight.grad), exact, strict=True):
        assert torch.allclose(got.double(), wanted, rtol=1e-5, atol=1e-5 * wanted.abs().max())


@pytest.mark.parametrize("given", ["bf16", "fp16", "mxfp8", "MXFP8", "te-current"])
def test_names_of_recipes_win(given):
    named, about = cpd.Recipe(given), cpd.Recipe.named()[given.lower()]
    assert (named.text, named.source) == (given.lower(), about["source"])
    assert named == cpd.Recipe(given.upper()) == cpd.Recipe({"format": given})
    assert (named.attention is None) == (given not in ("bf16", "fp16"))
    assert named.output == cpd.Recipe(given, norm="bf16").output
    others = cpd.Recipe(given, norm="bf16", softmax="bf16")
    assert others == named.replace(norm="bf16", softmax="bf16") != named
    assert cpd.Recipe(f"{given} norm=bf16") == named.replace(norm="bf16")


@pytest.mark.parametrize("given", ["bf16 overflow=saturate", "mxfp8 rule=up", "nvfp4 4x4"])
def test_a_name_with_options_is_the_format(given):
    how = cpd.Recipe(given)
    assert how.activation == how.weight == how.gradient == cpd.Recipe(weight=given).weight
    assert (how.output, how.attention, how.rules) == (None, None, ())


@pytest.mark.parametrize("given", ACCUMULATORS)
def test_an_accumulator_is_refused_and_sums_named(given):
    for call in taken_by(given):
        with pytest.raises(ValueError, match=r"is an accumulator, .* give it as sums="):
            call()
    with pytest.raises(TypeError, match="give it as sums="):
        cpd.Recipe(cpd.Accumulator(given))
    made = cpd.Recipe(sums=given)
    assert made.forward == made.grad_input == made.grad_weight == cpd.Accumulator(given)
    assert not any(made._kept.operands)
    assert cpd.Recipe(f"native sums='{given}'") == made
    with pytest.raises(ValueError, match=f"no semicolons: write 'native sums='?{given}"):
        cpd.Recipe(f"{given};")


@pytest.mark.parametrize("given", ["e4m3", "E4M3", "e4m3 overflow=saturate", "e4m3 32"])
def test_a_bare_e4m3_is_refused(given):
    for call in taken_by(given):
        with pytest.raises(ValueError, match=r"e4m3fn .*448.* \(4,3\) .*240"):
            call()
    for name in ("activation", "grad_input_weight", "output", "norm"):
        with pytest.raises(ValueError, match="ambiguous"):
            cpd.Recipe("native", **{name: given})
        with pytest.raises(ValueError, match="ambiguous"):
            cpd.Recipe({name: given})
        with pytest.raises(ValueError, match="ambiguous"):
            cpd.Recipe(f"native {name}='{given}'")


def test_scaled_elements_refuse_a_bare_e4m3():
    for make in (
        lambda: cpd.Scaled("e4m3 32"),
        lambda: cpd.Scaled("E4M3 block=tensor scale=fp32"),
        lambda: cpd.Scaled("mxfp8 element=e4m3"),
        lambda: cpd.Scaled("e4m3"),
    ):
        with pytest.raises(ValueError, match=r"e4m3fn .*448.* \(4,3\) .*240"):
            make()
    held = cpd.Scaled(cpd.Format("e4m3"), block=16)
    assert held.text == "(4,3) 16"
    assert cpd.Scaled(held.text) == held == pickle.loads(pickle.dumps(held))


def test_casts_and_sums_take_e4m3_as_before():
    x = np.float32([300.0, 1.0])
    assert cpd.cast(x, "e4m3 overflow=saturate").tolist() == [240.0, 1.0]
    assert cpd.sum(x[1:], "e4m3").item() == 1
    assert cpd.Recipe(sums="e4m3").forward == cpd.Accumulator("e4m3")


def test_the_ieee_like_format_survives_texts_files_and_pickles():
    how = cpd.Recipe("(4,3) rounding=stochastic", output=(4, 3), norm=cpd.Format("e4m3"))
    assert "(4,3)" in how.text
    assert cpd.Recipe(how.text).text == how.text
    for made in (
        cpd.Recipe(tomllib.loads(how.to_toml())),
        cpd.Recipe(json.loads(how.to_json())),
        pickle.loads(pickle.dumps(how)),
        eval(repr(how), {"cpd": cpd}),
    ):
        assert made == how


def test_files_of_before_keep_their_meaning():
    read = tomllib.loads
    how = cpd.Recipe(read('forward = "e4m3"\ngrad_weight = "e6m9 chunked"\nweight = "e5m2"'))
    assert how._sums[:3] == tuple(map(cpd.Accumulator, ("e4m3", "e4m3", "e6m9 chunked")))
    assert how.activation is None
    with pytest.raises(ValueError, match=r"weight: .*ambiguous"):
        cpd.Recipe(read('forward = "native"\nweight = "e4m3"'))
    short = cpd.Recipe(read('format = "int8 row"\nsums = ["fp32", "fp32", "fp32 kahan"]'))
    assert short == cpd.Recipe("int8 row", sums=("fp32", "fp32", "fp32 kahan"))


def test_sums_stand_beside_a_format():
    how = cpd.Recipe("fp8-row", sums="h100-fp8", gradient="e5m2 row scale=fp32")
    assert (how.scales_at, how.gradient.text) == ("epilogue", "e5m2 row scale=fp32")
    bare = cpd.Recipe("fp8-row", gradient="e5m2 row scale=fp32")
    assert how == cpd.Recipe(bare, sums="h100-fp8")
    assert how.replace(sums="fp32").scales_at == "epilogue"
    model = torch.nn.Linear(32, 8)
    (row,) = cpd.convert(model, "fp8-row", sums="h100-fp8", coverage=False)
    assert cpd.Recipe(row.how).scales_at == "epilogue"
    with pytest.raises(ValueError, match="of forward, grad_input, grad_weight and"):
        cpd.Recipe(sums=("fp32", "fp32", "fp32", "fp32", "fp32"))


def test_near_names():
    with pytest.raises(ValueError, match="did you mean te-current"):
        cpd.Recipe("fp8")
    for text in ("e9m3", "e8m24"):
        with pytest.raises(ValueError, match=r"takes formats .* as operands are at most float32"):
            cpd.Recipe(text)
    for text in ("F8_E4M3", "FP8_E4M3", "fp8_e4m3"):
        for call in (cpd.Format, cpd.Recipe):
            with pytest.raises(ValueError, match="did you mean 'e4m3fn'"):
                call(text)
    with pytest.raises(ValueError, match="did you mean mxfp8"):
        cpd.Recipe("mxpf8")


@pytest.mark.parametrize(
    "given", ["int8 kahan", "fp32 fma chunk=3", "e9m9 block_fma", "cdna1-fp16 fraction_bits=20"]
)
def test_a_wrong_accumulator_is_one(given):
    """A text is recognized as an accumulator if it has the word of a scheme, or a matrix unit's
    name with options. This holds even if the accumulator itself is invalid."""
    with pytest.raises(ValueError, match=r"is an accumulator, .* give it as sums="):
        cpd.Recipe(given)
    with pytest.raises(ValueError, match=r"must be|chunk|exp|has no effect"):
        cpd.Recipe(sums=given)


def test_compiled_sums_are_an_accumulator_or_its_text():
    x, w = torch.randn(4, 32), torch.randn(8, 32)
    acc = cpd.Accumulator("e8m10 kahan")

    def run(x, sums):
        return cpd.functional.linear(x, w, recipe="mxfp8", sums=sums)

    program = torch.compile(run, backend="eager", fullgraph=True)
    for sums in (acc, acc.text):
        assert torch.equal(program(x, sums), run(x, acc))
