# SPDX-License-Identifier: Apache-2.0
"""The points of a sweep: `Cell`, one choice of format, scales, rounding and accumulator; `grid`,
all of them; `Losses`, the measurements of one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd import ops
from cpd.numeric.accumulator import Accumulator, BlockFma, accumulator
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, format, is_scaled
from cpd.numeric.options import Options
from cpd.numeric.scaled import Scaled, element_text, format_or_scaled, scaled
from cpd.numeric.shown import shown
from cpd.study.sweeps.patterns import texts

if TYPE_CHECKING:
    from cpd.nn.recipe import Recipe

SCALES = {
    "none": "",
    "tensor": "block=tensor scale=fp32",
    "row": "block=row scale=fp32",
    "mx": "32 scale=e8m0",
    "nv": "16 scale=e4m3fn tensor_scale=fp32",
}
"""Names of scales, and what follows the element format in the text of `cpd.scaled`."""


@checked
@dataclass(frozen=True)
class Cell:
    """One choice: both operands of each product are cast to `operand`, and products are summed in
    `accumulator`.

    >>> Cell("mxfp4", "fp32").element
    cpd.format('e2m1')
    """

    operand: str
    """The text of a format or a scaled format."""
    accumulator: str
    rounding: str = "nearest_even"
    """The cast's mode, as in `cpd.cast`; `stochastic:8` has 8 random bits, `stochastic` 24."""
    overflow: str = "saturate"
    """The cast's: `saturate` or `ieee`."""
    seed: int = 0
    """The seed of stochastic rounding."""

    @cached_property
    def format(self) -> Format | Scaled:
        return format_or_scaled(self.operand)

    @property
    def element(self) -> Format:
        """The format of the values, or of the elements of a scaled format."""
        return self.format.element if isinstance(self.format, Scaled) else self.format

    @property
    def total(self) -> str:
        """The accumulator in short: only the format of a sequential sum."""
        return self.accumulator.removesuffix(" sequential")

    @cached_property
    def sum(self) -> Accumulator:
        return Accumulator.parse(self.accumulator, seed=self.seed)

    @cached_property
    def options(self) -> Options:
        """How the cast rounds. Raises ValueError."""
        mode, colon, bits = self.rounding.partition(":")
        if not colon:
            return Options(mode, self.overflow, self.seed)
        if mode != "stochastic" or not (bits.isascii() and bits.isdigit()):
            raise ValueError(
                "rounding must be a mode, or stochastic:N with N random bits, got "
                f"{self.rounding!r}"
            )
        return Options(mode, self.overflow, self.seed, random_bits=int(bits))

    @property
    def cast(self) -> tuple[str, str, str, int]:
        """What determines the cast: cells with equal ones differ only in their accumulators."""
        return self.operand, self.rounding, self.overflow, self.seed

    def recipe(self, **others: Any) -> Recipe:
        """The `cpd.Recipe` of a model that computes in this cell: activations, weights and
        gradients in the format, all sums in the accumulator. `others`: more arguments of it."""
        from cpd.nn.recipe import Recipe
        from cpd.numeric.cast import CastSpec
        from cpd.numeric.scaled_cast import ScaledCast

        how = self.options._asdict()
        q = self.format
        spec: Any = ScaledCast(q, **how) if isinstance(q, Scaled) else CastSpec(q, **how)
        return Recipe(spec, sums=self.sum, **others)

    def json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rounding = "" if self.rounding == "nearest_even" else f" {self.rounding}"
        return f"{self.operand}{rounding}, summed in {self.total}"


def grid(
    formats: Any,
    accumulators: Any = "fp32",
    rounding: Any = "nearest_even",
    scales: Any = "none",
    *,
    bits: int | None = None,
    overflow: str = "saturate",
    seed: int = 0,
) -> list[Cell]:
    """Every combination, each once, formats slowest. A scaled format has its own scales and no
    others. `bits`: only element formats with that many bits.

    Raises ValueError or TypeError for an invalid format, accumulator, rounding or scale.

    >>> [cell.operand for cell in grid("e[2-3]m[2-3],mxfp8", scales="none,mx", bits=6)]
    ['e2m3', 'mxfp6-e2m3', 'e3m2', 'mxfp6-e3m2']
    """
    named = texts("formats", formats)
    wanted = [name for name in named if bits is None or _element(name).bits == bits]
    if not wanted:
        raise ValueError(f"no format of {', '.join(named)} has {bits} bits")
    operands = [text for name in wanted for text in _operands(name, texts("scales", scales))]
    sums = [_sum(text) for text in texts("accumulators", accumulators)]
    modes = texts("rounding", rounding)
    cells = [
        Cell(operand, total, mode, overflow, seed)
        for operand in operands
        for mode in modes
        for total in sums
    ]
    for cell in cells:
        cell.options.check()
    return list(dict.fromkeys(cells))


def fitting(cells: list[Cell]) -> tuple[list[Cell], list[str]]:
    """The cells whose accumulators can multiply their operands, and for each accumulator a text on
    the others: a matrix unit multiplies values of its own formats, and it and an integer
    accumulator allow no scales but a tensor's.

    Raises ValueError where no cell is left.
    """
    kept: list[Cell] = []
    left: dict[str, list[str]] = {}
    for cell in cells:
        if multiplies(cell.sum, cell.format):
            kept.append(cell)
        else:
            taken = f"{cell.total} takes {_taken(cell.sum.unit)}"
            left.setdefault(taken, []).append(cell.operand)
    told = [f"{taken}; not {', '.join(dict.fromkeys(names))}" for taken, names in left.items()]
    if not kept:
        raise ValueError("; ".join(told))
    return kept, told


def takes_elements(total: Accumulator) -> bool:
    """Whether an accumulator needs operands of a fixed range: it sums products of elements, and
    its result is multiplied by scales."""
    return total.unit is not None or total.fixed is not None


def multiplies(total: Accumulator, operand: Format | Scaled) -> bool:
    """Whether an accumulator can multiply such operands."""
    if isinstance(operand, Scaled):
        if not takes_elements(total):
            return True
        whole = operand.block == "tensor" and operand.tensor_scale is None
        return whole and multiplies(total, operand.element)
    unit = total.unit
    return unit is None or all(_within(operand, f) for f in (unit.a, unit.b))


def _within(narrow: Format, wide: Format) -> bool:
    """Whether a format holds all values of another."""
    if narrow == wide or narrow.bits > _LISTED:
        return narrow == wide
    values = narrow.values()
    return np.array_equal(ops.cast(values, wide), values)


def _taken(unit: BlockFma | None) -> str:
    formats = "any format" if unit is None else str(unit.a)
    if unit is not None and unit.a != unit.b:
        formats += f" and {unit.b}"
    return f"{formats}, at most with one scale a tensor"


_LISTED = 16
"""The most bits of formats whose values are compared one by one."""


def _operands(name: str, scales: Iterable[str]) -> Iterator[str]:
    """The canonical texts of a format with each of the scales."""
    if is_scaled(name):
        yield scaled(name).text
        return
    element = _element(name)
    for scale in scales:
        options = SCALES.get(scale, scale)
        if not options:
            yield element.name
            continue
        try:
            yield scaled(f"{element_text(element.name)} {options}").text
        except ValueError as error:
            known = ", ".join(SCALES)
            raise ValueError(
                f"scales {shown(scale)} with {element}: {error} (names of scales: {known}; or the "
                "text "
                "behind an element format in cpd.scaled)"
            ) from None


def _sum(text: str) -> str:
    """The canonical text of an accumulator; a matrix unit keeps its name."""
    made = accumulator(text)
    return made.text if made.unit is None else text


def _element(name: str) -> Format:
    """A format, or a scaled format's element format."""
    if is_scaled(name):
        return scaled(name).element
    try:
        return format(name)
    except ValueError as error:
        raise ValueError(f"format {shown(name)}: {error}") from None


@checked
@dataclass(frozen=True)
class Losses:
    """The errors of a cell on one or several tensors, as counts and sums, so that those of several
    tensors can be added. NaN and infinities of the inputs are left out.

    >>> Losses(values=4, squares=100.0, errors=1.0).sqnr
    20.0
    """

    values: int = 0
    squares: float = 0.0
    """The sum of the squares of the values."""
    errors: float = 0.0
    """The sum of the squares of the errors; inf where a finite value became NaN or infinite."""
    absolute: float = 0.0
    """The sum of the errors' magnitudes."""
    worst: float = 0.0
    """The largest magnitude of an error."""
    underflows: int = 0
    """Values that became 0."""
    overflows: int = 0
    """Magnitudes above the format's max (times the scale)."""
    dots: int = 0
    """Dot products."""
    dot_squares: float = 0.0
    """The sum of the squares of the reference dot products, of uncast values in binary64."""
    dot_errors: float = 0.0
    """The sum of the squared differences from those; inf where one is not finite."""

    @property
    def relative_rms(self) -> float:
        """sqrt(sum (q - x)^2 / sum x^2)."""
        return _root_share(self.errors, self.squares)

    @property
    def sqnr(self) -> float:
        """sum x^2 / sum (q - x)^2 in dB; inf without errors, -inf for infinite ones."""
        share = self.relative_rms
        if share in (0, math.inf):
            return math.inf if share == 0 else -math.inf
        return -20 * math.log10(share)

    @property
    def mean_error(self) -> float:
        return self.absolute / self.values if self.values else 0.0

    @property
    def underflow(self) -> float:
        """The share of values that became 0."""
        return self.underflows / self.values if self.values else 0.0

    @property
    def overflow(self) -> float:
        """The share of magnitudes above the max."""
        return self.overflows / self.values if self.values else 0.0

    @property
    def dot_error(self) -> float | None:
        """sqrt(sum (s - r)^2 / sum r^2) over the cell's dot products s and the references r, of
        uncast values; None where there are none."""
        return _root_share(self.dot_errors, self.dot_squares) if self.dots else None

    @property
    def normalised(self) -> Losses:
        """The losses of the tensor divided by its RMS, and of dot products divided by theirs."""
        share, of_dots = _per(self.values, self.squares), _per(self.dots, self.dot_squares)
        return replace(
            self,
            squares=self.squares * share,
            errors=self.errors * share,
            absolute=self.absolute * math.sqrt(share),
            worst=self.worst * math.sqrt(share),
            dot_squares=self.dot_squares * of_dots,
            dot_errors=self.dot_errors * of_dots,
        )

    @classmethod
    def total(cls, parts: Iterable[Losses]) -> Losses:
        """The losses of several tensors, each divided by its RMS first, so that one of small values
        counts as much as one of as many large values.

        >>> Losses.total([Losses(2, 4e6, 4e4), Losses(2, 4e-6, 12e-8)]).errors
        0.08
        """
        given = list(parts)
        wrong = next((part for part in given if not isinstance(part, Losses)), None)
        if wrong is not None:
            raise TypeError(f"parts must be of type cpd.study.Losses, got {type(wrong).__name__}")
        each = [part.normalised for part in given]
        sums = {one.name: sum(getattr(part, one.name) for part in each) for one in fields(cls)}
        return cls(**sums | {"worst": max((part.worst for part in each), default=0.0)})

    def json(self) -> dict[str, Any]:
        """The sums, and the figures computed from them; numbers that JSON lacks are null."""
        shown = ("relative_rms", "sqnr", "mean_error", "underflow", "overflow", "dot_error")
        return asdict(self) | {name: getattr(self, name) for name in shown}


def _per(count: int, squares: float) -> float:
    return count / squares if squares else 1.0


def _root_share(errors: float, squares: float) -> float:
    if errors == 0:
        return 0.0
    return math.sqrt(errors / squares) if squares and math.isfinite(errors) else math.inf
