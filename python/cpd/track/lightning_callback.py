# SPDX-License-Identifier: Apache-2.0
"""A callback of Lightning's Trainer: `lightning`."""

from __future__ import annotations

from typing import Any

from torch import nn

from cpd.nn.observers import WhatIf
from cpd.track.tracker import Tracker


def lightning(
    module: str = "", *, every: int = 100, what_if: WhatIf = (), reducer: Any = None
) -> Any:
    """A callback for `lightning.Trainer(callbacks=[…])`: while it trains, a `Tracker` of these
    arguments measures the model, and the numbers go to the trainer's loggers.

    `module`: the name, in the LightningModule, of the module whose calls are the model's: what
    `training_step` calls. Default: the only child that it has. The callback's `tracker` is None
    outside of a training.

    Raises ImportError where lightning is not installed; as the training begins ValueError for a
    module that is not there, or is not the only one.
    """
    from lightning.pytorch import Callback

    class Tracking(Callback):  # type: ignore[misc]
        """Measures by a `Tracker`, and logs by the trainer's loggers."""

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
