# SPDX-License-Identifier: Apache-2.0
"""The names of CPD as it was published with the APS paper in 2020: `float_quantize`, `quantizer`,
`Quantizer`, `quant_gemm`, `sum_gradients`.

Argument names, order and defaults are those of that library, where the order of `exp` and `man` is
not the same everywhere: `float_quantize(x, exp, man)`, `quantizer(forward_exp, forward_man,
backward_exp, backward_man)` and `sum_gradients(…, grad_exp, grad_man, …)`, but `quant_gemm(a, b,
man, exp)`.

Here everything runs on the CPU too, takes float32, bfloat16 and float16, leaves its inputs alone
(there `float_quantize` overwrote them) and is straight through in autograd. Values differ where
those were wrong: overflow is tested after rounding ((4,3): 248 is Inf, not 256); below the least
normal number no bit is dropped before rounding ((4,3): 0x3A800001 is 2^-9, not 0), and binary32's
subnormal numbers count; a product's last rows and columns start from a compensation of 0; a Kahan
sum that has overflowed stays infinite instead of becoming NaN; parameters without a gradient are
left out; a layer whose gradients are all 0 stays 0 under APS (there NaN).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable

import torch.distributed as dist
from torch import Tensor, nn

from cpd import comm as _comm
from cpd import ops
from cpd.comm.communicator import Communicator
from cpd.comm.spec import ReduceSpec
from cpd.comm.virtual import simulate_all_reduce
from cpd.nn import quantizers
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.checked import checked
from cpd.numeric.formats import Format, flag

__all__ = ["Quantizer", "float_quantize", "quant_gemm", "quantizer", "sum_gradients"]

FP32 = (8, 23)


@checked
def float_quantize(x: Tensor, exp: int, man: int) -> Tensor:
    """`x` rounded to (exp, man), to nearest-even.

    >>> import torch
    >>> float_quantize(torch.tensor([0.3, 248.0]), 4, 3).tolist()
    [0.3125, inf]
    """
    return quantizers.quantizer(Format(exp, man))(x)


@checked
def quantizer(
    forward_exp: int = 8, forward_man: int = 23, backward_exp: int = 8, backward_man: int = 23
) -> Callable[..., Tensor]:
    """Returns a function that rounds a tensor, and its gradient in the backward pass. The format
    (8, 23) rounds nothing.

    >>> quantizer(4, 3, 5, 2)
    cpd.quantizer(forward='e4m3', backward='e5m2')
    """
    return quantizers.quantizer(
        _format(forward_exp, forward_man), _format(backward_exp, backward_man)
    )


@checked
class Quantizer(nn.Module):
    """`quantizer` as a module.

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
        return self.quantize(x)


@checked
def quant_gemm(a: Tensor, b: Tensor, man: int = 23, exp: int = 8) -> Tensor:
    """a · b, M × K by K × N: products rounded to (exp, man) and summed in it by Kahan's method,
    each operation rounded. `man` comes before `exp`.

    >>> import torch
    >>> ones = torch.full((1, 64), 0.5), torch.ones(64, 1)
    >>> quant_gemm(*ones, man=3, exp=4).item()
    32.0
    """
    if a.dim() != 2 or b.dim() != 2:
        raise ValueError(f"a and b must be matrices, got {tuple(a.shape)}, {tuple(b.shape)}")
    product: Tensor = ops.gemm(a, b, Accumulator(Format(exp, man), "kahan"))
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
    """Replaces each parameter's gradient by its sum over all ranks, in rank order, each addition
    rounded to (grad_exp, grad_man). All ranks call it.

    `use_APS`: each layer is scaled by a power of two of its own and rounded before it travels, and
    scaled back after the sum (the paper's exponent); without it gradients travel in fp32, and only
    the sums are rounded. `use_kahan`: by Kahan's method. `group`: the ranks; default: all.

    Without torch.distributed, or with one rank, the same holds for a sum of one term.

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
        sums = _communicator(group).all_reduce(detached, spec)
    else:
        sums = simulate_all_reduce([detached], spec)
    for gradient, total in zip(detached, sums, strict=True):
        gradient.copy_(total)


def _reduction(aps: bool, exp: int, man: int, kahan: bool) -> ReduceSpec:
    f = Format(exp, man)
    sums = Accumulator(f, "kahan" if kahan else "sequential")
    return ReduceSpec(f, sums, aps="paper") if aps else ReduceSpec("fp32", sums, result=f)


def _format(exp: int, man: int) -> Format | None:
    """None for binary32, which stays as it is."""
    return None if (exp, man) == FP32 else Format(exp, man)


_communicators: weakref.WeakKeyDictionary[dist.ProcessGroup, Communicator]
_communicators = weakref.WeakKeyDictionary()


def _communicator(group: dist.ProcessGroup | None) -> Communicator:
    """One for each group, whose connections are its own."""
    ranks = dist.group.WORLD if group is None else group
    assert ranks is not None
    known = _communicators.get(ranks)
    if known is None or known.broken:
        known = _communicators[ranks] = _comm.torch(group)
    return known
