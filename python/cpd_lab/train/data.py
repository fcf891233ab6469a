# SPDX-License-Identifier: Apache-2.0
"""The data of a training and its measurement: `Data`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["classes", "pixels", "text"]


@dataclass(frozen=True)
class Data:
    """Inputs and targets of a training part and a held-out part.

    Attributes:
        train_x, test_x: the inputs, one in each row.
        train_y, test_y: their targets, int64: a class for each input, pixel or character.
        source: the name that results are quoted with.
        classes: the number of classes; of a text the number of characters.
        kind: `"classes"`: N inputs of any shape, N targets; a model gives N x classes.
            `"pixels"`: N x C x H x W and N x H x W; a model gives N x classes x H x W. `"text"`:
            N x T characters and those that follow them; a model gives N x T x classes.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    source: str
    classes: int
    kind: Kind = "classes"

    def to(self, device: str) -> Data:
        """This data on another device."""
        names = ("train_x", "train_y", "test_x", "test_y")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def first(self, images: int, tests: int) -> Data:
        """Returns the first inputs of each part. Raises ValueError for unavailable numbers."""
        for name, count, available in (
            ("images", images, len(self.train_x)),
            ("tests", tests, len(self.test_x)),
        ):
            if not 1 <= count <= available:
                raise ValueError(f"{name} must be 1…{available} (of {self.source}), got {count}")
        parts = (self.train_x[:images], self.train_y[:images])
        tested = (self.test_x[:tests], self.test_y[:tests])
        return Data(*parts, *tested, self.source, self.classes, self.kind)
