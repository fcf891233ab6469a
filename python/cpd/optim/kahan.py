# SPDX-License-Identifier: Apache-2.0
"""`KahanSGD` and `KahanAdamW`: optimizers all of whose numbers are values of one narrow format."""

# torch does not export what keeps a function out of compiled programs.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cpd._torch.arguments import name_of
from cpd.numeric.cast import as_cast
from cpd.numeric.checked import check_keys, checked
from cpd.numeric.formats import FormatLike, as_format
from cpd.ops.arguments import check_storage
from cpd.optim.rounding import round_

Parameters = Iterable[Any]
"""Tensors, or torch's groups of them."""


class _Kahan(Optimizer, ABC):
    """Steps whose update u, which a subclass forms, is added by Kahan's sum.

    With rn the rounding to the format: c = rn(c - u), new = rn(p + c), c = rn(c + rn(p - new)).
    """

    def __init__(self, params: Parameters, f: FormatLike, **defaults: Any) -> None:
        for name, least in (("lr", 0.0), ("weight_decay", 0.0)):
            if not defaults[name] >= least:
                raise ValueError(f"{name} must be at least {least:g}, got {defaults[name]}")
        super().__init__(params, {**defaults, "format": as_format(f).name})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As torch's; a group may have a `format` of its own."""
        check_keys("param_group", param_group, "params")
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            check_storage(name_of(p.dtype), self.param_groups[-1]["format"])

    @torch._disable_dynamo
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step; gives what `closure` gave."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            rn = _Rounding(group["format"])
            for p in group["params"]:
                if p.grad is not None:
                    self._step(p, group, rn)
        return loss

    def _step(self, p: Tensor, group: dict[str, Any], rn: _Rounding) -> None:
        if p.grad is None or p.grad.is_sparse:
            raise ValueError(f"{type(self).__name__} takes dense gradients")
        kept = self.state[p]
        if not kept:
            kept["steps"] = 0
            for name in self._names(group):
                kept[name] = torch.zeros_like(p)
        kept["steps"] += 1
        values = {name: kept[name].float() for name in self._names(group)}
        old, c = self._changed(rn(p.float()), rn(p.grad.float()), group, values, kept["steps"], rn)
        new = rn(old + c)
        values["compensation"] = rn(c + rn(old - new))
        p.copy_(new)
        for name, value in values.items():
            kept[name].copy_(value)

    @abstractmethod
    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """Names of the per-parameter state tensors."""

    @abstractmethod
    def _changed(
        self,
        p: Tensor,
        g: Tensor,
        group: dict[str, Any],
        values: dict[str, Tensor],
        steps: int,
        rn: _Rounding,
    ) -> tuple[Tensor, Tensor]:
        """The parameter, decayed, and the compensation less the update; changes `values`."""


class _Rounding:
    """To the nearest value of a format, ties to even, of tensors made here."""

    def __init__(self, f: str) -> None:
        self._spec = as_cast(f)

    def __call__(self, x: Tensor) -> Tensor:
        return round_(x, self._spec)

    def number(self, x: float) -> float:
        return float(self(torch.tensor(x)))


@checked
class KahanSGD(_Kahan):
    """Stochastic gradient descent in one narrow format, with Kahan's compensation.

    Args:
        params: as torch's optimizers take them.
        lr: rounded to the format (0.001 is 0.00099945 in bf16), as torch's sum of bf16 tensors
            rounds it.
        momentum: in binary32. The buffer is m = rn(rn(m * momentum) + g).
        weight_decay: rounded to the format; g = rn(g + weight_decay * p) first.
        format: that of parameters, momenta, compensation and of each result, by its name or as a
            `cpd.Format`; the parameters' type must hold it.

    Operations are those of optimi's SGD on bf16 parameters: each in binary32, then rounded to the
    format, rn: u = lr * m; c = rn(c - u); new = rn(p + c); c = rn(c + rn(p - new)). Gradients are
    rounded first. `state[p]` has `momentum_buffer` and `compensation`, in the parameter's type.

    >>> p = torch.nn.Parameter(torch.ones(1))
    >>> made = KahanSGD([p], lr=2**-9)
    >>> for _ in range(2):
    ...     p.grad = torch.ones(1)
    ...     made.step()
    >>> p.item()
    0.99609375
    """

    def __init__(
        self,
        params: Parameters,
        lr: float,
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        format: FormatLike = "bf16",
    ) -> None:
        super().__init__(params, format, lr=lr, momentum=momentum, weight_decay=weight_decay)

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("compensation", "momentum_buffer") if group["momentum"] else ("compensation",)

    def _changed(
        self,
        p: Tensor,
        g: Tensor,
        group: dict[str, Any],
        values: dict[str, Tensor],
        steps: int,
        rn: _Rounding,
    ) -> tuple[Tensor, Tensor]:
        if group["weight_decay"]:
            g = rn(g + rn.number(group["weight_decay"]) * p)
        if group["momentum"]:
            g = rn(rn(values["momentum_buffer"] * group["momentum"]) + g)
            values["momentum_buffer"] = g
        return p, rn(values["compensation"] - rn.number(group["lr"]) * g)


@checked
class KahanAdamW(_Kahan):
    """AdamW in one narrow format, with Kahan's compensation.

    Args:
        params: as for `KahanSGD`.
        lr: the learning rate, binary32.
        betas: the decay rates of the moments, binary32; default (0.9, 0.99).
        eps: added to the square root of the second moment, binary32; default 1e-6.
        weight_decay: the decoupled weight decay, binary32; default 0.
        format: as for `KahanSGD`; default "bf16".

    Operations are those of optimi's AdamW on bf16 parameters, each in binary32, then rounded to the
    format, rn. In step t, with B = (beta^t - beta) / (beta^t - 1): p = rn(p * (1 - lr *
    weight_decay)); m = rn(m + (1 - B1) * (g - m)); v = rn(rn(v * B2) + (1 - B2) * g * g); c = rn(c
    - lr * m / rn(rn(sqrt(v)) + eps)); then as `KahanSGD`. `state[p]` has `exp_avg`, `exp_avg_sq`
    and `compensation`, in the parameter's type.

    >>> p = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    >>> made = KahanAdamW([p], lr=2**-9)
    >>> p.grad = torch.ones_like(p)
    >>> made.step()
    >>> p.item(), made.state[p]["compensation"].item()      # half a step below 1
    (1.0, -0.001953125)
    """

    def __init__(
        self,
        params: Parameters,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        format: FormatLike = "bf16",
    ) -> None:
        if not all(isinstance(beta, (int, float)) and 0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be at least 0 and below 1, got {betas}")
        super().__init__(params, format, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return "compensation", "exp_avg", "exp_avg_sq"

    def _changed(
        self,
        p: Tensor,
        g: Tensor,
        group: dict[str, Any],
        values: dict[str, Tensor],
        steps: int,
        rn: _Rounding,
    ) -> tuple[Tensor, Tensor]:
        first, second = ((beta**steps - beta) / (beta**steps - 1) for beta in group["betas"])
        if group["weight_decay"]:
            p = rn(p * (1 - group["lr"] * group["weight_decay"]))
        m = rn(torch.lerp(values["exp_avg"], g, 1 - first))
        v = rn(rn(values["exp_avg_sq"] * second) + (1 - second) * g * g)
        values["exp_avg"], values["exp_avg_sq"] = m, v
        bottom = rn(rn(v.sqrt()) + group["eps"])
        return p, rn(values["compensation"] - group["lr"] * m / bottom)
