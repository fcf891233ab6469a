# SPDX-License-Identifier: Apache-2.0
"""`LossScaler`: multiplies a loss by a factor, to keep gradients from underflow."""

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
    """Scales losses, and skips a step if a gradient is not finite.

    The class is used like torch.amp.GradScaler. Gradients may be sparse, and of any floating-point
    type except float16. float16 gradients would lose small values when they are unscaled, so they
    raise TypeError. To train with fp16 gradients, use float32 parameters and `LowPrecision(…,
    gradient="fp16")`.

    Args:
        scale: the first scale; powers of two make scaling exact. Default 65536.
        dynamic: whether the scale changes; default True. False: gradients are not checked, and no
            step is skipped.
        growth: the factor, above 1, that multiplies the scale after `interval` steps in a row with
            finite gradients; default 2.
        backoff: the factor, between 0 and 1, that multiplies the scale after a skipped step;
            default 0.5.
        interval: the number of steps in a row with finite gradients after which the scale grows; at
            least 1; default 2000.
        least: the smallest scale; default 2^-24.
        most: the largest scale; default 2^24.
        group: a torch.distributed group. All its ranks skip a step if one of them has a gradient
            that is not finite. Default None: each rank decides alone, which suffices if all ranks
            have equal gradients, as under DDP. If FSDP2 shards the parameters, None stands for all
            ranks.

    Raises:
        ValueError: if `scale`, `least`, `most`, `growth`, `backoff` or `interval` is out of range.

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
        self._steps = 0  # the number of steps with finite gradients since the scale changed
        self._finite: dict[int, bool] = {}  # by id of each optimizer with unscaled gradients

    def get_scale(self) -> float:
        """Returns the current scale."""
        return float(self._scale)

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the scale.

        The scale is a tensor. So torch.compile treats it as an input, and does not recompile when
        the scale changes.

        Args:
            loss: a tensor of any shape.

        Returns:
            The product, of the loss's shape and type.
        """
        return loss * self._scale

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the gradients of an optimizer's parameters by the scale, in place.

        `step` does so itself. Call `unscale_` before `step` if the program needs unscaled gradients
        earlier, for instance to clip them.

        Args:
            optimizer: the optimizer.

        Raises:
            RuntimeError: if `unscale_` was called for this optimizer since the last `update`.
            TypeError: if a gradient is float16.
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
        """Calls the optimizer's `step` if all gradients are finite.

        Unscales the gradients first, unless `unscale_` did so already.

        Args:
            optimizer: the optimizer.
            closure: must be None: the gradients are computed before the call.

        Returns:
            The value that the optimizer's `step` returns; None if the step was skipped.

        Raises:
            ValueError: if `closure` is not None.
            TypeError: if a gradient is float16.
        """
        if closure is not None:
            raise ValueError("closure is not supported with loss scaling")
        if id(optimizer) not in self._finite:
            self.unscale_(optimizer)
        return optimizer.step() if self._finite[id(optimizer)] else None

    def update(self) -> float:
        """Multiplies the scale by `backoff` after a skipped step, or by `growth` after good steps.

        `growth` applies after `interval` steps in a row with finite gradients. A scale that is not
        dynamic does not change. Call `update` once after the `step` of all optimizers.

        Returns:
            The scale of the next step.

        Raises:
            RuntimeError: if neither `step` nor `unscale_` was called since the last `update`.
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
        """Returns the scale (`scale`) and the number of finite steps since it changed (`steps`)."""
        return {"scale": self.get_scale(), "steps": self._steps}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that `state_dict` returned.

        Args:
            state_dict: a dict with the keys `scale` and `steps`.
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
        """Returns True if all gradients are finite; copies one value from the device.

        If ranks decide together, an all-reduce of one integer combines their answers.
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
    """Yields the parameters' gradients. For a sparse gradient, yields its values, without a copy.

    Raises TypeError for a float16 gradient.
    """
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                if p.grad.dtype == torch.float16:
                    raise TypeError("gradients must not be float16: they vanish when unscaled")
                yield p.grad._values() if p.grad.is_sparse else p.grad
