# SPDX-License-Identifier: Apache-2.0
"""The layers of gpu.py: training steps of a transformer layer, also under bfloat16 autocast, and an
FP8 layer compared to torch._scaled_mm."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor

import cpd

Tensors = tuple[Tensor, ...]

STEPS = ("plain", "te-current", "te-delayed", "mxfp8", "nvfp4", "deepseek-v3")
"""The recipes with which the layer's training step is timed."""
WIDTHS = (1024, 4096)
"""The widths of the layer under autocast."""
TOKENS = 512
"""The number of tokens in a sequence."""


@functools.lru_cache(maxsize=2)  # the layer that is timed and the one that it is timed against
def block(recipe: str, device: str, width: int) -> torch.nn.Module:
    """Returns a transformer layer that computes by a recipe."""
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(
        width, width // 64, 4 * width, dropout=0.0, batch_first=True
    )
    layer = layer.to(device)
    if recipe != "plain":
        cpd.convert(layer, recipe, coverage=False)
    return layer


def step(x: Tensor, recipe: str, in_bfloat16: bool = False) -> Tensor:
    """Runs a training step and returns the gradient of the layer's input. The layer's width is the
    width of `x`."""
    x = x.detach().requires_grad_()
    place = x.device.type
    autocast = torch.autocast(place, torch.bfloat16) if in_bfloat16 else contextlib.nullcontext()
    with autocast:
        y = block(recipe, place, x.shape[-1])(x)
    y.float().square().mean().backward()
    assert x.grad is not None
    return x.grad


def tokens(device: str, n: int, width: int = 1024) -> Tensors:
    """Returns random inputs of `n` tokens, in sequences of TOKENS."""
    generator = torch.Generator().manual_seed(n)
    return (torch.randn(n // TOKENS, TOKENS, width, generator=generator).to(device),)


# ---- an FP8 layer --------------------------------------------------------------------------------


def activations_and_weights(device: str, n: int) -> Tensors:
    """Returns two square matrices in bfloat16: activations and weights."""
    generator = torch.Generator().manual_seed(n)
    matrices = (torch.randn(n, n, generator=generator) for _ in range(2))
    return tuple(x.bfloat16().to(device) for x in matrices)


def fp8_layer(x: Tensor, w: Tensor) -> Tensor:
    """Returns CPD's linear layer of x and w in FP8, with one scale for each tensor."""
    y: Tensor = cpd.functional.linear(x, w, recipe="te-current")
    return y


def quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    """Quantizes `x` to torch's float8_e4m3fn by the scale that maps its largest magnitude to 448.
    Returns the quantized tensor and the scale's reciprocal, both computed as in TransformerEngine.
    """
    largest = x.abs().amax().float()
    scale = largest.new_tensor(448) / largest  # 448 / largest is 448 times a rounded reciprocal
    values = (x.float() * scale).clamp(-448, 448)  # torch's conversion gives NaN beyond
    return values.to(torch.float8_e4m3fn), scale.reciprocal()


def scaled_mm(x: Tensor, w: Tensor) -> Tensor:
    """Returns the linear layer of x and w in FP8, computed by torch._scaled_mm."""
    (a, of_a), (b, of_b) = quantized(x), quantized(w)
    y: Tensor = torch._scaled_mm(a, b.t(), of_a, of_b, out_dtype=torch.bfloat16)
    return y


def share_that_differs(x: Tensor, y: Tensor) -> float:
    """Returns the fraction of elements in which the bits of x and y differ."""
    return float((x.view(torch.int16) != y.view(torch.int16)).double().mean())
