# SPDX-License-Identifier: Apache-2.0
"""`Data`: the inputs and targets with which a model is trained and measured."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["classes", "pixels", "text"]


@dataclass(frozen=True)
class Data:
    """The inputs and the targets of a training part and of a held-out part.

    Attributes:
        train_x, test_x: the inputs of the two parts; the first dimension counts inputs.
        train_y, test_y: the targets, int64: a class for each input, pixel or character.
        source: the name of the data, which results quote.
        classes: the number of classes; for a text the number of different characters.
        kind: the kind of targets. `"classes"`: N inputs of any shape have N targets, and a model
            returns N x classes. `"pixels"`: inputs are N x C x H x W, targets N x H x W, and a
            model returns N x classes x H x W. `"text"`: inputs are N x T characters, targets the N
            x T characters that follow them, and a model returns N x T x classes.
    """

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor
    source: str
    classes: int
    kind: Kind = "classes"

    def to(self, device: str) -> Data:
        """Returns a copy of the data whose tensors are on `device`."""
        names = ("train_x", "train_y", "test_x", "test_y")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})

    def first(self, images: int, tests: int) -> Data:
        """Returns the data with the first `images` training inputs and `tests` held-out inputs.

        Raises ValueError if a number is below 1 or above the number of available inputs.
        """
        for name, count, available in (
            ("images", images, len(self.train_x)),
            ("tests", tests, len(self.test_x)),
        ):
            if not 1 <= count <= available:
                raise ValueError(f"{name} must be 1…{available} (of {self.source}), got {count}")
        parts = (self.train_x[:images], self.train_y[:images])
        tested = (self.test_x[:tests], self.test_y[:tests])
        return Data(*parts, *tested, self.source, self.classes, self.kind)
