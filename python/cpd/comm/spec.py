# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce does: `ReduceSpec`."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from cpd import _core
from cpd.numeric.accumulator import Accumulator, AccumulatorLike, sum_accumulator
from cpd.numeric.formats import Format, FormatLike, flag, format
from cpd.numeric.options import Options, integer, number

ORDERS = ("sequential", "ring", "tree")
EXCHANGES = ("owner", "gather", "ring", "hierarchical")


class StallWarning(UserWarning):
    """A sum of so many terms may stop growing: see `warn_of_stall`."""


@dataclass(frozen=True, init=False)
class ReduceSpec:
    """What an all-reduce does: casts each contribution to `format`, sums in `accumulator`.

    Args:
        format: of the contributions (on the wire): what `cpd.format` takes.
        accumulator: of the sum (`sequential`, `kahan`, `chunked` or `pairwise`); default
            `Accumulator(format)`, a sequential sum to nearest-even. Its `stream` must be 0: the
            streams of a reduction are made of purpose, step, layer and rank.
        order: `sequential`, rank ascending; `ring`: each layer is cut into W slices, the first n
            mod W one longer, and slice s is summed from rank s + 1 on, around to rank s; or `tree`:
            neighbours first, an odd one passes up, each sum rounded (with a sequential
            accumulator).
        exchange: which messages a communicator of `cpd.comm` moves; the bits are those of `order`
            and `group_size`. `owner`: who owns a slice gathers and sums it, then the sums are
            gathered; `gather`: every rank gathers and sums everything; `ring`: partial sums hop
            around a ring (order `ring`, no groups); `hierarchical`: members to their group's first
            rank, a ring of these, and back (order `ring`, with `group_size`).
        group_size: None, or: each group of that many ranks is summed in rank order to its first
            rank, then the groups' sums in `order`; the last group may be short. At most the number
            of ranks, which is checked where that is known.
        aps: scale each layer by a power of two so that its sum just fits (`True`: one less where
            the rounding can go outward; `"paper"`: the paper's exponent), undone at the end. Its
            exponent travels in a byte and is at least -118: what a layer of smaller gradients
            keeps then depends on the format, and below its least value nothing is left.
        loss_scale: a constant power of two for all layers, undone at the end; not with `aps`.
        average: divide the sum by the number of ranks, once, in binary32, at the end (so a sum
            beyond binary32 stays infinite).
        rounding, overflow, seed, random_bits, variant: of the cast to `format`, as in `cpd.cast`.
            The sum has the accumulator's own.
        result: format to which a wider accumulator is rounded once more at each level; default
            `format`.
        step: number of the training step; enters the random streams.

    Raises ValueError or TypeError for anything else. Immutable and picklable.

    >>> ReduceSpec("e4m3", order="ring").accumulator.format
    cpd.format('e4m3')
    """

    format: Format
    accumulator: Accumulator
    order: str
    exchange: str
    group_size: int | None
    aps: bool | Literal["paper"]
    loss_scale: float
    average: bool
    rounding: str
    overflow: str
    seed: int
    random_bits: int
    variant: str
    result: Format
    step: int

    def __init__(
        self,
        format: FormatLike,
        accumulator: AccumulatorLike | None = None,
        *,
        order: str = "sequential",
        exchange: str = "owner",
        group_size: int | None = None,
        aps: bool | Literal["paper"] = False,
        loss_scale: float = 1.0,
        average: bool = False,
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        seed: int = 0,
        random_bits: int = 24,
        variant: str = "A",
        result: FormatLike | None = None,
        step: int = 0,
    ) -> None:
        wire = _format(format)
        values: dict[str, Any] = {
            "format": wire,
            "accumulator": sum_accumulator(wire if accumulator is None else accumulator),
            "order": _one_of("order", order, ORDERS),
            "exchange": _one_of("exchange", exchange, EXCHANGES),
            "group_size": None if group_size is None else _positive("group_size", group_size),
            "aps": _one_of("aps", aps, (False, True, "paper")),
            "loss_scale": _power_of_two(loss_scale),
            "average": flag("average", average),
            "rounding": rounding,
            "overflow": overflow,
            "seed": number("seed", seed),
            "random_bits": integer("random_bits", random_bits),
            "variant": variant,
            "result": wire if result is None else _format(result),
            "step": number("step", step),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._native()

    def _native(self) -> _core.ReduceSpec:
        options = Options(
            self.rounding, self.overflow, self.seed, 0, self.random_bits, self.variant
        )
        return _core.ReduceSpec(
            format=self.format._native,
            rounding=options.native(),
            accumulator=self.accumulator._native(),
            result=self.result._native,
            order=self.order,
            exchange=self.exchange,
            group_size=self.group_size or 0,
            aps=self.aps if isinstance(self.aps, str) else ("off", "on")[self.aps],
            loss_scale=self.loss_scale,
            average=self.average,
            step=self.step,
        )


_format = format  # the parameter of the same name hides it


def check_spec(spec: ReduceSpec) -> None:
    if not isinstance(spec, ReduceSpec):
        raise TypeError(f"spec must be a cpd.ReduceSpec, got {type(spec).__name__}")


def check_world(spec: ReduceSpec, world: int) -> None:
    """Raises ValueError where the spec's groups are larger than the number of ranks."""
    _core.check_world(spec._native(), world)


def may_stall(spec: ReduceSpec, world: int) -> bool:
    """Whether `warn_of_stall` has something to say."""
    return _core.may_stall(spec._native(), world)


def warn_of_stall(spec: ReduceSpec, world: int, stacklevel: int) -> None:
    """Warns where a plain sum has more than 2^precision terms: of terms of equal value the last
    ones change nothing, for each is less than half a unit in the last place of the sum."""
    if not may_stall(spec, world):
        return
    precision = spec.accumulator.format.man + 1
    warnings.warn(
        f"the sum over {world} ranks in {spec.accumulator} may stall: it has a precision of "
        f"{precision} bits, so that more than {2**precision} equal terms no longer count. A wider "
        "accumulator helps, a kahan, chunked or pairwise one, order='tree', or a group_size",
        StallWarning,
        stacklevel=stacklevel,
    )


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    for one in allowed:
        if type(value) is type(one) and value == one:
            return one
    names = ", ".join(repr(one) for one in allowed)
    raise ValueError(f"{name} must be one of {names}, got {value!r}")


def _positive(name: str, value: Any) -> int:
    number = integer(name, value)
    if not 1 <= number < 2**31:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _power_of_two(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"loss_scale must be a number, got {type(value).__name__}")
    scale = float(value)
    if not (2.0**-126 <= scale <= 2.0**126 and math.frexp(scale)[0] == 0.5):
        raise ValueError(f"loss_scale must be a power of two from 2^-126 to 2^126, got {value}")
    return scale
