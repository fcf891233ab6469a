# SPDX-License-Identifier: Apache-2.0
"""Reports of emulation to the tools in which people watch trainings.

A step's coverage, ranges, losses by recipes, and the all-reduce's bytes and seconds go to
TensorBoard, Weights & Biases, accelerate, Lightning and Hugging Face's Trainer.

`Tracker` measures and writes; `hugging_face` and `lightning` are callbacks that make one. Each tool
is imported at its first use.
"""

from cpd._lazy import attach
from cpd.track.hugging_face_callback import hugging_face
from cpd.track.lightning_callback import lightning
from cpd.track.tracker import Tracker
from cpd.track.writers import Writer

__all__ = ["Tracker", "Writer", "hugging_face", "lightning"]

attach(__name__)
