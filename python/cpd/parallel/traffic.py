# SPDX-License-Identifier: Apache-2.0
"""The bytes and seconds of a training step's all-reduce: `StepTraffic`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepTraffic:
    """The bytes and seconds of one step's all-reduce on one rank.

    Attributes:
        step: the number of the step.
        bytes_sent: the bytes of encoded values that this rank sent; for virtual nodes, node 0. None
            if the communicator does not count them.
        seconds: the seconds in calls that reduce: casts, sums, messages, and waiting for other
            ranks.
        exact: False if `bytes_sent` is an upper bound: for virtual nodes with a codec whose sizes
            depend on the values.
    """

    step: int
    bytes_sent: int | None
    seconds: float
    exact: bool = True


class Meter:
    """Adds up the calls of a step.

    Attributes:
        last: the last step that ended.
    """

    def __init__(self) -> None:
        self.last: StepTraffic | None = None
        self._seconds = 0.0
        self._bytes: int | None = 0

    @contextmanager
    def call(self, comm: Any) -> Iterator[None]:
        """A context around one call of a communicator."""
        before, begin = _sent(comm), time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - begin
            after = _sent(comm)
            counts = before is not None and after is not None and self._bytes is not None
            self._bytes = self._bytes + after - before if counts else None  # type: ignore[operator]

    def end(self, step: int) -> None:
        """The calls since the last end belong to this step."""
        self.last = StepTraffic(step, self._bytes, self._seconds)
        self._seconds, self._bytes = 0.0, 0


def _sent(comm: Any) -> int | None:
    """Returns the bytes of values that a communicator has sent; None where it does not count."""
    traffic = getattr(comm, "traffic", None)
    return None if traffic is None else int(traffic.bytes_sent)
