# SPDX-License-Identifier: Apache-2.0
"""What codecs keep of layers from call to call: `States`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from cpd import _core
from cpd.numeric.options import int64
from cpd.numeric.shown import shown

_FLOAT = np.dtype("<f4")


class Owner(NamedTuple):
    """Whose states they are."""

    world: int
    """The number of ranks."""
    rank: int | None
    """None: all of them, virtual ones."""

    @classmethod
    def checked(cls, world: Any, rank: Any) -> Owner:
        """Raises ValueError where there is no such rank."""
        if type(world) is not int or world < 1:
            raise ValueError(f"world must be an integer of at least 1, got {shown(world)}")
        if rank is not None and (type(rank) is not int or not 0 <= rank < world):
            raise ValueError(f"rank must be None or 0…{world - 1}, got {shown(rank)}")
        return cls(world, rank)

    def __str__(self) -> str:
        return f"{'all' if self.rank is None else f'rank {self.rank} of'} {self.world} ranks"


class States:
    """The residuals and other numbers that codecs keep of layers between calls.

    A call to which it is given (`states=`) finds what the last one left: of each rank and layer,
    and of each owner and slice of results. A layer goes by its number in random streams, so layers
    of one model keep theirs from call to call. A call that raises leaves it as it was. One object
    serves one rank, or all virtual ranks of a process; calls take turns.

    It knows whose it is, by the first call that keeps something in it: the number of ranks, and
    which of them. A call of another rank, or of another number of ranks, is refused (ValueError)
    as long as anything is kept; `reset()` makes it nobody's.

    Pickled and copied by `state_dict`. A checkpoint holds each rank's own.

    >>> import numpy as np
    >>> from cpd import compress
    >>> states = compress.States()
    >>> states.state_dict()
    {'layers': []}
    """

    def __init__(self) -> None:
        self._native = _core.CodecStates()
        self._one_call = threading.Lock()
        self._owner: Owner | None = None

    def reset(self, number: int | None = None) -> None:
        """Forgets the layer of that number, on all ranks; None: all layers, and whose they were.

        Raises RuntimeError, as the two below, while a call uses it."""
        given = None if number is None else int64("number", number)
        with self.used() as native:
            native.reset(given)
        if number is None:
            self._owner = None

    def state_dict(self) -> dict[str, Any]:
        """All that is kept, for `load_state_dict`: numbers, texts and bytes, in a dict of its
        own."""
        with self.used() as native:
            kept = native.save()
        names = ("rank", "number", "stage", "codec", "size")
        owner = {} if self._owner is None else self._owner._asdict()
        return owner | {
            "layers": [
                {**dict(zip(names, row, strict=False)), "values": values.astype(_FLOAT).tobytes()}
                for *row, values in kept
            ]
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keeps what `state_dict` told of, and nothing else. Raises ValueError for something that
        it does not give; a layer's codec and size are compared when it comes."""
        try:
            kept = [
                (
                    *(layer[name] for name in ("rank", "number", "stage", "codec", "size")),
                    np.frombuffer(layer["values"], _FLOAT).astype(np.float32),
                )
                for layer in state["layers"]
            ]
            owner = Owner.checked(state["world"], state["rank"]) if "world" in state else None
            with self.used() as native:
                native.load(kept)
            self._owner = owner
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no state of codecs: {error!r}") from None

    @contextmanager
    def used(self, owner: Owner | None = None) -> Iterator[_core.CodecStates]:
        """The native object, for one call; `owner`: whose that call is, where it is of ranks.
        Raises ValueError where another's layers are kept."""
        if not self._one_call.acquire(blocking=False):
            raise RuntimeError(
                "these states are in use by another call: each rank of a process needs its own"
            )
        try:
            self._claim(owner)
            yield self._native
        finally:
            self._one_call.release()

    def _claim(self, owner: Owner | None) -> None:
        if owner is None or owner == self._owner:
            return
        if self._owner is not None and self._native.save():
            raise ValueError(
                f"these states are those of {self._owner}, and were given to {owner}: what is kept "
                "of one is nothing to the other; load the checkpoint of this rank, or reset() them"
            )
        self._owner = owner

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.load_state_dict(state)


@contextmanager
def native_states(
    states: States | None, *, wanted: bool = True, owner: Owner | None = None
) -> Iterator[_core.CodecStates | None]:
    """What C++ takes of `states=`, for one call of `owner`; nothing where it is not `wanted`, as by
    formats. Raises TypeError for anything else, ValueError for another's."""
    if states is not None and not isinstance(states, States):
        raise TypeError(f"states must be a cpd.compress.States, got {type(states).__name__}")
    if states is None or not wanted:
        yield None
        return
    with states.used(owner) as native:
        yield native
