# SPDX-License-Identifier: Apache-2.0
"""Counts what a reduction costs: messages, and modelled time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cpd import _core
from cpd.comm.spec import ReduceSpec, check_spec
from cpd.numeric.options import integer

DEFAULT_CHUNK = 1 << 20
"""Values in work at once in a communicator that was not told otherwise."""


@dataclass(frozen=True)
class Cost:
    """What one rank moves in an all-reduce: what a communicator counts as its traffic."""

    steps: int
    """Rounds of messages, on the rank that has most: 2 (W - 1) for `owner` and `ring`, W - 1 for
    `gather`, 4 (k - 1) + 2 (ceil(W / k) - 1) for `hierarchical` with groups of k; 0 where there are
    no values."""
    bytes_sent: int
    """Of packed values."""
    bytes_received: int


def cost(
    spec: ReduceSpec,
    world: int,
    sizes: Sequence[int],
    rank: int = 0,
    *,
    chunk: int = DEFAULT_CHUNK,
) -> Cost:
    """What rank `rank` of `world` moves in the all-reduce of layers of so many values each.

    Exact for the values alone: headers, the handshake and the exponents of APS come on top. Every
    piece of a layer in a message starts at a byte, so that formats whose codes are no whole bytes
    cost up to a byte more at each cut; `chunk` is the communicator's.

    Raises ValueError or TypeError.

    >>> cost(ReduceSpec("e4m3"), 4, [1000])
    Cost(steps=6, bytes_sent=1500, bytes_received=1500)
    >>> spec = ReduceSpec("e4m3", order="ring", exchange="hierarchical", group_size=16)
    >>> cost(spec, 256, [1000]).steps
    90
    """
    check_spec(spec)
    native = _core.cost(
        spec._native(),
        integer("world", world),
        integer("rank", rank),
        [integer("size", size) for size in sizes],
        integer("chunk", chunk),
    )
    return Cost(native.steps, native.bytes_sent, native.bytes_received)


def transfer_time(
    spec: ReduceSpec, world: int, sizes: Sequence[int], *, alpha: float, beta: float
) -> float:
    """Seconds that the messages of an all-reduce take in the alpha-beta model: its steps one after
    the other, all ranks at once, each `alpha` seconds and `beta` seconds a byte of its longest
    message. Casts and folds are taken to be hidden.

    >>> spec = ReduceSpec("e4m3")
    >>> round(1e6 * transfer_time(spec, 4, [1000], alpha=1e-6, beta=1e-9), 2)  # us
    7.5
    """
    check_spec(spec)
    return _core.time(
        spec._native(),
        integer("world", world),
        [integer("size", size) for size in sizes],
        float(alpha),
        float(beta),
    )
