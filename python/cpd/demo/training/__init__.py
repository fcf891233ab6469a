# SPDX-License-Identifier: Apache-2.0
"""A small real network trained over several nodes, whose gradients meet in one CPD all-reduce."""

from cpd.demo.training.data import Digits, epoch_order, load_digits
from cpd.demo.training.loop import LayerCounts, RanksDiffer, TrainResult, sampled_gradients, train
from cpd.demo.training.model import digit_classifier, weights_hash
from cpd.demo.training.options import TrainOptions
from cpd.parallel.nodes import Ranks, RealRanks, VirtualRanks, gather_integers, open_ranks

__all__ = [
    "Digits",
    "LayerCounts",
    "Ranks",
    "RanksDiffer",
    "RealRanks",
    "TrainOptions",
    "TrainResult",
    "VirtualRanks",
    "digit_classifier",
    "epoch_order",
    "gather_integers",
    "load_digits",
    "open_ranks",
    "sampled_gradients",
    "train",
    "weights_hash",
]
