# SPDX-License-Identifier: Apache-2.0
"""QPyTorch's interface, computed by CPD.

The module replaces qtorch, qtorch.quant and qtorch.optim. Arguments and defaults are QPyTorch's.

`rounding` is `nearest` or `stochastic` (the default). Each stochastic call takes the number of its
random stream from torch's default generator. So `torch.manual_seed` repeats a run, and activation
checkpointing recomputes the same bits. Random bits are as in `cpd.cast`, the same on every device.

Values differ from QPyTorch 0.3 in these cases:

- `nearest` rounds the exact value once, ties to even. QPyTorch rounds ties away from zero (in
  blocks: upward), and rounds values below the least normal number twice.
- (exp, man) is an IEEE format: the top exponent encodes Inf and NaN. Finite values beyond the
  largest finite value saturate. QPyTorch saturates too, but its largest value is twice as large.
- Inf and NaN are preserved in floating point. QPyTorch turns them into finite numbers.
- A block's exponent is the exponent of its largest magnitude. QPyTorch with `dim` uses the block's
  largest signed value.
- A NaN or infinity makes its whole block NaN.
- 23 mantissa bits are supported, and a gradient passes through `float_quantize` unchanged.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, Optimizer

from cpd import ops
from cpd.numeric.cast import Cast
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, flag
from cpd.numeric.names import checked_name
from cpd.numeric.numbers import integer
from cpd.numeric.scaled import Scaled
from cpd.numeric.shown import shown
from cpd.ops.arguments import check_storage

__all__ = [
    "BlockFloatingPoint",
    "FixedPoint",
    "FloatingPoint",
    "Number",
    "OptimLP",
    "Quantizer",
    "block_quantize",
    "fixed_point_quantize",
    "float_quantize",
    "quantizer",
]

Function: TypeAlias = Callable[[Tensor], Tensor]

ROUNDINGS = {"nearest": "nearest_even", "stochastic": "stochastic"}
_MOST_FIXED_BITS = 24
"""The largest word length (`wl`) of fixed point: binary32 represents all integers of 24 bits."""
_MOST_BLOCK_BITS = 25
"""The largest word length (`wl`) of block floating point: a sign and 24 bits of magnitude."""
_MOMENTA = {SGD: ("momentum_buffer",), Adam: ("exp_avg", "exp_avg_sq")}
_CANNOT_CLAMP = (
    "clamping_grad_zero needs a FixedPoint number that clamps as forward_number, or none: got "
)


class Number(ABC):
    """The base class of number formats, which are arguments of `quantizer`."""

    @abstractmethod
    def round(self, x: Tensor, rounding: str) -> Tensor:
        """Rounds `x` to this format. For a gradient, use `quantizer`.

        Args:
            x: a tensor of a floating-point type.
            rounding: `nearest` or `stochastic`.

        Returns:
            A tensor of x's shape and type.
        """


@checked
@dataclass(frozen=True)
class FloatingPoint(Number):
    """A floating-point format with subnormal numbers. It saturates; Inf and NaN are preserved.

    Finite values beyond the largest finite value become that value, with their sign.

    Attributes:
        exp: the number of exponent bits, 1…8.
        man: the number of mantissa bits, 0…23.

    >>> quantizer(FloatingPoint(exp=5, man=2), forward_rounding="nearest")(torch.tensor([0.3, 1e9]))
    tensor([3.1250e-01, 5.7344e+04])
    """

    exp: int
    man: int
    _format: Format = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        number_format = Format(exp=self.exp, man=self.man)
        check_storage("float32", number_format.name)
        object.__setattr__(self, "_format", number_format)

    def round(self, x: Tensor, rounding: str) -> Tensor:
        """Rounds `x` to this format. For a gradient, use `quantizer`.

        Args:
            x: a tensor of a floating-point type.
            rounding: `nearest` or `stochastic`.

        Returns:
            A tensor of x's shape and type.
        """
        y = _rounded(x, self._format, rounding)
        return torch.where(x.isinf(), x, y)


@checked
@dataclass(frozen=True)
class FixedPoint(Number):
    """A fixed-point format: multiples of 2^-fl from -2^(wl - fl - 1) to 2^(wl - fl - 1) - 2^-fl.

    Attributes:
        wl: the number of bits, sign included, 1…24.
        fl: the number of fraction bits, an integer.
        clamp: True (default): values beyond the range become its nearest end. False: no limit.
        symmetric: whether the range excludes its lowest value; default False.

    >>> fixed_point_quantize(torch.tensor([0.3, 0.375, -9.0]), wl=4, fl=2, rounding="nearest")
    tensor([ 0.2500,  0.5000, -2.0000])
    """

    wl: int
    fl: int
    clamp: bool = True
    symmetric: bool = False
    _grid: Format = field(init=False, repr=False, compare=False)
    """The format of the rounding before clamping: multiples of 2^-fl, also beyond this range."""

    def __post_init__(self) -> None:
        if not 1 <= integer("wl", self.wl) <= _MOST_FIXED_BITS:
            raise ValueError(f"wl must be 1…{_MOST_FIXED_BITS}, got {self.wl}")
        integer("fl", self.fl)
        flag("clamp", self.clamp)
        flag("symmetric", self.symmetric)
        man = self.wl - 1 if self.clamp else _MOST_FIXED_BITS - 1
        grid = Format((1, man), bias=1 - man + self.fl, encoding="finite")
        object.__setattr__(self, "_grid", grid)

    def _range(self) -> tuple[float, float]:
        step, half = 2.0**-self.fl, 2.0 ** (self.wl - self.fl - 1)
        return (step - half if self.symmetric else -half), half - step

    def round(self, x: Tensor, rounding: str) -> Tensor:
        """Rounds `x` to this format. For a gradient, use `quantizer`.

        Args:
            x: a tensor of a floating-point type.
            rounding: `nearest` or `stochastic`.

        Returns:
            A tensor of x's shape and type.
        """
        if self.clamp:
            return self.clamped(x, rounding)[0]
        y = _rounded(x, self._grid, rounding)
        whole = x.abs() >= 2.0 ** (_MOST_FIXED_BITS - 1 - self.fl)  # already a multiple of 2^-fl
        return torch.where(whole, x, y)

    def clamped(self, x: Tensor, rounding: str) -> tuple[Tensor, Tensor]:
        """Rounds and clamps `x`, and marks the values that were clamped.

        Args:
            x: a tensor of a floating-point type.
            rounding: `nearest` or `stochastic`.

        Returns:
            The rounded tensor, and a bool tensor of the same shape: True where a value was clamped.
        """
        low, high = self._range()
        y = _rounded(x, self._grid, rounding)
        return y.clamp(low, high), (y < low) | (y > high)


@checked
@dataclass(frozen=True)
class BlockFloatingPoint(Number):
    """A block floating-point format: integers that share an exponent.

    The exponent is the exponent of the largest magnitude among the values that share it.

    Attributes:
        wl: the number of bits of an integer, 2…25, sign included.
        dim: the values with the same index in this dimension share an exponent; default -1: all.

    >>> block_quantize(torch.tensor([[1.0, 0.3], [8.0, 0.3]]), wl=4, dim=0, rounding="nearest")
    tensor([[1.0000, 0.2500],
            [8.0000, 0.0000]])
    """

    wl: int
    dim: int = -1
    _scaled: Scaled = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not 2 <= integer("wl", self.wl) <= _MOST_BLOCK_BITS:
            raise ValueError(f"wl must be 2…{_MOST_BLOCK_BITS}, got {self.wl}")
        if integer("dim", self.dim) < -1:
            raise ValueError(f"dim must be -1 or more, got {self.dim}")
        block = "tensor" if self.dim == -1 else "row"
        object.__setattr__(self, "_scaled", Scaled(f"int{self.wl} {block} scale=e8m0 rule=floor"))

    def round(self, x: Tensor, rounding: str) -> Tensor:
        """Rounds `x` to this format. For a gradient, use `quantizer`.

        Args:
            x: a tensor of a floating-point type.
            rounding: `nearest` or `stochastic`.

        Returns:
            A tensor of x's shape and type.

        Raises:
            ValueError: if x has `dim` dimensions or fewer.
        """
        if self.dim == -1:
            return _rounded(x, self._scaled, rounding)
        if self.dim >= x.dim():
            raise ValueError(f"dim is {self.dim}, but x has {x.dim()} dimensions")
        first = x.movedim(self.dim, 0)
        y = _rounded(first.reshape(first.shape[0], -1), self._scaled, rounding)
        return y.reshape(first.shape).movedim(0, self.dim)


@checked
def quantizer(
    forward_number: Number | None = None,
    backward_number: Number | None = None,
    forward_rounding: str = "stochastic",
    backward_rounding: str = "stochastic",
    clamping_grad_zero: bool = False,
    backward_hooks: Iterable[Function] = (),
) -> Function:
    """Makes a function that rounds a tensor in the forward pass and its gradient in the backward.

    Args:
        forward_number: the number format of the tensor; default None: it is not rounded.
        backward_number: the number format of the gradient; default None: it is not rounded.
        forward_rounding: `nearest` or `stochastic` (default), of the tensor.
        backward_rounding: `nearest` or `stochastic` (default), of the gradient.
        clamping_grad_zero: whether the gradient of a clamped value is set to 0; default False. True
            requires that `forward_number` is None or a `FixedPoint` with `clamp`.
        backward_hooks: functions from a tensor to a tensor. They are applied, in this order, to the
            gradient before it is rounded. Default: an empty tuple.

    Returns:
        A function that takes a tensor and returns a rounded tensor of the same shape and type.

    Raises:
        TypeError: for a number format that is not a `Number`.
        ValueError: for an unknown rounding, or `clamping_grad_zero` with a number without clamp.

    >>> q = quantizer(FixedPoint(4, 2), None, "nearest", clamping_grad_zero=True)
    >>> x = torch.tensor([0.3, 9.0], requires_grad=True)
    >>> q(x).sum().backward()
    >>> x.grad
    tensor([1., 0.])
    """
    both = _Both(
        _number("forward_number", forward_number),
        _number("backward_number", backward_number),
        _rounding("forward_rounding", forward_rounding),
        _rounding("backward_rounding", backward_rounding),
        flag("clamping_grad_zero", clamping_grad_zero),
        tuple(backward_hooks),
    )
    number = both.forward
    if both.masks and number is not None and not (isinstance(number, FixedPoint) and number.clamp):
        raise ValueError(f"{_CANNOT_CLAMP}{number}")
    return both


@checked
class Quantizer(nn.Module):
    """A torch.nn.Module that rounds a tensor and its gradient: `quantizer` as a module.

    Args:
        forward_number: the number format of the tensor; default None: it is not rounded.
        backward_number: the number format of the gradient; default None: it is not rounded.
        forward_rounding: `nearest` or `stochastic` (default), of the tensor.
        backward_rounding: `nearest` or `stochastic` (default), of the gradient.

    Raises:
        TypeError: for a number format that is not a `Number`.
        ValueError: for an unknown rounding.

    >>> layer = Quantizer(FloatingPoint(4, 3), forward_rounding="nearest")
    >>> layer(torch.tensor([0.3]))
    tensor([0.3125])
    """

    def __init__(
        self,
        forward_number: Number | None = None,
        backward_number: Number | None = None,
        forward_rounding: str = "stochastic",
        backward_rounding: str = "stochastic",
    ) -> None:
        super().__init__()
        numbers = forward_number, backward_number
        self.quantize = quantizer(*numbers, forward_rounding, backward_rounding)

    def forward(self, x: Tensor) -> Tensor:
        """Rounds a tensor in the forward pass and its gradient in the backward.

        Args:
            x: a tensor.

        Returns:
            The rounded tensor, of the shape and type of `x`.
        """
        return self.quantize(x)


@checked
def float_quantize(x: Tensor, exp: int, man: int, rounding: str = "stochastic") -> Tensor:
    """Rounds `x` to floating point; see `FloatingPoint`. The gradient passes unchanged.

    Args:
        x: a tensor.
        exp: the number of exponent bits, 1…8.
        man: the number of mantissa bits, 0…23.
        rounding: `nearest` or `stochastic` (default).

    Returns:
        A tensor of x's shape and type.

    Raises:
        ValueError: for an invalid number of bits or rounding.
        TypeError: for an argument of another type.

    >>> float_quantize(torch.tensor([1.0625, 0.3]), exp=4, man=3, rounding="nearest").tolist()
    [1.0, 0.3125]
    """
    return quantizer(FloatingPoint(exp, man), None, _rounding("rounding", rounding))(x)


@checked
def fixed_point_quantize(
    x: Tensor,
    wl: int,
    fl: int,
    clamp: bool = True,
    symmetric: bool = False,
    rounding: str = "stochastic",
) -> Tensor:
    """Rounds `x` to fixed point; see `FixedPoint`. The gradient passes unchanged.

    Args:
        x: a tensor.
        wl: the number of bits, 1…24.
        fl: the number of fraction bits.
        clamp: whether values beyond the range become its nearest end; default True. False: values
            are rounded to a multiple of 2^-fl, of any magnitude.
        symmetric: whether the range excludes its lowest value; default False.
        rounding: `nearest` or `stochastic` (default).

    Returns:
        A tensor of x's shape and type.

    Raises:
        ValueError: for an invalid number of bits or rounding.
        TypeError: for an argument of another type.

    >>> fixed_point_quantize(torch.tensor([0.3, 9.0]), 4, 2, clamp=False, rounding="nearest")
    tensor([0.2500, 9.0000])
    """
    return quantizer(FixedPoint(wl, fl, clamp, symmetric), None, _rounding("rounding", rounding))(x)


@checked
def block_quantize(x: Tensor, wl: int, dim: int = -1, rounding: str = "stochastic") -> Tensor:
    """Rounds `x` to block floating point; see `BlockFloatingPoint`.

    The gradient passes unchanged.

    Args:
        x: a tensor.
        wl: the number of bits of an integer, 2…25, sign included.
        dim: the values with the same index in this dimension share an exponent; default -1: all
            values share one exponent.
        rounding: `nearest` or `stochastic` (default).

    Returns:
        A tensor of x's shape and type.

    Raises:
        ValueError: for an invalid number of bits, dimension or rounding.
        TypeError: for an argument of another type.

    >>> block_quantize(torch.tensor([1.0, 0.3]), wl=4, rounding="nearest").tolist()
    [1.0, 0.25]
    """
    return quantizer(BlockFloatingPoint(wl, dim), None, _rounding("rounding", rounding))(x)


@checked
class OptimLP(Optimizer):
    """Wraps torch's SGD or Adam; rounds gradients, weights, momenta and a copy of the weights.

    The arguments `…_quant` are functions from a tensor to the rounded tensor, such as a
    `quantizer`. A step has these parts, in this order:

    - The gradient is multiplied by `grad_scaling` and rounded by `grad_quant`, in place (and, as in
      QPyTorch, not divided by `grad_scaling` afterwards).
    - With `acc_quant`, weights are reset to the accumulator: their values before `weight_quant`.
    - `optim` updates the weights. `acc_quant` rounds the weights, and the accumulator stores them.
    - `weight_quant` rounds the weights.
    - `momentum_quant` rounds the momenta.

    Unlike in QPyTorch, parameters without a gradient are not changed, and the accumulator is part
    of the state_dict. `cpd.optim.LowPrecision` supports other optimizers.

    Args:
        optim: torch's SGD or Adam.
        weight_quant: the function that rounds the weights. Default None: they are not rounded.
        grad_scaling: the factor of the gradients for `grad_quant`, above 0, finite; default 1.
        grad_quant: the function that rounds the gradients. Default None: they are not rounded.
        momentum_quant: the function that rounds the momenta. Default None: they are not rounded.
        acc_quant: the function that rounds the accumulator. Default None: there is no accumulator.

    Raises:
        TypeError: if `optim` is not torch's SGD or Adam.
        ValueError: if `grad_scaling` is not finite or not above 0.

    >>> p = nn.Parameter(torch.tensor([1.0]))
    >>> nearest = quantizer(FloatingPoint(4, 3), None, "nearest")
    >>> made = OptimLP(torch.optim.SGD([p], lr=0.1), weight_quant=nearest, acc_quant=lambda x: x)
    >>> p.grad = torch.tensor([0.5])
    >>> made.step()
    >>> p.item(), round(made.weight_acc[p].item(), 4)
    (0.9375, 0.95)
    """

    def __init__(
        self,
        optim: Optimizer,
        weight_quant: Function | None = None,
        grad_scaling: float = 1.0,
        grad_quant: Function | None = None,
        momentum_quant: Function | None = None,
        acc_quant: Function | None = None,
    ) -> None:
        if not isinstance(optim, tuple(_MOMENTA)):
            raise TypeError(f"optim must be torch's SGD or Adam, got {type(optim).__name__}")
        if not 0 < grad_scaling <= sys.float_info.max:
            raise ValueError(f"grad_scaling must be above 0 and finite, got {shown(grad_scaling)}")
        super().__init__(optim.param_groups, optim.defaults)
        self.optim = optim
        self.param_groups, self.state = optim.param_groups, optim.state
        self.grad_scaling = grad_scaling
        self.weight_quant, self.grad_quant = weight_quant, grad_quant
        self.momentum_quant, self.acc_quant = momentum_quant, acc_quant
        keeps = self._parameters() if acc_quant is not None else []
        self.weight_acc = {p: p.detach().clone() for p in keeps}

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Makes a step of `optim`, with the roundings that the class describes.

        Args:
            closure: a function that computes the loss and its gradients, called before the step.
                Default None: the gradients are already computed.

        Returns:
            The value of `closure`, or None.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [p for p in self._parameters() if p.grad is not None]
        for p in moved:
            if self.grad_quant is not None and p.grad is not None:
                p.grad.copy_(self.grad_quant(p.grad * self.grad_scaling))
            if self.acc_quant is not None:
                p.copy_(self.weight_acc[p])
        self.optim.step()
        for p in moved:
            if self.acc_quant is not None:
                self.weight_acc[p].copy_(self.acc_quant(p))
                p.copy_(self.weight_acc[p])
            if self.weight_quant is not None:
                p.copy_(self.weight_quant(p))
            if self.momentum_quant is not None:
                self._round_momenta(self.optim.state[p], self.momentum_quant)
        return loss

    def _round_momenta(self, state: dict[str, Any], quantize: Function) -> None:
        names = next(names for kind, names in _MOMENTA.items() if isinstance(self.optim, kind))
        for name in names:
            if state.get(name) is not None:
                state[name].copy_(quantize(state[name]))

    def state_dict(self) -> dict[str, Any]:
        """Returns the state_dict of `optim`, and the accumulators under the key `weight_acc`."""
        return {**self.optim.state_dict(), "weight_acc": list(self.weight_acc.values())}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads a state that `state_dict` returned.

        Args:
            state_dict: the state; it is not changed.

        Raises:
            ValueError: if the state's number of accumulators differs from the optimizer's.
        """
        inner = dict(state_dict)
        copies = inner.pop("weight_acc", [])
        if len(copies) != len(self.weight_acc):
            raise ValueError(f"{len(self.weight_acc)} accumulators are needed, got {len(copies)}")
        self.optim.load_state_dict(inner)
        self.param_groups, self.state = self.optim.param_groups, self.optim.state
        for mine, its in zip(self.weight_acc.values(), copies, strict=True):
            mine.copy_(its)


# ---- implementation ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Both:
    """The function that `quantizer` returns: rounds a tensor, and its gradient."""

    forward: Number | None
    backward: Number | None
    forward_rounding: str
    backward_rounding: str
    masks: bool
    hooks: tuple[Function, ...]

    def __call__(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise TypeError(f"x must be a torch tensor, got {type(x).__name__}")
        y: Tensor = _Rounding.apply(x, self)  # type: ignore[no-untyped-call]
        return y


class _Rounding(torch.autograd.Function):
    """Rounds a tensor in the forward pass and its gradient in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, both: _Both) -> Tensor:
        ctx.how, mask = both, None
        if both.forward is None:
            y = x.clone()
        elif both.masks and isinstance(both.forward, FixedPoint):
            y, mask = both.forward.clamped(x, both.forward_rounding)
        else:
            y = both.forward.round(x, both.forward_rounding)
        ctx.save_for_backward(*(() if mask is None else (mask,)))
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (gradient,), both = grads, ctx.how
        for hook in both.hooks:
            gradient = hook(gradient)
        if both.backward is not None:
            gradient = both.backward.round(gradient, both.backward_rounding)
        for mask in ctx.saved_tensors:
            gradient = gradient.masked_fill(mask, 0)
        return gradient, None


def _rounded(x: Tensor, to: Format | Scaled, rounding: str) -> Tensor:
    """Returns `x` rounded, with saturation; torch's generator selects the stream of random bits."""
    stream = 0 if rounding == "nearest" else torch.randint(2**62, ())
    spec = Cast(to, rounding=ROUNDINGS[rounding], overflow="saturate")
    return ops.cast(x, spec, stream=stream)


def _rounding(name: str, rounding: Any) -> str:
    return checked_name(name, rounding, ROUNDINGS)


def _number(name: str, number: Any) -> Number | None:
    if number is not None and not isinstance(number, Number):
        raise TypeError(f"{name} must be a number such as FloatingPoint(5, 2), got {shown(number)}")
    return number
