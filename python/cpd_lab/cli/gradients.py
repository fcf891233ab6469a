# SPDX-License-Identifier: Apache-2.0
"""The gradients of `cpd roundoff --model`.

A model is trained in fp32 first. Then each node computes a gradient on images that it samples.
"""

import argparse
from typing import TYPE_CHECKING

from cpd.cli.output import new_progress
from cpd.cli.roundoff import MODEL_DEFAULTS, OTHER_DEFAULTS

if TYPE_CHECKING:
    from cpd.study.gradients import Gradients
    from cpd_lab.train.options import TrainOptions


def check(options: argparse.Namespace) -> None:
    """Raises ValueError if the command's options do not describe a valid training."""
    _training(options)


def gradients(options: argparse.Namespace, nodes: int | None) -> "Gradients":
    """Trains a model in fp32 and returns the gradients of `nodes` nodes (None: 256 nodes)."""
    from cpd.study.gradients import Gradients
    from cpd_lab.train import sampled_gradients, train
    from cpd_lab.train.layers import weight_named

    chosen, batch = _training(options)
    if options.layer is not None:
        options.layer = weight_named(options.layer, chosen.layers)
    data = chosen.load_data()
    chosen.check_data(len(data.train_x))
    with new_progress(quiet=options.transport != "virtual") as progress:
        bar = progress.add_task("training in fp32", total=chosen.epochs, note="")
        result = train(
            chosen,
            data=data,
            on_epoch=lambda epoch, _: progress.update(bar, completed=epoch),
        )
        per_rank = sampled_gradients(result.model, data, nodes or 256, batch, chosen.seed)
    arrays = [[layer.numpy() for layer in rank] for rank in per_rank]
    return Gradients([layer.name for layer in result.layers], arrays)


def _training(options: argparse.Namespace) -> "tuple[TrainOptions, int]":
    """Returns the options of the fp32 training and the number of images of each node's gradient."""
    from cpd_lab.train.options import TrainOptions

    defaults = MODEL_DEFAULTS if options.model in (None, "mlp") else OTHER_DEFAULTS
    model = {name: getattr(options, name) for name in MODEL_DEFAULTS}
    model |= {name: value for name, value in defaults.items() if model[name] is None}
    batch = model["batch"]
    if defaults is OTHER_DEFAULTS:
        del model["batch"]  # the training itself uses the default batch of the model
    chosen = TrainOptions(
        model=options.model or "mlp", nodes=model.pop("train_nodes"), seed=options.seed, **model
    )
    return chosen, batch
