# SPDX-License-Identifier: Apache-2.0
"""`ParameterStep`: rounds one parameter, its gradient and its state in a step of `LowPrecision`.

During the step, the inner optimizer updates a tensor that replaces the parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from cpd.numeric.cast import Cast
from cpd.ops.arithmetic import add
from cpd.optim.formats import COMPENSATION, MASTER, Formats
from cpd.optim.rounding import local, round_

_GRADIENT, _MASTER, _STATE = 1, 2, 3
"""Purposes of random bits; the low bits of a stream's number are the purpose. Rounding the weight
has the purpose 0, which has no name here."""


class ParameterStep:
    """A parameter, and the tensor and the gradient that the inner optimizer gets in its place.

    `value`, the tensor, is the master copy if there is one. Else it is a float32 copy of a 16-bit
    parameter, with Kahan's compensation a copy of any parameter, or else the parameter itself.
    `state` is the optimizer's state of the parameter. `draws` is the seed and the stream of random
    bits. The gradient is multiplied by `scale`, then rounded, and with `unscale` divided by
    `scale`.
    """

    def __init__(
        self,
        parameter: Tensor,
        state: dict[str, Any],
        formats: Formats,
        draws: tuple[int, int],
        scale: float,
        unscale: bool,
    ) -> None:
        assert parameter.grad is not None
        self.parameter, self.formats = parameter, formats
        self.seed, self.stream = draws
        self.own = {name: state[name] for name in formats.kept() if name in state}
        self.value = self._value()
        self.gradient = self._gradient(parameter.grad, scale, unscale)

    def _value(self) -> Tensor:
        p = self.parameter
        if self.formats.master is not None:
            if MASTER not in self.own:
                self.own[MASTER] = _copy(p)
            master: Tensor = self.own[MASTER]
            return master
        return _copy(p) if self.formats.kahan or p.dtype != _storage_dtype(p) else p

    def _gradient(self, gradient: Tensor, scale: float, unscale: bool) -> Tensor:
        spec, storage = self.formats.gradient, self.value.dtype
        if spec is None and scale == 1:
            return gradient.to(storage)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            values = self._scaled(gradient.values().to(storage, copy=True), scale, unscale)
            place = gradient.indices(), values, gradient.shape
            return torch.sparse_coo_tensor(*place, is_coalesced=True, check_invariants=False)
        return self._scaled(gradient.to(storage, copy=True), scale, unscale)

    def _scaled(self, g: Tensor, scale: float, unscale: bool) -> Tensor:
        if scale != 1:
            g.mul_(scale)
        self._round(g, self.formats.gradient, _GRADIENT)
        return g.div_(scale) if unscale and scale != 1 else g

    def store(self, state: dict[str, Any]) -> None:
        """Rounds the state and then the weights after the inner optimizer's step."""
        for number, name in enumerate(sorted(set(state) - set(self.own))):
            if isinstance(state[name], Tensor):
                self._round(state[name], self.formats.of_state(name), _STATE + number)
        if self.formats.kahan:
            state[COMPENSATION] = self._compensated(self.own.get(COMPENSATION))
            return
        value = self.value
        if self.formats.master is not None:
            self._round(value, self.formats.master, _MASTER)
            state[MASTER], value = value, value.clone()
        self._round(value.detach(), self.formats.weight, 0)
        if value is not self.parameter:
            self.parameter.copy_(value)

    def _compensated(self, previous: Tensor | None) -> Tensor:
        """Adds the change of the step to the weights by Kahan's rule.

        Stores the new weights in the parameter. Returns the compensation: the rounding errors of
        the sums.
        """
        spec = self.formats.weight
        assert spec is not None
        lost = torch.zeros_like(self.parameter) if previous is None else previous
        new, weight, small = local(self.value), local(self.parameter), local(lost)
        old = weight.to(new.dtype)
        carried = add(small.to(new.dtype), new - old, spec)
        stored = add(old, carried, spec)
        small.copy_(add(carried, add(old, -stored, spec), spec))
        weight.copy_(stored)
        return lost

    def _round(self, x: Tensor, spec: Cast | None, what: int) -> None:
        if spec is not None and spec.text != _CARRIERS.get(x.dtype):
            round_(x, spec, self.seed, self.stream | what)


class SwappedParameters:
    """A context in which an optimizer sees each `ParameterStep.value` instead of its parameter.

    Gradients and state are replaced too, and restored at the end.
    """

    def __init__(self, inner: Optimizer, steps: list[ParameterStep]) -> None:
        self._inner, self._steps = inner, steps

    def __enter__(self) -> None:
        instead = {step.parameter: step.value for step in self._steps}
        self._parameters = [group["params"] for group in self._inner.param_groups]
        self._gradients = [step.parameter.grad for step in self._steps]
        for group in self._inner.param_groups:
            group["params"] = [instead.get(p, p) for p in group["params"]]
        for step in self._steps:
            inner_state = self._inner.state.pop(step.parameter, {})
            if state := {name: x for name, x in inner_state.items() if name not in step.own}:
                self._inner.state[step.value] = state
            step.value.grad = step.gradient

    def __exit__(self, *error: object) -> None:
        for group, parameters in zip(self._inner.param_groups, self._parameters, strict=True):
            group["params"] = parameters
        for step, gradient in zip(self._steps, self._gradients, strict=True):
            state = self._inner.state.pop(step.value, {})
            self._inner.state[step.parameter] = state | step.own
            step.value.grad = None
            step.parameter.grad = gradient


def round_weight(p: Tensor, formats: Formats, state: dict[str, Any]) -> None:
    """Rounds a parameter in place, to nearest-even instead of stochastically.

    Adds the unrounded master copy or Kahan's compensation to `state`, if the formats need one.
    """
    spec = formats.to_nearest()
    if spec is None:
        return
    value = _copy(p)
    p.copy_(round_(_copy(p), spec))
    if formats.master is not None:
        state.setdefault(MASTER, value)
    elif formats.kahan:
        state[COMPENSATION] = round_(value - p, spec).to(p.dtype)


_CARRIERS = {torch.float32: "fp32", torch.float64: "fp64"}
"""Maps a tensor's type to the format with the same values. A cast to it changes no value."""


def _storage_dtype(p: Tensor) -> torch.dtype:
    """Returns the type in which a parameter's steps are computed: float64 or float32."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


def _copy(p: Tensor) -> Tensor:
    return p.detach().to(_storage_dtype(p), copy=True)
