# SPDX-License-Identifier: Apache-2.0
"""The interface of CPD 2020, the library that was published with the APS paper in 2020.

The functions are `float_quantize`, `quantizer`, `Quantizer`, `quant_gemm` and `sum_gradients`.

Argument names, order and defaults are the same as in CPD 2020. The order of `exp` and `man` differs
between functions: `float_quantize(x, exp, man)`, `quantizer(forward_exp, forward_man, backward_exp,
backward_man)` and `sum_gradients(…, grad_exp, grad_man, …)`, but `quant_gemm(a, b, man, exp)`.

This module also runs on the CPU and takes float32, bfloat16 and float16. It does not change its
inputs (CPD 2020's `float_quantize` overwrote them). Gradients pass through a rounding unchanged
(straight through). Values differ where CPD 2020 was wrong:

- Overflow is tested after rounding: in (4,3), 248 becomes Inf (in CPD 2020: 256).
- Below the least normal number, values are rounded once, from all their bits: in (4,3), 0x3A800001
  becomes 2^-9 (in CPD 2020: 0). Subnormal numbers of binary32 are rounded like all others.
- The Kahan sums of a product's last rows and columns start with a compensation of 0.
- A Kahan sum that has overflowed stays infinite instead of becoming NaN.
- `sum_gradients` skips parameters without a gradient.
- With APS, a layer whose gradients are all 0 stays 0 (in CPD 2020: NaN).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn

from cpd import comm as _comm
from cpd import ops
from cpd.comm.communicator import Communicator
from cpd.comm.spec import Reduce
from cpd.comm.virtual import simulate_all_reduce
from cpd.nn import quantizers
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, flag

__all__ = ["Quantizer", "float_quantize", "quant_gemm", "quantizer", "sum_gradients"]

FP32 = (8, 23)


@checked
def float_quantize(x: Tensor, exp: int, man: int) -> Tensor:
    """Rounds `x` to the format (exp, man), to nearest, ties to even.

    Args:
        x: a tensor of float32, bfloat16 or float16, on any device; it is not changed.
        exp: the number of exponent bits, 1…8.
        man: the number of mantissa bits, 0…23.

    Returns:
        A tensor of x's shape and type. The gradient passes through unchanged.

    Raises:
        ValueError: for an invalid format, or if x's type cannot represent all values of the format.
        TypeError: for an argument of another type.

    >>> import torch
    >>> float_quantize(torch.tensor([0.3, 248.0]), 4, 3).tolist()
    [0.3125, inf]
    """
    y: Tensor = quantizers.quantizer(Format(exp=exp, man=man))(x)
    return y


@checked
def quantizer(
    forward_exp: int = 8, forward_man: int = 23, backward_exp: int = 8, backward_man: int = 23
) -> Callable[..., Tensor]:
    """Makes a function that rounds a tensor in the forward pass and its gradient in the backward.

    The default format, (exp, man) = (8, 23), leaves values unchanged.

    Args:
        forward_exp: exponent bits of the tensor; default 8.
        forward_man: mantissa bits of the tensor; default 23.
        backward_exp: exponent bits of the gradient; default 8.
        backward_man: mantissa bits of the gradient; default 23.

    Returns:
        A function that takes a tensor and returns a rounded tensor of the same shape and type.

    Raises:
        ValueError: for an invalid format.
        TypeError: for an argument of another type.

    >>> quantizer(4, 3, 5, 2)
    Quantizer(forward='e4m3', backward='e5m2')
    """
    return quantizers.quantizer(
        _format(forward_exp, forward_man), _format(backward_exp, backward_man)
    )


@checked
class Quantizer(nn.Module):
    """A torch.nn.Module that rounds a tensor and its gradient: `quantizer` as a module.

    Args:
        forward_exp: exponent bits of the tensor; default 8.
        forward_man: mantissa bits of the tensor; default 23.
        backward_exp: exponent bits of the gradient; default 8.
        backward_man: mantissa bits of the gradient; default 23.

    Raises:
        ValueError: for an invalid format.
        TypeError: for an argument of another type.

    >>> import torch
    >>> Quantizer(forward_exp=4, forward_man=3)(torch.tensor([0.3]))
    tensor([0.3125])
    """

    def __init__(
        self,
        forward_exp: int = 8,
        forward_man: int = 23,
        backward_exp: int = 8,
        backward_man: int = 23,
    ) -> None:
        super().__init__()
        self.quantize = quantizer(forward_exp, forward_man, backward_exp, backward_man)

    def forward(self, x: Tensor) -> Tensor:
        """Rounds a tensor in the forward pass and its gradient in the backward.

        Args:
            x: a tensor of float32, bfloat16 or float16.

        Returns:
            The rounded tensor, of the shape and type of `x`.
        """
        return self.quantize(x)


@checked
def quant_gemm(a: Tensor, b: Tensor, man: int = 23, exp: int = 8) -> Tensor:
    """Multiplies two matrices; rounds each operation to the format (exp, man).

    Each product is rounded. The products are then added by Kahan's method in the order of k (the
    summed index); each of its operations is rounded. The argument `man` comes before `exp`.

    Args:
        a: a tensor of shape M × K.
        b: a tensor of shape K × N.
        man: the number of mantissa bits; default 23.
        exp: the number of exponent bits; default 8.

    Returns:
        The product a · b, of shape M × N and the operands' type.

    Raises:
        ValueError: if an operand is not a matrix, if the shapes do not match, or for an invalid
            format.
        TypeError: for an argument of another type.

    >>> import torch
    >>> ones = torch.full((1, 64), 0.5), torch.ones(64, 1)
    >>> quant_gemm(*ones, man=3, exp=4).item()
    32.0
    """
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError(f"a and b must be matrices, got {tuple(a.shape)}, {tuple(b.shape)}")
    product: Tensor = ops.gemm(a, b, Accumulator(Format(exp=exp, man=man), scheme="kahan"))
    return product


@checked
def sum_gradients(
    model: nn.Module,
    use_APS: bool = False,  # noqa: N803  # its name there
    grad_exp: int = 5,
    grad_man: int = 2,
    use_kahan: bool = False,
    *,
    group: dist.ProcessGroup | None = None,
) -> None:
    """Replaces each parameter's gradient by its sum over all ranks.

    Ranks' gradients are added in rank order; each addition is rounded to (grad_exp, grad_man). All
    ranks must call this function. Without torch.distributed, or with one rank, the gradient itself
    is rounded.

    Args:
        model: the module whose parameters' gradients are summed, in place. Parameters without a
            gradient are skipped.
        use_APS: whether to use APS. With APS, each parameter's gradient is multiplied by a power of
            two (chosen as in the APS paper), rounded, sent, summed and divided by this power.
            Default False: gradients are sent in fp32, and only the sums are rounded.
        grad_exp: the number of exponent bits; default 5.
        grad_man: the number of mantissa bits; default 2.
        use_kahan: whether gradients are added by Kahan's method; default False.
        group: the torch.distributed group of the ranks. Default None: all ranks.

    Raises:
        ValueError: for an invalid format.
        TypeError: for an argument of another type.

    >>> import torch
    >>> layer = torch.nn.Linear(1, 1, bias=False)
    >>> layer.weight.grad = torch.tensor([[0.3]])
    >>> sum_gradients(layer)
    >>> layer.weight.grad
    tensor([[0.3125]])
    """
    spec = _reduction(flag("use_APS", use_APS), grad_exp, grad_man, flag("use_kahan", use_kahan))
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    if not gradients:
        return
    detached = [gradient.detach() for gradient in gradients]
    if dist.is_available() and dist.is_initialized():
        sums = _communicator(group).all_reduce(detached, spec, step=0)
    else:
        sums = simulate_all_reduce([detached], spec)
    for gradient, total in zip(detached, sums, strict=True):
        gradient.copy_(total)


def _reduction(aps: bool, exp: int, man: int, kahan: bool) -> Reduce:
    f = Format(exp=exp, man=man)
    sums = Accumulator(f, scheme="kahan" if kahan else "sequential")
    return (
        Reduce(f, accumulator=sums, aps="paper")
        if aps
        else Reduce("fp32", accumulator=sums, result=f)
    )


def _format(exp: int, man: int) -> Format | None:
    """Returns the format (exp, man); None for binary32, which does not change a value."""
    return None if (exp, man) == FP32 else Format(exp=exp, man=man)


_communicators: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator]
_communicators = weakref.WeakKeyDictionary()


def _communicator(group: dist.ProcessGroup | None) -> Communicator:
    """Returns the communicator of a group. Opens it at the first call, or again if it is broken."""
    ranks = dist.group.WORLD if group is None else group
    assert ranks is not None
    known = _communicators.get(ranks)
    if known is None or known.broken:
        known = _communicators[ranks] = _comm.distributed(group)
    return known
