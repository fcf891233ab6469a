# SPDX-License-Identifier: Apache-2.0
"""Tracks trainings of Lightning's Trainer by a callback: `lightning`."""

from __future__ import annotations

from typing import Any

from torch import nn

from cpd.nn.observers import WhatIf
from cpd.numeric.checked import checked
from cpd.track.tracker import Tracker


@checked
def lightning(
    module: str = "", *, every: int = 100, what_if: WhatIf = (), reducer: Any = None
) -> Any:
    """Returns a callback for `lightning.Trainer(callbacks=[…])` that tracks its training.

    While the trainer trains, a `Tracker` measures the model, and the numbers are written to the
    trainer's loggers.

    Args:
        module: the name, in the LightningModule, of the module that `training_step` calls. Default:
            the only child of the LightningModule.
        every: the model is observed in every `every`th call, as in `Tracker`; default 100. 0:
            never.
        what_if: further recipes whose rounding errors are measured, as in `Tracker`; default: no
            further recipes.
        reducer: the reducer whose traffic is reported, as in `Tracker`; default None.

    Returns:
        The callback. Its `tracker` is None outside of a training. When the training begins, the
        callback raises ValueError if the LightningModule has no module of that name. Without a
        name, it raises ValueError unless the LightningModule has exactly one child.

    Raises:
        ImportError: if lightning is not installed.
    """
    from lightning.pytorch import Callback

    class Tracking(Callback):  # type: ignore[misc]
        """Runs a `Tracker` during a training, and writes its numbers to the trainer's loggers."""

        tracker: Tracker | None = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            model = _called(pl_module, module)
            loggers = list(trainer.loggers)
            self.tracker = Tracker(
                model, loggers or None, every=every, what_if=what_if, reducer=reducer
            )

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *more: Any) -> None:
            if self.tracker is not None:
                self.tracker.step(trainer.global_step)

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            if self.tracker is not None:
                self.tracker.remove()
                self.tracker = None

    return Tracking()


def _called(whole: nn.Module, name: str) -> nn.Module:
    children: dict[str, nn.Module] = dict(whole.named_children())
    if not name and len(children) == 1:
        return next(iter(children.values()))
    modules: dict[str, nn.Module] = dict(whole.named_modules())
    if not name or name not in modules:
        there = ", ".join(children) or "none"
        raise ValueError(
            f"module must name the module that training_step calls, of {there}, got {name!r}"
        )
    return modules[name]
