# SPDX-License-Identifier: Apache-2.0
"""`Reduce`: the definition of an all-reduce."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from cpd import _core
from cpd.compress import table
from cpd.compress.codecs import Codec, native_codec
from cpd.numeric.accumulator import (
    REDUCE_SCHEMES,
    Accumulator,
    AccumulatorLike,
    sum_accumulator,
)
from cpd.numeric.compiling import constant
from cpd.numeric.formats import Format, FormatLike, as_format, flag
from cpd.numeric.names import did_you_mean
from cpd.numeric.numbers import int32
from cpd.numeric.options import MAX_RANDOM_BITS, Options, numbers_of_codec
from cpd.numeric.renamed import refuses_old
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled, overflow_of
from cpd.numeric.shown import shown
from cpd.numeric.spec import Spec, named_word, warn_of_numbers
from cpd.numeric.warned import PrecisionWarning, warn

ORDERS: tuple[str, ...] = _core.ORDERS
EXCHANGES: tuple[str, ...] = _core.EXCHANGES
DIVIDES: tuple[str, ...] = _core.DIVIDES


_CALL = "cpd.simulate_all_reduce"


@refuses_old
@dataclass(frozen=True, init=False, repr=False, eq=False)
class Reduce(Spec):
    """The definition of an all-reduce: what is rounded when, and in which order ranks are summed.

    Each contribution is cast to a format, or encoded by a codec, and summed in `accumulator`.
    Immutable, hashable, picklable. Arguments are attributes of the same names, with defaults filled
    in. Default None of a keyword keeps what the text says.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums, res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`). It is `Reduce("fp32",
    accumulator="e4m3", result="e4m3")`. `Reduce("e4m3")` rounds each contribution too, since
    messages hold rounded values: res = Q(res + Q(g)).

    Args:
        format: the text of an all-reduce, or a `Reduce`, whose keys keywords replace; or what
            contributions become. A text has one of the latter, then keys, each as name=value:
            `e4m3 aps accumulator='e5m10 kahan' group_size=16`. Values of several words are in
            quotes; `aps` and `average` alone are switched on. What contributions become is one of:

            - A format (what `cpd.Format` takes).
            - A scaled format (a `cpd.Scaled`, or its text `mxfp8`). It casts each rank's tensor, as
              one flat run of values, as by `cpd.cast`, however it is cut into messages. Its blocks
              are N values or the tensor (`block="tensor"`), not rows or R x C. `aps` is refused,
              and a `loss_scale` is applied in binary32 first.
            - A compressor (a `cpd.Codec`, or its text `qsgd bits=4 bucket=512`), which encodes each
              rank's tensor in a message. With `gather` every rank decodes and sums it; with `owner`
              sums travel as the codec defines, encoded again or without loss. Exchanges `ring` and
              `hierarchical`, `aps` but with `top_k F FORMAT`, and the keys of a cast but
              `random_bits` are refused.

            A `cpd.Codec` of a format means that format.
        accumulator: the accumulator of the sum (`sequential`, `kahan`, `chunked` or `pairwise`).
            Default: a sequential sum to nearest-even in the format, in fp32 if that is scaled or a
            compressor.
        order: the order in which the ranks' terms are added. It determines the result. `sequential`
            (default): rank ascending. `ring`: each tensor is cut into W slices, the first n mod W
            one longer. Slice s is summed from rank s + 1 on, around to rank s. `tree`: neighbors
            first, an odd one passes up, each sum rounded (with a sequential accumulator).
        exchange: the messages that a communicator of `cpd.comm` moves; they do not change the bits,
            which are those of `order` and `group_size`. `owner` (default): the owner of a slice
            gathers and sums it, then the sums are gathered. (The first owner is another rank for
            each tensor, except in order `ring`.) `gather`: every rank gathers and sums everything.
            `ring`: partial sums hop around a ring (order `ring`, no groups). `hierarchical`:
            members send to their group's first rank, the first ranks form a ring, and back (order
            `ring`, with `group_size`).
        group_size: the number of ranks of a group. Each group is summed in rank order to its first
            rank, then the groups' sums in `order`; the last group may be short. Up to the number of
            ranks, which is checked if it is known. One group of all ranks has no second level: the
            bits are those without groups in order `sequential`. Default: no groups.
        aps: whether each tensor is scaled by a power of two, undone at the end; default False.
            `True`: the largest scale with which the format holds each contribution, and accumulator
            and result hold the sum of W largest contributions (one exponent less if a rounding can
            go outward). If sums are wide, as in fp32, contributions alone decide. `"paper"`: the
            paper's scale, with which the format holds that sum, too; a 4-bit format then keeps
            nothing of many ranks. Both are equal if format, accumulator and result are one format
            and rounding is to nearest. Sums rounded up, down or at random may leave a coarse
            format's range. Each tensor's largest magnitude is sent first, in four bytes. With
            `top_k` it is that of the values which are sent, with what was fed back.
        loss_scale: a constant power of two for all tensors, undone at the end; not with `aps`.
            Default 1.
        average: whether to divide by the number of ranks W, as `divide` says; default False.
        divide: `"after"` (default): the sum is divided, once, in binary32, at the end (so a sum
            beyond the format stays infinite). `"before"`: each contribution is divided, once, in
            binary32, before its scale is measured and it is cast, as in torch's DDP. Before is
            better if sums would leave the format's range (e4m3 summed in fp32 to e4m3, 64 ranks,
            normal values with σ = 60: six sums of ten are infinite after, none before). After is
            better if quotients would fall below the format's least value, and with APS, whose
            scales keep sums in range. Without `average` it has no effect.
        rounding: the rounding of the cast to the format, as in `cpd.cast`; default `nearest_even`.
            The sum has the accumulator's own options.
        overflow: the overflow of the cast to the format, as in `cpd.cast`; default `ieee`, for a
            scaled format `saturate`.
        random_bits: the number of random bits of stochastic rounding, 1…24; default 24.
        variant: the variant of stochastic rounding, `A` (default), `B` or `C`, as in `cpd.cast`.
        result: the format to which a wider accumulator is rounded once more at each level, and in
            which sums travel. Default: the format, or fp32 if it is scaled or a compressor.

    Attributes:
        format: the `Format` or `Scaled` of the contributions; None if they are compressed.

    Raises:
        ValueError: for an invalid argument, and for arguments that exclude each other.
        TypeError: for an argument of another type.

    >>> Reduce("e4m3 aps accumulator='e5m10 kahan'")
    cpd.Reduce("e4m3 accumulator='fp16 kahan' aps")
    >>> Reduce("qsgd bits=4 bucket=512", order="ring").codec
    cpd.Codec('qsgd bits=4 bucket=512')
    >>> Reduce("mxfp8", result="bf16").format
    cpd.Scaled('mxfp8')
    >>> Reduce(Reduce("e4m3 aps order=ring"), order="tree").text
    'e4m3 order=tree aps'
    """

    format: Format | Scaled | None
    accumulator: Accumulator
    order: str
    exchange: str
    group_size: int | None
    aps: bool | Literal["paper"]
    loss_scale: float
    average: bool
    divide: str
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    result: Format
    text: str = field(init=False)
    """The canonical text; `cpd.Reduce(r.text) == r`."""
    _compressor: Codec | None = field(init=False, compare=False)
    """What contributions become where that is no format."""
    _held: _core.Reduce = field(init=False, compare=False)

    def __init__(
        self,
        format: ReduceLike,
        /,
        *,
        accumulator: AccumulatorLike | None = None,
        order: str | None = None,
        exchange: str | None = None,
        group_size: int | None = None,
        aps: bool | Literal["paper"] | None = None,
        loss_scale: float | None = None,
        average: bool | None = None,
        divide: str | None = None,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        result: FormatLike | None = None,
    ) -> None:
        sums = None if accumulator is None else sum_accumulator(accumulator, REDUCE_SCHEMES)
        given = {
            "accumulator": None if sums is None else sums.text,
            "order": _word("order", order, ORDERS),
            "exchange": _word("exchange", exchange, EXCHANGES),
            "group_size": None if group_size is None else int32("group_size", group_size),
            "aps": None if aps is None else _aps(aps),
            "loss_scale": None if loss_scale is None else _scale(loss_scale),
            "average": None if average is None else flag("average", average),
            "divide": _word("divide", divide, DIVIDES),
            "rounding": None if rounding is None else named_word("rounding", rounding),
            "overflow": None if overflow is None else named_word("overflow", overflow),
            "random_bits": None if random_bits is None else int32("random_bits", random_bits),
            "variant": None if variant is None else named_word("variant", variant),
            "result": None if result is None else as_format(result).name,
        }
        self._share(_made(*_head(format, given)))

    @property
    def codec(self) -> Codec:
        """The codec of the contributions; that of `format`, if there is one."""
        return self._compressor or _codec_of(str(self.format))

    def replace(self, **keys: Any) -> Reduce:
        """Returns a copy with these keys changed.

        Args:
            keys: keywords of the constructor, of which None is the default value; and `codec`, what
                contributions become, as the first argument.

        Returns:
            The copy.

        Raises:
            ValueError: for an invalid value.
            TypeError: for a key that there is not, and for a value of another type.

        >>> Reduce("e4m3 aps group_size=4").replace(group_size=None, codec="e5m2")
        cpd.Reduce('e5m2 aps')
        """
        head, own = _words(self.text)
        by = keys.pop("codec", None)
        words = [head if by is None else str(Reduce(by))]
        words += [_word_of(name, value) for name, value in own if name not in keys]
        given = {name: value for name, value in keys.items() if value is not None}
        if unknown := [name for name in keys if name not in _READERS]:
            raise TypeError(f"a Reduce has no key {shown(unknown[0])}: {_keys_are(unknown[0])}")
        return Reduce(" ".join(words), **given)

    def __repr__(self) -> str:
        return f"cpd.Reduce({self.text!r})"

    def __getstate__(self) -> dict[str, Any]:
        return {"text": self.text}

    def __setstate__(self, state: dict[str, Any]) -> None:
        warn_of_numbers("Reduce", state)
        state = dict(state) if "text" in state else _since_0_7(state)
        self.__init__(state.pop("text"), **state)  # type: ignore[misc]


ReduceLike: TypeAlias = "Reduce | Codec | FormatLike | ScaledLike"
"""A `Reduce`, or what it is constructed from."""

ReduceSpec = Reduce
"""The name of `Reduce` in pickles of version 0.7."""


def as_reduce(given: ReduceLike) -> Reduce:
    """Returns the all-reduce of a text, a format or a codec; a `Reduce` as it is."""
    return given if isinstance(given, Reduce) else Reduce(given)


# ---- texts ---------------------------------------------------------------------------------------

_SWITCHES: dict[str, Any] = {"true": True, "false": False}
_READERS: dict[str, Callable[[str], Any]] = {
    "accumulator": str,
    "order": str,
    "exchange": str,
    "group_size": int,
    "aps": lambda value: value if value == "paper" else _SWITCHES[value],
    "loss_scale": lambda value: int(value) if value.isdigit() else float(value),
    "average": _SWITCHES.__getitem__,
    "divide": str,
    "rounding": str,
    "overflow": str,
    "random_bits": int,
    "variant": str,
    "result": str,
}
"""The keys of a text in their order, each with what reads its value."""

Keys: TypeAlias = tuple[tuple[str, Any], ...]


def _head(given: ReduceLike, keys: dict[str, Any]) -> tuple[str, Keys]:
    """What contributions become, as a text, and the keys that are given."""
    own: Keys = ()
    if isinstance(given, Codec):
        if keys["random_bits"] is None:
            keys = keys | {"random_bits": given.random_bits}
        given = given.text
    if isinstance(given, Reduce):
        given = given.text
    if isinstance(given, str):
        given, own = _words(given)
    elif not isinstance(given, Scaled):
        given = as_format(given)
    return str(given), tuple({**dict(own), **_without_none(keys)}.items())


def _without_none(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in keys.items() if value is not None}


@functools.lru_cache(maxsize=1024)
def _words(text: str) -> tuple[str, Keys]:
    """The head and the keys of a text. Raises ValueError for what is none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ValueError(f"{shown(text)} is no all-reduce: {error}") from None
    head, keys = [], {}
    for word in words:
        name, is_valued, value = word.partition("=")
        if name in ("seed", "step"):
            raise ValueError(
                f"an all-reduce has no {name}: give it to the call, {_CALL}(…, {name}=…), in place "
                f"of {shown(text)}"
            )
        if name not in _READERS:
            head.append(word)
        elif name in keys:
            raise ValueError(f"{name} is given twice in {shown(text)}")
        else:
            keys[name] = _value(name, value if is_valued else "true", text)
    return " ".join(head), tuple(keys.items())


def _value(name: str, value: str, text: str) -> Any:
    try:
        read = _READERS[name](value)
    except (KeyError, ValueError):
        raise ValueError(
            f"{_core.readable(f'{name}={value}')} is no value of {name}, in {shown(text)}"
        ) from None
    if name in ("group_size", "random_bits"):
        return int32(name, read)
    return _scale(read) if name == "loss_scale" else read


def _word_of(name: str, value: Any) -> str:
    """A key of a text."""
    if value is True:
        return name
    written = "false" if value is False else f"{value:.17g}" if name == "loss_scale" else str(value)
    return f"{name}='{written}'" if " " in written else f"{name}={written}"


def _keys_are(name: str) -> str:
    """The keys that there are, and the one nearest to `name`."""
    hint = did_you_mean(name, _READERS)
    return f"there are {', '.join(_READERS)}{hint and f'; {hint}'}"


@constant
def _made(head: str, keys: Keys) -> Reduce:
    """Returns the all-reduce of a head and values of keys; others have their defaults."""
    value = dict(keys)
    bits = value.get("random_bits", MAX_RANDOM_BITS)
    by, cast = None, None
    if table.is_compressor(head):
        by = Codec(head)
        _check_cast(by, value)
    else:
        cast = _format_of(head)
    usual = sums_format(cast)
    others: dict[str, Any] = {
        "format": cast,
        "_compressor": by,
        "accumulator": sum_accumulator(value.get("accumulator", usual), REDUCE_SCHEMES),
        "order": value.get("order", "sequential"),
        "exchange": value.get("exchange", "owner"),
        "group_size": value.get("group_size"),
        "aps": value.get("aps", False),
        "loss_scale": value.get("loss_scale", 1.0),
        "average": value.get("average", False),
        "divide": value.get("divide", "after"),
        "rounding": value.get("rounding", "nearest_even"),
        "overflow": overflow_of(cast, value.get("overflow")),
        "random_bits": bits,
        "variant": value.get("variant", "A"),
        "result": as_format(value.get("result", usual)),
    }
    made = object.__new__(Reduce)
    for name, part in others.items():
        object.__setattr__(made, name, part)
    object.__setattr__(made, "_held", _native(made, 0))
    object.__setattr__(made, "text", _text(made, usual))
    return made


def _native(of: Reduce, seed: int) -> _core.Reduce:
    """The all-reduce for C++, with the seed of a call, for casts, codecs and sums."""
    bits = of.random_bits
    if of._compressor is not None:
        wire: Any = native_codec(of._compressor.text, seed, bits)
        rounding = numbers_of_codec(seed, bits)
    else:
        wire = of.format._held  # type: ignore[union-attr]
        rounding = Options(of.rounding, of.overflow, seed, 0, bits, of.variant).native()
    return _core.Reduce(
        wire=wire,
        accumulator=of.accumulator._held.with_numbers(seed, 0),
        order=of.order,
        exchange=of.exchange,
        group_size=of.group_size,
        aps=of.aps,
        loss_scale=of.loss_scale,
        average=of.average,
        divide=of.divide,
        rounding=rounding,
        result=of.result._held,
        step=0,
    )


def _text(of: Reduce, usual: Format) -> str:
    """The canonical text: what contributions become, and every key that is not the default."""
    default = {
        "accumulator": Accumulator(usual).text,
        "order": "sequential",
        "exchange": "owner",
        "group_size": None,
        "aps": False,
        "loss_scale": 1.0,
        "average": False,
        "divide": "after",
        "rounding": "nearest_even",
        "overflow": overflow_of(of.format, None),
        "random_bits": MAX_RANDOM_BITS,
        "variant": "A",
        "result": usual,
    }
    words = [of._compressor.text if of._compressor is not None else str(of.format)]
    for name in _READERS:
        value = of.accumulator.text if name == "accumulator" else getattr(of, name)
        if value != default[name]:
            words.append(_word_of(name, value))
    return " ".join(words)


def _format_of(head: str) -> Format | Scaled:
    """The format of a head. Raises ValueError, which names the keys if one of them is wrong."""
    try:
        return format_or_scaled(head)
    except ValueError as error:
        first, *others = head.split() or [""]
        wrong = [word.partition("=")[0] for word in others if "=" in word]
        if wrong and (_is_format(first) or did_you_mean(wrong[0], _READERS, 0.75)):
            raise ValueError(
                f"an all-reduce has no key {shown(wrong[0])}: {_keys_are(wrong[0])}"
            ) from None
        if str(error).startswith("unknown format"):
            Codec(head)  # whose error names the compressors, too
        raise


def _is_format(name: str) -> bool:
    try:
        return isinstance(format_or_scaled(name), Format)
    except ValueError:
        return False


@functools.lru_cache(maxsize=256)
def _codec_of(name: str) -> Codec:
    return Codec(name)


def _word(name: str, value: Any, allowed: tuple[str, ...]) -> str | None:
    """`value`, one of these names, or None."""
    if value is not None and (not isinstance(value, str) or value not in allowed):
        quoted = ", ".join(f"'{one}'" for one in allowed)
        raise ValueError(f"{name} must be one of {quoted}, got {shown(value)}")
    return value


def _aps(value: Any) -> Any:
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if value == "paper":
        return value
    raise ValueError(f"aps must be one of False, True, 'paper', got {shown(value)}")


def _scale(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"loss_scale must be a number, got {type(value).__name__}")
    if isinstance(value, int) and abs(value) >= 2**127:
        raise ValueError(
            f"loss_scale must be a power of two from 2^-126 to 2^126, got {shown(value)}"
        )
    return float(value)


def _since_0_7(state: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a pickle of version 0.7."""
    state = {name: value for name, value in state.items() if name not in ("seed", "step")}
    wire, format = state.pop("wire", None), state.pop("format", None)
    if wire is None and state["rounding"] != "stochastic":
        state |= {"random_bits": None, "variant": None}  # which had no effect
    if wire is not None:
        state |= dict.fromkeys(("rounding", "overflow", "variant"))
        wire = wire.text
    return {"text": format if wire is None else wire, **state}


# ---- numbers of calls ----------------------------------------------------------------------------


class Seeded(NamedTuple):
    """A spec with the seed of a hook or a study, for a communicator that may have another one."""

    spec: Reduce
    seed: int


def seeded(spec: Reduce, seed: int) -> Any:
    """Returns what a communicator takes as a spec with a seed in place of its own; 0: its own."""
    return Seeded(spec, seed)


def as_seeded(given: Any) -> Seeded:
    """Returns the spec and the seed of a communicator's argument."""
    return given if isinstance(given, Seeded) else Seeded(as_reduce(given), 0)


def native_at(spec: Reduce, seed: int = 0, step: int = 0) -> _core.Reduce:
    """Returns the spec for C++ with the seed and the step of a call."""
    native = spec._held if seed == 0 else _seeded(spec, seed)
    return native if step == 0 else native.with_step(step)


_seeded = functools.lru_cache(maxsize=1024)(_native)


def sums_format(wire: Format | Scaled | None) -> Format:
    """Returns the default format of sums: the contributions' format.

    It is fp32 for a scaled format or a compressor (None).
    """
    return wire if isinstance(wire, Format) else as_format("fp32")


def _check_cast(by: Codec, given: Mapping[str, Any]) -> None:
    """Raises ValueError for keys of a cast that a compressor does not have."""
    for name, usual in (("rounding", "nearest_even"), ("overflow", "ieee"), ("variant", "A")):
        if given.get(name, usual) != usual:
            raise ValueError(
                f"{name} is an option of a cast, which codec {by.text!r} is not; got "
                f"{shown(given[name])}"
            )


def check_world(spec: Reduce, world: int) -> None:
    """Raises ValueError if the spec's groups are larger than the number of ranks."""
    spec._held.check_world(int32("world", world))


def may_stall(spec: Reduce, world: int) -> bool:
    """Returns whether `warn_of_stall` would warn."""
    return spec._held.may_stall(world)


def warn_of_stall(spec: Reduce, world: int) -> None:
    """Warns if a sequential sum has more than 2^precision terms.

    Of terms of equal value the last ones may change nothing, since each is at most half an ulp of
    the sum.
    """
    if not may_stall(spec, world):
        return
    precision = spec.accumulator.format.man + 1
    warn(
        f"the sum over {world} ranks in {spec.accumulator} may stall: it has a precision of "
        f"{precision} bits, so that more than {2**precision} equal terms no longer count. A wider "
        "accumulator helps, a kahan, chunked or pairwise one, order='tree', or a group_size",
        PrecisionWarning,
    )
