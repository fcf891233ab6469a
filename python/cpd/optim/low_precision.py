# SPDX-License-Identifier: Apache-2.0
"""`LowPrecision`: an optimizer that rounds weights, state and gradients to chosen formats."""

# `not_compiled` is a private function of torch (`_disable_dynamo`), which mypy cannot see.
# mypy: disable-error-code="attr-defined"

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.optim import LBFGS, Optimizer

from cpd._torch.private import not_compiled
from cpd.numeric.cast import CastLike
from cpd.numeric.checked import check_keys, checked
from cpd.numeric.numbers import check_number, integer
from cpd.numeric.shown import kind_of, shown
from cpd.numeric.warned import warn
from cpd.optim.formats import MOMENTA, SECOND_MOMENTS, Formats
from cpd.optim.parameter_step import ParameterStep, SwappedParameters, round_weight

STEPS = "low_precision_steps"
"""The key under which each parameter group stores the number of steps made."""
MAX_PARAMETERS = 1 << 16

_SHARED = tuple(
    f"_optimizer_{name}_hooks"
    for name in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
)
"""Attributes of torch with hooks of state_dict. Inner and outer optimizer share these hooks."""
_NARROW = (torch.float16, torch.bfloat16)


@functools.partial(checked, own=("optimizer",))
class LowPrecision(Optimizer):
    """Wraps a torch optimizer, and rounds its weights, state and gradients to chosen formats.

    Args:
        optimizer: any `torch.optim.Optimizer` except `LBFGS` and `LowPrecision`. From now on, call
            `step` of the new optimizer instead. Both optimizers share parameter groups and state.
        weight: the format of the weights after each step: a format, a `Cast`, a scaled format or
            the text of one of them. Default None: weights are not rounded.
        update: how weights are rounded: `nearest_even`, `stochastic` or `kahan`. With `kahan`, the
            weight's `state` stores each weight's rounding error, in the weights' format, and the
            next step adds the error. Default None: by the rounding of `weight`.
        master: the format of a master copy of the weights, mostly `fp32`. The inner optimizer
            updates the master copy, which is then rounded to this format. The weights are the
            master copy rounded to `weight`. Default None: there is no master copy.
        momentum: the format to which first moments (`momentum_buffer`, `exp_avg`, …) are rounded at
            the end of a step. Default None: they are not rounded.
        second_moment: the format to which second moments (`exp_avg_sq`, `square_avg`, …) are
            rounded at the end of a step. Default None: they are not rounded.
        gradient: the format to which gradients are rounded at the start of a step. Default None:
            they are not rounded.
        gradient_scale: the factor of the gradients before they are rounded; default 1.
        unscale: whether gradients are divided by `gradient_scale` after they are rounded; default
            True.
        seed: the seed of all stochastic roundings, an int in [0, 2^64); default 0.

    Raises:
        ValueError: for an invalid argument, or for arguments that exclude each other. The first
            step raises ValueError if `momentum` or `second_moment` is given for an optimizer
            without such state.
        TypeError: for an argument of another type.

    A step has five parts:

    1. Gradients are scaled, rounded and unscaled, in a copy; `p.grad` is not changed.
    2. Weights are read from the master copy, if there is one.
    3. The inner optimizer makes its step.
    4. Momenta are rounded.
    5. Weights are rounded.

    All parts are computed in binary32 (for float64 parameters: in binary64). The parameters' type
    must represent every value of `weight`. With `kahan`, d = fl(new - old) is the change of the
    inner step. Then c = round(c + d), weight = round(old + c) and c = round(c + round(old -
    weight)); each sum is rounded once. Parameters without a gradient are not changed.

    Random bits come from a stream for each step k (counted from 0), parameter i (in the order of
    the groups) and purpose: k << 36 | i << 20 | purpose. Within the stream, an element's counter is
    its index in the whole parameter, also in a DTensor. The purpose is 0 for the weight, 1 for the
    gradient and 2 for the master copy. State tensors have 3, 4, … in alphabetical order of their
    names.

    Weights are first rounded at the end of the first step; `round_weights` rounds them at once.

    The state_dict has all that a run needs to continue with the same bits. Its tensors keep their
    types when they are loaded. `foreach` and `fused` are turned off: they compute the step by other
    operations, so bits would depend on the device and on the grouping of tensors. Parameters
    sharded by FSDP2 remain sharded. All operations are elementwise, except that blocks of scaled
    formats end at a shard's end.

    >>> p = torch.nn.Parameter(torch.ones(2))
    >>> made = LowPrecision(torch.optim.SGD([p], lr=2**-9), weight="bf16", update="kahan")
    >>> for _ in range(2):
    ...     p.grad = torch.ones(2)
    ...     made.step()
    >>> p.tolist(), made.state[p]["compensation"].tolist()
    ([0.99609375, 0.99609375], [0.0, 0.0])
    """

    _leaves_out = False
    """The reaction to a format for state that the inner optimizer does not have. True: a warning
    (set by `from_recipe`). False: a ValueError."""

    def __init__(
        self,
        optimizer: Optimizer,
        weight: CastLike | None = None,
        update: str | None = None,
        master: CastLike | None = None,
        momentum: CastLike | None = None,
        second_moment: CastLike | None = None,
        gradient: CastLike | None = None,
        *,
        gradient_scale: float = 1.0,
        unscale: bool = True,
        seed: int = 0,
    ) -> None:
        if not isinstance(optimizer, Optimizer) or isinstance(optimizer, (LBFGS, LowPrecision)):
            raise TypeError(
                "optimizer must be a torch.optim.Optimizer other than LBFGS and LowPrecision, got "
                f"{kind_of(optimizer)}"
            )
        if not 0 < gradient_scale <= sys.float_info.max:
            raise ValueError(
                f"gradient_scale must be above 0 and finite, got {shown(gradient_scale)}"
            )
        check_number("seed", seed)
        formats = Formats.of(weight, update, master, momentum, second_moment, gradient)
        self.inner = optimizer
        self.formats = formats
        self.gradient_scale, self.unscale = float(gradient_scale), bool(unscale)
        self.seed = integer("seed", seed)
        self._checked = False
        self.__setstate__({})  # as Optimizer.__init__, but without groups and state
        self._take(self.inner.param_groups)

    # ---- torch's interface -----------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's parameter groups."""
        return self.inner.param_groups

    @property
    def state(self) -> dict[torch.Tensor, Any]:  # type: ignore[override]
        """The inner optimizer's state."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's defaults."""
        return self.inner.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a parameter group, as torch's optimizers do.

        A group may instead be added to the inner optimizer, by its own `add_param_group`.

        Args:
            param_group: a dict with the parameters (`params`) and the group's own options.
        """
        check_keys("param_group", param_group, "params")
        self.inner.add_param_group(param_group)
        self._take([self.param_groups[-1]])

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state_dict.

        It includes the master copies, the compensations of `kahan` and the number of steps.
        """
        return self.inner.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that `state_dict` returned, or the state_dict of a plain torch optimizer.

        After a plain optimizer's state, steps are counted from 0.

        Args:
            state_dict: the state; its tensors are copied.

        Raises:
            ValueError: if the state belongs to another kind of optimizer.
        """
        check_keys("state_dict", state_dict, "param_groups", "state")
        if any("format" in group for group in state_dict["param_groups"]):
            raise ValueError(
                "the state is of KahanSGD or KahanAdamW of version 0.7, whose steps none makes "
                "now: begin with the parameters, without the state"
            )
        self.inner.load_state_dict(state_dict)
        numbers = chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        for number, p in zip(numbers, self._parameters(), strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, Tensor):  # torch casts it to the parameter's type
                    self.state[p][name] = value.to(self.state[p][name].device, copy=True)
        self._take(self.param_groups)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clears the gradients of all parameters, as torch's optimizers do.

        Args:
            set_to_none: whether gradients are set to None (True, the default) or to zeros (False).
        """
        self.inner.zero_grad(set_to_none)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for name in _SHARED:
            setattr(self, name, getattr(self.inner, name))

    def __getstate__(self) -> dict[str, Any]:
        names = ("inner", "formats", "gradient_scale", "unscale", "seed", "_checked", "_leaves_out")
        return {name: getattr(self, name) for name in names}

    def __repr__(self) -> str:
        return f"LowPrecision({self.formats}, {self.inner})"

    # ---- a step ----------------------------------------------------------------------------------

    @not_compiled
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes a step of the inner optimizer, with rounding as the class describes.

        Args:
            closure: a function that computes the loss and its gradients; it is called once, before
                the step. Default None: the gradients are already computed.

        Returns:
            The value of `closure`, or None.

        Raises:
            ValueError: in the first step, if a momentum's format is for state that the optimizer
                does not have.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        number_of_step = self.param_groups[0][STEPS]
        steps = [
            self._parameter_step(p, number_of_step << 36 | number << 20)
            for number, p in enumerate(self._parameters())
            if p.grad is not None
        ]
        with SwappedParameters(self.inner, steps):
            self.inner.step()
        for parameter_step in steps:
            parameter_step.store(self.state[parameter_step.parameter])
        self._check_momenta(steps)
        for group in self.param_groups:
            group[STEPS] = number_of_step + 1
        return loss

    @torch.no_grad()
    def round_weights(self) -> None:
        """Rounds all weights now, as `weight` says, but to nearest-even instead of stochastically.

        A master copy, if there is one, preserves the unrounded weights. With `kahan`, the state
        stores the rounding errors.
        """
        for p in self._parameters():
            round_weight(p, self.formats, self.state[p])

    def _parameter_step(self, p: Tensor, stream: int) -> ParameterStep:
        state, draws = self.state.get(p, {}), (self.seed, stream)
        return ParameterStep(p, state, self.formats, draws, self.gradient_scale, self.unscale)

    def _parameters(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _take(self, groups: list[dict[str, Any]]) -> None:
        """Prepares parameter groups of the inner optimizer for rounding.

        Turns off `foreach` and `fused`, checks the parameters' types, and converts 16-bit state to
        float32.
        """
        for options in (*groups, self.defaults):
            if options.get("differentiable"):
                raise ValueError(
                    "differentiable=True is not supported: rounding is not differentiable"
                )
            for name in ("foreach", "fused"):
                if options.get(name):
                    warn(
                        f"{name}=True is turned off: its operations are others, so that bits would "
                        "depend on the device and on which tensors go together"
                    )
                if name in options:
                    options[name] = False
        for group in groups:
            group.setdefault(STEPS, self.param_groups[0].get(STEPS, 0))
            for p in group["params"]:
                self._check_parameter(p)
                for name, value in self.state.get(p, {}).items():
                    is_narrow = isinstance(value, Tensor) and value.dtype in _NARROW
                    if is_narrow and name not in self.formats.kept():
                        self.state[p][name] = value.float()
        count = sum(len(group["params"]) for group in self.param_groups)
        if count > MAX_PARAMETERS:
            raise ValueError(
                f"LowPrecision supports at most {MAX_PARAMETERS:,} parameters, got {count:,}"
            )

    def _check_parameter(self, p: Tensor) -> None:
        """Raises TypeError or ValueError if a parameter's type is not supported."""
        if not p.is_floating_point():
            raise TypeError(f"parameters must be of a floating-point type, got {p.dtype}")
        self.formats.check_storage(p.dtype)

    def _check_momenta(self, steps: list[ParameterStep]) -> None:
        """Raises ValueError for a momentum's format if the optimizer has no such momentum.

        The check is made once, after the first step. A format from a recipe is dropped with a
        warning instead, because a recipe applies to any optimizer.
        """
        if self._checked or not steps:
            return
        state_names = {
            name
            for step in steps
            for name, value in self.state[step.parameter].items()
            if isinstance(value, Tensor) and name not in self.formats.kept()
        }
        momenta = (
            ("momentum", self.formats.momentum, MOMENTA),
            ("second_moment", self.formats.second_moment, SECOND_MOMENTS),
        )
        for kind, spec, names in momenta:
            if spec is None or state_names & names:
                continue
            useless = (
                f"{kind}={str(spec)!r} has no effect: {type(self.inner).__name__} stores "
                f"{', '.join(sorted(state_names)) or 'no state'} of a parameter"
            )
            if not self._leaves_out:
                raise ValueError(useless)
            warn(f"the recipe's {useless}; it is left out")
            self.formats = Formats(**{**self.formats._asdict(), kind: None})
        self._checked = True
