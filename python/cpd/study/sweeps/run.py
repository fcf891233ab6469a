# SPDX-License-Identifier: Apache-2.0
"""`sweep`: runs a sweep in this process, in several processes, or on a cluster."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from cpd.numeric.checked import checked
from cpd.numeric.warned import warn
from cpd.study.jobs import check_jobs, run_here, run_in_processes, run_on_cluster
from cpd.study.store import Telling
from cpd.study.sweeps.cells import Cell, fitting, grid
from cpd.study.sweeps.measure import Bench
from cpd.study.sweeps.results import Sweep, swept
from cpd.study.sweeps.store import Measured, Measurements
from cpd.study.sweeps.tensors import LENGTH, TensorsLike, Workload, load_workload, workload

Accuracy: TypeAlias = Callable[[Cell], float]
Group: TypeAlias = list[Cell]
"""Combinations of options (cells) with equal casts, which are measured together."""

ALONE = 1 << 28
"""By default `sweep` uses one process if the number of values times the number of different casts
is at most this number."""
_KEPT, _VALUES = "cells", "tensors"
"""The subfolders of a sweep's folder: one for results, one for tensors that processes read."""


@checked
def sweep(
    tensors: TensorsLike,
    formats: Any,
    accumulators: Any = "fp32",
    *,
    rounding: Any = "nearest_even",
    scales: Any = "none",
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
    """Measures the errors of every combination of formats, accumulators, roundings and scales.

    All values of each tensor are cast. For dot products, each row (along the last dimension) is cut
    into vectors of up to `length` values; a few values at the end of a row may be left out. Groups
    of 64 vectors are multiplied with one other vector: a vector of the same tensor or, for a tensor
    `NAME/activation`, a row of `NAME/weight`. Products are summed as by `cpd.gemm` with the
    accumulator. The reference is the dot product of the values before the cast, in binary64.

    If the sweep is interrupted, the cells that were measured stay in `folder`, and a later call
    reads them.

    Args:
        tensors: a dict of named arrays or torch tensors, a single array or tensor, or paths of
            .npy, .npz, .safetensors, .pt or .pth files. Code in a file is never executed. Values
            are first rounded to binary32. NaNs and infinities are counted, and replaced by 0.
        formats: one or several texts with patterns such as `"e[2-5]m[1-3],mxfp4"`, or arguments of
            `cpd.Format` and `cpd.Scaled`. Scaled formats keep their scales; `scales` does not apply
            to them.
        accumulators: one or several texts with patterns, or arguments of `cpd.Accumulator`; default
            fp32. A matrix unit is combined only with formats that its operand formats include.
            Matrix units and integers (`int32`, `fixed<40,12>`) are combined only with operands
            without scales, or with one scale per tensor, which multiplies the result.
            `Sweep.left_out` names the combinations that are left out.
        rounding: one or several roundings of the cast, as in `cpd.cast`; default `nearest_even`.
            `stochastic:8` has 8 random bits.
        scales: one or several of `none` (default), `tensor` (one fp32 scale per tensor), `row` (one
            fp32 scale per row), `mx` (one e8m0 scale per 32 values), `nv` (one e4m3fn scale per 16
            values, and one fp32 scale per tensor), or the text that follows the element format in
            `cpd.Scaled`, such as `64 scale=e8m0`. All blocks run along the last dimension.
        bits: the number of bits of the element formats to measure; default None: all formats are
            measured.
        overflow: the overflow of the cast: `saturate` (default) or `ieee`.
        seed: the seed of stochastic rounding, of casts and sums; default 0.
        length: the largest number of terms in a dot product; default 1024. It does not apply to
            products of activations and weights, which use whole rows.
        dots: whether to compute dot products; default True. If False, the accumulators have no
            effect.
        sample: the largest number of values of each tensor; whole rows are chosen, evenly spread
            over the tensor. Default None: all values.
        accuracy: a function of a cell (one combination) that returns a model's accuracy, a float;
            default None. A cell has the attributes `operand`, `accumulator`, `rounding`, `overflow`
            and `seed`. `cell.recipe()` is a `cpd.Recipe` with the cell's format and accumulator.
        folder: the folder in which each cell's result is stored in a file. Later calls with the
            same tensors and options read these files. A damaged file is reported by `tell`, and its
            cell is measured again. Tensors are identified by their SHA-256, `accuracy` by its name
            and source. If code that `accuracy` calls has changed, use another folder. Default None:
            results are not stored.
        jobs: the number of processes, which joblib starts. Default None: one process, or for large
            sweeps without `accuracy` one per CPU. With `cluster`, the number of cluster jobs,
            default 16.
        cluster: None (default) for this machine, or an executor of submitit: `slurm` for job
            arrays, with a `folder` that all nodes share; `local` or `debug` for jobs on this
            machine.
        cluster_options: arguments of submitit's `update_parameters`; default None: no arguments.
        done: a function that is called with each cell's measurement: first with those read from
            `folder`, then as cells are measured; default None.
        tell: a function that is called with a text for each damaged file; default None: a warning.

    Returns:
        The sweep: one row for each cell, with its errors and its cost.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.
        OSError: if a file cannot be opened.

    >>> import numpy as np
    >>> x = np.random.default_rng(0).standard_normal((64, 256), np.float32)
    >>> found = sweep(x, "e[2-3]m[2-3]", scales="none,tensor", bits=6)
    >>> found.best().operand
    'e2m3 tensor scale=fp32'
    """
    cells, left_out = fitting(
        grid(formats, accumulators, rounding, scales, bits=bits, overflow=overflow, seed=seed)
    )
    check_jobs(jobs, cluster, folder)
    work = workload(tensors, length, sample)
    tell, done = warn if tell is None else tell, _ignore if done is None else done
    with ExitStack() as open_:
        if folder is None:
            folder = open_.enter_context(tempfile.TemporaryDirectory(prefix="cpd-sweep-"))
        place = Path(folder).resolve()
        store = Measurements(place / _KEPT, (work.digest, str(dots), _label(accuracy)))
        known = {cell: store.read(cell, tell) for cell in cells}
        missing = [cell for cell, measured in known.items() if measured is None]
        for stored in filter(None, known.values()):
            done(stored)
        settings = _How(place, store, dots, accuracy, cluster_options or {})
        for measured in _measured(_groups(missing), work, settings, jobs, cluster):
            known[measured.cell] = measured
            done(measured)
    measurements = [measured for measured in known.values() if measured is not None]
    return swept(work, measurements, reused=len(cells) - len(missing), left_out=tuple(left_out))


@dataclass(frozen=True)
class _How:
    """The arguments of a sweep that all cells (combinations of options) share."""

    place: Path
    store: Measurements
    dots: bool
    accuracy: Accuracy | None
    options: dict[str, Any]


def _groups(cells: Iterable[Cell]) -> list[Group]:
    groups: dict[Any, Group] = {}
    for cell in cells:
        groups.setdefault(cell.cast, []).append(cell)
    return list(groups.values())


def _ignore(_: Measured) -> None:
    pass


def _label(accuracy: Accuracy | None) -> str:
    """Returns the function's name and the SHA-256 of its source (of "" if it has no source)."""
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


def _measured(
    groups: list[Group], work: Workload, settings: _How, jobs: int | None, cluster: str | None
) -> Iterator[Measured]:
    """Measures groups of cells (combinations of options), and writes a file for each cell."""
    if not groups:
        return
    if cluster is not None:
        values = settings.place / _VALUES / work.digest
        work.save(values)
        measure = functools.partial(_part, values, settings)
        yield from run_on_cluster(
            groups,
            measure,
            cluster=cluster,
            folder=settings.place,
            jobs=jobs,
            options=settings.options,
        )
        return
    if jobs is None:
        much = work.values * len(groups) > ALONE and settings.accuracy is None
        jobs = len(os.sched_getaffinity(0)) if much else 1
    if jobs == 1:
        yield from run_here(
            groups, functools.partial(_measure, Bench(work, settings.dots), settings)
        )
        return
    with tempfile.TemporaryDirectory(prefix="cpd-sweep-", dir=_memory(8 * work.values)) as folder:
        values = Path(folder)
        work.save(values)
        yield from run_in_processes(groups, functools.partial(_part, values, settings), jobs)


def _memory(size: int) -> Path | None:
    """Returns a folder in memory (/dev/shm) if it has `size` bytes free, else None.

    Processes map files of this folder into their memory without a copy.
    """
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < size:
        return None
    return place


def _part(values: Path, settings: _How, groups: Sequence[Group]) -> Iterator[Measured]:
    """Measures groups of cells (combinations of options) on tensors of a `Workload.save` folder."""
    return _measure(_bench(values, settings.dots), settings, groups)


@functools.lru_cache(maxsize=1)
def _bench(values: Path, dots: bool) -> Bench:
    return Bench(load_workload(values), dots)


def _measure(bench: Bench, settings: _How, groups: Sequence[Group]) -> Iterator[Measured]:
    for cells in groups:
        for cell, losses in zip(cells, bench.measure(cells), strict=True):
            score = None if settings.accuracy is None else float(settings.accuracy(cell))
            measured = Measured(cell, tuple(losses), score)
            settings.store.write(measured)
            yield measured
