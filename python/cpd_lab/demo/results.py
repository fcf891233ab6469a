# SPDX-License-Identifier: Apache-2.0
"""The demo's results: `measure` measures all of them, `load` reads them back, `Demo` holds them."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cpd import _core
from cpd._files import write_json
from cpd.study.series import RoundoffRow
from cpd.study.store import Store
from cpd_lab.demo.cells import (
    ROUNDOFF,
    SCALED,
    DemoOptions,
    cells,
    codec_rows,
    scaled_cells,
    search_rows,
    shallow_rows,
    table_rows,
)
from cpd_lab.papers.run import kept, run
from cpd_lab.papers.study import Cell, Found, Results
from cpd_lab.train.runs import Run

FILE = "demo"
"""The name, without `.json`, of the file that stores a demo's options, versions and machine."""
RESULTS = "results.json"


@dataclass(frozen=True)
class RoundoffSeries:
    """The round-off of one way to sum gradients, with a row for each size of a group of ranks."""

    label: str
    rows: list[RoundoffRow]


@dataclass(frozen=True)
class Roundoff:
    """The demo's round-off study. `series` has an entry for each way to sum.

    The terminal shows the first entry alone.
    """

    format: str
    nodes: int
    options: str
    series: list[RoundoffSeries]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Roundoff:
        """Reads the round-off study from `data`, the JSON of a stored measurement."""
        series = [
            RoundoffSeries(way["label"], [RoundoffRow(**row) for row in way["rows"]])
            for way in data["series"]
        ]
        return cls(**{**data, "series": series})


@dataclass(frozen=True)
class Settings:
    """The seconds that the demo took, the versions of packages, and the machine."""

    seconds: float
    versions: dict[str, str]
    torch_cpu_capability: str
    machine: str


@dataclass
class Demo:
    """All results of a demo."""

    options: DemoOptions
    settings: Settings
    table: list[Run]
    shallow: list[Run]
    search: list[Run]
    roundoff: Roundoff
    repeats: list[Run] = field(default_factory=list)
    """The trainings of the accuracy table, repeated with all seeds after the first."""
    codecs: list[Run] = field(default_factory=list)
    """The trainings whose gradients were sent by a compressor instead of in a format."""

    def of_all_seeds(self, run: Run) -> list[Run]:
        """Returns `run`, then its repetitions with other seeds. The accuracy table has `run`."""
        return [run, *(other for other in self.repeats if other.label == run.label)]

    @property
    def runs(self) -> list[Run]:
        """Every training run of the demo, each once."""
        searched = {id(run) for run in self.search}
        table = [run for run in self.table if id(run) not in searched]
        return [*table, *self.search, *self.shallow, *self.repeats, *self.codecs]

    def write(self, folder: Path) -> None:
        """Writes results.json: all training runs, and the round-off by size of a group of ranks."""
        results = {
            "accuracy": [
                {
                    **run.row(),
                    "accuracies": {seed_run.seed: seed_run.accuracy for seed_run in every},
                }
                for run, every in ((run, self.of_all_seeds(run)) for run in self.table)
            ],
            "roundoff": [row.row() for row in self.roundoff.series[0].rows],
            "roundoff_options": self.roundoff.options,
            "shallow": [run.row() for run in self.shallow],
            "loss_scale_search": [run.row() for run in self.search],
            "codecs": [run.row() for run in self.codecs],
        }
        write_json(folder / RESULTS, results)


def best_of(search: Sequence[Run]) -> Run:
    """Returns the run of the search with the best held-out accuracy.

    Among runs of equal accuracy, the least loss scale wins. Choosing by held-out accuracy favors
    loss scaling, the rival of APS.
    """
    return max(search, key=lambda run: (run.accuracy, -run.loss_scale))


def measure(
    options: DemoOptions, folder: Path, done: Callable[[Found], None], jobs: int = 1
) -> Demo:
    """Makes every measurement of the demo anew and returns all results.

    Args:
        options: the options of the demo.
        folder: receives the files that `load` reads.
        done: is called with each finished measurement.
        jobs: the number of processes; default 1.

    Returns:
        The demo's results.
    """

    def measured(requested: list[Cell]) -> list[Found]:
        return run(requested, folder, jobs=jobs, again=lambda _: True, done=done)

    start = time.monotonic()
    measurements = measured(cells(options))
    measurements += measured(scaled_cells(options, _best(options, measurements)))
    settings = _settings(time.monotonic() - start)
    Store(folder).write(FILE, {"options": asdict(options), "settings": asdict(settings)})
    return _demo(options, settings, measurements)


def load(folder: Path) -> Demo:
    """Returns the results that `measure` stored in `folder`.

    Raises ValueError for a missing or damaged file.
    """
    told: list[str] = []
    stored = Store(folder).read(FILE, _read, told.append)
    if stored is None:
        raise ValueError(told[0] if told else f"{folder}: there is no {FILE}.json of `cpd demo`")
    options, settings = stored

    def known(requested: list[Cell]) -> list[Found]:
        measurements = list(kept(requested, folder, told.append))
        if len(measurements) < len(requested):
            lacking = (
                f"{folder}: {len(requested) - len(measurements)} cells of `cpd demo` are missing"
            )
            raise ValueError(told[0] if told else lacking)
        return measurements

    measurements = known(cells(options))
    measurements += known(scaled_cells(options, _best(options, measurements)))
    return _demo(options, settings, measurements)


def _read(body: dict[str, Any]) -> tuple[DemoOptions, Settings]:
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in body["options"].items()
    }
    return DemoOptions(**options), Settings(**body["settings"])


def _runs(measurements: Sequence[Found]) -> dict[str, list[Run]]:
    """Returns the training runs by label, with one run for each seed."""
    results = Results(measurements)
    return {
        label: [Run.read(measurement.result) for measurement in results.of(label)]
        for label in results.labels
        if label != ROUNDOFF
    }


def _best(options: DemoOptions, measurements: Sequence[Found]) -> Run:
    runs = _runs(measurements)
    return best_of([runs[label][0] for label in search_rows(options)])


def _demo(options: DemoOptions, settings: Settings, measurements: Sequence[Found]) -> Demo:
    runs = _runs(measurements)

    def first(labels: Mapping[str, Any]) -> list[Run]:
        return [runs[label][0] for label in labels]

    labels, search = table_rows(options.epochs), first(search_rows(options))
    table = first(labels)
    table.insert(2, best_of(search))
    others = [run for label in labels for run in runs[label][1:]]
    (study,) = Results(measurements).of(ROUNDOFF)
    return Demo(
        options=options,
        settings=settings,
        table=table,
        shallow=first(shallow_rows()),
        search=search,
        roundoff=Roundoff.read(study.result),
        repeats=[*others, *runs.get(SCALED, [])],
        codecs=first(codec_rows(options)),
    )


def _settings(seconds: float) -> Settings:
    import torch

    packages = {name: version(name) for name in ("torch", "numpy")}
    return Settings(
        seconds=round(seconds, 1),
        versions={"cpd": _core.__version__, **packages, "python": platform.python_version()},
        torch_cpu_capability=torch.backends.cpu.get_cpu_capability(),
        machine=platform.machine(),
    )


def accuracy_range(runs: Sequence[Run]) -> str:
    """Returns the accuracy of a run, such as '0.955', or the range of several, '0.948–0.961'."""
    low, high = (f"{pick(run.accuracy for run in runs):.3f}" for pick in (min, max))
    return low if low == high else f"{low}–{high}"


def state_of(runs: Sequence[Run]) -> str:
    """Returns 'finished', 'diverged at epoch N', or, for several seeds, '2 of 3 diverged'."""
    diverged = sum(run.diverged for run in runs)
    if len(runs) == 1 or diverged == 0:
        return runs[0].state
    return f"{diverged} of {len(runs)} diverged"
