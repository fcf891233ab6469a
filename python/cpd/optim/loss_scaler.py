# SPDX-License-Identifier: Apache-2.0
"""`LossScaler`: a loss is multiplied so that gradients do not vanish in a narrow format."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from cpd.numeric.checked import check_keys, checked
from cpd.numeric.numbers import at_least
from cpd.optim.rounding import local


@checked
class LossScaler:
    """Scales losses, and makes steps only if all gradients are finite.

    It is used like torch.amp.GradScaler. Gradients may be sparse, and of any type but float16.
    float16 gradients lose small values when they are unscaled, so they raise TypeError;
    `LowPrecision` rounds float32 gradients to fp16.

    Args:
        scale: the first scale; powers of two make scaling exact. Default 65536.
        dynamic: whether the scale changes; default True. False: gradients are not checked, and
            every step is made.
        growth: the factor of the scale after `interval` finite steps; above 1; default 2.
        backoff: the factor of the scale after a step with a gradient that is not finite; such a
            step is skipped. Between 0 and 1; default 0.5.
        interval: the number of finite steps; at least 1; default 2000.
        least: the least scale; default 2^-24.
        most: the largest scale; default 2^24.
        group: a torch.distributed group whose ranks decide together. Default None: each rank
            decides alone, which suffices for DDP's equal gradients; if FSDP2 shards parameters, all
            ranks decide together.

    >>> w = torch.nn.Parameter(torch.ones(1))
    >>> sgd, scaler = torch.optim.SGD([w], lr=0.5), LossScaler(2.0**10)
    >>> scaler.scale(w.square().sum()).backward()
    >>> w.grad.item()
    2048.0
    >>> scaler.step(sgd)
    >>> w.item()
    0.0
    >>> scaler.update()
    1024.0
    """

    def __init__(
        self,
        scale: float = 65536.0,
        *,
        dynamic: bool = True,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        least: float = 2.0**-24,
        most: float = 2.0**24,
        group: Any = None,
    ) -> None:
        if not 0 < least <= scale <= most < math.inf:
            raise ValueError(
                "scale must be finite, above 0, from least to most: "
                f"got {scale}, least={least}, most={most}"
            )
        if not (growth > 1 and 0 < backoff < 1):
            raise ValueError(f"growth must be above 1, backoff in (0, 1), got {growth}, {backoff}")
        at_least(1, "interval", interval)
        self.dynamic, self.growth, self.backoff = bool(dynamic), float(growth), float(backoff)
        self.interval, self.least, self.most = interval, float(least), float(most)
        self.group = group
        self._scale = torch.tensor(float(scale))
        self._steps = 0  # with finite gradients, since the scale changed
        self._finite: dict[int, bool] = {}  # of each optimizer whose gradients are unscaled

    def get_scale(self) -> float:
        """Returns the present scale."""
        return float(self._scale)

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the scale, which a compiled program takes as an input.

        Args:
            loss: a tensor.

        Returns:
            The product.
        """
        return loss * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Multiplies the gradients of an optimizer's parameters by 1/scale.

        Call it once before a step, for instance to clip gradients.

        Args:
            optimizer: the optimizer.
        """
        if id(optimizer) in self._finite:
            raise RuntimeError("unscale_ was called already: call it once before step and update")
        gradients = list(_gradients(optimizer))
        inverse = 1 / self.get_scale()
        if inverse != 1:
            for g in gradients:
                g.mul_(inverse)
        self._finite[id(optimizer)] = not self.dynamic or self._all_finite(gradients)

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step if all gradients are finite.

        It unscales gradients first, unless `unscale_` did.

        Args:
            optimizer: the optimizer.
            closure: not supported: gradients are there already.

        Returns:
            The value of the optimizer's step, or None.

        Raises:
            ValueError: for a closure.
        """
        if closure is not None:
            raise ValueError("closure is not supported with loss scaling")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        return optimizer.step() if self._finite[id(optimizer)] else None

    def update(self) -> float:
        """Ends a step of all optimizers.

        Returns:
            The scale of the next step.

        Raises:
            RuntimeError: before `step` or `unscale_`.
        """
        if not self._finite:
            raise RuntimeError("call step or unscale_ before update")
        finite = all(self._finite.values())
        self._finite.clear()
        if not self.dynamic:
            return self.get_scale()
        self._steps = self._steps + 1 if finite else 0
        if not finite:
            self._change(self.backoff)
        elif self._steps == self.interval:
            self._steps = 0
            self._change(self.growth)
        return self.get_scale()

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale and the number of steps since it changed."""
        return {"scale": self.get_scale(), "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that `state_dict` returned.

        Args:
            state_dict: the state.
        """
        check_keys("state_dict", state_dict, "scale", "steps")
        self._scale = torch.tensor(float(state_dict["scale"]))
        self._steps = int(state_dict["steps"])

    def __repr__(self) -> str:
        return f"LossScaler({self.get_scale()}, dynamic={self.dynamic})"

    def _change(self, factor: float) -> None:
        new = min(max(self.get_scale() * factor, self.least), self.most)
        self._scale = torch.tensor(new)

    def _all_finite(self, gradients: list[Tensor]) -> bool:
        """Returns whether all gradients are finite, with one transfer from the device.

        If ranks decide together, one exchange with the other ranks follows.
        """
        flags = [local(g).isfinite().all() for g in gradients if g.numel()]
        place = flags[0].device if flags else "cpu"
        finite = (
            torch.stack([flag.to(place) for flag in flags]).all() if flags else torch.tensor(True)
        )
        sharded = any(local(g) is not g for g in gradients)
        if self.group is not None or sharded:
            agreed = finite.to(torch.int32)
            dist.all_reduce(agreed, dist.ReduceOp.MIN, group=self.group)
            finite = agreed
        return bool(finite)


def _gradients(optimizer: Optimizer) -> Iterator[Tensor]:
    """Yields the parameters' gradients; of sparse ones the values, which are changed in place."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                if p.grad.dtype == torch.float16:
                    raise TypeError("gradients must not be float16: they vanish when unscaled")
                yield p.grad._values() if p.grad.is_sparse else p.grad
