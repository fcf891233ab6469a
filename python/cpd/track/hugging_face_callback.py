# SPDX-License-Identifier: Apache-2.0
"""Tracks trainings of Hugging Face's Trainer by a callback: `hugging_face`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.nn.observers import WhatIf
from cpd.track.tracker import Tracker


def hugging_face(
    trainer: Any, *, every: int = 100, what_if: WhatIf = (), reducer: Any = None
) -> Any:
    """Adds a callback to a `transformers.Trainer` that tracks its training.

    While the trainer trains, a `Tracker` measures its model. The numbers are written to the tools
    that the trainer's `report_to` names, and into `trainer.state.log_history`. Their tags begin
    with "cpd/".

    Args:
        trainer: the `transformers.Trainer`.
        every: the model is observed in every `every`th call, as in `Tracker`; default 100. 0:
            never.
        what_if: further recipes whose rounding errors are measured, as in `Tracker`; default: no
            further recipes.
        reducer: the reducer whose traffic is reported, as in `Tracker`; default None.

    Returns:
        The callback. Its `tracker` is None outside of a training.

    Raises:
        ImportError: if transformers is not installed.
        TypeError: if `trainer` is not a `transformers.Trainer`.
    """
    from transformers import Trainer, TrainerCallback

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")

    class Callback(TrainerCallback):  # type: ignore[misc]
        """Runs a `Tracker` during a training, and writes its numbers through the trainer."""

        tracker: Tracker | None = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            self.tracker = Tracker(
                more["model"], _Logged(trainer), every=every, what_if=what_if, reducer=reducer
            )

        def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self.tracker is not None:
                self.tracker.step(state.global_step)

        def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
            if self.tracker is not None:
                self.tracker.remove()
                self.tracker = None

    callback = Callback()
    trainer.add_callback(callback)
    return callback


class _Logged:
    """Writes numbers to a trainer's reporting tools and its history.

    Does not write to the console, on which the trainer would print hundreds of numbers.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes the numbers of a step."""
        from transformers import PrinterCallback, ProgressCallback

        trainer = self._trainer
        logs = {f"cpd/{tag}": value for tag, value in scalars.items()}
        trainer.state.log_history.append({**logs, "step": step})
        for callback in trainer.callback_handler.callbacks:
            if not isinstance(callback, (PrinterCallback, ProgressCallback)):
                more = {"model": trainer.model, "logs": logs}
                callback.on_log(trainer.args, trainer.state, trainer.control, **more)
