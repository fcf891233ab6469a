# SPDX-License-Identifier: Apache-2.0
"""The errors between ranks, with the names of the C++ exceptions."""

from __future__ import annotations

from collections.abc import Sequence


class RankLost(RuntimeError):  # noqa: N818
    """Ranks did not answer within the timeout.

    The communicator is then broken; its `subgroup` of the other ranks works.

    Args:
        message: the text of the error.
        ranks: the lost ranks, ascending; default (): they are not known.
    """

    ranks: list[int]
    """The lost ranks, ascending; empty if they are not known."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, list(ranks))
        self.ranks = list(ranks)

    def __str__(self) -> str:
        return str(self.args[0])


class Mismatch(ValueError):  # noqa: N818
    """The ranks' calls differed; the text is the same on all of them.

    Nothing was sent, and the communicator keeps working.
    """


class TransportError(RuntimeError):
    """A transport failed without a known lost rank, or a message was damaged.

    A damaged message has a wrong header, length or checksum.

    Args:
        message: the text of the error.
        peer: the rank that the failure concerns; default -1: it is not known.
    """

    peer: int
    """The rank that the failure concerns, or -1 if it is not known."""

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message, peer)
        self.peer = peer

    def __str__(self) -> str:
        return str(self.args[0])
