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

    Each rank's tensor (its contribution) is cast to a format or encoded by a codec. `accumulator`
    defines how contributions are summed. Each argument is an attribute of the same name, with its
    default filled in. A keyword that is None (default) does not change the value in the text.
    Immutable, hashable, picklable.

    **CPD 2020's form** of the all-reduce gathers gradients in fp32 and rounds only the sums: res =
    Q(res + g) (APS paper, § 5.1.1; `cpd.compat.cpd2020.sum_gradients`). CPD 2020's form is
    `Reduce("fp32", accumulator="e4m3", result="e4m3")`. `Reduce("e4m3")` also rounds each
    contribution, because messages hold rounded values: res = Q(res + Q(g)).

    Args:
        format: the text of an all-reduce, a `Reduce`, or the form of the contributions. A text
            begins with the form of the contributions. Keys as name=value follow: `e4m3 aps
            accumulator='e5m10 kahan' group_size=16`. A value of several words is in quotes. `aps`
            or `average` without a value means True. Keyword arguments replace the values in a text
            or a `Reduce`. The form of the contributions is one of:

            - A format (a `cpd.Format`, or an argument of its constructor, such as `e4m3`).
            - A scaled format (a `cpd.Scaled`, or its text `mxfp8`). Each rank's tensor is cast as
              by `cpd.cast`, as one flat array of values; the division into messages has no effect
              on the blocks. A block is N values or the tensor (`block="tensor"`), not rows or R x
              C. `aps` raises ValueError. A `loss_scale` is applied before the cast, in binary32.
            - A compressor (a `cpd.Codec`, or its text `qsgd bits=4 bucket=512`). It encodes each
              rank's tensor in a message. With the exchange `gather`, every rank decodes and sums
              the messages. With `owner`, the codec defines how sums are sent: encoded again, or
              without loss. A ValueError is raised for the exchanges `ring` and `hierarchical`, for
              the keys of a cast except `random_bits`, and for `aps` except with `top_k F FORMAT`.

            A `cpd.Codec` of a format means that format.
        accumulator: the accumulator of the sum (`sequential`, `kahan`, `chunked` or `pairwise`).
            Default: a sequential sum in the format of the contributions, rounded to nearest-even.
            For a scaled format or a compressor, the default sum is in fp32.
        order: the order in which the ranks' contributions are added. It determines the result's
            bits.

            - `sequential` (default): in ascending order of ranks.
            - `ring`: each tensor of n values is cut into W slices for W ranks; the first n mod W
              slices are one value longer. The sum of slice s starts at rank s + 1, continues in
              ascending order modulo W, and ends at rank s.
            - `tree`: neighboring ranks are added in pairs, then neighboring sums, up to one sum. If
              a level has an odd number of terms, the last term moves up unchanged. Each sum is
              rounded. `tree` needs a sequential accumulator.

        exchange: the messages that a communicator of `cpd.comm` sends. The exchange does not change
            the result's bits, unless a compressor encodes sums again (`owner` only).

            - `owner` (default): a reduce-scatter and an all-gather. Each slice of a tensor has an
              owner: the rank that receives and sums the slice's contributions. Then all ranks
              gather the sums. The owner of a tensor's first slice changes from tensor to tensor,
              except in order `ring`.
            - `gather`: an all-gather of the contributions; every rank sums all of them.
            - `ring`: partial sums travel around a ring (order `ring`, no groups).
            - `hierarchical`: all ranks of a group send to the group's first rank. These first ranks
              sum around a ring, then send the sums to their groups (order `ring`, with
              `group_size`).

        group_size: the number of ranks in a group, at most the number of all ranks. Each group is
            summed in ascending order of ranks. Then the groups' sums are added in `order`. The last
            group may be smaller. One group of all ranks gives the bits of order `sequential`
            without groups. Default: no groups.
        aps: whether to multiply each tensor by a power of two, which the result is divided by;
            default False. Ranks first send each tensor's largest magnitude, in four bytes. With
            `top_k` this is the largest magnitude of the values that are sent, after error feedback.
            With directed or stochastic rounding, sums may still overflow a format of few mantissa
            bits.

            - `True`: the largest scale at which no contribution overflows the format, and W times
              the largest contribution overflows neither the accumulator nor the result. The scale
              is half as large if a rounding can increase magnitudes. If sums have a wide range, as
              in fp32, the contributions alone determine the scale.
            - `"paper"`: the scale of the APS paper, at which W times the largest contribution does
              not overflow the format either. In a 4-bit format with many ranks, all contributions
              then become zero. This scale equals the scale of `True` if format, accumulator and
              result are one format and rounding is to nearest.

        loss_scale: a constant power of two that multiplies all tensors, and divides the result; not
            with `aps`. Default 1.
        average: whether to divide by the number of ranks W, at the time that `divide` names;
            default False.
        divide: when to divide if `average` is True; without `average` it has no effect. Each
            division is rounded once, in binary32.

            - `"after"` (default): the sum is divided at the end. A sum that has overflowed stays
              infinite. Use `"after"` if contributions divided by W would underflow, and with APS,
              because the scales of APS prevent sums from overflowing.
            - `"before"`: each contribution is divided before APS measures it and before its cast,
              as in torch's DDP. Use `"before"` if sums would overflow. Example: 64 ranks, normally
              distributed values with σ = 60, cast to e4m3, summed in fp32, result in e4m3. Six sums
              of ten are infinite with `"after"`, no sum with `"before"`.

        rounding: the rounding of the cast to the format, as in `cpd.cast`; default `nearest_even`.
            The accumulator defines the rounding of sums.
        overflow: the overflow of the cast to the format, as in `cpd.cast`; default `ieee`, for a
            scaled format `saturate`.
        random_bits: the number of random bits of stochastic rounding, 1…24; default 24.
        variant: the variant of stochastic rounding, `A` (default), `B` or `C`, as in `cpd.cast`.
        result: the format in which sums are sent. If the accumulator is wider, the sums of groups
            and the final sum are rounded once more to `result`. Default: the format of the
            contributions, or fp32 for a scaled format or a compressor.

    Attributes:
        format: the `Format` or `Scaled` of the contributions; None for a compressor.

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
    """The codec of the contributions. Without a compressor, it is the codec that packs `format`."""
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
        """The codec of the contributions, or None if the contributions are cast to a format."""
        return self.codec if self.format is None else None

    def replace(self, **keys: Any) -> Reduce:
        """Returns a copy in which some keys are replaced.

        Args:
            keys: keywords of the constructor; None restores a default. The key `codec` replaces the
                form of the contributions, the constructor's first argument.

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
"""A `Reduce`, or an argument of its constructor."""

ReduceSpec = Reduce
"""The old name of `Reduce`, which pickles of version 0.7 contain."""


def as_reduce(given: ReduceLike) -> Reduce:
    """Converts a text, a format or a codec to a `Reduce`. Returns a `Reduce` unchanged."""
    return given if isinstance(given, Reduce) else Reduce(given)


def _since_0_7(state: dict[str, Any]) -> dict[str, Any]:
    """Converts the state in a pickle of version 0.7 to arguments of the constructor."""
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
    """A spec together with a seed, which replaces the communicator's seed for one call.

    DDP hooks and studies pass their own seeds in this way.
    """

    spec: Reduce
    seed: int


def seeded(spec: Reduce, seed: int) -> Any:
    """Returns an argument `spec` for a communicator's call, with a seed for this call.

    The seed 0 means the communicator's own seed.
    """
    return Seeded(spec, seed)


def as_seeded(given: Any) -> Seeded:
    """Splits the argument `spec` of a communicator's call into a spec and a seed.

    The seed is 0 if the argument has no seed. The call then uses the communicator's seed.
    """
    return given if isinstance(given, Seeded) else Seeded(as_reduce(given), 0)


def check_world(spec: Reduce, world: int) -> None:
    """Raises ValueError if the spec's groups are larger than the number of ranks."""
    spec._held.check_world(int32("world", world))


def may_stall(spec: Reduce, world: int) -> bool:
    """Returns whether the last terms of a sum may not change it, as `warn_of_stall` explains."""
    return spec._held.may_stall(world)


def warn_of_stall(spec: Reduce, world: int) -> None:
    """Warns if a sequential sum has more than 2^p terms in an accumulator of precision p.

    In such a sum of equal values, the last terms may not change the sum, because each term is at
    most half an ulp of the sum.
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
