# SPDX-License-Identifier: Apache-2.0
"""Steps of a training for TensorBoard: `write_scalars`."""

from __future__ import annotations

from typing import Any

from cpd.track.writers import writer_of
from cpd_lab.train.result import Step


def write_scalars(writer: Any, step: Step) -> None:
    """Writes a step's numbers: `train/loss`, `train/rate`, and each layer's.

    They follow from the all-reduce's report on all nodes: `wire/LAYER/zeros` and `/underflowed`,
    shares of its values, `/bits_a_value`, and `/bits`, the mean of the bits that a codec chose.

    `writer`: anything that `cpd.track.Tracker` takes, such as TensorBoard's SummaryWriter.
    """
    scalars = {"train/loss": step.loss, "train/rate": step.rate}
    for name, report in step.report.items():
        scalars[f"wire/{name}/zeros"] = report.zeros_share
        scalars[f"wire/{name}/underflowed"] = report.underflowed / max(report.values, 1)
        scalars[f"wire/{name}/bits_a_value"] = report.bits_a_value
        if report.bits:
            scalars[f"wire/{name}/bits"] = sum(report.bits) / len(report.bits)
    writer_of(writer).write(scalars, step.number)
