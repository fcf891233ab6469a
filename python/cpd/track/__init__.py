# SPDX-License-Identifier: Apache-2.0
"""Reports measurements of an emulated training to tools such as TensorBoard.

The measurements of a step are the coverage of emulation, ranges of values, rounding errors of
recipes, and the bytes and seconds of the all-reduce. Supported tools are TensorBoard, Weights &
Biases, accelerate, Lightning and Hugging Face's Trainer. `Tracker` measures a training and writes
the numbers. `hugging_face` and `lightning` are callbacks that make a `Tracker`. Each tool is
imported at its first use.
"""

from cpd._lazy import attach
from cpd.track.hugging_face_callback import hugging_face
from cpd.track.lightning_callback import lightning
from cpd.track.tracker import Tracker
from cpd.track.writers import Writer

__all__ = ["Tracker", "Writer", "hugging_face", "lightning"]

attach(__name__)
