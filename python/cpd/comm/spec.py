# SPDX-License-Identifier: Apache-2.0
"""`Reduce`: the definition of an all-reduce."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias

import numpy as np

from cpd import _core
from cpd.compress.codecs import Codec
from cpd.numeric.accumulator import Accumulator, AccumulatorLike, as_accumulator
from cpd.numeric.formats import Format, FormatLike, format_text
from cpd.numeric.numbers import int32
from cpd.numeric.scaled import Scaled, ScaledLike, format_or_scaled
from cpd.numeric.shown import shown
from cpd.numeric.spec import KINDS, Kind, Spec, made, refuse_key, texts_of, warn_of_numbers
from cpd.numeric.warned import PrecisionWarning, warn


def _text(spec: Any) -> str:
    if isinstance(spec, (Reduce, Codec, Scaled)):
        return spec.text
    return format_text("a format", spec)


def _aps(name: str, value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return str(bool(value)).lower()
    if value == "paper":
        return "paper"
    raise ValueError(f"aps must be one of False, True, 'paper', got {shown(value)}")


@functools.lru_cache(maxsize=256)
def _codec_of(name: str) -> Codec:
    return Codec(name)


KINDS["accumulator"] = Kind(lambda name, value: as_accumulator(value).text, as_accumulator)
KINDS["aps"] = Kind(_aps)


class Reduce(Spec, native=_core.Reduce):
    """The definition of an all-reduce: what is rounded when, and in which order ranks are summed.

    Each contribution is cast to a format, or encoded by a codec, and summed in `accumulator`.
    Immutable, hashable, picklable. Arguments are attributes of the same names, with defaults filled
    in. Default None of a keyword keeps what the text says.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums, res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`). It is `Reduce("fp32",
    accumulator="e4m3", result="e4m3")`. `Reduce("e4m3")` rounds each contribution too, since
    messages hold rounded values: res = Q(res + Q(g)).

    Args:
        format: the text of an all-reduce, or a `Reduce`; keywords replace its keys. Or what
            contributions become. A text begins with that, then has keys, each as name=value:
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
    codec: Codec
    """The codec of the contributions, or of `format` if there is a format."""
    _held: _core.Reduce
    _reads: ClassVar[dict[str, Any]] = {"codec": _codec_of, "format": format_or_scaled}

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
    ) -> None: ...

    @classmethod
    def _head(cls, spec: Any, keys: dict[str, Any]) -> str:
        if isinstance(spec, Codec):
            keys.setdefault("random_bits", spec.random_bits)
        return _text(spec)

    @property
    def _compressor(self) -> Codec | None:
        """The codec of the contributions, or None if they are cast to a format."""
        return self.codec if self.format is None else None

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
        for name, key in keys.items():
            if name not in self._kinds and name != "codec":
                refuse_key(Reduce, name, key, [*self._kinds, "codec"])
        own = tuple(key for key in self._held.options() if key[0] not in keys)
        codec = keys.pop("codec", None)
        changed = {name: key for name, key in keys.items() if key is not None}
        text = _text(self.codec if codec is None else codec)
        return made(Reduce, text, own + texts_of(Reduce, changed))

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
