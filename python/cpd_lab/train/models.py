# SPDX-License-Identifier: Apache-2.0
"""The networks of the lab, made of torch's own layers.

They are `mlp`, `lenet`, `cifarnet`, `resnet18`, `resnet110`, `davidnet`, `fcn`, `TextLstm` and
`Gpt`. `table.py` lists the data and the settings with which each network is trained.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PIXELS = 64
CLASSES = 10

T = TypeVar("T")


def seeded(seed: int, make: Callable[[], T]) -> T:
    """Returns `make()`, called with torch's generator seeded by `seed`.

    The generator's state is restored afterwards.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def mlp(inputs: int, classes: int, depth: int, width: int, dropout: float = 0.0) -> nn.Sequential:
    """Makes a network of `depth` hidden layers of equal width with ReLU, and a linear output layer.

    The input is N x inputs, the output N x classes. Dropout follows each hidden layer. Weights have
    PyTorch's default initialization; biases are zero.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index in range(1, depth + 1):
        layers[f"hidden{index}"] = _zero_bias(inputs, width)
        layers[f"relu{index}"] = nn.ReLU()
        if dropout:
            layers[f"dropout{index}"] = nn.Dropout(dropout)
        inputs = width
    layers["output"] = _zero_bias(inputs, classes)
    return nn.Sequential(layers)


def digit_classifier(depth: int, width: int, seed: int) -> nn.Sequential:
    """Returns the network `mlp` for the digits, with weights that depend only on `seed`."""
    return seeded(seed, lambda: mlp(PIXELS, CLASSES, depth, width))


def lenet(
    shape: tuple[int, int, int], classes: int = 10, width: int = 6, dropout: float = 0.0
) -> nn.Sequential:
    """Makes LeNet-5 with ReLU and max pooling. Input N x C x H x W, output N x classes.

    The network has two convolutions, with `width` and 16/6 times `width` channels, and three linear
    layers. Kernels are 5 x 5 without padding. For images below 28 x 28 pixels, such as the digits,
    kernels are 3 x 3 with padding. Dropout precedes the last layer.
    """
    channels, height, _ = shape
    kernel, padding = (5, 0) if height >= 28 else (3, 1)
    second, hidden, last = 16 * width // 6, 20 * width, 14 * width
    side = height
    for _ in range(2):
        side = (side + 2 * padding - kernel + 1) // 2
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = nn.Conv2d(channels, width, kernel, padding=padding)
    layers |= {"relu1": nn.ReLU(), "pool1": nn.MaxPool2d(2)}
    layers["conv2"] = nn.Conv2d(width, second, kernel, padding=padding)
    layers |= {"relu2": nn.ReLU(), "pool2": nn.MaxPool2d(2), "flatten": nn.Flatten()}
    layers["fc1"] = nn.Linear(second * side * side, hidden)
    layers["relu3"] = nn.ReLU()
    layers["fc2"] = nn.Linear(hidden, last)
    layers["relu4"] = nn.ReLU()
    if dropout:
        layers["dropout"] = nn.Dropout(dropout)
    layers["output"] = nn.Linear(last, classes)
    return nn.Sequential(layers)


def cifarnet(
    side: int = 24, classes: int = 10, width: int = 64, dropout: float = 0.0
) -> nn.Sequential:
    """Makes the network of TensorFlow's CIFAR-10 tutorial. Input N x 3 x side x side.

    The output is N x classes. The network has two 5 x 5 convolutions of `width` channels, each with
    overlapping pooling and local response normalization. Linear layers of 6 and 3 times `width`
    units and the output layer follow. Dropout precedes the two hidden linear layers. Initial
    weights are normal, cut off at two deviations, as in the tutorial.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["conv1"] = _drawn(nn.Conv2d(3, width, 5, padding=2), 0.05, 0.0)
    layers |= {"relu1": nn.ReLU(), "pool1": nn.MaxPool2d(3, 2, 1), "norm1": _response()}
    layers["conv2"] = _drawn(nn.Conv2d(width, width, 5, padding=2), 0.05, 0.1)
    layers |= {"relu2": nn.ReLU(), "norm2": _response(), "pool2": nn.MaxPool2d(3, 2, 1)}
    layers["flatten"] = nn.Flatten()
    inputs = width * (((side + 1) // 2 + 1) // 2) ** 2
    for name, outputs in (("fc3", 6 * width), ("fc4", 3 * width)):
        if dropout:
            layers[f"dropout_{name}"] = nn.Dropout(dropout)
        layers[name] = _drawn(nn.Linear(inputs, outputs), 0.04, 0.1)
        layers[f"relu_{name}"] = nn.ReLU()
        inputs = outputs
    layers["output"] = _drawn(nn.Linear(inputs, classes), 1 / inputs, 0.0)
    return nn.Sequential(layers)


def _zero_bias(inputs: int, outputs: int) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.zeros_(layer.bias)
    return layer


def _drawn(layer: nn.Conv2d | nn.Linear, deviation: float, bias: float) -> nn.Module:
    nn.init.trunc_normal_(layer.weight, std=deviation, a=-2 * deviation, b=2 * deviation)
    assert layer.bias is not None
    nn.init.constant_(layer.bias, bias)
    return layer


def _response() -> nn.LocalResponseNorm:
    """Returns local response normalization with TensorFlow's depth radius 4 and alpha 0.001 / 9.

    The module gets alpha = 0.001, because torch divides alpha by the size 9.
    """
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


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
        """Returns the block's output."""
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x))


def resnet18(classes: int = 10, width: int = 64) -> nn.Sequential:
    """Makes ResNet-18 for images of 32 x 32 pixels. Input N x 3 x 32 x 32, output N x classes.

    `width` is the number of channels of the first stage. Later stages have 2, 4 and 8 times as
    many.
    """
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


class _Padded(nn.Module):
    """The shortcut A of He et al.: takes every second pixel and adds channels of zeros."""

    def __init__(self, added: int) -> None:
        super().__init__()
        self.added = added

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self.added))


def resnet110(classes: int = 10, width: int = 16, blocks: int = 18) -> nn.Sequential:
    """Makes the network of 6n + 2 layers for CIFAR-10 of He et al., section 4.2, with n = `blocks`.

    Input N x 3 x 32 x 32, output N x classes. Shortcuts have no parameters. `width` is the number
    of channels of the first stage; the other two stages have 2 and 4 times as many.
    """
    stages: list[nn.Module] = [
        nn.Conv2d(3, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    inputs = width
    for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
        first = BasicBlock(inputs, outputs, stride)
        if stride != 1:
            first.shortcut = nn.Sequential(_Padded(outputs - inputs))
        stages += [first, *(BasicBlock(outputs, outputs, 1) for _ in range(blocks - 1))]
        inputs = outputs
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


class _Residual(nn.Module):
    """A stage of DavidNet, then two convolutions whose result is added to their input."""

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
    """Makes the nine-layer residual network of the DAWNBench entry by David Page.

    Input N x 3 x 32 x 32, output N x classes.
    """
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


class _Upsample(nn.Module):
    """Resizes square images to `factor` times their side by bilinear interpolation.

    The interpolation consists of two products with a matrix, because their derivatives are
    deterministic on every device.
    """

    def __init__(self, side: int, factor: int) -> None:
        super().__init__()
        centres = ((torch.arange(side * factor) + 0.5) / factor - 0.5).clamp(0, side - 1)
        distance = (centres[:, None] - torch.arange(side)).abs()
        self.register_buffer("weights", (1 - distance).clamp_min(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.get_buffer("weights")
        y: Tensor = weights @ x @ weights.T
        return y


def fcn(classes: int = 4, width: int = 16, side: int = 32) -> nn.Sequential:
    """Makes a fully convolutional network (Long, Shelhamer, Darrell, arXiv 1411.4038).

    Input N x 3 x side x side, output N x classes x side x side. The side must be a multiple of 4.
    The network has three stages, with `width` and 2 and 4 times `width` channels. The last two
    stages work on half and a quarter of the side. A 1 x 1 convolution to the classes and bilinear
    interpolation follow.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stage1"] = nn.Sequential(*_convolution(3, width), *_convolution(width, width))
    for number in (2, 3):
        inner = (*_convolution(width, 2 * width), *_convolution(2 * width, 2 * width))
        layers[f"stage{number}"] = nn.Sequential(nn.MaxPool2d(2), *inner)
        width *= 2
    layers["head"] = nn.Conv2d(width, classes, 1)
    layers["upsample"] = _Upsample(side // 4, 4)
    return nn.Sequential(layers)


class GptBlock(nn.Module):
    """A decoder block with causal attention, N x T x width to N x T x width.

    Layer norms precede attention and MLP. Dropout applies to the output of both before it is added.
    """

    def __init__(self, width: int = 512, heads: int = 8, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output."""
        batch, steps, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(batch, steps, width)))
        z: Tensor = x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))
        return z


class Gpt(nn.Module):
    """A small decoder: maps token numbers N x T to logits N x T x vocabulary."""

    def __init__(
        self,
        vocabulary: int,
        width: int = 128,
        heads: int = 4,
        depth: int = 4,
        context: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(GptBlock(width, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the scores of the next token at each position."""
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        y: Tensor = self.head(self.norm(x))
        return y


class TextLstm(nn.Module):
    """An LSTM language model: maps token numbers N x T to logits N x T x vocabulary.

    Dropout applies between the LSTM's layers.
    """

    def __init__(
        self, vocabulary: int, width: int = 128, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Returns the scores of the next character at each position."""
        y: Tensor = self.head(self.lstm(self.tokens(tokens))[0])
        return y
