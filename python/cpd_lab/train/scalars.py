# SPDX-License-Identifier: Apache-2.0
"""Writes the figures of training steps for TensorBoard: `write_scalars`."""

from __future__ import annotations

from typing import Any

from cpd.track.writers import writer_of
from cpd_lab.train.result import Step


def write_scalars(writer: Any, step: Step) -> None:
    """Writes the figures of one step: `train/loss`, `train/rate`, and figures of each layer.

    A layer's figures come from the all-reduce's report on all nodes. `wire/LAYER/zeros` and
    `wire/LAYER/underflowed` are shares of its values. `wire/LAYER/bits_a_value` is the mean number
    of bits sent for a value. `wire/LAYER/bits` is the mean of the numbers of bits that a codec
    chose.

    Args:
        writer: an object that `cpd.track.Tracker` takes, such as TensorBoard's SummaryWriter.
        step: the step.
    """
    scalars = {"train/loss": step.loss, "train/rate": step.rate}
    for name, report in step.report.items():
        scalars[f"wire/{name}/zeros"] = report.zeros_share
        scalars[f"wire/{name}/underflowed"] = report.underflowed / max(report.values, 1)
        scalars[f"wire/{name}/bits_a_value"] = report.bits_a_value
        if report.bits:
            scalars[f"wire/{name}/bits"] = sum(report.bits) / len(report.bits)
    writer_of(writer).write(scalars, step.number)
