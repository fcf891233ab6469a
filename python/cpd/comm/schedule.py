# SPDX-License-Identifier: Apache-2.0
"""Schedules: which layers are reduced by which spec at which step.

They define hybrid precision and exempt layers.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any, Literal, TypeAlias, overload

import numpy as np

from cpd.comm.communicator import Communicator, ReduceReport, Traffic
from cpd.comm.layers import Layer, Layers, PerRank, layer_list
from cpd.comm.spec import Reduce, ReduceLike, as_reduce, check_world
from cpd.comm.virtual import LayerReport, simulate_all_reduce
from cpd.compress.states import States
from cpd.numeric.checked import checked
from cpd.numeric.formats import flag
from cpd.numeric.numbers import integer, is_torch
from cpd.numeric.shown import shown


@functools.partial(checked, own=("exempt",))
@dataclass(frozen=True, init=False, repr=False)
class Schedule:
    """A `Reduce` for every layer at every step.

    A layer's number in random streams is its index among all the names, whatever is exempt and
    however the layers are divided into calls. The `step` of the specs is not used: each call has
    its own. Immutable, hashable, picklable.

    Args:
        spec: the spec of all layers but the exempt ones, from step `first_steps` on.
        exempt: names of layers that are reduced by `exempt_spec` at all steps, or patterns of such
            names: `*`, `?` and `[…]` as in a shell, case-sensitive (`"*.bias"`, `"output.*"`).
            Default none.
        exempt_spec: the spec of exempt layers. Default fp32, summed in fp32 to nearest-even, with
            `spec`'s order, exchange, group size and average.
        first_steps: the number of steps, from step 0 on, that are reduced by `first_spec` instead
            of `spec`; default 0. The APS paper's hybrid precision (Table 7) is `first_steps=30 *
            steps_per_epoch`.
        first_spec: the spec of the first steps; default as for `exempt_spec`.
        min_size: layers of fewer values are exempt, too; default 0. QSGD keeps layers below 10,000
            values in full precision; TernGrad a network's last layer, which `exempt` names.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    >>> schedule = Schedule(Reduce("e4m3", aps=True), exempt=["*.bias"], first_steps=100)
    >>> names = ["hidden.weight", "hidden.bias"]
    >>> [str(schedule.spec_of(name, step=100).format) for name in names]
    ['e4m3', 'fp32']
    >>> str(schedule.spec_of("hidden.weight", step=99).format)
    'fp32'
    """

    spec: Reduce
    exempt: tuple[str, ...]
    exempt_spec: Reduce
    first_steps: int
    first_spec: Reduce
    min_size: int = 0

    def __init__(
        self,
        spec: ReduceLike,
        *,
        exempt: Sequence[str] = (),
        exempt_spec: ReduceLike | None = None,
        first_steps: int = 0,
        first_spec: ReduceLike | None = None,
        min_size: int = 0,
    ) -> None:
        spec = _spec("spec", spec)
        values = {
            "spec": spec,
            "exempt": _patterns(exempt),
            "exempt_spec": _in_fp32(spec)
            if exempt_spec is None
            else _spec("exempt_spec", exempt_spec),
            "first_steps": _count("first_steps", first_steps),
            "first_spec": _in_fp32(spec) if first_spec is None else _spec("first_spec", first_spec),
            "min_size": _count("min_size", min_size),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        shown = [one.name for one in dataclasses.fields(self)]
        shown = shown if self.min_size else shown[:-1]
        return f"Schedule({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def is_exempt(self, name: str, size: int | None = None) -> bool:
        """Returns whether a layer is exempt.

        It is if a pattern of `exempt` matches its name, or it has fewer values than `min_size`.

        Args:
            name: the layer's name.
            size: the layer's number of values; default None: not known.

        Returns:
            True if it is exempt.

        Raises:
            ValueError: if that depends on a `size` of None.
        """
        if any(fnmatchcase(name, pattern) for pattern in self.exempt):
            return True
        if self.min_size and size is None:
            raise ValueError(f"min_size={self.min_size} needs the size of layer {name!r}")
        return size is not None and size < self.min_size

    def spec_of(self, name: str, step: int, size: int | None = None) -> Reduce:
        """Returns the spec that reduces a layer at a step.

        Args:
            name: the layer's name.
            step: the step, from 0.
            size: the layer's number of values; default None: not known.

        Returns:
            The spec, with this step.

        Raises:
            ValueError: if `min_size` is set and `size` is None.
        """
        return self._spec_at(self.is_exempt(name, size), step)

    def check_names(self, names: Sequence[str]) -> None:
        """Checks that every pattern of `exempt` matches a layer.

        Args:
            names: the names of all layers.

        Raises:
            ValueError: for a pattern that matches none.
        """
        for pattern in self.exempt:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"exempt {pattern!r} matches no layer; the layers are {', '.join(names)}"
                )

    def check_world(self, world: int) -> None:
        """Checks that no spec's groups are larger than the number of ranks.

        Args:
            world: the number of ranks.

        Raises:
            ValueError: for a larger group.
        """
        for name in ("spec", "exempt_spec", "first_spec"):
            try:
                check_world(getattr(self, name), world)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    @property
    def exempts(self) -> bool:
        """True if any layer may be exempt."""
        return bool(self.exempt) or self.min_size > 0

    def parts(
        self, names: Sequence[str], step: int, sizes: Sequence[int] | None = None
    ) -> list[tuple[Reduce, list[int]]]:
        """Returns the calls of one step: each distinct spec with the numbers of its layers.

        Calls are in the order of their first layers; numbers ascend.

        Args:
            names: the names of all layers.
            step: the step, from 0.
            sizes: the number of values of each layer, for `min_size`; default None: not known.

        Returns:
            Pairs of a spec and the numbers of its layers.

        Raises:
            ValueError: as `check_names`, and if sizes are needed.
        """
        self.check_names(names)
        if sizes is not None:
            _check_count("sizes", sizes, names)
        specs = [self._spec_at(exempt, step) for exempt in (False, True)]
        found: dict[Reduce, list[int]] = {}
        for number, name in enumerate(names):
            exempt = self.is_exempt(name, None if sizes is None else sizes[number])
            found.setdefault(specs[exempt], []).append(number)
        return list(found.items())

    @overload
    def simulate_all_reduce(
        self,
        names: Sequence[str],
        per_rank: PerRank,
        *,
        step: int,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[Any]: ...
    @overload
    def simulate_all_reduce(
        self,
        names: Sequence[str],
        per_rank: PerRank,
        *,
        step: int,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[Any], list[LayerReport]]: ...
    def simulate_all_reduce(
        self,
        names: Sequence[str],
        per_rank: PerRank,
        *,
        step: int,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], list[LayerReport]]:
        """Reduces layers at a step over virtual ranks, with one call for each spec.

        Args:
            names: the names of the layers, the same on all ranks.
            per_rank: the contributions of each rank, as in `cpd.simulate_all_reduce`; a rank that
                is a function is called again for each spec.
            step: the step, from 0.
            states: what codecs keep of the layers, as in `cpd.simulate_all_reduce`; default None.
            report: whether a report of each layer is returned too; default False.

        Returns:
            The layers of the sum; with `report=True` these and a list of `LayerReport`.

        Raises:
            ValueError: as `check_names` and `cpd.simulate_all_reduce`.
            TypeError: for an argument of another type.

        >>> ranks = [[np.float32([0.3]), np.float32([0.3])]] * 2
        >>> schedule = Schedule(Reduce("e4m3"), exempt=["b"])
        >>> [sum.tolist() for sum in schedule.simulate_all_reduce(["a", "b"], ranks, step=0)]
        [[0.625], [0.6000000238418579]]
        """
        sums: list[Any] = [None] * len(names)
        reports: list[Any] = [None] * len(names)
        sizes = _sizes(_first_of(per_rank)) if self.min_size else None
        for spec, numbers in self.parts(names, step, sizes):
            ranks = [partial(_chosen, rank, names, numbers) for rank in per_rank]
            part, told = simulate_all_reduce(
                ranks, spec, numbers=numbers, states=states, report=True
            )
            for number, sum_, layer in zip(numbers, part, told, strict=True):
                sums[number], reports[number] = sum_, layer
        return (sums, reports) if report else sums

    @overload
    def all_reduce(
        self,
        comm: Communicator,
        names: Sequence[str],
        layers: Layers,
        *,
        step: int,
        out: Layers | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[Any]: ...
    @overload
    def all_reduce(
        self,
        comm: Communicator,
        names: Sequence[str],
        layers: Layers,
        *,
        step: int,
        out: Layers | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[Any], ReduceReport]: ...
    def all_reduce(
        self,
        comm: Communicator,
        names: Sequence[str],
        layers: Layers,
        *,
        step: int,
        out: Layers | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Reduces layers at a step over real ranks, with one call for each spec.

        Args:
            comm: the ranks.
            names: the names of the layers, the same in the same order on every rank.
            layers: this rank's layers, as in `Communicator.all_reduce`.
            step: the step, from 0.
            out: layers that receive the result, as in `Communicator.all_reduce`; default None: new
                ones.
            states: what codecs keep of this rank's layers, as in `Communicator.all_reduce`; default
                None.
            report: whether a `ReduceReport` is returned too; default False. Its traffic is that of
                all calls together.

        Returns:
            The layers of the sum; with `report=True` these and a `ReduceReport`.

        Raises:
            ValueError: before anything is sent, if the numbers of names and of `layers` or `out`
                differ. Also for a spec with groups larger than the number of ranks, and as
                `Communicator.all_reduce`.
            TypeError: for an argument of another type.
        """
        sums: list[Any] = [None] * len(names)
        reports: list[Any] = [None] * len(names)
        traffic: list[Any] = []
        layers = layer_list("layers", layers)
        _check_count("layers", layers, names)
        if out is not None:
            out = layer_list("out", out)
            _check_count("layers in out", out, names)
        self.check_world(comm.size)
        for spec, numbers in self.parts(names, step, _sizes(layers) if self.min_size else None):
            chosen = {number: layers[number] for number in numbers}
            into = None if out is None else {number: out[number] for number in numbers}
            part, told = all_reduce_numbered(
                comm, chosen, spec, out=into, states=states, report=report
            )
            for number in numbers:
                sums[number] = part[number]
                if told is not None:
                    reports[number] = told.layers[number]
            if told is not None:
                traffic.append(told.traffic)
        if not report:
            return sums
        return sums, ReduceReport(reports, _total(traffic))

    def _spec_at(self, exempt: bool, step: int) -> Reduce:
        later = self.first_spec if step < self.first_steps else self.spec
        return (self.exempt_spec if exempt else later).replace(step=step)


ScheduleLike: TypeAlias = "Schedule | ReduceLike"
"""A `Schedule`, or the all-reduce of every tensor at every step."""


def as_schedule(spec: ScheduleLike) -> Schedule:
    """Returns the schedule itself, or the one that always reduces every layer by `spec`."""
    return spec if isinstance(spec, Schedule) else Schedule(spec)


def specs_in_use(schedule: Schedule) -> list[Reduce]:
    """The distinct specs by which some layer may be reduced at some step."""
    specs = [schedule.spec]
    specs += [schedule.exempt_spec] if schedule.exempts else []
    specs += [schedule.first_spec] if schedule.first_steps else []
    return list(dict.fromkeys(specs))


def averaging(schedule: Schedule, divide: str | None = None) -> Schedule:
    """Returns the schedule of averages.

    `divide`: where they divide; None: as each spec defines.
    """
    how = {} if divide is None else {"divide": divide}
    specs = {
        name: getattr(schedule, name).replace(average=True, **how)
        for name in ("spec", "exempt_spec", "first_spec")
    }
    return dataclasses.replace(schedule, **specs)


def divided(schedule: Schedule, average: Any, divide: str | None) -> Schedule:
    """Returns the schedule that a trainer's arguments `average` and `divide` make of one.

    Raises ValueError for `divide` without `average`, which would have no effect.
    """
    if flag("average", average):
        return averaging(schedule, divide)
    if divide is not None:
        raise ValueError(
            f"divide={shown(divide)} needs average=True; with average=False the spec says whether "
            "and where it divides"
        )
    return schedule


def all_reduce_numbered(
    comm: Communicator,
    layers: Mapping[int, Any],
    spec: Reduce,
    *,
    out: Mapping[int, Any] | None = None,
    states: States | None = None,
    report: bool = False,
) -> tuple[list[Any], ReduceReport | None]:
    """Calls `comm.all_reduce` with layer `number` under that number in random streams.

    In the returned lists, layers without values have the numbers between.
    """
    numbers = sorted(layers)
    given = [layers[number] for number in numbers]
    into = None if out is None else [out[number] for number in numbers]
    kept: dict[str, Any] = {} if states is None else {"states": states}
    if not report:
        sums = comm.all_reduce(given, spec, out=into, numbers=numbers, **kept)
        return numbered(dict(zip(numbers, sums, strict=True))), None
    sums, told = comm.all_reduce(given, spec, out=into, numbers=numbers, report=True, **kept)
    reports = dict(zip(numbers, told.layers, strict=True))
    between = LayerReport(0, 0, 0, 0)
    padded = [reports.get(number, between) for number in range(max(numbers, default=-1) + 1)]
    return numbered(dict(zip(numbers, sums, strict=True))), ReduceReport(padded, told.traffic)


def numbered(layers: Mapping[int, Any]) -> list[Any]:
    """Returns a list with each layer at its number, and layers without values elsewhere."""
    if not layers:
        return []
    empty = _empty_like(next(iter(layers.values())))
    return [layers.get(number, empty) for number in range(max(layers) + 1)]


def _empty_like(layer: Layer) -> Layer:
    if is_torch(layer):
        return layer.new_empty(0)
    return np.empty(0, np.float32)


def _chosen(rank: Any, names: Sequence[str], numbers: list[int]) -> list[Any]:
    layers = list(rank() if callable(rank) else rank)
    _check_count("layers", layers, names)
    return [layers[number] for number in numbers]


def _first_of(per_rank: PerRank) -> Sequence[Any]:
    """The layers of rank 0."""
    rank: Any = per_rank[0]
    return layer_list("rank 0", rank() if callable(rank) else rank)


def _sizes(layers: Sequence[Any]) -> list[int]:
    return [math.prod(layer.shape) for layer in layers]


def _check_count(what: str, layers: Sequence[Any], names: Sequence[str]) -> None:
    if len(layers) != len(names):
        raise ValueError(f"there are {len(names)} names but {len(layers)} {what}")


def _total(traffic: list[Any]) -> Any:
    """The sum of Traffic values, field by field."""
    return sum(traffic, start=Traffic(0, 0, 0, 0, 0))


def _in_fp32(spec: Reduce) -> Reduce:
    return Reduce(
        "fp32",
        order=spec.order,
        exchange=spec.exchange,
        group_size=spec.group_size,
        average=spec.average,
        divide=spec.divide,
    )


def _spec(name: str, spec: ReduceLike) -> Reduce:
    try:
        return as_reduce(spec)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


def _patterns(exempt: Any) -> tuple[str, ...]:
    if isinstance(exempt, str) or not isinstance(exempt, Sequence):
        raise TypeError(f"exempt must be a list of names or patterns, got {shown(exempt)}")
    for pattern in exempt:
        if not isinstance(pattern, str):
            raise TypeError(f"exempt must hold names or patterns, got {type(pattern).__name__}")
    return tuple(exempt)


def _count(name: str, value: Any) -> int:
    number = integer(name, value)
    if number < 0:
        raise ValueError(f"{name} must be at least 0, got {number}")
    return number
