# SPDX-License-Identifier: Apache-2.0
"""Runs independent parts of a study: in this process, in several processes, or on a cluster."""

from __future__ import annotations

import signal
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from cpd.numeric.names import checked_name
from cpd.numeric.shown import shown

PartT = TypeVar("PartT")
ResultT = TypeVar("ResultT")
Measure: TypeAlias = Callable[[Sequence[PartT]], Iterable[ResultT]]
"""A function that gets some parts (independent items of a study), measures them and yields results.
The function must be picklable if other processes call it."""

CLUSTERS = ("slurm", "local", "debug")
CLUSTER_JOBS = 16
"""The default number of jobs on a cluster."""
_LOGS = "jobs"


def check_jobs(jobs: Any, cluster: Any, folder: Any) -> None:
    """Raises ValueError for invalid `jobs` or `cluster`, or for `cluster` without `folder`."""
    if cluster is not None:
        checked_name("cluster", cluster, CLUSTERS)
    if cluster is not None and folder is None:
        raise ValueError("a cluster needs a folder, which all of its nodes share")
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise ValueError(f"jobs must be an int of at least 1, got {shown(jobs)}")


def run_here(parts: Iterable[PartT], measure: Measure[PartT, ResultT]) -> Iterator[ResultT]:
    """Measures one part after the other in this process, and yields the results."""
    for part in parts:
        yield from measure([part])


def run_in_processes(
    parts: Iterable[PartT], measure: Measure[PartT, ResultT], jobs: int
) -> Iterator[ResultT]:
    """Measures parts in `jobs` processes of one thread each (joblib), and yields the results.

    Results are yielded in the order in which they are finished. If the caller stops early or is
    interrupted, the processes are ended.
    """
    from joblib import Parallel, delayed, parallel_config

    with parallel_config("loky", inner_max_num_threads=1):
        pool = Parallel(jobs, return_as="generator_unordered", batch_size=1)
        with ExitStack() as ending:
            with _interruptions_held():
                batches = pool(delayed(_list)(measure, [part]) for part in parts)
                ending.callback(_end, batches)
            for results in batches:
                yield from results


def run_on_cluster(
    parts: Sequence[PartT],
    measure: Measure[PartT, ResultT],
    *,
    cluster: str,
    folder: Path,
    jobs: int | None = None,
    options: dict[str, Any] | None = None,
) -> Iterator[ResultT]:
    """Measures parts in at most `jobs` cluster jobs (default 16) of submitit, and yields results.

    `cluster` is one of `CLUSTERS`. submitit writes its files to `folder`/jobs. `options` are
    arguments of submitit's `update_parameters`.
    """
    from submitit import AutoExecutor

    executor = AutoExecutor(folder=folder / _LOGS / "%j", cluster=cluster)
    executor.update_parameters(**(options or {}))
    count = min(jobs or CLUSTER_JOBS, len(parts))
    with executor.batch():
        submitted = [executor.submit(_list, measure, parts[n::count]) for n in range(count)]
    for job in submitted:
        yield from job.result()


def _list(measure: Measure[PartT, ResultT], parts: Sequence[PartT]) -> list[ResultT]:
    return list(measure(parts))


@contextmanager
def _interruptions_held() -> Iterator[None]:
    """Blocks SIGINT (Ctrl-C) in its `with` block.

    Processes that are started in the block inherit the blocked signal, so Ctrl-C never interrupts
    them, not even during their imports. This process ends them instead.

    multiprocessing's resource tracker is started before the block, because before Python 3.12 its
    start unblocks the signal.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_DISTRIBUTOR = "ExecutorManagerThread"
"""The name of the thread of loky that distributes parts to processes."""


def _end(parts: Generator[Any, None, None]) -> None:
    """Closes joblib's generator of results and ends its processes, even if tasks are unfinished.

    Hides joblib's warning about lost tasks. During `parts.close()`, loky's distributor thread may
    end with a KeyError, because it looks for a task that was already dropped. This error is
    harmless, so it is not reported.
    """
    before = threading.excepthook

    def report(what: threading.ExceptHookArgs) -> None:
        is_distributor = what.thread is not None and what.thread.name == _DISTRIBUTOR
        if what.exc_type is not KeyError or not is_distributor:
            before(what)

    threading.excepthook = report
    try:
        with warnings.catch_warnings():
            advice = ".*tasks which were still being processed"
            warnings.filterwarnings("ignore", advice, UserWarning)
            parts.close()
    finally:
        threading.excepthook = before
