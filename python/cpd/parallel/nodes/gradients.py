# SPDX-License-Identifier: Apache-2.0
"""Computes one node's loss, and the gradients of this node's loss alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

Loss: TypeAlias = Callable[[Any], torch.Tensor | Iterable[torch.Tensor]]
"""A function of a micro-batch that returns its loss, or yields several losses to be summed."""
Gradients: TypeAlias = list[torch.Tensor | None]
Watch: TypeAlias = Callable[[int, dict[str, torch.Tensor | None]], object]
"""A function that is called with a node's number and a dict of its gradients by name."""


def named_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Returns the parameters that require gradients, by name: the tensors of an all-reduce."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {name: p for name, p in inner.named_parameters() if p.requires_grad}


def number_of(name: str, names: Sequence[str]) -> int:
    """Returns the index of a tensor's name in `names`. Raises ValueError for an unknown name."""
    if name not in names:
        raise ValueError(f"there is no tensor {name!r}; the tensors are {', '.join(names)}")
    return list(names).index(name)


def computed(
    loss: Loss,
    micro_batch: Any,
    parameters: dict[str, nn.Parameter],
    before: Gradients | None = None,
) -> tuple[torch.Tensor, Gradients]:
    """Returns the detached loss and the parameters' gradients (None: a parameter has no gradient).

    The parameters' `grad` has the gradients, too. If `before` is given (earlier gradients), the
    gradients are added to a copy of it. If `loss` yields several losses, the backward pass of a
    loss runs before the next loss is computed, and the losses are summed. Raises TypeError if
    `loss` neither returns nor yields tensors, and for a sparse gradient; ValueError if `loss`
    yields nothing.
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
