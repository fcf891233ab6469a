# SPDX-License-Identifier: Apache-2.0
"""`make_vectors`: makes test vectors for an operation. Also reads the rule in a file's head."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from cpd.hardware.vectors.inputs import MOST_LINES, exhaustive_lines
from cpd.hardware.vectors.rules import OPERANDS, ElementRule
from cpd.hardware.vectors.sums import SUMS, SumRule
from cpd.hardware.vectors.vectors import Vectors
from cpd.numeric.accumulator import AccumulatorLike, as_accumulator, as_integer, as_unit
from cpd.numeric.cast import Cast
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, FormatLike, as_format
from cpd.numeric.numbers import integer
from cpd.numeric.shown import shown
from cpd.numeric.spec import made, texts_of
from cpd.ops.arguments import check_tininess

_EXHAUSTIVE_BITS = 20
"""By default, all combinations of inputs are made if the inputs have together at most this many
bits."""
_MOST_BITS = 32
"""The largest number of bits of a code."""
_LONGEST = 4096
"""The largest number of terms of a sum."""
RANDOM = 10000
"""The default number of random test vectors, which follow the directed test vectors."""
NEAREST: dict[str, Any] = {
    "rounding": "nearest_even",
    "overflow": "ieee",
    "random_bits": 24,
    "variant": "A",
}
"""The default rounding, as keywords of `Cast`."""
_INTEGER = re.compile(r"\bint\d|\bfixed\b")


@checked
def make_vectors(
    operation: str,
    formats: FormatLike | Sequence[FormatLike] = (),
    result: FormatLike | None = None,
    *,
    rounding: str = "nearest_even",
    overflow: str = "ieee",
    random_bits: int = 24,
    variant: str = "A",
    tininess: str = "after",
    nan_signals: bool = False,
    accumulator: AccumulatorLike | None = None,
    length: int | None = None,
    exhaustive: bool = False,
    directed: bool = False,
    random: int = 0,
    seed: int = 0,
) -> Vectors:
    """Makes the test vectors (lines) of one operation: inputs, results and flags.

    Lines are computed when they are read or written. If `exhaustive`, `directed` and `random` are
    missing, all combinations of inputs are made if there are up to 2^20. Otherwise the directed
    lines and 10,000 random lines are made.

    Args:
        operation: an element-wise operation: `cast`, `add`, `mul`, `fma`, `div` or `sqrt`. Or a
            sum: `dot` (one element of a matrix product), `sum` (of terms), `block_fma` (`dot` on a
            matrix unit) or `mma` (`dot` on a matrix unit that takes scales).
        formats: the formats of the operands a, b and c: one format for all operands, or one for
            each. For sums: one format for both a and b, or one for each; then the format of c, by
            default the accumulator's. Default (): the matrix unit's own formats; all other
            accumulators and operations need formats. With an integer accumulator, c is an integer
            of its width. The result is also such an integer, unless the accumulator names a format
            other than fp32. The result then has that format.
        result: the format of the result of an element-wise operation; default None: the first
            operand's format. For a `cast` without `result`, a single format is the target of a
            cast from fp32, and two formats are the source and the target. A sum has the format of
            its accumulator.
        rounding: the rounding, as in `cpd.cast`; default `nearest_even`. With `stochastic` the
            random integer r is a field of each line. `rounding`, `overflow`, `random_bits` and
            `variant` are only for element-wise operations.
        overflow: `ieee` (default) or `saturate`, as in `cpd.cast`.
        random_bits: the number of random bits of stochastic rounding, 1…24; default 24.
        variant: the variant of stochastic rounding: `A` (default), `B` or `C`, as in `cpd.cast`.
        tininess: whether results are tested `after` rounding (default) or `before` it for being
            tiny, which the flag UF reports.
        nan_signals: whether a NaN operand raises the flag NV in formats without quiet and signaling
            NaNs; default False. All formats except `ieee` formats are of this kind. In `ieee`
            formats the first fraction bit distinguishes quiet and signaling NaNs.
        accumulator: the accumulator of a sum, as in `cpd.gemm`, which also defines the rounding.
            Required for sums, not for other operations; default None.
        length: the number of products or terms of a sum, 1…4096; default None: the block size of a
            matrix unit, else 16.
        exhaustive: whether to make every combination of input codes; default False.
        directed: whether to make lines for rare cases: combinations of corner codes (zeros, least
            and largest numbers, numbers around 1, infinities, NaN), lines of each corner case and
            flag, and lines near rounding points; default False.
        random: the number of random lines after the directed lines, 0…2^40; default 0. For
            element-wise operations, half of the random lines are near corner cases.
        seed: the seed of random lines, 0…2^64 - 1; default 0.

    Returns:
        The vectors. Lines are not computed yet.

    Raises:
        ValueError: for an unknown operation, an invalid format, or arguments that do not fit the
            operation.
        TypeError: for an argument of another type.

    >>> vectors = make_vectors("mul", "e4m3fn", exhaustive=True)
    >>> [(name, bits) for name, bits, *_ in vectors.fields]
    [('a', 8), ('b', 8), ('result', 8), ('flags', 5)]
    >>> batch = next(vectors.batches())
    >>> [hex(batch[name][0x3A3A]) for name in ("a", "b", "result", "flags")]
    ['0x3a', '0x3a', '0x3c', '0x1']
    """
    values = (rounding, overflow, random_bits, variant)
    keys: dict[str, Any] = dict(zip(NEAREST, values, strict=True))
    rule: ElementRule | SumRule
    if operation in SUMS:
        if result is not None or keys != NEAREST:
            raise ValueError(f"the accumulator says how a {operation} is rounded, and into what")
        rule = sum_rule(operation, formats, accumulator, length, tininess, nan_signals)
    else:
        if accumulator is not None or length is not None:
            raise ValueError(f"accumulator and length are for sums, not for {operation}")
        rule = element_rule(operation, formats, result, keys, tininess, nan_signals)
    if not 0 <= integer("seed", seed) < 1 << 64:
        raise ValueError(f"seed must be 0…2^64 - 1, got {seed}")
    return Vectors(rule, *_source(rule, exhaustive, directed, random), seed)


def element_rule(
    operation: str,
    formats: FormatLike | Sequence[FormatLike],
    result: FormatLike | None,
    keys: Mapping[str, Any],
    tininess: str,
    nan_signals: bool = False,
) -> ElementRule:
    """Makes an `ElementRule`: an element-wise operation with its formats and its rounding.

    `keys` has the rounding, as keywords of `Cast`. Raises TypeError or ValueError for invalid
    arguments.
    """
    if operation not in OPERANDS:
        known = ", ".join([*OPERANDS, *SUMS])
        hint = " (an element of a product is a dot)" if operation in ("gemm", "matmul") else ""
        raise ValueError(f"the operation must be {known}, got {shown(operation)}{hint}")
    check_tininess(tininess)
    operands = _formats(formats)
    to = None if result is None else as_format(result)
    if operation == "cast":
        if to is None:
            *operands, to = operands if len(operands) > 1 else [as_format("fp32"), *operands]
    elif len(operands) == 1:
        operands *= OPERANDS[operation]
    if len(operands) != OPERANDS[operation]:
        needs = OPERANDS[operation]
        raise ValueError(f"{operation} takes one format or {needs}, got {len(operands)}")
    cast = made(Cast, (to or operands[0]).text, texts_of(Cast, keys))
    return ElementRule(operation, tuple(operands), cast, tininess, nan_signals)


_ACCUMULATORS = {
    "dot": "int32, 'e6m9 kahan' or h100-fp8",
    "sum": "'e6m9 kahan'",
    "block_fma": "h100-fp8",
    "mma": "rtx-blackwell-mxfp8",
}
"""Maps an operation to the accumulators that error messages name as examples."""


def sum_rule(
    operation: str,
    formats: FormatLike | Sequence[FormatLike],
    acc: AccumulatorLike | None,
    length: int | None,
    tininess: str,
    nan_signals: bool = False,
) -> SumRule:
    """Makes a `SumRule`: a sum or dot product with its formats and its accumulator.

    Raises TypeError or ValueError for invalid arguments.
    """
    check_tininess(tininess)
    examples = _ACCUMULATORS[operation]
    if acc is None:
        raise ValueError(f"{operation} needs an accumulator, such as {examples}")
    total = as_accumulator(acc)
    unit = as_unit(total)
    if operation in ("block_fma", "mma") and unit is None:
        raise ValueError(
            f"{operation} needs a matrix unit as its accumulator, such as {examples}, got {total}"
        )
    if operation != "sum" and unit is not None and (unit.scale is None) == (operation == "mma"):
        if unit.scale is None:
            raise ValueError(f"the unit takes no scales; {examples} takes scales, as mma needs")
        raise ValueError("the unit takes scales: its operation is mma")
    own = [unit.a, unit.b] if unit is not None else []
    operands = _formats(formats or own)
    if operation == "sum":
        if len(operands) != 1:
            raise ValueError(f"sum takes one format, got {len(operands)}")
    else:
        if len(operands) == 1:
            operands *= 2
        fixed = as_integer(total)
        if fixed is not None:
            if len(operands) != 2:
                raise ValueError(
                    f"{operation} in an integer takes one format or two, since c is an integer of "
                    f"{fixed.width} bits, got {len(operands)}"
                )
        elif len(operands) == 2:
            operands.append(as_format(total.format))
        if fixed is None and len(operands) != 3:
            raise ValueError(
                f"{operation} takes one format, two, or three with c's, got {len(operands)}"
            )
    default = 16 if unit is None else unit.block
    label = acc if isinstance(acc, str) else ""
    terms = _length(length, default)
    return SumRule(operation, tuple(operands), total, terms, tininess, label, nan_signals)


def _length(length: int | None, default: int) -> int:
    number = default if length is None else integer("length", length)
    if not 1 <= number <= _LONGEST:
        raise ValueError(f"length must be 1…{_LONGEST}, got {number}")
    return number


def _formats(specs: FormatLike | Sequence[FormatLike]) -> list[Format]:
    is_one = not isinstance(specs, list | tuple) or (specs and isinstance(specs[0], int))
    several: list[Any] = [specs] if is_one else list(specs)  # type: ignore[arg-type]
    if not several:
        raise ValueError("the operands' format is missing, such as e4m3fn")
    formats = [as_format(f) for f in several]
    for f in formats:
        if f.bits > _MOST_BITS:
            raise ValueError(f"vectors hold codes of at most {_MOST_BITS} bits; {f} has {f.bits}")
    return formats


def _source(rule: Any, exhaustive: bool, directed: bool, random: int) -> tuple[str, int]:
    """Returns the kind of inputs, such as `directed+random`, and the number of random vectors."""
    random = integer("random", random)
    if not 0 <= random <= MOST_LINES:
        raise ValueError(f"random must be 0…2^40 lines, got {random}")
    total = exhaustive_lines(rule.inputs)
    if exhaustive:
        if directed or random:
            raise ValueError("exhaustive lines are all there are: leave out directed and random")
        if total > MOST_LINES:
            bits = total.bit_length() - 1
            raise ValueError(f"2^{bits} lines are too many: take directed and random ones")
        return "exhaustive", 0
    if not directed and not random:
        if total <= 1 << _EXHAUSTIVE_BITS:
            return "exhaustive", 0
        directed, random = True, RANDOM
    return "+".join(["directed"] * directed + ["random"] * (random > 0)), random


def _refuse_old_integers(head: dict[str, Any]) -> None:
    """Raises ValueError for a file of CPD 0.6 or older that has integer formats or sums."""
    version = re.match(r"(\d+)\.(\d+)", str(head.get("cpd", "")))
    if version is None or tuple(map(int, version.groups())) >= (0, 7):
        return
    named = [head.get("result"), head.get("accumulator"), *(head.get("formats") or ())]
    if any(_INTEGER.search(str(name)) for name in named):
        raise ValueError(
            f"the file is of CPD {head['cpd']}, in which int8 had sign and magnitude (now sm8) and "
            "sums in integers had floating-point c and results: make it again"
        )


@checked
def rule_of(head: dict[str, Any]) -> ElementRule | SumRule:
    """Returns the rule (the operation with formats and rounding) that a file's head defines.

    Args:
        head: the file's head, as `Vectors.head` or `File.head`.

    Returns:
        The rule of an element-wise operation or of a sum.

    Raises:
        ValueError: for a head that lacks a key or has an invalid value, and for a file of integers
            that CPD before 0.7 wrote.
    """
    _refuse_old_integers(head)
    try:
        operation, tininess = head["operation"], head.get("tininess", "after")
        nan_signals = head.get("nan_signals", False)
        if not isinstance(nan_signals, bool):
            raise ValueError(f"nan_signals must be true or false, got {shown(nan_signals)}")
        if operation in SUMS:
            acc, length = head["accumulator"], head["length"]
            return sum_rule(operation, head["formats"], acc, length, tininess, nan_signals)
        keys = {name: head.get(name, usual) for name, usual in NEAREST.items()}
        keys["rounding"] = head["rounding"]
        formats, result = head["formats"], head["result"]
        return element_rule(operation, formats, result, keys, tininess, nan_signals)
    except KeyError as error:
        raise ValueError(f"the head has no {error.args[0]}") from None
    except TypeError as error:
        raise ValueError(str(error)) from None
