# SPDX-License-Identifier: Apache-2.0
"""`Machine`: the network, GPUs and price of a cluster, from which costs are modeled."""

from __future__ import annotations

import functools
import math
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from cpd.numeric.checked import checked
from cpd.numeric.names import checked_name, nearest
from cpd.numeric.shown import shown

_FILE = Path(__file__).with_name("machines.toml")
_DEFAULTS: dict[str, Any] = {
    "shared": 0.0,
    "gpus": 1,
    "port": 0.0,
    "speed": None,
    "tflops": None,
    "dollars": 0.0,
    "codec_gbps": None,
    "summary": "",
    "sources": {},
}
_NUMBERS = ("alpha", "beta", "alpha_between", "beta_between", *list(_DEFAULTS)[:-2])
_POSITIVE = ("beta", "beta_between", "speed", "tflops", "codec_gbps")
_UNITS = dict.fromkeys(("alpha", "alpha_between"), " of seconds") | dict.fromkeys(
    ("beta", "beta_between", "shared", "port"), " of bytes a second"
)
_OTHER_WORDS = {"latency": "alpha", "bandwidth": "beta"}
_TABLES = {
    "within": {"alpha": "alpha", "bandwidth": "beta", "shared": "shared", "port": "port"},
    "between": {
        "alpha": "alpha_between",
        "bandwidth": "beta_between",
        "port": "port",
        "shared": "",
    },
}
"""Maps the tables and keys in machine files of version 0.7 to the present names of the keys; "" for
a key that is ignored."""


class Round(NamedTuple):
    """Steps of an all-reduce with equal messages.

    Attributes:
        steps: the number of steps.
        bytes: the bytes of the longest message in each step; an upper bound if the bytes of `cost`
            are an upper bound.
        across: the largest number of messages that one host sends to other hosts in a step, or
            receives from other hosts.
        within: the largest number of messages in a step between GPUs of one host.
    """

    steps: int
    bytes: float
    across: int
    within: int


@checked
@dataclass(frozen=True, init=False)
class Machine:
    """A cluster of equal hosts with GPUs. Each GPU is one rank: rank r is in host r // gpus.

    Args:
        machine: the name of a machine (`Machine.named()`), the path of a TOML file, or a text such
            as `"alpha=1e-5 beta=1e9"`. A text may begin with a name or a path, and then replace
            some of its values: `"ec2-p2 dollars=10"`. A TOML file has the keys below at its top
            level, or in one table. Default None: the keywords define the machine.
        alpha: the latency of a message within a host, in seconds, at least 0.
        beta: the bandwidth of a GPU's link within a host, in bytes a second in each direction,
            above 0.
        shared: the bandwidth, in bytes a second, of a resource that all messages within a host
            share, such as the host's memory. Default 0: there is no such resource.
        gpus: the number of GPUs in a host; default 1.
        alpha_between: the latency of a message between hosts, in seconds; default None: `alpha`.
        beta_between: the bandwidth of a host's link to other hosts, in bytes a second in each
            direction; default None: `beta`.
        port: the bandwidth of a single GPU to other hosts, in bytes a second in each direction, if
            it is less than `beta_between`. Default 0: one GPU can use all of `beta_between`.
        speed: the speed of a GPU, relative to a K80; default None: unknown.
        tflops: the binary32 TFLOP/s of a GPU, from its data sheet; default None: unknown.
        dollars: the price of a host for an hour; default 0: unknown.
        codec_gbps: the GB (10^9 bytes) of binary32 values that a GPU encodes in a second, and the
            GB that it decodes in a second; default None: unknown.

    A keyword replaces the value in the text. All keywords are attributes. Further attributes are
    `name`, `summary` (a description of the machine) and `sources` (a dict from a keyword to the
    source of its value).

    Raises:
        ValueError: for an unknown name or key (the text suggests the nearest known name), for an
            invalid file or text, and for a number out of range.
        TypeError: for an argument of another type.
        OSError: if the file cannot be read.

    >>> Machine("ec2-p2").gpus
    16
    >>> Machine("alpha=1e-5 beta=1e9 gpus=4", beta_between=1.25e8).beta_between
    125000000.0
    >>> Machine("ec2p2")
    Traceback (most recent call last):
    ...
    ValueError: no machine 'ec2p2'; did you mean ec2-p2?
    """

    name: str
    alpha: float
    beta: float
    shared: float
    gpus: int
    alpha_between: float
    beta_between: float
    port: float
    speed: float | None
    tflops: float | None
    dollars: float
    codec_gbps: float | None
    summary: str
    sources: Mapping[str, str] = field(hash=False)

    def __init__(
        self,
        machine: str | Path | None = None,
        /,
        *,
        alpha: float | None = None,
        beta: float | None = None,
        shared: float | None = None,
        gpus: int | None = None,
        alpha_between: float | None = None,
        beta_between: float | None = None,
        port: float | None = None,
        speed: float | None = None,
        tflops: float | None = None,
        dollars: float | None = None,
        codec_gbps: float | None = None,
    ) -> None:
        arguments = locals()
        numbers = {name: arguments[name] for name in _NUMBERS if arguments[name] is not None}
        base = {} if machine is None else _read(machine)
        if machine is None:
            base["name"] = " ".join(f"{name}={value}" for name, value in numbers.items())
        self._set(_replaced(base, numbers))

    def _set(self, values: dict[str, Any]) -> None:
        missing = [key for key in ("alpha", "beta") if key not in values]
        if missing:
            raise ValueError(
                f"a machine needs alpha and beta, {shown(values['name'])} has no {missing[0]}"
            )
        numbers = {key: _number(key, values[key]) for key in _NUMBERS if key in values}
        between = {"alpha_between": numbers["alpha"], "beta_between": numbers["beta"]}
        words = {key: values[key] for key in ("name", "summary", "sources") if key in values}
        for key, value in (_DEFAULTS | between | numbers | words).items():
            object.__setattr__(self, key, value)

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "within" in state:  # a pickle of version 0.7, in which links were objects
            links = {key: vars(state[key]) for key in _TABLES}
            state = _flat({key: v for key, v in state.items() if v is not None} | links)
        self._set({key: value for key, value in state.items() if value is not None})

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the machines that CPD knows by name.

        Returns:
            A dict from each name to a mapping with `summary`, a description of the machine, and
            `source`, the sources of its numbers.

        >>> Machine.named()["dgx-1-mpi"]["summary"]
        "the same machine with MPI through the host's memory"
        """
        return {
            name: {
                "summary": data["summary"],
                "source": "; ".join(f"{key}: {text}" for key, text in data["sources"].items()),
            }
            for name, data in _named().items()
        }

    def hosts(self, world: int) -> int:
        """Returns the number of hosts that `world` ranks need.

        Args:
            world: the number of ranks.

        Returns:
            The number of hosts, rounded up.
        """
        return -(-world // self.gpus)

    def hourly(self, world: int) -> float:
        """Returns the price of a number of ranks for an hour.

        If all ranks are in one host, only the used GPUs are paid for. Otherwise whole hosts are
        paid for.

        Args:
            world: the number of ranks.

        Returns:
            The price in dollars; 0 if the machine's price is not known.
        """
        if world <= self.gpus:
            return self.dollars * world / self.gpus
        return self.dollars * self.hosts(world)


class Link:
    """A placeholder for a class of version 0.7, without which its pickles could not be read."""


def as_machine(machine: Machine | str) -> Machine:
    """Converts a text to a `Machine`. Returns a `Machine` unchanged."""
    return machine if isinstance(machine, Machine) else Machine(machine)


def seconds(machine: Machine, rounds: Iterable[Round]) -> float:
    """Returns the modeled seconds of the steps of an all-reduce, one after the other.

    A step takes as long as its slowest message, within a host or between hosts. The messages
    between hosts share a host's link, and each message also passes its GPU's port. `rounds` must be
    computed for `machine.gpus` ranks in a host.

    >>> two = Machine(alpha=0, beta=1e10, beta_between=1e9, gpus=2)
    >>> seconds(two, [Round(1, 1e9, across=2, within=0)])  # each GPU sends 1 GB to the other host
    2.0
    """
    totals: dict[tuple[float, float], tuple[int, float]] = {}
    for steps, size, across, within in rounds:
        longest = max(_links(machine, across, within), key=lambda link: link[0] + size * link[1])
        counts = totals.get(longest, (0, 0))
        totals[longest] = counts[0] + steps, counts[1] + steps * size
    return sum(steps * alpha + size * rate for (alpha, rate), (steps, size) in totals.items())


def _links(machine: Machine, across: int, within: int) -> list[tuple[float, float]]:
    """Returns the links that the messages of a step use: within a host, between hosts, or both.

    A link is a pair: the seconds of a message, and the seconds of each byte.
    """
    links = []
    if within:
        shared = within / machine.shared if machine.shared else 0.0
        links.append((machine.alpha, 1 / machine.beta + shared))
    if across:
        port = 1 / machine.port if machine.port else 0.0
        links.append((machine.alpha_between, max(across / machine.beta_between, port)))
    return links or [(0.0, 0.0)]


@functools.cache
def _named() -> dict[str, dict[str, Any]]:
    """Returns the values of the machines in `machines.toml`, by name."""
    with _FILE.open("rb") as file:
        return {name: {"name": name} | data for name, data in tomllib.load(file).items()}


def _read(machine: str | Path) -> dict[str, Any]:
    """Returns the values of a machine that is given as a name, a file or a text."""
    if isinstance(machine, Path):
        return _of_file(machine)
    try:
        words = shlex.split(machine) if "=" in machine else [machine]
    except ValueError as error:
        raise ValueError(f"{shown(machine)} is not a machine: {error}") from None
    options = [word for word in words if "=" in word]
    head = " ".join(word for word in words if "=" not in word)
    if not options or head:
        values = _of_file(Path(head)) if head.endswith(".toml") else _of_name(head)
    else:
        values = {"name": machine}
    return _replaced(values, _of_words(machine, options)) if options else values


def _replaced(values: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns `values` updated by `new`, without the sources of the values that `new` replaces."""
    sources = {key: text for key, text in values.get("sources", {}).items() if key not in new}
    return values | new | {"sources": sources}


def _of_name(name: str) -> dict[str, Any]:
    known = _named()
    if name not in known:
        raise ValueError(f"no machine {shown(name)}{nearest(name, known)}")
    return known[name]


def _of_words(text: str, words: Iterable[str]) -> dict[str, Any]:
    values: dict[str, Any] = {"name": text}
    for word in words:
        key, _, value = word.partition("=")
        if key in _OTHER_WORDS:
            name = _OTHER_WORDS[key]
            raise ValueError(
                f"{shown(key)} is no number of a machine; did you mean {name}, "
                f"a number{_UNITS[name]}?"
            )
        checked_name("a machine's key", key, _NUMBERS)
        if key in values:
            raise ValueError(f"{key} is given twice in {shown(text)}")
        try:
            values[key] = int(value) if key == "gpus" else float(value)
        except ValueError:
            values[key] = value
            _number(key, value)
    return values


def _of_file(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        try:
            data = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no TOML: {error}") from None
    name = path.stem
    if len(data) == 1 and isinstance(next(iter(data.values())), dict) and "within" not in data:
        ((name, data),) = data.items()
    try:
        values = {"name": name} | _flat(data)
        Machine.__new__(Machine)._set(values)  # so that errors name the file
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None
    return values


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the content of a machine file or pickle to a dict with the keys of this version.

    In files of version 0.7, some values are within tables (nested dicts).
    """
    values: dict[str, Any] = {}
    for key, value in data.items():
        names = _TABLES.get(key)
        if names is None:
            values[key] = value
            continue
        if not isinstance(value, Mapping):
            raise ValueError(f"{key} must be a table of {', '.join(names)}, got {shown(value)}")
        for subkey, number in value.items():
            checked_name(f"a key of {key}", subkey, names)
            if names[subkey] and not (subkey == "port" and key == "within" and "between" in data):
                values[names[subkey]] = number
    keys = (*_NUMBERS, "name", "summary", "sources")
    for key in values:
        checked_name("a machine's key", key, keys)
    return values


def _number(key: str, value: Any) -> float:
    kinds, noun = (int, "an integer") if key == "gpus" else ((int, float), "a number")
    noun += _UNITS.get(key, "")
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise ValueError(f"{key} must be {noun}, got {shown(value)}")
    if key == "gpus":
        if value < 1:
            raise ValueError(f"gpus must be at least 1, got {shown(value)}")
        return value
    if not math.isfinite(value) or value < 0 or (key in _POSITIVE and value == 0):
        least = "above 0" if key in _POSITIVE else "at least 0"
        raise ValueError(f"{key} must be finite and {least}, got {shown(value)}")
    return float(value)
