# SPDX-License-Identifier: Apache-2.0
"""`Ports`: the user's description of a module's ports. Also reads ports from a header."""

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
"""The default percentage of cycles without a transfer (`Ports.gaps`), for a module with a ready
signal."""
_MOST_GAPS = 90


@dataclass(frozen=True)
class Ports:
    """The ports of a module under test, besides the fields of a line (test vector).

    Each argument is the name of a port or an option. Without `clock` the module is combinational.
    With `clock`, the inputs of a line are applied in one cycle. The result is read after `latency`
    rising edges, or at a rising edge at which `valid_out` (and `ready_out`) is 1.

    Invalid values and names raise ValueError or TypeError.

    Attributes:
        clock: the port of the clock; registers change at its rising edge. Default None: no clock.
        latency: the number of rising edges from a line to its result, for a module without
            `valid_out`; default 1.
        valid_in: an input port that is 1 while a line is applied. While it is 0, the other inputs
            have the values of another line. Default None: no such port.
        valid_out: an output port that is 1 with each result. Results must come in the order of the
            lines. Default None: no such port.
        any_nan: whether any NaN is accepted if a NaN is expected; default False.
        signals: the inner signals of the vectors that your module has as ports; `("all",)` means
            all signals; default (): no signals. With any signal, the module also needs a port
            for the signal `special`, if the vectors have it. This port is added.
        flags: whether the module has the port `flags`; default True.
        ready_in: an output port that is 1 when the module accepts a line. A line is applied until
            it is accepted. Needs `valid_in`. Default None: no such port.
        ready_out: an input port that is 1 when the bench accepts a result. Needs `valid_out`.
            Default None: no such port.
        reset: the port of the reset. It is active for `reset_cycles` rising edges before the first
            line. Default None: no reset.
        reset_level: the value of `reset` that resets, 0 or 1; default 1.
        reset_cycles: the number of rising edges in reset; default 4. 0 means a pulse between two
            edges, for an asynchronous reset.
        interval: the least number of cycles from one line to the next; default 1. Use it for a
            module that needs several cycles for a line and has no `ready_in`.
        gaps: the approximate percentage, 0…90, of cycles in which the bench holds a line back (with
            `valid_in`), and of cycles in which `ready_out` is 0. Gaps come in bursts. Default 25
            with `ready_in` or `ready_out`, else 0.
        names: a dict from a field to its port, for ports with another name than their field;
            default None: empty.
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
        """Raises ValueError if an argument needs a module's port whose name is not given."""
        arguments = {name for name, value in vars(self).items() if value != _DEFAULTS.get(name)}
        for name in CLOCKED:
            if name in arguments and self.clock is None:
                raise ValueError(f"{name} needs clock, the name of the module's clock port")
        for name, needed in NEEDS.items():
            if name in arguments and not arguments & set(needed):
                raise ValueError(f"{name} needs {' or '.join(needed)}")

    @property
    def controls(self) -> dict[str, str | None]:
        """A dict from a role, such as `clock`, to the port's name; None: no such port."""
        return {name: getattr(self, name) for name in _CONTROLS}

    @property
    def percent(self) -> int:
        """The percentage of cycles without a transfer: `gaps`, or its default if `gaps` is None."""
        if self.gaps is not None:
            return self.gaps
        return _GAPS if self.ready_in is not None or self.ready_out is not None else 0

    def port(self, name: str) -> str:
        """Returns the name of the port for a field.

        Args:
            name: the field's name.

        Returns:
            The name of the port.
        """
        return self.names.get(name, name)


_CONTROLS = ("clock", "reset", "valid_in", "ready_in", "valid_out", "ready_out")
CLOCKED = (
    *("latency", "valid_in", "valid_out", "ready_in", "ready_out", "reset", "reset_level"),
    *("reset_cycles", "interval", "gaps"),
)
"""The arguments that need a clock."""
NEEDS = {
    "ready_in": ("valid_in",),
    "ready_out": ("valid_out",),
    "reset_level": ("reset",),
    "reset_cycles": ("reset",),
    "gaps": ("valid_in", "ready_out"),
}
"""Maps an argument of `Ports` to the arguments that it needs: at least one must also be given."""
_DEFAULTS = {
    name: field.default for name, field in Ports.__dataclass_fields__.items() if name != "names"
}


_COMMENTS = re.compile(r"//[^\n]*|/\*.*?\*/|\(\*.*?\*\)", re.S)
_CONDITION = re.compile(r"`(ifdef|ifndef|elsif|else|endif)\b[^\n]*")
_DIRECTION = re.compile(r"\s*(input|output|inout)\b")
_NAME = re.compile(r"([A-Za-z_][\w$]*)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", re.S)


def header_ports(sources: Iterable[Path], module: str) -> dict[str, str] | None:
    """Reads the ports of a module from its header in the sources.

    Returns a dict from a port's name to `input`, `output` or `inout` (empty if the header omits the
    direction). Returns None if no readable source has the module, or if its header has macros.
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
    """Splits each parenthesized list of a module's header (parameters, ports) at its commas.

    Commas within inner brackets do not split.
    """
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
