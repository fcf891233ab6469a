# SPDX-License-Identifier: Apache-2.0
"""`Recipe`: the arithmetic of a model.

A recipe has the accumulators of each layer's three GEMMs, the casts of their operands, and the
roundings of the rest of a training step.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never, Self, TypeAlias, cast

from cpd.nn import recipe_arguments as read
from cpd.nn import recipe_files
from cpd.nn.ready import READY
from cpd.nn.recipe_arguments import NATIVE as NATIVE
from cpd.nn.recipe_arguments import Sum
from cpd.nn.recipe_arguments import SumLike as SumLike
from cpd.nn.recipe_parts import OPERANDS as OPERANDS
from cpd.nn.recipe_parts import OVERRIDES as OVERRIDES
from cpd.nn.recipe_parts import ROUNDED as ROUNDED
from cpd.nn.recipe_parts import SUMS as SUMS
from cpd.nn.recipe_parts import Kept, put_kept
from cpd.nn.recipe_parts import draws as draws
from cpd.nn.recipe_parts import is_native as is_native
from cpd.nn.recipe_parts import is_same as is_same
from cpd.numeric.accumulator import Accumulator, as_accumulator
from cpd.numeric.cast import Cast as Cast
from cpd.numeric.cast import CastLike as CastLike
from cpd.numeric.cast import as_cast as as_cast
from cpd.numeric.cast import operand_text
from cpd.numeric.checked import checked, is_compiling
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format
from cpd.numeric.renamed import OfT, refuse, refuses_old
from cpd.numeric.scaled import Scaled, element_text
from cpd.numeric.spec import warn_of_numbers

if TYPE_CHECKING:
    from cpd.comm.spec import Reduce, ReduceLike

Rules: TypeAlias = (
    "Iterable[tuple[str | type, RecipeLike | None]] | Mapping[Any, RecipeLike | None] | str"
)


def _by_keywords(declared: OfT) -> OfT:
    """Returns a constructor of `Recipe`. Signature and docstring are copied from `declared`."""

    @functools.wraps(declared)
    def construct(self: Recipe, format: Any = NATIVE, /, **keywords: Any) -> None:
        if unknown := {name: keywords[name] for name in keywords if name not in _USUAL}:
            recipe_files.refuse_gone(unknown, TypeError)
            refuse("Recipe", unknown, parameters=[*_USUAL])
        keys = {name: value for name, value in keywords.items() if not _is_usual(name, value)}
        if is_compiling():
            sums = keys.get("sums")
            if isinstance(sums, Recipe):
                keys["sums"] = tuple(getattr(sums, name) for name in SUMS)
            format, keys = _plain(format), {name: _plain(keys[name]) for name in keys}
        try:
            if isinstance(format, str) and _are_texts(format, *keys.values()):
                parts = _fields(_of_text(format, *keys.items()))
            else:
                parts = _parts(format, keys)
        except RecursionError:
            raise ValueError("the recipe has too many recipes within recipes") from None
        for name, part in parts.items():
            object.__setattr__(self, name, part)

    return cast(OfT, construct)


@checked
@dataclass(frozen=True, init=False, repr=False)
class Recipe:
    """The arithmetic of a model: each layer's three GEMMs, and a step's other roundings.

    An argument of `cpd.convert`, `cpd.nn` and `cpd.functional`. Immutable, hashable, picklable.

    Args:
        format: the cast of activation, weight and gradient in all three GEMMs: a format, scaled or
            not, a dtype, a cast, or the text of one of these. Default `"native"`: no casts. A bare
            `e4m3` raises ValueError: write `e4m3fn` for OCP's format, `(4,3)` for the IEEE-like
            format. Or a whole recipe, whose keys other arguments replace. A recipe is one of:

            - A name from `Recipe.named()`. A recipe's name precedes a format of the same name.
            - A text: a format or a name, then the arguments below, each as `key=value`. Values of
              several words are in quotes: `"mxfp8 sums='e6m9 kahan' output=bf16"`, `"int8 row
              weight=mxfp8"`. A format's own options follow the format without quotes; a name
              followed by such options is a format. `none` stands for None. Rules and schedule are
              lists separated by commas: `rules="'type Linear' none, 'last 15%' bf16"`.
            - A file, whose path ends in .toml or .json, or plain data (from `to_dict`).
            - A `Recipe`.

        sums: the accumulators of the three GEMMs: an `Accumulator`, its text, a preset's name, or a
            format (for a sequential sum in that format). Or a tuple for forward, grad_input and
            grad_weight; or a recipe that has these sums. Default `"native"`: torch's own kernel. If
            `format` is a whole recipe, `sums` also replaces the sums in its rules, schedule and
            attention. A matrix unit replaces only the sums of the recipe itself.
        forward: the accumulator of the forward GEMM. Default: `sums`.
        grad_input: the accumulator of the GEMM that computes the input's gradient. Default: `sums`,
            or else `forward`.
        grad_weight: the accumulator of the GEMM that computes the weight's gradient. Default:
            `sums`, or else `forward`.
        grad_bias: the accumulator of the sum that computes the bias's gradient. Each term is
            rounded only when it is added. Default: sequential in fp32; `"native"` if `forward` is.
        activation: the cast of the input before each GEMM that it enters: a `Cast`, a format,
            scaled or not, or a text; None: no cast. Default: `format`. Gradients pass a cast
            unchanged. Blocks of scaled formats run along the axis that a GEMM sums over. If the
            cast depends on that axis, the original tensor is cast again for each GEMM.
        weight: the cast of the weight, as `activation`.
        gradient: the cast of the output's gradient, as `activation`. The bias's gradient sums the
            uncast gradient.
        output: the format to which each result is rounded after its sum. Default None: the sum is
            the result. Required if the tensor's type cannot represent the accumulator's format:
            bfloat16 layers with fp32 sums need `output="bf16"`.
        grad_input_gradient: the cast of the output's gradient in the GEMM of `grad_input`. Default
            `"same"`: as `gradient`. None: no cast. The next three arguments also have the default
            `"same"`: the cast of their tensor.
        grad_input_weight: the cast of the weight in the GEMM of `grad_input`.
        grad_weight_activation: the cast of the activation in the GEMM of `grad_weight`.
        grad_weight_gradient: the cast of the output's gradient in the GEMM of `grad_weight`.
        norm: the rounding of the results of normalizations, and of these results' gradients: a
            `Cast` or a format. None (default): as torch computes.
        softmax: the rounding of softmax, as `norm`.
        embedding: the rounding of embeddings, as `norm`.
        residual: the rounding of residual additions, as `norm`.
        attention: the recipe of attention's two products, query by key and weights by value. None
            (default): as torch computes.
        optimizer: text for `cpd.optim.from_recipe`, such as `"bf16 update=stochastic
            momentum=bf16"`: how weights and the optimizer's state are stored and updated. None
            (default): fp32, as torch.
        reduce: the all-reduce of gradients, for `cpd.VirtualNodes` and `cpd.ddp_hook`: a `Reduce`,
            or what its constructor takes, such as the text `"e4m3 aps"`. Default None.
        loss_scale: the factor of the loss, for `cpd.optim.from_recipe`: a number, or `"dynamic"`,
            which shrinks if gradients are not finite. None (default): 1.
        rules: pairs of a selector and a recipe, or a dict of them. If the recipe is None, torch
            computes the layer. Rules given to `cpd.convert` precede these rules. Default: no rules.
        schedule: triples: `"step"` or `"epoch"`, a number, and the recipe that applies from that
            number on (None: torch's own layers). Before the first number, this recipe itself
            applies. In `schedule`, `rules` and `attention`, a recipe may be any argument of
            `Recipe`. Default: no changes.
        source: a text about the recipe's origin. Recipes that differ only in `source` are equal.
        scales_at: where scales of scaled operands are applied: `operand`: to the values, before the
            sums; `block`: to the sums over a block; `epilogue`: to the final sums (see `cpd.gemm`).
            `block` and `epilogue` are for linear layers and matrix products with accumulators.
            Matrix units multiply unscaled elements and need one of these two. Default: `operand`;
            for a matrix unit given as `sums`, the choice that its operands' blocks allow.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    A matrix unit may have two operand formats. The first is the activation's and the second the
    weight's in the forward GEMM. They are the gradient's and the weight's in the GEMM of
    `grad_input`, and the activation's and the gradient's in the GEMM of `grad_weight`.

    Stochastic roundings take random bits from the call's seed and stream. The stream is XORed with
    purpose << 60 (and, by `cpd.convert`, with layer << 20). The purposes are: GEMMs: 0 forward, 4
    grad_input, 5 grad_weight, 6 grad_bias. Casts: 8 activations, 9 weights, 10 gradients, 11
    output; for one backward GEMM, if these differ: 7 weights, 14 activations, 15 gradients. Forward
    mode: 12 and 13, the products of the input's and the weight's tangent. So the roundings of a
    layer never share random bits while streams are below 2^60. The same stream gives the same bits:
    recomputation under activation checkpointing repeats them. Give a new stream at each step, its
    number << 36, in a tensor: a compiled step then stays compiled (`cpd.convert` does so).

    >>> Recipe("int8 row weight=mxfp8", output="bf16").text
    "native activation='int8 row' weight=mxfp8 gradient='int8 row' output=bf16"
    >>> Recipe("e4m3fn", sums="e6m9 chunked", grad_weight="fp32", gradient="e5m2").grad_input.format
    cpd.Format('e6m9')
    >>> fp8 = {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"}
    >>> h100 = Recipe(sums=("h100-fp8", "h100-fp8 a=e5m2", "h100-fp8 b=e5m2"), **fp8)
    >>> h100.grad_input.a
    cpd.Format('e5m2')
    >>> Recipe("e6m9 kahan")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ValueError: 'e6m9 kahan' is an accumulator, ...: give it as sums='e6m9 kahan', ...
    """

    forward: Sum
    grad_input: Sum
    grad_weight: Sum
    grad_bias: Sum
    activation: Cast | None
    weight: Cast | None
    gradient: Cast | None
    output: Cast | None
    grad_input_gradient: Cast | Literal["same"] | None
    grad_input_weight: Cast | Literal["same"] | None
    grad_weight_activation: Cast | Literal["same"] | None
    grad_weight_gradient: Cast | Literal["same"] | None
    norm: Cast | None
    softmax: Cast | None
    embedding: Cast | None
    residual: Cast | None
    attention: Recipe | None
    optimizer: str | None
    reduce: Reduce | None
    loss_scale: float | Literal["dynamic"] | None
    rules: tuple[tuple[str, Recipe | None], ...]
    schedule: tuple[tuple[str, int, Recipe | None], ...]
    source: str = field(compare=False)
    scales_at: str
    _kept: Kept = field(init=False, repr=False, compare=False)

    @_by_keywords
    @refuses_old
    def __init__(
        self,
        format: RecipeLike | Path | Literal["native"] = NATIVE,
        /,
        *,
        sums: Sums | None = None,
        forward: SumLike | None = None,
        grad_input: SumLike | None = None,
        grad_weight: SumLike | None = None,
        grad_bias: SumLike | None = None,
        activation: CastLike | Literal["same"] | None = "same",
        weight: CastLike | Literal["same"] | None = "same",
        gradient: CastLike | Literal["same"] | None = "same",
        output: CastLike | None = None,
        grad_input_gradient: CastLike | Literal["same"] | None = "same",
        grad_input_weight: CastLike | Literal["same"] | None = "same",
        grad_weight_activation: CastLike | Literal["same"] | None = "same",
        grad_weight_gradient: CastLike | Literal["same"] | None = "same",
        norm: CastLike | None = None,
        softmax: CastLike | None = None,
        embedding: CastLike | None = None,
        residual: CastLike | None = None,
        attention: RecipeLike | None = None,
        optimizer: str | None = None,
        reduce: ReduceLike | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        rules: Rules = (),
        schedule: Iterable[tuple[str, int, RecipeLike | None]] | str = (),
        source: str = "",
        scales_at: str | None = None,
        **_renamed: Never,
    ) -> None: ...  # `_by_keywords` has the body

    @property
    def text(self) -> str:
        """The canonical text, or the recipe's name if it has one. `Recipe(r.text) == r`.

        >>> Recipe("native", weight="mxfp8 rule=up", rules=[("head", None)], source="mine").text
        "native weight='mxfp8 rule=up' rules='head none'"
        """
        return recipe_files.text_of(self, _names())

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the named recipes with their `summary`, `source` and `evidence`.

        `evidence` says what defines the recipe: a library's code or a paper.

        >>> Recipe.named()["mxfp8"]["summary"]
        'MX E4M3 in blocks of 32, scales rounded up'
        """
        return {name: entry.about() for name, entry in READY.items()}

    def replace(self, **keys: Any) -> Self:
        """Returns a copy of the recipe with some arguments replaced.

        Args:
            **keys: arguments of `Recipe`; `format` replaces all operands' casts, and `sums` the
                accumulators of all GEMMs, but neither changes `attention`, `rules` or `schedule`.

        Returns:
            The new recipe.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type, or an unknown argument.

        >>> Recipe("native", weight="e4m3fn").replace(gradient="e5m2").gradient.format
        cpd.Format('e5m2')
        >>> Recipe("int8 row").replace(sums="int32").grad_weight.text
        'fp32 fixed width=32 fraction=0'
        """
        dropped = (*OPERANDS, *OVERRIDES) if "format" in keys else ()
        dropped += SUMS if "sums" in keys else ()
        dropped += ("scales_at",) if "sums" in keys and self.scales_at == "operand" else ()
        parts = {name: part for name, part in self._arguments.items() if name not in dropped}
        cast = read.formats(keys.pop("format", NATIVE))
        return type(self)(NATIVE if cast is None else cast, **parts | keys)

    def to_dict(self) -> dict[str, Any]:
        """Returns a dict of the arguments that are not defaults; `Recipe` takes such a dict."""
        return recipe_files.to_dict(self)

    def to_json(self) -> str:
        """Returns the recipe as JSON, without default arguments; `Recipe` reads such files."""
        import json

        return json.dumps(self.to_dict(), indent=2, ensure_ascii=False) + "\n"

    def to_toml(self) -> str:
        """Returns the recipe as TOML, without default arguments; needs the package tomli_w.

        >>> print(Recipe("native", weight="mxfp8").to_toml().strip())
        forward = "native"
        weight = "mxfp8"
        """
        import tomli_w

        return tomli_w.dumps(self.to_dict())

    def __getstate__(self) -> dict[str, Any]:
        return self._arguments

    def __setstate__(self, state: dict[str, Any]) -> None:
        warn_of_numbers("Recipe", state)
        state = recipe_files.renewed(state)
        self.__init__(**{name: value for name, value in state.items() if name in _PARTS})  # type: ignore[misc]

    def __hash__(self) -> int:
        return hash(self._kept.text)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"cpd.Recipe({self.text!r})"

    @property
    def _arguments(self) -> dict[str, Any]:
        """The keyword arguments with which `Recipe` makes an equal recipe."""
        return {name: getattr(self, name) for name in _PARTS}

    # ---- for layers ------------------------------------------------------------------------------

    def _operand(self, name: str) -> Cast | None:
        """Returns the cast `name` of a GEMM's operand; if it is "same", the tensor's usual cast."""
        value = getattr(self, name)
        cast: Cast | None = getattr(self, OVERRIDES[name]) if is_same(value) else value
        return cast

    @property
    def _sums(self) -> tuple[Sum, ...]:
        """The recipe's four sums: forward, grad_input, grad_weight, grad_bias."""
        return tuple(getattr(self, name) for name in SUMS)

    @property
    def _is_native(self) -> bool:
        """True if torch's own kernels compute all sums."""
        return all(map(is_native, self._sums))

    @property
    def _casts(self) -> tuple[Cast | None, ...]:
        """The casts of the GEMMs' six operands, and of the results of all kinds of layers."""
        return (*self._kept.operands, self.output, *(getattr(self, name) for name in ROUNDED))

    @property
    def _rounds(self) -> bool:
        """True if an operand or a result of a layer is cast."""
        return any(spec is not None for spec in self._casts) or self.attention is not None


def _parts(format: Any, others: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe, from its first argument and its keyword arguments."""
    if isinstance(format, str) and format.lower() in READY:
        format = _named(format.lower())
    if isinstance(format, Recipe):
        return _fields(_changed(format, others) if others else format)
    where = f"{format}: " if recipe_files.is_file(format) else ""
    try:
        keys = recipe_files.keys_of(format)
    except ValueError as error:
        raise ValueError(f"{where}{error}") from None
    if keys is None:
        return _read_parts(format, others)
    head = keys.pop("format", NATIVE)
    try:
        if "sums" in others:
            return _fields(_changed(Recipe(head, **keys), others))
        return _parts(head, keys | others)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{where}{error}") from None


def _fields(recipe: Recipe) -> dict[str, Any]:
    return {name: getattr(recipe, name) for name in _FIELDS}


@constant
def _named(name: str) -> Recipe:
    return Recipe(READY[name].keys, source=READY[name].source)


@functools.cache
def _names() -> dict[str, str]:
    """Maps the text of each named recipe to its name."""
    names: dict[str, str] = {}
    for name in sorted(READY, key=lambda name: "rules" in READY[name].keys):
        names[recipe_files.text_of(_named(name), names)] = name
    return names


def _are_texts(*values: Any) -> bool:
    """Returns True if a recipe of these values can be cached: all are texts that name no file."""
    return all(
        _are_texts(*value)
        if isinstance(value, tuple)
        else isinstance(value, str) and ".toml" not in value and ".json" not in value
        for value in values
    )


def _plain(value: Any) -> Any:
    """Replaces formats, casts and recipes in an argument by their texts, for torch.compile."""
    if isinstance(value, (tuple, list)):
        return tuple(_plain(item) for item in value)
    if isinstance(value, Cast):
        return operand_text(value)
    if isinstance(value, (Accumulator, Scaled)):
        return value.text
    if isinstance(value, Format):
        return element_text("format", value)
    if isinstance(value, Recipe) and not (
        value.rules or value.schedule or value.optimizer or value.reduce or value.loss_scale
    ):
        text, within = value._kept.text, value.attention
        return text if within is None else f'{text} attention="{within._kept.text}"'
    return value


@constant
def _of_text(text: str, *others: tuple[str, Any]) -> Recipe:
    """Returns a recipe from its text or name, and from its other arguments as texts."""
    if text.lower() in READY and not others:
        return _named(text.lower())
    return _new(_parts(text, dict(others)))


def _new(parts: dict[str, Any]) -> Recipe:
    recipe = object.__new__(Recipe)
    recipe.__dict__.update(parts)
    return recipe


def _changed(recipe: Recipe, others: dict[str, Any]) -> Recipe:
    """Returns the recipe with new arguments. New `sums` also apply to the recipes within it."""
    sums = others.get("sums")
    if sums is None or _is_unit(sums):
        return recipe.replace(**others)

    def summed(inner: Recipe | None) -> Recipe | None:
        return None if inner is None else _changed(inner, {"sums": sums})

    within = {
        "attention": summed(recipe.attention),
        "rules": tuple((selector, summed(inner)) for selector, inner in recipe.rules),
        "schedule": tuple((unit, start, summed(inner)) for unit, start, inner in recipe.schedule),
    }
    return recipe.replace(**within | others)


def _is_unit(sums: Any) -> bool:
    forward: Any = read.sum_("sums", _sums_of(sums)[0])
    return not is_native(forward) and forward.form == "unit"


def _sums_of(sums: Any) -> tuple[Any, ...]:
    return sums._sums if isinstance(sums, Recipe) else read.sums(sums)


def _read_parts(format: Any, others: dict[str, Any]) -> dict[str, Any]:
    """Returns a recipe's fields, from the operands' `format` and the other arguments."""
    cast = read.operands(format)
    keys = _USUAL | others
    sums = _sums_of(keys.pop("sums"))
    for name in OPERANDS:
        if isinstance(keys[name], str) and keys[name] == "same":
            keys[name] = cast
    for name, sum_ in zip(SUMS, sums, strict=False):
        if keys[name] is None:
            keys[name] = sum_
    first = NATIVE if keys["forward"] is None else keys["forward"]
    first = keys["forward"] = _read("forward", first)
    usual = {"grad_input": first, "grad_weight": first, "grad_bias": read.usual_bias(first)}
    for name, default in usual.items():
        if keys[name] is None:
            keys[name] = default
    if keys["scales_at"] is None and not sums:
        keys["scales_at"] = "operand"
    parts = {name: _read(name, value) for name, value in keys.items()}
    put_kept(parts)
    return parts


def _read(name: str, value: Any) -> Any:
    kind = recipe_files.KEYS[name]
    if kind in _OPTIONAL and read.is_none(value):
        return None
    try:
        return _KINDS[kind](name, value)
    except (ValueError, TypeError) as error:
        if str(error).startswith(name):
            raise
        raise _within(name, error) from None


def _within(name: str, error: ValueError | TypeError) -> Exception:
    """Returns an error with the name of the key before its message."""
    return (TypeError if isinstance(error, TypeError) else ValueError)(f"{name}: {error}")


def _is_usual(name: str, value: Any) -> bool:
    usual = _USUAL[name]
    return isinstance(value, type(usual)) and bool(value == usual)


def _nested(name: str, value: Any) -> Recipe | None:
    if read.is_none(value):
        return None
    try:
        is_keys = isinstance(value, dict)  # whose depth the outermost call tells
        return _new(_parts(value, {})) if is_keys else as_recipe(value)
    except (ValueError, TypeError) as error:
        raise _within(name, error) from None


_USUAL = {
    name: parameter.default
    for name, parameter in inspect.signature(Recipe).parameters.items()
    if name not in ("format", "_renamed")
}
"""The default of each keyword argument of `Recipe`."""

_KINDS: dict[str, Callable[[str, Any], Any]] = {
    "sum": read.sum_,
    "operand": read.operand,
    "override": read.override,
    "result": read.cast,
    "word": read.scales_at,
    "recipe": _nested,
    "words": read.words,
    "reduce": read.reduce,
    "loss_scale": read.loss_scale,
    "rules": functools.partial(read.rules, nested=_nested),
    "schedule": functools.partial(read.schedule, nested=_nested),
}
"""Maps a kind of key to the function that checks and converts values of such keys."""
_OPTIONAL = ("operand", "override", "result", "recipe", "words", "reduce", "loss_scale")
"""The kinds of keys that may be None, or `none` in texts and files."""
_PARTS = tuple(name for name in _USUAL if name != "sums")
"""The names of a recipe's public fields."""
_FIELDS = (*_PARTS, "_kept")

Sums: TypeAlias = "SumLike | tuple[SumLike, ...] | Recipe"
RecipeLike: TypeAlias = "Recipe | CastLike | dict[str, Any]"
"""The types of the first argument of `Recipe`."""


def as_recipe(given: RecipeLike) -> Recipe:
    """Returns a `Recipe` unchanged, or makes one. Equal texts give the same object.

    >>> as_recipe("native weight=mxfp8") is as_recipe("native weight=mxfp8")
    True
    """
    if isinstance(given, Recipe):
        return given
    return _of_text(str(given)) if _are_texts(given) else Recipe(given)


def product_recipe(given: RecipeLike | SumLike) -> Recipe:
    """Returns the recipe that the argument `acc` of a product, such as `cpd.gemm`, defines.

    A `Recipe` is returned unchanged. A recipe's text or name, except bf16 and fp16, gives that
    recipe. An accumulator, or a format for its sequential sum, becomes the `sums` of a recipe.

    >>> product_recipe("bf16").forward, product_recipe("mxfp8").weight.text
    (cpd.Accumulator('bf16 sequential'), 'mxfp8 rule=rceil arithmetic=te')
    """
    if isinstance(given, Recipe):
        return given
    if not isinstance(given, str):
        return Recipe(sums=as_accumulator(given))  # type: ignore[arg-type]  # which it checks
    return _of_product(given)


@constant
def _of_product(text: str) -> Recipe:
    is_name = text.lower() in READY and text.lower() not in ("bf16", "fp16")
    return _of_text(text) if is_name or recipe_files.keys_of(text) else Recipe(sums=text)
