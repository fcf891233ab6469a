# SPDX-License-Identifier: Apache-2.0
"""`cpd.hardware.probe`: finds, from a function's results, the rule by which it adds products."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from cpd.hardware.probing import fit
from cpd.hardware.probing.dots import F32, Dots, Inputs, Powers, joined
from cpd.hardware.probing.rules import Known, Rule, nodes, same
from cpd.hardware.probing.tree import Mask, Node, OrderError, Tree, text, tree_of
from cpd.numeric.accumulator import Accumulator, as_unit, unit_fields
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, FormatLike, as_format
from cpd.numeric.numbers import int32

_MOST_TERMS = 1024
_ROUNDS = 3
_VERIFIED = 1500
"""The number of random dot products on which a rule must agree before it is reported."""


@dataclass(frozen=True)
class Probed:
    """The rule that a probe found.

    Attributes:
        a: the format of the first operand.
        b: the format of the second operand.
        c: the format of the addend; None: there was none.
        k: the number of products of a dot product.
        order: the order of addition as a tree, such as `((c + 0) + 1)`; numbers are products, c is
            the addend. Brackets, as in `[c 0…15]`, enclose more than two terms that are added at
            once. Braces enclose such terms if the sum keeps all their bits. If no tree was found,
            the text gives the reason.
        accumulator: the rule as a `cpd.Accumulator`; None if no accumulator fits.
        rule: the rule as a text; empty if no rule fits. If no accumulator has this order, the text
            has the format, the tree and the rounding.
        unsure: what the probe could not decide: other values of the rule's fields that give the
            same sums.
        presets: the names of accumulators of known hardware that give the same sums.
        notes: the special cases in which the function differs from the rule: sums beyond the range,
            infinities and NaNs, signs of zeros.
        verified: the number of random dot products on which the rule agreed.
        asked: the total number of dot products that the probe passed to the function.

    >>> import cpd
    >>> found = probe(lambda a, b, c: ((a * b).sum(1) + c).round(), "e2m1", k=2)
    >>> found.accumulator is None, found.rule
    (True, '')
    """

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
        """Returns all attributes of this object as a dict of plain data, for JSON."""
        unit = self.accumulator and as_unit(self.accumulator)
        texts = {"accumulator": None if self.accumulator is None else str(self.accumulator)}
        texts |= {name: str(getattr(self, name)) for name in ("a", "b")}
        texts["c"] = None if self.c is None else str(self.c)
        plain = {
            name: list(value) if isinstance(value := getattr(self, name), tuple) else value
            for name in ("k", "order", "rule", "unsure", "presets", "notes", "verified", "asked")
        }
        held = unit and {
            name: str(v) if isinstance(v, Format) else v for name, v in unit_fields(unit).items()
        }
        return {**plain, **texts, "unit": held}

    def __str__(self) -> str:
        operands = str(self.a) if self.a == self.b else f"{self.a} and {self.b}"
        addend = "no addend" if self.c is None else f"an addend in {self.c}"
        lines = [f"{self.k} products of {operands}, {addend}", f"order      {self.order}"]
        if not self.rule:
            lines.append("rule       none of CPD's gives these sums")
        else:
            lines.append(f"rule       {self.rule}")
        lines += [f"like       {', '.join(self.presets)}"] if self.presets else []
        lines += [f"unsure     {doubt}" for doubt in self.unsure]
        lines += [f"note       {note}" for note in self.notes]
        lines.append(f"verified   {self.verified:,} random dot products; {self.asked:,} asked for")
        return "\n".join(lines)


@checked
def probe(
    function: Callable[..., Any],
    a: FormatLike,
    b: FormatLike | None = None,
    c: FormatLike | None = "fp32",
    *,
    k: int = 64,
    seed: int = 0,
    matmul: bool = False,
) -> Probed:
    """Finds the order, formats and roundings with which `function` adds products.

    The order is found by masking (FPRev, arXiv 2411.00442): a large M hides the terms that are
    added before -M cancels it. Candidates are rules of matrix units (as in Hawkeye, arXiv
    2603.20421) and of floating-point sums. The probe compares candidates on random sums with
    cancellation, until the remaining candidates agree on all sums. The reported rule has then
    agreed with the function on 1,500 more random dot products.

    Args:
        function: `function(a, b, c)`, or without an addend `function(a, b)`. It computes n dot
            products at once and returns n numbers, as an array or a tensor. a and b are float32
            arrays of shape (n, k) with values of their formats, c is an array of shape (n,).
            `cpd.hardware.Command` is such a function, which runs a command.
        a: the format of the first operand.
        b: the format of the second operand; default the format of a.
        c: the format of the addend; default fp32. None: there is no addend, and a sum starts from
            +0.
        k: the number of products of a dot product, 2…1024; default 64. A pattern that repeats after
            more than k products is not found. Example: to find sums that are promoted to fp32 every
            128 products, use k = 256.
        seed: the seed of the random dot products; default 0.
        matmul: whether `function` is a matrix product, such as a GPU's. It then takes float32
            arrays of shapes (64, k), (k, 64) and, with an addend, (64, 64). It returns a product of
            shape (64, 64), whose diagonal has the dot products. Default False.

    Returns:
        The rule, what could not be decided, and the special cases that differ from the rule.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an invalid argument, for a function that returns anything but n numbers or
            a 64 × 64 product, and for a function that returns two results for the same operands.

    >>> import cpd, numpy as np
    >>> def unit(a, b, c):
    ...     return cpd.gemm(a[:, None, :], b[:, :, None], "h100-fp16", c[:, None, None])[:, 0, 0]
    >>> found = probe(unit, "fp16", k=32)
    >>> found.accumulator.block, found.accumulator.fraction_bits, found.accumulator.sum_rounding
    (16, 25, 'toward_zero')
    >>> found.unsure[0]
    'min_exponent: any below -123'
    """
    k = int32("k", k)
    if not 2 <= k <= _MOST_TERMS:
        raise ValueError(f"k must be 2…{_MOST_TERMS}, got {k}")
    formats = as_format(a), as_format(a if b is None else b), None if c is None else as_format(c)
    if not (formats[0].signed or formats[1].signed):
        raise ValueError("one of a and b must be signed: products of both signs are needed")
    if formats[2] is not None and not formats[2].signed:
        raise ValueError(f"c must be a signed format, got {formats[2]}")
    dots = _dots_of(function) if matmul else function
    return _Probe(dots, Inputs(*formats, k), int32("seed", seed)).run()


def _dots_of(matmul: Callable[..., Any], size: int = 64) -> Callable[..., Any]:
    """Returns a function of dot products that calls a matrix product.

    `size` dot products are computed at a time: their operands are the rows of a and the columns of
    b, and their results are the diagonal of the product.
    """

    def dots(a: F32, b: F32, c: F32 | None = None) -> F32:
        sums = np.empty(len(a), np.float32)
        for begin in range(0, len(a), size):
            rows = slice(begin, begin + size)
            operands = [_padded(a[rows], size), _padded(b[rows], size).T]
            if c is not None:
                operands.append(np.diag(_padded(c[rows, None], size)[:, 0]))
            product = _array(matmul(*map(np.ascontiguousarray, operands)))
            if product.shape != (size, size):
                raise ValueError(
                    f"the product must be of shape ({size}, {size}), got {product.shape}"
                )
            sums[rows] = np.diagonal(product)[: len(a[rows])]
        return sums

    return dots


def _padded(x: F32, size: int) -> F32:
    return np.concatenate([x, np.zeros((size - len(x), x.shape[1]), np.float32)])


def _array(values: Any) -> np.ndarray[Any, Any]:
    """Returns an array, or a tensor on any device, as a NumPy array."""
    return np.asarray(values.detach().float().cpu() if hasattr(values, "detach") else values)


class _Probe:
    def __init__(self, function: Callable[..., Any], inputs: Inputs, seed: int) -> None:
        self.function, self.inputs = function, inputs
        self.rng = np.random.default_rng(seed)
        self.asked = 0

    def ask(self, dots: Dots) -> F32:
        if not len(dots):
            return np.zeros(0, np.float32)
        with np.errstate(all="ignore"):
            sums = _array(self.function(*(x for x in (dots.a, dots.b, dots.c) if x is not None)))
        if sums.shape != (len(dots),) or sums.dtype.kind not in "fiV":
            raise ValueError(
                f"the function must give {len(dots)} numbers for {len(dots)} dot products, got "
                + (f"{sums.dtype} of shape {sums.shape}" if sums.dtype != object else f"{sums}")
            )
        self.asked += len(dots)
        with np.errstate(over="ignore"):
            return sums.astype(np.float32)

    def run(self) -> Probed:
        self._check_steady()
        tree, mask, order = self._tree()
        self.regimes = fit.Regimes(self.ask, self.inputs, mask, self._first_block(tree))
        more: list[fit.Seen] = []
        for _ in range(_ROUNDS):
            rules = fit.narrowed(self._rules(tree, mask, more), self.regimes, self.rng)
            fresh = [self.regimes.seen(make(self.rng, _VERIFIED // 3)) for make in (
                self.regimes.block, self.regimes.all, self.regimes.tiny
            )]  # fmt: skip
            left = [rule for rule in rules if all(seen.agrees(rule) for seen in fresh)]
            if left or not rules:
                break
            more += fresh[:2]  # these sums refute rules that earlier sums did not refute
        return self._told(order, left, sum(len(seen.dots) for seen in fresh))

    def _check_steady(self) -> None:
        inputs = self.inputs
        regimes = fit.Regimes(self.ask, inputs, None, list(range(inputs.k)))
        dots = regimes.all(self.rng, 32)
        twice = joined([dots, dots])
        first, again, later = *np.split(self.ask(twice), 2), self.ask(dots)
        if not (same(first, again).all() and same(first, later).all()):
            raise ValueError(
                "the function gave two results for one dot product: its sums are random, or depend "
                "on the product's index in the batch"
            )

    def _tree(self) -> tuple[Tree | None, Mask | None, str]:
        inputs, mask = self.inputs, None
        try:
            mask = Mask(self.ask, inputs)
            leaves = list(range(inputs.k))
            if inputs.c is not None:
                leaves.insert(0, inputs.k)
            tree = tree_of(mask.sizes(), leaves)
        except OrderError as reason:
            return None, mask, f"unknown: {reason}"
        return tree, mask, text(tree, inputs.k)

    def _first_block(self, tree: Tree | None) -> list[int]:
        """Returns the indices of the products that the probed function adds first, in one block.

        Returns the first four products if the tree of sums is unknown, or if the first block has
        only one product.
        """
        k = self.inputs.k
        if isinstance(tree, Node):
            flat = (
                node for node in nodes(tree) if not any(isinstance(x, Node) for x in node.children)
            )
            first = min(flat, key=lambda node: min(node.leaves))
            chosen = [leaf for leaf in sorted(first.leaves) if leaf != k]
            if len(chosen) > 1:
                return chosen
        return list(range(min(k, 4)))

    def _rules(self, tree: Tree | None, mask: Mask | None, more: list[fit.Seen]) -> list[Rule]:
        regimes, rng = self.regimes, self.rng
        block, whole, bare = (
            regimes.seen(make(rng, 360)) for make in (regimes.block, regimes.all, regimes.bare)
        )
        bits = [fit.significant_bits(some.sums) for some in (bare, whole)]
        regimes.gaps = sorted({*bits})
        passing, powers = (mask.passing, mask.given) if mask else ([self.inputs.products],) * 2
        figures = fit.Figures(
            fit.formats_of(bits[0], passing[:1], powers[:1]),
            fit.formats_of(bits[1], passing, powers),
            fit.formats_of(24, passing, powers),
            Powers(min(p.low for p in passing), max(p.high for p in passing)),
        )
        cuts = regimes.seen(regimes.cuts())
        seen = fit.mingled([block, whole, cuts, *more], rng)
        tiny = regimes.seen(joined([regimes.edges(), regimes.tiny(rng, 160)]).shuffled(rng))
        for stage in fit.stages(tree, self.inputs, figures):
            fitting = [rule for group in stage for rule in fit.fitting(group, seen)]
            matches = [
                variant
                for rule in fitting
                for variant in fit.with_exponents(tiny.agrees, rule, passing)
            ]
            if matches:
                return matches
        return []

    def _told(self, order: str, rules: list[Rule], verified: int) -> Probed:
        inputs = self.inputs
        fields: dict[str, Any] = {
            "a": inputs.a, "b": inputs.b, "c": inputs.c, "k": inputs.k, "order": order,
        }  # fmt: skip
        if not rules:
            return Probed(**fields, accumulator=None, rule="", unsure=(), presets=(), notes=(),
                          verified=0, asked=self.asked)  # fmt: skip
        rule = rules[0]
        pool = self.regimes.mixed(self.rng, _VERIFIED)
        accumulator = rule.accumulator if isinstance(rule, Known) and not rule.result else None
        return Probed(
            **fields,
            accumulator=accumulator,
            rule=rule.text,
            unsure=tuple(fit.unsure(rules, pool)),
            presets=tuple(self._presets(rule, pool)),
            notes=tuple(self._notes(rule)),
            verified=verified,
            asked=self.asked,
        )

    def _presets(self, rule: Rule, pool: Dots) -> list[str]:
        sums = fit.Seen(pool, rule(pool))
        return [name for name, acc in fit.presets_of(self.inputs) if sums.agrees(Known(acc))]

    def _notes(self, rule: Rule) -> list[str]:
        """Returns a text for each kind of special input for which the rule's results are wrong.

        Results are wrong if they differ from the results of the probed function.
        """
        kinds = {
            "sums near and beyond the range": self.regimes.huge(self.rng, 256),
            "sums of Inf and NaN": self.inputs.specials(),
            "sums of zeros": self.inputs.zeros_of_signs(),
        }
        notes = []
        for kind, dots in kinds.items():
            if not len(dots):
                continue
            sums, expected = self.ask(dots), rule(dots)
            wrong = ~same(sums, expected)
            if wrong.any():
                row = int(np.argmax(wrong))
                notes.append(
                    f"{kind}: {wrong.sum()} of {len(dots)} are not the rule's, such as "
                    f"{sums[row]:g} for {expected[row]:g}"
                )
            signs = ~wrong & (sums == 0) & (np.signbit(sums) != np.signbit(expected))
            if signs.any():
                notes.append(f"{kind}: {signs.sum()} of {len(dots)} are zeros of the other sign")
        return notes
