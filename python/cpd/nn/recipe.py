# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of a model: `Recipe`.

A recipe has the sums of the three GEMMs of layers, the casts of their operands, and the roundings
of the rest of a training step.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from cpd import _core
from cpd.nn import recipe_arguments as read
from cpd.nn import recipe_files
from cpd.nn.recipe_arguments import NATIVE as NATIVE
from cpd.nn.recipe_arguments import Sum
from cpd.nn.recipe_arguments import SumLike as SumLike
from cpd.nn.recipe_parts import OPERANDS as OPERANDS
from cpd.nn.recipe_parts import OVERRIDES as OVERRIDES
from cpd.nn.recipe_parts import ROUNDED as ROUNDED
from cpd.nn.recipe_parts import SUMS as SUMS
from cpd.nn.recipe_parts import Kept, kept, unit_scales_at
from cpd.nn.recipe_parts import draws as draws
from cpd.nn.recipe_parts import is_native as is_native
from cpd.nn.recipe_parts import is_same as is_same
from cpd.numeric.accumulator import Accumulator, as_accumulator
from cpd.numeric.cast import CastLike as CastLike
from cpd.numeric.cast import CastSpec as CastSpec
from cpd.numeric.cast import cast_spec as cast_spec
from cpd.numeric.checked import checked, is_compiling
from cpd.numeric.names import did_you_mean
from cpd.numeric.numbers import Number, check_number
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled_cast import OperandLike, OperandSpec, ScaledCast, operand_text
from cpd.numeric.shown import shown
from cpd.numeric.spec import arguments
from cpd.numeric.streams import MAX_LAYERS as MAX_LAYERS

NAMED: dict[str, Callable[[], Recipe]] = {}
"""Functions that make the named recipes, by name; `cpd.nn.ready` adds them."""

Rules: TypeAlias = (
    "Iterable[tuple[str | type, RecipeLike | None]] | Mapping[str | type, RecipeLike | None]"
)


@checked
@dataclass(frozen=True, init=False, repr=False)
class Recipe:
    """The arithmetic of a model's layers: their three GEMMs, and a step's other roundings.

    `cpd.convert`, `cpd.nn` and `cpd.functional` take it. Immutable, hashable, picklable.

    Args:
        format: the cast of activation, weight and gradient in all three GEMMs: a format, scaled or
            not, a dtype, a cast, or a text of one. Or the name of a recipe (`cpd.named_recipes`),
            which is then the whole recipe, `sums` apart. Default `"native"`: no casts. A bare
            `e4m3` is refused, here and in all casts of a recipe: OCP's is `e4m3fn`, the IEEE-like
            one `(4,3)`.
        sums: the sums of the three GEMMs: an `Accumulator`, its text, a preset's name, or a format
            for the sequential sum in it; or a tuple for forward, grad_input and grad_weight; or a
            recipe with the sums. Default `"native"`, torch's own kernel.
        forward: the sum of the forward GEMM; default `sums`.
        grad_input: the sum of the GEMM that gives the gradient of the input; default `sums`, or
            else `forward`.
        grad_weight: the sum of the GEMM that gives the gradient of the weight; default `sums`, or
            else `forward`.
        grad_bias: the sum that gives the gradient of the bias; each term is rounded only as it is
            added. Default fp32, in order, or `"native"` where `forward` is.
        activation: the cast of the input before each GEMM that it enters: a `CastSpec` or
            `ScaledCast`, a format, scaled or not, or a text; None: no cast. Default `format`. Casts
            pass gradients straight through. Blocks of scaled formats run along each GEMM's sum:
            where the cast depends on that, the original tensor is cast again for each GEMM.
        weight: the cast of the weight, as `activation`.
        gradient: the cast of the output's gradient, as `activation`. The bias's gradient sums the
            uncast gradient.
        grad_input_gradient: the cast of the gradient in the input's GEMM, if it differs from
            `gradient`; None: no cast. Default `"same"`.
        grad_input_weight: the cast of the weight in that GEMM, if it differs from `weight`.
        grad_weight_activation: the cast of the activation in the weight's GEMM, if it differs.
        grad_weight_gradient: the cast of the gradient in that GEMM, if it differs.
        scales_at: where the scales of scaled operands are applied: to each `operand` (to its
            values, before the sums), to the sums over a `block`, or at the end, in the `epilogue`
            (see `cpd.gemm`). The last two are for linear layers and products of matrices with
            accumulators; matrix units, which take elements, need one of them. Default `operand`;
            for a matrix unit given as `sums`, what its operands' blocks allow.
        output: what the result is rounded to once more; default: as the accumulator leaves it. A
            type that does not hold the accumulator's format needs one: bfloat16 layers with fp32
            sums have `output="bf16"`.
        layer: a number, 0…2^16 - 1, by which layers that share a recipe use different random bits.
        norm: the rounding of the results of normalizations, and of the gradients that come back to
            them: a `CastSpec` or a format; None: as torch computes.
        softmax: the rounding of softmax, as `norm`.
        embedding: the rounding of embeddings, as `norm`.
        residual: the rounding of residual additions, as `norm`.
        attention: the recipe of attention's two products, query by key and weights by value; None:
            as torch computes.
        update: text for `cpd.optim.from_recipe`: how weights are stored and updated; None: fp32.
        state: text for `cpd.optim.from_recipe`: the optimizer's state; None: fp32, as torch does.
        wire: text or None: how gradients are reduced over nodes, for `cpd.Reduce`.
        loss_scale: None, a number, or `"dynamic"`.
        rules: pairs of a selector and a recipe, or a dict of them, with None for torch's own layer,
            as `cpd.convert` takes them; the rules of `cpd.convert` itself come first.
        schedule: triples of `"step"` or `"epoch"`, a number, and the recipe (None: torch's own
            layers) that holds from then on; before the first, this one does. Here, in rules and as
            attention, a recipe may be anything that `cpd.recipe` takes.
        source: where the recipe comes from, in words.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    If an accumulator is a matrix unit with two operand formats, the first is the activation's and
    the second the weight's in the forward GEMM; the gradient's and the weight's for the input's
    gradient; the activation's and the gradient's for the weight's gradient.

    Each stochastic rounding takes its random bits from the seed and the stream of its own
    accumulator or cast. The stream is XORed with layer << 20 and purpose << 60. Purposes: 0 the
    forward GEMM, 4 grad_input, 5 grad_weight, 6 grad_bias; 8 the cast of activations, 9 of weights,
    10 of gradients, 11 of the output; 7, 14 and 15 casts of weights, activations and gradients for
    one backward GEMM, where these differ; in forward mode 12 and 13 the products of the input's and
    the weight's tangent. So the roundings of a layer never share random bits while streams stay
    below 2^60. Give a new stream at each step: its number << 36, in a tensor, so that a compiled
    step stays compiled (`cpd.convert` does). The same stream gives the same bits: recomputation
    under activation checkpointing repeats them.

    >>> Recipe("int8 row")
    cpd.Recipe(forward='native', activation='int8 row', weight='int8 row', gradient='int8 row')
    >>> Recipe("e4m3fn", sums="e6m9 chunked", grad_weight="fp32", gradient="e5m2").grad_input.format
    cpd.Format('e6m9')
    >>> fp8 = {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"}
    >>> h100 = Recipe(sums=("h100-fp8", "h100-fp8 a=e5m2", "h100-fp8 b=e5m2"), **fp8)
    >>> h100.grad_input.unit.a
    cpd.Format('e5m2')
    >>> Recipe("e6m9 kahan")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'e6m9 kahan' is an accumulator, ...: give it as sums='e6m9 kahan', ...
    """

    forward: Sum
    grad_input: Sum
    grad_weight: Sum
    grad_bias: Sum
    activation: OperandSpec | None
    weight: OperandSpec | None
    gradient: OperandSpec | None
    output: CastSpec | None
    layer: int
    grad_input_gradient: OperandSpec | Literal["same"] | None
    grad_input_weight: OperandSpec | Literal["same"] | None
    grad_weight_activation: OperandSpec | Literal["same"] | None
    grad_weight_gradient: OperandSpec | Literal["same"] | None
    norm: CastSpec | None
    softmax: CastSpec | None
    embedding: CastSpec | None
    residual: CastSpec | None
    attention: Recipe | None
    update: str | None
    state: str | None
    wire: str | None
    loss_scale: float | Literal["dynamic"] | None
    rules: tuple[tuple[str, Recipe | None], ...]
    schedule: tuple[tuple[str, int, Recipe | None], ...]
    source: str
    scales_at: str
    _kept: Kept = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        format: OperandLike | Literal["native"] = NATIVE,
        *,
        sums: Sums | None = None,
        forward: SumLike | None = None,
        grad_input: SumLike | None = None,
        grad_weight: SumLike | None = None,
        grad_bias: SumLike | None = None,
        activation: OperandLike | Literal["same"] | None = "same",
        weight: OperandLike | Literal["same"] | None = "same",
        gradient: OperandLike | Literal["same"] | None = "same",
        output: CastLike | None = None,
        layer: int = 0,
        grad_input_gradient: OperandLike | Literal["same"] | None = "same",
        grad_input_weight: OperandLike | Literal["same"] | None = "same",
        grad_weight_activation: OperandLike | Literal["same"] | None = "same",
        grad_weight_gradient: OperandLike | Literal["same"] | None = "same",
        norm: CastLike | None = None,
        softmax: CastLike | None = None,
        embedding: CastLike | None = None,
        residual: CastLike | None = None,
        attention: RecipeLike | None = None,
        update: str | None = None,
        state: str | None = None,
        wire: str | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        rules: Rules = (),
        schedule: Iterable[tuple[str, int, RecipeLike | None]] = (),
        source: str = "",
        scales_at: str | None = None,
    ) -> None:
        said = dict(locals())
        del said["self"]
        is_named = isinstance(format, str) and format.lower() in NAMED
        for name, part in (_named_parts(said) if is_named else _read_parts(said)).items():
            object.__setattr__(self, name, part)

    def operand(self, name: str) -> OperandSpec | None:
        """Returns the cast of an operand, by its name here; for "same" its tensor's cast.

        >>> Recipe("native", weight="e4m3fn").operand("grad_input_weight").text
        'e4m3fn'
        """
        known = (*OPERANDS, "output", *OVERRIDES, *ROUNDED)
        if name not in known:
            raise ValueError(f"name must be one of {', '.join(known)}, got {name!r}")
        value = getattr(self, name)
        found: OperandSpec | None = getattr(self, OVERRIDES[name]) if is_same(value) else value
        return found

    @property
    def text(self) -> str:
        """The canonical text of sums, casts and `scales_at`, for `parse`.

        It has no seeds and streams, and nothing of the rest of a training step.

        >>> Recipe("native", weight="mxfp8", output="bf16", source="measured").text
        'native; weight=mxfp8; output=bf16'
        """
        return self._kept.text

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Returns the recipe of a text as `text` gives it; a ValueError names the key.

        >>> Recipe.parse("e4m3 sequential; weight=mxfp8; grad_input_weight=none")
        cpd.Recipe(forward='e4m3 sequential', weight='mxfp8', grad_input_weight=None)
        """
        first = text.partition(";")[0].strip()
        if read.names_cast(first):
            raise ValueError(
                f"a recipe's text begins with its forward sum, as 'native' or '{first} sequential'"
                f", got the format {first!r}; cpd.Recipe({first!r}, …) casts operands to it"
            )
        texts = _core.Recipe.parse(text).fields().items()
        said: dict[str, Any] = {name: None if one == "none" else one for name, one in texts}
        return cls(**said)

    @classmethod
    def of(cls, given: Any) -> Recipe:
        """Returns the recipe of a name, file, plain data, text or format, as `cpd.recipe`.

        >>> Recipe.of("mxfp8").gradient
        cpd.ScaledCast('mxfp8 rule=rceil arithmetic=te')
        """
        if isinstance(given, cls):
            return given
        if isinstance(given, dict):
            return cls.from_dict(given)
        if isinstance(given, os.PathLike) or (
            isinstance(given, str) and given.endswith((".toml", ".json"))
        ):
            return recipe_files.from_file(os.fspath(given), cls)
        if not isinstance(given, str):
            return cls(given)
        if ";" in given:
            return cls.parse(given)
        try:
            return cls(given)
        except ValueError as error:
            if not str(error).startswith(("unknown", "no format", "a scaled format's options")):
                raise  # the format or the accumulator exists
            near = re.search("did you mean [^;?]*[?]", str(error))  # a format
            meant = _MEANT.get(given.lower()) or did_you_mean(given, NAMED, cutoff=0.75)
            meant = meant or (near[0] if near else did_you_mean(given, NAMED))
            hint = f"; {meant}" if meant else ""
            raise ValueError(
                f"unknown recipe {shown(given)}: expected one of {', '.join(sorted(NAMED))}, a "
                f".toml or .json file, or a format of operands{hint}"
            ) from error

    @property
    def gemms(self) -> str:
        """The text of what a layer's GEMMs take: sums, casts of operands, `scales_at`.

        It does not have the casts before the GEMMs.

        >>> Recipe("native", activation="mxfp8", weight="e4m3fn", output="bf16").gemms
        'native; activation=mxfp8'
        """
        return self._kept.gemms

    @property
    def cast_before(self) -> tuple[OperandSpec | None, OperandSpec | None]:
        """The casts of activation and weight that serve for both GEMMs that the tensor enters."""
        return self._kept.before

    @property
    def drawing(self) -> tuple[tuple[Purpose, Any], ...]:
        """The sums and casts of the GEMMs whose rounding is stochastic, each with its purpose."""
        return self._kept.drawing

    @property
    def operands(self) -> tuple[OperandSpec | None, ...]:
        """The casts of the six operands: two for each GEMM, in order of GEMMs."""
        return self._kept.operands

    def __getstate__(self) -> dict[str, Any]:
        return arguments(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        own = Recipe.__dataclass_fields__
        self.__init__(**{name: one for name, one in state.items() if name in own})  # type: ignore[misc]

    def __hash__(self) -> int:
        return hash((self.text, self.layer))

    @property
    def sums(self) -> tuple[Sum, ...]:
        """The four sums: forward, grad_input, grad_weight, grad_bias."""
        return tuple(getattr(self, name) for name in SUMS)

    @property
    def is_native(self) -> bool:
        """True if all sums are torch's own."""
        return all(map(is_native, self.sums))

    @property
    def casts(self) -> tuple[OperandSpec | None, ...]:
        """The casts of the six operands, and of the results of all kinds of layers."""
        return (*self.operands, self.output, *(getattr(self, name) for name in ROUNDED))

    @property
    def rounds(self) -> bool:
        """True if an operand or a result of a layer is cast."""
        return any(spec is not None for spec in self.casts) or self.attention is not None

    @property
    def draws(self) -> bool:
        """True if a rounding of a layer is stochastic: attention's, norms' and so on included."""
        return any(draws(part) for part in (*self.sums, *self.casts)) or (
            self.attention is not None and self.attention.draws
        )

    @property
    def delays(self) -> bool:
        """True if an operand's scale follows from former steps."""
        return self._kept.delays

    def for_layer(self, layer: int) -> Recipe:
        """Returns the recipe with another layer number.

        >>> Recipe("e4m3fn").for_layer(3).layer
        3
        """
        return replace(self, layer=layer)

    def with_stream(self, stream: Number) -> Recipe:
        """Returns the recipe with this stream in all its accumulators and casts.

        >>> drawing = Recipe(sums="e4m3 sequential rounding=stochastic", gradient="e5m2")
        >>> drawing.with_stream(5).grad_weight.stream
        5
        """
        check_number("stream", stream)
        parts = arguments(self)
        return Recipe(**{name: _with_stream(value, stream) for name, value in parts.items()})

    def replace(self, **changes: Any) -> Recipe:
        """Returns the recipe with other arguments.

        `format` replaces all operands' casts, `sums` all sums.

        >>> Recipe("native", weight="e4m3fn").replace(gradient="e5m2").gradient.format
        cpd.Format('e5m2')
        >>> Recipe("int8 row").replace(sums="int32").grad_weight.text
        'fp32 fixed width=32 fraction=0'
        """
        dropped = (*OPERANDS, *OVERRIDES) if "format" in changes else ()
        dropped += SUMS if "sums" in changes else ()
        dropped += ("scales_at",) if "sums" in changes and self.scales_at == "operand" else ()
        parts = {name: part for name, part in arguments(self).items() if name not in dropped}
        return Recipe(**parts | changes)

    def with_sums(self, sums: Sums) -> Recipe:
        """Returns the recipe with these sums, also in its rules, schedule and attention.

        A matrix unit leaves rules, schedule and attention unchanged.
        """
        made = self.replace(sums=sums)
        if not is_native(made.forward) and made.forward.unit is not None:  # type: ignore[union-attr]
            return made

        def summed(how: Recipe | None) -> Recipe | None:
            return None if how is None else how.with_sums(sums)

        return made.replace(
            attention=summed(self.attention),
            rules=tuple((selector, summed(how)) for selector, how in self.rules),
            schedule=tuple((unit, start, summed(how)) for unit, start, how in self.schedule),
        )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain data, for `from_dict`: what differs from the defaults."""
        return recipe_files.to_dict(self)

    def to_json(self) -> str:
        """The recipe as JSON, for `from_json`."""
        return recipe_files.to_json(self)

    def to_toml(self) -> str:
        """The recipe as TOML, for `from_toml`; needs the package tomli_w.

        >>> print(Recipe("native", weight="mxfp8").to_toml().strip())
        forward = "native"
        weight = "mxfp8"
        """
        return recipe_files.to_toml(self)

    @classmethod
    def from_dict(cls, given: dict[str, Any]) -> Recipe:
        """Returns the recipe of plain data: keys are the arguments, None is the text `none`."""
        return recipe_files.from_dict(given, cls)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """Returns the recipe of a JSON text; errors as `from_dict`'s."""
        return recipe_files.from_json(text, cls)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """Returns the recipe of a TOML text; errors as `from_dict`'s."""
        return recipe_files.from_toml(text, cls)

    def __copy__(self) -> Recipe:
        return self

    def __deepcopy__(self, memo: Any) -> Recipe:
        return self

    def __str__(self) -> str:
        said = recipe_files.said(self)
        return ", ".join(f"{name}={_quoted(said[name])}" for name in _SHOWN if name in said)

    def __repr__(self) -> str:
        return f"cpd.Recipe({self})"


def _quoted(value: Any) -> str:
    if isinstance(value, (CastSpec, ScaledCast)):
        return repr(operand_text(value))
    return repr(str(value) if isinstance(value, Accumulator) else value)


def _read_parts(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a recipe with these arguments."""
    cast, given = read.formats(said.pop("format")), said.pop("sums")
    sums = given.sums if isinstance(given, Recipe) else read.sums(given)
    for name in OPERANDS:
        if _is_usual(said[name], "same"):
            said[name] = cast
    for name, sum_ in zip(SUMS, sums, strict=False):
        if said[name] is None:
            said[name] = sum_
    first = said["forward"] = read.sum_("", NATIVE if said["forward"] is None else said["forward"])
    usual = {"grad_input": first, "grad_weight": first, "grad_bias": read.usual_bias(first)}
    for name, default in usual.items():
        if said[name] is None:
            said[name] = default
    is_free = said["scales_at"] is None
    said["scales_at"] = "operand" if is_free else said["scales_at"]
    parts = {name: _READERS[name](name, value) for name, value in said.items()}
    if is_free and sums:
        parts["scales_at"] = unit_scales_at(parts)
    return parts | {"_kept": kept(parts)}


def _named_parts(said: dict[str, Any]) -> dict[str, Any]:
    """The fields of a named recipe. Raises ValueError where other arguments are given."""
    name, sums = said.pop("format"), said.pop("sums")
    others = [one for one, value in said.items() if not _is_usual(value, _USUAL[one])]
    if others:
        raise ValueError(
            f"{name!r} names a whole recipe, got {', '.join(others)} beside it: write "
            f"cpd.recipe({name!r}).replace({others[0]}=…), or a format with options"
        )
    made = NAMED[name.lower()]()
    made = made if sums is None else made.with_sums(sums)
    return {one: getattr(made, one) for one in Recipe.__dataclass_fields__}


def _is_usual(value: Any, usual: Any) -> bool:
    return type(value) is type(usual) and bool(value == usual)


def _nested(name: str, value: Any) -> Recipe | None:
    return None if value is None else Recipe.of(value)


def _rules(name: str, value: Any) -> tuple[tuple[str, Recipe | None], ...]:
    return read.rules(name, value, _nested)


def _schedule(name: str, value: Any) -> tuple[tuple[str, int, Recipe | None], ...]:
    return read.schedule(name, value, _nested)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(SUMS, read.sum_),
    **dict.fromkeys(OPERANDS, read.operand),
    **dict.fromkeys(OVERRIDES, read.override),
    **dict.fromkeys(("output", *ROUNDED), read.cast),
    **dict.fromkeys(("update", "state", "wire", "source"), read.words),
    "layer": read.layer,
    "attention": _nested,
    "loss_scale": read.loss_scale,
    "rules": _rules,
    "schedule": _schedule,
    "scales_at": read.scales_at,
}
"""For each argument, the function that checks and converts it to what a recipe holds."""
_SHOWN = (
    *SUMS,
    *OPERANDS,
    "output",
    *OVERRIDES,
    *ROUNDED,
    *("update", "state", "wire", "loss_scale", "attention", "rules", "schedule"),
    "scales_at",
    "layer",
)
"""The order in which `str` has arguments."""


def _with_stream(value: Any, stream: Number) -> Any:
    """An accumulator or a cast with another stream; anything else as it is."""
    if isinstance(value, Accumulator):
        return Accumulator.parse(value.text, value.seed, stream)
    if isinstance(value, CastSpec):
        return replace(value, stream=stream)
    if isinstance(value, ScaledCast):
        return value.with_numbers(value.seed, stream)
    return value.with_stream(stream) if isinstance(value, Recipe) else value


_USUAL = {
    name: one.default
    for name, one in inspect.signature(Recipe).parameters.items()
    if name not in ("format", "sums")
}
"""The default of each argument that names of recipes leave no room for."""
_MEANT = {"fp8": "did you mean te-current?", "fp4": "did you mean nvfp4?"}

Sums: TypeAlias = "SumLike | tuple[SumLike, ...] | Recipe"
RecipeLike: TypeAlias = "Recipe | OperandLike"
"""A `Recipe`, its name, file or text, or a format (or `"native"`) for all operands."""


def recipe(given: RecipeLike) -> Recipe:
    """Returns a `Recipe` unchanged, or what `Recipe.of` makes of anything else.

    >>> recipe("native; weight=mxfp8") == Recipe("native", weight="mxfp8")
    True
    """
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, str):
        return Recipe.of(given)
    return Recipe.of(given) if is_compiling() else _kept_named(given)


_kept_named = functools.lru_cache(maxsize=1024)(Recipe.of)


def product_recipe(given: RecipeLike | SumLike) -> Recipe:
    """Returns the recipe of a product's `acc`.

    It is a `Recipe` unchanged; the recipe of a recipe's text or name, bf16 and fp16 apart; or one
    accumulator, or a format for the sequential sum in it, throughout.

    >>> product_recipe("bf16").forward, product_recipe("mxfp8").weight.text
    (cpd.Accumulator.parse('bf16 sequential'), 'mxfp8 rule=rceil arithmetic=te')
    """
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, str):
        return Recipe(sums=as_accumulator(given))  # type: ignore[arg-type]  # which it checks
    return _named_product(given) if is_compiling() else _kept_product(given)


def _named_product(text: str) -> Recipe:
    is_recipe = ";" in text or (text.lower() in NAMED and text.lower() not in ("bf16", "fp16"))
    return Recipe.of(text) if is_recipe else Recipe(sums=text)


_kept_product = functools.lru_cache(maxsize=1024)(_named_product)
