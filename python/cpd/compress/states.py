# SPDX-License-Identifier: Apache-2.0
"""`States`: the residuals and other numbers that codecs keep of layers between calls."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np

from cpd import _core
from cpd.compress.merging import Kept, merged
from cpd.numeric.checked import checked
from cpd.numeric.formats import flag
from cpd.numeric.numbers import int32, int64
from cpd.numeric.shown import shown

_FLOAT = np.dtype("<f4")
_NAMES = ("rank", "number", "stage", "codec", "size")


class Owner(NamedTuple):
    """The rank, or the virtual ranks, that own states."""

    world: int
    """The number of ranks."""
    rank: int | None
    """None: all of them, as virtual ranks."""

    @classmethod
    def checked(cls, world: Any, rank: Any) -> Owner:
        """Returns the owner; raises ValueError if there is no such rank."""
        if type(world) is not int or world < 1:
            raise ValueError(f"world must be an integer of at least 1, got {shown(world)}")
        if rank is not None and (type(rank) is not int or not 0 <= rank < world):
            raise ValueError(f"rank must be None or 0…{world - 1}, got {shown(rank)}")
        return cls(world, rank)

    def __str__(self) -> str:
        return f"{'all' if self.rank is None else f'rank {self.rank} of'} {self.world} ranks"


@checked
class States:
    """The residuals and other numbers that codecs keep of layers between calls.

    A call with `states=` finds what the last one stored: for each rank and layer, and for each
    owner and slice of results. A layer is identified by its number in random streams, so layers of
    one model keep their states between calls. A call that raises leaves the object unchanged. One
    object serves one rank, or all virtual ranks of a process; calls take turns.

    The first call that stores something ties the object to its number of ranks, and to its rank. A
    call of another rank, or of another number of ranks, is refused (ValueError) while anything but
    zeros is stored. `reset()` removes the owner, `merge` changes the number of ranks.

    `state_dict` is used for pickles and copies. A checkpoint holds each rank's own states.

    >>> import numpy as np
    >>> from cpd import compress
    >>> states = compress.States()
    >>> states.state_dict()
    {'layers': []}
    """

    def __init__(self) -> None:
        self._native = _core.CodecStates()
        self._one_call = threading.Lock()

    def _owner(self) -> Owner | None:
        with self._used() as native:
            owner = native.owner
        return None if owner is None else Owner(*owner)

    def reset(self, number: int | None = None) -> None:
        """Forgets a layer, on all ranks, or everything.

        Args:
            number: the number of the layer; default None: all layers, and the owner.

        Raises:
            RuntimeError: while a call uses the object, as from the other methods.
            TypeError: for an argument of another type.
        """
        checked = None if number is None else int64("number", number)
        with self._used() as native:
            native.reset(checked)

    def set_gradient(self, number: int, rms: float, rank: int | None = None) -> None:
        """Sets the root mean square of a layer's gradient for later calls.

        `uniform bits=gradient` chooses its bits by this number. It is used until another is set or
        the layer is `reset`, and is part of `state_dict`. `cpd.optim.WeightAverage` sets it by
        itself.

        Args:
            number: the number of the layer, as in the call's `numbers`.
            rms: the root mean square, finite and not negative.
            rank: the virtual rank of the gradient; default None: all ranks here. It replaces
                numbers that were set for single ranks.

        Raises:
            ValueError: for an invalid number.
            TypeError: for an argument of another type.

        >>> import numpy as np
        >>> import cpd
        >>> states = cpd.compress.States()
        >>> states.set_gradient(0, rms=3.0)
        >>> codec = cpd.Codec("uniform bits=gradient c0=1 c1=2 coding=fixed")
        >>> packet = codec.encode(np.linspace(-1, 1, 65536, dtype=np.float32), states=states)
        >>> round(packet.bits_a_value, 2)  # log2(3 + 1) + 2, and a head of 12 bytes
        4.0
        """
        if isinstance(rms, bool) or not isinstance(rms, (int, float, np.number)):
            raise TypeError(f"rms must be a number, got {shown(rms)}")
        layer = int64("number", number)
        of = None if rank is None else int32("rank", rank)
        with self._used() as native:
            native.set_gradient(layer, of, float(rms))

    def merge(
        self,
        world: int,
        rank: int | None = None,
        *,
        others: Iterable[States] = (),
        average: bool = False,
    ) -> None:
        """Moves these states to a rank of a job with another number of ranks.

        The new job then sends the errors that the old job's ranks stored. Error feedback
        (`feedback`, `top_k`, `one_bit`) stores errors that later sums of all ranks make good.

        New rank r gets the sum of the errors of the old ranks r, r + world, r + 2 · world, …. It
        gets nothing if there are none. What owners stored of results is added to rank 0's. Sums are
        in binary64, ranks ascending, and rounded once to binary32. All ranks together store the
        same total, but for that rounding. Gradients (`set_gradient`) are forgotten.

        States that version 0.7 stored are merged as that version meant them: rank r owned slice r.

        Args:
            world: the new number of ranks.
            rank: the new owner; default None: all ranks, as virtual ranks.
            others: the states of the old job's other ranks, from their checkpoints; default none,
                as for virtual ranks. They are not changed.
            average: whether calls divide the sum by the number of ranks after it (`average=True,
                divide="after"`); default False. Sums are then multiplied by world / old world
                before they are rounded, so that the new average makes good the old one's errors.

        Raises:
            ValueError: unless the states of every old rank are given once, all stored with slices
                or all by version 0.7. A layer must have one codec and one size on all ranks. Also
                for states of other codecs: `reset` those layers. Nothing is then changed.
            TypeError: for an argument of another type.

        >>> import numpy as np, cpd
        >>> spec, states = cpd.Reduce("feedback e2m1"), States()
        >>> ranks = [[np.float32([x])] for x in (0.25, 0.625, 0.125)]
        >>> _ = cpd.simulate_all_reduce(ranks, spec, states=states)
        >>> states.merge(2)
        >>> [np.frombuffer(one["values"], "f4") for one in states.state_dict()["layers"]]
        [array([0.375], dtype=float32), array([0.125], dtype=float32)]
        """
        new, all_states = Owner.checked(world, rank), [self, *others]
        old = _all_ranks(all_states)
        flag("average", average)
        with ExitStack() as stack:
            native = [stack.enter_context(states._used()) for states in all_states]
            rows = [Kept(*row) for handle in native for row in handle.save()]
            merged_states = list(merged(rows, old, new.world, average))
            native[0].load([state for state in merged_states if rank in (None, state.rank)], new)

    def state_dict(self) -> dict[str, Any]:
        """Returns everything stored, as a new dict of numbers, texts and bytes."""
        with self._used() as native:
            rows, owner, gradients = native.save(), native.owner, native.gradients
        whose = {} if owner is None else Owner(*owner)._asdict()
        of_gradients = {"gradients": gradients} if gradients else {}
        layers = []
        for *row, begin, values in rows:
            layer = dict(zip(_NAMES, row, strict=True))
            if begin is not None:
                layer["begin"] = begin
            layers.append(layer | {"values": values.astype(_FLOAT).tobytes()})
        return whose | {"layers": layers} | of_gradients

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stores what `state_dict` returned, and nothing else.

        A call that uses a layer compares its codec, its size and, for results, the slice. Version
        0.7 stored no slice and meant that rank r owns slice r of each layer, as `order="ring"`
        still does.

        Args:
            state: the state; it is not changed.

        Raises:
            ValueError: for anything else.
        """
        try:
            rows = [
                (
                    *(layer[name] for name in _NAMES),
                    layer.get("begin"),
                    np.frombuffer(layer["values"], _FLOAT).astype(np.float32),
                )
                for layer in state["layers"]
            ]
            owner = Owner.checked(state["world"], state["rank"]) if "world" in state else None
            gradients = [(number, rank, rms) for number, rank, rms in state.get("gradients", ())]
            with self._used() as native:
                native.load(rows, owner)
                for row in gradients:
                    native.set_gradient(*row)
        except (KeyError, TypeError) as error:
            what = f"it has no {error}" if isinstance(error, KeyError) else error
            raise ValueError(f"this is not a state_dict of cpd.compress.States: {what}") from None

    @contextmanager
    def _used(self, owner: Owner | None = None) -> Iterator[_core.CodecStates]:
        """Yields the native object, for one call of `owner`, the ranks of a call of ranks.

        Raises ValueError for states of another owner, and RuntimeError while another call uses the
        object.
        """
        if not self._one_call.acquire(blocking=False):
            raise RuntimeError(
                "these states are in use by another call: each rank of a process needs its own"
            )
        try:
            if owner is not None:
                self._native.claim(*owner)
            yield self._native
        finally:
            self._one_call.release()

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.load_state_dict(state)


def _all_ranks(all_states: list[States]) -> int:
    """Returns the number of ranks of these states; each rank must be given once.

    Raises ValueError otherwise.
    """
    for states in all_states:
        if not isinstance(states, States):
            raise TypeError(f"others must be cpd.compress.States, got {shown(states)}")
    owners = [states._owner() for states in all_states]
    first = owners[0]
    if first is None:
        raise ValueError("the states are empty, so they cannot be merged: no call has used them")
    ranks = [None] if first.rank is None else list(range(first.world))
    expected = {Owner(first.world, rank) for rank in ranks}
    if len(owners) != len(expected) or set(owners) != expected:
        names = ", ".join("nobody" if owner is None else str(owner) for owner in owners)
        raise ValueError(
            f"merge takes the states of all {first.world} ranks, each once, got those of {names}"
        )
    return first.world


@contextmanager
def native_states(
    states: States | None, *, wanted: bool = True, owner: Owner | None = None
) -> Iterator[_core.CodecStates | None]:
    """Yields the native object of `states=`, for one call of `owner`.

    Yields None if it is not `wanted`, as by formats. Raises TypeError for other objects, ValueError
    for another owner's states.
    """
    if states is not None and not isinstance(states, States):
        raise TypeError(f"states must be a cpd.compress.States, got {type(states).__name__}")
    if states is None or not wanted:
        yield None
        return
    with states._used(owner) as native:
        yield native
