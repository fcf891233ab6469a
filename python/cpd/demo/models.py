# SPDX-License-Identifier: Apache-2.0
"""Models of the examples and benchmarks, in torch's own layers: `resnet18`, `davidnet`, `Gpt`,
`GptBlock`, `TextLstm`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions and a shortcut (He et al., arXiv 1512.03385, figure 5)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Sequential:
    """ResNet-18 for images of 32 x 32: input N x 3 x 32 x 32, output N x classes. `width`: channels
    of the first stage, of which later ones have 2, 4 and 8 times as many."""
    stages: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2), (8 * width, 2)):
        stages += [BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class _Residual(nn.Module):
    """A stage of DavidNet and two convolutions in parallel."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stage = _stage(inputs, outputs)
        self.residual = nn.Sequential(
            _convolution(outputs, outputs), _convolution(outputs, outputs)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.stage(x)
        z: Tensor = y + self.residual(y)
        return z


class _Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def _convolution(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()
    )


def _stage(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(*_convolution(inputs, outputs), nn.MaxPool2d(2))


def davidnet(classes: int = 10, width: int = 64) -> nn.Sequential:
    """The nine-layer residual network of the DAWNBench entry by David Page: input N x 3 x 32 x 32,
    output N x classes."""
    return nn.Sequential(
        _convolution(3, width),
        _Residual(width, 2 * width),
        _stage(2 * width, 4 * width),
        _Residual(4 * width, 8 * width),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(8 * width, classes, bias=False),
        _Times(0.125),
    )


class GptBlock(nn.Module):
    """A decoder block, norms first: N x T x width to the same; causal attention."""

    def __init__(self, width: int = 512, heads: int = 8) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, steps, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, steps, width))
        z: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return z


class Gpt(nn.Module):
    """A small decoder: token numbers N x T to logits N x T x vocabulary."""

    def __init__(
        self, vocabulary: int, width: int = 128, heads: int = 4, depth: int = 4, context: int = 128
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(GptBlock(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y


class TextLstm(nn.Module):
    """A language model: token numbers N x T to logits N x T x vocabulary."""

    def __init__(self, vocabulary: int, width: int = 128, layers: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        y: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return y
