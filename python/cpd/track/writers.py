# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of a step to tools: `Writer`, and `writer_of`, which makes one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Writer(Protocol):
    """An object that writes the measurements of each training step, such as to a file or a tool."""

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        """Writes the measurements of one step.

        Args:
            scalars: a dict that maps the tag of each measurement to its number.
            step: the number of the step.
        """


def writer_of(given: Any) -> Writer:
    """Makes a writer for a tool that records trainings.

    Args:
        given: an object with `write(scalars, step)`; TensorBoard's `SummaryWriter`, or anything
            with `add_scalar(tag, value, step)`; a run of Weights & Biases (`wandb.init()`); an
            accelerate `Accelerator` whose trackers are initialized; a logger of Lightning; or a
            list of these.

    Returns:
        The writer.

    Raises:
        TypeError: for anything else.

    >>> class Printed:
    ...     def add_scalar(self, tag, value, step):
    ...         print(step, tag, value)
    >>> writer_of(Printed()).write({"reduce/bytes": 1516.0}, 3)
    3 reduce/bytes 1516.0
    """
    if isinstance(given, (list, tuple)):
        return _Several([writer_of(target) for target in given])
    for name, factory in _BY_METHOD.items():
        if all(callable(getattr(given, method, None)) for method in name.split()):
            writer: Writer = factory(given)
            return writer
    raise TypeError(
        "a writer must have write(scalars, step), or be a SummaryWriter, a run of wandb, an "
        f"Accelerator or a logger of Lightning, got {type(given).__name__}"
    )


class _Several:
    def __init__(self, writers: list[Writer]) -> None:
        self._writers = writers

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for writer in self._writers:
            writer.write(scalars, step)


class _OfTensorBoard:
    def __init__(self, writer: Any) -> None:
        self._writer = writer

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        for tag, value in scalars.items():
            self._writer.add_scalar(tag, value, step)


class _OfLightning:
    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self._logger.log_metrics(dict(scalars), step=step)


class _OfAccelerate:
    def __init__(self, accelerator: Any) -> None:
        self._accelerator = accelerator

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        self._accelerator.log(dict(scalars), step=step)


class _OfWandb:
    """Writes to a run of Weights & Biases, with `cpd/step` as the axis of steps.

    W&B's own step is not used, because it grows with each of the user's own calls of `log`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run
        run.define_metric("cpd/step")
        run.define_metric("cpd/*", step_metric="cpd/step")

    def write(self, scalars: Mapping[str, float], step: int) -> None:
        named = {f"cpd/{tag}": value for tag, value in scalars.items()}
        self._run.log({**named, "cpd/step": step})


_BY_METHOD: dict[str, Any] = {
    "define_metric log": _OfWandb,
    "init_trackers log": _OfAccelerate,
    "log_metrics": _OfLightning,
    "add_scalar": _OfTensorBoard,
    "write": lambda own: own,
}
"""Maps names of methods to a function. If an object has these methods, the function makes a writer
of the object."""
