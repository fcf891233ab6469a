# SPDX-License-Identifier: Apache-2.0
"""`ReduceReport`, a communicator's report of one reduction, and `Traffic`, its messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cpd import _core
from cpd.comm.virtual import TensorReport, tensor_report


@dataclass(frozen=True)
class Traffic:
    """Counts of the messages that one rank sent and received, in one call or several.

    Attributes:
        steps: the number of rounds of messages for one chunk of values. In a round a rank sends and
            receives up to one message.
        messages: the number of messages sent, including checks of the call and exponents.
        bytes_sent: the bytes of encoded values sent.
        bytes_received: the bytes of encoded values received.
        header_bytes: the other bytes sent: message headers, sizes of messages, the comparison of
            calls, exponents of scales, and reports.
        seconds: the time in calls that reduce, in seconds; 0 (default) if it is not measured.
        exact: False if `bytes_sent` is only an upper bound; default True.
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
    """The report of one reduction.

    Attributes:
        tensors: one report for each tensor. A report counts values of all ranks, so each rank gets
            the same report.
        traffic: the counts of this rank's messages.
    """

    tensors: list[TensorReport]
    traffic: Traffic

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if "layers" in state:  # in a pickle of version 0.7
            self.__dict__["tensors"] = self.__dict__.pop("layers")


def reduce_report(native: _core.ReduceReport) -> ReduceReport:
    """Returns the Python report of a reduction from the C++ report."""
    return ReduceReport(
        [tensor_report(report) for report in native.layers], traffic_of(native.traffic)
    )


def traffic_of(native: _core.Traffic) -> Traffic:
    """Converts the C++ object with the message counts of one call to a Python `Traffic`."""
    return Traffic(
        native.steps,
        native.messages,
        native.bytes_sent,
        native.bytes_received,
        native.header_bytes,
    )
