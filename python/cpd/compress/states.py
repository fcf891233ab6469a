# SPDX-License-Identifier: Apache-2.0
"""What codecs keep of layers from call to call: `States`."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from cpd import _core
from cpd.numeric.options import int64

_FLOAT = np.dtype("<f4")


class States:
    """The residuals and other numbers that codecs keep of layers between calls.

    A call to which it is given (`states=`) finds what the last one left: of each rank and layer,
    and of each owner and slice of results. A layer goes by its number in random streams, so layers
    of one model keep theirs from call to call. A call that raises leaves it as it was. One object
    serves one rank, or all virtual ranks of a process; calls take turns.

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

    def reset(self, number: int | None = None) -> None:
        """Forgets the layer of that number, on all ranks; None: all layers.

        Raises RuntimeError, as the two below, while a call uses it."""
        given = None if number is None else int64("number", number)
        with self.used() as native:
            native.reset(given)

    def state_dict(self) -> dict[str, Any]:
        """All that is kept, for `load_state_dict`: numbers, texts and bytes, in a dict of its
        own."""
        with self.used() as native:
            kept = native.save()
        names = ("rank", "number", "stage", "codec", "size")
        return {
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
            with self.used() as native:
                native.load(kept)
        except (KeyError, TypeError) as error:
            raise ValueError(f"this is no state of codecs: {error!r}") from None

    @contextmanager
    def used(self) -> Iterator[_core.CodecStates]:
        """The native object, for one call."""
        if not self._one_call.acquire(blocking=False):
            raise RuntimeError(
                "these states are in use by another call: each rank of a process needs its own"
            )
        try:
            yield self._native
        finally:
            self._one_call.release()

    def __getstate__(self) -> dict[str, Any]:
        return self.state_dict()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        self.load_state_dict(state)


@contextmanager
def native_states(
    states: States | None, *, wanted: bool = True
) -> Iterator[_core.CodecStates | None]:
    """What C++ takes of `states=`, for one call; nothing where it is not `wanted`, as by formats.
    Raises TypeError for anything else."""
    if states is not None and not isinstance(states, States):
        raise TypeError(f"states must be a cpd.compress.States, got {type(states).__name__}")
    if states is None or not wanted:
        yield None
        return
    with states.used() as native:
        yield native
