# SPDX-License-Identifier: Apache-2.0
"""For one order of addition, makes candidate rules and rejects rules that give wrong sums."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from cpd.hardware.probing.dots import F32, Dots, Inputs, Powers, joined
from cpd.hardware.probing.rules import Blocks, Known, OrderTree, Rule, same, schemes_of, units_of
from cpd.hardware.probing.tree import Ask, Mask, Tree, is_binary
from cpd.numeric.accumulator import UNCUT, Accumulator, Unit, as_unit, unit_fields
from cpd.numeric.formats import Format, as_format

STANDARD = ("fp32", "fp16", "bf16", "tf32")
_ROUNDINGS = ("nearest_even", "toward_zero", "nearest_away", "up", "down", "to_odd")
_FRACTIONS = range(1, 31)  # of a matrix unit
_MOST_TOLD = 6  # other rules that are reported
_FIRST = 32  # rows on which every candidate is tested
_MOST_KEPT = 12  # candidates of a group that are kept
_LEAST_EXPONENT, _MOST_EXPONENT = -400, 127  # of a matrix unit
_MOST_CUT = 48  # binades between the greatest min_exponent that may be and the least
_USUAL_EXPONENT, _USUAL_FRACTION = -133, 25
_MOST_NEAR = 24  # values of min_exponent that are kept


class Seen(NamedTuple):
    """Dot products and the sums that the probed function returned for them."""

    dots: Dots
    sums: F32

    def agrees(self, rule: Rule | None) -> bool:
        """Returns whether a rule gives all observed sums. None gives none of them.

        A few sums are tested first, so that most wrong rules are rejected fast.
        """
        if rule is None:
            return False
        for rows in (slice(_FIRST), slice(_FIRST, 10 * _FIRST), slice(10 * _FIRST, None)):
            if not same(rule(self.dots.rows(rows)), self.sums[rows]).all():
                return False
        return True


class Regimes:
    """Makes dot products of several kinds, and passes them to the probed function.

    The kinds are: nonzero products only in the unit's first block, nonzero products at any of the
    k indices, tiny products, and huge products.
    """

    def __init__(self, ask: Ask, inputs: Inputs, mask: Mask | None, first: list[int]) -> None:
        self.ask, self.inputs = ask, inputs
        products = inputs.products
        low, high = (mask.low, mask.high) if mask else products
        limited = mask is not None and mask.passing[0].high < products.high
        self._most = 2.0**high if limited else np.finfo(np.float32).max
        top = high - (2 if limited else 0)
        self._common = (low + high) // 2, max((low + high) // 2, top)
        self._tiny = max(products.low, low - 30), max(low, min(top, low + 25))
        self._huge = max(low, high - 3), products.high
        self._low, self._high = low, high
        self._first, self._all = [first], [first, list(range(inputs.k))]
        self.gaps = [8, 11, 14, 24]
        """Precisions, in bits, to which the probed function may round. Some of the dot products of
        this class have sums near ties of rounding to these precisions."""

    def block(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n dot products; only products that the unit adds first, at once, are nonzero."""
        return self._made(rng, n, self._first, self._common)

    def bare(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n dot products as `block` makes them, but each addend is 0."""
        dots = self.block(rng, n)
        return dots if dots.c is None else Dots(dots.a, dots.b, np.zeros_like(dots.c))

    def all(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n dot products in which any of the k products may be nonzero."""
        return self._made(rng, n, self._all, self._common)

    def tiny(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n dot products with terms near the smallest products of two operands.

        If the constructor got a `Mask`, the terms are instead near the least power of two that the
        probed function returns unchanged.
        """
        return self._made(rng, n, self._all, self._tiny)

    def huge(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n dot products with terms near the largest products of two operands."""
        return self._made(rng, n, self._all, self._huge)

    def edges(self) -> Dots:
        """Returns dot products with terms so small that a matrix unit may truncate them.

        In some sums, small terms are next to a great term; in others, the whole sum is tiny.
        """
        return joined([self.cuts(), self.inputs.floors(self._first[0], self._low)])

    def cuts(self) -> Dots:
        """Returns dot products with a great and a small term, which the unit adds at once."""
        return self.inputs.cuts(self._first[0], self._high)

    def mixed(self, rng: np.random.Generator, n: int) -> Dots:
        """Returns n random dot products and all dot products of `edges`, in random order."""
        random = [self.block(rng, n // 3), self.all(rng, n // 3), self.tiny(rng, n - n // 3 * 2)]
        return joined([*random, self.edges()]).shuffled(rng)

    def seen(self, dots: Dots) -> Seen:
        """Calls the probed function; returns dot products with the sums that the function gave.

        Leaves out dot products with too large sums (magnitudes from `_most` on) or NaN.
        """
        sums = self.ask(dots)
        within = np.flatnonzero(np.abs(sums) < self._most)
        return Seen(dots.rows(within), sums[within])

    def _made(
        self,
        rng: np.random.Generator,
        n: int,
        windows: list[list[int]],
        exponents: tuple[int, int],
    ) -> Dots:
        dense = self.inputs.random(rng, n - n // 3, windows, exponents)
        gaps = [max(1, gap + shift) for gap in self.gaps for shift in (-2, -1, 0, 1, 2)]
        sparse = self.inputs.sparse(rng, n // 3, windows, exponents, gaps)
        return joined([dense, sparse]).shuffled(rng)


def significant_bits(x: F32) -> int:
    """Returns the largest number of significant bits of the finite numbers in `x`.

    The significant bits of a number are the bits from its first 1 bit to its last 1 bit.
    """
    finite = np.abs(x[np.isfinite(x) & (x != 0)]).astype(np.float64)
    if not len(finite):
        return 1
    whole = np.ldexp(np.frexp(finite)[0], 24).astype(np.int64)
    last = np.log2(whole & -whole).astype(np.int64)
    return int((24 - last).max())


def formats_of(bits: int, passed: Sequence[Powers], given: Sequence[Powers]) -> list[Format]:
    """Returns candidates for the format of a sum, with `bits` significant bits.

    `passed` has the ranges of powers of two that the probed function returned unchanged, so the
    candidates must represent these powers. `given` has the ranges of powers that the function's
    inputs can have. If `passed` and `given` have the same ranges, the exponent range of the sum is
    unknown, and only formats with 8 exponent bits are returned.
    """
    passing = Powers(min(p.low for p in passed), max(p.high for p in passed))
    ends = any(p.high < min(g.high, 127) for p, g in zip(passed, given, strict=True))
    begins = any(p.low > max(g.low, -149) for p, g in zip(passed, given, strict=True))
    names = [name for name in STANDARD if as_format(name).man == bits - 1]
    formats = [as_format(name) for name in names]
    for exp in (8, 5, 6, 7, 4, 3, 2):
        for encoding in ("ieee", "fn"):
            formats += _made(exp, bits - 1, encoding)
    fitting = [f for f in dict.fromkeys(formats) if _holds(f, passing, ends)]
    explained = [f for f in fitting if begins and Powers.of(f).low == passing.low]
    if explained or ends:
        return explained or fitting
    return [f for f in fitting if f.exp == 8 and f.encoding == "ieee"]


def _made(exp: int, man: int, encoding: str) -> list[Format]:
    try:
        return [Format(exp=exp, man=man, encoding=encoding)]
    except ValueError:
        return []


def _holds(f: Format, passing: Powers, ends: bool) -> bool:
    powers = Powers.of(f)
    highest = powers.high == passing.high if ends else powers.high >= passing.high
    return powers.low <= passing.low and highest


# ---- candidates ----------------------------------------------------------------------------------


class Figures(NamedTuple):
    """The candidates for the formats of a unit's sums, found from the sums of a probed function.

    `within` has candidates for the sum of one block (the products that the unit adds at once),
    `of_all` for the sum of all k products.
    `widest` has formats of 24 significant bits, for a block whose sums are too short to show the
    full precision.
    """

    within: list[Format]
    of_all: list[Format]
    widest: list[Format]
    passing: Powers
    """The powers of two that the probed function returns unchanged as its only nonzero term."""

    @property
    def hidden(self) -> list[Format]:
        """The standard formats with more fraction bits than the probed function's results.

        A unit may sum in such a format and round the sum to a narrower format at the end.
        """
        widest = max((f.man for f in self.of_all), default=23)
        return [f for f in map(as_format, STANDARD) if f.man > widest]


def stages(
    tree: Tree | None, inputs: Inputs, figures: Figures
) -> Iterator[Iterable[Iterator[Rule]]]:
    """Yields candidate rules that add in the order of `tree`, in stages: simple rules first.

    The caller only tries a stage if no rule of an earlier stage gives the observed sums.
    """
    addend = inputs.c is not None
    schemes = [] if tree is None else schemes_of(tree, inputs.k, addend)
    shapes = [] if tree is None else units_of(tree, inputs.k, addend)
    plain, narrow = _products(inputs)
    inners = [*figures.within, *figures.hidden]
    yield [_floats(scheme, figures, plain, inners) for scheme in schemes]
    inners = [Format((8, man)) for man in range(22, 1, -1)]
    yield [_floats(scheme, figures, plain, inners) for scheme in schemes if "chunk" in scheme]
    yield [_floats(scheme, figures, narrow, figures.of_all) for scheme in schemes]
    kinds = [(shape, fields) for shape in shapes for fields in _adders(shape)]
    results = [*figures.widest, *figures.of_all]
    seen = max((f.man for f in figures.within), default=0)
    filled = [Format((8, man)) for man in range(seen + 1, min(seen + 7, 23))]
    for sums in ([*results, *figures.within], filled):
        yield [_units(*kind, inputs, sums, results) for kind in kinds]
    if tree is not None and not schemes and is_binary(tree):
        for products in (plain, narrow):
            yield [_trees(tree, inputs, figures, products)]
    if figures.hidden:
        sums = [*figures.within, *figures.hidden]
        yield [_units(*kind, inputs, sums, figures.of_all, narrower=True) for kind in kinds]
        yield [_hidden(scheme, figures) for scheme in schemes]
        if tree is not None and not schemes and is_binary(tree):
            yield [_hidden_trees(tree, inputs, figures)]
    yield [_integers(figures)]
    usual = ("kahan", "sequential", "pairwise")
    yield [_floats({"scheme": name}, figures, plain, []) for name in usual]
    yield [(Known(acc) for _, acc in presets_of(inputs))]


def presets_of(inputs: Inputs) -> Iterator[tuple[str, Accumulator]]:
    """Yields the matrix units of `Accumulator.named()` that accept the operands, with names."""
    for name in Accumulator.named():
        for output in ("fp32", "fp16"):
            with suppress(ValueError):
                acc = Accumulator(output, scheme=name, a=inputs.a, b=inputs.b)
                yield (name if output == "fp32" else f"{name} in {output}"), acc


def _floats(
    scheme: dict[str, Any],
    figures: Figures,
    products: list[Format | str | None],
    inners: list[Format],
) -> Iterator[Rule]:
    some = dict.fromkeys(inners) if "chunk" in scheme else [None]
    for f, inner, product, rounding in itertools.product(
        figures.of_all, some, products, _ROUNDINGS
    ):
        yield Known(Accumulator(f, **scheme, inner=inner, product=product, rounding=rounding))


def _hidden(scheme: dict[str, Any], figures: Figures) -> Iterator[Rule]:
    for f, result, product in _narrowed(figures):
        yield Known(Accumulator(f, **scheme, product=product), result)


def _integers(figures: Figures) -> Iterator[Rule]:
    """Yields candidate rules that sum in an integer accumulator.

    The integer 1 stands for the least power of two that the probed function returns unchanged. The
    width follows from the greatest such power. A saturated integer is read as the next power of
    two, by rounding, so this power also seems to be returned unchanged. So the width is also tried
    with one bit less.
    """
    low, high = figures.passing
    results = dict.fromkeys([*figures.widest, *figures.of_all, as_format("fp32")])
    kinds = [(high - low + 2, False), (high - low + 2, True), (high - low + 1, True)]
    for f, (width, saturates), rounding in itertools.product(results, kinds, _ROUNDINGS):
        with suppress(ValueError):
            overflow = "saturate" if saturates else "ieee"
            keys = {"fraction": -low, "sum_rounding": rounding, "overflow": overflow}
            yield Known(Accumulator(f, width=width, **keys))


def _narrowed(figures: Figures) -> Iterator[tuple[Format, Format, Format | str | None]]:
    """Yields candidates for the formats of the sum, of the result and of the products.

    The candidates are for functions that round the sum to a narrower result.
    """
    products = (None, "exact", *figures.of_all)
    return itertools.product(figures.hidden, figures.of_all, products)


def _trees(
    tree: Tree, inputs: Inputs, figures: Figures, products: list[Format | str | None]
) -> Iterator[Rule]:
    for f, product, rounding in itertools.product(figures.of_all, products, _ROUNDINGS):
        yield OrderTree(tree, inputs.k, f, rounding, _rounded(product, f))


def _hidden_trees(tree: Tree, inputs: Inputs, figures: Figures) -> Iterator[Rule]:
    for f, result, product in _narrowed(figures):
        yield OrderTree(tree, inputs.k, f, "nearest_even", _rounded(product, f), result)


def _rounded(product: Format | str | None, f: Format) -> Format | None:
    """Returns the format to which products are rounded; None if products are exact."""
    return None if product == "exact" else as_format(product or f)


def _products(inputs: Inputs) -> tuple[list[Format | str | None], list[Format | str | None]]:
    """Returns candidates for the format to which products are rounded, as two lists.

    The first list has the usual two: None (products are rounded to the sum's format) and "exact".
    The second list has formats that cannot represent all products.
    """
    exact_bits = inputs.a.man + inputs.b.man + 1
    some = [as_format(name) for name in STANDARD] + [Format((8, man)) for man in range(22, 0, -1)]
    return [None, "exact"], [f for f in dict.fromkeys(some) if f.man < exact_bits]


def _units(
    shape: Blocks,
    fields: dict[str, Any],
    inputs: Inputs,
    sums: list[Format],
    results: list[Format],
    narrower: bool = False,
) -> Iterator[Rule]:
    """Yields candidate rules of matrix units.

    If `narrower` is true, each unit rounds its sum once more, and there is a rule for each format
    of `results`.
    """
    wider = [as_format("fp32")] if shape.promote else []
    fractions = _FRACTIONS if fields.get("adder") not in UNCUT else [_USUAL_FRACTION]
    for total, rounding, fraction in itertools.product(
        dict.fromkeys([*sums, *wider]), ("toward_zero", "nearest_even"), fractions
    ):
        unit = unit_of(
            inputs, shape, sum=total, sum_rounding=rounding, fraction_bits=fraction, **fields
        )
        if unit is None:
            continue
        if not (narrower or shape.promote):
            yield Known(unit)
            continue
        for f, last in itertools.product(dict.fromkeys(results), ("nearest_even", "toward_zero")):
            if last == "nearest_even" or rounds_sums(unit, f):
                rounding = None if last == "nearest_even" else last
                yield Known(unit.replace(format=f, rounding=rounding))


def _adders(shape: Blocks) -> list[dict[str, Any]]:
    if shape.adder == "aligned":
        return [{}]
    if shape.adder == "separate":
        return [{"addend": "separate"}, {"adder": "two_steps"}]
    return [{"adder": shape.adder}]


def unit_of(inputs: Inputs, shape: Blocks, **fields: Any) -> Unit | None:
    """Returns the matrix unit that `shape` and `fields` define, or None if they are invalid."""
    if shape.group:
        fields |= {"group": shape.group, "stride": shape.stride, "take": shape.take}
    try:
        keys = {"block": shape.block, "promote": shape.promote, **fields}
        return as_unit(Accumulator(a=inputs.a, b=inputs.b, **keys))
    except (ValueError, TypeError):
        return None


# ---- elimination ---------------------------------------------------------------------------------


def fitting(rules: Iterable[Rule], seen: Seen, most: int = _MOST_KEPT) -> list[Rule]:
    """Returns the first `most` of the candidates `rules` that give the observed sums."""
    matches: list[Rule] = []
    for rule in rules:
        if seen.agrees(rule):
            matches.append(rule)
            if len(matches) == most:
                break
    return matches


def has_unit(rule: Rule) -> bool:
    """Returns whether the rule's accumulator is a matrix unit."""
    return isinstance(rule, Known) and rule.accumulator.form == "unit"


def rounds_sums(unit: Unit, f: Format) -> bool:
    """Returns whether results in format f require one more rounding of the unit's sums."""
    return bool(unit.promote) or f.man < unit.sum.man or f.max < unit.sum.max


def unit_in(rule: Rule) -> Unit:
    """Returns the matrix unit of a rule whose accumulator is a matrix unit."""
    assert isinstance(rule, Known)
    unit = as_unit(rule.accumulator)
    assert unit is not None
    return unit


def changed(rule: Rule, **fields: Any) -> Rule | None:
    """Returns a unit's rule with some fields replaced; None if the new fields are invalid."""
    assert isinstance(rule, Known)
    acc = rule.accumulator
    try:
        unit = as_unit(Accumulator(**unit_fields(acc) | fields))
        assert unit is not None
        f = unit.sum if "sum" in fields and not unit.promote else acc.format
        rounds = acc.rounding != "nearest_even" and rounds_sums(unit, f)
        rounding = acc.rounding if rounds else None
        return Known(unit.replace(format=f, rounding=rounding))
    except ValueError:
        return None


def least_exponents(
    alike: Callable[[Rule | None], bool], rule: Rule, likely: Iterable[int]
) -> range:
    """Returns the values of a unit's min_exponent with which the unit gives the observed sums.

    `alike` tests whether a rule gives these sums. All fitting values are assumed to be consecutive.
    The search starts from a fitting value: the least possible min_exponent, else the first one of
    `likely` that fits. If none of them fits, the result is empty.
    """

    def good(exponent: int) -> bool:
        return alike(changed(rule, min_exponent=exponent))

    every = range(_LEAST_EXPONENT, _MOST_EXPONENT + 1)
    if good(every[0]):
        return range(every[0], every[0] + bisect_left(every, True, key=lambda e: not good(e)))
    known = next(filter(good, likely), None)
    if known is None:
        return range(0)
    first = next(e for e in range(known, every[0] - 1, -1) if not good(e - 1))
    last = next(e for e in range(known, every[-1] + 1) if not good(e + 1))
    return range(first, last + 1)


def with_exponents(
    alike: Callable[[Rule | None], bool], rule: Rule, passing: Sequence[Powers]
) -> list[Rule]:
    """Returns the variants of `rule` that `alike` accepts, which differ only in min_exponent.

    `alike` tests whether a rule gives the probed function's sums. A rule without min_exponent has
    one variant: itself. Of many fitting values, only `_USUAL_EXPONENT` and the greatest values are
    returned. `passing` has the powers of two that the unit does not truncate, so they limit
    min_exponent.
    """
    if not has_unit(rule) or unit_in(rule).adder in UNCUT or unit_in(rule).scale is not None:
        return [rule] if alike(rule) else []
    mosts = [
        powers.low + unit_in(rule).fraction_bits for powers in passing
    ]  # a greater min_exponent would truncate these powers
    likely = [most - down for most in mosts for down in range(_MOST_CUT)]
    exponents = least_exponents(alike, rule, dict.fromkeys(likely))
    usual = [_USUAL_EXPONENT] if _USUAL_EXPONENT in exponents else []
    variants = (
        changed(rule, min_exponent=e) for e in dict.fromkeys([*usual, *exponents[-_MOST_NEAR:]])
    )
    return [variant for variant in variants if variant is not None]


def narrowed(
    rules: list[Rule], regimes: Regimes, rng: np.random.Generator, rows: int = 900
) -> list[Rule]:
    """Returns the rules that remain after tests on random sums on which rules differ.

    The tests are repeated until they refute no more rules.
    """
    while len(rules) > 1:
        pool = regimes.mixed(rng, rows)
        sums = [rule(pool) for rule in rules]
        differing = [np.flatnonzero(~same(sums[0], other))[:8] for other in sums[1:]]
        chosen = np.unique(np.concatenate(differing))
        left = list(filter(regimes.seen(pool.rows(chosen)).agrees, rules))
        if len(left) == len(rules):
            break
        rules = left
    return rules


def mingled(some: list[Seen], rng: np.random.Generator) -> Seen:
    """Joins several `Seen` objects (dot products and their sums) into one, in random order."""
    rows = rng.permutation(sum(len(seen.dots) for seen in some))
    dots, sums = joined([seen.dots for seen in some]), np.concatenate([seen.sums for seen in some])
    return Seen(dots.rows(rows), sums[rows])


def unsure(rules: list[Rule], pool: Dots) -> list[str]:
    """Describes what a probe could not decide: alternatives to `rules[0]` with equal sums.

    An alternative has other values of one field of `rules[0]` and gives the same sums of the dot
    products `pool`, or it is another one of the candidates `rules`.
    """
    rule = rules[0]
    alike = Seen(pool, rule(pool)).agrees
    lines = list(_unsure_unit(rule, alike)) if has_unit(rule) else []
    others = {_key(other): other.text for other in reversed(rules) if not _one_field(rule, other)}
    others.pop(_key(rule), None)
    told = [f"also {text}" for text in reversed(others.values())]
    more = [f"and {len(told) - _MOST_TOLD} more"] if len(told) > _MOST_TOLD else []
    return lines + told[:_MOST_TOLD] + more


def _key(rule: Rule) -> str:
    """Returns a text that is equal for rules that differ only in min_exponent (set to 0)."""
    canonical = changed(rule, min_exponent=0) if has_unit(rule) else rule
    return (canonical or rule).text


def _one_field(rule: Rule, other: Rule) -> bool:
    """Returns whether two rules are matrix units that differ only in precision or least exponent.

    The fields that may differ are fraction_bits, min_exponent, sum and sum_rounding.
    """
    if not (has_unit(rule) and has_unit(other)):
        return False
    x, y = (unit_fields(unit_in(candidate)) for candidate in (rule, other))
    differing = [name for name in x if x[name] != y[name]]
    return set(differing) <= {"fraction_bits", "min_exponent", "sum", "sum_rounding"}


def _unsure_unit(rule: Rule, alike: Callable[[Rule | None], bool]) -> Iterator[str]:
    unit = unit_in(rule)
    if unit.adder in UNCUT:
        return
    exponents = least_exponents(alike, rule, [unit.min_exponent])
    if exponents[0] == _LEAST_EXPONENT:
        yield f"min_exponent: any below {exponents[-1] + 1}"
    elif len(exponents) > 1:
        yield f"min_exponent: {exponents[0]}…{exponents[-1]}"
    fractions = [
        f for f in _FRACTIONS if f != unit.fraction_bits and alike(changed(rule, fraction_bits=f))
    ]
    if fractions:
        yield f"fraction_bits: also {', '.join(map(str, fractions))}"
    other = "nearest_even" if unit.sum_rounding == "toward_zero" else "toward_zero"
    if alike(changed(rule, sum_rounding=other)):
        yield f"sum_rounding: also {other}"
    other = "separate" if unit.addend == "aligned" else "aligned"
    if alike(changed(rule, addend=other)):
        yield f"addend: also {other}"
