# SPDX-License-Identifier: Apache-2.0
"""Machines as data: links within a host and between hosts, GPUs of a host, dollars an hour."""

from __future__ import annotations

import dataclasses
import functools
import math
import shlex
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cpd.numeric.checked import checked
from cpd.numeric.names import did_you_mean
from cpd.numeric.shown import shown
from cpd.study.costs import Round

_FILE = Path(__file__).with_name("machines.toml")


@checked
@dataclass(frozen=True)
class Link:
    """A level of a machine's network.

    Raises ValueError for numbers out of range.

    >>> Link(1e-5, 1e9).seconds(1e6)  # 10 us and 1 MB
    0.00101
    """

    alpha: float
    """Seconds of a message."""
    bandwidth: float
    """Bytes a second, each way."""
    shared: float = 0.0
    """Bytes a second at which all messages of a host pass, in addition, what its GPUs share, such
    as its memory; 0: there is no such thing."""
    port: float = 0.0
    """Bytes a second, each way, of one GPU between hosts, where this is less than the host's
    `bandwidth`; 0: one GPU may use all of it."""

    def __post_init__(self) -> None:
        _check("alpha", self.alpha)
        _check("bandwidth", self.bandwidth, above=True)
        _check("shared", self.shared)
        _check("port", self.port)

    def seconds(self, bytes: float, messages: int = 1) -> float:
        """Of a message of so many bytes, while the host has `messages` of them within it."""
        share = messages / self.shared if self.shared else 0.0
        return self.alpha + bytes * (1 / self.bandwidth + share)

    def seconds_across(self, bytes: float, messages: int) -> float:
        """Of so many messages of so many bytes, each from or to another GPU of one host: all pass
        its link, each its GPU's port.

        >>> Link(0, 4e11, port=5e10).seconds_across(1e9, 1)
        0.02
        """
        port = 1 / self.port if self.port else 0.0
        return self.alpha + bytes * max(messages / self.bandwidth, port)


@checked
@dataclass(frozen=True)
class Machine:
    """Hosts with GPUs, one rank on each: rank r is in host r // gpus.

    Raises ValueError for numbers out of range.

    >>> two = Machine("two hosts", Link(0, 1e10), Link(0, 1e9), gpus=2)
    >>> two.seconds([Round(1, 1e9, across=2, within=0)])  # each GPU sends 1 GB to the other host
    2.0
    """

    name: str
    within: Link
    """The link between the GPUs of a host. The bandwidth is that of each GPU's own link."""
    between: Link
    """The link between hosts: the bandwidth of a whole host, and as `port` that of one GPU."""
    gpus: int = 1
    """The number of GPUs of a host."""
    speed: float | None = None
    """The speed of a GPU relative to a K80; None: not known."""
    tflops: float | None = None
    """The listed binary32 rate of a GPU."""
    dollars: float = 0.0
    """The price of a host for an hour; 0: not known."""
    codec_gbps: float | None = None
    """GB of binary32 values that a GPU encodes, and decodes, in a second; None: not known."""
    summary: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Where each number is from."""

    def __post_init__(self) -> None:
        if self.gpus < 1:
            raise ValueError(f"gpus must be at least 1, got {shown(self.gpus)}")
        for name in ("speed", "tflops", "codec_gbps"):
            if getattr(self, name) is not None:
                _check(name, getattr(self, name), above=True)
        _check("dollars", self.dollars)

    def seconds(self, rounds: Iterable[Round]) -> float:
        """Of the steps of an all-reduce, one after the other: each as long as its longest message,
        within a host or between hosts, where the messages of a host share its link and each
        passes its GPU's port."""
        total = 0.0
        for steps, bytes, across, within in rounds:
            inside = self.within.seconds(bytes, within) if within else 0.0
            outside = self.between.seconds_across(bytes, across) if across else 0.0
            total += steps * max(inside, outside)
        return total

    def hosts(self, ranks: int) -> int:
        """How many hosts so many ranks take."""
        return -(-ranks // self.gpus)

    def hourly(self, ranks: int) -> float:
        """Dollars an hour of so many ranks: of whole hosts where there are several, of its GPUs of
        one host."""
        if ranks <= self.gpus:
            return self.dollars * ranks / self.gpus
        return self.dollars * self.hosts(ranks)


def _check(name: str, value: float, above: bool = False) -> None:
    if not math.isfinite(value) or value < 0 or (above and value == 0):
        least = "above 0" if above else "at least 0"
        raise ValueError(f"{name} must be finite and {least}, got {shown(value)}")


@functools.cache
def machines() -> Mapping[str, Machine]:
    """The machines of `machines.toml`, by name."""
    with _FILE.open("rb") as file:
        return {name: _machine(name, data) for name, data in tomllib.load(file).items()}


@checked
def machine(text: str | Path) -> Machine:
    """The machine of this name; of a TOML file with one such table, or its keys at the top; or of
    a text of `alpha=SECONDS beta=BYTES_A_SECOND` and, where hosts have several GPUs, `gpus`,
    `alpha_between`, `beta_between`, `port` (of one GPU between hosts), `shared`, `speed`,
    `tflops`, `dollars` and `codec_gbps`.

    Raises ValueError for a name that is not known, naming the nearest, and for wrong files and
    texts; OSError for a file that cannot be read.

    >>> machine("ec2-p2").gpus
    16
    >>> machine("alpha=1e-5 beta=1e9 gpus=4 beta_between=1.25e8").between.bandwidth
    125000000.0
    >>> machine("ec2p2")
    Traceback (most recent call last):
    ...
    ValueError: no machine 'ec2p2'; did you mean ec2-p2?
    """
    known = machines()
    if isinstance(text, str) and text in known:
        return known[text]
    if isinstance(text, Path) or text.endswith(".toml"):
        return _of_file(Path(text))
    if "=" in text:
        return _of_text(text)
    raise ValueError(f"no machine {shown(text)}{nearest(text, known)}")


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error: the name that was meant, or all names."""
    names = list(known)
    return f"; {did_you_mean(name, names) or 'there are ' + ', '.join(names)}"


_LINKS = ("alpha", "beta", "alpha_between", "beta_between", "port", "shared")
_KEYS = (*_LINKS, "gpus", "speed", "tflops", "dollars", "codec_gbps")


def _of_text(text: str) -> Machine:
    given: dict[str, float] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is no machine: {error}") from None
    for word in words:
        key, _, value = word.partition("=")
        if key not in _KEYS:
            raise ValueError(f"{shown(key)} is no number of a machine{nearest(key, _KEYS)}")
        if key in given:
            raise ValueError(f"{key} is given twice in {shown(text)}")
        try:
            given[key] = int(value) if key == "gpus" else float(value)
        except ValueError:
            kind = "an integer" if key == "gpus" else "a number"
            raise ValueError(f"{key} must be {kind}, got {shown(value)}") from None
    missing = [key for key in ("alpha", "beta") if key not in given]
    if missing:
        raise ValueError(f"a machine needs alpha and beta, {shown(text)} has no {missing[0]}")
    return Machine(
        text,
        Link(given["alpha"], given["beta"], given.get("shared", 0.0)),
        Link(
            given.get("alpha_between", given["alpha"]),
            given.get("beta_between", given["beta"]),
            port=given.get("port", 0.0),
        ),
        gpus=int(given.get("gpus", 1)),
        speed=given.get("speed"),
        tflops=given.get("tflops"),
        dollars=given.get("dollars", 0.0),
        codec_gbps=given.get("codec_gbps"),
    )


def _of_file(path: Path) -> Machine:
    with path.open("rb") as file:
        try:
            data = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}: no TOML: {error}") from None
    name = path.stem
    if len(data) == 1 and isinstance(next(iter(data.values())), dict) and "within" not in data:
        ((name, data),) = data.items()
    try:
        return _machine(name, data)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from None


def _machine(name: str, data: Mapping[str, Any]) -> Machine:
    values = dict(data)
    keys = [one.name for one in dataclasses.fields(Machine) if one.name != "name"]
    for key in values:
        if key not in keys:
            raise ValueError(f"{key} is no key of a machine{nearest(key, keys)}")
    if "within" not in values:
        raise ValueError("a machine needs the table 'within', with alpha and bandwidth")
    within = _link("within", values.pop("within"))
    between = _link("between", values.pop("between")) if "between" in values else within
    for key in ("speed", "tflops", "dollars", "codec_gbps"):
        if type(values.get(key)) is int:
            values[key] = float(values[key])
    return Machine(name, within, between, **values)


def _link(name: str, data: Any) -> Link:
    keys = [one.name for one in dataclasses.fields(Link)]
    if not isinstance(data, dict):
        raise ValueError(f"{name} must be a table of {', '.join(keys)}, got {shown(data)}")
    for key, value in data.items():
        if key not in keys:
            raise ValueError(f"{key} is no key of {name}{nearest(key, keys)}")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError(f"{name}.{key} must be a number, got {shown(value)}")
    for key in ("alpha", "bandwidth"):
        if key not in data:
            raise ValueError(f"{name} needs {key}")
    return Link(**{key: float(value) for key, value in data.items()})
