# SPDX-License-Identifier: Apache-2.0
"""`States`: the residuals and other numbers that codecs store for tensors between calls."""

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
    """Identifies the rank, or all virtual ranks of a process, that a `States` object belongs to."""

    world: int
    """The number of ranks."""
    rank: int | None
    """The rank that owns the states; None: all ranks, as virtual ranks of one process."""

    @classmethod
    def checked(cls, world: Any, rank: Any) -> Owner:
        """Checks the arguments and makes an `Owner`.

        Raises ValueError unless `rank` is None or in 0…world - 1.
        """
        if type(world) is not int or world < 1:
            raise ValueError(f"world must be an integer of at least 1, got {shown(world)}")
        if rank is not None and (type(rank) is not int or not 0 <= rank < world):
            raise ValueError(f"rank must be None or 0…{world - 1}, got {shown(rank)}")
        return cls(world, rank)

    def __str__(self) -> str:
        return f"{'all' if self.rank is None else f'rank {self.rank} of'} {self.world} ranks"


@checked
class States:
    """The residuals and other numbers that codecs store for tensors (layers) between calls.

    A call with `states=` uses the numbers that the last call stored, and replaces them. There is
    one state for each rank and tensor, and one for each slice of a sum that a rank encodes. A
    tensor is identified by its number (the argument `numbers` of the calls). A call that raises
    leaves the object unchanged. One object serves one rank, or all virtual ranks of a process. A
    call raises RuntimeError while another call uses the object.

    The first call that stores a state makes its rank and number of ranks the owner of the object.
    Calls of another rank, or with another number of ranks, raise ValueError while any stored value
    is nonzero. `reset()` removes the owner; `merge` changes the number of ranks.

    Pickles and copies use `state_dict`. A checkpoint must hold the states of each rank.

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
        """Removes the states of one tensor or of all tensors, for all ranks in this object.

        Args:
            number: the number of the tensor; default None: the states of all tensors are removed,
                and the object no longer has an owner.

        Raises:
            RuntimeError: if a call uses the object at this time. All methods raise this error.
            TypeError: for an argument of another type.
        """
        checked = None if number is None else int64("number", number)
        with self._used() as native:
            native.reset(checked)

    def set_gradient(self, number: int, rms: float, rank: int | None = None) -> None:
        """Sets the root mean square of a tensor's gradient for later calls.

        The codec `uniform bits=gradient` computes its number of bits from this root mean square.
        The value is used until another value is set or the tensor is `reset`. It is part of
        `state_dict`. `cpd.optim.WeightAverage` sets the value itself.

        Args:
            number: the number of the tensor, as in the call's `numbers`.
            rms: the root mean square, finite and not negative.
            rank: the virtual rank of the gradient; default None: all ranks of this object. None
                also replaces values that were set for single ranks.

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
        """Converts the states of a job's ranks to the states of one rank of another job.

        Use this method when a job continues with another number of ranks. Codecs with error
        feedback (`feedback`, `top_k`, `one_bit`) store residuals: errors that they add to later
        values. The method distributes the residuals of the old ranks to the new ranks.

        New rank r receives the sum of the residuals of the old ranks r, r + world, r + 2 · world,
        …, or no residual if none of these ranks exists. Residuals from encoding sums are added to
        the residuals of new rank 0. Sums are computed in binary64, in ascending order of ranks, and
        rounded once to binary32. Apart from this rounding, the total over all ranks is unchanged.
        Root mean squares of gradients (`set_gradient`) are removed.

        A rank that encodes sums encodes one slice of each tensor. States of version 0.7 do not
        store where the slice begins: slice r is taken as the slice of rank r, as in that version.

        Args:
            world: the new number of ranks.
            rank: the new rank, which owns these states afterwards; default None: all new ranks, as
                virtual ranks.
            others: the states of the old job's other ranks, from their checkpoints, which are not
                changed; default (): this object has the states of all old ranks (virtual ranks).
            average: whether calls divide sums by the number of ranks at the end (`average=True,
                divide="after"`); default False. If so, residuals are multiplied by world / (old
                number of ranks) before they are rounded, because later sums are divided by `world`.

        Raises:
            ValueError: unless the states of every old rank are given exactly once. Version 0.7 must
                have stored all slices of a tensor's sum, or none. All ranks must have the same
                codec and size for a tensor. Also raised for codecs without error feedback: `reset`
                these tensors first. All states are then unchanged.
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
        """Returns a dict of plain data, from which `load_state_dict` restores all states.

        The dict also has the rank that the states belong to, and what `set_gradient` has set.
        """
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
        """Replaces all states by the states in a dict that `state_dict` returned.

        A later call raises an error if a tensor's codec, its size, or the slice of its sum that
        this rank encodes differs from the loaded state. Version 0.7 did not store the slice. In
        that version rank r encoded slice r of each tensor, as it still does with `order="ring"`.

        Args:
            state: the result of `state_dict`; it is not changed.

        Raises:
            ValueError: if `state` is not a result of `state_dict`.
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
        """Yields the C++ object for one call, during which no other call may use the object.

        If `owner` (a rank, or all virtual ranks of a process) is given, the states belong to it
        from then on. Raises ValueError if nonzero states of another owner are stored, and
        RuntimeError while another call uses the object.
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
    """Returns the number of ranks whose states are given.

    Raises ValueError unless the states of each rank are given exactly once.
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
    """Yields the C++ object in `states`, for one call by the ranks that `owner` describes.

    Yields None if `states` is None, or if `wanted` is False: the call then stores no states, as for
    a format. Raises TypeError if `states` is not a `States`. Raises ValueError if `states` has
    nonzero values that belong to other ranks.
    """
    if states is not None and not isinstance(states, States):
        raise TypeError(f"states must be a cpd.compress.States, got {type(states).__name__}")
    if states is None or not wanted:
        yield None
        return
    with states._used(owner) as native:
        yield native
