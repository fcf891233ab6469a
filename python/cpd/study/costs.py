# SPDX-License-Identifier: Apache-2.0
"""Counts the cost of a reduction: messages, and modelled time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from cpd import _core
from cpd.comm import local
from cpd.comm.communicator import Communicator
from cpd.comm.layers import PerRank, row_layouts
from cpd.comm.spec import ReduceSpec, check_spec
from cpd.comm.virtual import world_of
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32, int64

DEFAULT_CHUNK = 1 << 20
"""The values that a communicator by default works on at once."""

Sizes: TypeAlias = "Sequence[int | Sequence[int]]"
"""Each layer's shape, or the number of values of a vector."""
Largest: TypeAlias = "float | Sequence[float] | None"
"""The largest magnitude in all layers of all ranks, or in each layer; None: not known."""


@dataclass(frozen=True)
class Cost:
    """What one rank sends and receives in an all-reduce, as a communicator counts its traffic."""

    steps: int
    """Rounds of messages, of the rank that has most: 2 (W - 1) for `owner` and `ring`, W - 1 for
    `gather`, 4 (k - 1) + 2 (ceil(W / k) - 1) for `hierarchical` with groups of k; 0 where there are
    no values."""
    bytes_sent: int
    """Of encoded values; an upper bound where `exact` is false."""
    bytes_received: int
    exact: bool = True
    """Whether the bytes are the same for all values, as far as these are known; else
    `measured_cost` counts the bytes for actual layers."""


@dataclass(frozen=True)
class MeasuredCost:
    """What ranks sent and received in an all-reduce of actual layers: means over the ranks.

    >>> MeasuredCost(steps=2, bytes_sent=10.5, bytes_received=10.5, most_sent=11).most_sent
    11
    """

    steps: int
    """As in `Cost`."""
    bytes_sent: float
    bytes_received: float
    most_sent: int
    """The bytes of the rank that sent most."""


class Round(NamedTuple):
    """Steps of an all-reduce that are alike."""

    steps: int
    bytes: float
    """Of the longest message of each step; an upper bound where `cost` gives one."""
    across: int
    """The most messages of a step that leave one host, or reach it."""
    within: int
    """The most messages of a step that stay in one host."""


@checked
def cost(
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    rank: int = 0,
    *,
    chunk: int = DEFAULT_CHUNK,
    largest: Largest = None,
) -> Cost:
    """What rank `rank` of `world` sends and receives in the all-reduce of layers of these shapes.

    Headers, the handshake, sizes ahead of messages and the exponents of APS are not included. Every
    piece of a layer in a message starts at a byte, so that formats whose codes are not whole bytes
    cost up to a byte more at each cut; `chunk` is the communicator's.

    Args:
        sizes: each layer's shape, which matters to codecs of rows or columns, or an int for a
            vector.
        largest: where a format or codec has no code for NaN (`e3m0`, `e2m1`), and a sum may leave
            the range of a format, all values are sent in binary32: the largest magnitude, of any
            layer or of each, decides whether (infinite or NaN where a value is). Not known: `exact`
            is false and the bytes are the most, for values below 2^96.

    Exact for codecs of fixed sizes (`Codec.is_fixed`); for the others, such as Elias' or Huffman's
    codes and `top_k`, the bytes are the most there can be.

    Raises ValueError or TypeError.

    >>> cost(ReduceSpec("e4m3"), 4, [1000])
    Cost(steps=6, bytes_sent=1500, bytes_received=1500, exact=True)
    >>> cost(ReduceSpec(wire="int8_rows", exchange="gather"), 2, [(100, 10)]).bytes_sent
    1400
    >>> packed, most = (cost(ReduceSpec("e3m0"), 2, [1000], largest=x) for x in (1.0, None))
    >>> packed.bytes_sent, packed.exact, most.bytes_sent, most.exact
    (500, True, 4000, False)
    >>> spec = ReduceSpec("e4m3", order="ring", exchange="hierarchical", group_size=16)
    >>> cost(spec, 256, [1000]).steps
    90
    """
    check_spec(spec)
    values, rows = _values_and_rows(spec, sizes)
    native = _core.cost(
        spec._native(),
        int32("world", world),
        int32("rank", rank),
        values,
        int64("chunk", chunk),
        rows,
        _largest(largest, len(values)),
    )
    return Cost(native.steps, native.bytes_sent, native.bytes_received, native.exact)


@checked
def measured_cost(
    per_rank: PerRank, spec: ReduceSpec, *, chunk: int = DEFAULT_CHUNK
) -> MeasuredCost:
    """What the ranks send and receive in the all-reduce of these layers, as a first call: runs it
    between threads of this process and counts. Equal to `cost` where that is exact.

    Raises ValueError or TypeError as `cpd.simulate_all_reduce`.

    >>> import numpy as np
    >>> ranks = [[np.float32([0, 0, 0, rank])] for rank in range(4)]
    >>> measured_cost(ranks, ReduceSpec("e4m3")).bytes_sent
    6.0
    """
    check_spec(spec)

    def moved(comm: Communicator) -> Any:
        given = per_rank[comm.rank]
        layers = given() if callable(given) else given
        return comm.all_reduce(layers, spec, report=True)[1].traffic

    with local(world_of(per_rank), chunk=chunk) as group:
        ranks = group.run(moved)
    return MeasuredCost(
        max(one.steps for one in ranks),
        sum(one.bytes_sent for one in ranks) / len(ranks),
        sum(one.bytes_received for one in ranks) / len(ranks),
        max(one.bytes_sent for one in ranks),
    )


@checked
def transfer_time(
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    *,
    alpha: float,
    beta: float,
    largest: Largest = None,
) -> float:
    """Seconds that the messages of an all-reduce take in the alpha-beta model: its steps one after
    the other, all ranks at once, each `alpha` seconds and `beta` seconds per byte of its longest
    message; an upper bound where `cost` gives one. Casts and folds are assumed to be hidden.
    `sizes` and `largest` as in `cost`.

    >>> spec = ReduceSpec("e4m3")
    >>> round(1e6 * transfer_time(spec, 4, [1000], alpha=1e-6, beta=1e-9), 2)  # us
    7.5
    """
    check_spec(spec)
    values, rows = _values_and_rows(spec, sizes)
    return _core.time(
        spec._native(),
        int32("world", world),
        values,
        float(alpha),
        float(beta),
        rows,
        _largest(largest, len(values)),
    )


@checked
def rounds(
    spec: ReduceSpec,
    world: int,
    sizes: Sizes,
    *,
    per_host: int,
    largest: Largest = None,
) -> list[Round]:
    """The steps of an all-reduce where rank r is in host r // per_host, steps that are alike
    together: what `transfer_time` adds up, and between whom. `sizes` and `largest` as in `cost`.

    >>> rounds(ReduceSpec("fp32"), 4, [1000], per_host=2)
    [Round(steps=4, bytes=1000, across=1, within=1), Round(steps=2, bytes=1000, across=2, within=0)]
    """
    check_spec(spec)
    values, rows = _values_and_rows(spec, sizes)
    found = _core.rounds(
        spec._native(),
        int32("world", world),
        values,
        int64("per_host", per_host),
        rows,
        _largest(largest, len(values)),
    )
    return [Round(*one) for one in found]


def _values_and_rows(spec: ReduceSpec, sizes: Sizes) -> tuple[list[int], list[int]]:
    """The number of values of each layer, and of each of its rows where the codec works on rows."""
    shapes = [_shape(size) for size in sizes]
    layouts = row_layouts(spec.wire, shapes, range(len(shapes)))
    return [math.prod(shape) for shape in shapes], [layout.row for layout in layouts]


def _shape(size: Any) -> tuple[int, ...]:
    if not isinstance(size, (tuple, list)):
        return (int64("size", size),)
    shape = tuple(int64("size", length) for length in size)
    if any(length < 0 for length in shape):
        raise ValueError(f"lengths of a shape must be at least 0, got {shape}")
    return shape


def _largest(largest: Largest, layers: int) -> list[float]:
    if largest is None:
        return []
    if isinstance(largest, (tuple, list)):
        return [float(one) for one in largest]
    return [float(largest)] * layers  # type: ignore[arg-type]
