# SPDX-License-Identifier: Apache-2.0
"""Checks arguments of the functions in `cpd.functional`; casts operands and results of products."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cpd import _core
from cpd._torch import operators
from cpd._torch.arguments import call_numbers, stacked_numbers
from cpd._torch.derivatives import run
from cpd._torch.operands import cast_operand, type_of_cast
from cpd._torch.sums import tagged
from cpd.nn.recipe import NATIVE, Recipe, RecipeLike, Sums, as_recipe, is_native
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast, format_of
from cpd.numeric.compiling import constant
from cpd.numeric.numbers import Number
from cpd.numeric.purposes import Purpose
from cpd.numeric.scaled import Scaled
from cpd.ops.arguments import holds
from cpd.ops.explaining import explains


def recipe_of(recipe: RecipeLike | None, sums: Sums | None) -> Recipe:
    """Returns the recipe that the arguments `recipe` and `sums` of a function define.

    Raises TypeError if both are None.
    """
    if sums is None:
        if recipe is None:
            raise TypeError("give recipe=, such as recipe='mxfp8', or sums=, got neither")
        return recipe if isinstance(recipe, Recipe) else as_recipe(recipe)
    if isinstance(sums, Accumulator):
        sums = sums.text  # also arguments of compiled programs
    if isinstance(sums, str) and not torch.compiler.is_dynamo_compiling():
        return _summed(None if recipe is None else as_recipe(recipe), sums)
    return Recipe(NATIVE if recipe is None else recipe, sums=sums)


@functools.lru_cache(maxsize=1024)
def _summed(recipe: Recipe | None, sums: str) -> Recipe:
    return Recipe(NATIVE if recipe is None else recipe, sums=sums)


check_operand = operators.check_float
"""Raises TypeError unless `x` is a tensor of a type that products support."""


def check_places(like: str, first: Tensor, **others: Tensor | None) -> None:
    """Raises ValueError unless all tensors are on one device.

    `like`: the name of the first tensor.
    """
    for name, x in others.items():
        if x is not None and x.device != first.device:
            raise ValueError(f"{name} must be on {like}'s device, {first.device}, got {x.device}")


def check_bias(bias: Tensor, outputs: int) -> None:
    """Raises an error unless `bias` has one value for each output."""
    if tuple(bias.shape) != (outputs,):
        raise ValueError(f"bias must have shape ({outputs},), got {tuple(bias.shape)}")


@constant
def _has_autocast(place: str) -> bool:
    """Returns True if torch.autocast supports a device type.

    torch.compile of torch 2.11 cannot trace `is_autocast_available`, so this result is a constant.
    """
    return torch.amp.is_autocast_available(place)


def autocast_type(x: Tensor) -> torch.dtype | None:
    """Returns the type that torch.autocast uses on x's device; None if autocast is off."""
    place = x.device.type
    if not _has_autocast(place) or not torch.is_autocast_enabled(place):
        return None
    return torch.get_autocast_dtype(place)


def mixes_types(module: torch.nn.Module, *arguments: Any) -> bool:
    """Returns True if a module's arguments and parameters have different floating-point types.

    torch's linear, convolutional and other product layers then raise an error. Tensors in tuples
    are included. Returns False within torch.autocast.
    """
    first: Tensor | None = None
    for value in (*arguments, *module._parameters.values()):
        for x in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(x, Tensor) and x.dtype in FORMATS:
                if first is None:
                    first = x
                elif x.dtype != first.dtype:
                    return autocast_type(first) is None
    return False


def check_types(what: str, *operands: Tensor, way: str = "") -> None:
    """Raises ValueError if operands have different types, outside of torch.autocast.

    The message recommends to convert the operands. `way`: a text with another remedy, appended.
    """
    types = dict.fromkeys(x.dtype for x in operands)
    if len(types) > 1 and autocast_type(operands[0]) is None:
        names = " and ".join(map(operators.name_of, types))
        raise ValueError(
            f"{what} must have one type outside of torch.autocast, got {names}: convert them to "
            f"one{way}"
        )


FORMATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
"""Maps the types that products support to the names of their formats."""

watchers: list[Callable[[Recipe], None]] = []
"""Functions that are called just before each call of an operator, with the operator's recipe.

`cpd.nn.coverage` adds such functions.
"""


class Arguments(NamedTuple):
    """The arguments of torch.ops.cpd.matmul or convolution, and the casts that precede the call."""

    how: Recipe
    activation: Cast | None
    """The activation's cast before the operator; both GEMMs with the activation use the result.
    None: the operator casts the activation for each GEMM, or the recipe does not cast it."""
    weight: Cast | None
    dtype: torch.dtype | None
    """The result's type that the caller requested; None if the caller requested no type."""
    element: torch.dtype
    """The type in which torch.ops.cpd.matmul or convolution returns the sums."""
    narrow: torch.dtype | None
    """The type that torch.autocast uses; None if autocast is off or the caller gives `dtype`."""
    gemms: str
    """The text from which the operator reads the three GEMMs' sums and casts of operands."""
    seed: Number
    stream: Number
    delayed: Any
    numbers: Tensor | None

    @classmethod
    def of(
        cls,
        how: Recipe,
        x: Tensor,
        w: Tensor,
        dtype: torch.dtype | None,
        seed: Number = 0,
        stream: Number = 0,
        delayed: Any = None,
    ) -> Arguments:
        """Returns the arguments of a call with operands `x` and `w`.

        Raises an error if a tensor's type cannot represent a format of the recipe, or if delayed
        scaling has no state.
        """
        if dtype is None and x.dtype != w.dtype:
            check_types("the operands", x, w, way=", or give dtype=")
        narrow = None if dtype is not None else autocast_type(x)
        dtype = narrow if dtype is None else dtype
        element = _element(how, x, dtype)
        if how._kept.delays and delayed is None:
            raise ValueError(
                "the recipe's scales depend on past steps: use cpd.convert, whose layers store "
                "them, or give delayed= a cpd.nn.delayed.Delayed of the recipe"
            )
        numbers = _numbers(how, x, seed, stream)
        before, gemms = how._kept.before, how._kept.gemms
        if _casts_within(how, x.dtype, w.dtype, element):
            before, gemms = (None, None), _gemms_within(how._kept.text)
        return cls(how, *before, dtype, element, narrow, gemms, seed, stream, delayed, numbers)

    def of_operator(self) -> tuple[Any, ...]:
        """Returns the arguments that give the operator the recipe (see `cpd._torch.recipe`)."""
        for watch in watchers:
            if not explains():
                watch(self.how)
        multipliers = self.delayed.multipliers() if self.how._kept.delays else None
        return self.gemms, self.numbers, multipliers, self.narrow, self.element


def _casts_within(recipe: Recipe, *dtypes: torch.dtype) -> bool:
    """Returns True if the operator itself casts activation and weight, separately for each GEMM.

    The operator casts if torch's kernels multiply 16-bit values, and neither cast is stochastic. It
    then applies the casts' scales to the products if possible (`cpd._torch.native`).
    """
    if not is_native(recipe.forward) or dtypes.count(torch.float32) == len(dtypes):
        return False
    return not any(
        spec is not None and spec.rounding == "stochastic" for spec in recipe._kept.before
    )


@constant
def _gemms_within(text: str) -> str:
    """Returns the part of a recipe's text that GEMMs use: their sums and the casts of operands."""
    gemms: str = _core.Recipe.parse(text).gemms(False, False).text
    return gemms


def entering(arguments: Arguments, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Returns input and weight after the casts that precede the operator matmul or convolution."""
    if arguments.how._kept.delays:
        _note_delayed(arguments, x, w)
    return (
        cast_before(arguments, x, arguments.activation, Purpose.cast_activation),
        cast_before(arguments, w, arguments.weight, Purpose.cast_weight),
    )


def _note_delayed(arguments: Arguments, x: Tensor, w: Tensor) -> None:
    """Records the largest magnitude of operands that the operator casts with delayed scales."""
    for name, operand, before in (
        ("activation", x, arguments.activation),
        ("weight", w, arguments.weight),
    ):
        cast = getattr(arguments.how, name)
        if before is None and cast is not None and cast.history:
            arguments.delayed.note(name, operand)


def finished(arguments: Arguments, y: Tensor, x: Tensor) -> Tensor:
    """Returns a layer's result: the sums `y`, cast to the recipe's `output`.

    The type of the operand `x` is the default type of the result.
    """
    recipe = arguments.how
    if recipe._kept.delays:
        y = arguments.delayed.watch(y)
    if recipe.output is None:
        return y
    y = cast_before(arguments, y, recipe.output, Purpose.cast_output)
    return y.to(operators.result_type(x, arguments.dtype))


def cast_before(arguments: Arguments, x: Tensor, spec: Cast | None, purpose: Purpose) -> Tensor:
    """Returns `x` cast, with the gradient passed through unchanged.

    Scales, if the format has them, cover the whole tensor or square blocks.
    """
    if spec is None:
        return x
    numbers = pair_of(spec, purpose, x, arguments.seed, arguments.stream)
    if isinstance(spec.format, Scaled) and not spec.history:
        return cast_operand(x, spec.text, -1, numbers)
    x = x.to(type_of_cast(x, spec.text))
    if spec.history:
        which = "weight" if purpose == Purpose.cast_weight else "activation"
        delayed: Tensor = arguments.delayed.quantize(which, x, *numbers)
        return delayed
    y: Tensor = run("cast", x, spec.text, *numbers, None)
    return y


def pair_of(
    spec: Any, purpose: Purpose, x: Tensor, seed: Number, stream: Number
) -> tuple[Tensor | None, Tensor | None]:
    """Returns the seed and stream of a sum or cast; None if its rounding is not stochastic."""
    if spec is None or is_native(spec):
        return None, None
    of_seed, of_stream = call_numbers(spec, seed, stream, x)
    return of_seed, None if of_stream is None else tagged(of_stream, purpose)


def _element(recipe: Recipe, x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    """Returns the type in which torch.ops.cpd.matmul or convolution returns the sums."""
    element = operators.result_type(x, dtype)
    name = operators.name_of(element)
    output = format_of(recipe.output)
    if output is not None and not holds(name, output.name):
        raise ValueError(
            f"the result is {name}, which cannot represent every value of the recipe's output, "
            f"{output}: give dtype=, such as torch.float32, or another recipe{_or_off(element, x)}"
        )
    if is_native(recipe.forward):
        return element if recipe.output is None else torch.float32
    if not holds(name, recipe.forward.format.name):  # type: ignore[union-attr]
        if recipe.output is None:
            raise ValueError(
                f"the result is {name}, which cannot represent every value of the sums' format, "
                f"{recipe.forward.format}: give the recipe output={FORMATS[element]!r}, dtype=, "
                f"such as torch.float32, or another accumulator{_or_off(element, x)}"
            )
        return torch.float32
    return element


def _or_off(element: torch.dtype, x: Tensor) -> str:
    """Returns the advice to turn torch.autocast off if it chose the result's type; else ""."""
    by_autocast = element == autocast_type(x) != x.dtype
    return ", or turn torch.autocast off around the layer" if by_autocast else ""


_PURPOSES = tuple(Purpose)
"""All members of `Purpose`, as a tuple: torch 2.11 cannot trace iteration over an enumeration."""


def _numbers(recipe: Recipe, x: Tensor, seed: Number, stream: Number) -> Tensor | None:
    """Returns the seed and stream of each `Purpose` as an int64 tensor with two columns.

    Returns None if no rounding is stochastic.
    """
    if not recipe._kept.drawing:
        return None
    parts = zip(recipe._kept.drawing, _PURPOSES, strict=True)
    return stacked_numbers([pair_of(part, p, x, seed, stream) for part, p in parts], x)
