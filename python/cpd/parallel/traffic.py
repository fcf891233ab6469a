# SPDX-License-Identifier: Apache-2.0
"""`StepTraffic`: the bytes and seconds of a training step's all-reduce. `Meter` measures them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StepTraffic:
    """The bytes that one rank sent in a step's all-reduce, and the time it took.

    Attributes:
        step: the number of the step.
        bytes_sent: the bytes of encoded values that this rank sent; for virtual nodes, the bytes
            that node 0 would send. None if the communicator does not count them.
        seconds: the time in calls that reduce, in seconds: casts, sums, messages, and waiting for
            other ranks.
        exact: False if `bytes_sent` is only an upper bound, because virtual nodes use a codec with
            sizes that depend on the values; default True.
    """

    step: int
    bytes_sent: int | None
    seconds: float
    exact: bool = True


class Meter:
    """Adds up the bytes and seconds of a step's calls.

    Attributes:
        last: the traffic of the last step for which `end` was called; None before.
    """

    def __init__(self) -> None:
        self.last: StepTraffic | None = None
        self._seconds = 0.0
        self._bytes: int | None = 0

    @contextmanager
    def call(self, comm: Any) -> Iterator[None]:
        """Measures one call of a communicator, which the `with` block makes."""
        before, begin = _sent(comm), time.perf_counter()
        try:
            yield
        finally:
            self._seconds += time.perf_counter() - begin
            after = _sent(comm)
            counts = before is not None and after is not None and self._bytes is not None
            self._bytes = self._bytes + after - before if counts else None  # type: ignore[operator]

    def end(self, step: int) -> None:
        """Ends a step, which consists of all calls since the previous `end`."""
        self.last = StepTraffic(step, self._bytes, self._seconds)
        self._seconds, self._bytes = 0.0, 0


def _sent(comm: Any) -> int | None:
    """Returns the bytes of values that a communicator has sent; None if it does not count."""
    traffic = getattr(comm, "traffic", None)
    return None if traffic is None else int(traffic.bytes_sent)
