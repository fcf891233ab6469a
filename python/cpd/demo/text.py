# SPDX-License-Identifier: Apache-2.0
"""A text that every Python has at hand, as numbers: `load_text`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

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
        """`count` batches of `size` runs of `length` + 1 characters of the training part: inputs
        are all but the last, targets all but the first."""
        draw = torch.Generator().manual_seed(seed)
        for _ in range(count):
            begins = torch.randint(len(self.train) - length, (size, 1), generator=draw)
            yield self.train[begins + torch.arange(length + 1)]

    def tests(self, size: int, length: int) -> Tensor:
        """`size` such runs of the test part, spread over it."""
        begins = torch.linspace(0, len(self.test) - length - 1, size).long()[:, None]
        return self.test[begins + torch.arange(length + 1)]


def load_text() -> Text:
    """The language reference as the module pydoc_data.topics of Python's standard library holds it
    for `help()`: about half a million characters, others in each version of Python."""
    from pydoc_data import topics

    text = "\n".join(topics.topics[name] for name in sorted(topics.topics))
    characters = "".join(sorted(set(text)))
    number = {character: place for place, character in enumerate(characters)}
    tokens = torch.tensor([number[character] for character in text])
    train, test = tokens.tensor_split([len(tokens) - len(tokens) // _HELD_OUT])
    return Text(characters, train, test)
