# SPDX-License-Identifier: Apache-2.0
"""The computation of one node: its loss, and the gradients of that alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Loss: TypeAlias = Callable[[Any], torch.Tensor | Iterable[torch.Tensor]]
"""Takes a micro-batch and returns its loss, or yields several."""
Gradients: TypeAlias = list[torch.Tensor | None]
Watch: TypeAlias = Callable[[int, dict[str, torch.Tensor | None]], object]
"""Takes a node's number and its gradients by name."""


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the trained parameters, each once, in their order: the layers of an all-reduce."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p for name, p in inner.named_parameters() if p.requires_grad}


def number_of(name: str, names: Sequence[str]) -> int:
    """Returns a layer's number. Raises ValueError for a name that no layer has."""
    if name not in names:
        raise ValueError(f"there is no tensor {name!r}; the tensors are {', '.join(names)}")
    return list(names).index(name)


def computed(
    loss: Loss,
    micro_batch: Any,
    parameters: dict[str, nn.Parameter],
    before: Gradients | None = None,
) -> tuple[torch.Tensor, Gradients]:
    """Returns the loss, detached, and its gradients; None for parameters without a gradient.

    The gradients are stored in `grad` too. `before`: gradients to which these are added, in copies.

    Several losses are summed; the backward pass of each follows it at once. Raises TypeError if the
    function returns anything else, or for a sparse gradient.
    """
    begin = [None] * len(parameters) if before is None else before
    for parameter, gradient in zip(parameters.values(), begin, strict=True):
        parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
    total = _backward(loss(micro_batch))
    gradients = [parameter.grad for parameter in parameters.values()]
    for name, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None and gradient.layout is not torch.strided:
            raise TypeError(
                f"the gradient of {name} is sparse, and sparse gradients cannot be reduced by CPD: "
                "build the layer with sparse=False"
            )
    return total.reshape(()), gradients


def _backward(result: Any) -> torch.Tensor:
    losses = [result] if isinstance(result, torch.Tensor) else result
    if not isinstance(losses, Iterable) or isinstance(losses, (str, bytes, Mapping)):
        raise _no_loss(result)
    total: torch.Tensor | None = None
    for loss in losses:
        if not isinstance(loss, torch.Tensor):
            raise _no_loss(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        total = loss.detach() if total is None else total + loss.detach()
    if total is None:
        raise ValueError("the loss function yielded no loss")
    return total


def _no_loss(result: object) -> TypeError:
    return TypeError(
        f"the loss function must return a tensor, or yield tensors, got {type(result).__name__}"
    )
