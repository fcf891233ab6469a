# SPDX-License-Identifier: Apache-2.0
"""A text that every Python has at hand, as numbers: `load_text`, and cut in runs: `text_runs`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cpd.numeric.later import Later
from cpd_lab.train.data import Data

if TYPE_CHECKING:
    import torch
    from torch import Tensor
else:
    torch = Later("torch")

_HELD_OUT = 10  # the last tenth


@dataclass(frozen=True)
class Text:
    """Characters as numbers.

    Attributes:
        characters: the vocabulary, sorted.
        train, test: the first nine tenths, and the rest.
    """

    characters: str
    train: Tensor
    test: Tensor

    def batches(self, count: int, size: int, length: int, seed: int) -> Iterator[Tensor]:
        """Yields `count` batches of `size` runs of `length` + 1 characters of the training part.

        Inputs are all but the last character, targets all but the first.
        """
        draw = torch.Generator().manual_seed(seed)
        for _ in range(count):
            begins = torch.randint(len(self.train) - length, (size, 1), generator=draw)
            yield self.train[begins + torch.arange(length + 1)]

    def tests(self, size: int, length: int) -> Tensor:
        """`size` such runs of the test part, spread over it."""
        return _runs(self.test, size, length)


@lru_cache(maxsize=1)
def load_text() -> Text:
    """Returns the language reference of Python's module pydoc_data.topics.

    The standard library has it for `help()`: about half a million characters, others in each
    version of Python.
    """
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = "".join(sorted(set(text)))
    number = {character: place for place, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])
    train, test = tokens.tensor_split([len(tokens) - len(tokens) // _HELD_OUT])
    return Text(characters, train, test)


def text_runs(runs: int, tests: int, length: int) -> Data:
    """Returns `runs` and `tests` runs of `length` characters.

    They are spread evenly over the parts of `load_text`. Inputs are N x length; targets are the
    characters that follow them.

    Raises ValueError if a part is shorter than a run, or a number is less than 1.
    """
    text = load_text()
    for name, number in (("images", runs), ("tests", tests), ("length", length)):
        if number < 1:
            raise ValueError(f"{name} must be at least 1, got {number}")
    if length >= len(text.test):
        raise ValueError(f"length must be below {len(text.test)} (characters), got {length}")
    train = _runs(text.train, runs, length)
    test = text.tests(tests, length)
    return Data(
        train[:, :-1].contiguous(),
        train[:, 1:].contiguous(),
        test[:, :-1].contiguous(),
        test[:, 1:].contiguous(),
        source="text",
        classes=len(text.characters),
        kind="text",
    )


def _runs(characters: Tensor, size: int, length: int) -> Tensor:
    begins = torch.linspace(0, len(characters) - length - 1, size).long()[:, None]
    return characters[begins + torch.arange(length + 1)]
