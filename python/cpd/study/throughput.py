# SPDX-License-Identifier: Apache-2.0
"""`step_time`: models the time of a training step: computation, codec and messages."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from cpd.comm.costs import Largest
from cpd.comm.spec import Reduce, as_reduce
from cpd.compress.codecs import codec
from cpd.numeric.checked import checked
from cpd.numeric.numbers import at_least
from cpd.numeric.shown import shown
from cpd.study.costs import agreement, cost, rounds
from cpd.study.machines import Machine, Round, as_machine, seconds
from cpd.study.networks import Network, as_network

_TIMED = 1 << 20
"""The number of values on which a codec is timed."""
_TIMES = 3


@dataclass(frozen=True)
class StepTime:
    """The modeled time and cost of a training step.

    Attributes:
        ranks: the number of ranks.
        samples: the number of samples in a step, of all ranks together.
        computation: the seconds of computation on a rank.
        codec: the seconds to encode and decode, on the rank that encodes and decodes the most
            values.
        messages: the seconds that messages take.
        bytes_sent: the bytes that rank 0 sends; an upper bound if `exact` is false.
        steps: the number of rounds of messages; default 0.
        exact: whether `bytes_sent` is exact; default True.
        dollars_an_hour: the price of all ranks, in dollars an hour; default 0: not known.
        exchange: the exchange of the all-reduce; default `owner`.
        codec_source: the speed of the codec in GB/s, and the source of this number; empty (default)
            if nothing is encoded.

    >>> StepTime(2, 64, computation=1.0, codec=0.25, messages=0.5, bytes_sent=8).overlapped
    1.5
    """

    ranks: int
    samples: int
    computation: float
    codec: float
    messages: float
    bytes_sent: float
    steps: int = 0
    exact: bool = True
    dollars_an_hour: float = 0.0
    exchange: str = "owner"
    codec_source: str = ""

    @property
    def apart(self) -> float:
        """The seconds of a step if nothing overlaps: computation + codec + messages."""
        return self.computation + self.codec + self.messages

    @property
    def overlapped(self) -> float:
        """The seconds if codec and messages overlap: computation + max(codec, messages)."""
        return self.computation + max(self.codec, self.messages)

    @property
    def samples_a_second(self) -> float:
        """The number of samples a second if codec and messages do not overlap."""
        return self.samples / self.apart if self.apart else math.inf

    def dollars(self, steps: int = 1000) -> float:
        """Returns the price of a number of steps, if codec and messages do not overlap.

        Args:
            steps: the number of steps; default 1000.

        Returns:
            The price in dollars; 0 if the machine's price is not known.
        """
        return self.dollars_an_hour * self.apart * steps / 3600


Rate: TypeAlias = tuple[float, float]
"""The GB (10^9 bytes) of binary32 values that a codec encodes in a second, and the GB that it
decodes in a second."""
CodecGbps: TypeAlias = "float | tuple[float, float] | Literal['measured'] | None"

H200: Rate = (2686.0, 2754.0)
"""The GB/s at which an NVIDIA H200 casts to e4m3, and back (benchmarks/GPU.md)."""


def codec_values(spec: Reduce, ranks: int) -> tuple[float, float]:
    """Returns how many values the busiest rank encodes and decodes in an all-reduce.

    Both numbers are multiples of the gradient's number of values. They are 0 for one rank, and for
    fp32, which is not encoded.
    """
    if ranks == 1 or (spec.format is not None and str(spec.format) == "fp32"):
        return 0.0, 0.0
    share = (ranks - 1) / ranks
    if spec.exchange == "gather":
        return 1.0, ranks - 1.0
    if spec.exchange == "ring":
        return 1.0, 2 * share
    if spec.exchange == "hierarchical":
        size = min(spec.group_size or ranks, ranks)
        groups = -(-ranks // size)
        between = 2 * (groups - 1) / groups
        return 1.0 + 1 / size + (groups > 1), 2 * (size - 1) / size + between
    return 1.0 + 1 / ranks, 2 * share


@functools.cache
def measured_rate(text: str) -> Rate:
    """Measures the GB/s that a codec encodes and decodes on this CPU: the best of three runs.

    The input is 2^20 normally distributed values.

    >>> measured_rate("e4m3")[0] > 0
    True
    """
    by = codec(text)
    values = np.random.default_rng(0).standard_normal(_TIMED, np.float32)
    best = [math.inf, math.inf]
    for _ in range(_TIMES):
        begin = time.perf_counter()
        packet = by.encode(values)
        middle = time.perf_counter()
        by.decode(packet.data)
        end = time.perf_counter()
        best = [min(best[0], middle - begin), min(best[1], end - middle)]
    return 4e-9 * _TIMED / best[0], 4e-9 * _TIMED / best[1]


def _rate_on(machine: Machine, spec: Reduce, codec_gbps: CodecGbps) -> tuple[Rate, str]:
    """Returns the GB/s that the spec's codec encodes and decodes, and a text with the source."""
    if codec_gbps == "measured":
        rate = measured_rate(text_of(spec))
        source = f"{text_of(spec)} measured on this CPU"
    elif codec_gbps is not None:
        rate, source = _given(codec_gbps), "given"
    elif machine.codec_gbps is not None:
        rate = (machine.codec_gbps, machine.codec_gbps)
        source = machine.sources.get("codec_gbps", "the machine's codec_gbps")
    else:
        rate, source = H200, "default, an H200's cast to e4m3 in benchmarks/GPU.md"
    rate_text = f"{rate[0]:,.4g} GB/s"
    return (
        rate,
        f"{source}: {rate_text}{'' if rate[0] == rate[1] else f' encoded, {rate[1]:,.4g} decoded'}",
    )


def _given(codec_gbps: Any) -> Rate:
    """Returns the rates to encode and to decode, in GB/s, of an argument `codec_gbps`.

    Raises ValueError or TypeError for an invalid argument.
    """
    both = codec_gbps if isinstance(codec_gbps, (tuple, list)) else (codec_gbps, codec_gbps)
    if len(both) != 2 or not all(isinstance(rate, (int, float)) for rate in both):
        error = ValueError if isinstance(codec_gbps, (str, tuple, list)) else TypeError
        raise error(
            "codec_gbps must be GB/s, a pair of them (to encode and to decode) or 'measured', got "
            f"{shown(codec_gbps)}"
        )
    for rate in both:
        if math.isnan(rate) or rate <= 0:
            raise ValueError(f"codec_gbps must be above 0 GB/s, got {shown(rate)}")
    return float(both[0]), float(both[1])


def text_of(spec: Reduce) -> str:
    """Returns the text of the codec, or of the format, in which ranks send their contributions."""
    return spec.codec.text


@checked
def step_time(
    network: Network | str,
    machine: Machine | str,
    world: int,
    spec: Reduce | str = "fp32",
    *,
    compute: float | None = None,
    batch: int | None = None,
    codec_gbps: CodecGbps = None,
    bits: float | None = None,
    largest: Largest = None,
) -> StepTime:
    """Models the time of a training step: computation, then the all-reduce of all gradients.

    The steps and message sizes are computed from the actual exchange, without values. Steps follow
    one after the other. A step takes as long as its slowest message: `alpha` + bytes / `beta`
    seconds, within a host or between hosts. The messages of a host to other hosts share the host's
    link. The messages in which ranks agree on scales are included: with APS, ceil(log2(world))
    messages of about 4 bytes for each tensor.

    Args:
        network: the network, or its name.
        machine: the machine, or its name or text, such as `"alpha=1e-5 beta=1e9"`.
        world: the number of ranks, each a GPU, at least 1.
        spec: the all-reduce, or its text; default fp32.
        compute: the seconds of a step's computation on one rank. Default None: computed from the
            network's published rate on one K80 and the machine's `speed`.
        batch: the number of samples on each rank; default None: the network's number.
        codec_gbps: the speed of the codec: GB (10^9 bytes) of binary32 values in a second. One
            number, or a pair of numbers to encode and to decode, or `"measured"` for the speed on
            this CPU. Default None: the machine's `codec_gbps`, or if that is unknown, the speed of
            a cast to e4m3 on an H200. `StepTime.codec_source` reports the choice.
        bits: the mean number of bits per value in all messages, for codecs with encoded sizes that
            depend on values. Default None: the largest possible number.
        largest: the largest magnitude in all tensors, or a list of the largest in each tensor, as
            in `cost`; default None: unknown.

    Returns:
        The modeled step: the seconds of computation, codec and messages, and the bytes sent.

    Raises:
        ValueError: if the time of computation cannot be computed, for an unknown network or
            machine, and as for `cost`.
        TypeError: for an argument of another type.

    >>> two = Network(shapes=[(2,)], batch=1)
    >>> found = step_time(two, "alpha=1 beta=4", 2, compute=10.0)
    >>> found.messages, found.apart  # two steps of a message of 4 bytes
    (4.0, 14.0)
    """
    network, machine, spec = as_network(network), as_machine(machine), as_reduce(spec)
    at_least(1, "world", world)
    if batch is not None:
        at_least(1, "batch", batch)
    if codec_gbps not in (None, "measured"):
        _given(codec_gbps)
    samples = network.samples(world, batch)
    schedule, sent = messages_of(spec, world, network, machine.gpus, bits, largest)
    coded, source = 0.0, ""
    encoded, decoded = codec_values(spec, world)
    if encoded or decoded:
        rate, source = _rate_on(machine, spec, codec_gbps)
        coded = 4e-9 * (encoded * network.values / rate[0] + decoded * network.values / rate[1])
    return StepTime(
        world,
        samples,
        computation=_computation(network, machine, samples / world, compute),
        codec=coded,
        messages=seconds(machine, schedule),
        bytes_sent=sent[0],
        steps=sum(round_.steps for round_ in schedule),
        exact=sent[1],
        dollars_an_hour=machine.hourly(world),
        exchange=spec.exchange,
        codec_source=source,
    )


def messages_of(
    spec: Reduce,
    ranks: int,
    network: Network,
    per_host: int,
    bits: float | None = None,
    largest: Largest = None,
) -> tuple[list[Round], tuple[float, bool]]:
    """Returns the rounds of messages, and a pair: rank 0's bytes sent, and if they are exact."""
    first = agreement(spec, ranks, network.shapes, per_host=per_host)
    of_first = sum(round_.steps * round_.bytes for round_ in first)
    if bits is None:
        sent = cost(spec, ranks, network.shapes, largest=largest)
        schedule = rounds(spec, ranks, network.shapes, per_host=per_host, largest=largest)
        return [*first, *schedule], (sent.bytes_sent + of_first, sent.exact)
    if not (math.isfinite(bits) and bits > 0):
        raise ValueError(f"bits must be finite and above 0, got {shown(bits)}")
    plain = Reduce("fp32", order=spec.order, exchange=spec.exchange, group_size=spec.group_size)
    whole, (sent_bytes, _) = messages_of(plain, ranks, network, per_host)
    scaled = [round_._replace(bytes=round_.bytes * bits / 32) for round_ in whole]
    return [*first, *scaled], (sent_bytes * bits / 32 + of_first, False)


def _computation(
    network: Network, machine: Machine, samples: float, compute: float | None
) -> float:
    if compute is not None:
        if not (math.isfinite(compute) and compute >= 0):
            raise ValueError(f"compute must be finite and at least 0 seconds, got {shown(compute)}")
        return compute
    if network.rate is None:
        raise ValueError(
            f"the computation of {network.name} is not published: give compute, its seconds a step"
        )
    if machine.speed is None:
        raise ValueError(
            f"the speed of a GPU of {machine.name} is not known: give the seconds of a step's "
            "computation, or speed=…, relative to a K80"
        )
    return samples / (network.rate * machine.speed)
