# SPDX-License-Identifier: Apache-2.0
"""Measures a training step by step, and writes what it finds: `Tracker`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from torch import nn

from cpd.nn.coverage import coverage_of
from cpd.nn.observed_rows import scalars_of
from cpd.nn.observers import WhatIf, observe
from cpd.numeric.checked import checked
from cpd.numeric.numbers import integer
from cpd.parallel.traffic import StepTraffic
from cpd.track.writers import writer_of

Reducer: TypeAlias = Any
"""What reduces gradients and has `traffic`: a hook's state, `cpd.VirtualNodes`, FSDP's."""


@checked
class Tracker:
    """Writes, at each `step`, what there is to say of a training:

    - `coverage/share` and `coverage/RECIPE`: how much of the products ran emulated, once, after the
      first step of a converted model;
    - `LAYER/ROLE/…`: ranges, and what the layer's own recipe and those of `what_if` lose, of every
      `every`th call of the model, as `cpd.observe` measures them;
    - `reduce/bytes` and `reduce/seconds`: what the all-reduce of the step took on this rank; of
      virtual nodes also `reduce/LAYER/underflowed` and `reduce/LAYER/zeros`, shares.

    Args:
        model: whose calls are observed; converted or not, in DDP or not.
        writer: what the numbers are written to: anything with `write(scalars, step)`, such as a
            `Writer`; TensorBoard's `SummaryWriter`; a run of Weights & Biases; an accelerate
            `Accelerator`; a logger of Lightning; or several in a list. None: `step` only returns
            the numbers.
        every: how often the model is observed, in its calls in the mode that it has now; 0: never.
        what_if: recipes, their names or texts, or a dict of them, as `cpd.observe` takes.
        reducer: the state of `cpd.ddp_hook`, a `cpd.VirtualNodes`, or the reduce-scatters that
            `cpd.fsdp.set_reduce_scatter` returns (a dict; a step's are added up).

    Attributes:
        watch: the observation, with its rows and its plot; None with `every=0`.

    A context manager that ends the observation. Raises ValueError or TypeError as `cpd.observe`,
    and for what is not a writer or a reducer.

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
        every = integer("every", every)
        if every < 0:
            raise ValueError(f"every must be at least 0, got {every}")
        is_ddp = isinstance(model, nn.parallel.DistributedDataParallel)
        self._model: Any = model.module if is_ddp else model
        self._writer = None if writer is None else writer_of(writer)
        self._reducers = _reducers(reducer)
        self.watch = observe(model, every, what_if) if every else None
        self._seen = 0
        self._covered = False
        self._next_step = 0

    def step(self, number: int | None = None) -> dict[str, float]:
        """Ends a step: writes its numbers, and returns them. To be called once for each step of the
        optimizer, after the backward pass; `number`: of the step, default 0, 1, …."""
        step = self._next_step if number is None else integer("number", number)
        self._next_step = step + 1
        scalars = {**self._coverage(), **self._observed(), **self._reduced()}
        if scalars and self._writer is not None:
            self._writer.write(scalars, step)
        return scalars

    def remove(self) -> None:
        """Ends the observation: the model is as it was."""
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
        """Of the rows since the last step: where the model was observed in several calls, the last
        of them."""
        if self.watch is None:
            return {}
        rows = self.watch.rows
        new, self._seen = rows[self._seen :], len(rows)
        return scalars_of([row for row in new if row.step == new[-1].step])

    def _reduced(self) -> dict[str, float]:
        traffic = [one.traffic for one in self._reducers]
        ended: list[StepTraffic] = [one for one in traffic if one is not None]
        if not ended:
            return {}
        found = {"reduce/seconds": sum(one.seconds for one in ended)}
        sent = [one.bytes_sent for one in ended if one.bytes_sent is not None]
        if len(sent) == len(ended):
            found["reduce/bytes"] = float(sum(sent))
        for one in self._reducers:
            for layer, report in getattr(one, "report", {}).items():
                found[f"reduce/{layer}/zeros"] = report.zeros_share
                found[f"reduce/{layer}/underflowed"] = report.underflowed / max(report.values, 1)
        return found


def _reducers(given: Any) -> list[Reducer]:
    """Those that are given. Raises TypeError for what does not report its traffic."""
    if given is None:
        return []
    found: Iterable[Any] = given.values() if isinstance(given, Mapping) else [given]
    found = list(found)
    for one in found:
        if not hasattr(one, "traffic"):
            raise TypeError(
                "reducer must be the state of cpd.ddp_hook, a cpd.VirtualNodes, or what "
                f"cpd.fsdp.set_reduce_scatter returns, got {type(one).__name__}"
            )
    return found
