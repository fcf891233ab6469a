# SPDX-License-Identifier: Apache-2.0
"""Trains real networks over several nodes, whose gradients meet in one CPD all-reduce.

Loaded when they are first used: all but `TrainOptions`, the tables and the schedules import torch.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd.train.optimizers import OPTIMIZERS, optimizer
from cpd.train.options import TrainOptions
from cpd.train.schedules import RateSchedule, rate_schedule
from cpd.train.table import DATA, MODELS

if TYPE_CHECKING:
    from cpd.parallel.nodes import (
        Ranks,
        RanksDiffer,
        RealRanks,
        VirtualRanks,
        gather_integers,
        open_ranks,
    )
    from cpd.train.data import Data
    from cpd.train.digits import epoch_order, load_digits
    from cpd.train.loop import deterministic, sampled_gradients, train
    from cpd.train.metrics import evaluated, held_out_accuracy
    from cpd.train.models import digit_classifier
    from cpd.train.result import LayerCounts, Step, TrainResult
    from cpd.train.weights import MovingAverage, weights_hash

__all__ = [
    "DATA",
    "MODELS",
    "OPTIMIZERS",
    "Data",
    "LayerCounts",
    "MovingAverage",
    "Ranks",
    "RanksDiffer",
    "RateSchedule",
    "RealRanks",
    "Step",
    "TrainOptions",
    "TrainResult",
    "VirtualRanks",
    "deterministic",
    "digit_classifier",
    "epoch_order",
    "evaluated",
    "gather_integers",
    "held_out_accuracy",
    "load_digits",
    "open_ranks",
    "optimizer",
    "rate_schedule",
    "sampled_gradients",
    "train",
    "weights_hash",
]

_NODES = ("Ranks", "RanksDiffer", "RealRanks", "VirtualRanks", "gather_integers", "open_ranks")
_LOOP = ("deterministic", "sampled_gradients", "train")
_LATER = {
    **dict.fromkeys(_NODES, "cpd.parallel.nodes"),
    **dict.fromkeys(_LOOP, "cpd.train.loop"),
    **dict.fromkeys(("LayerCounts", "Step", "TrainResult"), "cpd.train.result"),
    **dict.fromkeys(("epoch_order", "load_digits"), "cpd.train.digits"),
    **dict.fromkeys(("evaluated", "held_out_accuracy"), "cpd.train.metrics"),
    **dict.fromkeys(("MovingAverage", "weights_hash"), "cpd.train.weights"),
    "Data": "cpd.train.data",
    "digit_classifier": "cpd.train.models",
}


if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module 'cpd.train' has no attribute {name!r}")
