# SPDX-License-Identifier: Apache-2.0
"""Ranks as threads of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

from cpd import _core
from cpd.comm.communicator import Communicator
from cpd.reduce import PerRank, ReduceSpec, simulate_all_reduce

T = TypeVar("T")


class LocalGroup:
    """W ranks in this process; `ranks[r]` is rank r's communicator, each to be used from a thread
    of its own. Also a context manager, which closes them."""

    def __init__(self, size: int, timeout: float, chunk: int) -> None:
        self.ranks = [
            Communicator(native, timeout, chunk)
            for native in _core.local_communicators(size, timeout, chunk)
        ]

    @property
    def size(self) -> int:
        return len(self.ranks)

    def run(self, function: Callable[[Communicator], T]) -> list[T]:
        """function(comm) for each rank, in a thread of its own; the results, rank ascending.

        Where one raises, the others are told and do not wait for it in vain; the first exception
        is raised again, and all communicators are closed."""
        results: list[Any] = [None] * self.size
        errors: list[tuple[int, BaseException]] = []

        def rank_thread(comm: Communicator) -> None:
            try:
                results[comm.rank] = function(comm)
            except BaseException as error:
                errors.append((comm.rank, error))
                comm._native.give_up()

        threads = [
            threading.Thread(target=rank_thread, args=(comm,), name=f"cpd-rank-{comm.rank}")
            for comm in self.ranks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            self.close()
            rank, error = errors[0]
            error.add_note(f"(raised on rank {rank} of {self.size})")
            raise error
        return results

    def all_reduce(self, per_rank: PerRank, spec: ReduceSpec) -> list[Any]:
        """`cpd.simulate_all_reduce` for this many ranks: no threads, no messages, the same bits."""
        if len(per_rank) != self.size:
            raise ValueError(f"per_rank must have {self.size} ranks, got {len(per_rank)}")
        return simulate_all_reduce(per_rank, spec)

    def close(self) -> None:
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
