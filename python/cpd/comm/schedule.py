# SPDX-License-Identifier: Apache-2.0
"""`Schedule`: which all-reduce sums each tensor at each step.

A schedule defines hybrid precision (full precision in the first steps) and exempt tensors.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from cpd.comm.spec import Reduce, ReduceLike, as_reduce, check_world
from cpd.numeric.checked import checked
from cpd.numeric.formats import flag
from cpd.numeric.numbers import at_least
from cpd.numeric.shown import shown


@functools.partial(checked, own=("exempt",))
@dataclass(frozen=True, init=False, repr=False)
class Schedule:
    """A `Reduce` for every tensor at every step.

    `cpd.simulate_all_reduce` and `Communicator.all_reduce` accept a `Schedule` as their spec. Their
    argument `names=` then names the tensors. A tensor's index among all names selects its random
    numbers, whichever tensors are exempt. Immutable, hashable, picklable.

    Args:
        spec: the spec of all tensors that are not exempt, from step `first_steps` on: a `Reduce`,
            or an argument of its constructor, such as its text.
        exempt: names of tensors that are reduced by `exempt_spec` at all steps, or patterns of such
            names: `*`, `?` and `[…]` as in a shell, case-sensitive (`"*.bias"`, `"output.*"`).
            Default (): no names.
        exempt_spec: the spec of exempt tensors. Default None: contributions and sums in fp32,
            rounded to nearest-even, with the order, exchange, group size and average of `spec`.
        first_steps: the number of steps, from step 0 on, that are reduced by `first_spec` instead
            of `spec`; default 0. The APS paper's hybrid precision (Table 7) is `first_steps=30 *
            steps_per_epoch`.
        first_spec: the spec of the first steps; default None: the default of `exempt_spec`.
        min_size: tensors of fewer values are exempt, too; default 0. The QSGD paper keeps tensors
            of fewer than 10,000 values in full precision. The TernGrad paper keeps a network's last
            layer in full precision; `exempt` can name that layer.

    Raises:
        ValueError: for an invalid argument.
        TypeError: for an argument of another type.

    >>> schedule = Schedule("e4m3 aps", exempt=["*.bias"], first_steps=100)
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
        shown = [field.name for field in dataclasses.fields(self)]
        shown = shown if self.min_size else shown[:-1]
        return f"Schedule({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def _is_exempt(self, name: str, size: int | None = None) -> bool:
        """Returns whether a tensor is exempt. Raises ValueError if `size` is needed but None.

        A tensor is exempt if a pattern of `exempt` matches its name, or if it has fewer values than
        `min_size`.
        """
        if any(fnmatchcase(name, pattern) for pattern in self.exempt):
            return True
        if self.min_size and size is None:
            raise ValueError(f"min_size={self.min_size} needs the size of tensor {name!r}")
        return size is not None and size < self.min_size

    def spec_of(self, name: str, step: int, size: int | None = None) -> Reduce:
        """Returns the spec that reduces a tensor at a step.

        Args:
            name: the tensor's name.
            step: the step, from 0.
            size: the tensor's number of values, which `min_size` needs; default None: not known.

        Returns:
            The spec.

        Raises:
            ValueError: if `min_size` is set, `size` is None and no pattern of `exempt` matches.
        """
        return self._spec_at(self._is_exempt(name, size), step)

    def _check_names(self, names: Sequence[str]) -> None:
        """Raises ValueError for a pattern of `exempt` that matches no name."""
        for pattern in self.exempt:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise ValueError(
                    f"exempt {pattern!r} matches no tensor; the tensors are {', '.join(names)}"
                )

    def _check_world(self, world: int) -> None:
        """Raises ValueError if a spec's groups are larger than the number of ranks."""
        for name in ("spec", "exempt_spec", "first_spec"):
            try:
                check_world(getattr(self, name), world)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None

    @property
    def _exempts(self) -> bool:
        """True if any tensor may be exempt."""
        return bool(self.exempt) or self.min_size > 0

    def _parts(
        self, names: Sequence[str], step: int, sizes: Sequence[int] | None = None
    ) -> list[tuple[Reduce, list[int]]]:
        """Returns each distinct spec of one step with the indices of its tensors.

        Specs are in the order of their first tensors; indices ascend. `sizes` are the tensors'
        numbers of values. Raises ValueError if a pattern of `exempt` matches no name, or if the
        schedule has a `min_size` and `sizes` is None.
        """
        self._check_names(names)
        if sizes is not None:
            check_count("sizes", sizes, names)
        specs = [self._spec_at(exempt, step) for exempt in (False, True)]
        parts: dict[Reduce, list[int]] = {}
        for number, name in enumerate(names):
            exempt = self._is_exempt(name, None if sizes is None else sizes[number])
            parts.setdefault(specs[exempt], []).append(number)
        return list(parts.items())

    def _spec_at(self, exempt: bool, step: int) -> Reduce:
        later = self.first_spec if step < self.first_steps else self.spec
        return self.exempt_spec if exempt else later


ScheduleLike: TypeAlias = "Schedule | ReduceLike"
"""The definition of an all-reduce: a `Schedule`, or one spec for all tensors and steps."""


def as_schedule(spec: ScheduleLike) -> Schedule:
    """Returns `spec` unchanged if it is a `Schedule`.

    If `spec` is a `Reduce` or its text, returns a `Schedule` that reduces every tensor by `spec`.
    """
    return spec if isinstance(spec, Schedule) else Schedule(spec)


def specs_in_use(schedule: Schedule) -> list[Reduce]:
    """Returns the distinct specs by which some tensor may be reduced at some step."""
    specs = [schedule.spec]
    specs += [schedule.exempt_spec] if schedule._exempts else []
    specs += [schedule.first_spec] if schedule.first_steps else []
    return list(dict.fromkeys(specs))


def averaging(schedule: Schedule, divide: str | None = None) -> Schedule:
    """Returns a copy of a schedule in which every spec averages instead of sums.

    `divide` is the key of every spec that says when to divide by the number of ranks; None
    preserves each spec's own.
    """
    options = {} if divide is None else {"divide": divide}
    specs = {
        name: getattr(schedule, name).replace(average=True, **options)
        for name in ("spec", "exempt_spec", "first_spec")
    }
    return dataclasses.replace(schedule, **specs)


def divided(schedule: Schedule, average: Any, divide: str | None) -> Schedule:
    """Returns a schedule to which a trainer's arguments `average` and `divide` are applied.

    With `average` false, returns the schedule unchanged; raises ValueError if `divide` is given,
    because `divide` would then have no effect.
    """
    if flag("average", average):
        return averaging(schedule, divide)
    if divide is not None:
        raise ValueError(
            f"divide={shown(divide)} needs average=True; with average=False the spec says whether "
            "and where it divides"
        )
    return schedule


def tensors_by_spec(
    schedule: Schedule, names: Sequence[str] | None, sizes: Sequence[int] | None, step: int
) -> list[tuple[Reduce, list[int]]]:
    """Returns pairs: a spec, and the indices of the tensors that it reduces in one step.

    `sizes` has each tensor's number of values. It is needed if `names` is None, and if the schedule
    has `min_size`. Raises ValueError if the schedule has exempt names but `names` is None, or if
    `names` and `sizes` differ in length.
    """
    if names is None and schedule.exempt:
        raise ValueError("a Schedule with exempt tensors needs names=, the names of all tensors")
    if names is None:
        names = [str(index) for index in range(len(sizes or ()))]
    elif sizes is not None:
        check_count("tensors", sizes, names)
    return schedule._parts(names, step, sizes if schedule.min_size else None)


def check_count(what: str, tensors: Sequence[Any], names: Sequence[str]) -> None:
    """Raises ValueError unless the numbers of tensors and of names are equal."""
    if len(tensors) != len(names):
        raise ValueError(f"there are {len(names)} names but {len(tensors)} {what}")


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
    return at_least(0, name, value)
