# SPDX-License-Identifier: Apache-2.0
"""Reports of emulation to the tools in which people watch trainings.

A step's coverage, ranges, losses by recipes, and the all-reduce's bytes and seconds go to
TensorBoard, Weights & Biases, accelerate, Lightning and Hugging Face's Trainer.

`Tracker` measures and writes; `hugging_face` and `lightning` are callbacks that make one. Each tool
is imported at its first use.
"""

from typing import TYPE_CHECKING, Any

from cpd._since import missing
from cpd.track.hugging_face_callback import hugging_face
from cpd.track.lightning_callback import lightning
from cpd.track.tracker import Tracker
from cpd.track.writers import Writer

__all__ = ["Tracker", "Writer", "hugging_face", "lightning"]


if not TYPE_CHECKING:  # a type checker knows all names, and no other

    def __getattr__(name: str) -> Any:
        raise missing("cpd.track", name)
