# SPDX-License-Identifier: Apache-2.0
"""The demo's measurements: `trained` runs a training, `roundoff` measures the round-off of sums."""

from __future__ import annotations

import warnings
from dataclasses import asdict
from typing import Any

from cpd.comm.spec import Reduce
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.warned import PrecisionWarning
from cpd.study.series import group_sizes_for, measure_roundoff
from cpd_lab.papers.trained import chosen_options
from cpd_lab.train import sampled_gradients, train
from cpd_lab.train.runs import Run


def trained(**options: Any) -> dict[str, Any]:
    """Trains by `cpd_lab.train.TrainOptions(**options)` and returns the `Run` as JSON.

    For a training in fp32, the result also has histograms of the exponents of its gradients.
    """
    chosen = chosen_options(options)
    is_fp32 = str(chosen.spec.format) == "fp32"
    epochs = (1, chosen.epochs) if is_fp32 else ()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PrecisionWarning)  # the run's `may_stall` says it
        return asdict(Run.of(train(chosen, histogram_epochs=epochs)))


def roundoff(ranks: int, reduce: str, **options: Any) -> dict[str, Any]:
    """Returns the round-off of an all-reduce in three ways, by the size of a group of ranks.

    The three ways are the order "ring", the order "sequential", and "ring" with Kahan's summation.

    Args:
        ranks: the number of virtual nodes. Each computes gradients on its own micro-batch.
        reduce: the all-reduce, as the text of `cpd.Reduce`.
        options: the options of `cpd_lab.train.TrainOptions` for the training in fp32 before the
            measurement.

    Returns:
        A dict. `series` has, for each way to sum, a `label` and a row for each group size.
        `options` are the options of `cpd roundoff` that repeat the first series. `format` is the
        format of the sums and `nodes` is `ranks`.
    """
    chosen, spec = chosen_options(options), Reduce(reduce)
    data = chosen.load_data()
    model = train(chosen, data=data).model
    per_rank = sampled_gradients(model, data, ranks, chosen.batch, chosen.seed)
    sizes = group_sizes_for(ranks)
    kahan = Accumulator(str(spec.format), scheme="kahan")
    ways: list[tuple[str, str, Accumulator | None]] = [
        ("ring across groups", "ring", None),
        ("rank order across groups", "sequential", None),
        ("ring across groups, Kahan", "ring", kahan),
    ]
    series = []
    for label, order, accumulator in ways:
        rows = measure_roundoff(per_rank, spec.replace(accumulator=accumulator, order=order), sizes)
        series.append({"label": label, "rows": [row.row() for row in rows]})
    repeat = (
        f"--reduce '{reduce} order=ring' --nodes {ranks} --batch {chosen.batch} "
        f"--train-nodes {chosen.nodes} --epochs {chosen.epochs} --seed {chosen.seed}"
    )
    return {"format": str(spec.format), "nodes": ranks, "options": repeat, "series": series}
