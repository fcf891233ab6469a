# SPDX-License-Identifier: Apache-2.0
"""`LARS`: a learning rate for each layer, for large batches."""

# torch does not export what keeps a function out of compiled programs.
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
        params: as torch's optimizers take them. A group may have its own values of the following;
            `adaptive=False` is usual for biases and norms, mostly with `weight_decay=0`.
        lr: the global learning rate.
        momentum: as for SGD; default 0.9.
        weight_decay: as for SGD; default 0.
        trust: the trust coefficient, the share of a weight's norm that a step changes; default
            0.001.
        eps: added to the denominator of the rate; default 0.
        nesterov: as for SGD; default False.
        adaptive: whether the rate is scaled; default True. False: rate = lr, as SGD whose momentum
            includes the rate.

    A step of a parameter w with the gradient g, in the parameter's type:

    - rate = lr * trust * |w| / (|g| + weight_decay * |w| + eps). 2-norms are formed in binary64, of
      a DTensor over all its shards. If |w| or |g| is 0, rate = lr.
    - m = momentum * m + rate * (g + weight_decay * w).
    - w = w - m; with `nesterov` w = w - (momentum * m + rate * (g + weight_decay * w)).

    The momentum includes the rate, as in the paper. So a schedule of the rate changes later steps,
    not past ones.

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
        """Makes a step.

        Args:
            closure: computes the loss and its gradients before the step; default None: they are
                there already.

        Returns:
            The value of `closure`, or None.

        Raises:
            ValueError: for a sparse gradient.
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
