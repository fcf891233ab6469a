# SPDX-License-Identifier: Apache-2.0
"""`ReduceSpec`: the definition of an all-reduce."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np

from cpd import _core
from cpd.compress.codecs import Codec, with_numbers
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
    """A sum of very many terms may stop growing: see `warn_of_stall`."""


@dataclass(frozen=True, init=False, repr=False)
class ReduceSpec:
    """The definition of an all-reduce: what is rounded when, and in which order ranks are summed.

    Each contribution is cast to `format`, or encoded by `wire`, and summed in `accumulator`.
    Immutable and picklable. Arguments are attributes of the same names, with defaults filled in.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums, res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`). It is `ReduceSpec("fp32",
    "e4m3", result="e4m3")`. `ReduceSpec("e4m3")` rounds each contribution too, since messages hold
    rounded values: res = Q(res + Q(g)).

    Args:
        format: the format of the contributions (on the wire): an argument of `cpd.Format`, or a
            scaled format (`"mxfp8"`, an argument of `cpd.Scaled`). A scaled format casts each
            rank's layer, as one flat run of values, as by `cpd.cast`, however it is cut into
            messages. Its blocks are N values or the layer (`block="tensor"`), not rows or R x C.
            `aps` is refused, and a `loss_scale` is applied in binary32 first. None (default) if
            `wire` is given; the attribute is None if `wire` is a compressor.
        accumulator: the accumulator of the sum (`sequential`, `kahan`, `chunked` or `pairwise`).
            Default `Accumulator(format)`: a sequential sum to nearest-even, in fp32 if the format
            is scaled or `wire` is a compressor. Its `stream` must be 0: the streams of a reduction
            are made of purpose, step, layer and rank.
        wire: in place of `format`, a codec of `cpd.compress` or its text (`"qsgd bits=4
            bucket=512"`), which encodes each rank's layer in a message. With `gather` every rank
            decodes and sums it; with `owner` sums travel as the codec defines, encoded again or
            without loss. Exchanges `ring` and `hierarchical`, `aps` but with `top_k F FORMAT`, and
            the options of a cast but `seed` and `random_bits` are refused. The name of a format
            means that format. Seed and random_bits of a `Codec` are the spec's if these are not
            given. Default None; the attribute is None if there is a format.
        order: the order in which the ranks' terms are added. It determines the result. `sequential`
            (default): rank ascending. `ring`: each layer is cut into W slices, the first n mod W
            one longer. Slice s is summed from rank s + 1 on, around to rank s. `tree`: neighbors
            first, an odd one passes up, each sum rounded (with a sequential accumulator).
        exchange: the messages that a communicator of `cpd.comm` moves; they do not change the bits,
            which are those of `order` and `group_size`. `owner` (default): the owner of a slice
            gathers and sums it, then the sums are gathered. (The first owner is another rank for
            each layer, except in order `ring`.) `gather`: every rank gathers and sums everything.
            `ring`: partial sums hop around a ring (order `ring`, no groups). `hierarchical`:
            members send to their group's first rank, the first ranks form a ring, and back (order
            `ring`, with `group_size`).
        group_size: the number of ranks of a group. Each group is summed in rank order to its first
            rank, then the groups' sums in `order`; the last group may be short. Up to the number of
            ranks, which is checked if it is known. One group of all ranks has no second level: the
            bits are those without groups in order `sequential`. Default None: no groups.
        aps: whether each layer is scaled by a power of two, undone at the end; default False.
            `True`: the largest scale with which the wire's format holds each contribution, and
            accumulator and result hold the sum of W largest contributions (one exponent less if a
            rounding can go outward). If sums are wide, as in fp32, contributions alone decide.
            `"paper"`: the paper's scale, with which the wire's format holds that sum, too; a 4-bit
            wire then keeps nothing of many ranks. Both are equal if wire, accumulator and result
            are one format and rounding is to nearest. Sums rounded up, down or at random may leave
            a coarse format's range. Each layer's largest magnitude is sent first, in four bytes.
            With `top_k` it is that of the values which are sent, with what was fed back.
        loss_scale: a constant power of two for all layers, undone at the end; not with `aps`.
            Default 1.
        average: whether to divide by the number of ranks W, as `divide` says; default False.
        divide: `"after"` (default): the sum is divided, once, in binary32, at the end (so a sum
            beyond the format stays infinite). `"before"`: each contribution is divided, once, in
            binary32, before its scale is measured and it is cast, as in torch's DDP. Before is
            better if sums would leave the format's range (e4m3 summed in fp32 to e4m3, 64 ranks,
            normal values with σ = 60: six sums of ten are infinite after, none before). After is
            better if quotients would fall below the format's least value, and with APS, whose
            scales keep sums in range. Without `average` it has no effect.
        rounding: the rounding of the cast to `format`, as in `cpd.cast`; default `nearest_even`.
            The sum has the accumulator's own options.
        overflow: the overflow of the cast to `format`, as in `cpd.cast`; default `ieee`, for a
            scaled format `saturate`.
        seed: the seed of the cast's random bits, as in `cpd.cast`; default 0.
        random_bits: the number of random bits of stochastic rounding, 1…24; default 24.
        variant: the variant of stochastic rounding, `A` (default), `B` or `C`, as in `cpd.cast`.
        result: the format to which a wider accumulator is rounded once more at each level, and in
            which sums travel. Default `format`, or fp32 if it is scaled or `wire` is a compressor.
        step: the number of the training step; enters the random streams. Default 0.

    Raises:
        ValueError: for an invalid argument, and for arguments that exclude each other.
        TypeError: for an argument of another type.

    >>> ReduceSpec("e4m3", order="ring").accumulator.format
    cpd.Format('e4m3')
    >>> ReduceSpec("mxfp8", result="bf16").format
    cpd.Scaled('mxfp8')
    """

    format: Format | Scaled | None
    wire: Codec | None
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
        wire: Codec | str | None = None,
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
            if given._is_compressor:
                by = given
                _check_cast(by, rounding, overflow, variant)
            else:
                format = given.text
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
        plain = None if by is None else Codec(by.text)  # whose numbers are the spec's own
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
    """Returns the default format of sums: the contributions' format.

    It is fp32 for a scaled format or a compressor (None).
    """
    return wire if isinstance(wire, Format) else as_format("fp32")


def _codec(wire: Codec | str, format: Any, seed: int, random_bits: int) -> Codec:
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
                f"{name} is an option of a cast, which codec {by.text!r} is not; got {shown(given)}"
            )


def check_spec(spec: ReduceSpec) -> None:
    """Raises TypeError unless `spec` is a ReduceSpec."""
    if not isinstance(spec, ReduceSpec):
        raise TypeError(f"spec must be a cpd.ReduceSpec, got {type(spec).__name__}")


def check_world(spec: ReduceSpec, world: int) -> None:
    """Raises ValueError if the spec's groups are larger than the number of ranks."""
    spec._native().check_world(int32("world", world))


def may_stall(spec: ReduceSpec, world: int) -> bool:
    """Returns whether `warn_of_stall` would warn."""
    return spec._native().may_stall(world)


def warn_of_stall(spec: ReduceSpec, world: int) -> None:
    """Warns if a sequential sum has more than 2^precision terms.

    Of terms of equal value the last ones may change nothing, since each is at most half an ulp of
    the sum.
    """
    if not may_stall(spec, world):
        return
    precision = spec.accumulator.format.man + 1
    warn(
        f"the sum over {world} ranks in {spec.accumulator} may stall: it has a precision of "
        f"{precision} bits, so that more than {2**precision} equal terms no longer count. A wider "
        "accumulator helps, a kahan, chunked or pairwise one, order='tree', or a group_size",
        StallWarning,
    )
