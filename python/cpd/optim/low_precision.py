# SPDX-License-Identifier: Apache-2.0
"""`LowPrecision`: an optimizer whose weights, state and gradients live in given formats."""

# torch does not export what keeps a function out of compiled programs.
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
"""The key of the number of steps made, in each parameter group."""
MAX_PARAMETERS = 1 << 16

_SHARED = tuple(
    f"_optimizer_{name}_hooks"
    for name in ("state_dict_pre", "state_dict_post", "load_state_dict_pre", "load_state_dict_post")
)
"""Hooks that the inner optimizer calls."""
_NARROW = (torch.float16, torch.bfloat16)


@functools.partial(checked, own=("optimizer",))
class LowPrecision(Optimizer):
    """An optimizer of torch whose weights, state and gradients are values of given formats.

    Args:
        optimizer: any `torch.optim.Optimizer` but `LBFGS`. From now on, call `step` of the new
            optimizer in its place. Both share parameter groups and state.
        weight: the format of the weights after each step: a format, a `Cast`, a scaled format
            (`Scaled`, `Cast`) or a text. None: not rounded.
        update: the rounding of weights: `nearest_even`, `stochastic` or `kahan`. With `kahan`, each
            weight's `state` stores what its last sum lost, in the weight's format. None: the
            rounding of `weight`.
        master: the format of a master copy of the weights, mostly `fp32`. The step is made on the
            master copy, which is rounded to its format; the weights are its values, rounded. None:
            the weights are the only copy.
        momentum: the format of the first moments (`momentum_buffer`, `exp_avg`, …), rounded after
            use. None: not rounded.
        second_moment: the format of the second moments (`exp_avg_sq`, `square_avg`, …), rounded
            after use. None: not rounded.
        gradient: the format of gradients, rounded before use. None: not rounded.
        gradient_scale: gradients are multiplied by it before they are rounded; default 1.
        unscale: whether gradients are divided by `gradient_scale` after they are rounded; default
            True.
        seed: the seed of all stochastic roundings; default 0. Seeds within the formats are ignored.

    Raises:
        ValueError: for an invalid argument, or arguments that do not fit together. The first step
            raises it for momenta that the inner optimizer does not have.
        TypeError: for an argument of another type.

    A step has five parts. Gradients are scaled, rounded and unscaled. Weights are read from the
    master copy, if there is one. The inner optimizer makes its step. Momenta are rounded. Weights
    are rounded. All parts are in binary32 whatever the parameters' type, which must hold the
    weight's format (float64 parameters: in binary64). With `kahan`, d = fl(new - old) is the change
    of the inner step; then c = round(c + d), weight = round(old + c), c = round(c + round(old -
    weight)), each sum rounded once. Only parameters with a gradient take part. Gradients remain
    unchanged.

    Step k, counted from 0, uses stream k << 36 | i << 20 | purpose for the random bits of parameter
    i, in the order of the groups. The counter of an element is its index in the whole parameter (of
    a DTensor too). The purpose is 0 for the weight, 1 for the gradient, 2 for the master copy, and
    from 3 on for the state, by name. Weights are first rounded after the first step;
    `round_weights` rounds them at once.

    The state_dict has all that a run needs to continue with the same bits. Its tensors keep their
    types when they are loaded. `foreach` and `fused` are turned off: they compute the same step by
    other operations, so bits would depend on the device and on the grouping of tensors. Parameters
    sharded by FSDP2 remain sharded: all operations are elementwise, except that blocks of scaled
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
    """True if formats for missing optimizer state are ignored, as for the formats of a recipe."""

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
        self.__setstate__({})  # makes what Optimizer.__init__ makes, except groups and state
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

        It may also be called on the inner optimizer.

        Args:
            param_group: the group.
        """
        check_keys("param_group", param_group, "params")
        self.inner.add_param_group(param_group)
        self._take([self.param_groups[-1]])

    def state_dict(self) -> dict[str, Any]:
        """Returns the inner optimizer's state, master copies, compensations, number of steps."""
        return self.inner.state_dict()

    @torch.no_grad()
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a result of `state_dict`, or an inner optimizer's state, which begins at step 0.

        Args:
            state_dict: the state.

        Raises:
            ValueError: for the state of another kind of optimizer.
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
        """Clears gradients, as torch's optimizers do.

        Args:
            set_to_none: whether gradients become None, not zeros; default True.
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
        """Makes a step.

        Args:
            closure: called once before the step; default None.

        Returns:
            The value of `closure`, or None.
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
        """Rounds all weights now, to nearest-even or as `weight` rounds without `stochastic`.

        The master copy preserves the unrounded weights.
        """
        for p in self._parameters():
            round_weight(p, self.formats, self.state[p])

    def _parameter_step(self, p: Tensor, stream: int) -> ParameterStep:
        state, draws = self.state.get(p, {}), (self.seed, stream)
        return ParameterStep(p, state, self.formats, draws, self.gradient_scale, self.unscale)

    def _parameters(self) -> Iterator[Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _take(self, groups: list[dict[str, Any]]) -> None:
        """Prepares groups of the inner optimizer, and the state that they already have."""
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
        """Raises if a parameter's type is not supported."""
        if not p.is_floating_point():
            raise TypeError(f"parameters must be of a floating-point type, got {p.dtype}")
        self.formats.check_storage(p.dtype)

    def _check_momenta(self, steps: list[ParameterStep]) -> None:
        """Raises ValueError, once, if a format is for state that the optimizer does not have.

        A recipe is for any optimizer: its format is left out with a warning.
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
