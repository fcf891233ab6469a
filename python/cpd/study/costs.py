# SPDX-License-Identifier: Apache-2.0
"""The cost of an all-reduce, from shapes alone: its messages and their modeled time."""

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
    """Computes the bytes that a rank sends and receives in an all-reduce.

    Only the bytes of encoded values count. Message headers do not count, nor messages that compare
    the ranks' calls, announce sizes, or agree on scales (the largest magnitudes for APS). Each
    chunk of a tensor begins at a whole byte. So if the bits of a format's codes are not a multiple
    of 8, each chunk may cost one more byte.

    The result is exact for codecs with encoded sizes that depend on shapes alone. For other codecs,
    such as `top_k` and codecs with Elias or Huffman codes, the bytes are an upper bound, unless
    `ranks` gives the values.

    Args:
        spec: the all-reduce, or its text.
        world: the number of ranks.
        shapes: the shape of each tensor; an int is the length of a 1-D tensor. Only codecs that
            encode rows or columns need more than the number of values.
        rank: the rank whose bytes are counted; default 0.
        ranks: the tensors of each rank, as for `cpd.simulate_all_reduce`. The function then sums
            them between threads of this process, and counts the bytes of this call. Default None:
            the bytes are computed from the shapes alone.
        chunk: the number of values that a communicator processes at once; default 2^20.
        largest: the largest magnitude in all tensors, or a list with the largest magnitude in each
            tensor; infinite or NaN if a value is infinite or NaN. It is used if a format or codec
            cannot encode NaN (`e3m0`, `e2m1`): if a sum may then overflow, all values are sent in
            binary32. Default None: not known. For such formats, `exact` is then False and the bytes
            are an upper bound, for values below 2^96.

    Returns:
        The number of rounds of messages, and the bytes sent and received.

    Raises:
        ValueError: for an argument out of range, and if `ranks` does not fit `world` and `shapes`.
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
    """Returns the steps of an all-reduce, with the messages within and between hosts.

    A step is a set of messages that are sent at the same time. Steps with equal messages are one
    `Round`. Rank r is in host r // per_host. The other arguments are as in `cost`.

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
    """Returns the modeled seconds of an all-reduce's messages, one step after the other.

    The result is an upper bound if the bytes of `cost` are an upper bound. Casts and sums are
    assumed to take no time. The messages in which ranks agree on scales are not included.

    >>> from cpd.comm.spec import Reduce
    >>> machine = Machine(alpha=1e-6, beta=1e9)
    >>> round(1e6 * transfer_seconds(Reduce("e4m3"), machine, 4, [1000]), 2)  # us
    7.5
    """
    schedule = rounds(spec, world, shapes, per_host=machine.gpus, largest=largest)
    return seconds(machine, schedule)


def agreement(spec: Reduce, world: int, shapes: Sizes, *, per_host: int) -> list[Round]:
    """Returns the steps in which ranks agree on scales, which precede the steps of `rounds`.

    With APS, and for formats that cannot encode NaN, ranks agree on each tensor's largest
    magnitude. A message then has 4 bytes for each tensor, and 4 bytes in addition. For a codec with
    a shared scale, a message has 4 bytes for each tensor. The agreement takes ceil(log2(world))
    steps: in step i = 0, 1, …, rank r sends to rank r + 2^i (modulo `world`). For other specs, the
    result is empty.

    >>> from cpd.comm.spec import Reduce
    >>> agreement(Reduce("e4m3", aps=True), 4, [1000], per_host=2)
    [Round(steps=1, bytes=8, across=1, within=1), Round(steps=1, bytes=8, across=2, within=0)]
    >>> agreement(Reduce("e4m3"), 4, [1000], per_host=2)
    []
    """
    values, rows = values_and_rows(spec, shapes)
    native = spec._held, int32("world", world), values, int64("per_host", per_host), rows
    return [Round(*step) for step in _core.agreement(*native)]
