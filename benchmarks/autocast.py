# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `model/<model>/autocast/<recipe>`: a training step under
torch.autocast(bfloat16).

Each row is compared to another step. `plain` is the unconverted model's step, compared to its
float32 step. `mxfp8`, whose products bfloat16 represents exactly, is compared to the unconverted
step under autocast. Other recipes are compared to a step without casts whose products have the
types that the recipe's operands need: bfloat16 elements with a float32 result, which is then
multiplied by the scales (`FLOAT32`), or float32 operands (`WIDE`) if a scale changes within a sum.
"""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import torch
from timing import Row, Side, timed
from torch import Tensor, nn

import cpd
from cpd._torch.convolution import _input_of_torch, _of_torch, _weight_of_torch
from cpd._torch.moves import Moves
from cpd._torch.native import Factor, product_of_factors

PLAIN, FLOAT32, WIDE = "unconverted", "float32 results", "float32 operands"
PEERS = {"mxfp8": PLAIN, "te-current": FLOAT32, "nvfp4": FLOAT32, "deepseek-v3": WIDE}
"""For each recipe, the kind of model whose training step its row is compared to."""
BAR = 0.85
"""A recipe's step must reach this fraction of the rate of the step that it is compared to."""


def step(model: nn.Module, x: Tensor) -> Tensor:
    """Runs one forward and backward pass under torch.autocast. Returns the loss."""
    model.zero_grad(set_to_none=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    loss = y.float().square().mean()
    loss.backward()
    return loss.detach()


# ---- products without casts ----------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Returns the bfloat16 product of bfloat16 operands, summed and scaled in float32."""
    return product_of_factors(Factor(a, torch.ones(())), Factor(b), bias, torch.bfloat16)


class _Linear(torch.autograd.Function):
    """The forward and backward pass of Float32Linear, with products by `_product`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
        x, w = x.bfloat16(), w.bfloat16()
        ctx.save_for_backward(x, w)
        return _product(x, w.mT, None if bias is None else bias.bfloat16())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, w = ctx.saved_tensors
        of_w = _product(g.flatten(0, -2).mT, x.flatten(0, -2)).float()
        of_bias = g.flatten(0, -2).sum(0).float() if ctx.needs_input_grad[2] else None
        return _product(g, w), of_w, of_bias


class _Conv2d(torch.autograd.Function):
    """The forward and backward pass of Float32Conv2d."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, moves: Moves) -> Tensor:
        x, w = x.bfloat16(), w.bfloat16()
        ctx.save_for_backward(x, w)
        ctx.moves = moves
        return _of_torch(Factor(x, torch.ones(())), Factor(w), None, moves, torch.bfloat16)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (g,) = gradients
        x, w = ctx.saved_tensors
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = _input_of_torch(g, w, x.shape, x, ctx.moves, torch.float32).bfloat16()
        of_w = _weight_of_torch(g, x, w.shape, w, ctx.moves, torch.float32)
        return of_x, of_w.bfloat16().float(), None


class Float32Linear(nn.Linear):
    """A linear layer on bfloat16 operands, whose products have float32 results before they are
    rounded to bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Linear.apply(x, self.weight, self.bias)
        return y


class Float32Conv2d(nn.Conv2d):
    """A convolution on bfloat16 operands, whose products have float32 results before they are
    rounded to bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        if self.bias is not None or isinstance(self.padding, str):
            raise ValueError("Float32Conv2d takes no bias, and padding as numbers")
        moves = Moves(self.stride, self.padding, self.dilation, False, (0, 0), self.groups)
        y: Tensor = _Conv2d.apply(x, self.weight, moves)
        return y


def peer(plain: nn.Module, which: str) -> nn.Module:
    """Returns the model whose training step is the baseline of a recipe's benchmark row."""
    model = copy.deepcopy(plain)
    if which == FLOAT32:
        for module in model.modules():
            for layer in (Float32Linear, Float32Conv2d):
                if type(module) is layer.__base__:
                    module.__class__ = layer
    if which == WIDE:
        uncast = cpd.Recipe("native", activation="e8m23", weight="e8m23", gradient="e8m23")
        cpd.convert(model, uncast, coverage=False)
    return model


def rows(
    name: str,
    plain: nn.Module,
    x: Tensor,
    converted: Callable[[str], nn.Module],
    in_float32: Callable[[nn.Module, Tensor], Tensor],
    work: int,
    options: Namespace,
) -> Iterator[Row]:
    """Yields the selected benchmark rows of a model. `converted` returns a copy of the model that
    computes by a recipe; `in_float32` runs a step without autocast."""
    full = f"model/{name}/autocast/plain"
    if options.selection.wants(full):
        sides = Side(lambda: step(plain, x), work), Side(lambda: in_float32(plain, x), work)
        yield timed(full, "GFLOP/s", sides[0], "float32", sides[1], options.repeats)
    for recipe, which in PEERS.items():
        full = f"model/{name}/autocast/{recipe}"
        if not options.selection.wants(full):
            continue
        first, again = (step(converted(recipe), x) for _ in range(2))
        if not torch.equal(first, again) or not torch.isfinite(first):
            yield {"name": full, "wrong": f"the losses of two copies are {first} and {again}"}
            continue
        row = _row(full, converted(recipe), (which, peer(plain, which)), x, work, options)
        yield {**row, "bar": BAR}


def _row(
    full: str, model: nn.Module, against: tuple[str, nn.Module], x: Tensor, work: int,
    options: Namespace,
) -> Row:  # fmt: skip
    which, other = against
    sides = (Side(lambda m=m: step(m, x), work) for m in (model, other))  # type: ignore[misc]
    return timed(full, "GFLOP/s", next(sides), which, next(sides), options.repeats)
