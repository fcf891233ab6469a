# SPDX-License-Identifier: Apache-2.0
"""Rules by which products may be added, and the order of addition (tree) of each rule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cpd.hardware.probing.dots import F32, Dots
from cpd.hardware.probing.tree import Node, Tree, join
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.cast import Cast
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format
from cpd.ops import add, cast, fma, gemm, mul


class Rule(Protocol):
    """Computes the sums of dot products, with a given order of addition and given roundings."""

    @property
    def text(self) -> str:
        """The rule as a text for the user."""

    def __call__(self, dots: Dots) -> F32:
        """Returns the sum of each dot product by this rule, float32."""


@checked
@dataclass(frozen=True)
class Known:
    """A `cpd.Accumulator` as a rule.

    Attributes:
        accumulator: the accumulator that sums the products.
        result: the format to which the sum is rounded once more; default None: no more rounding.
    """

    accumulator: Accumulator
    result: Format | None = None

    @property
    def text(self) -> str:
        """The rule as users read it: the accumulator's text and, if set, the format `result`."""
        last = "" if self.result is None else f", the sum then rounded to {self.result}"
        return f"{self.accumulator}{last}"

    def __call__(self, dots: Dots) -> F32:
        """Computes the sums of dot products by this rule.

        Args:
            dots: the dot products.

        Returns:
            float32, one sum for each.
        """
        return self.sums(dots.a, dots.b, dots.c)

    def sums(self, a: F32, b: F32, c: F32 | None = None) -> F32:
        """Returns the sums that the rule gives, so that a rule can be passed to `probe`.

        Args:
            a: float32 (n, k), the first operands.
            b: float32 (n, k), the second operands.
            c: float32 (n,), the addends; default None: sums start from +0.

        Returns:
            float32 (n,), the sums.
        """
        addend = None if c is None else c[:, None, None]
        total: F32 = gemm(a[:, None, :], b[:, :, None], self.accumulator, addend)[:, 0, 0]
        return total if self.result is None else cast(total, self.result)


@dataclass(frozen=True)
class OrderTree:
    """Adds a dot product's terms, two at a time, in the order of a tree; rounds each sum once.

    All sums are rounded to one format. A product is added to a sum exactly (`product` is None), or
    is first rounded to the format `product`. The result may be rounded once more, to `result`.
    """

    tree: Tree
    k: int
    format: Format
    rounding: str
    product: Format | None
    result: Format | None = None

    @property
    def text(self) -> str:
        """The rule as a text: the tree, the format, how products are rounded, and the roundings."""
        product = "exact" if self.product is None else str(self.product)
        last = "" if self.result is None else f", the sum then rounded to {self.result}"
        return f"{self.format} in this order, product={product} rounding={self.rounding}{last}"

    def __call__(self, dots: Dots) -> F32:
        """Returns the sum of each dot product by this rule, float32."""
        sums = self._sum(self.tree, dots)
        if self.result is not None:
            sums = cast(sums, self.result)
        return sums

    def _sum(self, tree: Tree, dots: Dots) -> F32:
        if not isinstance(tree, Node):
            return self._leaf(tree, dots)
        x, y = tree.children
        if self.product is None:
            if isinstance(x, int) and x != self.k:
                x, y = y, x
            if isinstance(y, int) and y != self.k:  # x is a sum, the addend or a product
                done = self._sum(x, dots)
                a, b = dots.a[:, y], dots.b[:, y]
                return fma(a, b, done, Cast(self.format, rounding=self.rounding))
        total = self._sum(x, dots), self._sum(y, dots)
        return add(*total, Cast(self.format, rounding=self.rounding))

    def _leaf(self, leaf: int, dots: Dots) -> F32:
        if leaf == self.k:
            assert dots.c is not None
            return cast(dots.c, Cast(self.format, rounding=self.rounding))
        a, b = dots.a[:, leaf], dots.b[:, leaf]
        product = self.product or self.format
        return mul(a, b, Cast(product, rounding=self.rounding))


def same(x: F32, y: F32) -> npt.NDArray[np.bool_]:
    """Returns a mask: True where two arrays of sums are equal. +0 equals -0, NaN equals NaN."""
    alike: npt.NDArray[np.bool_] = (x == y) | (np.isnan(x) & np.isnan(y))
    return alike


# ---- trees of rules ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Blocks:
    """The order in which a matrix unit adds k products.

    `adder` is as in `cpd.Accumulator`, or `separate`: products are aligned and added without the
    running sum, which is added afterwards.
    """

    block: int
    promote: int = 0
    adder: str = "aligned"
    group: int = 0
    stride: int = 4
    take: int = 2

    def order(self, k: int) -> list[int]:
        """Returns the indices of k products in the order in which the unit adds the products."""
        if self.group == 0:
            return list(range(k))
        return sorted(
            range(k), key=lambda i: (i // self.group, i % self.group % self.stride // self.take, i)
        )

    def blocks(self, k: int) -> list[list[int]]:
        """Returns the products' indices, one list for each block (products added at once)."""
        order = self.order(k)
        return [order[at : at + self.block] for at in range(0, k, self.block)]

    def tree(self, k: int, addend: bool) -> Tree:
        """Returns the order in which the unit adds k products to an addend, if any, as a tree."""
        blocks = self.blocks(k)
        every = self.promote // self.block or len(blocks)
        groups = [blocks[at : at + every] for at in range(0, len(blocks), every)]
        total: Tree | None = k if addend else None
        if self.promote == 0:
            return self._chain(total, groups[0])
        for group in groups:
            total = join([total, self._chain(None, group)])
        assert total is not None
        return total

    def _chain(self, start: Tree | None, blocks: Sequence[Sequence[int]]) -> Tree:
        for block in blocks:
            start = self._added(start, block)
        assert start is not None
        return start

    def _added(self, total: Tree | None, block: Sequence[int]) -> Tree:
        if self.adder in ("aligned", "exact"):
            return join([total, *block], self.adder == "exact")
        if self.adder == "flushed_pairs":
            return join([total, pairwise(block)])
        if self.adder == "two_steps_even" and len(block) > 1:
            return join([total, join([join(block[::2]), join(block[1::2])])])
        return join([total, join(block)])


_WIDEST = 64  # block and group of a matrix unit
ADDERS = ("aligned", "separate", "exact", "flushed_pairs", "two_steps_even")


def pairwise(trees: Sequence[Tree]) -> Tree:
    """Returns the order of a sum as a tree: neighbors in pairs; an odd last term moves up."""
    while len(trees) > 1:
        trees = [join(trees[at : at + 2]) for at in range(0, len(trees), 2)]
    return trees[0]


def sequential(start: Tree | None, trees: Sequence[Tree]) -> Tree:
    """Returns the order of a sum as a tree: to `start`, add the sums `trees` one after another."""
    for tree in trees:
        start = join([start, tree])
    assert start is not None
    return start


def chunked(start: Tree | None, k: int, chunk: int) -> Tree:
    """Returns the order of a sum as a tree: add the terms of each chunk, then the chunks' sums."""
    chunks = [range(at, min(at + chunk, k)) for at in range(0, k, chunk)]
    return sequential(start, [sequential(None, leaves) for leaves in chunks])


def nodes(tree: Tree) -> Iterator[Node]:
    """Yields each node of the tree; a node precedes its children."""
    if isinstance(tree, Node):
        yield tree
        for child in tree.children:
            yield from nodes(child)


def schemes_of(tree: Tree, k: int, addend: bool) -> list[dict[str, Any]]:
    """Returns arguments of `cpd.Accumulator` with which it adds in the order of `tree`.

    The schemes tried are `sequential`, `chunked` and `pairwise`.
    """
    start = k if addend else None
    if tree == sequential(start, range(k)):
        return [{"scheme": "sequential"}]
    sizes = sorted({len(node.leaves) for node in nodes(tree)} & set(range(2, k + 1)))
    schemes: list[dict[str, Any]] = [
        {"scheme": "chunked", "chunk": chunk} for chunk in sizes if tree == chunked(start, k, chunk)
    ]
    if tree == join([start, pairwise(range(k))]):
        schemes.append({"scheme": "pairwise"})
    return schemes


def units_of(tree: Tree, k: int, addend: bool) -> list[Blocks]:
    """Returns the matrix units (`Blocks`) that add k products in the order of `tree`.

    Units that add products in ascending order are tried first. Then units are tried that divide
    the products into groups and add each group in another order.
    """
    flat = [
        frozenset(child for child in node.children if child in range(k)) for node in nodes(tree)
    ]
    sizes = {len(node.leaves) for node in nodes(tree)}
    widths = sorted({1, *map(len, flat), *sizes} & set(range(1, min(k, _WIDEST) + 1)))
    shapes = [
        (block, promote, adder)
        for block in widths
        for promote in (0, *sorted(size for size in sizes | {block} if size % block == 0))
        if promote < k + addend and promote != 1
        for adder in (ADDERS if block > 1 else ADDERS[:1])
        if adder != "separate" or promote != block
    ]
    units = [Blocks(*shape) for shape in shapes]
    units = [unit for unit in units if unit.tree(k, addend) == tree]
    if units:
        return units
    sets = set(flat)
    for block in widths:
        for order in _orders(block, k):
            if frozenset(Blocks(block, 0, "aligned", *order).order(k)[:block]) not in sets:
                continue
            variants = (Blocks(*shape, *order) for shape in shapes if shape[0] == block)
            fitting = next((unit for unit in variants if unit.tree(k, addend) == tree), None)
            if fitting is not None:
                return [fitting]
    return []


def _orders(block: int, k: int) -> Iterator[tuple[int, int, int]]:
    for group in range(2 * block, min(k, _WIDEST) + 1, block):
        for stride in range(2, group + 1):
            if group % stride == 0:
                yield from ((group, stride, take) for take in range(stride - 1, 0, -1))
