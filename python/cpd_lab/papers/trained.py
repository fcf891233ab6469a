# SPDX-License-Identifier: Apache-2.0
"""The functions `trained` and `masks`, which train a model and return its metrics."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from cpd.numeric.warned import PrecisionWarning
from cpd_lab.train import TrainOptions, TrainResult, train


def trained(**options: Any) -> dict[str, Any]:
    """Trains by `cpd_lab.train.TrainOptions(**options)` and returns a dict.

    The dict has the curves by metric, the loss of every epoch, the main metric at the end
    (`final`), and the epoch of a divergence. On the all-reduce it has the share of nonzero
    contributions that the cast turned into zero (`lost`), the sums that overflowed, and the share
    of the parameters that was quantized. It also has the bytes that a node sends in a step, whether
    that count is exact, and the number of steps. `command` is the command that repeats the run.
    """
    chosen = chosen_options(options)
    return _summary(_train(chosen))


def masks(pictures: int, **options: Any) -> dict[str, Any]:
    """Trains a segmentation, and returns the result of `trained` with the predicted masks.

    `truth` and `masks` are the true and the predicted classes of the first held-out pictures. A
    picture is a list of rows of digits, a digit for each pixel.
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
    """Returns the `TrainOptions` of a measurement's options; lists, as in JSON, become tuples."""
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
