# SPDX-License-Identifier: Apache-2.0
"""How a layer computes: `Recipe`, the accumulators of its three GEMMs and what their operands are
cast to."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from cpd.numeric.accumulator import Accumulator, AccumulatorLike, accumulator
from cpd.numeric.cast import CastLike as CastLike
from cpd.numeric.cast import CastSpec as CastSpec
from cpd.numeric.cast import cast_spec as cast_spec
from cpd.numeric.formats import is_scaled
from cpd.numeric.options import Number, check_number, integer
from cpd.numeric.scaled import Scaled
from cpd.numeric.streams import MAX_LAYERS as MAX_LAYERS


@dataclass(frozen=True, init=False, repr=False)
class Recipe:
    """How a layer (`cpd.nn`, `cpd.functional`) computes its three GEMMs.

    Args:
        forward: accumulator of the forward GEMM; here and below an `Accumulator`, its text, a
            preset's name, or a format for the plain sequential sum.
        grad_input: of the backward GEMM that gives the gradient of the input; default `forward`.
        grad_weight: of the backward GEMM that gives the gradient of the weight; default `forward`.
        grad_bias: of the sum that gives the gradient of the bias, of which each term is rounded
            only as it is added; default fp32, in order.
        activation, weight, gradient: what the input, the weight and the gradient of the output are
            cast to before each GEMM that they enter: a `CastSpec` or a format; None: as given. The
            casts pass gradients straight through; the bias's gradient sums what is not yet cast.
        output: what the result is rounded to once more; default: as the accumulator leaves it. A
            type that does not hold the accumulator's format needs one: bfloat16 layers with fp32
            sums have `output="bf16"`.
        layer: a number, 0…2^16 - 1, by which layers that share a recipe draw other random bits.

    Where an accumulator is a matrix unit with two operand formats, the first is the activation's
    and the second the weight's in the forward GEMM; the gradient's and the weight's for the input's
    gradient; the activation's and the gradient's for the weight's gradient.

    Each rounding of stochastic mode draws from the seed of its own accumulator or cast, and from
    that one's stream, XOR layer << 20, XOR purpose << 60, with purpose 0 for the forward GEMM, 4
    for grad_input, 5 for grad_weight, 6 for grad_bias, 8 for the cast of activations, 9 of
    weights, 10 of gradients, 11 of the output; in forward mode 12 and 13 for the products of the
    input's and the weight's tangent. So the roundings of a layer never meet where
    streams stay below 2^60. Give a new stream at each step: its number << 36, say, in a tensor, so
    that a compiled step stays compiled. The same stream gives the same bits: recomputation under
    activation checkpointing repeats them.

    Immutable, hashable, picklable. Raises ValueError or TypeError for anything else.

    >>> Recipe("e4m3", grad_weight="e6m9 chunked", weight="e4m3").grad_input.format
    cpd.format('e4m3')
    >>> fp8 = {"activation": "e4m3fn", "weight": "e4m3fn", "gradient": "e5m2"}
    >>> Recipe("h100-fp8", "h100-fp8 a=e5m2", "h100-fp8 b=e5m2", **fp8).grad_input.unit.a
    cpd.format('e5m2')
    """

    forward: Accumulator
    grad_input: Accumulator
    grad_weight: Accumulator
    grad_bias: Accumulator
    activation: CastSpec | None
    weight: CastSpec | None
    gradient: CastSpec | None
    output: CastSpec | None
    layer: int

    def __init__(
        self,
        forward: AccumulatorLike,
        grad_input: AccumulatorLike | None = None,
        grad_weight: AccumulatorLike | None = None,
        *,
        grad_bias: AccumulatorLike = "fp32",
        activation: CastLike | None = None,
        weight: CastLike | None = None,
        gradient: CastLike | None = None,
        output: CastLike | None = None,
        layer: int = 0,
    ) -> None:
        number = integer("layer", layer)
        if not 0 <= number < MAX_LAYERS:
            raise ValueError(f"layer must be 0…2^16 - 1, got {number}")
        values = {
            "forward": accumulator(forward),
            "grad_input": accumulator(forward if grad_input is None else grad_input),
            "grad_weight": accumulator(forward if grad_weight is None else grad_weight),
            "grad_bias": accumulator(grad_bias),
            "activation": _cast("activation", activation),
            "weight": _cast("weight", weight),
            "gradient": _cast("gradient", gradient),
            "output": _cast("output", output),
            "layer": number,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def for_layer(self, layer: int) -> Recipe:
        """The same with another layer number.

        >>> Recipe("e4m3").for_layer(3).layer
        3
        """
        return replace(self, layer=layer)

    def with_stream(self, stream: Number) -> Recipe:
        """The same with this stream in all its accumulators and casts.

        >>> drawing = Recipe("e4m3 sequential rounding=stochastic", gradient="e5m2")
        >>> drawing.with_stream(5).grad_weight.stream
        5
        """
        check_number("stream", stream)
        given = {one.name: getattr(self, one.name) for one in fields(self)}
        return Recipe(**{name: _with_stream(value, stream) for name, value in given.items()})

    def __copy__(self) -> Recipe:
        return self

    def __deepcopy__(self, memo: Any) -> Recipe:
        return self

    def __str__(self) -> str:
        parts = [f"forward={str(self.forward)!r}"]
        for name in ("grad_input", "grad_weight"):
            if getattr(self, name) != self.forward:
                parts.append(f"{name}={str(getattr(self, name))!r}")
        if self.grad_bias != Accumulator("fp32"):
            parts.append(f"grad_bias={str(self.grad_bias)!r}")
        for name in ("activation", "weight", "gradient", "output"):
            if getattr(self, name) is not None:
                parts.append(f"{name}={str(getattr(self, name))!r}")
        if self.layer:
            parts.append(f"layer={self.layer}")
        return ", ".join(parts)

    def __repr__(self) -> str:
        return f"cpd.Recipe({self})"


def _cast(name: str, given: CastLike | Scaled | None) -> CastSpec | None:
    """A cast of a layer, or None. Raises ValueError for scaled formats."""
    if given is None:
        return None
    if isinstance(given, Scaled) or (isinstance(given, str) and is_scaled(given)):
        raise ValueError(
            f"{name} takes formats without scales, got {given}: its blocks would lie along another "
            "axis in each of a layer's three GEMMs. Cast the operands yourself: "
            "cpd.cast(x, q, axis=…), whose gradient is straight through, before cpd.gemm"
        )
    return cast_spec(given)


def _with_stream(value: Any, stream: Number) -> Any:
    """An accumulator or a cast with another stream; anything else as it is."""
    if isinstance(value, Accumulator):
        return Accumulator.parse(value.text, value.seed, stream)
    return replace(value, stream=stream) if isinstance(value, CastSpec) else value


RecipeLike: TypeAlias = "Recipe | AccumulatorLike"
"""A `Recipe`, or one accumulator for all three GEMMs."""


def recipe(given: RecipeLike) -> Recipe:
    """`given` itself, or the recipe that uses one accumulator throughout.

    >>> recipe("e6m9 chunked") == Recipe("e6m9 chunked")
    True
    """
    return given if isinstance(given, Recipe) else Recipe(given)
