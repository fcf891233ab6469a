# SPDX-License-Identifier: Apache-2.0
"""The errors between ranks. Their names are those of the C++ exceptions."""

from __future__ import annotations

from collections.abc import Sequence


class RankLost(RuntimeError):  # noqa: N818
    """Ranks that did not answer within the timeout. The communicator is broken from then on; its
    `subgroup` of the others works."""

    ranks: list[int]
    """The lost ranks, ascending; empty where they are not known."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, list(ranks))
        self.ranks = list(ranks)

    def __str__(self) -> str:
        return str(self.args[0])


class Mismatch(ValueError):  # noqa: N818
    """The ranks were about to do different things; the same text on all of them. Nothing has
    moved, and the communicator goes on working."""


class Corrupt(RuntimeError):  # noqa: N818
    """A message whose header, length or checksum is wrong."""


class TransportError(RuntimeError):
    """A failure that a transport reported where no ranks were lost by name."""

    peer: int
    """The rank that it concerns, or -1 where that is not known."""

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message, peer)
        self.peer = peer

    def __str__(self) -> str:
        return str(self.args[0])
