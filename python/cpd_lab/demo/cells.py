# SPDX-License-Identifier: Apache-2.0
"""The cells (the measurements) of the demo: its training runs and its round-off study."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cpd_lab.papers.study import Cell
from cpd_lab.train import TrainOptions
from cpd_lab.train.runs import Run
from cpd_lab.train.wire import CODECS as CODECS

SHALLOW_DEPTH = 3
SEARCH_EXPONENTS = tuple(range(1, 17))  # the constant loss scales tried: 2^1 … 2^16
SCALED, ROUNDOFF = "scaled", "roundoff"
"""The labels of two kinds of measurements.

SCALED: trainings with the best loss scale of the search, with every seed but the first.
ROUNDOFF: the round-off study.
"""
_MINUTES, _ROUNDOFF_MINUTES = 0.06, 0.2

Rows: TypeAlias = dict[str, dict[str, Any]]
"""Maps a label to the options of a training, without the options that all trainings share."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of `cpd demo`.

    The rows of the accuracy table are trained with the seeds `seed` … `seed` + `seeds` - 1. All
    other measurements use the first seed alone. Raises ValueError if `seeds` is below 1 or if
    `cpd_lab.train.TrainOptions` refuses the options.
    """

    seed: int = 0
    seeds: int = 1
    epochs: int = 40
    nodes: int = 8
    roundoff_nodes: int = 256
    roundoff_epochs: int = 10
    search_exponents: tuple[int, ...] = SEARCH_EXPONENTS
    codecs: tuple[str, ...] = CODECS

    def __post_init__(self) -> None:
        if self.seeds < 1:
            raise ValueError(f"seeds must be at least 1, got {self.seeds}")
        for seed in self.every_seed:
            TrainOptions(**self.shared(seed))

    @property
    def every_seed(self) -> range:
        """The seeds of the accuracy table, in ascending order."""
        return range(self.seed, self.seed + self.seeds)

    @property
    def training(self) -> TrainOptions:
        """The options that all trainings of the demo with its first seed have in common."""
        return TrainOptions(**self.shared(self.seed))

    def shared(self, seed: int) -> dict[str, Any]:
        """Returns the options that all trainings with `seed` have in common, as a dict for JSON."""
        options = {"epochs": self.epochs, "nodes": self.nodes, "divide": "before"}
        return {**options, "seed": seed}


def table_rows(epochs: int) -> Rows:
    """Returns the rows of the accuracy table, except the row of the best loss scale.

    The last row is the hybrid of the APS paper: a third of the epochs sum in fp32, the others in 8
    bits with APS.
    """
    return {
        "fp32": {"format": "fp32"},
        "e4m3": {"format": "e4m3"},
        "e4m3 aps": {"format": "e4m3", "aps": "on"},
        "e5m2": {"format": "e5m2"},
        "e3m0": {"format": "e3m0"},
        "e3m0 aps": {"format": "e3m0", "aps": "on"},
        "e5m2 aps": {"format": "e5m2", "aps": "on"},
        "hybrid": {"format": "e5m2", "aps": "on", "fp32_epochs": epochs // 3},
    }


def search_rows(options: DemoOptions) -> Rows:
    """Returns the e4m3 trainings of the search for the best loss scale, one for each scale."""
    exponents = options.search_exponents
    return {f"scale 2^{k}": {"format": "e4m3", "loss_scale": 2.0**k} for k in exponents}


def shallow_rows() -> Rows:
    """Returns the trainings of the network with 3 hidden layers, in fp32 and e4m3."""
    return {
        f"shallow {name}": {"format": name, "depth": SHALLOW_DEPTH} for name in ("fp32", "e4m3")
    }


def codec_rows(options: DemoOptions) -> Rows:
    """Returns a training for each compressor.

    With TernGrad the last layer is summed in fp32, as in the TernGrad paper.
    """
    return {
        wire: {"wire": wire, "last_layer_fp32": wire.startswith("terngrad")}
        for wire in options.codecs
    }


def cells(options: DemoOptions) -> list[Cell]:
    """Returns all cells (measurements) of the demo that are known beforehand.

    The cells of `scaled_cells` are not included: they depend on the search for a loss scale.
    """
    table = table_rows(options.epochs)
    rows = {**search_rows(options), **table, **shallow_rows(), **codec_rows(options)}
    first, *others = options.every_seed
    study = {**options.shared(first), "epochs": options.roundoff_epochs}
    study |= {"ranks": options.roundoff_nodes, "reduce": "e5m2 aps"}
    return [
        Cell("demo-roundoff", study, ROUNDOFF, _ROUNDOFF_MINUTES),
        *_of_seed(options, first, rows),
        *(cell for seed in others for cell in _of_seed(options, seed, table)),
    ]


def scaled_cells(options: DemoOptions, best: Run) -> list[Cell]:
    """Returns an e4m3 training for each seed except the first, with the loss scale of `best`.

    `best` is the best run of the search for a loss scale. The search used the first seed.
    """
    row = {SCALED: {"format": "e4m3", "loss_scale": best.loss_scale}}
    _, *others = options.every_seed
    return [cell for seed in others for cell in _of_seed(options, seed, row)]


def _of_seed(options: DemoOptions, seed: int, rows: Mapping[str, Mapping[str, Any]]) -> list[Cell]:
    shared = options.shared(seed)
    return [Cell("demo", {**shared, **row}, label, _MINUTES) for label, row in rows.items()]
