# SPDX-License-Identifier: Apache-2.0
"""Where people watch their trainings: a step's coverage, ranges, losses by recipes, and what the
all-reduce took, to TensorBoard, Weights & Biases, accelerate, Lightning and Hugging Face's Trainer.

`Tracker` measures and writes; `hugging_face` and `lightning` are callbacks that make one. Nothing
of theirs is imported before it is used.
"""

from cpd.track.hugging_face import hugging_face
from cpd.track.lightning import lightning
from cpd.track.tracker import Tracker
from cpd.track.writers import Writer, writer_of

__all__ = ["Tracker", "Writer", "hugging_face", "lightning", "writer_of"]
