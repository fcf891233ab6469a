# SPDX-License-Identifier: Apache-2.0
"""Loads a text that every Python has (`load_text`) and cuts it into sequences (`text_runs`)."""

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
    """A text whose characters are numbers.

    Attributes:
        characters: the vocabulary, sorted; a character's number is its index.
        train, test: the numbers of the first nine tenths of the text, and of the rest.
    """

    characters: str
    train: Tensor
    test: Tensor

    def batches(self, count: int, size: int, length: int, seed: int) -> Iterator[Tensor]:
        """Yields `count` batches of `size` random sequences of `length` + 1 characters.

        The sequences come from the training part. The inputs of a model are all characters but the
        last; the targets are all but the first.
        """
        draw = torch.Generator().manual_seed(seed)
        for _ in range(count):
            begins = torch.randint(len(self.train) - length, (size, 1), generator=draw)
            yield self.train[begins + torch.arange(length + 1)]

    def tests(self, size: int, length: int) -> Tensor:
        """Returns `size` sequences of `length` + 1 characters, evenly spread over the test part."""
        return _runs(self.test, size, length)


@lru_cache(maxsize=1)
def load_text() -> Text:
    """Returns Python's language reference, the text of the module pydoc_data.topics.

    The standard library has this module for `help()`. The text has about half a million characters
    and differs between versions of Python.
    """
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = "".join(sorted(set(text)))
    number = {character: place for place, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])
    train, test = tokens.tensor_split([len(tokens) - len(tokens) // _HELD_OUT])
    return Text(characters, train, test)


def text_runs(runs: int, tests: int, length: int) -> Data:
    """Returns `runs` training sequences and `tests` test sequences of `length` characters.

    The sequences are spread evenly over the two parts of `load_text`. Inputs are N x length.
    Targets are the characters that follow the inputs. Raises ValueError if a part is shorter than a
    sequence, or if a number is below 1.
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
