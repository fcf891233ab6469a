# SPDX-License-Identifier: Apache-2.0
"""Losses of the training, and metrics of a model on the held-out part: `loss_of`, `evaluated`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from cpd_lab.train.data import Data

METRICS = {"classes": "accuracy", "pixels": "mean_iou", "text": "loss"}
"""Maps `Data.kind` to the main metric of a training with such data."""
_AT_ONCE = 500  # inputs of an evaluation
_DIFFER = (nn.modules.batchnorm._NormBase, nn.modules.dropout._DropoutNd, nn.RNNBase)


def loss_of(outputs: Tensor, targets: Tensor, reduction: str = "mean") -> Tensor:
    """Returns the cross entropy of the predicted classes of inputs, pixels or characters.

    Args:
        outputs: the scores, N x classes, N x classes x H x W or N x T x classes.
        targets: the classes, int64, N, N x H x W or N x T.
        reduction: `"mean"` (default), `"sum"` or `"none"`, as in torch.

    Returns:
        The loss, a scalar unless `reduction` is `"none"`.
    """
    if outputs.ndim == 4:
        outputs = outputs.permute(0, 2, 3, 1)
    if outputs.ndim > 2:  # rows of classes: as images, this has no deterministic form on GPUs
        outputs, targets = outputs.reshape(-1, outputs.shape[-1]), targets.reshape(-1)
    return cross_entropy(outputs, targets, reduction=reduction)


def evaluated(model: nn.Module, data: Data) -> dict[str, float]:
    """Measures a model on the held-out part and returns the metrics that `TrainResult.curves` has.

    NaN outputs count as 0. The model is in evaluation mode during the call if it has layers that
    torch evaluates differently (batch norms, dropout, recurrent layers).
    """
    counts = torch.zeros(data.classes, data.classes, dtype=torch.int64)
    loss = 0.0
    with torch.no_grad(), _evaluating(model):
        pairs = zip(
            torch.split(data.test_x, _AT_ONCE), torch.split(data.test_y, _AT_ONCE), strict=True
        )
        for x, y in pairs:
            outputs = model(x)
            loss += float(loss_of(outputs, y, "sum")) if data.kind == "text" else 0.0
            axis = -1 if data.kind == "text" else 1
            counts += confusion(outputs.nan_to_num(nan=0.0).argmax(axis), y, data.classes)
    metrics = {"accuracy": int(counts.trace()) / data.test_y.numel()}
    if data.kind == "pixels":
        metrics = {"mean_iou": mean_iou(counts), "mean_accuracy": mean_accuracy(counts), **metrics}
    if data.kind == "text":
        metrics = {"loss": loss / data.test_y.numel(), **metrics}
    return metrics


def held_out_accuracy(model: nn.Module, data: Data) -> float:
    """Returns the share of held-out inputs, pixels or characters that are classified right."""
    return evaluated(model, data)["accuracy"]


def confusion(found: Tensor, targets: Tensor, classes: int) -> Tensor:
    """Returns the matrix of counts by [target class][predicted class], int64, on the CPU."""
    pairs = (targets.flatten() * classes + found.flatten()).cpu()
    return torch.bincount(pairs, minlength=classes * classes).reshape(classes, classes)


def mean_iou(counts: Tensor) -> float:
    """Returns the mean intersection over union of a `confusion` matrix.

    The mean is over the classes that occur in the targets or in the predictions.
    """
    right = counts.diagonal().double()
    union = counts.sum(0) + counts.sum(1) - counts.diagonal()
    return float((right / union)[union > 0].mean())


def mean_accuracy(counts: Tensor) -> float:
    """Returns the mean recall of a `confusion` matrix, over the classes that are in the targets."""
    targets = counts.sum(1)
    return float((counts.diagonal().double() / targets)[targets > 0].mean())


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    if not (model.training and any(isinstance(module, _DIFFER) for module in model.modules())):
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()
