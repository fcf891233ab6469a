# SPDX-License-Identifier: Apache-2.0
"""Measurements that train a model: `trained`, `masks`."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from cpd.numeric.warned import PrecisionWarning
from cpd_lab.train import TrainOptions, TrainResult, train


def trained(**options: Any) -> dict[str, Any]:
    """Trains by `cpd_lab.train.TrainOptions(**options)`.

    Returns the curves by metric, the loss of every epoch, the metric that counts at the end
    (`final`), the epoch of a divergence, the share of nonzero contributions that the cast turned
    to zero (`lost`), the sums that overflowed, the share of the parameters that was quantized, the
    bytes a node sends in a step and whether that count is exact, the steps, and `command`, which
    repeats the run.
    """
    chosen = chosen_options(options)
    return _summary(_train(chosen))


def masks(pictures: int, **options: Any) -> dict[str, Any]:
    """Trains a segmentation as `trained` does, and returns its masks too.

    `truth` and `masks` are the classes of each pixel of the first held-out pictures, as rows of
    digits.
    """
    chosen = chosen_options(options)
    data = chosen.load_data()
    result = _train(chosen)
    with torch.no_grad():
        classes = result.model.eval()(data.test_x[:pictures]).argmax(dim=1)
    return {
        **_summary(result),
        "truth": _digits(data.test_y[:pictures]),
        "masks": _digits(classes),
    }


def chosen_options(options: dict[str, Any]) -> TrainOptions:
    """Returns the options of a cell, whose tuples are lists in JSON."""
    lists = {name: tuple(value) for name, value in options.items() if isinstance(value, list)}
    return TrainOptions(**{**options, **lists})


def _train(options: TrainOptions) -> TrainResult:
    many = options.nodes > 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # sums of few bits are what is asked
        return train(options, keep="recompute" if many else None, keep_gradients=False)


def _summary(result: TrainResult) -> dict[str, Any]:
    nonzero = result.total("nonzero")
    return {
        "curves": result.curves,
        "loss": result.loss,
        "metric": result.metric,
        "final": result.curve[-1],
        "diverged_at": result.diverged_at,
        "lost": result.total("underflowed") / nonzero if nonzero else 0.0,
        "overflowed": result.total("overflowed"),
        "share": result.share,
        "bytes_sent": result.cost.bytes_sent,
        "exact_bytes": result.cost.exact,
        "steps": len(result.loss) * result.steps_per_epoch,
        "source": result.source,
        "weights": result.weights,
        "command": f"cpd train {result.options.arguments()}",
    }


def _digits(classes: torch.Tensor) -> list[list[str]]:
    return [["".join(map(str, row)) for row in picture] for picture in classes.tolist()]
