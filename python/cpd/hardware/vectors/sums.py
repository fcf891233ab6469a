# SPDX-License-Identifier: Apache-2.0
"""`SumRule`: computes test vectors of sums, dot products and matrix units.

Two implementations compute each result and must agree: the oracle (an exact reference) and CPD's
kernels.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core, ops
from cpd.hardware.vectors import inputs as generated
from cpd.hardware.vectors.corners import corner_of, corner_of_integer
from cpd.hardware.vectors.fields import Field
from cpd.hardware.vectors.near_sums import SumLines
from cpd.hardware.vectors.rules import (
    NO_CODE,
    ROUNDING_WORDS,
    Columns,
    check_same,
    invalid_of_nan,
)
from cpd.hardware.vectors.values import packed, values_of
from cpd.numeric.accumulator import Accumulator, Integer, Unit, as_integer, as_unit
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled
from cpd.ops.encoded import Encoded

SUMS = ("dot", "sum", "block_fma", "mma")
"""The names of the operations that sum. dot: one element of a matrix product. sum: a sum of terms.
block_fma: a dot on a matrix unit. mma: a dot on a matrix unit that takes scales."""


F32: TypeAlias = "npt.NDArray[np.float32]"
_BATCH_NUMBERS = 1 << 22
_NX = np.uint8(1)
_MOST_FRACTION = 60
_LONGEST_NAME = 100


@dataclass(frozen=True)
class SumRule:
    """A sum of `length` terms or products. Its accumulator defines each rounding.

    Attributes:
        operation: `dot`, `sum`, `block_fma` or `mma`.
        formats: the formats of the terms, or of a, b and c; of a and b alone for an integer
            accumulator.
        accumulator: the accumulator of the sum, which defines its rounding.
        length: the number of terms or products.
        tininess: whether results are tested `after` rounding (default) or `before` it for being
            tiny, which the flag UF reports.
        label: the accumulator's name in file names; default its text.
        nan_signals: whether NaN operands raise the flag NV in formats without quiet and signaling
            NaNs; default False.
        pool: the number of random lines from which directed lines are picked.
    """

    operation: str
    formats: tuple[Format, ...]
    accumulator: Accumulator
    length: int
    tininess: str = "after"
    label: str = ""
    nan_signals: bool = False
    _core_rule: Any = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        if self.fixed is not None and abs(self.fixed.fraction) > _MOST_FRACTION:
            raise ValueError(
                f"fraction must be -{_MOST_FRACTION}…{_MOST_FRACTION} in vectors, got "
                f"{self.fixed.fraction}"
            )
        formats = [f._held for f in self.formats]
        core_rule = _core.SumRule(self.accumulator._held, formats, self.length, self.tininess)
        object.__setattr__(self, "_core_rule", core_rule)
        self.signals  # noqa: B018 - raises ValueError for lines that there cannot be
        if self.nan_signals and not self.has_trace:
            raise ValueError(f"nan_signals is of flags, of which {self.accumulator} has none")

    @functools.cached_property
    def fixed(self) -> Integer | None:
        """The accumulator if it is an integer accumulator, else None."""
        return as_integer(self.accumulator)

    @functools.cached_property
    def unit(self) -> Unit | None:
        """The accumulator if it is a matrix unit, else None."""
        return as_unit(self.accumulator)

    @property
    def result(self) -> Format:
        """The format to which the sum is rounded. Not used with `has_integer_result`."""
        return self.accumulator.format

    @property
    def has_integer_result(self) -> bool:
        """True if the result is the integer accumulator's content, in two's complement."""
        return self.fixed is not None and self.result.name == "fp32"

    @functools.cached_property
    def has_trace(self) -> bool:
        """True if lines have inner signals and flags.

        Lines have neither for matrix units that do not align every term, such as AMD's.
        """
        return bool(self._core_rule.has_trace())

    @functools.cached_property
    def draws(self) -> int:
        """The number of random integers in a test vector, for stochastic rounding."""
        return int(self._core_rule.draws())

    @property
    def scale(self) -> Format | None:
        """The format of the scales; None for a rule without scales."""
        return None if self.unit is None else self.unit.scale

    @property
    def scales(self) -> int:
        """The number of scales that one operand has in a test vector: one for each block."""
        unit = self.unit
        return 0 if unit is None or unit.scale is None else -(-self.length // unit.scale_block)

    @property
    def operands(self) -> list[tuple[str, Format]]:
        """The name and the format of each operand and of its scales.

        The addend c of an integer accumulator has no format and is left out.
        """
        operands = list(zip("abc", self.formats, strict=False))
        if self.scale is not None:
            operands += [("a_scale", self.scale), ("b_scale", self.scale)]
        return operands

    @functools.cached_property
    def inputs(self) -> tuple[Field, ...]:
        """The fields of a test vector for operands, their scales, and random integers."""
        names = ("a",) if self.operation == "sum" else ("a", "b")
        fields = [
            Field(name, self.length * f.bits, self.length)
            for name, f in zip(names, self.formats, strict=False)
        ]
        if self.operation != "sum":
            whole = self.fixed
            fields.append(
                Field("c", self.formats[2].bits) if whole is None else _integer("c", whole)
            )
        if self.scale is not None:
            bits = self.scales * self.scale.bits
            fields += [Field(f"{name}_scale", bits, self.scales) for name in names]
        if self.draws:
            bits = self.accumulator.random_bits
            fields.append(Field("r", self.draws * bits, self.draws))
        return tuple(fields)

    @functools.cached_property
    def signals(self) -> tuple[Field, ...]:
        """The fields of a test vector that have the unit's inner signals, in order."""
        return tuple(
            Field(s.name, s.bits * s.count, s.count, "signal", s.signed)
            for s in self._core_rule.signals()
        )

    @property
    def outputs(self) -> tuple[Field, ...]:
        """The fields of a test vector for the result and, if the rule has flags, the flags."""
        result = Field("result", self.result.bits, role="output")
        if self.fixed is not None and self.has_integer_result:
            result = _integer("result", self.fixed, "output")
        return (result, Field("flags", 5, role="output")) if self.has_trace else (result,)

    @property
    def fields(self) -> tuple[Field, ...]:
        """All fields of a test vector, in order."""
        return self.inputs + self.signals + self.outputs

    @property
    def stem(self) -> str:
        """The default name of a file of test vectors, without suffix."""
        names = list(dict.fromkeys(f.name for f in self.formats[:2]))
        mode = ROUNDING_WORDS[self.accumulator.rounding]
        label = self.label or str(self.accumulator)
        text = "_".join([*names, self.operation, label, f"k{self.length}", mode])
        return re.sub(r"[^\w.-]+", "-", text)[:_LONGEST_NAME]

    def describe(self) -> dict[str, Any]:
        """Returns the rule as a dict for a file's head. `rule_of` converts the dict to a rule."""
        return {
            "operation": self.operation,
            "formats": [f.name for f in self.formats],
            "accumulator": str(self.accumulator),
            "length": self.length,
            "tininess": self.tininess,
            **({"nan_signals": True} if self.nan_signals else {}),
        }

    pool = 1 << 11

    @property
    def batch(self) -> int:
        """The number of test vectors that are computed at a time."""
        numbers = sum(field.count for field in self.fields)
        return max(1, min(generated.BATCH, _BATCH_NUMBERS // numbers))

    def random_lines(self, words: generated.Words, n: int) -> generated.Lines:
        """Returns n random test vectors."""
        return generated.sum_lines(self, words, n)

    def corner_lines(self, words: generated.Words) -> Iterator[generated.Lines]:
        """Yields test vectors in which all terms are equal, for each pair of extreme codes."""
        yield generated.alike(self, words)

    def near_lines(self, words: generated.Words) -> Iterator[generated.Lines]:
        """Yields the directed test vectors of sums."""
        return SumLines(self, words).batches()

    def results(self, given: Columns) -> tuple[Columns, npt.NDArray[np.uint16]]:
        """Returns the inner signals, outputs and corner cases of test vectors.

        Raises RuntimeError if the oracle (the exact reference) and the kernels differ.
        """
        is_whole = self.fixed is not None and "c" in given
        c = np.ascontiguousarray(given["c"], np.uint64) if is_whole else None
        codes = {name: _codes(values) for name, values in given.items() if name != "c" or c is None}
        n = len(codes["a"])
        codes |= {name: codes[name].reshape(n, self.length) for name in "ab" if name in codes}
        names = {"a_scales": "a_scale", "b_scales": "b_scale", "random": "r", "b": "b", "c": "c"}
        others: dict[str, Any] = {name: codes.get(field) for name, field in names.items()}
        results, flags, inside, signals = _core.oracle_sums(
            self._core_rule, n, codes["a"], c_units=c, **others
        )
        if self.has_integer_result:
            results = np.ascontiguousarray(signals[:, -1])
        self._compare(codes, c, results, flags)
        if self.nan_signals:
            named = [codes[name] for name in "abc" if name in codes]
            flags = flags | invalid_of_nan(self.formats, named)
        columns: Columns = {"result": results} | ({"flags": flags} if self.has_trace else {})
        at = 0
        for signal in self.signals:
            values = signals[:, at : at + signal.count]
            columns[signal.name] = values[:, 0] if signal.count == 1 else values
            at += signal.count
        return columns, inside | self._corners(codes, columns)

    def missing(self, results: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Returns a mask of the lines with a NaN result that the format cannot encode.

        The mask is all False for integer results.
        """
        return np.zeros(len(results), bool) if self.has_integer_result else results == NO_CODE

    def _compare(
        self,
        codes: Columns,
        c: npt.NDArray[np.uint64] | None,
        results: npt.NDArray[Any],
        flags: npt.NDArray[np.uint8],
    ) -> None:
        kernel, raised = self._kernel(codes, c)
        missing = self.missing(results)
        if self.fixed is not None and self.has_integer_result:
            # The kernel's sum is NaN if a term is not finite. The integer sum ignores such terms,
            # so the two sums are not compared.
            missing = np.isnan(kernel)
            expected, inexact = as_binary32(self.fixed, results)
            flags = np.where(inexact & ~missing, flags | _NX, flags).astype(np.uint8)
            raised = np.where(missing, flags, raised)
        else:
            expected = values_of(self.result, np.where(missing, np.uint32(0), results))
        equal = kernel.view(np.uint32) == expected.view(np.uint32)
        check_same(missing | equal, lambda i: self._line(codes, results[i], kernel[i], i))
        if raised is not None:
            check_same(raised == flags, lambda i: self._line(codes, flags[i], raised[i], i))

    def _line(self, codes: Columns, oracle: Any, kernel: Any, i: int) -> str:
        inputs = "; ".join(f"{name} {codes[name][i]}" for name in codes)
        return f"{self.stem} of {inputs}: oracle {oracle:X}, kernel {kernel}"

    def _kernel(self, codes: Columns, integers: npt.NDArray[np.uint64] | None) -> tuple[Any, Any]:
        """Returns the values and flags of CPD's kernels.

        Flags are None for scaled operands, and if `has_trace` is false.
        """
        random = codes.get("r")
        a = values_of(self.formats[0], codes["a"])
        options: dict[str, Any] = {"flags": True, "tininess": self.tininess}
        if self.operation == "sum":
            return ops.sum(a, self.accumulator, 1, random=random, **options)  # type: ignore[no-any-return]
        if integers is not None and self.fixed is not None:
            b = values_of(self.formats[1], codes["b"])
            first, second = _as_products(self.fixed, integers)
            a, b = np.concatenate([first, a], axis=1), np.concatenate([second, b], axis=1)
            values, flags = ops.gemm(a[:, None], b[:, :, None], self.accumulator, **options)
            return np.ascontiguousarray(values[:, 0, 0]), flags[:, 0, 0]
        c = values_of(self.formats[2], codes["c"])[:, None, None]
        if self.scale is not None:
            return self._scaled(codes, c), None
        b = values_of(self.formats[1], codes["b"])
        options |= {"dtype": np.float32}
        if random is not None:
            options["random"] = random.reshape(len(c), 1, 1, -1)
        if not self.has_trace:
            product: Any = ops.gemm(a[:, None, :], b[:, :, None], self.accumulator, c)
            return np.ascontiguousarray(product[:, 0, 0]), None
        values, flags = ops.gemm(a[:, None, :], b[:, :, None], self.accumulator, c, **options)
        return np.ascontiguousarray(values[:, 0, 0]), flags[:, 0, 0]

    def _scaled(self, codes: Columns, c: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        unit = as_unit(self.accumulator)
        assert unit is not None
        assert self.scale is not None
        n, k = codes["a"].shape
        operands = []
        for name, f, shape, axis in (
            ("a", self.formats[0], (n, 1, k), -1),
            ("b", self.formats[1], (n, k, 1), -2),
        ):
            q = Scaled(f, block=unit.scale_block, scale=self.scale)
            scales = packed(codes[f"{name}_scale"].reshape(-1), self.scale.bits)
            elements = packed(codes[name].reshape(-1), f.bits)
            operands.append(Encoded(elements, scales, q, shape, axis))
        a, b = operands
        product: Any = ops.gemm(a, b, self.accumulator, c, scales_at="block")
        return np.ascontiguousarray(product[:, 0, 0])

    def _corners(self, codes: Columns, columns: Columns) -> npt.NDArray[np.uint16]:
        fixed = as_integer(self.accumulator)
        if fixed is not None and self.has_integer_result:
            corners = corner_of_integer(fixed.width, columns["result"], "out")
        else:
            corners = corner_of(self.result, columns["result"], "out")
        if self.has_trace:
            corners |= np.where(columns["flags"] == 0, np.uint16(1), np.uint16(0))
        for name, f in self.operands:
            if name in codes:
                kinds = corner_of(f, codes[name], "in")
                corners |= kinds if kinds.ndim == 1 else np.bitwise_or.reduce(kinds, axis=1)
        return corners


def _integer(name: str, fixed: Integer, role: str = "input") -> Field:
    return Field(name, fixed.width, role=role, signed=True)


def _signed(fixed: Integer, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Returns the numbers that two's complement codes stand for."""
    unused = np.uint64(64 - fixed.width)
    shifted: npt.NDArray[np.int64] = (numbers << unused).view(np.int64) >> np.int64(unused)
    return shifted


def _as_products(fixed: Integer, c: npt.NDArray[np.uint64]) -> tuple[F32, F32]:
    """Returns binary32 factors of three products that add up to the integer c.

    The greatest product comes first, so partial sums do not overflow.
    """
    units = _signed(fixed, c)
    size = np.abs(units).view(np.uint64)  # also correct for the least int64
    parts = np.stack([size >> np.uint64(at) & np.uint64(0xFFFFFF) for at in (48, 24, 0)], axis=1)
    signed = np.where(units[:, None] < 0, np.float32(-1), np.float32(1)) * parts.astype(np.float32)
    sizes = np.array([2.0**48, 2.0**24, 1], np.float32) * np.float32(2.0**-fixed.fraction)
    return signed, np.broadcast_to(sizes, signed.shape)


def as_binary32(
    fixed: Integer, numbers: npt.NDArray[np.uint64]
) -> tuple[F32, npt.NDArray[np.bool_]]:
    """Converts the contents of integer accumulators to binary32, rounded as in `cpd.gemm`.

    Also returns a mask: True where the rounding is inexact.
    """
    units = _signed(fixed, numbers)
    rounded = units.astype(np.float32)
    beyond = rounded == 2.0**63  # the largest integers round to 2^63, which is not an int64
    inexact = beyond | (np.where(beyond, 0, rounded).astype(np.int64) != units)
    return rounded * np.float32(2.0**-fixed.fraction), inexact


def _codes(values: Any) -> npt.NDArray[np.uint32]:
    return np.ascontiguousarray(values, np.uint32)
