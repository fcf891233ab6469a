# SPDX-License-Identifier: Apache-2.0
"""Makes computations of torch give the same bits in compiled programs as in eager mode.

torch.compile generates its own code for torch's functions, with other orders of sums and other
approximations. `kept` hides a function from the compiler in one operator, which runs torch's own
kernels. The backward pass computes the function again, to get its gradients. In eager mode and
under torch.func's transforms, the function itself is called.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from cpd._torch.derivatives import library
from cpd._torch.library import ops
from cpd._torch.private import above_autograd, transforms_active
from cpd._torch.table import operator

Function = Callable[..., Sequence[Tensor]]

_FUNCTIONS: dict[str, Function] = {}


def kept(function: Function) -> Function:
    """Returns a function that gives the bits of eager mode in compiled programs, too.

    The function's positional arguments are tensors or None. Its keywords are `sizes`, a list of
    ints, and `numbers`, a list of floats. It must return a list of new tensors and change no
    argument. Exported programs find the function by its module and name.
    """
    name = f"{function.__module__}:{function.__qualname__}"
    _FUNCTIONS[name] = function

    @functools.wraps(function)
    def run(
        *operands: Tensor | None, sizes: Sequence[int] = (), numbers: Sequence[float] = ()
    ) -> Sequence[Tensor]:
        if not torch.compiler.is_compiling() or transforms_active():
            return function(*operands, sizes=sizes, numbers=numbers)
        places = "".join("0" if x is None else "1" for x in operands)
        present = [x for x in operands if x is not None]
        return ops.kept(name, places, present, list(sizes), list(numbers))

    return run


def _call(
    name: str,
    places: str,
    operands: Sequence[Tensor],
    sizes: Sequence[int],
    numbers: Sequence[float],
) -> list[Tensor]:
    remaining = iter(operands)
    in_place = [next(remaining) if place == "1" else None for place in places]
    if name not in _FUNCTIONS:
        importlib.import_module(name.partition(":")[0])
    return list(_FUNCTIONS[name](*in_place, sizes=sizes, numbers=numbers))


def _gradients(
    name: str,
    places: str,
    operands: Sequence[Tensor],
    sizes: Sequence[int],
    numbers: Sequence[float],
    grads: Sequence[Tensor],
    needs: Sequence[bool],
) -> list[Tensor]:
    """Returns the gradients of the operands for which `needs` is True."""
    with torch.enable_grad(), above_autograd():
        leaves = [x.detach().requires_grad_(n) for x, n in zip(operands, needs, strict=True)]
        results = _call(name, places, leaves, sizes, numbers)
        pairs = [(y, g) for y, g in zip(results, grads, strict=True) if y.requires_grad]
        outputs, gradients = zip(*pairs, strict=True)
        inputs = [x for x, n in zip(leaves, needs, strict=True) if n]
        return list(torch.autograd.grad(outputs, inputs, gradients))


_ARGUMENTS = "str function, str places, Tensor[] operands, SymInt[] sizes, float[] numbers"
operator(f"kept({_ARGUMENTS}) -> Tensor[]", _call, computes=_call)
operator(
    f"kept_gradients({_ARGUMENTS}, Tensor[] grads, bool[] needs) -> Tensor[]",
    lambda name, places, operands, *args: [
        torch.empty_like(x) for x, n in zip(operands, args[-1], strict=True) if n
    ],
    computes=_gradients,
)
library.impl("kept_gradients", torch.library.fallthrough_kernel, "Autograd")


def _setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.name, ctx.places, operands, ctx.sizes, ctx.numbers = inputs
    ctx.save_for_backward(*operands)
    ctx.like = [(y.shape, y.dtype, y.device) for y in output]


def _backward(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    operands = list(ctx.saved_tensors)
    needs = [bool(n) for n in ctx.needs_input_grad[2]]
    whole = [
        torch.zeros(shape, dtype=dtype, device=device) if g is None else g
        for g, (shape, dtype, device) in zip(grads, ctx.like, strict=True)
    ]
    arguments = ctx.name, ctx.places, operands, list(ctx.sizes), list(ctx.numbers)
    gradients = iter(ops.kept_gradients(*arguments, whole, needs))
    of_operands = [next(gradients) if n else None for n in needs]
    # For an argument that is an empty list, torch requires an empty list as the gradient, not None.
    return None, None, of_operands, None if ctx.sizes else [], None if ctx.numbers else []


torch.library.register_autograd("cpd::kept", _backward, setup_context=_setup)
