# SPDX-License-Identifier: Apache-2.0
"""The cells of a sweep and their measurements.

A `Cell` is one combination of format, scales, rounding and accumulator. `grid` makes all
combinations. `Losses` are the measured errors of one cell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from cpd import ops
from cpd.numeric.accumulator import Accumulator, Unit, as_accumulator, as_unit
from cpd.numeric.cast import Cast
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format
from cpd.numeric.scaled import (
    Scaled,
    element_format,
    element_text,
    format_or_scaled,
    named_scaled,
)
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
"""Maps the names of common kinds of scales to the options in the text of a `cpd.Scaled`."""


@checked
@dataclass(frozen=True)
class Cell:
    """One combination of format, scales, rounding and accumulator in a sweep.

    Both operands of each product are cast to `operand`, and products are summed in `accumulator`.

    Attributes:
        operand: the text of a format or a scaled format.
        accumulator: the text of an accumulator.
        rounding: the rounding of the cast, as in `cpd.cast`; default `nearest_even`. `stochastic:8`
            has 8 random bits, `stochastic` 24.
        overflow: the overflow of the cast, `saturate` (default) or `ieee`.
        seed: the seed of stochastic rounding; default 0.

    >>> Cell("mxfp4", "fp32").element
    cpd.Format('e2m1')
    """

    operand: str
    accumulator: str
    rounding: str = "nearest_even"
    overflow: str = "saturate"
    seed: int = 0

    @cached_property
    def format(self) -> Format | Scaled:
        """The format of the operands: a `Format` or a `Scaled`."""
        return format_or_scaled(self.operand)

    @property
    def element(self) -> Format:
        """The operands' format; for a scaled format, the format of its elements."""
        return element_format(self.format)

    @property
    def total(self) -> str:
        """The accumulator's short text: for a sequential sum, only its format."""
        return self.accumulator.removesuffix(" sequential")

    @cached_property
    def sum(self) -> Accumulator:
        """The accumulator, as a `cpd.Accumulator`."""
        return Accumulator(self.accumulator)

    @cached_property
    def to(self) -> Cast:
        """The cast of both operands, as a `cpd.Cast`. Raises ValueError for an invalid rounding."""
        mode, colon, bits = self.rounding.partition(":")
        if not colon:
            return Cast(self.format, rounding=mode, overflow=self.overflow)
        if mode != "stochastic" or not (bits.isascii() and bits.isdigit()):
            raise ValueError(
                "rounding must be a mode, or stochastic:N with N random bits, got "
                f"{self.rounding!r}"
            )
        return Cast(self.format, rounding=mode, overflow=self.overflow, random_bits=int(bits))

    @property
    def cast(self) -> tuple[str, str, str, int]:
        """The options of the operands' cast. Cells with equal ones differ only in accumulators."""
        return self.operand, self.rounding, self.overflow, self.seed

    def recipe(self, **others: Any) -> Recipe:
        """Returns the `cpd.Recipe` of a model that uses this cell's format and accumulator.

        Activations, weights and gradients are cast to the format; all sums use the accumulator. A
        recipe does not have the seed: call `cpd.convert(model, cell.recipe(), seed=cell.seed)`.

        Args:
            **others: more arguments of `cpd.Recipe`.

        Returns:
            The recipe.
        """
        from cpd.nn.recipe import Recipe

        return Recipe(self.to, sums=self.sum, **others)

    def json(self) -> dict[str, Any]:
        """Returns the cell's fields as a dict, for JSON."""
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
    """Returns a `Cell` for each combination of the arguments, without duplicates.

    The format varies slowest. A scaled format is not combined with `scales`. `bits` selects element
    formats with this number of bits; None selects all.

    Raises ValueError or TypeError for an invalid format, accumulator, rounding or scale.

    >>> [cell.operand for cell in grid("e[2-3]m[2-3],mxfp8", scales="none,mx", bits=6)]
    ['e2m3', 'mxfp6-e2m3', 'e3m2', 'mxfp6-e3m2']
    """
    named = texts("formats", formats)
    matches = [name for name in named if bits is None or element_format(_named(name)).bits == bits]
    if not matches:
        raise ValueError(f"no format of {', '.join(named)} has {bits} bits")
    operands = [text for name in matches for text in _operands(name, texts("scales", scales))]
    sums = [_sum(text) for text in texts("accumulators", accumulators)]
    modes = texts("rounding", rounding)
    cells = [
        Cell(operand, total, mode, overflow, seed)
        for operand in operands
        for mode in modes
        for total in sums
    ]
    for cell in cells:
        _ = cell.to  # which raises for an invalid rounding
    return list(dict.fromkeys(cells))


def fitting(cells: list[Cell]) -> tuple[list[Cell], list[str]]:
    """Returns the cells that can be computed, and texts about the cells that cannot.

    There is one text for each accumulator with cells that cannot be computed. A matrix unit only
    multiplies values of its own operand formats. Matrix units and integer accumulators allow no
    scales except one scale for the whole tensor.

    Raises ValueError if no cell is left.
    """
    usable_cells: list[Cell] = []
    left: dict[str, list[str]] = {}
    for cell in cells:
        if multiplies(cell.sum, cell.format):
            usable_cells.append(cell)
        else:
            taken = f"{cell.total} takes {_taken(as_unit(cell.sum))}"
            left.setdefault(taken, []).append(cell.operand)
    told = [f"{taken}; not {', '.join(dict.fromkeys(names))}" for taken, names in left.items()]
    if not usable_cells:
        raise ValueError("; ".join(told))
    return usable_cells, told


def takes_elements(total: Accumulator) -> bool:
    """Returns True for a matrix unit or an integer accumulator.

    These accumulators sum products of elements without scales. The scales multiply the result.
    """
    return total.form != "ordered"


def multiplies(total: Accumulator, operand: Format | Scaled) -> bool:
    """Returns whether products of operands in this format can be summed in an accumulator.

    A matrix unit needs operand formats that can represent the format's values. A matrix unit or an
    integer accumulator allows no scales except one scale for the whole tensor.
    """
    if isinstance(operand, Scaled):
        if not takes_elements(total):
            return True
        whole = operand.block == "tensor" and operand.tensor_scale is None
        return whole and multiplies(total, operand.element)
    unit = as_unit(total)
    return unit is None or all(_within(operand, f) for f in (unit.a, unit.b))


def _within(narrow: Format, wide: Format) -> bool:
    """Returns whether the format `wide` can represent all values of `narrow`.

    For a `narrow` of more than 16 bits, returns whether the formats are equal.
    """
    if narrow == wide or narrow.bits > _LISTED:
        return narrow == wide
    values = narrow.values()
    return np.array_equal(ops.cast(values, wide), values)


def _taken(unit: Unit | None) -> str:
    formats = "any format" if unit is None else str(unit.a)
    if unit is not None and unit.a != unit.b:
        formats += f" and {unit.b}"
    return f"{formats}, at most with one scale a tensor"


_LISTED = 16
"""To test if one format has all values of another, the values are compared one by one up to this
number of bits. Formats of more bits must be equal."""


def _operands(name: str, scales: Iterable[str]) -> Iterator[str]:
    """Yields the canonical text of the format `name`, once with each kind of scale in `scales`.

    If `name` is itself a scaled format, yields only its text.
    """
    operand = _named(name)
    if isinstance(operand, Scaled):
        yield operand.text
        return
    element = operand
    for scale in scales:
        options = SCALES.get(scale, scale)
        if not options:
            yield element.name
            continue
        try:
            text = element_text("element", element)
            yield named_scaled(f"{text} {options}").text
        except ValueError as error:
            known = ", ".join(SCALES)
            raise ValueError(
                f"scales must be {known}, or the text behind an element format in cpd.Scaled, got "
                f"{shown(scale)} with {element}: {error}"
            ) from None


def _sum(text: str) -> str:
    """Returns the canonical text of an accumulator. Returns the name of a matrix unit unchanged."""
    accumulator = as_accumulator(text)
    return text if accumulator.form == "unit" else accumulator.text


def _named(name: str) -> Format | Scaled:
    try:
        return format_or_scaled(name)
    except ValueError as error:
        told = str(error)
        raise ValueError(told if name in told else f"format {shown(name)}: {told}") from None


@checked
@dataclass(frozen=True)
class Losses:
    """The errors of a cell on one tensor or several, as counts and sums, which can be added.

    NaNs and infinities in the input are left out.

    Attributes:
        values: the number of values.
        squares: the sum of the squares of the values.
        errors: the sum of the squared errors of the cast; inf if a finite value became NaN or
            infinite.
        absolute: the sum of the magnitudes of errors.
        worst: the largest magnitude of an error.
        underflows: the number of values that became 0.
        overflows: the number of magnitudes above the format's largest value (times the scale).
        dots: the number of dot products.
        dot_squares: the sum of the squared reference dot products, which are computed in binary64
            from values before the cast.
        dot_errors: the sum of the squared differences of dot products from their references; inf if
            a dot product is not finite.

    >>> Losses(values=4, squares=100.0, errors=1.0).sqnr
    20.0
    """

    values: int = 0
    squares: float = 0.0
    errors: float = 0.0
    absolute: float = 0.0
    worst: float = 0.0
    underflows: int = 0
    overflows: int = 0
    dots: int = 0
    dot_squares: float = 0.0
    dot_errors: float = 0.0

    @property
    def relative_rms(self) -> float:
        """The relative RMS error of the cast: sqrt(sum (q - x)^2 / sum x^2)."""
        return _root_share(self.errors, self.squares)

    @property
    def sqnr(self) -> float:
        """The SQNR, sum x^2 / sum (q - x)^2, in dB; inf without errors, -inf if an error is inf."""
        share = self.relative_rms
        if share in (0, math.inf):
            return math.inf if share == 0 else -math.inf
        return -20 * math.log10(share)

    @property
    def mean_error(self) -> float:
        """The mean magnitude of the errors; 0 if there are no values."""
        return self.absolute / self.values if self.values else 0.0

    @property
    def underflow(self) -> float:
        """The fraction of values that became 0."""
        return self.underflows / self.values if self.values else 0.0

    @property
    def overflow(self) -> float:
        """The fraction of magnitudes above the format's largest value."""
        return self.overflows / self.values if self.values else 0.0

    @property
    def dot_error(self) -> float | None:
        """The relative RMS error of dot products; None if there are none.

        It is sqrt(sum (s - r)^2 / sum r^2) over the cell's dot products s and the references r,
        which are computed from values before the cast.
        """
        return _root_share(self.dot_errors, self.dot_squares) if self.dots else None

    @property
    def normalised(self) -> Losses:
        """Normalized errors, which can be added over several tensors.

        Errors of values are divided by the tensor's RMS, errors of dot products by the RMS of the
        reference dot products.
        """
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
        """Returns the errors of several tensors together.

        Each tensor's errors are divided by the tensor's RMS before the sum. So tensors of small
        values have the same weight as tensors of large values.

        Args:
            parts: the losses of each tensor.

        Returns:
            The sums of all fields; the field `worst` is the maximum.

        Raises:
            TypeError: if a part is not a `Losses`.

        >>> Losses.total([Losses(2, 4e6, 4e4), Losses(2, 4e-6, 12e-8)]).errors
        0.08
        """
        losses = list(parts)
        wrong = next((part for part in losses if not isinstance(part, Losses)), None)
        if wrong is not None:
            raise TypeError(f"parts must be of type Losses, got {type(wrong).__name__}")
        normalised = [part.normalised for part in losses]
        sums = {
            field.name: sum(getattr(part, field.name) for part in normalised)
            for field in fields(cls)
        }
        return cls(**sums | {"worst": max((part.worst for part in normalised), default=0.0)})

    def json(self) -> dict[str, Any]:
        """Returns the fields and the errors computed from them, for JSON.

        Infinities and NaNs, which JSON cannot represent, are None.
        """
        shown = ("relative_rms", "sqnr", "mean_error", "underflow", "overflow", "dot_error")
        return asdict(self) | {name: getattr(self, name) for name in shown}


def _per(count: int, squares: float) -> float:
    return count / squares if squares else 1.0


def _root_share(errors: float, squares: float) -> float:
    if errors == 0:
        return 0.0
    return math.sqrt(errors / squares) if squares and math.isfinite(errors) else math.inf
