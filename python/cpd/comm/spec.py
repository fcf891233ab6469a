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
    """The definition of an all-reduce: each rounding, and the order in which ranks are summed.

    Each contribution is cast to a format, or encoded by a codec, and summed in `accumulator`.
    Immutable, hashable, picklable. The arguments are attributes of the same names, with defaults
    filled in. A keyword that is None (default) leaves the text's value.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums: res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`). It is `Reduce("fp32",
    accumulator="e4m3", result="e4m3")`. `Reduce("e4m3")` also rounds each contribution, because
    messages hold rounded values: res = Q(res + Q(g)).

    Args:
        format: the text of an all-reduce, a `Reduce`, or the form of the contributions. Keywords
            replace the keys of a text and of a `Reduce`. A text is the form of the contributions,
            then keys as name=value: `e4m3 aps accumulator='e5m10 kahan' group_size=16`. Values of
            several words are in quotes. `aps` or `average` without a value means True. The form of
            the contributions is one of:

            - A format (what `cpd.Format` takes).
            - A scaled format (a `cpd.Scaled`, or its text `mxfp8`). Each rank's tensor is cast as
              by `cpd.cast`, as one flat array of values; the division into messages has no effect
              on the blocks. A block is N values or the tensor (`block="tensor"`), not rows or R x
              C. `aps` is refused. A `loss_scale` is first applied in binary32.
            - A compressor (a `cpd.Codec`, or its text `qsgd bits=4 bucket=512`). It encodes each
              rank's tensor in a message. With `gather`, every rank decodes and sums the messages.
              With `owner`, sums travel as the codec defines: encoded again, or without loss.
              Refused are the exchanges `ring` and `hierarchical`, the keys of a cast except
              `random_bits`, and `aps` except with `top_k F FORMAT`.

            A `cpd.Codec` of a format means that format.
        accumulator: the accumulator of the sum (`sequential`, `kahan`, `chunked` or `pairwise`).
            Default: a sequential sum in the format, rounded to nearest-even; in fp32 for a scaled
            format or a compressor.
        order: the order in which the ranks' terms are added. It determines the result.

            - `sequential` (default): in ascending order of ranks.
            - `ring`: each tensor of n values is cut into W slices for W ranks; the first n mod W
              slices are one value longer. Slice s is summed from rank s + 1 on, around to rank s.
            - `tree`: neighbors are added first, an odd one passes up. Each sum is rounded. It needs
              a sequential accumulator.

        exchange: the messages that a communicator of `cpd.comm` sends. They do not change the bits,
            which `order` and `group_size` determine.

            - `owner` (default): each slice has an owner, which gathers and sums it. Then all ranks
              gather the sums. The first owner is another rank for each tensor, except in order
              `ring`.
            - `gather`: every rank gathers and sums everything.
            - `ring`: partial sums travel around a ring (order `ring`, no groups).
            - `hierarchical`: members send to their group's first rank. The first ranks form a ring
              and send the sums back (order `ring`, with `group_size`).

        group_size: the number of ranks of a group, up to the number of ranks (checked if that is
            known). Each group is summed in rank order to its first rank, then the groups' sums in
            `order`. The last group may be smaller. One group of all ranks has no second level: the
            bits are the same as without groups in order `sequential`. Default: no groups.
        aps: whether to scale each tensor by a power of two, which is undone at the end; default
            False. Each tensor's largest magnitude is sent first, in four bytes. With `top_k` that
            is the largest magnitude of the values sent, after error feedback. Sums that are rounded
            up, down or at random may leave the range of a coarse format.

            - `True`: the largest scale at which the format holds each contribution, and the
              accumulator and the result hold the sum of W largest contributions. The scale is half
              as large if a rounding can go outward. If sums are wide, as in fp32, contributions
              alone determine it.
            - `"paper"`: the paper's scale. The format, too, holds the sum of W largest
              contributions; a 4-bit format then keeps nothing of many ranks. It equals the scale of
              `True` if format, accumulator and result are one format and rounding is to nearest.

        loss_scale: a constant power of two for all tensors, undone at the end; not with `aps`.
            Default 1.
        average: whether to divide by the number of ranks W, in the way of `divide`; default False.
        divide: when to divide if `average` is True; without `average` it has no effect. Each
            division is rounded once, in binary32.

            - `"after"` (default): the sum is divided at the end, so a sum beyond the format stays
              infinite. It is better if quotients would fall below the format's least value, and
              with APS, whose scales keep sums in range.
            - `"before"`: each contribution is divided before its scale is measured and it is cast,
              as in torch's DDP. It is better if sums would leave the format's range. (e4m3 summed
              in fp32 to e4m3, 64 ranks, normal values with σ = 60: six sums of ten are infinite
              with `"after"`, none with `"before"`.)

        rounding: the rounding of the cast to the format, as in `cpd.cast`; default `nearest_even`.
            The sum has the accumulator's own options.
        overflow: the overflow of the cast to the format, as in `cpd.cast`; default `ieee`, for a
            scaled format `saturate`.
        random_bits: the number of random bits of stochastic rounding, 1…24; default 24.
        variant: the variant of stochastic rounding, `A` (default), `B` or `C`, as in `cpd.cast`.
        result: the format in which sums travel. At each level the sum of a wider accumulator is
            rounded to it once more. Default: the format, or fp32 for a scaled format or a
            compressor.

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
    """The codec of the contributions. If they are cast, the codec of `format`."""
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
            keys: keywords of the constructor, where None stands for the default; and `codec`, the
                form of the contributions, as the constructor's first argument.

        Returns:
            The copy.

        Raises:
            ValueError: for an invalid value.
            TypeError: for an unknown key, and for a value of another type.

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
    """Returns the all-reduce of a text, a format or a codec. Returns a `Reduce` unchanged."""
    return given if isinstance(given, Reduce) else Reduce(given)


def _since_0_7(state: dict[str, Any]) -> dict[str, Any]:
    """Returns the arguments of a pickle of version 0.7."""
    state = {name: value for name, value in state.items() if name not in ("seed", "step")}
    wire, format = state.pop("wire", None), state.pop("format", None)
    if wire is None and state["rounding"] != "stochastic":
        state |= {"random_bits": None, "variant": None}  # version 0.7 ignored them
    if wire is not None:
        state |= dict.fromkeys(("rounding", "overflow", "variant"))
        wire = wire.text
    return {"text": format if wire is None else wire, **state}


# ---- numbers of calls ----------------------------------------------------------------------------


class Seeded(NamedTuple):
    """A spec with the seed of a hook or a study. A communicator may have another seed."""

    spec: Reduce
    seed: int


def seeded(spec: Reduce, seed: int) -> Any:
    """Returns a communicator's spec with another seed. For 0, the communicator's seed holds."""
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

    In such a sum of equal values, the last terms may change nothing: each is at most half an ulp of
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
