# SPDX-License-Identifier: Apache-2.0
"""The digit classifier: hidden layers of equal width with ReLU, and a linear output layer."""

import hashlib
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

PIXELS = 64
CLASSES = 10


def digit_classifier(depth: int, width: int, seed: int) -> nn.Sequential:
    """`depth` hidden layers; PyTorch's default weights, made from `seed` alone, and zero biases."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = PIXELS
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for index in range(1, depth + 1):
            layers[f"hidden{index}"] = _linear(inputs, width)
            layers[f"relu{index}"] = nn.ReLU()
            inputs = width
        layers["output"] = _linear(inputs, CLASSES)
    return nn.Sequential(layers)


def _linear(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    return layer


def weights_hash(model: nn.Module) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of all parameters' bytes, in their order.

    Any NaN counts as the same one.
    """
    digest = hashlib.sha256()
    for parameter in model.parameters():
        values = parameter.detach().numpy().astype("<f4")
        values[np.isnan(values)] = np.nan
        digest.update(values.tobytes())
    return digest.hexdigest()[:16]
