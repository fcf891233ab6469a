# SPDX-License-Identifier: Apache-2.0
"""Recipes that others have trained with, each with its source: `recipe`, `named_recipes`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cpd.nn.recipe import NAMED, Recipe, RecipeLike, Sums
from cpd.numeric.cast import operand_text
from cpd.numeric.checked import checked

NATIVE = "native"
_TE = "block=tensor scale=fp32 arithmetic=te"
_MX = "rule=rceil arithmetic=te"
_RHT = "transform=hadamard16:te"


@checked
def recipe(given: RecipeLike | dict[str, Any] | Path, sums: Sums | None = None) -> Recipe:
    """Returns a recipe by its name, text, file or data.

    A name wins over a format: `bf16`, `fp16` and `mxfp8` name recipes.

    Args:
        given: the name of a recipe (see `named_recipes`), a file (a path that ends in .toml or
            .json), plain data (`Recipe.from_dict`), or a recipe's text (`Recipe.text`). Or a
            format, scaled or not: the recipe then casts the operands of all three GEMMs to it. A
            `Recipe` is returned unchanged.
        sums: an accumulator for the three GEMMs, or a `Recipe` whose sums are taken, also in rules
            and schedule; default None: the recipe's own, for named recipes torch's. A matrix unit,
            which takes elements, leaves rules, schedule and attention unchanged. Scales are then
            applied at the end, or to the sums over blocks if the formats have blocks.

    Returns:
        The recipe.

    Raises:
        ValueError: for an unknown name, with the nearest one, and for an invalid text, file or
            data.
        TypeError: for an argument of another type.

    >>> recipe("mxfp8").gradient
    cpd.Cast('mxfp8 rule=rceil arithmetic=te')
    >>> recipe("int8 row").gradient
    cpd.Cast('int8 row')
    >>> recipe("te-current", sums="e6m9 chunked chunk=64").grad_weight.text
    'e6m9 chunked chunk=64'
    >>> recipe("native; weight=mxfp8; output=bf16")
    cpd.Recipe(forward='native', weight='mxfp8', output='bf16')
    """
    made = Recipe.of(given)
    return made if sums is None else made.with_sums(sums)


def named_recipes() -> dict[str, Recipe]:
    """Returns the named recipes, by name; `source` of each documents its origin.

    >>> sorted(named_recipes())[:3]
    ['aps-e3m0', 'aps-e4m3', 'bf16']
    """
    return {name: make() for name, make in _READY.items()}


def name_of(how: Recipe) -> str:
    """The name of the recipe whose products compute as those of `how`, or its text."""
    return _names().get(how.text, how.text)


def title_of(how: Recipe) -> str:
    """Returns a recipe as a report's first line names it."""
    name = _names().get(how.text)
    if name is not None:
        return f"recipe {name}"
    operands, sums = set(how.operands), {str(sum_) for sum_ in how.sums[:3]}
    if operands == {None} and sums != {NATIVE} and len(sums) == 1:
        return f"sums in {sums.pop()}, operands not cast"
    cast = how.activation
    if cast is None or {how.activation, how.weight, how.gradient, *operands} != {cast}:
        return f"recipe {how.text}"
    summed = "native sums" if sums == {NATIVE} else f"sums {', '.join(sorted(sums))}"
    return f"activation, weight and gradient of all three GEMMs in {operand_text(cast)}, {summed}"


@functools.cache
def _names() -> dict[str, str]:
    made = {name: make() for name, make in _READY.items()}
    return {how.text: name for name, how in made.items() if how.rounds}


# ---- the table -----------------------------------------------------------------------------------


def _te_delayed() -> Recipe:
    forward, backward = f"e4m3fn {_TE} history=1024", f"e5m2 {_TE} history=1024"
    return Recipe(
        NATIVE,
        activation=forward,
        weight=forward,
        gradient=backward,
        source="TransformerEngine 2.20 DelayedScaling: E4M3 forward, E5M2 backward, one scale a "
        "tensor, from the largest magnitude of the last 1024 steps",
    )


def _te_current() -> Recipe:
    return Recipe(
        NATIVE,
        activation=f"e4m3fn {_TE}",
        weight=f"e4m3fn {_TE}",
        gradient=f"e5m2 {_TE}",
        source="TransformerEngine 2.20 Float8CurrentScaling: E4M3 forward, E5M2 backward, one "
        "scale a tensor, from the tensor itself",
    )


def _deepseek_v3() -> Recipe:
    return Recipe(
        NATIVE,
        activation="fp8-block",
        weight="fp8-block 128x128",
        gradient="fp8-block",
        state="momentum=bf16 second_moment=bf16",
        rules=[("last 1", None)],
        source="DeepSeek-V3, arXiv 2412.19437, section 3.3: E4M3 in blocks of 1 x 128, weights 128 "
        "x 128; embedding, output head, norms and attention high; moments in bf16",
    )


def _mxfp8() -> Recipe:
    return Recipe(
        NATIVE,
        activation=f"mxfp8 {_MX}",
        weight=f"mxfp8 {_MX}",
        gradient=f"mxfp8 {_MX}",
        source="MXFP8 pretraining, arXiv 2506.08027, and TransformerEngine's MXFP8BlockScaling: "
        "E4M3 in blocks of 32, scales rounded up",
    )


def _mxfp8_hybrid() -> Recipe:
    return _mxfp8().replace(
        gradient=f"mxfp8-e5m2 {_MX}",
        source="TransformerEngine 2.20 MXFP8BlockScaling with fp8_format=HYBRID: gradients E5M2",
    )


def _nvfp4() -> Recipe:
    return Recipe(
        NATIVE,
        activation="nvfp4",
        weight="nvfp4 block=16x16",
        gradient="nvfp4 rounding=stochastic",
        grad_weight_activation=f"nvfp4 {_RHT}",
        grad_weight_gradient=f"nvfp4 {_RHT} rounding=stochastic",
        rules=[("last 15%", _bf16())],
        source="NVFP4 pretraining, arXiv 2509.25149, and TransformerEngine's NVFP4BlockScaling: "
        "2-D weights, gradients stochastic, a random Hadamard transform of the weight gradient's "
        "operands, the last 15 % of the layers in bf16",
    )


def _mxfp4_rht_sr() -> Recipe:
    # The signs are fixed, where the paper draws them.
    backward = "mxfp4 transform=hadamard64:signs=0x9b3cf0a56d21e847 rounding=stochastic factor=0.75"
    return Recipe(
        NATIVE,
        activation="bf16",
        weight="bf16",
        grad_input_gradient=backward,
        grad_input_weight=backward,
        grad_weight_activation=backward,
        grad_weight_gradient=backward,
        source="Training LLMs with MXFP4, arXiv 2502.20586: bf16 forward; backward MXFP4 of 3/4 x, "
        "stochastic, after a random Hadamard transform of 64",
    )


def _ibm_fp8_2018() -> Recipe:
    sums = "e6m9 chunked chunk=64"
    return Recipe(
        "e5m2",
        sums=sums,
        update="e6m9 update=stochastic",
        state="momentum=e6m9 rounding=stochastic",
        loss_scale=1000.0,
        rules=[(which, Recipe("e6m9", sums=sums)) for which in ("first 1", "last 1")],
        source="Wang et al., NeurIPS 2018, arXiv 1812.08011: operands (5,2), sums (6,9) in chunks "
        "of 64, weights and momenta (6,9), stochastic; first and last layer (6,9); loss scale 1000",
    )


def _aps(wire: str) -> Recipe:
    return Recipe(
        NATIVE,
        wire=f"{wire} aps average",
        source=f"APS: gradients scaled layer by layer and reduced in {wire}; layers compute as "
        "torch does",
    )


def _bf16() -> Recipe:
    attention = Recipe(NATIVE, activation="bf16", weight="bf16", gradient="bf16", output="bf16")
    return attention.replace(
        attention=attention, source="bfloat16 operands and results, fp32 sums and master weights"
    )


def _fp16() -> Recipe:
    attention = Recipe(NATIVE, activation="fp16", weight="fp16", gradient="fp16", output="fp16")
    return attention.replace(
        attention=attention,
        loss_scale="dynamic",
        source="Micikevicius et al., ICLR 2018, arXiv 1710.03740: fp16 operands and results, fp32 "
        "sums and master weights, loss scaling",
    )


_READY: dict[str, Callable[[], Recipe]] = {
    "te-delayed": _te_delayed,
    "te-current": _te_current,
    "deepseek-v3": _deepseek_v3,
    "mxfp8": _mxfp8,
    "mxfp8-hybrid": _mxfp8_hybrid,
    "nvfp4": _nvfp4,
    "mxfp4-rht-sr": _mxfp4_rht_sr,
    "ibm-fp8-2018": _ibm_fp8_2018,
    "aps-e4m3": lambda: _aps("e4m3"),
    "aps-e3m0": lambda: _aps("e3m0"),
    "bf16": _bf16,
    "fp16": _fp16,
}
NAMED.update(_READY)
SUMMARIES = {
    "te-delayed": "E4M3 forward, E5M2 backward; a scale a tensor, of former steps",
    "te-current": "E4M3 forward, E5M2 backward; a scale a tensor, of its own",
    "deepseek-v3": "E4M3 in blocks of 1 x 128, weights 128 x 128; head in fp32",
    "mxfp8": "MX E4M3 in blocks of 32, scales rounded up",
    "mxfp8-hybrid": "MX E4M3 in blocks of 32, gradients E5M2",
    "nvfp4": "NVFP4, weights 16 x 16, gradients stochastic; last 15 % in bf16",
    "mxfp4-rht-sr": "bf16 forward; backward MXFP4, Hadamard, stochastic",
    "ibm-fp8-2018": "(5,2) operands, sums in (6,9) by chunks of 64, as weights",
    "aps-e4m3": "layers as torch's; gradients travel in (4,3), scaled by APS",
    "aps-e3m0": "layers as torch's; gradients travel in (3,0), scaled by APS",
    "bf16": "bf16 operands and results, fp32 sums and weights",
    "fp16": "fp16 operands and results, fp32 sums and weights, loss scaling",
}
"""A line for each named recipe."""
