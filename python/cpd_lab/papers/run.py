# SPDX-License-Identifier: Apache-2.0
"""Measures the cells of studies and stores each result in a file: `run`, `kept`.

A cell is one measurement of a study.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cpd.numeric.warned import warn
from cpd.study.jobs import check_jobs, run_here, run_in_processes, run_on_cluster
from cpd.study.store import Store, Telling
from cpd_lab.papers.kinds import VERSION, measure, sources_of
from cpd_lab.papers.study import Cell, Found

CELL_BYTES = 1 << 18
"""The greatest size of a measurement's file, in bytes. The check of free disk space uses it."""


def run(
    cells: Sequence[Cell],
    folder: Path,
    *,
    jobs: int = 1,
    again: Callable[[Found], bool] | None = None,
    cluster: str | None = None,
    cluster_options: dict[str, Any] | None = None,
    done: Callable[[Found], None] | None = None,
    tell: Telling = warn,
) -> list[Found]:
    """Returns the results of cells (measurements of studies), in the order of `cells`.

    Reads the results that `folder` has and measures the other cells. An interrupted call preserves
    the results that are complete.

    Args:
        cells: the cells to measure; equal ones are measured once.
        folder: stores a file for each cell in its subfolder `cells`. A damaged file is reported by
            `tell` and its cell measured again.
        jobs: the number of processes on this machine, or of jobs on the cluster; default 1.
        again: is called with each result of `folder` and returns True to measure that cell again,
            as `is_stale` does; default None: no cell is measured again.
        cluster: as in `cpd.study.sweep`; default None.
        cluster_options: as in `cpd.study.sweep`; default None.
        done: is called with each result, first with the results that were read from the folder.
        tell: reports a damaged file; default: a warning.

    Returns:
        A result for each cell.

    Raises:
        ValueError: for invalid arguments.
        OSError: if the folder cannot be written or the disk has too little room, before anything is
            measured.
    """
    check_jobs(jobs, cluster, folder)
    distinct = list({cell.key: cell for cell in cells}.values())
    measurements = {
        measurement.cell.key: measurement for measurement in kept(distinct, folder, tell)
    }
    if again is not None:
        measurements = {
            key: measurement for key, measurement in measurements.items() if not again(measurement)
        }
    missing = [cell for cell in distinct if cell.key not in measurements]
    _check_room(folder, len(missing))
    for measurement in measurements.values():
        if done is not None:
            done(measurement)
    part = functools.partial(_measured, Store(folder / "cells"))
    for measurement in _measure(missing, part, folder, jobs, cluster, cluster_options):
        measurements[measurement.cell.key] = measurement
        if done is not None:
            done(measurement)
    return [measurements[cell.key] for cell in distinct]


def kept(cells: Iterable[Cell], folder: Path, tell: Telling) -> Iterator[Found]:
    """Yields the measurements that `folder` has stored, in the order of `cells`."""
    store = Store(folder / "cells")
    for cell in cells:
        measurement = store.read(cell.key, functools.partial(_read, cell), tell)
        if measurement is not None:
            yield measurement


def is_stale(found: Found) -> bool:
    """Returns True if CPD's version, or a source file that decides the result, has changed."""
    return (found.version, found.sources) != (VERSION, sources_of(found.cell.kind))


def _measure(
    cells: Sequence[Cell],
    part: Callable[[Sequence[Cell]], Iterable[Found]],
    folder: Path,
    jobs: int,
    cluster: str | None,
    options: dict[str, Any] | None,
) -> Iterator[Found]:
    if not cells:
        return iter(())
    if cluster is not None:
        return run_on_cluster(
            cells, part, cluster=cluster, folder=folder, jobs=jobs, options=options
        )
    longest_first = sorted(cells, key=lambda cell: -cell.minutes)
    return run_here(cells, part) if jobs == 1 else run_in_processes(longest_first, part, jobs)


def _measured(store: Store, cells: Sequence[Cell]) -> Iterator[Found]:
    for cell in cells:
        measurement = measure(cell)
        content = asdict(measurement)
        content["cell"] = {"kind": cell.kind, "options": cell.options}
        store.write(cell.key, content)
        yield measurement


def _read(cell: Cell, body: dict[str, Any]) -> Found:
    """Returns the measurement of `cell` from `body`, the content of the cell's stored file.

    Raises KeyError or TypeError for an invalid content.
    """
    names = ("result", "seconds", "cpu", "version", "sources")
    measurement = Found(cell, **{name: body[name] for name in names})
    if not isinstance(measurement.result, dict):
        raise TypeError("its result is no object")
    return measurement


def _check_room(folder: Path, cells: int) -> None:
    if not cells:
        return
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < cells * CELL_BYTES:
        raise OSError(
            f"{folder}: {cells} cells take up to {cells * CELL_BYTES >> 20} MiB, the disk has "
            f"{free >> 20} MiB"
        )
