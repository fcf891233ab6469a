# SPDX-License-Identifier: Apache-2.0
"""Tells torch the derivatives and the batches of an operator.

torch.library.register_autograd knows reverse mode only: forward mode gets no tangents from it,
without a word, and torch.func refuses its Functions. `register` says both modes at the operator, so
that they are the same whoever calls it: autograd, torch.func, a compiled program.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function
from torch.autograd.forward_ad import _set_fwd_grad_enabled

from cpd.torch_library import ops

_library = torch.library.Library("cpd", "IMPL")

Dim: TypeAlias = int | None
"""Where an operand's samples lie; None: all samples share it."""
Tangent = Callable[..., Tensor]
Backward = Callable[[Any, Tensor], tuple[Any, ...]]


def register(
    name: str, setup: Callable[[Any, tuple[Any, ...], Tensor], None], backward: Backward, jvp: Any
) -> None:
    """The derivatives of the operator cpd::`name`, which has one result.

    `setup(ctx, inputs, output)`, `backward(ctx, gradient)` and `jvp(ctx, *tangents)` are those of
    a torch.autograd.Function: jvp has a tangent or None for each argument, and ctx.saved_tensors is
    there what `setup` gave to save_for_forward.
    """
    operator = getattr(ops, name).default
    below = torch._C._after_autograd_keyset

    def forward(*args: Any) -> Tensor:
        *given, keyset = args
        # A Function turns derivatives off; those of torch.func's outer transforms are yet to come.
        with (
            torch.enable_grad(),
            _set_fwd_grad_enabled(True),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            return operator.redispatch(keyset & below, *given)

    def set_up(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        setup(ctx, inputs[:-1], output)

    def run_backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        return *backward(ctx, gradient), None

    def run_jvp(ctx: Any, *tangents: Any) -> Tensor:
        return jvp(ctx, *tangents[:-1])

    function = type(
        f"cpd_{name}",
        (torch.autograd.Function,),
        {
            "forward": staticmethod(forward),
            "setup_context": staticmethod(set_up),
            "backward": staticmethod(run_backward),
            "jvp": staticmethod(run_jvp),
        },
    )
    # The dispatcher has already peeled off torch.func's other levels; Function's own apply, which
    # would start with them anew, is passed over.
    apply = super(torch.autograd.Function, function).apply  # type: ignore[misc]

    def run(keyset: Any, *args: Any) -> Tensor:
        with enable_single_level_autograd_function():
            return apply(*args, keyset)

    _library.impl(name, run, "Autograd", with_keyset=True)


def register_batches(
    name: str,
    rule: Callable[..., tuple[Tensor, int]],
    is_drawing: Callable[[tuple[Any, ...]], bool],
) -> None:
    """What the operator is under torch.vmap: `rule(samples, dims, *args)` gives the result and the
    dimension of its samples. Each sample has the bits that it would have alone; random bits hang on
    places in the result, so where `is_drawing(args)` the samples are computed one by one."""
    operator = getattr(ops, name).default

    def run(info: Any, dims: tuple[Dim, ...], *args: Any) -> tuple[Tensor, int]:
        if info.batch_size and is_drawing(args):
            return one_by_one(operator, info.batch_size, dims, args), 0
        return rule(info.batch_size, dims, *args)

    torch.library.register_vmap(f"cpd::{name}", run, lib=_library)


def one_by_one(
    operator: Callable[..., Tensor], samples: int, dims: Sequence[Dim], args: Sequence[Any]
) -> Tensor:
    """The samples' results, stacked."""

    def sample(i: int) -> list[Any]:
        return [
            x.select(dim, i) if isinstance(dim, int) else x
            for x, dim in zip(args, dims, strict=True)
        ]

    return torch.stack([operator(*sample(i)) for i in range(samples)])


def leading(x: Tensor, dim: Dim, rank: int) -> Tensor:
    """`x` with its samples in front and, behind them, `rank` dimensions, so that it broadcasts with
    other operands as each sample does. As it is where it has no samples."""
    if dim is None:
        return x
    x = x.movedim(dim, 0)
    return x.reshape(x.shape[0], *(1,) * (rank - (x.dim() - 1)), *x.shape[1:])


def spread(x: Tensor, dim: Dim, samples: int) -> Tensor:
    """`x` with its samples in front; with equal ones where it has none."""
    return x.expand(samples, *x.shape) if dim is None else x.movedim(dim, 0)
