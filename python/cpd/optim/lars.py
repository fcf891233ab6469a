# SPDX-License-Identifier: Apache-2.0
"""`LARS`: an optimizer that scales each layer's learning rate, for training with large batches."""

# `not_compiled` is a private function of torch (`_disable_dynamo`), which mypy cannot see.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cpd._torch.private import not_compiled
from cpd.numeric.checked import checked


@checked
class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (LARS).

    Source: You, Gitman, Ginsburg: *Large batch training of convolutional networks*, 2017, algorithm
    1. The APS paper trains ResNet-18 with it at batches of 8K (section 4.1, table 5).

    Args:
        params: the parameters or parameter groups, as for torch.optim.SGD. A group may have its own
            values of the arguments below. For biases and normalization layers, `adaptive=False` is
            usual, mostly together with `weight_decay=0`.
        lr: the global learning rate.
        momentum: as for SGD; default 0.9.
        weight_decay: as for SGD; default 0.
        trust: the trust coefficient: the norm of a step's change, as a fraction of the weight's
            norm; default 0.001.
        eps: a number that is added to the denominator of the rate; default 0.
        nesterov: as for SGD; default False.
        adaptive: whether the rate is scaled; default True. False: rate = lr. The optimizer is then
            SGD with a momentum that includes the rate.

    Raises:
        ValueError: if a number is negative or NaN.

    A step updates a parameter w with the gradient g. All operations are in the parameter's type:

    - rate = lr * trust * |w| / (|g| + weight_decay * |w| + eps). |x| is the 2-norm in binary64; the
      norm of a DTensor covers all its shards. If |w| or |g| is 0, rate = lr.
    - m = momentum * m + rate * (g + weight_decay * w).
    - w = w - m; with `nesterov` w = w - (momentum * m + rate * (g + weight_decay * w)).

    The momentum includes the rate, as in the paper. A change of lr therefore scales only the
    gradients of later steps, not the gradients that the momentum already contains.

    >>> p = torch.nn.Parameter(torch.tensor([3.0, 4.0]))
    >>> made = LARS([p], lr=1.0, trust=0.5)
    >>> p.grad = torch.tensor([0.0, 100.0])
    >>> made.step()
    >>> p.tolist()      # by half its norm
    [3.0, 1.5]
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        eps: float = 0.0,
        *,
        nesterov: bool = False,
        adaptive: bool = True,
    ) -> None:
        numbers = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust": trust,
            "eps": eps,
        }
        for name, value in numbers.items():
            if not value >= 0:
                raise ValueError(f"{name} must be at least 0, got {value}")
        super().__init__(params, {**numbers, "nesterov": nesterov, "adaptive": adaptive})

    @not_compiled
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates every parameter that has a gradient.

        Args:
            closure: a function that computes the loss and its gradients, called before the step.
                Default None: the gradients are already computed.

        Returns:
            The value of `closure`, or None.

        Raises:
            ValueError: if a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, group)
        return loss

    def _step(self, p: Tensor, group: dict[str, Any]) -> None:
        if p.grad is None or p.grad.is_sparse:
            raise ValueError("LARS takes dense gradients")
        rate = _rate(p, p.grad, group) if group["adaptive"] else group["lr"]
        change = p.grad.add(p, alpha=group["weight_decay"]).mul_(rate)
        momentum = group["momentum"]
        if momentum:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p)
            m = state["momentum_buffer"].mul_(momentum).add_(change)
            change = change.add_(m, alpha=momentum) if group["nesterov"] else m
        p.sub_(change)


def _rate(p: Tensor, g: Tensor, group: dict[str, Any]) -> float:
    weight, gradient = _norm(p), _norm(g)
    if weight == 0 or gradient == 0:
        return float(group["lr"])
    below = gradient + group["weight_decay"] * weight + group["eps"]
    return float(group["lr"] * group["trust"] * weight / below)


def _norm(x: Any) -> float:
    norm = torch.linalg.vector_norm(x, dtype=torch.float64)
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)
