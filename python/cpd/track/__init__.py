# SPDX-License-Identifier: Apache-2.0
"""Where people watch their trainings: a step's coverage, ranges, losses by recipes, and what the
all-reduce took, to TensorBoard, Weights & Biases, accelerate, Lightning and Hugging Face's Trainer.

`Tracker` measures and writes; `hugging_face` and `lightning` are callbacks that make one. Nothing
of theirs is imported before it is used.
"""

from typing import Any

from cpd._since import missing
from cpd.track.hugging_face_callback import hugging_face
from cpd.track.lightning_callback import lightning
from cpd.track.tracker import Tracker
from cpd.track.writers import Writer

__all__ = ["Tracker", "Writer", "hugging_face", "lightning"]


def __getattr__(name: str) -> Any:
    raise missing("cpd.track", name)
