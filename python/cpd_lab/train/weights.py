# SPDX-License-Identifier: Apache-2.0
"""The hash of a model's weights, and the weights' moving average.

The hash is `weights_hash`, the average is `MovingAverage`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn


def weights_hash(model: nn.Module) -> str:
    """Returns the first 16 hexadecimal digits of the SHA-256 of all parameters, as fp32 bytes.

    The parameters are hashed in the order of `model.parameters()`. All NaNs hash as one NaN.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        values = parameter.detach().cpu().numpy().astype("<f4")
        values[np.isnan(values)] = np.nan
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]


class MovingAverage:
    """The exponential moving average of a model's parameters, in fp32.

    The average starts from the parameters' first values. Each `update` sets average = decay *
    average + (1 - decay) * parameter.

    Args:
        model: the model; its parameters are averaged, its buffers are not.
        decay: at least 0 and below 1. With 0 the average is the current parameters.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        self._decay = decay
        self._parameters = list(model.parameters())
        self._average = [p.detach().clone() for p in self._parameters] if decay else []

    @torch.no_grad()
    def update(self) -> None:
        """Updates the average with the current parameters."""
        for average, parameter in zip(self._average, self._parameters, strict=False):
            average.mul_(self._decay).add_(parameter, alpha=1 - self._decay)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Gives the model the averages as parameters until the `with` block ends."""
        if not self._average:
            yield
            return
        own = [parameter.data for parameter in self._parameters]
        for parameter, average in zip(self._parameters, self._average, strict=True):
            parameter.data = average
        try:
            yield
        finally:
            for parameter, values in zip(self._parameters, own, strict=True):
                parameter.data = values
