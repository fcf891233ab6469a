# SPDX-License-Identifier: Apache-2.0
"""Defines `Tracker`, which measures each step of a training and writes the numbers to a tool."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import nn

from cpd.nn.coverage import coverage_of
from cpd.nn.observed_rows import scalars_of
from cpd.nn.observers import WhatIf, observe
from cpd.numeric.checked import checked
from cpd.numeric.numbers import at_least, integer
from cpd.parallel.traffic import StepTraffic
from cpd.track.writers import writer_of

Reducer: TypeAlias = Any
"""An object that reduces gradients and has `traffic`: the state of a DDP hook, a
`cpd.VirtualNodes`, or a reduce-scatter of FSDP."""


@checked
class Tracker:
    """Measures a training and writes the numbers at each call of `step`.

    The numbers are, by tag:

    - `coverage/share` and `coverage/RECIPE`: the shares of the multiply-accumulates that ran
      emulated, in total and by recipe. Written once, after the first step of a converted model.
    - `LAYER/ROLE/…`: ranges of values, and the losses of precision (underflow, SQNR, …) under the
      layer's own recipe and the recipes of `what_if`, as `cpd.observe` measures them. Written for
      every `every`th call of the model.
    - `reduce/bytes` and `reduce/seconds`: the bytes and seconds of the step's all-reduce on this
      rank. For virtual nodes also the shares `reduce/LAYER/underflowed` and `reduce/LAYER/zeros`.

    The attribute `watch` is the result of `cpd.observe`, with its rows and its plot; None with
    `every=0`. A tracker is a context manager: leaving the context ends the observation.

    Args:
        model: the model whose calls are observed. It may be converted or not, and wrapped in DDP or
            not.
        writer: an object with `write(scalars, step)`, such as a `Writer`; TensorBoard's
            `SummaryWriter`; a run of Weights & Biases; an accelerate `Accelerator`; a logger of
            Lightning; or a list of these. Default None: `step` only returns the numbers.
        every: the model is observed in every `every`th call in its present mode (training or
            evaluation); default 100. 0: never.
        what_if: recipes, their names or texts, or a dict of recipes by name, as in `cpd.observe`.
            The rounding errors of these recipes are measured, too. Default: no recipes.
        reducer: the state of `cpd.ddp_hook`, a `cpd.VirtualNodes`, or the reduce-scatters that
            `cpd.fsdp_hook` returns (a dict; the traffic of all its reduce-scatters in a step is
            added). Default None: no traffic is reported.

    Raises:
        ValueError: for arguments that `cpd.observe` refuses with a ValueError.
        TypeError: for arguments of another type, and for an invalid writer or reducer.

    >>> import cpd, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    >>> _ = cpd.convert(model, "mxfp8")
    >>> with Tracker(model, every=1, what_if=["nvfp4"]) as track:
    ...     model(torch.randn(32, 8)).square().mean().backward()
    ...     found = track.step()
    >>> found["coverage/share"], found["0/activation/own/sqnr"] > found["0/activation/nvfp4/sqnr"]
    (1.0, True)
    """

    def __init__(
        self,
        model: nn.Module,
        writer: Any = None,
        *,
        every: int = 100,
        what_if: WhatIf = (),
        reducer: Reducer | Mapping[str, Reducer] | None = None,
    ) -> None:
        every = at_least(0, "every", every)
        is_ddp = isinstance(model, nn.parallel.DistributedDataParallel)
        self._model: Any = model.module if is_ddp else model
        self._writer = None if writer is None else writer_of(writer)
        self._reducers = _reducers(reducer)
        self.watch = observe(model, every, what_if) if every else None
        self._seen = 0
        self._covered = False
        self._next_step = 0

    def step(self, step: int | None = None) -> dict[str, float]:
        """Ends a step: writes its measurements to the tools, and returns them.

        Call this method once for each step of the optimizer, after the backward pass.

        Args:
            step: the number of the step; default None: 0 in the first call, then one more in each
                call.

        Returns:
            A dict that maps the tag of each measurement to its number.

        Raises:
            TypeError: if `step` is not an int.
        """
        step = self._next_step if step is None else integer("step", step)
        self._next_step = step + 1
        scalars = {**self._coverage(), **self._observed(), **self._reduced()}
        if scalars and self._writer is not None:
            self._writer.write(scalars, step)
        return scalars

    def remove(self) -> None:
        """Ends the observation and removes its hooks from the model."""
        if self.watch is not None:
            self.watch.remove()

    def __enter__(self) -> Tracker:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def _coverage(self) -> dict[str, float]:
        counted = None if self._covered else coverage_of(self._model)
        if counted is None:
            return {}
        self._covered = True
        shares = {f"coverage/{name}": share for name, share in counted.by_recipe.items()}
        return {"coverage/share": counted.share, **shares}

    def _observed(self) -> dict[str, float]:
        """Returns the numbers that `cpd.observe` has measured since the last call of this method.

        If several calls of the model were measured, only the last call counts.
        """
        if self.watch is None:
            return {}
        rows = self.watch.rows
        new, self._seen = rows[self._seen :], len(rows)
        return scalars_of([row for row in new if row.step == new[-1].step])

    def _reduced(self) -> dict[str, float]:
        traffic = [reducer.traffic for reducer in self._reducers]
        ended: list[StepTraffic] = [step for step in traffic if step is not None]
        if not ended:
            return {}
        scalars = {"reduce/seconds": sum(step.seconds for step in ended)}
        sent = [step.bytes_sent for step in ended if step.bytes_sent is not None]
        if len(sent) == len(ended):
            scalars["reduce/bytes"] = float(sum(sent))
        for reducer in self._reducers:
            for layer, report in getattr(reducer, "report", {}).items():
                scalars[f"reduce/{layer}/zeros"] = report.zeros_share
                scalars[f"reduce/{layer}/underflowed"] = report.underflowed / max(report.values, 1)
        return scalars


def _reducers(source: Any) -> list[Reducer]:
    """Returns the reducers as a list; raises TypeError if one does not report its traffic."""
    if source is None:
        return []
    reducers: Iterable[Any] = source.values() if isinstance(source, Mapping) else [source]
    reducers = list(reducers)
    for reducer in reducers:
        if not hasattr(reducer, "traffic"):
            raise TypeError(
                "reducer must be the state of cpd.ddp_hook, a cpd.VirtualNodes, or what "
                f"cpd.fsdp_hook returns, got {type(reducer).__name__}"
            )
    return reducers
