# SPDX-License-Identifier: Apache-2.0
"""`ElementRule`: an element-wise operation, its inputs and outputs, and its results.

Two implementations compute each result: the oracle (an exact reference) and CPD's kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core, ops
from cpd.hardware.vectors import inputs as generated
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.near import near_roundings
from cpd.hardware.vectors.values import has_signalling, values_of
from cpd.numeric.cast import Cast, element_of, rounding_of
from cpd.numeric.formats import Format

Columns: TypeAlias = "dict[str, npt.NDArray[Any]]"
"""A dict from a field's name to an array of shape (n,), or (n, count) for several elements."""

_NV = np.uint8(16)

NO_CODE = 0xFFFFFFFF
"""The code that stands for a NaN result in a format that cannot encode NaN."""

ROUNDING_WORDS = {
    "nearest_even": "rne",
    "nearest_away": "rna",
    "toward_zero": "rtz",
    "up": "rup",
    "down": "rdn",
    "to_odd": "rto",
    "stochastic": "sr",
}
"""The abbreviation of each rounding in file names."""

OPERANDS = {"cast": 1, "add": 2, "mul": 2, "fma": 3, "div": 2, "sqrt": 1}
"""The number of operands of each element-wise operation."""


@dataclass(frozen=True)
class ElementRule:
    """An element-wise operation with one rounding: x, x + y, x * y, x * y + z, x / y or √x.

    Attributes:
        operation: `cast`, `add`, `mul`, `fma`, `div` or `sqrt`.
        formats: the formats of the operands.
        to: the format and the rounding of the result.
        tininess: whether results are tested `after` rounding (default) or `before` it for being
            tiny, which the flag UF reports.
        nan_signals: whether NaN operands raise the flag NV in formats without quiet and signaling
            NaNs; default False.
        has_integer_result: always False: results are codes of the format `result`.
        batch: the number of lines that are computed at a time.
        pool: the number of random lines from which directed lines are picked.
    """

    operation: str
    formats: tuple[Format, ...]
    to: Cast
    tininess: str = "after"
    nan_signals: bool = False

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "options" in state:  # version 0.7 stored format and rounding separately
            state["to"] = Cast(state.pop("result"), **rounding_of(state.pop("options")))
        self.__dict__.update(state)

    @property
    def result(self) -> Format:
        """The format of the result."""
        return element_of(self.to)

    @functools.cached_property
    def _oracle(self) -> Any:
        return _core.ElementOracle(
            self.operation,
            [f._held for f in self.formats],
            self.result._held,
            self.to._options,
            self.tininess,
        )

    @property
    def inputs(self) -> tuple[Field, ...]:
        """The fields of a test vector for the operands.

        With stochastic rounding, the field `r` for its random integer follows.
        """
        fields = [Field(name, f.bits) for name, f in zip("abc", self.formats, strict=False)]
        if self.to.rounding == "stochastic":
            fields.append(Field("r", self.to.random_bits))
        return tuple(fields)

    @property
    def outputs(self) -> tuple[Field, ...]:
        """The fields of a test vector for the result and the exception flags."""
        return (
            Field("result", self.result.bits, role="output"),
            Field("flags", 5, role="output"),
        )

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields of a test vector, in order."""
        return self.inputs + self.outputs

    @property
    def stem(self) -> str:
        """The default name of a file of test vectors, without suffix."""
        names = list(dict.fromkeys([*(f.name for f in self.formats), self.result.name]))
        mode = ROUNDING_WORDS[self.to.rounding]
        return f"{'_'.join(names)}_{self.operation}_{mode}".replace(":", "-").replace("=", "")

    def describe(self) -> dict[str, Any]:
        """Returns the rule as a dict for a file's head. `rule_of` converts the dict to a rule."""
        head: dict[str, Any] = {
            "operation": self.operation,
            "formats": [f.name for f in self.formats],
            "result": self.result.name,
            "rounding": self.to.rounding,
            "overflow": self.to.overflow,
            "tininess": self.tininess,
        }
        if self.to.rounding == "stochastic":
            head |= {"random_bits": self.to.random_bits, "variant": self.to.variant}
        return head | ({"nan_signals": True} if self.nan_signals else {})

    has_integer_result = False

    def missing(self, results: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the lines with a NaN result that the format cannot encode."""
        missing: npt.NDArray[np.bool_] = results == NO_CODE
        return missing

    batch = generated.BATCH
    pool = 1 << 15

    def random_lines(self, words: generated.Words, n: int) -> generated.Lines:
        """Returns n random test vectors."""
        return words.lines(self._oracle, n)

    def corner_lines(self, words: generated.Words) -> Iterator[generated.Lines]:
        """Yields test vectors with every combination of corner codes: zeros, extremes, Inf, NaN."""
        yield generated.crossed(self, words)

    def near_lines(self, words: generated.Words) -> Iterator[generated.Lines]:
        """Yields test vectors near rounding points."""
        yield near_roundings(self, words)

    def results(self, given: Columns) -> tuple[Columns, npt.NDArray[np.uint16]]:
        """Returns the outputs and corner cases of test vectors.

        Raises RuntimeError if the oracle (the exact reference) and the kernels differ.
        """
        operands = [
            given[name].astype(np.uint32, copy=False) for name in "abc"[: len(self.formats)]
        ]
        random = given["r"].astype(np.uint32, copy=False) if "r" in given else None
        codes, flags, corners = self._oracle.results(operands, random)
        self._compare(operands, random, codes, flags)
        if self.nan_signals:
            flags = flags | invalid_of_nan(self.formats, operands)
        return {"result": codes, "flags": flags}, corners

    def _compare(self, operands: Sequence[Any], random: Any, codes: Any, flags: Any) -> None:
        values = [values_of(f, x) for f, x in zip(self.formats, operands, strict=True)]
        options = {"random": random, "flags": True, "tininess": self.tininess}
        kernel, raised = getattr(ops, self.operation)(*values, self.to, **options)
        missing = codes == NO_CODE
        if not missing.any():
            same = kernel.view(np.uint32) == values_of(self.result, codes).view(np.uint32)
        else:
            expected = values_of(self.result, np.where(missing, np.uint32(0), codes))
            equal = kernel.view(np.uint32) == expected.view(np.uint32)
            same = np.where(missing, np.isnan(kernel), equal)
        check_same(same, lambda i: self._line(operands, random, codes[i], kernel[i], i))
        check_same(flags == raised, lambda i: self._line(operands, random, flags[i], raised[i], i))

    def _line(self, operands: Sequence[Any], random: Any, oracle: Any, kernel: Any, i: int) -> str:
        inputs = " ".join(f"{x[i]:X}" for x in (*operands, *([] if random is None else [random])))
        return f"{self.stem} of {inputs}: oracle {oracle:X}, kernel {kernel}"


def invalid_of_nan(
    formats: Sequence[Format], operands: Sequence[npt.NDArray[np.uint32]]
) -> npt.NDArray[np.uint8]:
    """Returns the flag NV for each line with a NaN operand in a format without signaling NaNs.

    All other lines get 0.
    """
    is_nan = np.zeros(len(operands[0]), bool)
    for f, codes in zip(formats, operands, strict=True):
        if not has_signalling(f):
            is_nan |= np.isnan(values_of(f, codes)).reshape(len(codes), -1).any(axis=1)
    return np.where(is_nan, _NV, np.uint8(0))


def check_same(same: npt.NDArray[np.bool_], line: Any) -> None:
    """Raises RuntimeError if oracle and kernel differ: if `same` is False for a test vector.

    The error shows the first such vector; `line` maps a vector's index to its text.
    """
    if not same.all():
        first = int(np.argmin(same))
        raise RuntimeError(f"oracle and kernel differ at line {first} of a batch: {line(first)}")
