# SPDX-License-Identifier: Apache-2.0
"""Measures the errors of a sweep's cells (combinations of options) on tensors.

All values are measured, in tiles that fit into cache. An error is a difference in binary32, which
is exact if the cast only rounds to a format without scales. Squared errors are summed in binary64.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from cpd import ops
from cpd.numeric.cast import Cast, rounding_of
from cpd.numeric.formats import Format
from cpd.numeric.scaled import Scaled, untransformed
from cpd.study.sweeps.cells import Cell, Losses, takes_elements
from cpd.study.sweeps.tensors import Matrix, Values, Wide, Workload, square

PIECE = 1 << 16
"""The usual number of values in a tile. A tile has more values if a group of vectors needs more."""
GROUP = 64
"""The number of vectors in a group, which are all multiplied with one other vector. Larger groups
are not faster."""
NOISE = 2.0**-22
"""The tolerance of the test for overflow: the relative error of three binary32 roundings. By this
error, a block's largest magnitude may exceed its scale times the format's largest value."""

_THREADS = "CPD_NUM_THREADS"
_GOLDEN = (math.sqrt(5) - 1) / 2

Piece: TypeAlias = tuple[slice, slice]


class Bench:
    """Measures cells of a sweep on all tensors of the sweep.

    A tensor is divided into tiles and dot products once, and all cells use the same ones.
    """

    def __init__(self, work: Workload, with_dots: bool = True) -> None:
        self._plans = [Plan(work, matrix, with_dots) for matrix in work.matrices]

    def measure(self, cells: Sequence[Cell]) -> list[list[Losses]]:
        """Measures cells (combinations of cast and accumulator) that have the same cast.

        result[i][j] has the errors of cell i on tensor j.
        """
        with _one_thread():
            by_tensor = [_losses(plan, cells) for plan in self._plans]
        return [list(losses) for losses in zip(*by_tensor, strict=True)]


@contextmanager
def _one_thread() -> Iterator[None]:
    """Makes CPD use one thread, because a tile of a tensor is too small for several threads.

    Parallel work is divided among processes instead. A number of threads that the user has set
    remains.
    """
    if _THREADS in os.environ:
        yield
        return
    os.environ[_THREADS] = "1"
    try:
        yield
    finally:
        del os.environ[_THREADS]


class Plan:
    """The plan of a matrix's measurement: its tiles (`pieces`) and their dot products.

    A tile has whole rows or, if a row is very long, a part of one row. Each row of a tile is cut
    into vectors, and vectors form groups. All vectors of a group are multiplied with one other
    vector: the first vector of the next group, or a row of the partner matrix. Values at the end of
    a row that do not fill a vector are in no dot product.
    """

    def __init__(self, work: Workload, matrix: Matrix, with_dots: bool) -> None:
        self.matrix = matrix
        self.partner = None if matrix.partner is None else work.matrices[matrix.partner]
        self.has_dots = with_dots and not matrix.is_partner
        rows, columns = matrix.x.shape
        whole = self.partner is not None
        self.terms = columns if whole else columns // -(-columns // work.length)
        self.width = min(columns, max(PIECE, GROUP * self.terms) // self.terms * self.terms)
        height = 1
        if self.width == columns:
            height = max(PIECE // columns, -(-GROUP * self.terms // columns))
        self.size = min(rows, height) * self.width
        self.pieces: list[Piece] = [
            (slice(row, row + height), slice(column, column + self.width))
            for row in range(0, rows, height)
            for column in range(0, columns, self.width)
        ]

    def products(self, number: int, piece: Any, probes: Any) -> list[tuple[Any, Any]]:
        """Returns the factors of a tile's dot products, as pairs of arrays.

        The shapes of a pair are (…, 1, K) and (…, N, K): one vector of K values and the N vectors
        of a group. `probes` are the rows of the partner matrix; None if the matrix has no partner.
        """
        vectors_per_row = piece.shape[1] // self.terms
        vectors = piece[:, : vectors_per_row * self.terms].reshape(-1, self.terms)
        size = min(GROUP, max(1, len(vectors) // 2))
        groups = len(vectors) // size
        whole = vectors[: size * groups].reshape(groups, size, self.terms)
        if probes is None:
            chosen = whole[(np.arange(groups) + 1) % groups, 0]
        else:  # rows from all parts of the partner
            place = (number * groups + np.arange(groups)) * _GOLDEN % 1
            chosen = probes[(place * len(probes)).astype(np.int64)]
        factors = [(chosen[:, None], whole)]
        if size * groups < len(vectors):
            factors.append((chosen[:1], vectors[size * groups :]))
        return factors

    @cached_property
    def references(self) -> list[Wide]:
        """The dot products of values before the cast, in binary64: one array for each tile."""
        probes = None if self.partner is None else self.partner.x.astype(np.float64)
        return [
            _flat(
                np.matmul(vectors, np.swapaxes(probe, -1, -2))
                for probe, vectors in self.products(
                    number, self.matrix.x[piece].astype(np.float64), probes
                )
            )
            for number, piece in enumerate(self.pieces)
        ]


def _flat(parts: Any) -> Any:
    return np.concatenate([part.reshape(-1) for part in parts])


def _losses(plan: Plan, cells: Sequence[Cell]) -> list[Losses]:
    """Measures the errors on one tensor. Returns a `Losses` for each of `cells`.

    All cells must have the same cast, and differ only in the accumulator.
    """
    cast = _Cast(cells[0], plan.matrix.x, plan.width, plan.size)
    plain, of_dots = _Plain(plan.size), [_Dots(cell) for cell in cells]
    other = None
    if plan.has_dots and plan.partner is not None:
        other = _Cast(cells[0], plan.partner.x)
    for number, piece in enumerate(plan.pieces):
        y = cast.of(piece)
        plain.add(cast.x[piece], y, cast.limit(piece))
        for bare in {total.takes_elements for total in of_dots} if plan.has_dots else ():
            probes = None if other is None else other.elements(other.whole, bare)
            factors = plan.products(number, cast.elements(y, bare), probes)
            scale = cast.scale(bare) * (cast if other is None else other).scale(bare)
            for total in of_dots:
                if total.takes_elements == bare:
                    total.add(factors, scale, plan.references[number])
    known = plain.known | {"values": plan.matrix.x.size, "squares": plan.matrix.squares}
    return [Losses(**known, **total.known) for total in of_dots]


class _Plain:
    """Sums up the errors of a matrix's cast over its tiles, which all reuse temporary arrays."""

    def __init__(self, size: int) -> None:
        self._narrow, self._wide = np.empty(size, np.float32), np.empty(size)
        self._is, self._too = np.empty(size, np.bool_), np.empty(size, np.bool_)
        self._errors = self._absolute = self._worst = 0.0
        self._underflows = self._overflows = 0

    def add(self, x: Values, y: Values, limit: Any) -> None:
        narrow, wide = self._narrow[: x.size].reshape(x.shape), self._wide[: x.size]
        is_, too = self._is[: x.size].reshape(x.shape), self._too[: x.size].reshape(x.shape)
        with np.errstate(invalid="ignore", over="ignore"):
            np.copyto(wide, np.subtract(y, x, out=narrow).reshape(-1))
            self._errors += square(wide)
            np.abs(wide, out=wide)
            self._absolute += float(wide.sum())
            self._worst = max(self._worst, _finite(float(wide.max())))
        np.logical_and(np.equal(y, 0, out=is_), np.not_equal(x, 0, out=too), out=is_)
        self._underflows += int(np.count_nonzero(is_))
        np.greater(np.abs(x, out=narrow), limit, out=is_)
        self._overflows += int(np.count_nonzero(is_))

    @property
    def known(self) -> dict[str, Any]:
        return {
            "errors": _finite(self._errors),
            "absolute": _finite(self._absolute),
            "worst": self._worst,
            "underflows": self._underflows,
            "overflows": self._overflows,
        }


class _Dots:
    """Sums up the errors of an accumulator's dot products.

    For a scaled format, a matrix unit or an integer accumulator gets cast values that are divided
    by their tensor's scale. Its sums are then multiplied by the scales of both tensors.
    """

    def __init__(self, cell: Cell) -> None:
        self._acc, self._seed = cell.sum, cell.seed
        self.takes_elements = takes_elements(cell.sum) and isinstance(cell.format, Scaled)
        self._count, self._squares, self._errors = 0, 0.0, 0.0

    def add(self, factors: list[tuple[Values, Values]], scale: Any, references: Wide) -> None:
        products = _flat(
            ops.gemm(probe, np.swapaxes(vectors, -1, -2), self._acc, seed=self._seed)
            for probe, vectors in factors
        )
        if self.takes_elements:
            products *= scale
        with np.errstate(invalid="ignore", over="ignore"):
            error = products - references
            self._errors += square(error)
        self._squares += square(references)
        self._count += references.size

    @property
    def known(self) -> dict[str, Any]:
        return {
            "dots": self._count,
            "dot_squares": self._squares,
            "dot_errors": _finite(self._errors),
        }


def _finite(error: float) -> float:
    """Returns the error, or infinity if it is NaN."""
    return math.inf if math.isnan(error) else error


class _Cast:
    """Casts a matrix tile by tile, with the same bits as a cast of the whole matrix at once.

    If tiles can be cast separately, the result of a tile is overwritten by the next tile. Otherwise
    the whole matrix is cast at once. A tile has up to `width` columns and `size` values.
    """

    def __init__(self, cell: Cell, x: Values, width: int = 0, size: int = 0) -> None:
        self.x, self._f = x, cell.format
        cast, self._seed = cell.to, cell.seed
        run = 0
        if isinstance(self._f, Scaled):
            if self._f.transform is not None:
                self.x = ops.hadamard(x, self._f.transform)
                self._f = untransformed(self._f.text)
            run = int(self._f.block) if self._f.block.isdigit() else 0
        # A tile of the matrix can be cast alone unless rounding is stochastic (random bits depend
        # on the index in the whole matrix) or a scale depends on values outside of the tile.
        alone = isinstance(self._f, Format) or (run > 0 and self._f.tensor_scale is None)
        cuts_runs = run > 0 and width < x.shape[1] and width % run > 0
        self._how = Cast(self._f, **rounding_of(cast))
        self._in_pieces = alone and cast.rounding != "stochastic" and not cuts_runs
        self._out = np.empty(size if self._in_pieces else 0, np.float32)

    @cached_property
    def whole(self) -> Values:
        y: Values = ops.cast(self.x, self._how, seed=self._seed)
        return y

    def of(self, piece: Piece) -> Values:
        if not self._in_pieces:
            return self.whole[piece]
        x = self.x[piece]
        out = self._out[: x.size].reshape(x.shape)
        y: Values = ops.cast(x, self._how, out=out, seed=self._seed)
        return y

    def scale(self, bare: bool) -> Any:
        """Returns the number by which `elements(y, bare)` divides the cast values y.

        It is the tensor's scale if `bare` is true, else 1.
        """
        return self._limits.scale if bare else np.float32(1)

    def elements(self, y: Values, bare: bool) -> Values:
        """Returns the cast values `y`, divided by the tensor's scale if `bare` is true.

        The quotients are elements of the scaled format. If the scale is 0, returns `y`.
        """
        scale = self.scale(bare)
        if not bare or scale == 0:
            return y
        assert isinstance(self._f, Scaled)
        x: Values = ops.cast(y / scale, self._f.element)  # y / scale may be off by a rounding
        return x

    def limit(self, piece: Piece) -> Any:
        """Returns the largest magnitude that does not overflow.

        For a scaled format, returns an array that broadcasts to the shape of the tile.
        """
        if isinstance(self._f, Format):
            return self._f.max
        if self._in_pieces:
            return _Limits(self.x[piece], self._f, self._how, self._seed).whole
        return self._limits.of(piece)

    @cached_property
    def _limits(self) -> _Limits:
        assert isinstance(self._f, Scaled)
        return _Limits(self.x, self._f, self._how, self._seed)


class _Limits:
    """The largest magnitude that does not overflow, for each block of a scaled matrix.

    The limit of a block with a scale of 0 is infinite: the block's values become 0, which does not
    count as overflow.
    """

    def __init__(self, x: Values, q: Scaled, cast: Cast, seed: int) -> None:
        codes = ops.encode(x, cast, seed=seed)[1]
        blocks, outer = (codes, codes) if q.tensor_scale is None else codes
        self._shape = x.shape
        self._rows, self._columns = _extents(q.block, x.shape)
        grid = (-(-x.shape[0] // self._rows), -(-x.shape[1] // self._columns))
        scales: Any = ops.decode(blocks, q.scale, grid)
        if q.tensor_scale is not None:
            over: Any = ops.decode(
                outer, q.tensor_scale, (x.shape[0] if q.outer == "row" else 1, 1)
            )
            if len(over) > 1:
                scales, self._rows = np.repeat(scales, self._rows, 0)[: x.shape[0]], 1
            scales = scales * over
        self.scale = scales.reshape(-1)[0]
        """The scale of the first block. If the whole tensor has one scale, it is this scale."""
        limits = scales * np.float32(q.element.max * (1 + NOISE))
        self._grid = np.where(scales == 0, np.float32(math.inf), limits)

    @property
    def whole(self) -> Any:
        return self.of((slice(0, self._shape[0]), slice(0, self._shape[1])))

    def of(self, piece: Piece) -> Any:
        """Returns the largest magnitude that does not overflow for each value of a tile.

        The array broadcasts to the shape of the tile.
        """
        limits = self._grid
        for axis, (part, length) in enumerate(zip(piece, (self._rows, self._columns), strict=True)):
            if limits.shape[axis] == 1:
                continue  # one limit, which NumPy broadcasts
            stop = min(part.stop, self._shape[axis])
            first = part.start // length
            limits = limits[_along(axis, first, -(-stop // length))]
            if length > 1:
                begin = first * length
                limits = np.repeat(limits, length, axis)[
                    _along(axis, part.start - begin, stop - begin)
                ]
        return limits


def _along(axis: int, start: int, stop: int) -> Piece:
    """Returns the index that selects rows (axis 0) or columns (axis 1) start … stop - 1."""
    part = slice(start, stop)
    return (part, slice(None)) if axis == 0 else (slice(None), part)


def _extents(block: str, shape: tuple[int, ...]) -> tuple[int, int]:
    """Returns the numbers of rows and columns of a block, for the text of `Scaled.block`."""
    if block in ("tensor", "row"):
        return (shape[0] if block == "tensor" else 1), shape[1]
    rows, columns = map(int, block.split("x")) if "x" in block else (1, int(block))
    return rows, columns
