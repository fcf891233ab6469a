# SPDX-License-Identifier: Apache-2.0
"""Runs cells: in this process, over processes of this machine, or as jobs of a cluster."""

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
"""Measures parts of the work and yields their results. It is pickled if other processes call it."""

CLUSTERS = ("slurm", "local", "debug")
CLUSTER_JOBS = 16
"""The default number of jobs on a cluster."""
_LOGS = "jobs"


def check_jobs(jobs: Any, cluster: Any, folder: Any) -> None:
    """Raises ValueError for a number of jobs or a cluster that there is not."""
    if cluster is not None:
        checked_name("cluster", cluster, CLUSTERS)
    if cluster is not None and folder is None:
        raise ValueError("a cluster needs a folder, which all of its nodes share")
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise ValueError(f"jobs must be an int of at least 1, got {shown(jobs)}")


def run_here(parts: Iterable[PartT], measure: Measure[PartT, ResultT]) -> Iterator[ResultT]:
    """Yields the results in this process, one part after the other."""
    for part in parts:
        yield from measure([part])


def run_in_processes(
    parts: Iterable[PartT], measure: Measure[PartT, ResultT], jobs: int
) -> Iterator[ResultT]:
    """Yields the results as they come, of `jobs` processes of one thread each (joblib).

    Where the caller stops early or is interrupted, the processes are ended.
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
    """Yields the results of at most `jobs` jobs (default 16) of one of CLUSTERS, by submitit.

    Its files are in `folder`/jobs; `options`: arguments of its `update_parameters`.
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
    """Delays Ctrl-C until the end.

    Processes started meanwhile never receive it, not even during their imports: the process that
    started them ends them.

    multiprocessing's own process is started before: until Python 3.12 that lifts the mask.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_DISTRIBUTOR = "ExecutorManagerThread"
"""loky's name of the thread that distributes parts."""


def _end(parts: Generator[Any, None, None]) -> None:
    """Ends the processes, if parts are missing, without joblib's warning, which does not apply.

    The thread of loky that distributes parts may look for one that is dropped already: it ends by a
    KeyError before `close` returns, which is harmless and not reported.
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
