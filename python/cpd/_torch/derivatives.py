# SPDX-License-Identifier: Apache-2.0
"""Derivatives of the operators torch.ops.cpd.*, in reverse and forward mode.

Autograd and torch.func's transforms use these derivatives. `differentiable` replaces
torch.library.register_autograd, which drops tangents silently and refuses torch.func's transforms.
This package calls operators by `run`, which bypasses torch's dispatcher if the dispatcher is not
needed. Each operator has a row in a table (`cpd._torch.table`), which contains its derivatives.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator,attr-defined"

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cpd._torch import private
from cpd._torch.library import ops
from cpd._torch.private import is_plain, may_differentiate

library = torch.library.Library("cpd", "IMPL")

Gradients: TypeAlias = tuple[Tensor | None, ...]
"""The gradients of an operator's operands (its first arguments), or None for a missing gradient."""
Tangents: TypeAlias = tuple[Any, ...]
"""The tangents of an operator's arguments: a tensor, or None for an argument without a tangent."""
Setup: TypeAlias = Callable[[Any, tuple[Any, ...], bool], None]
"""Saves the values that derivatives need. Its arguments are the context, the operator's arguments,
and whether tangents are needed.
"""


class Derivative(NamedTuple):
    """Functions that compute gradients and tangents of an operator that returns one tensor."""

    setup: Setup
    backward: Callable[[Any, Tensor], Gradients]
    """Computes the gradients of the operands from the context and the result's gradient."""
    tangent: Callable[[Any, Tangents], Tensor]
    """Computes the result's tangent from the context and the arguments' tangents. At least one
    tangent is not None."""


def differentiable(name: str, derivative: Derivative, plain: Any, computes: Any) -> None:
    """Registers the derivatives of torch.ops.cpd.<name>.

    `plain` is the operator <name>_plain, or None if there is no such operator. `computes` is the
    function that computes a Python operator, or None for an operator of C++.
    """
    operator = getattr(ops, name).default
    undifferentiated = None if plain is None else plain.default
    below = _below(operator, undifferentiated)
    computes = undifferentiated if computes is None else computes
    function = _function(name, below, computes, derivative)
    called = None if undifferentiated is None else private.direct(undifferentiated)
    _operators[name] = _Operator(operator, called, computes, function)

    def differentiate(keyset: Any, *args: Any) -> Tensor:
        wants_tangent = private.forward_mode() or (
            private.forward_enabled() and _have_tangent(args)
        )
        if wants_tangent or (torch.is_grad_enabled() and private.requires_grad(*args)):
            call = _CallModes(keyset, torch.is_grad_enabled(), wants_tangent)
            with private.single_level():
                return function.apply(*args, call)
        return below(keyset, *args)

    library.impl(name, differentiate, "Autograd", with_keyset=True)


class _Operator(NamedTuple):
    """An operator that has derivatives, and the functions by which `run` calls it."""

    dispatched: Any
    undifferentiated: Any
    """The operator <name>_plain, which has no derivatives, or None."""
    computes: Callable[..., Tensor]
    """Computes the operator's result for dense tensors, without derivatives."""
    function: Any
    """Its autograd function."""


_operators: dict[str, _Operator] = {}


def _below(operator: Any, undifferentiated: Any) -> Callable[..., Tensor]:
    """Returns a function that calls an operator without its derivatives.

    The function calls `undifferentiated` if it is not None, so that compiled programs contain this
    operator. Within transforms of torch.func and in exported programs, it calls `operator` itself,
    because transforms and exports dispatch the operator again and need its derivatives.
    """

    def below(keyset: Any, *args: Any) -> Tensor:
        if undifferentiated is not None and not _met_again():
            return undifferentiated(*args)
        return private.redispatch_below_autograd(operator, keyset, *args)

    return below


def _met_again() -> bool:
    return private.transforms_active() or torch.compiler.is_exporting()


def _have_tangent(args: tuple[Any, ...]) -> bool:
    for x in args:
        if isinstance(x, Tensor) and x.is_floating_point() and private.dual(x)[1] is not None:
            return True
    return False


def run(name: str, *args: Any) -> Tensor:
    """Returns the result of torch.ops.cpd.<name>, which has derivatives.

    If the function that the dispatcher would call is known, it is called directly, which saves much
    of a small layer's time. If no argument needs a derivative, the operator without derivatives is
    called.
    """
    if torch.compiler.is_compiling():
        return getattr(ops, name)(*args)
    operator, differentiates = _operators[name], may_differentiate(args)
    if not differentiates and operator.undifferentiated is not None:
        return operator.undifferentiated(*args)
    if not is_plain(args):
        return operator.dispatched(*args)
    return operator.function.apply(*args, None) if differentiates else operator.computes(*args)


_writers: dict[str, tuple[Any, Any]] = {}
"""Maps <name> to two operators: <name>_out and <name>_out_plain. <name>_out_plain does not report
the change of `out` to autograd."""


def write(name: str, *args: Any, out: Tensor) -> None:
    """Calls torch.ops.cpd.<name>_out, which writes into `out`.

    `check_no_derivative` must have checked the arguments.
    """
    operator, undifferentiated = _writers[name]
    if torch.compiler.is_compiling() or out.is_inference():
        operator(*args, out=out)
        return
    torch.autograd.graph.increment_version(out)
    undifferentiated(*args, out=out)


class _CallModes(NamedTuple):
    """The dispatch keys and the modes in which an operator was called.

    An autograd function runs with reverse and forward mode off. Outer transforms of torch.func need
    both modes as they were at the call.
    """

    keyset: Any
    reverse: bool
    forward: bool


def _function(
    name: str,
    below: Callable[..., Tensor],
    computes: Callable[..., Tensor],
    derivative: Derivative,
) -> Any:
    """Returns the autograd function of an operator.

    The function differentiates for one level of torch.func's transforms. Each outer level
    dispatches the operator again. The function's last argument is None if `run` called the function
    directly: `computes` then computes the result. The last argument is a `_CallModes` if torch's
    dispatcher called the function: `below` then computes the result.
    """

    def forward(*args: Any) -> Tensor:
        *inputs, call = args
        if call is None:
            result = computes(*inputs)
        else:
            with (
                torch.set_grad_enabled(call.reverse),
                private.forward_gradients(call.forward),
            ):
                result = below(call.keyset, *inputs)
        # torch's own kernels may return views. Autograd forbids in-place changes of a view that a
        # function returns.
        return result.detach() if result._is_view() else result

    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.set_materialize_grads(False)
        ctx.arguments = len(inputs)
        derivative.setup(ctx, inputs[:-1], inputs[-1] is not None and inputs[-1].forward)

    def run_backward(ctx: Any, grad: Tensor | None) -> tuple[Any, ...]:
        gradients = () if grad is None else derivative.backward(ctx, grad)
        return (*gradients, *(None,) * (ctx.arguments - len(gradients)))

    def jvp(ctx: Any, *tangents: Tensor | None) -> Tensor | None:
        if all(t is None for t in tangents):
            return None
        with private.forward_gradients(True):
            return derivative.tangent(ctx, tangents[:-1])

    methods = {
        "forward": staticmethod(forward),
        "setup_context": staticmethod(setup_context),
        "backward": staticmethod(run_backward),
        "jvp": staticmethod(jvp),
    }
    return type(f"Derivative_of_{name}", (private.SingleLevelFunction,), methods)


def saved(ctx: Any) -> list[Any]:
    """Returns the tensors that the forward pass saved, without their forward-mode tangents.

    Only tangents of the innermost transform of torch.func are removed.
    """
    return [None if x is None else private.dual(x)[0] for x in ctx.saved_tensors]


def total(*terms: Tensor | None) -> Tensor:
    """Returns the sum of the terms that are not None. At least one term must not be None."""
    return functools.reduce(torch.add, [term for term in terms if term is not None])


OUT_AND_AUTOGRAD = "out= takes no part in autograd: use it under torch.no_grad()"


def check_no_derivative(*args: Any) -> None:
    """Raises ValueError if an argument of a call with `out` needs a derivative.

    An argument needs a derivative if it requires a gradient, has a tangent, or belongs to a
    transform of torch.func.
    """
    if not may_differentiate(args):
        return
    if private.transforms_active() and any(map(_is_wrapped, args)):
        raise ValueError("out= takes no part in torch.func's transforms and vmap: leave it out")
    if torch.is_grad_enabled() and private.requires_grad(*args):
        raise ValueError(OUT_AND_AUTOGRAD)
    if private.forward_mode() and _have_tangent(args):
        raise ValueError("out= takes no part in forward-mode autograd: leave it out")


def _is_wrapped(x: Any) -> bool:
    return isinstance(x, Tensor) and private.unwrapped(x) is not x


# ---- operators that write into `out` -------------------------------------------------------------


def writes_into_out(name: str) -> None:
    """Registers torch.ops.cpd.<name>_out and <name>_out_plain, which write into `out`.

    <name>_out increments the version of `out`, as torch's own operators do. A backward pass that
    needs the old values of `out` then fails instead of using the new values. If `out` is a lazily
    negated view, the negated results are written.
    """
    writer, plain = f"{name}_out", f"{name}_out_plain"
    operator = getattr(ops, writer).default
    _writers[name] = operator, getattr(ops, plain).default

    def change(keyset: Any, *args: Any, out: Tensor) -> None:
        torch.autograd.graph.increment_version(out)
        private.redispatch_below_views(operator, keyset, *args, out=out)

    def differentiate(keyset: Any, *args: Any, out: Tensor) -> None:
        check_no_derivative(*args, out)
        change(keyset, *args, out=out)

    library.impl(writer, change, "ADInplaceOrView", with_keyset=True)
    library.impl(writer, differentiate, "Autograd", with_keyset=True)
    library.impl(plain, torch.library.fallthrough_kernel, "Autograd")
    for variant in (writer, plain):
        torch.library.register_fake(f"cpd::{variant}")(makes_nothing)
        _register_negated(variant)


def makes_nothing(*args: Any, **out: Tensor) -> None:
    """Does nothing: the fake kernel of operators that only write into their arguments."""


def _register_negated(name: str) -> None:
    operator = getattr(ops, name).default

    def negate(*args: Any, out: Tensor) -> None:
        resolved = [a.resolve_neg() if isinstance(a, Tensor) else a for a in args]
        if not out.is_neg():
            operator(*resolved, out=out)
            return
        buffer = torch.empty_like(out, memory_format=torch.contiguous_format)
        operator(*resolved, out=buffer)
        out.copy_(buffer)

    library.impl(name, negate, "Negative")
