# SPDX-License-Identifier: Apache-2.0
"""`LocalGroup`: ranks that are threads of one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

from cpd import _core
from cpd.comm.communicator import Communicator
from cpd.numeric.checked import checked
from cpd.numeric.numbers import int32

T = TypeVar("T")

_PATIENCE = 1.0, 3.0
"""Seconds to wait for the threads of an interrupted run to end: first for threads in calls of CPD,
then, after an interrupt, for threads that run Python code."""


@checked
class LocalGroup:
    """A group of ranks that are threads of this process.

    `cpd.comm.local` makes the group. `ranks[r]` is the communicator of rank r. Use each
    communicator in a thread of its own, as `run` does. The end of a `with` block closes all
    communicators.

    Args:
        size: the number of ranks.
        timeout: the seconds after which a rank that does not answer is lost.
        chunk: the number of values in a chunk, 1…2^31 - 1. Data is sent and summed by chunks.
        seed: the seed of the random bits of casts, codecs and sums; default 0.

    >>> import cpd
    >>> with cpd.comm.local(2) as group:
    ...     group.run(lambda comm: comm.rank)
    [0, 1]
    """

    ranks: Sequence[Communicator]
    """The communicators of all ranks; `ranks[r]` is the communicator of rank r."""

    def __init__(self, size: int, timeout: float, chunk: int, seed: int = 0) -> None:
        self.ranks = [
            Communicator(native, timeout, chunk, seed)
            for native in _core.local_communicators(int32("size", size), timeout, chunk)
        ]

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    def run(self, function: Callable[[Communicator], T]) -> list[T]:
        """Calls a function once for each rank, each call in a thread of its own.

        If the function raises on one rank, the other ranks' calls of CPD raise `RankLost` instead
        of waiting. This method then closes all communicators and raises the first exception again.

        Ctrl-C also ends the ranks. A rank in a call of CPD ends at once, another rank as soon as it
        runs Python code. A rank that is blocked elsewhere is abandoned after four seconds; the
        program can still end.

        Args:
            function: `function(comm)`, where `comm` is the rank's communicator.

        Returns:
            The function's results, in ascending order of ranks.
        """
        stop = _core.Stop()
        ranks = [_Rank(comm, function, stop) for comm in self.ranks]
        try:
            for rank in ranks:
                rank.start()
            # join() is not enough: after Ctrl-C, join() of Python 3.11 returns as if the thread
            # had ended.
            for rank in ranks:
                rank.ended.wait()
        except BaseException:  # Ctrl-C, or any exception of a signal's handler
            stop.set()
            self._end([rank for rank in ranks if rank.ident is not None])
            raise
        for rank in ranks:
            rank.join()
        failed = [rank for rank in ranks if rank.error is not None]
        if failed:
            self.close()
            first = min(failed, key=lambda rank: rank.when)
            assert first.error is not None
            first.error.add_note(f"(raised on rank {first.comm.rank} of {self.size})")
            raise first.error
        return [rank.result for rank in ranks]

    def _end(self, ranks: Sequence[_Rank]) -> None:
        """Ends the ranks of an interrupted run, and closes their communicators."""
        for comm in self.ranks:
            comm._give_up()
        if not _wait(ranks, _PATIENCE[0]):
            for rank in ranks:
                if rank.ident is not None and not rank.ended.is_set():
                    _core.interrupt_thread(rank.ident)
        if _wait(ranks, _PATIENCE[1]):
            for rank in ranks:
                rank.join()
            self.close()

    def close(self) -> None:
        """Closes all communicators."""
        for comm in self.ranks:
            comm.close()

    def __enter__(self) -> LocalGroup:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Rank(threading.Thread):
    """A rank's thread."""

    def __init__(
        self, comm: Communicator, function: Callable[[Communicator], Any], stop: _core.Stop
    ) -> None:
        super().__init__(name=f"cpd-rank-{comm.rank}", daemon=True)
        self.comm = comm
        self.result: Any = None
        self.error: BaseException | None = None
        self.when = 0.0
        self.ended = threading.Event()
        self._function = function
        self._stop_flag = stop

    def run(self) -> None:
        self._stop_flag.enter()
        try:
            self._call()
        except KeyboardInterrupt:  # a second Ctrl-C, while the first was handled
            pass
        finally:
            self.ended.set()

    def _call(self) -> None:
        try:
            self.result = self._function(self.comm)
        except BaseException as error:
            self.when = time.monotonic()
            self.error = error
            self.comm._give_up()


def _wait(ranks: Sequence[_Rank], seconds: float) -> bool:
    """Returns whether the threads of all ranks end within `seconds`."""
    end = time.monotonic() + seconds
    return all(rank.ended.wait(max(0.0, end - time.monotonic())) for rank in ranks)
