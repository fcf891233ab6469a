# SPDX-License-Identifier: Apache-2.0
"""A small real network trained over emulated nodes, whose gradients meet in one CPD all-reduce."""

from cpd.training.data import Digits, epoch_order, load_digits
from cpd.training.loop import LayerCounts, TrainResult, sampled_gradients, train
from cpd.training.model import digit_classifier, weights_hash
from cpd.training.options import TrainOptions

__all__ = [
    "Digits",
    "LayerCounts",
    "TrainOptions",
    "TrainResult",
    "digit_classifier",
    "epoch_order",
    "load_digits",
    "sampled_gradients",
    "train",
    "weights_hash",
]
