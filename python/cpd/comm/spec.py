# SPDX-License-Identifier: Apache-2.0
"""What an all-reduce does: `ReduceSpec`."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from cpd import _core
from cpd.compress.codecs import Codec, CodecLike, with_numbers
from cpd.numeric.accumulator import (
    REDUCE_SCHEMES,
    Accumulator,
    AccumulatorLike,
    sum_accumulator,
)
from cpd.numeric.formats import Format, FormatLike, as_format, flag
from cpd.numeric.numbers import int32, number
from cpd.numeric.options import Options, numbers_of_codec
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled, overflow_of
from cpd.numeric.shown import shown
from cpd.numeric.spec import arguments, take
from cpd.numeric.warned import warn

ORDERS: tuple[str, ...] = _core.ORDERS
EXCHANGES: tuple[str, ...] = _core.EXCHANGES
DIVIDES: tuple[str, ...] = _core.DIVIDES


class StallWarning(UserWarning):
    """A sum of so many terms may stop growing: see `warn_of_stall`."""


@dataclass(frozen=True, init=False, repr=False)
class ReduceSpec:
    """What an all-reduce does: casts each contribution to `format`, or encodes it by `wire`, and
    sums in `accumulator`.

    Args:
        format: of the contributions (on the wire): what `cpd.Format` takes, or a scaled format
            (`"mxfp8"`, what `cpd.Scaled` takes): each rank's layer, as one flat run of values, is
            cast as by `cpd.cast`, however it is cut into messages. Its blocks are N values or the
            layer (`block="tensor"`), not rows or R x C; `aps` is refused, and a `loss_scale` is
            applied in binary32 first.
        accumulator: of the sum (`sequential`, `kahan`, `chunked` or `pairwise`); default
            `Accumulator(format)`, a sequential sum to nearest-even, in fp32 where the format is
            scaled or `wire` is a compressor. Its `stream` must be 0: the streams of a reduction are
            made of purpose, step, layer and rank.
        wire: in place of `format`, a codec of `cpd.compress` or its text (`"qsgd bits=4
            bucket=512"`): what each rank's layer becomes in a message. With `gather` it is decoded
            by every rank and summed; with `owner` sums travel as the codec defines, encoded again
            or without loss. `ring` and `hierarchical` exchanges, `aps` but with `top_k F FORMAT`,
            and the options of a cast but `seed` and `random_bits` are refused. The name of a format
            is that format. Seed and random_bits of a `Codec` are the spec's where these are not
            given.
        order: `sequential`, rank ascending; `ring`: each layer is cut into W slices, the first n
            mod W one longer, and slice s is summed from rank s + 1 on, around to rank s; or `tree`:
            neighbours first, an odd one passes up, each sum rounded (with a sequential
            accumulator).
        exchange: which messages a communicator of `cpd.comm` moves; the bits are those of `order`
            and `group_size`. `owner`: who owns a slice gathers and sums it, then the sums are
            gathered (the first owner is another rank for each layer, except in order `ring`);
            `gather`: every rank gathers and sums everything; `ring`: partial sums hop around a ring
            (order `ring`, no groups); `hierarchical`: members to their group's first rank, a ring
            of these, and back (order `ring`, with `group_size`).
        group_size: None, or: each group of that many ranks is summed in rank order to its first
            rank, then the groups' sums in `order`; the last group may be short. At most the number
            of ranks, which is checked where that is known. One group of all ranks has no second
            level: the bits are those without groups in order `sequential`.
        aps: scale each layer by a power of two, undone at the end. `True`: the largest scale with
            which the wire's format holds each contribution, and the accumulator and the result
            hold the sum of W contributions of the largest magnitude (one exponent less where a
            rounding can go outward). Where sums are wide, as in fp32, contributions alone decide.
            `"paper"`: the paper's scale, with which the wire's format holds that sum, too; a
            4-bit wire then keeps nothing of many ranks. Both are equal where wire, accumulator and
            result are one format and rounding is to nearest. Sums rounded up, down or at random
            may leave a coarse format's range. Each layer's largest magnitude travels first, in
            four bytes. With `top_k` it is that of the values which are kept, with what was fed
            back.
        loss_scale: a constant power of two for all layers, undone at the end; not with `aps`.
        average: divide by the number of ranks W, where `divide` says.
        divide: `"after"`: the sum, once, in binary32, at the end (so a sum beyond the format stays
            infinite). `"before"`: each contribution, once, in binary32, before its scale is
            measured and it is cast, as torch's DDP divides. Before is better where sums would
            leave the format's range (e4m3 summed in fp32 to e4m3, 64 ranks, normal values with
            σ = 60: six sums of ten are infinite after, none before); after is better where
            quotients would fall below the format's least value, and with APS, whose scales keep
            sums in range. Without `average` it has no effect.
        rounding, overflow, seed, random_bits, variant: of the cast to `format`, as in `cpd.cast`.
            The sum has the accumulator's own.
        result: format to which a wider accumulator is rounded once more at each level, and in which
            sums travel; default `format`, fp32 where that is scaled or `wire` is a compressor.
        step: number of the training step; enters the random streams.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums, res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`): it is `ReduceSpec("fp32",
    "e4m3", result="e4m3")`. `ReduceSpec("e4m3")` rounds each contribution too, since that is what
    travels: res = Q(res + Q(g)).

    Raises ValueError or TypeError for anything else. Immutable and picklable.

    >>> ReduceSpec("e4m3", order="ring").accumulator.format
    cpd.Format('e4m3')
    >>> ReduceSpec("mxfp8", result="bf16").format
    cpd.Scaled('mxfp8')
    """

    format: Format | Scaled | None
    """None where `wire` is a compressor."""
    wire: Codec | None
    """None where there is a format."""
    accumulator: Accumulator
    order: str
    exchange: str
    group_size: int | None
    aps: bool | Literal["paper"]
    loss_scale: float
    average: bool
    divide: str
    rounding: str
    overflow: str
    seed: int
    random_bits: int
    variant: str
    result: Format
    step: int
    _held: _core.ReduceSpec = field(init=False, repr=False, compare=False)

    def __init__(
        self,
        format: FormatLike | ScaledLike | None = None,
        accumulator: AccumulatorLike | None = None,
        *,
        wire: CodecLike | None = None,
        order: str = "sequential",
        exchange: str = "owner",
        group_size: int | None = None,
        aps: bool | Literal["paper"] = False,
        loss_scale: float = 1.0,
        average: bool = False,
        divide: str = "after",
        rounding: str = "nearest_even",
        overflow: str | None = None,
        seed: int = 0,
        random_bits: int = 24,
        variant: str = "A",
        result: FormatLike | None = None,
        step: int = 0,
    ) -> None:
        if isinstance(loss_scale, bool) or not isinstance(loss_scale, (int, float, np.number)):
            raise TypeError(f"loss_scale must be a number, got {type(loss_scale).__name__}")
        by: Codec | None = None
        if wire is not None:
            given = _codec(wire, format, seed, random_bits)
            seed, random_bits = given.seed, given.random_bits
            if given.is_compressor:
                by = given
                _check_cast(by, rounding, overflow, variant)
            else:
                format = given.name
        cast = None if by is not None else format_or_scaled(format)  # type: ignore[arg-type]
        sums = sums_format(cast)
        acc = sum_accumulator(sums if accumulator is None else accumulator, REDUCE_SCHEMES)
        result = sums if result is None else as_format(result)
        made = _core.ReduceSpec(
            wire=(cast if by is None else by)._held,  # type: ignore[union-attr]
            accumulator=acc._native(),
            order=order,
            exchange=exchange,
            group_size=None if group_size is None else int32("group_size", group_size),
            aps=aps,
            loss_scale=loss_scale,
            average=flag("average", average),
            divide=divide,
            rounding=numbers_of_codec(seed, random_bits)
            if by is not None
            else Options(
                rounding, overflow_of(cast, overflow), seed, 0, random_bits, variant
            ).native(),
            result=result._held,
            step=number("step", step),
        )
        plain = None if by is None else Codec(by.name)  # whose numbers are the spec's own
        take(self, made, format=cast, wire=plain, accumulator=acc, result=result)

    def __repr__(self) -> str:
        left_out = "format" if self.format is None else "wire"
        shown = [one.name for one in fields(self) if one.repr and one.name != left_out]
        return f"ReduceSpec({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _native(self) -> _core.ReduceSpec:
        """The spec for C++, with the accumulator's seed as it is now."""
        acc = self.accumulator
        if type(acc.seed) is type(acc.stream) is int:
            return self._held
        return self._held.with_accumulator(acc._native())

    def __getstate__(self) -> dict[str, Any]:
        return arguments(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        # 0.7 kept options of stochastic rounding where nothing is rounded stochastically.
        if state.get("wire") is None and state["rounding"] != "stochastic":
            state = {**state, "random_bits": 24, "variant": "A"}
        self.__init__(**state)  # type: ignore[misc]


def sums_format(wire: Format | Scaled | None) -> Format:
    """The default format of sums: that of the contributions, fp32 for a scaled format or a
    compressor (None)."""
    return wire if isinstance(wire, Format) else as_format("fp32")


def _codec(wire: CodecLike, format: Any, seed: int, random_bits: int) -> Codec:
    if format is not None:
        raise ValueError(
            f"format and wire exclude each other, got {shown(format)} and {shown(wire)}"
        )
    return with_numbers(wire, seed, random_bits)


def _check_cast(by: Codec, rounding: Any, overflow: Any, variant: Any) -> None:
    """Raises ValueError for options of a cast that a compressor does not have."""
    for name, given, usual in (
        ("rounding", rounding, ("nearest_even",)),
        ("overflow", overflow, (None, "ieee")),
        ("variant", variant, ("A",)),
    ):
        if given not in usual:
            raise ValueError(
                f"{name} is an option of a cast, which codec {by.name!r} is not; got {shown(given)}"
            )


def check_spec(spec: ReduceSpec) -> None:
    if not isinstance(spec, ReduceSpec):
        raise TypeError(f"spec must be a cpd.ReduceSpec, got {type(spec).__name__}")


def check_world(spec: ReduceSpec, world: int) -> None:
    """Raises ValueError where the spec's groups are larger than the number of ranks."""
    spec._native().check_world(int32("world", world))


def may_stall(spec: ReduceSpec, world: int) -> bool:
    """Whether `warn_of_stall` would warn."""
    return spec._native().may_stall(world)


def warn_of_stall(spec: ReduceSpec, world: int) -> None:
    """Warns where a sequential sum has more than 2^precision terms: of terms of equal value the
    last ones may change nothing, each being at most half an ulp of the sum."""
    if not may_stall(spec, world):
        return
    precision = spec.accumulator.format.man + 1
    warn(
        f"the sum over {world} ranks in {spec.accumulator} may stall: it has a precision of "
        f"{precision} bits, so that more than {2**precision} equal terms no longer count. A wider "
        "accumulator helps, a kahan, chunked or pairwise one, order='tree', or a group_size",
        StallWarning,
    )
