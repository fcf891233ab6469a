# SPDX-License-Identifier: Apache-2.0
"""The errors that communicators raise, named like the C++ exceptions."""

from __future__ import annotations

from collections.abc import Sequence


class RankLost(RuntimeError):  # noqa: N818
    """Raised if ranks did not answer within the timeout.

    The communicator is then broken: every further call raises, except `subgroup`, which makes a
    communicator of the remaining ranks.

    Args:
        message: the text of the error.
        ranks: the lost ranks, ascending; default (): the lost ranks are not known.
    """

    ranks: list[int]
    """The lost ranks, ascending; an empty list if the lost ranks are not known."""

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None:
        super().__init__(message, list(ranks))
        self.ranks = list(ranks)

    def __str__(self) -> str:
        return str(self.args[0])


class Mismatch(ValueError):  # noqa: N818
    """Raised on all ranks, with the same text, if the ranks' calls differed.

    No values were sent, and the communicator keeps working.
    """


class TransportError(RuntimeError):
    """Raised if a transport failed but no rank is known to be lost, or if a message was damaged.

    A damaged message has a wrong header, length or checksum.

    Args:
        message: the text of the error.
        peer: the rank that the failure concerns; default -1: it is not known.
    """

    peer: int
    """The rank that the failure concerns, or -1 if that rank is not known."""

    def __init__(self, message: str, peer: int = -1) -> None:
        super().__init__(message, peer)
        self.peer = peer

    def __str__(self) -> str:
        return str(self.args[0])
