# SPDX-License-Identifier: Apache-2.0
"""Hardware: rules of matrix units, test vectors, test benches, and gate counts."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cpd import Accumulator, Format, _AccumulatorLike, _FormatLike, _ScaledLike

def probe(
    function: Callable[..., Any],
    a: _FormatLike,
    b: _FormatLike | None = None,
    c: _FormatLike | None = "fp32",
    *,
    k: int = 64,
    seed: int = 0,
    matmul: bool = False,
) -> Probed:
    """Finds the rule by which a function adds products."""

class Probed:
    """The rule that `probe` found, and how sure it is."""

    a: Format
    b: Format
    c: Format | None
    k: int
    order: str
    accumulator: Accumulator | None
    rule: str
    unsure: tuple[str, ...]
    presets: tuple[str, ...]
    notes: tuple[str, ...]
    verified: int
    asked: int

    def row(self) -> dict[str, Any]:
        """Returns the findings as plain data."""

class Command:
    """A command that computes dot products, as a function for `probe`."""

    def __init__(
        self,
        arguments: Sequence[str],
        a: _FormatLike,
        b: _FormatLike | None = None,
        c: _FormatLike | None = "fp32",
        *,
        result: _FormatLike = "fp32",
        timeout: float = 60.0,
    ) -> None: ...

def replay(
    path: Any,
    accumulator: _AccumulatorLike | None = None,
    *,
    operands: str | None = None,
    output: str | None = None,
    adds_c: bool | None = None,
    mutations: bool = False,
) -> list[Replay]:
    """Compares a file's dot products with the results of an accumulator."""

class Replay:
    """The replay of one set of a file's dot products."""

    name: str
    accumulator: Accumulator
    adds_c: bool
    matches: int
    total: int
    first: tuple[tuple[int, float, float], ...]
    mutations: dict[str, int]

def gates(
    a: _FormatLike | _ScaledLike,
    accumulator: _AccumulatorLike = "fp32",
    b: _FormatLike | _ScaledLike | None = None,
) -> Gates:
    """Estimates the gates of a multiply-accumulate."""

class Gates:
    """The gates of each part of a unit for one multiply-accumulate."""

    multiplier: float
    aligner: float
    adder: float
    normalizer: float
    exponent: float
    scales: float

    @property
    def total(self) -> float:
        """The gates of all parts."""

    def json(self) -> dict[str, Any]:
        """Returns the parts and the total as plain data."""

def make_vectors(
    operation: str,
    formats: _FormatLike | Sequence[_FormatLike] = (),
    result: _FormatLike | None = None,
    *,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    random_bits: int = 24,
    variant: str = "A",
    tininess: str = "after",
    nan_signals: bool = False,
    accumulator: _AccumulatorLike | None = None,
    length: int | None = None,
    exhaustive: bool = False,
    directed: bool = False,
    random: int = 0,
    seed: int = 0,
) -> Vectors:
    """Returns inputs, results and exception flags of an operation, from oracle and kernels."""

class Vectors:
    """Inputs and results of one operation."""

    fields: tuple[tuple[Any, ...], ...]

    @property
    def head(self) -> dict[str, Any]:
        """The operation, the formats and the options, as files hold them."""

    @property
    def planned(self) -> int | None:
        """The number of lines, where it is known."""

    def batches(self) -> Iterator[dict[str, Any]]:
        """Yields arrays of inputs and results by field."""

    def name(self, kind: str) -> str:
        """Returns the usual name of a file of a kind."""

    def write(self, path: Any, kind: str | None = None) -> Path:
        """Writes a file and returns its path."""

    def size(self, kind: str) -> tuple[int, int]:
        """Returns the lines and bytes of a file of a kind."""

def check_vectors(path: Any, kind: str | None = None) -> VectorCheck:
    """Compares the lines of a file with the library's results."""

class VectorCheck:
    """The result of checking a file of vectors."""

    lines: int
    wrong: int
    other_nans: int
    wrong_in: Counter[str]
    shown: list[str]
    coverage: Counter[str]
    quiet_nan_fma: Counter[str]

    def rule_of_quiet_nans(self) -> str:
        """Returns what the file's results say of fma(0, Inf, NaN)."""

def write_testbench(
    vectors: Any,
    directory: str | Path,
    rtl: Sequence[str | Path] = (),
    module: str | None = None,
    ports: Ports | None = None,
) -> Path:
    """Writes a self-checking SystemVerilog test bench for vectors."""

class Ports:
    """The ports and the timing of a module under test."""

    clock: str | None
    latency: int
    valid_in: str | None
    valid_out: str | None
    any_nan: bool
    signals: tuple[str, ...]
    flags: bool
    ready_in: str | None
    ready_out: str | None
    reset: str | None
    reset_level: int
    reset_cycles: int
    interval: int
    gaps: int | None
    names: Mapping[str, str]

    @property
    def controls(self) -> dict[str, str | None]:
        """The control ports by role."""

    @property
    def percent(self) -> int:
        """The percentage of cycles without an input."""

    def port(self, name: str) -> str:
        """Returns the port of a field."""
