# SPDX-License-Identifier: Apache-2.0
"""The demo's measurements: which runs there are, and running them on several processes.

Every run is one `cpd train`; its result does not depend on how many run at once.
"""

import multiprocessing
import os
import platform
import queue
import signal
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeAlias

from cpd.comm.spec import Reduce
from cpd.numeric import formats
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.warned import PrecisionWarning
from cpd.study.series import group_sizes_for, measure_roundoff
from cpd_lab.demo.report.results import Demo, Roundoff, RoundoffSeries, Run, Settings
from cpd_lab.train import TrainOptions
from cpd_lab.train.wire import CODECS as CODECS

SHALLOW_DEPTH = 3
SEARCH_EXPONENTS = tuple(range(1, 17))  # the constant loss scales tried: 2^1 … 2^16
ROUNDOFF_FORMAT = "e5m2"


@dataclass(frozen=True)
class DemoOptions:
    """The options of `cpd demo`.

    The rows of the accuracy table are run with `seeds` seeds, `seed` and those behind it; all else
    is of the first one.
    """

    seed: int = 0
    seeds: int = 1
    epochs: int = 40
    nodes: int = 8
    roundoff_nodes: int = 256
    roundoff_epochs: int = 10
    search_exponents: tuple[int, ...] = SEARCH_EXPONENTS
    codecs: tuple[str, ...] = CODECS


@dataclass(frozen=True)
class RoundoffOptions:
    """A round-off study on gradients of the model after a short FP32 training."""

    training: TrainOptions
    nodes: int = 256
    format: str = ROUNDOFF_FORMAT
    aps: str = "on"


class Progress(Protocol):
    """Receives the demo's progress."""

    def epoch(self, count: int) -> None:
        """`count` more epochs are done."""

    def done(self, run: Run) -> None:
        """A training run has finished."""


def other_seeds(options: DemoOptions) -> list[TrainOptions]:
    """The base options of all seeds but the first. Raises ValueError for less than one seed."""
    if options.seeds < 1:
        raise ValueError(f"seeds must be at least 1, got {options.seeds}")
    base = base_options(options)
    return [replace(base, seed=options.seed + i) for i in range(1, options.seeds)]


def base_options(options: DemoOptions) -> TrainOptions:
    """Returns the options that all trainings share."""
    return TrainOptions(
        seed=options.seed, epochs=options.epochs, nodes=options.nodes, divide="before"
    )


def table_options(base: TrainOptions) -> list[TrainOptions]:
    """The accuracy table, without the row of the best loss scale.

    The last row is the paper's hybrid: a third of the epochs in fp32, then 8 bits.
    """
    return [
        replace(base, format="fp32"),
        replace(base, format="e4m3"),
        replace(base, format="e4m3", aps="on"),
        replace(base, format="e5m2"),
        replace(base, format="e3m0"),
        replace(base, format="e3m0", aps="on"),
        replace(base, format="e5m2", aps="on"),
        replace(base, format="e5m2", aps="on", fp32_epochs=base.epochs // 3),
    ]


def search_options(base: TrainOptions, exponents: tuple[int, ...]) -> list[TrainOptions]:
    """Returns the trainings that search a loss scale."""
    return [replace(base, format="e4m3", loss_scale=2.0**k) for k in exponents]


def shallow_options(base: TrainOptions) -> list[TrainOptions]:
    """Returns the trainings of the shallow network, in fp32 and e4m3."""
    shallow = replace(base, depth=SHALLOW_DEPTH)
    return [replace(shallow, format="fp32"), replace(shallow, format="e4m3")]


def codec_options(base: TrainOptions, wires: Sequence[str]) -> list[TrainOptions]:
    """A run for each compressor. TernGrad leaves the last layer as it is, as its paper does."""
    return [replace(base, wire=wire, last_layer_fp32=wire.startswith("terngrad")) for wire in wires]


def total_epochs(options: DemoOptions) -> int:
    """Returns the number of epochs that the demo's progress counts in all."""
    base = base_options(options)
    table = len(table_options(base))
    runs = table + len(options.search_exponents) + len(shallow_options(base))
    runs += (table + 1) * (options.seeds - 1) + len(options.codecs)
    return runs * options.epochs + options.roundoff_epochs


def best_of(search: list[Run]) -> Run:
    """The search's best run by held-out accuracy, which favours the rival; ties: least scale."""
    return max(search, key=lambda run: (run.accuracy, -run.loss_scale))


def measure(options: DemoOptions, progress: Progress, jobs: int | None = None) -> Demo:
    """Runs everything; `jobs` processes at once (default: one for each core, at most 8)."""
    start = time.monotonic()
    base = base_options(options)
    table, search, shallow, codecs = (
        table_options(base),
        search_options(base, options.search_exponents),
        shallow_options(base),
        codec_options(base, options.codecs),
    )
    study = RoundoffOptions(
        training=replace(base, epochs=options.roundoff_epochs), nodes=options.roundoff_nodes
    )
    others = other_seeds(options)
    repeats = [task for one in others for task in table_options(one)]
    tasks: list[Any] = [study, *search, *table, *shallow, *codecs, *repeats]

    def found(results: dict[Any, Run | Roundoff]) -> list[TrainOptions] | None:
        """Returns the trainings after the search: its best scale with other seeds."""
        if not all(task in results for task in search):
            return None
        scale = best_of([_run_of(results, task) for task in search]).loss_scale
        return [replace(one, format="e4m3", loss_scale=scale) for one in others]

    results, scaled = _run_all(tasks, found, progress, jobs or min(_cores(), 8))
    runs = {task: result for task, result in results.items() if isinstance(result, Run)}
    best = best_of([runs[task] for task in search])
    rows = [runs[task] for task in table]
    rows.insert(2, best)
    roundoff = results[study]
    assert isinstance(roundoff, Roundoff)
    return Demo(
        table=rows,
        shallow=[runs[task] for task in shallow],
        search=[runs[task] for task in search],
        roundoff=roundoff,
        settings=_settings(base, options, time.monotonic() - start),
        repeats=[runs[task] for task in (*repeats, *scaled)],
        codecs=[runs[task] for task in codecs],
    )


def _run_of(results: "dict[Any, Run | Roundoff]", task: TrainOptions) -> Run:
    run = results[task]
    assert isinstance(run, Run)
    return run


def study_roundoff(
    options: RoundoffOptions, on_epoch: Callable[[int, float], None] | None = None
) -> Roundoff:
    """Trains in FP32, draws every virtual node's gradients, sums them in every way to compare."""
    from cpd_lab.train import load_digits, sampled_gradients, train

    digits = load_digits()
    model = train(options.training, data=digits, on_epoch=on_epoch).model
    training = options.training
    per_rank = sampled_gradients(model, digits, options.nodes, training.batch, training.seed)
    sizes = group_sizes_for(options.nodes)
    wire = formats.as_format(options.format)
    kahan = Accumulator(wire, scheme="kahan")
    ways: list[tuple[str, str, Accumulator | None]] = [
        ("ring across groups", "ring", None),
        ("rank order across groups", "sequential", None),
        ("ring across groups, Kahan", "ring", kahan),
    ]
    series = []
    for label, order, accumulator in ways:
        spec = Reduce(wire, accumulator=accumulator, order=order, aps=options.aps == "on")
        series.append(RoundoffSeries(label, measure_roundoff(per_rank, spec, sizes)))
    return Roundoff(
        format=options.format,
        nodes=options.nodes,
        options=(
            f"--reduce '{options.format}{' aps' if options.aps == 'on' else ''} order=ring' "
            f"--nodes {options.nodes} "
            f"--batch {training.batch} --train-nodes {training.nodes} "
            f"--epochs {training.epochs} --seed {training.seed}"
        ),
        series=series,
    )


def run_training(
    options: TrainOptions, on_epoch: Callable[[int, float], None] | None = None
) -> Run:
    """One training run; the FP32 one also keeps histograms of its gradients' exponents."""
    from cpd_lab.train import train

    start = time.monotonic()
    is_fp32 = str(options.spec.format) == "fp32"
    epochs = (1, options.epochs) if is_fp32 else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # the run's `may_stall` says it
        result = train(options, on_epoch=on_epoch, histogram_epochs=epochs)
    return Run.of(result, time.monotonic() - start)


def _execute(task: Any, on_epoch: Callable[[int, float], None]) -> Run | Roundoff:
    if isinstance(task, RoundoffOptions):
        return study_roundoff(task, on_epoch)
    return run_training(task, on_epoch)


Results: TypeAlias = dict[Any, Run | Roundoff]
Follow: TypeAlias = Callable[[Results], list[TrainOptions] | None]
"""Returns the remaining trainings, from the results so far; None: not known yet."""


def _run_all(
    tasks: list[Any], follow: Follow, progress: Progress, jobs: int
) -> tuple[Results, list[TrainOptions]]:
    """The results of all tasks, and of those that follow from them; and these."""
    if jobs == 1:
        results: Results = {}
        waiting, following = list(tasks), None
        while waiting:
            task = waiting.pop(0)
            results[task] = _execute(task, lambda _epoch, _accuracy: progress.epoch(1))
            _finished(task, results[task], progress)
            if following is None and (following := follow(results)):
                waiting += following
        return results, following or []
    return _run_parallel(tasks, follow, progress, min(jobs, len(tasks)))


def _finished(task: Any, result: Run | Roundoff, progress: Progress) -> None:
    if isinstance(result, Run):
        progress.epoch(task.epochs - len(result.curve))  # those that a divergence spared
        progress.done(result)


_epochs: Any = None  # in a worker process: the queue that counts epochs


def _start_worker(epochs: Any) -> None:
    global _epochs
    _epochs = epochs
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # the parent reports the interruption


def _in_worker(task: Any) -> Run | Roundoff:
    return _execute(task, lambda _epoch, _accuracy: _epochs.put(1))


def _run_parallel(
    tasks: list[Any], follow: Follow, progress: Progress, jobs: int
) -> tuple[Results, list[TrainOptions]]:
    # spawn: a forked child of a process that uses OpenMP can hang.
    context = multiprocessing.get_context("spawn")
    epochs = context.Queue()
    results: Results = {}
    following: list[TrainOptions] | None = None
    pool = ProcessPoolExecutor(
        jobs, mp_context=context, initializer=_start_worker, initargs=(epochs,)
    )
    try:
        running: dict[Future[Run | Roundoff], Any] = {
            pool.submit(_in_worker, task): task for task in tasks
        }
        while running:
            done, _ = wait(running, timeout=0.1, return_when=FIRST_COMPLETED)
            for count in _drain(epochs):
                progress.epoch(count)
            for future in done:
                task = running.pop(future)
                results[task] = future.result()
                _finished(task, results[task], progress)
            if following is None and (following := follow(results)):
                running.update({pool.submit(_in_worker, task): task for task in following})
    finally:
        pool.shutdown(cancel_futures=True)
    return results, following or []


def _drain(epochs: Any) -> Iterator[int]:
    while True:
        try:
            yield epochs.get_nowait()
        except queue.Empty:
            return


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _settings(base: TrainOptions, options: DemoOptions, seconds: float) -> Settings:
    from importlib.metadata import PackageNotFoundError, version

    import numpy as np
    import torch

    try:
        cpd_version = version("cpd")
    except PackageNotFoundError:
        cpd_version = "unknown"
    return Settings(
        base=base.arguments(),
        depth=base.depth or 0,
        width=base.width or 0,
        nodes=base.nodes,
        batch=base.batch,
        epochs=base.epochs,
        seed=base.seed,
        seeds=options.seeds,
        lr=base.lr,
        momentum=base.momentum,
        search_exponents=list(options.search_exponents),
        roundoff_epochs=options.roundoff_epochs,
        seconds=round(seconds, 1),
        versions={
            "cpd": cpd_version,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        torch_cpu_capability=torch.backends.cpu.get_cpu_capability(),
        machine=platform.machine(),
    )
