# SPDX-License-Identifier: Apache-2.0
"""Trains real networks over several nodes; one CPD all-reduce sums the nodes' gradients.

Importing the package loads `TrainOptions`, the tables and the schedules only. All other names
import torch and are loaded at their first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from cpd_lab.train.optimizers import OPTIMIZERS, optimizer
from cpd_lab.train.options import TrainOptions
from cpd_lab.train.schedules import RateSchedule, rate_schedule
from cpd_lab.train.table import DATA, MODELS

if TYPE_CHECKING:
    from cpd.parallel.nodes import (
        Ranks,
        RanksDiffer,
        RealRanks,
        VirtualRanks,
        gather_integers,
        open_ranks,
    )
    from cpd_lab.train.data import Data
    from cpd_lab.train.digits import epoch_order, load_digits
    from cpd_lab.train.loop import deterministic, sampled_gradients, train
    from cpd_lab.train.metrics import evaluated, held_out_accuracy
    from cpd_lab.train.models import digit_classifier
    from cpd_lab.train.result import LayerCounts, Step, TrainResult
    from cpd_lab.train.weights import MovingAverage, weights_hash

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
    **dict.fromkeys(_LOOP, "cpd_lab.train.loop"),
    **dict.fromkeys(("LayerCounts", "Step", "TrainResult"), "cpd_lab.train.result"),
    **dict.fromkeys(("epoch_order", "load_digits"), "cpd_lab.train.digits"),
    **dict.fromkeys(("evaluated", "held_out_accuracy"), "cpd_lab.train.metrics"),
    **dict.fromkeys(("MovingAverage", "weights_hash"), "cpd_lab.train.weights"),
    "Data": "cpd_lab.train.data",
    "digit_classifier": "cpd_lab.train.models",
}


if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        if name in _LATER:
            return getattr(importlib.import_module(_LATER[name]), name)
        raise AttributeError(f"module 'cpd_lab.train' has no attribute {name!r}")
