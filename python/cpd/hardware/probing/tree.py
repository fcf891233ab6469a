# SPDX-License-Identifier: Apache-2.0
"""The order of a sum as a tree, and a search for it (after FPRev, arXiv 2411.00442).

The terms of a sum are the leaves of the tree; each node adds its children. To test two leaves, one
leaf is set to M, the other to -M. All other leaves are set to u, a power of two so small that M + u
gives M. A term u is lost if it is added to M or -M before these two are in one sum. So the sum is u
times the number of leaves that are not below the node in which the two leaves meet. The results for
all pairs of leaves determine the tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cpd.hardware.probing.dots import Dots, Inputs, Powers

Ask: TypeAlias = Callable[[Dots], npt.NDArray[np.float32]]
_MOST_ROWS = 2**22  # values of an operand in one batch


class OrderError(Exception):
    """Raised if the order of addition cannot be found from the sums; the text has the reason."""


@dataclass(frozen=True)
class Node:
    """A node of the tree: the sum of its children, which are added at once.

    The sum of two children is rounded once. If `exact` is true, a sum of more children loses no
    small term, although a much greater term is added in the same operation.
    """

    children: frozenset[Tree]
    exact: bool = False

    @cached_property
    def leaves(self) -> frozenset[int]:
        """The numbers of all leaves below the node."""
        return frozenset().union(*map(leaves_of, self.children))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self.children, self.exact))


Tree: TypeAlias = Node | int


def leaves_of(tree: Tree) -> frozenset[int]:
    """Returns the leaves of a tree: numbers of products, and the number of the addend."""
    return tree.leaves if isinstance(tree, Node) else frozenset([tree])


def join(trees: Sequence[Tree | None], exact: bool = False) -> Tree:
    """Returns the order of a sum whose terms are the sums `trees`, as a tree with a new root.

    The root adds the sums of all its children in one operation. `exact` is the root's property
    `Node.exact`; it is ignored for fewer than three children. An item None of `trees` stands for
    +0 and is left out. If only one tree remains, this tree is returned.
    """
    terms = [tree for tree in trees if tree is not None]
    if len(terms) == 1:
        return terms[0]
    return Node(frozenset(terms), exact and len(terms) > 2)


def is_binary(tree: Tree) -> bool:
    """Returns whether each node of the tree has two children."""
    if not isinstance(tree, Node):
        return True
    return len(tree.children) == 2 and all(map(is_binary, tree.children))


def text(tree: Tree, addend: int) -> str:
    """Returns a tree's text, such as `((c + 0) + 1)`.

    More than two terms that are added at once are in brackets, `[0 1 2 3]`, or in braces, `{0 1 2
    3}`, if the sum is exact. `0…15` is a range of leaves. The leaf `addend` is `c`.
    """
    if not isinstance(tree, Node):
        return "c" if tree == addend else str(tree)
    parts = sorted(tree.children, key=lambda part: _first(part, addend))
    if len(parts) == 2:
        return f"({text(parts[0], addend)} + {text(parts[1], addend)})"
    shown: list[str] = []
    run: list[int] = []
    for part in [*parts, None]:
        if run and part != run[-1] + 1:
            shown.append(f"{run[0]}…{run[-1]}" if len(run) > 2 else " ".join(map(str, run)))
            run = []
        if isinstance(part, int) and part != addend:
            run.append(part)
        elif part is not None:
            shown.append(text(part, addend))
    return f"{'{['[not tree.exact]}{' '.join(shown)}{'}]'[not tree.exact]}"


def _first(tree: Tree, addend: int) -> int:
    return min(-1 if leaf == addend else leaf for leaf in leaves_of(tree))


class Mask:
    """Tests, for each pair of terms, how many terms a function adds before both are in one sum.

    A test sets two terms (leaves) to M and -M, and others to u. M = 2^high and u = 2^low are the
    greatest and the least power of two that the function returns unchanged, whether a product or
    the addend has this value. `group` is the number of terms u that the function adds exactly.
    """

    def __init__(self, ask: Ask, inputs: Inputs) -> None:
        self.ask, self.inputs = ask, inputs
        kinds = [0] if inputs.c is None else [0, inputs.k]
        self.given = [inputs.powers(leaf) for leaf in kinds]
        self.passing = [self._passing(leaf) for leaf in kinds]
        """The ranges of powers of two that the function returns unchanged if all other terms are 0:
        first the range of a product, then, if there is an addend, the range of the addend."""
        self.low = max(powers.low for powers in self.passing)
        self.high = min(powers.high for powers in self.passing)
        self.group = self._counted()

    def _passing(self, leaf: int) -> Powers:
        powers = self.inputs.powers(leaf)
        exponents = range(powers.low, powers.high + 1)
        dots = self.inputs.zeros(len(exponents))
        for row, e in enumerate(exponents):
            self.inputs.put(dots, row, leaf, e)
        with np.errstate(over="ignore", under="ignore"):
            expected = np.ldexp(np.float32(1), np.array(exponents, np.int32))
        same = (self.ask(dots) == expected) & np.isfinite(expected) & (expected > 0)
        if not same.any():
            role = "an addend" if leaf == self.inputs.k else "a product"
            raise OrderError(f"no power of two passes unchanged as {role} next to zeros")
        first, last = np.flatnonzero(same)[[0, -1]]
        return Powers(exponents[int(first)], exponents[int(last)])

    def _counted(self) -> int:
        n = self.inputs.leaves
        dots = self.inputs.zeros(2 * n)
        for row in range(n):
            for leaf in range(n):
                if leaf <= row:
                    self.inputs.put(dots, row, leaf, self.low)
                if leaf >= row:
                    self.inputs.put(dots, n + row, leaf, self.low)
        counts = np.ldexp(self.ask(dots).astype(np.float64), -self.low)
        expected = np.concatenate([np.arange(1, n + 1), np.arange(n, 0, -1)])
        wrong = expected[counts != expected]
        if not len(wrong):
            return n
        most = int(wrong.min()) - 1
        return 1 << (most.bit_length() - 1) if most > 0 else 1

    def sizes(self) -> npt.NDArray[np.int64]:
        """Returns a matrix: how many leaves the smallest node has that contains leaves i and j."""
        n = self.inputs.leaves
        pairs = np.array([(i, j) for i in range(n) for j in range(i + 1, n)])
        left = np.full(len(pairs), -1)
        for sign, unit in ((1, 1), (-1, 1), (1, -1), (-1, -1)):
            unknown = np.flatnonzero(left < 0)
            if len(unknown):
                left[unknown] = self._left(pairs[unknown], sign, unit)
        if (left < 0).any():
            i, j = pairs[np.argmax(left < 0)]
            raise OrderError(
                f"±2^{self.high} in products {i} and {j} do not cancel, whatever their signs: a "
                f"sum keeps traces of 2^{self.low} next to 2^{self.high}"
            )
        counts = np.ones((n, n), np.int64)
        counts[tuple(pairs.T)] = counts[tuple(pairs.T[::-1])] = n - left
        return counts

    def _left(self, pairs: npt.NDArray[np.int64], sign: int, unit: int) -> npt.NDArray[np.int64]:
        """Counts the terms u that a sum keeps if two other terms are M and -M (see `Mask`).

        Returns a count for each of `pairs`, or -1 if the sum is not a whole multiple of u, or is
        too large.
        """
        n = self.inputs.leaves
        total = np.zeros(len(pairs), np.int64)
        for begin in range(0, n, self.group):
            members = range(begin, min(begin + self.group, n))
            step = max(1, _MOST_ROWS // self.inputs.k)
            for at in range(0, len(pairs), step):
                some = pairs[at : at + step]
                counts = self._count(some, members, sign, unit)
                most = np.array([sum(m not in pair for m in members) for pair in some.tolist()])
                good = (counts >= 0) & (counts <= most) & (counts == np.floor(counts))
                part = total[at : at + step]
                part[:] = np.where(good & (part >= 0), part + np.where(good, counts, 0), -1)
        return total

    def _count(
        self, pairs: npt.NDArray[np.int64], members: range, sign: int, unit: int
    ) -> npt.NDArray[np.float64]:
        base = self.inputs.zeros(1)
        for leaf in members:
            self.inputs.put(base, 0, leaf, self.low, unit)
        dots = base.each(lambda x: np.repeat(x, len(pairs), axis=0))
        for row, (i, j) in enumerate(pairs.tolist()):
            self.inputs.put(dots, row, i, self.high, sign)
            self.inputs.put(dots, row, j, self.high, -sign)
        with np.errstate(all="ignore"):
            return np.ldexp(self.ask(dots).astype(np.float64), -self.low) * unit


def tree_of(sizes: npt.NDArray[np.int64], order: list[int]) -> Tree:
    """Builds a tree from `sizes`, the result of `Mask.sizes`.

    sizes[i, j] is the number of leaves below the node at which leaves i and j meet. Raises
    OrderError if there is no such tree.
    """
    tree = _built(sizes, order)
    if not np.array_equal(_sizes_of(tree, len(order)), sizes):
        raise OrderError("no order of sums explains which terms two large ones make it lose")
    return tree


def _built(sizes: npt.NDArray[np.int64], leaves: list[int]) -> Tree:
    tree: Tree = leaves[0]
    size = 1
    to_first = sizes[leaves[0]]
    for value in sorted({int(to_first[leaf]) for leaf in leaves[1:]}):
        others = [leaf for leaf in leaves[1:] if to_first[leaf] == value]
        exact = value == size + 1
        if not exact and value != size + len(others):
            raise OrderError("no order of sums explains which terms are lost next to large ones")
        parts = [[leaf] for leaf in others] if exact else _parts(sizes, others, value)
        tree = join([tree, *(_built(sizes, part) for part in parts)], exact)
        size += len(others)
    return tree


def _parts(sizes: npt.NDArray[np.int64], leaves: list[int], value: int) -> list[list[int]]:
    """Splits `leaves` into lists, one for each subtree with fewer than `value` leaves.

    Two leaves share a list if the smallest node that contains both has fewer than `value` leaves.
    `sizes` has the number of leaves of that node for each pair of leaves.
    """
    left, parts = list(leaves), []
    while left:
        part = [leaf for leaf in left if leaf == left[0] or sizes[left[0], leaf] < value]
        left = [leaf for leaf in left if leaf not in part]
        parts.append(part)
    return parts


def _sizes_of(tree: Tree, n: int) -> npt.NDArray[np.int64]:
    """Returns the matrix that `Mask.sizes` returns for a function that adds in this order."""
    sizes = np.ones((n, n), np.int64)

    def walk(subtree: Tree) -> list[int]:
        if not isinstance(subtree, Node):
            return [subtree]
        parts = [walk(child) for child in subtree.children]
        whole = sum(map(len, parts))
        greatest = max(map(len, parts))
        for i, left in enumerate(parts):
            for right in parts[:i]:
                met = max(len(left), len(right)) + 1 if subtree.exact else whole
                sizes[np.ix_(left, right)] = sizes[np.ix_(right, left)] = met
        assert not subtree.exact or sum(len(part) > 1 for part in parts) <= 1 or greatest == 1
        return [leaf for part in parts for leaf in part]

    walk(tree)
    return sizes
