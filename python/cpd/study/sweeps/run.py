# SPDX-License-Identifier: Apache-2.0
"""Runs a sweep: in this process, over processes of this machine, or as jobs of a cluster."""

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
"""Cells that share their cast."""

ALONE = 1 << 28
"""The most values times casts for which one process is enough."""
_KEPT, _VALUES = "cells", "tensors"
"""The names in a sweep's folder."""


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

    Each value of each tensor is cast, and each but the few behind a row's last vector is a factor
    of a dot product. For that, vectors of up to `length` values along the last dimension are cast,
    and 64 of them are multiplied with one more. That one is a vector of the same tensor or, for a
    `NAME/activation`, a row of `NAME/weight`. Products are summed as by `cpd.gemm` with the
    accumulator. The reference is the dot product of the uncast values, in binary64.

    When interrupted, it keeps the measured cells in `folder`.

    Args:
        tensors: arrays or torch tensors by their names, one alone, or paths of .npy, .npz,
            .safetensors, .pt or .pth files. Nothing in a file is executed. Values are rounded to
            binary32 first; NaN and infinities are left out and counted.
        formats: one or several texts with patterns such as `"e[2-5]m[1-3],mxfp4"`, or arguments of
            `cpd.Format` and `cpd.Scaled`. Scaled formats have their own scales.
        accumulators: one or several texts with patterns, or arguments of `cpd.Accumulator`; default
            fp32. A matrix unit is combined only with formats whose values its operand formats can
            all represent. Matrix units and integers (`int32`, `fixed<40,12>`) are combined only
            with operands without scales or with one scale per tensor, by which the result is
            multiplied. `Sweep.left_out` names the other combinations.
        rounding: one or several roundings of the cast, as in `cpd.cast`; default `nearest_even`.
            `stochastic:8` has 8 random bits.
        scales: one or several of `none` (default), `tensor` (one fp32 scale), `row`, `mx` (32
            values, e8m0), `nv` (16 values, e4m3fn, and a tensor's in fp32), or what follows the
            element in a text of `cpd.Scaled`, such as `64 scale=e8m0`. All blocks run along the
            last dimension.
        bits: only element formats with this number of bits; default None: all.
        overflow: the overflow of the cast: `saturate` (default) or `ieee`.
        seed: the seed of stochastic rounding, of casts and sums; default 0.
        length: the most terms of a dot product; default 1024. A pair of activations and weights has
            its own length.
        dots: whether to compute dot products; default True. If False, the accumulators have no
            effect.
        sample: the most values of each tensor, in whole rows spread over it; default None: all.
        accuracy: a function that returns the accuracy, a float, of a model in a cell; default None.
            A cell has the attributes `operand`, `accumulator`, `rounding`, `overflow` and `seed`;
            `cell.recipe()` is the recipe of a model that computes in it.
        folder: keeps each cell in a file, which later calls with the same values and choices read;
            default None. A damaged file is reported (by `tell`) and measured again. The values are
            identified by their SHA-256, an accuracy's function by its name and source. If code that
            the function calls has changed, use another folder.
        jobs: the number of processes, by joblib. Default: one per CPU if there is much to do, but 1
            with an accuracy. For a cluster: the number of its jobs, default 16.
        cluster: None (default) is this machine. `slurm` uses submitit's job arrays, in `folder`,
            which all nodes share. `local` and `debug` use submitit's jobs on this machine.
        cluster_options: arguments of submitit's `update_parameters`; default none.
        done: is called with each cell's measurement, first with those of the folder, then as they
            are measured; default None.
        tell: is called with a text for each damaged file; default: a warning.

    Returns:
        A row for each cell, with its errors and its cost.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.
        OSError: for a file that cannot be opened.

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
    """The arguments that all cells of a sweep share."""

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
    """Returns the function's name and the SHA-256 of its source, if that is available."""
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
    """Measures groups of cells; the process that measures a cell writes its file."""
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
    """Returns a folder in memory, if there is one with `size` bytes free.

    Its files are mapped and not copied.
    """
    place = Path("/dev/shm")
    if not os.access(place, os.W_OK) or shutil.disk_usage(place).free < size:
        return None
    return place


def _part(values: Path, settings: _How, groups: Sequence[Group]) -> Iterator[Measured]:
    """Measures groups of cells of a workload that is in files."""
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
