# SPDX-License-Identifier: Apache-2.0
"""The ports of a module under test: the user's description, and the module's header."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cpd.hardware.vectors.systemverilog import check_identifier
from cpd.numeric.formats import flag
from cpd.numeric.numbers import integer
from cpd.numeric.shown import shown

_GAPS = 25
"""The default percentage of gaps of a module with a port of ready."""
_MOST_GAPS = 90


@dataclass(frozen=True)
class Ports:
    """The ports that a bench drives and reads in addition to a line's fields, by their names.

    Without `clock` the module is combinational. With `clock`, the inputs of a line are applied in
    one cycle. The line's result is read after `latency` rising edges, or at each rising edge at
    which `valid_out` (and `ready_out`) is 1.

    Invalid values and names raise ValueError or TypeError.

    Attributes:
        clock: the clock; registers change at its rising edge. Default None: no clock.
        latency: rising edges from a line to its result, for a module without `valid_out`; default
            1.
        valid_in: an input of the module, 1 with each line. While `valid_in` is 0, the inputs hold
            another line.
        valid_out: an output of the module, 1 with each result. Results come in the lines' order.
        any_nan: whether any NaN passes for an expected NaN; default False.
        signals: the inner signals that your module has as ports (`("all",)`: every one); default
            none. Signals of a block also need the port `special`, which is added.
        flags: whether the module has the port `flags`; default True.
        ready_in: an output of the module, 1 when it takes a line. A line is applied until the
            module takes it. Needs `valid_in`.
        ready_out: an input of the module, 1 when the bench takes a result. Needs `valid_out`.
        reset: the reset. Before the first line it is active for `reset_cycles` rising edges.
        reset_level: the value of `reset` that resets, 0 or 1; default 1.
        reset_cycles: rising edges in reset; default 4. 0 is a pulse between edges, for an
            asynchronous reset.
        interval: the least number of cycles from one line to the next, for a module that is busy
            for some cycles and has no `ready_in`; default 1.
        gaps: the approximate percentage, 0…90, of cycles in which the bench holds a line back (with
            `valid_in`), and of cycles in which `ready_out` is 0. Gaps come in bursts. Default 25
            with `ready_in` or `ready_out`, else 0.
        names: field → port, for ports that are not named as their field; default empty.
    """

    clock: str | None = None
    latency: int = 1
    valid_in: str | None = None
    valid_out: str | None = None
    any_nan: bool = False
    signals: tuple[str, ...] = ()
    flags: bool = True
    ready_in: str | None = None
    ready_out: str | None = None
    reset: str | None = None
    reset_level: int = 1
    reset_cycles: int = 4
    interval: int = 1
    gaps: int | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("latency", 1, 1 << 20),
            ("reset_level", 0, 1),
            ("reset_cycles", 0, 1 << 20),
            ("interval", 1, 1 << 20),
            ("gaps", 0, _MOST_GAPS),
        ):
            value = getattr(self, name)
            if value is None and name == "gaps":
                continue
            if not least <= integer(name, value) <= most:
                raise ValueError(f"{name} must be {least}…{most}, got {shown(value)}")
        flag("any_nan", self.any_nan)
        flag("flags", self.flags)
        if not isinstance(self.names, Mapping):
            raise TypeError(f"names must be a mapping, got {type(self.names).__name__}")
        controls = [name for name in self.controls.values() if name is not None]
        for name in (*controls, *self.signals, *self.names, *self.names.values()):
            if not isinstance(name, str):
                raise TypeError(f"a port's name must be a str, got {type(name).__name__}")
        for name in (*controls, *self.names.values()):
            check_identifier("a port's name", name)
        several = [*controls, *self.names.values()]
        if len(set(several)) < len(several):
            raise ValueError(f"ports must have different names, got {', '.join(several)}")
        self._check_needs()

    def _check_needs(self) -> None:
        """Raises ValueError for an argument without the port that it needs."""
        arguments = {name for name, value in vars(self).items() if value != _DEFAULTS.get(name)}
        for name in CLOCKED:
            if name in arguments and self.clock is None:
                raise ValueError(f"{name} needs clock, the name of the module's clock port")
        for name, needed in NEEDS.items():
            if name in arguments and not arguments & set(needed):
                raise ValueError(f"{name} needs {' or '.join(needed)}")

    @property
    def controls(self) -> dict[str, str | None]:
        """The names of the ports that are not fields, by their roles; None: no such port."""
        return {name: getattr(self, name) for name in _CONTROLS}

    @property
    def percent(self) -> int:
        """The percentage of gaps, the default if `gaps` is None."""
        if self.gaps is not None:
            return self.gaps
        return _GAPS if self.ready_in is not None or self.ready_out is not None else 0

    def port(self, name: str) -> str:
        """Returns the port of a field.

        Args:
            name: the field's name.

        Returns:
            The port's name.
        """
        return self.names.get(name, name)


_CONTROLS = ("clock", "reset", "valid_in", "ready_in", "valid_out", "ready_out")
CLOCKED = (
    *("latency", "valid_in", "valid_out", "ready_in", "ready_out", "reset", "reset_level"),
    *("reset_cycles", "interval", "gaps"),
)
"""Arguments that need a clock."""
NEEDS = {
    "ready_in": ("valid_in",),
    "ready_out": ("valid_out",),
    "reset_level": ("reset",),
    "reset_cycles": ("reset",),
    "gaps": ("valid_in", "ready_out"),
}
"""Arguments that need one of other arguments."""
_DEFAULTS = {
    name: field.default for name, field in Ports.__dataclass_fields__.items() if name != "names"
}


_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|\(\*.*?\*\)", re.S)
_CONDITION = re.compile(r"`(ifdef|ifndef|elsif|else|endif)\b[^\n]*")
_DIRECTION = re.compile(r"\s*(input|output|inout)\b")
_NAME = re.compile(r"([A-Za-z_][\w$]*)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", re.S)


def header_ports(sources: Iterable[Path], module: str) -> dict[str, str] | None:
    """Returns the ports of a module by its header.

    The ports are name → `input`, `output`, `inout`, or an empty text if the header omits the
    direction. None if no readable source has the module, or if its header has macros.
    """
    for source in sources:
        try:
            text = source.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        ports = _ports_of(text, module)
        if ports is not None:
            return ports
    return None


def _ports_of(text: str, module: str) -> dict[str, str] | None:
    text = _COMMENTS.sub(" ", text)
    begin = re.search(rf"\bmodule\s+(?:automatic\s+|static\s+)?{re.escape(module)}(?![\w$])", text)
    if begin is None:
        return None
    header = re.sub(r"\bimport\b[^;]*;", " ", text[begin.end() :])
    header = _CONDITION.sub(" ", header.partition(";")[0])
    if "`" in header:
        return None
    lists = _top_level(header.strip())
    if not lists:
        return None
    ports: dict[str, str] = {}
    direction = ""
    for part in lists[-1]:
        match = _DIRECTION.match(part)
        direction = match[1] if match else direction
        name = _NAME.search(part.strip())
        if name is None:
            return None if part.strip() else ports
        ports[name[1]] = direction
    return ports


def _top_level(header: str) -> list[list[str]]:
    """Returns the header's lists in parentheses, each split at its own commas."""
    lists: list[list[str]] = []
    depth = 0
    for character in header:
        if character in ")]}":
            depth -= 1
        if depth == 0 and character == "(":
            lists.append([""])
        elif depth == 1 and character == ",":
            lists[-1].append("")
        elif depth > 0:
            lists[-1][-1] += character
        if character in "([{":
            depth += 1
    return lists
