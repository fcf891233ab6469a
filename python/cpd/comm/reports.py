# SPDX-License-Identifier: Apache-2.0
"""The report of a communicator on a reduction: `ReduceReport` and `Traffic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpd import _core
from cpd.comm.virtual import TensorReport, tensor_report


@dataclass(frozen=True)
class Traffic:
    """The messages of this rank in one call.

    Attributes:
        steps: the rounds of the exchange for one chunk, each with one message in each direction.
        messages: the messages sent, in all phases.
        bytes_sent: the bytes of encoded values sent.
        bytes_received: the bytes of encoded values received.
        header_bytes: other bytes sent: message headers, sizes of messages, the handshake,
            exponents, reports.
        seconds: the seconds in calls that reduce; 0 (default) if not measured.
        exact: False if `bytes_sent` is an upper bound; default True.
    """

    steps: int
    messages: int
    bytes_sent: int
    bytes_received: int
    header_bytes: int
    seconds: float = 0.0
    exact: bool = True

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.steps + other.steps,
            self.messages + other.messages,
            self.bytes_sent + other.bytes_sent,
            self.bytes_received + other.bytes_received,
            self.header_bytes + other.header_bytes,
            self.seconds + other.seconds,
            self.exact and other.exact,
        )


@dataclass(frozen=True)
class ReduceReport:
    """The report of a reduction.

    Attributes:
        tensors: a report of each tensor, over all ranks together, the same on each rank.
        traffic: the messages of this rank.
    """

    tensors: list[TensorReport]
    traffic: Traffic

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "layers" in state:  # of 0.7
            self.__dict__["tensors"] = self.__dict__.pop("layers")


def reduce_report(native: _core.ReduceReport) -> ReduceReport:
    """Returns the report of a reduction from its native object."""
    return ReduceReport(
        [tensor_report(report) for report in native.layers], traffic_of(native.traffic)
    )


def traffic_of(native: _core.Traffic) -> Traffic:
    """Returns the messages of a call from their native object."""
    return Traffic(
        native.steps,
        native.messages,
        native.bytes_sent,
        native.bytes_received,
        native.header_bytes,
    )
