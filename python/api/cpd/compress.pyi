# SPDX-License-Identifier: Apache-2.0
"""Messages of codecs, and what codecs store between them."""

from collections.abc import Iterable, Mapping
from typing import Any, Self

from cpd import _Shape

class States:
    """The state of codecs from step to step, such as the errors they feed back."""

    def __init__(self) -> None: ...
    def reset(self, number: int | None = None) -> None:
        """Forgets what is stored of a tensor, or of all tensors."""

    def set_gradient(self, number: int, rms: float, rank: int | None = None) -> None:
        """Sets the gradient by which a codec chooses its bits."""

    def merge(
        self,
        world: int,
        rank: int | None = None,
        *,
        others: Iterable[States] = (),
        average: bool = False,
    ) -> None:
        """Makes the states of another number of ranks of these."""

    def state_dict(self) -> dict[str, Any]:
        """Returns all that is stored, as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""

class Packet:
    """A message of a codec."""

    data: Any
    bytes: int
    shape: tuple[int, ...]

    @classmethod
    def from_bytes(cls, data: Any, shape: _Shape | None = None) -> Self:
        """Returns the message that these bytes are; they name their codec."""

    @property
    def values(self) -> Any:
        """The decoded values."""

    @property
    def size(self) -> int:
        """The number of values."""

    @property
    def bits_a_value(self) -> float:
        """The bits of the message per value."""
