# SPDX-License-Identifier: Apache-2.0
"""Measures what a reduction loses, and counts what it costs: round-off, messages and modelled time
by group size."""

from cpd.comm.layers import Layers, PerRank
from cpd.comm.spec import ReduceSpec, StallWarning
from cpd.comm.virtual import Source
from cpd.study.choices import (
    Choice,
    Recommendation,
    check_recommended,
    choose,
    recommend,
    recommend_over,
)
from cpd.study.costs import DEFAULT_CHUNK, Cost, cost, transfer_time
from cpd.study.reduce import (
    DRAWS,
    Contributions,
    Measurement,
    Roundoff,
    roundoff,
    roundoff_over,
)

from cpd.study.replay import Mismatch, Replay, replay

__all__ = [
    "DEFAULT_CHUNK",
    "DRAWS",
    "Choice",
    "Contributions",
    "Cost",
    "Layers",
    "Measurement",
    "Mismatch",
    "PerRank",
    "Recommendation",
    "ReduceSpec",
    "Replay",
    "Roundoff",
    "Source",
    "StallWarning",
    "check_recommended",
    "choose",
    "cost",
    "recommend",
    "recommend_over",
    "replay",
    "roundoff",
    "roundoff_over",
    "transfer_time",
]
