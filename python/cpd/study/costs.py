# SPDX-License-Identifier: Apache-2.0
"""Counts the cost of a reduction: messages, and modeled time."""

from __future__ import annotations

from typing import Any

from cpd import _core
from cpd.comm import local
from cpd.comm.communicator import Communicator
from cpd.comm.costs import (
    DEFAULT_CHUNK,
    Cost,
    Largest,
    Sizes,
    counted,
    largest_of,
    values_and_rows,
)
from cpd.comm.layers import PerRank
from cpd.comm.spec import Reduce, as_reduce
from cpd.comm.virtual import Source
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32, int64
from cpd.study.machines import Machine, Round, seconds


@checked
def cost(
    spec: Reduce | str,
    world: int,
    shapes: Sizes,
    rank: int = 0,
    *,
    ranks: PerRank | None = None,
    chunk: int = DEFAULT_CHUNK,
    largest: Largest = None,
) -> Cost:
    """Counts what a rank sends and receives in the all-reduce of tensors of these shapes.

    Headers, the handshake and sizes ahead of messages are not included. Neither is what ranks agree
    on first, such as the largest magnitudes for APS. Every chunk of a tensor in a message starts at
    a byte: a format whose codes are not whole bytes costs up to a byte more at each cut.

    The result is exact for codecs of fixed sizes. For others, such as Elias' or Huffman's codes and
    `top_k`, the bytes are the most that there can be, unless `ranks` gives the values.

    Args:
        spec: the all-reduce, or its text.
        world: the number of ranks.
        shapes: each tensor's shape, which matters to codecs of rows or columns, or an int for a
            vector.
        rank: the rank whose traffic is counted; default 0.
        ranks: the contributions of each rank, as for `cpd.simulate_all_reduce`, which are reduced
            between threads of this process. The bytes are then counted for a first call with these
            values. Default None: counted from the shapes alone.
        chunk: the values that a communicator works on at once; default 2^20.
        largest: the largest magnitude, of any tensor or of each; infinite or NaN if a value is. It
            matters if a format or codec has no code for NaN (`e3m0`, `e2m1`) and a sum may leave
            the range of a format: all values are then sent in binary32. Default None: not known;
            `exact` is then false and the bytes are the most, for values below 2^96.

    Returns:
        The rounds of messages and the bytes.

    Raises:
        ValueError: for an argument out of range, and for `ranks` of another number or of other
            shapes.
        TypeError: for an argument of another type.

    >>> cost("e4m3", 4, [1000])
    Cost(steps=6, bytes_sent=1500, bytes_received=1500, exact=True)
    >>> cost("int8_rows exchange=gather", 2, [(100, 10)]).bytes_sent
    1400
    >>> packed, most = (cost("e3m0", 2, [1000], largest=x) for x in (1.0, None))
    >>> packed.bytes_sent, packed.exact, most.bytes_sent, most.exact
    (500, True, 4000, False)
    >>> cost("e4m3 order=ring exchange=hierarchical group_size=16", 256, [1000]).steps
    90
    >>> import numpy as np
    >>> ranks = [[np.float32([0] * 9 + [rank])] for rank in range(2)]
    >>> cost("top_k 0.2", 2, [10], ranks=ranks).exact
    True
    """
    spec = as_reduce(spec)
    if isinstance(shapes, (int, str)):
        raise TypeError(f"shapes must be a list, such as [1000, (64, 10)], got {shapes!r}")
    layers = values_and_rows(spec, shapes)
    predicted = counted(spec, world, layers, [], rank, chunk, largest)
    if ranks is None:
        return predicted
    source = Source(ranks)
    if (source.world, source.sizes) != (world, layers[0]):
        raise ValueError(
            f"ranks must be {world} ranks with tensors of {layers[0]} values, got {source.world} "
            f"with {source.sizes}"
        )

    def moved(comm: Communicator) -> Any:
        contribution = ranks[comm.rank]
        tensors: Any = contribution() if callable(contribution) else contribution
        return comm.all_reduce(tensors, spec, report=True)[1].traffic

    with local(world, chunk=chunk) as group:
        traffic = group.run(moved)[rank]
    return Cost(predicted.steps, traffic.bytes_sent, traffic.bytes_received)


def rounds(
    spec: Reduce, world: int, shapes: Sizes, *, per_host: int, largest: Largest = None
) -> list[Round]:
    """Returns the steps of an all-reduce, and between whom; arguments are as of `cost`.

    Rank r is in host r // per_host. Steps that are alike are one `Round`.

    >>> from cpd.comm.spec import Reduce
    >>> rounds(Reduce("fp32"), 4, [1000], per_host=2)
    [Round(steps=4, bytes=1000, across=1, within=1), Round(steps=2, bytes=1000, across=2, within=0)]
    """
    values, rows = values_and_rows(spec, shapes)
    schedule = _core.rounds(
        spec._held,
        int32("world", world),
        values,
        int64("per_host", per_host),
        rows,
        largest_of(largest, len(values)),
    )
    return [Round(*step) for step in schedule]


def transfer_seconds(
    spec: Reduce, machine: Machine, world: int, shapes: Sizes, largest: Largest = None
) -> float:
    """Models the seconds of the messages of an all-reduce, one step after the other.

    An upper bound if `cost` gives one. Casts and ordered sums are assumed to be hidden, and what
    ranks agree on first is not included.

    >>> from cpd.comm.spec import Reduce
    >>> machine = Machine(alpha=1e-6, beta=1e9)
    >>> round(1e6 * transfer_seconds(Reduce("e4m3"), machine, 4, [1000]), 2)  # us
    7.5
    """
    schedule = rounds(spec, world, shapes, per_host=machine.gpus, largest=largest)
    return seconds(machine, schedule)


def agreement(spec: Reduce, world: int, shapes: Sizes, *, per_host: int) -> list[Round]:
    """Returns the steps before `rounds` in which the ranks agree on scales.

    With APS, and for formats without a code for NaN, ranks agree on each tensor's largest
    magnitude. They send 4 bytes a tensor and 4 more. For a codec with a shared scale they send 4
    bytes a tensor. The agreement takes ceil(log2(world)) steps; each rank sends to the rank 1, 2,
    4, … after it. There are no steps if nothing is needed.

    >>> from cpd.comm.spec import Reduce
    >>> agreement(Reduce("e4m3", aps=True), 4, [1000], per_host=2)
    [Round(steps=1, bytes=8, across=1, within=1), Round(steps=1, bytes=8, across=2, within=0)]
    >>> agreement(Reduce("e4m3"), 4, [1000], per_host=2)
    []
    """
    values, rows = values_and_rows(spec, shapes)
    native = spec._held, int32("world", world), values, int64("per_host", per_host), rows
    return [Round(*step) for step in _core.agreement(*native)]
