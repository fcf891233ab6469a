# SPDX-License-Identifier: Apache-2.0
"""Runs a sweep: in this process, over processes of this machine, or as jobs of a cluster."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import shutil
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, TypeAlias

from cpd.numeric.checked import checked
from cpd.numeric.shown import shown
from cpd.study.sweeps.cells import Cell, fitting, grid
from cpd.study.sweeps.measure import Bench
from cpd.study.sweeps.results import Sweep
from cpd.study.sweeps.store import Measured, Store, Telling
from cpd.study.sweeps.tensors import LENGTH, TensorsLike, Workload, load_workload, workload

Accuracy: TypeAlias = Callable[[Cell], float]
Group: TypeAlias = list[Cell]
"""Cells that share their cast."""

CLUSTERS = ("slurm", "local", "debug")
ALONE = 1 << 28
"""The most values times casts for which one process is enough."""
_KEPT, _VALUES, _LOGS = "cells", "tensors", "jobs"
"""The names in a sweep's folder."""


@checked
def sweep(
    tensors: TensorsLike,
    formats: Any,
    accumulators: Any = "fp32",
    rounding: Any = "nearest_even",
    scales: Any = "none",
    *,
    bits: int | None = None,
    overflow: str = "saturate",
    seed: int = 0,
    length: int = LENGTH,
    dots: bool = True,
    sample: int | None = None,
    accuracy: Accuracy | None = None,
    folder: str | Path | None = None,
    jobs: int | None = None,
    cluster: str | None = None,
    cluster_options: dict[str, Any] | None = None,
    done: Callable[[Measured], None] | None = None,
    tell: Telling | None = None,
) -> Sweep:
    """Measures the errors of every combination of formats, accumulators, roundings and scales on
    tensors.

    Each value of each tensor is cast, and each is a factor of a dot product (but for the few behind
    a row's last vector): vectors of at most `length` values along the last dimension are cast and
    multiplied, 64 of them with one more: of the same tensor, or, for a `NAME/activation`, with a
    row of `NAME/weight`. Products are summed as by `cpd.gemm` with the accumulator; the reference
    is the dot product of the uncast values, in binary64.

    Args:
        tensors: arrays or torch tensors by their names, one alone, or paths of .npy, .npz,
            .safetensors, .pt or .pth files, in which nothing is executed. Rounded to binary32
            first; NaN and infinities are left out and counted.
        formats: one or several texts with patterns such as `"e[2-5]m[1-3],mxfp4"`, or arguments of
            `cpd.format` and `cpd.scaled`. Scaled ones have scales of their own.
        accumulators: one or several texts with patterns, or arguments of `cpd.Accumulator`. A
            matrix unit can be combined with formats whose values its own hold. A unit and an
            integer, `int32` or `fixed<40,12>`, can have no scales, or one per tensor, by which the
            result is multiplied. Other combinations are `left_out`.
        rounding: modes of `cpd.cast`; `stochastic:8` with 8 random bits.
        scales: `none`, `tensor` (one fp32 scale), `row`, `mx` (32 values, e8m0), `nv` (16 values,
            e4m3fn, and a tensor's in fp32), or what follows the element in a text of `cpd.scaled`,
            as `64 scale=e8m0`. All blocks run along the last dimension.
        bits: only element formats with this many bits.
        overflow: of the cast: `saturate` or `ieee`.
        seed: of stochastic rounding, of casts and sums.
        length: terms of a dot product at most; a pair of activations and weights has its own.
        dots: False leaves out the dot products, and the accumulators then have no effect.
        sample: at most so many values of each tensor, in whole rows spread over it; None: all.
        accuracy: a function of a `Cell`, whose `recipe` makes a model compute in it, that returns a
            float.
        folder: keeps each cell in a file, which later calls with the same values and choices read;
            a damaged one is reported (by `tell`, default a warning) and measured again. The values
            are identified by their SHA-256, an accuracy's function by its name and source: where
            code that it calls has changed, use another folder.
        jobs: processes, by joblib; default: as many as there are CPUs where there is much to do,
            but 1 with an accuracy. Of a cluster: its jobs, default 16.
        cluster: None, this machine; `slurm`, by submitit's job arrays, with `cluster_options` as
            arguments of its `update_parameters`, in `folder`, which all nodes share; `local` and
            `debug`: submitit's jobs on this machine.
        done: is called with each cell: with those of the folder first, then as they are measured.

    When interrupted, it keeps the measured cells in `folder`.

    Raises ValueError or TypeError for wrong arguments, OSError for files that cannot be opened.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    >>> found = sweep(x, "e[2-3]m[2-3]", scales="none,tensor", bits=6)
    >>> found.best().cell.operand
    'e2m3 tensor scale=fp32'
    """
    cells, left_out = fitting(
        grid(formats, accumulators, rounding, scales, bits=bits, overflow=overflow, seed=seed)
    )
    if cluster is not None and cluster not in CLUSTERS:
        raise ValueError(f"cluster must be one of {', '.join(CLUSTERS)}, got {shown(cluster)}")
    if cluster is not None and folder is None:
        raise ValueError("a cluster needs a folder, which all of its nodes share")
    if jobs is not None and (type(jobs) is not int or jobs < 1):
        raise ValueError(f"jobs must be an int of at least 1, got {shown(jobs)}")
    work = workload(tensors, length, sample)
    tell, done = _warn if tell is None else tell, _ignore if done is None else done
    with ExitStack() as open_:
        if folder is None:
            folder = open_.enter_context(tempfile.TemporaryDirectory(prefix="cpd-sweep-"))
        place = Path(folder).resolve()
        store = Store(place / _KEPT, (work.digest, str(dots), _label(accuracy)))
        known = {cell: store.read(cell, tell) for cell in cells}
        missing = [cell for cell, measured in known.items() if measured is None]
        for kept in filter(None, known.values()):
            done(kept)
        runner = _Runner(place, store, work, dots, accuracy, jobs, cluster_options or {})
        for measured in runner.run(_groups(missing), cluster):
            known[measured.cell] = measured
            done(measured)
    found = [measured for measured in known.values() if measured is not None]
    return Sweep.of(work, found, reused=len(cells) - len(missing), left_out=tuple(left_out))


def _groups(cells: Iterable[Cell]) -> list[Group]:
    groups: dict[Any, Group] = {}
    for cell in cells:
        groups.setdefault(cell.cast, []).append(cell)
    return list(groups.values())


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def _ignore(_: Measured) -> None:
    pass


def _label(accuracy: Accuracy | None) -> str:
    """The function's name and the SHA-256 of its source, where that is available."""
    if accuracy is None:
        return ""
    if not callable(accuracy):
        raise TypeError(f"accuracy must be a function of a cell, got {type(accuracy).__name__}")
    name = getattr(accuracy, "__qualname__", type(accuracy).__name__)
    try:
        source = inspect.getsource(accuracy)
    except (OSError, TypeError):
        source = ""
    return f"{name} {hashlib.sha256(source.encode()).hexdigest()}"


_HANDS_OUT = "ExecutorManagerThread"
"""loky's name of the thread that distributes parts."""


class _Runner:
    """Measures groups of cells; the process that measures a cell writes its file."""

    def __init__(
        self,
        folder: Path,
        store: Store,
        work: Workload,
        dots: bool,
        accuracy: Accuracy | None,
        jobs: int | None,
        options: dict[str, Any],
    ) -> None:
        self._folder, self._store, self._work, self._dots = folder, store, work, dots
        self._accuracy, self._jobs, self._options = accuracy, jobs, options

    def run(self, groups: list[Group], cluster: str | None) -> Iterator[Measured]:
        if not groups:
            return iter(())
        if cluster is not None:
            return self._by_cluster(groups, cluster)
        jobs = self._jobs
        if jobs is None:
            much = self._work.values * len(groups) > ALONE and self._accuracy is None
            jobs = len(os.sched_getaffinity(0)) if much else 1
        return self._here(groups) if jobs == 1 else self._by_processes(groups, jobs)

    def _here(self, groups: list[Group]) -> Iterator[Measured]:
        bench = Bench(self._work, self._dots)
        for group in groups:
            yield from _measure(bench, self._store, group, self._accuracy)

    def _by_processes(self, groups: list[Group], jobs: int) -> Iterator[Measured]:
        from joblib import Parallel, delayed, parallel_config

        place = _memory(8 * self._work.values)
        with tempfile.TemporaryDirectory(prefix="cpd-sweep-", dir=place) as values:
            self._work.save(Path(values))
            how = Path(values), self._dots, self._store
            with parallel_config("loky", inner_max_num_threads=1):
                pool = Parallel(jobs, return_as="generator_unordered", batch_size=1)
                with ExitStack() as ending:
                    with _interruptions_held():
                        parts = pool(delayed(_part)(*how, [g], self._accuracy) for g in groups)
                        ending.callback(_end, parts)
                    for found in parts:
                        yield from found

    def _by_cluster(self, groups: list[Group], cluster: str) -> Iterator[Measured]:
        from submitit import AutoExecutor

        values = self._folder / _VALUES / self._work.digest
        self._work.save(values)
        executor = AutoExecutor(folder=self._folder / _LOGS / "%j", cluster=cluster)
        executor.update_parameters(**self._options)
        count = min(self._jobs or 16, len(groups))
        parts = [groups[first::count] for first in range(count)]
        how = values, self._dots, self._store
        with executor.batch():
            jobs = [executor.submit(_part, *how, part, self._accuracy) for part in parts]
        for job in jobs:
            yield from job.result()


@contextmanager
def _interruptions_held() -> Iterator[None]:
    """Delays Ctrl-C until the end. Processes started meanwhile never receive it, not even during
    their imports: the process that started them ends them.

    multiprocessing's own process is started before: until Python 3.12 that lifts the mask."""
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(parts: Generator[Any, None, None]) -> None:
    """Ends the processes, if parts are missing, without joblib's warning, which does not apply.

    The thread of loky that distributes parts may look for one that is dropped already: it ends by a
    KeyError before `close` returns, which is harmless and not reported."""
    before = threading.excepthook

    def tell(told: threading.ExceptHookArgs) -> None:
        if told.exc_type is not KeyError or told.thread is None or told.thread.name != _HANDS_OUT:
            before(told)

    threading.excepthook = tell
    try:
        with warnings.catch_warnings():
            advice = ".*tasks which were still being processed"
            warnings.filterwarnings("ignore", advice, UserWarning)
            parts.close()
    finally:
        threading.excepthook = before


def _memory(size: int) -> Path | None:
    """A folder in memory, if there is one with `size` bytes free: its files are mapped and not
    copied."""
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < size:
        return None
    return place


def _part(
    values: Path,
    dots: bool,
    store: Store,
    groups: Sequence[Group],
    accuracy: Accuracy | None,
) -> list[Measured]:
    """Measures groups of cells in one process."""
    bench = _bench(values, dots)
    return [one for group in groups for one in _measure(bench, store, group, accuracy)]


@functools.lru_cache(maxsize=1)
def _bench(values: Path, dots: bool) -> Bench:
    return Bench(load_workload(values), dots)


def _measure(
    bench: Bench, store: Store, cells: Group, accuracy: Accuracy | None
) -> Iterator[Measured]:
    for cell, losses in zip(cells, bench.measure(cells), strict=True):
        score = None if accuracy is None else float(accuracy(cell))
        measured = Measured(cell, tuple(losses), score)
        store.write(measured)
        yield measured
