# SPDX-License-Identifier: Apache-2.0
"""How a model computes: `Recipe`, the sums of the three GEMMs of its layers, what their operands
are cast to, and what the rest of a training step rounds to."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

from cpd import _core
from cpd.nn import recipe_files
from cpd.nn.recipe_parts import OPERANDS as OPERANDS
from cpd.nn.recipe_parts import OVERRIDES as OVERRIDES
from cpd.nn.recipe_parts import ROUNDED as ROUNDED
from cpd.nn.recipe_parts import SUMS as SUMS
from cpd.nn.recipe_parts import Kept, kept
from cpd.nn.recipe_parts import draws as draws
from cpd.nn.recipe_parts import is_native as is_native
from cpd.nn.recipe_parts import is_same as is_same
from cpd.numeric.accumulator import Accumulator, AccumulatorLike, accumulator
from cpd.numeric.cast import CastLike as CastLike
from cpd.numeric.cast import CastSpec as CastSpec
from cpd.numeric.cast import cast_spec as cast_spec
from cpd.numeric.checked import checked, is_compiling
from cpd.numeric.formats import is_scaled
from cpd.numeric.names import did_you_mean
from cpd.numeric.numbers import Number, check_number, integer
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled import Scaled
from cpd.numeric.scaled_cast import OperandLike, OperandSpec, ScaledCast, operand_spec
from cpd.numeric.shown import shown
from cpd.numeric.spec import arguments
from cpd.numeric.streams import MAX_LAYERS as MAX_LAYERS

MAX_MANTISSA = 23
NAMED: dict[str, Callable[[], Recipe]] = {}
"""What makes the named recipes, by name; `cpd.nn.ready` adds them."""

NATIVE: Literal["native"] = "native"
"""The sum of torch's own kernel."""

Sum: TypeAlias = "Accumulator | Literal['native']"
SumLike: TypeAlias = "AccumulatorLike | Literal['native']"
Rules: TypeAlias = (
    "Iterable[tuple[str | type, RecipeLike | None]] | Mapping[str | type, RecipeLike | None]"
)


@checked
@dataclass(frozen=True, init=False, repr=False)
class Recipe:
    """How the layers of a model (`cpd.convert`, `cpd.nn`, `cpd.functional`) compute their three
    GEMMs, and to what the rest of a training step rounds.

    Args:
        forward: the sum of the forward GEMM; here and below `"native"`, torch's own kernel, or an
            `Accumulator`, its text, a preset's name, or a format for the sequential sum.
        grad_input: of the backward GEMM that gives the gradient of the input; default `forward`.
        grad_weight: of the backward GEMM that gives the gradient of the weight; default `forward`.
        grad_bias: of the sum that gives the gradient of the bias, of which each term is rounded
            only as it is added; default fp32, in order, or `"native"` where `forward` is.
        activation, weight, gradient: what the input, the weight and the gradient of the output are
            cast to before each GEMM that they enter: a `CastSpec` or `ScaledCast`, a format, scaled
            or not, or a text; None: no cast. The casts pass gradients straight through; the bias's
            gradient sums what is not yet cast. Blocks of scaled formats run along each GEMM's sum:
            where the cast depends on that, the original tensor is cast again for each GEMM.
        grad_input_gradient, grad_input_weight: the operands of that GEMM, where they are others
            than `gradient` and `weight`; None: no cast. Default `"same"`.
        grad_weight_activation, grad_weight_gradient: the operands of that GEMM, where they are
            others than `activation` and `gradient`; None and default as above.
        scales_at: where the scales of scaled operands are applied: to each `operand` (to its
            values, before the sums), to the sums over a `block`, or at the end, in the `epilogue`
            (see `cpd.gemm`); the last two for linear layers and products of matrices with
            accumulators, as matrix units, which take elements, need it.
        output: what the result is rounded to once more; default: as the accumulator leaves it. A
            type that does not hold the accumulator's format needs one: bfloat16 layers with fp32
            sums have `output="bf16"`.
        layer: a number, 0…2^16 - 1, by which layers that share a recipe draw different random bits.
        norm, softmax, embedding, residual: what the results of normalisations, softmax, embeddings
            and residual additions, and the gradients that come back to them, are rounded to: a
            `CastSpec` or a format; None: as torch computes.
        attention: the recipe of attention's two products, query by key and weights by value; None:
            as torch computes.
        update, state: texts for `cpd.optim.from_recipe`: how weights are stored and updated, and
            the optimizer's state; None: fp32, as torch does.
        wire: text or None: how gradients are reduced over nodes, for `cpd.comm.reduce_spec`.
        loss_scale: None, a number, or `"dynamic"`.
        rules: pairs of a selector and a recipe, or a dict of them, with None for torch's own layer,
            as `cpd.convert` takes them; the rules of `cpd.convert` itself come first.
        schedule: triples of `"step"` or `"epoch"`, a number, and the recipe (None: torch's own
            layers) that holds from then on; before the first, this one does. Here, in rules and as
            attention, a recipe may be whatever `cpd.recipe` takes: its name, a format, a file.
        source: where the recipe comes from, in words.

    Where an accumulator is a matrix unit with two operand formats, the first is the activation's
    and the second the weight's in the forward GEMM; the gradient's and the weight's for the input's
    gradient; the activation's and the gradient's for the weight's gradient.

    Each rounding of stochastic mode draws from the seed of its own accumulator or cast, and from
    that one's stream, XOR layer << 20, XOR purpose << 60, with purpose 0 for the forward GEMM, 4
    for grad_input, 5 for grad_weight, 6 for grad_bias, 8 for the cast of activations, 9 of
    weights, 10 of gradients, 11 of the output; 7, 14 and 15 for casts of weights, activations and
    gradients for one backward GEMM, where these differ; in forward mode 12 and 13 for the products
    of the input's and the weight's tangent. So the roundings of a layer never share random bits
    where streams stay below 2^60. Give a new stream at each step: its number << 36, say, in a
    tensor, so that a compiled step stays compiled (`cpd.convert` does). The same stream gives the
    same bits: recomputation under activation checkpointing repeats them.

    Immutable, hashable, picklable. Raises ValueError or TypeError for anything else.

    >>> Recipe("e4m3", grad_weight="e6m9 chunked", weight="e4m3").grad_input.format
    cpd.format('e4m3')
    >>> fp8 = {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"}
    >>> Recipe("h100-fp8", "h100-fp8 a=e5m2", "h100-fp8 b=e5m2", **fp8).grad_input.unit.a
    cpd.format('e5m2')
    >>> Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8-e5m2")
    cpd.Recipe(forward='native', activation='mxfp8', weight='mxfp8', gradient='mxfp8-e5m2')
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
        forward: SumLike,
        grad_input: SumLike | None = None,
        grad_weight: SumLike | None = None,
        *,
        grad_bias: SumLike | None = None,
        activation: OperandLike | None = None,
        weight: OperandLike | None = None,
        gradient: OperandLike | None = None,
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
        scales_at: str = "operand",
    ) -> None:
        said = dict(locals())
        del said["self"]
        said["forward"] = first = _sum("forward", forward)
        usual = {"grad_input": first, "grad_weight": first, "grad_bias": _usual_bias(first)}
        for name, sum_ in usual.items():
            if said[name] is None:
                said[name] = sum_
        parts = {name: _READERS[name](name, value) for name, value in said.items()}
        parts["_kept"] = kept(parts)
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    def operand(self, name: str) -> OperandSpec | None:
        """What an operand is cast to, by its name here; for "same" that is its tensor's cast.

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
        """The canonical text of sums, casts and `scales_at`, for `parse`. It has no seeds and
        streams, and nothing of the rest of a training step.

        >>> Recipe("native", weight="mxfp8", output="bf16", source="measured").text
        'native; weight=mxfp8; output=bf16'
        """
        return self._kept.text

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """The recipe of a text as `text` gives it. Raises ValueError, naming the key.

        >>> Recipe.parse("e4m3; weight=mxfp8; grad_input_weight=none")
        cpd.Recipe(forward='e4m3 sequential', weight='mxfp8', grad_input_weight=None)
        """
        texts = _core.Recipe.parse(text).fields().items()
        said: dict[str, Any] = {name: None if one == "none" else one for name, one in texts}
        return cls(**said)

    @classmethod
    def of(cls, given: Any) -> Recipe:
        """The recipe of a name (`cpd.named_recipes`), a file (a path that ends in .toml or .json),
        plain data, a text, or an accumulator for all sums; a recipe as it is. Raises ValueError,
        with the nearest name, or TypeError for anything else.

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
        if isinstance(given, str) and given.lower() in NAMED:
            return NAMED[given.lower()]()
        try:
            return cls.parse(given) if isinstance(given, str) and ";" in given else cls(given)
        except TypeError as error:
            raise TypeError(
                "a recipe is a cpd.Recipe, a name, a file (.toml or .json), plain data, or an "
                f"accumulator, got {shown(given)}"
            ) from error
        except ValueError as error:
            if not isinstance(given, str) or ";" in given:
                raise
            meant = did_you_mean(given, NAMED)
            if not meant and not str(error).startswith("unknown"):
                raise  # which says what is wrong with an accumulator or a format
            hint = f"{meant} " if meant else ""
            raise ValueError(
                f"{shown(given)} is no recipe ({hint}there are {', '.join(sorted(NAMED))}), no "
                "file, .toml or .json, and no accumulator"
            ) from error

    @property
    def gemms(self) -> str:
        """The text of what the GEMMs of a layer take: sums, casts of operands, `scales_at`; without
        the casts before them.

        >>> Recipe("native", activation="mxfp8", weight="e4m3fn", output="bf16").gemms
        'native; activation=mxfp8'
        """
        return self._kept.gemms

    @property
    def cast_before(self) -> tuple[OperandSpec | None, OperandSpec | None]:
        """The casts of activation and weight, where one, before both GEMMs that the tensor enters,
        serves for both."""
        return self._kept.before

    @property
    def drawing(self) -> tuple[tuple[Purpose, Any], ...]:
        """The sums and casts of the GEMMs whose rounding is stochastic, each with its purpose."""
        return self._kept.drawing

    @property
    def operands(self) -> tuple[OperandSpec | None, ...]:
        """The casts of the six operands: activation and weight of forward, gradient and weight of
        grad_input, activation and gradient of grad_weight."""
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
        """Whether all sums are torch's own."""
        return all(map(is_native, self.sums))

    @property
    def casts(self) -> tuple[OperandSpec | None, ...]:
        """The casts of the six operands, and of the results of all kinds of layers."""
        return (*self.operands, self.output, *(getattr(self, name) for name in ROUNDED))

    @property
    def rounds(self) -> bool:
        """Whether an operand or a result of a layer is cast."""
        return any(spec is not None for spec in self.casts) or self.attention is not None

    @property
    def draws(self) -> bool:
        """Whether a rounding of a layer is stochastic: attention's, norms' and so on included."""
        return any(draws(part) for part in (*self.sums, *self.casts)) or (
            self.attention is not None and self.attention.draws
        )

    @property
    def delays(self) -> bool:
        """Whether an operand's scale follows from former steps."""
        return self._kept.delays

    def for_layer(self, layer: int) -> Recipe:
        """The recipe with another layer number.

        >>> Recipe("e4m3").for_layer(3).layer
        3
        """
        return replace(self, layer=layer)

    def with_stream(self, stream: Number) -> Recipe:
        """The recipe with this stream in all its accumulators and casts.

        >>> drawing = Recipe("e4m3 sequential rounding=stochastic", gradient="e5m2")
        >>> drawing.with_stream(5).grad_weight.stream
        5
        """
        check_number("stream", stream)
        parts = arguments(self)
        return Recipe(**{name: _with_stream(value, stream) for name, value in parts.items()})

    def replace(self, **changes: Any) -> Recipe:
        """The recipe with other arguments.

        >>> Recipe("native", weight="e4m3fn").replace(gradient="e5m2").gradient.format
        cpd.format('e5m2')
        """
        return replace(self, **changes)

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
        """The recipe of plain data: keys are the arguments, None is the text `none`. Raises
        ValueError, naming the key."""
        return recipe_files.from_dict(given, cls)

    @classmethod
    def from_json(cls, text: str) -> Recipe:
        """The recipe of a JSON text; errors as `from_dict`'s."""
        return recipe_files.from_json(text, cls)

    @classmethod
    def from_toml(cls, text: str) -> Recipe:
        """The recipe of a TOML text; errors as `from_dict`'s."""
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
    is_spec = isinstance(value, (Accumulator, CastSpec, ScaledCast))
    return repr(str(value) if is_spec else value)


def _usual_bias(forward: Sum) -> SumLike:
    return NATIVE if is_native(forward) else "fp32"


def _sum(name: str, value: SumLike) -> Sum:
    return NATIVE if isinstance(value, str) and value == NATIVE else accumulator(value)


def _operand(name: str, value: OperandLike | None) -> OperandSpec | None:
    """A cast of an operand, or None. Raises ValueError for formats that operands do not have."""
    if value is None:
        return None
    spec = operand_spec(value)
    f = spec.format
    if f.man > MAX_MANTISSA:
        raise ValueError(
            f"{name} takes formats with a mantissa of up to {MAX_MANTISSA} bits, as operands are "
            f"at most float32, got {f.name!r}, which has {f.man}"
        )
    return spec


def _override(name: str, value: Any) -> Any:
    return value if isinstance(value, str) and value == "same" else _operand(name, value)


def _cast(name: str, value: CastLike | Scaled | None) -> CastSpec | None:
    """A cast of results, or None. Raises ValueError for scaled formats."""
    if value is None:
        return None
    if isinstance(value, (Scaled, ScaledCast)) or (isinstance(value, str) and is_scaled(value)):
        raise ValueError(
            f"{name} takes formats without scales, got {value}; the operands of products, "
            "activation, weight and gradient, take scaled ones too"
        )
    spec = operand_spec(value) if isinstance(value, str) else cast_spec(value)
    assert isinstance(spec, CastSpec)  # scaled formats were refused above
    return spec


def _layer(name: str, value: Any) -> int:
    number = integer(name, value)
    if not 0 <= number < MAX_LAYERS:
        raise ValueError(f"layer must be 0…2^16 - 1, got {number}")
    return number


def _nested(name: str, value: Any) -> Recipe | None:
    return None if value is None else Recipe.of(value)


def _words(name: str, value: Any) -> Any:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{name} must be a str, got {type(value).__name__}")
    return value


def _loss_scale(name: str, value: Any) -> Any:
    if value is None or (isinstance(value, str) and value == "dynamic"):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"loss_scale must be None, a number or 'dynamic', got {shown(value)}")
    if not 0 < value <= sys.float_info.max:
        raise ValueError(f"loss_scale must be above 0 and finite, got {shown(value)}")
    return float(value)


def _scales_at(name: str, value: Any) -> Any:
    if value not in _core.SCALES_AT:
        allowed = ", ".join(_core.SCALES_AT)
        raise ValueError(f"scales_at must be one of {allowed}, got {shown(value)}")
    return value


def _rules(name: str, value: Any) -> tuple[tuple[str, Recipe | None], ...]:
    """Rules, with classes as texts, so that files can hold them."""
    found = []
    for each in value.items() if isinstance(value, Mapping) else _items(name, value):
        if not isinstance(each, (tuple, list)) or len(each) != 2:
            raise TypeError(f"rules must be pairs (selector, recipe or None), got {shown(each)}")
        selector, how = each
        if isinstance(selector, type):
            selector = f"type:{selector.__module__}.{selector.__qualname__}"
        if not isinstance(selector, str):
            raise TypeError(f"a rule's selector must be a str or a class, got {shown(selector)}")
        found.append((selector, _nested(name, how)))
    return tuple(found)


def _schedule(name: str, value: Any) -> tuple[tuple[str, int, Any], ...]:
    found: list[tuple[str, int, Any]] = []
    for each in _items(name, value):
        if not isinstance(each, (tuple, list)) or len(each) != 3:
            raise TypeError(
                "schedule must be triples ('step' or 'epoch', from, recipe or None), "
                f"got {shown(each)}"
            )
        unit, start, how = each
        if unit not in ("step", "epoch"):
            raise ValueError(f"schedule: the unit must be 'step' or 'epoch', got {shown(unit)}")
        number = integer(name, start)
        if found and (unit != found[-1][0] or number <= found[-1][1]):
            raise ValueError(
                "schedule must have one unit, and numbers that grow, got "
                f"{found[-1][:2]} before {(unit, number)}"
            )
        if number < 0:
            raise ValueError(f"schedule starts at 0 or later, got {number}")
        found.append((unit, number, _nested(name, how)))
    return tuple(found)


def _items(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a sequence, got {shown(value)}")
    return list(value)


_READERS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(SUMS, _sum),
    **dict.fromkeys(OPERANDS, _operand),
    **dict.fromkeys(OVERRIDES, _override),
    **dict.fromkeys(("output", *ROUNDED), _cast),
    **dict.fromkeys(("update", "state", "wire", "source"), _words),
    "layer": _layer,
    "attention": _nested,
    "loss_scale": _loss_scale,
    "rules": _rules,
    "schedule": _schedule,
    "scales_at": _scales_at,
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


RecipeLike: TypeAlias = "Recipe | SumLike"
"""A `Recipe`, or one accumulator (or `"native"`) for all three GEMMs."""


def recipe(given: RecipeLike) -> Recipe:
    """A `Recipe` as it is; or the recipe that uses one accumulator throughout, that of a recipe's
    text, or a named one (`cpd.named_recipes`; "bf16" and "fp16" are accumulators here).

    >>> recipe("e6m9 chunked") == Recipe("e6m9 chunked")
    True
    >>> recipe("native; weight=mxfp8") == Recipe("native", weight="mxfp8")
    True
    """
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, str):
        return Recipe(given)
    return _named(given) if is_compiling() else _kept_named(given)


def _named(text: str) -> Recipe:
    return Recipe(text) if text in ("bf16", "fp16") else Recipe.of(text)


_kept_named = functools.lru_cache(maxsize=1024)(_named)
