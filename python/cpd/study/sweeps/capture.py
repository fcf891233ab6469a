# SPDX-License-Identifier: Apache-2.0
"""`capture`: the tensors of a model's layers in one step, as `cpd.observe` observes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from cpd.nn.observed import GEMMS, as_operand
from cpd.nn.observers import Watch
from cpd.numeric.shown import shown

ROLES = tuple(GEMMS)


def capture(
    model: nn.Module,
    inputs: Any,
    loss: Callable[[Any], Tensor] | None = None,
    *,
    layers: str = "*",
    roles: Sequence[str] = ("activation", "weight", "gradient"),
) -> dict[str, Tensor]:
    """Captures the operands of the products of a model's layers in one call, for `cpd.study.sweep`.

    Tensors are copies on the CPU, in binary32, as operands of a GEMM. The GEMM's sum runs along the
    last dimension: that of the forward GEMM for activations and weights, of grad_input's for
    gradients. (A convolution's sums run over the channels of a group.)

    Args:
        model: any module. Its layers with products are captured (linear, convolution, recurrent,
            attention). It is called in its current mode, training or evaluation.
        inputs: one tensor, a tuple of arguments, or a dict of named ones.
        loss: computes a scalar from the model's result; default None: no gradients. The parameters'
            gradients do not change.
        layers: a pattern that the layers' names match, such as `decoder.*`; default: all.
        roles: some of `activation`, `weight`, `output`, `gradient`; default all but `output`.

    Returns:
        `LAYER/activation`, `LAYER/weight` and, with a loss, `LAYER/gradient` (of the layer's
        output) → tensor. A layer that is called again gives `LAYER/activation#2`.

    Raises:
        ValueError: for an unknown role, a compiled model, and if nothing was captured.
        TypeError: for an argument of another type, and a loss that gives no scalar.

    >>> layer = torch.nn.Linear(4, 2)
    >>> found = capture(layer, torch.ones(3, 4), torch.sum)
    >>> {name: tuple(x.shape) for name, x in found.items()}
    {'activation': (3, 4), 'weight': (2, 4), 'gradient': (3, 2)}
    """
    unknown = [role for role in roles if role not in ROLES]
    if unknown or isinstance(roles, str):
        raise ValueError(f"roles must be of {', '.join(ROLES)}, got {shown(roles)}")
    if loss is not None and not callable(loss):
        raise TypeError(f"loss must be a function of the result, got {type(loss).__name__}")
    watch = _Capture(model, layers, tuple(roles))
    with watch, torch.set_grad_enabled(loss is not None):
        result = _called(model, inputs)
        if loss is not None:
            _differentiate(model, loss(result))
    if not watch.found:
        raise ValueError(
            f"no layer with products that matches {layers!r} was called with tensors of numbers"
        )
    return watch.found


class _Capture(Watch):
    """Keeps the tensors themselves."""

    def __init__(self, model: nn.Module, layers: str, roles: Sequence[str]) -> None:
        super().__init__(model, every=1)
        self._layers, self._roles = layers, roles
        self.found: dict[str, Tensor] = {}

    def _look(self, name: str, module: nn.Module, role: str, x: Tensor, suffix: str = "") -> None:
        known = x.numel() and x.is_floating_point()
        if role not in self._roles or not known or not fnmatchcase(name, self._layers):
            return
        operand, axis = as_operand(x.detach(), module, role, GEMMS[role][0][0])
        layer = f"{name}.{suffix}" if name and suffix else name or suffix
        key = first = f"{layer}/{role}" if layer else role
        again = 1
        while key in self.found:
            again += 1
            key = f"{first}#{again}"
        moved = operand.movedim(axis, -1).to("cpu", torch.float32, copy=True)
        self.found[key] = moved.contiguous()


def _called(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def _differentiate(model: nn.Module, value: Any) -> None:
    """Runs the backward pass for its hooks alone."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError("loss must give a tensor of one value")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not (value.requires_grad and parameters):
        raise ValueError("there are no gradients: no parameter of the model requires one")
    torch.autograd.grad(value, parameters, allow_unused=True)
