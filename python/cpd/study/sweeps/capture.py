# SPDX-License-Identifier: Apache-2.0
"""`capture`: copies the tensors of a model's layers in one step, for `cpd.study.sweep`."""

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
    """Captures the operands of a model's matrix products in one call, for `cpd.study.sweep`.

    Each tensor is a copy on the CPU, in binary32, in the shape of an operand of a GEMM. The last
    dimension is the dimension that the GEMM sums over: the forward GEMM for activations and
    weights, the GEMM of grad_input for gradients. (A convolution sums over the channels of a
    group.)

    Args:
        model: any module. Its linear, convolution, recurrent and attention layers are captured. The
            model is called in its current mode, training or evaluation.
        inputs: the model's argument, a tuple of its arguments, or a dict of its keyword arguments.
        loss: a function that computes a scalar tensor from the model's result, for the backward
            pass. Default None: no gradients are captured. The parameters' `grad` does not change.
        layers: a pattern of the names of layers to capture, such as `decoder.*`; default `*`: all
            layers.
        roles: some of `activation`, `weight`, `output`, `gradient`; default all but `output`.

    Returns:
        A dict with the keys `LAYER/activation`, `LAYER/weight` and, with a loss, `LAYER/gradient`
        (the gradient of the layer's output). A second call of a layer adds `LAYER/activation#2` and
        so on.

    Raises:
        ValueError: for an unknown role, a compiled model, and if nothing was captured.
        TypeError: for an argument of another type, and if `loss` does not return a scalar tensor.

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
    """Stores copies of the operands that the hooks of `Watch` see while the model runs."""

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
    """Runs the backward pass, so that hooks see the gradients; `grad` does not change."""
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise TypeError("loss must give a tensor of one value")
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not (value.requires_grad and parameters):
        raise ValueError("there are no gradients: no parameter of the model requires one")
    torch.autograd.grad(value, parameters, allow_unused=True)
