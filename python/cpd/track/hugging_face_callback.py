# SPDX-License-Identifier: Apache-2.0
"""A callback of Hugging Face's Trainer: `hugging_face`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cpd.nn.observers import WhatIf
from cpd.track.tracker import Tracker


def hugging_face(
    trainer: Any, *, every: int = 100, what_if: WhatIf = (), reducer: Any = None
) -> Any:
    """Adds a callback to a `transformers.Trainer`, and returns it: while the trainer trains, a
    `Tracker` of these arguments measures its model, and the numbers go where `report_to` says, and
    into `trainer.state.log_history`, with "cpd/" before their tags. The callback's `tracker` is
    None outside of a training.

    Raises ImportError where transformers is not installed, TypeError for what is no trainer.
    """
    from transformers import Trainer, TrainerCallback

    if not isinstance(trainer, Trainer):
        raise TypeError(f"trainer must be a transformers.Trainer, got {type(trainer).__name__}")

    class Callback(TrainerCallback):  # type: ignore[misc]
        """Measures by a `Tracker`, and logs by the trainer."""

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
    """Writes to a trainer's reports and its history, and not to its console, which would print
    hundreds of numbers."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        from transformers import PrinterCallback, ProgressCallback

        trainer = self._trainer
        logs = {f"cpd/{tag}": value for tag, value in scalars.items()}
        trainer.state.log_history.append({**logs, "step": step})
        for callback in trainer.callback_handler.callbacks:
            if not isinstance(callback, (PrinterCallback, ProgressCallback)):
                more = {"model": trainer.model, "logs": logs}
                callback.on_log(trainer.args, trainer.state, trainer.control, **more)
