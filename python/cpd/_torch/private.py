# SPDX-License-Identifier: Apache-2.0
"""The names of torch's private API that cpd uses, each with its purpose.

tests/python/_torch/test_plain.py lists the few private names that other modules use. For some
names, `PUBLIC` has a slower fallback that needs only public names. cpd uses the fallback if a
version of torch lacks the name. The docstrings of these names compare CPU times with the fallback
and with the private name. The times were measured on a 2-core EPYC of family 26 with one thread,
for a cast of 16 values or a linear layer of 8 x 16 x 16. All other names have no public
replacement: torch.autograd.Function refuses torch.func's transforms within an operator, and
torch.library.register_autograd drops tangents.
"""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,attr-defined"

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch._C._dynamo.eval_frame import get_eval_frame_callback as get_eval_frame_callback
from torch._functorch.utils import enable_single_level_autograd_function
from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
from torch.autograd import forward_ad
from torch.autograd.function import _SingleLevelFunction
from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode
from torch.utils._python_dispatch import _disable_current_modes

# ---- names that save time ------------------------------------------------------------------------


def _never_plain(args: tuple[Any, ...]) -> bool:
    """Returns False: the fallback of `is_plain`. torch's dispatcher then handles every call."""
    return False


def _always(args: tuple[Any, ...]) -> bool:
    """Returns True: the fallback of `may_differentiate`. Every call then may have derivatives."""
    return True


PUBLIC: dict[str, Callable[..., Any]] = {
    "is_plain": _never_plain,
    "may_differentiate": _always,
    "direct": lambda overload: overload,
    "autocast_off": lambda x: torch.autocast(x.device.type, enabled=False),
}
"""Maps names of this module's functions to replacements that use only torch's public API."""


def _keys(*names: str) -> int:
    """Returns the integer that represents a set of dispatch keys, given by their names."""
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return functools.reduce(lambda a, b: a | b, sets).raw_repr()


def _is_plain(args: tuple[Any, ...]) -> bool:
    if (
        _included().raw_repr() != _NO_MODE
        or _functions() > 0
        or forward_ad._current_level >= 0
        or _is_profiled()
    ):
        return False
    for x in args:
        kind = type(x)
        if kind in _TENSORS:
            if _keys_of(x).raw_repr() not in _DENSE:
                return False
        elif kind not in _VALUES and isinstance(x, Tensor):
            return False
    return True


def _may_differentiate(args: tuple[Any, ...]) -> bool:
    return (
        _transforms()
        or forward_ad._current_level >= 0
        or (torch.is_grad_enabled() and _requires_grad(*args) and not is_below_autograd())
    )


_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_VALUES = frozenset((type(None), str, int, bool, torch.dtype))
try:
    _NO_MODE = _keys("BackendSelect", "ADInplaceOrView")
    _DENSE = frozenset(
        _keys(place, "ADInplaceOrView", f"Autograd{place}", f"Autocast{place}")
        for place in ("CPU", "CUDA")
    )
    _included = torch._C._dispatch_tls_local_include_set
    _functions = torch._C._len_torch_function_stack
    _keys_of = torch._C._dispatch_keys
    _is_profiled = torch.autograd._profiler_enabled
    _transforms = torch._C._are_functorch_transforms_active
    _requires_grad = torch._C._any_requires_grad
    _autocast_off = torch._C._DisableAutocast
except AttributeError:  # another torch
    _found = PUBLIC
else:
    _found = {
        "is_plain": _is_plain,
        "may_differentiate": _may_differentiate,
        "direct": lambda overload: overload._op,
        "autocast_off": lambda x: _autocast_off(),
    }

is_plain: Callable[[tuple[Any, ...]], bool] = _found["is_plain"]
"""Returns whether a call needs only the kernel and reverse-mode autograd.

This is so if no mode, transform, tracer or profiler is on, and all tensors are dense tensors of
torch's own classes without a lazy negation. Such a call bypasses the dispatcher. With the
fallback for this name, a cast that records a gradient takes 1.9 times as long, and a
training step of a layer 1.3 times.
"""
may_differentiate: Callable[[tuple[Any, ...]], bool] = _found["may_differentiate"]
"""Returns whether a call may need a gradient, a tangent or a transform of torch.func.

If it needs none of these, the operator without derivatives is called. With the
fallback for this name, a cast takes 2.2 times as long.
"""
direct: Callable[[Any], Callable[..., Any]] = _found["direct"]
"""Returns the C++ function that an operator's Python object calls.

With the fallback for this name, a cast takes 1.05 times as long.
"""
autocast_off: Callable[[Tensor], Any] = _found["autocast_off"]
"""Returns a context in which autocast does not cast operands on x's device."""


# ---- modes and transforms ------------------------------------------------------------------------

transforms_active = torch._C._are_functorch_transforms_active
"""Returns whether a transform of torch.func or torch.vmap is active."""
function_modes = torch._C._len_torch_function_stack
"""Returns the number of active modes that intercept calls of torch's functions."""
dispatch_modes = torch._C._len_torch_dispatch_stack
"""Returns the number of active modes that intercept calls of operators."""
modes_off = _disable_current_modes
"""Returns a context in which no mode that intercepts calls is active."""
tracing_state = torch._C._get_tracing_state
"""Returns the state of torch.jit.trace, or None outside of a trace."""
requires_grad = torch._C._any_requires_grad
"""Returns whether a tensor among the arguments requires a gradient."""
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The dispatch keys with which OpOverload.redispatch calls the CPU's kernel directly."""


def transform_level() -> Any:
    """Returns the level of the innermost transform of torch.func, or None."""
    return torch._C._functorch.maybe_current_level()


def unwrapped(x: Tensor) -> Tensor:
    """Returns the tensor inside all wrappers of torch.func and vmap, with the whole batch."""
    if transforms_active():
        while torch._C._functorch.is_functorch_wrapped_tensor(x):
            x = torch._C._functorch.get_unwrapped(x)
    return x


# ---- autograd ------------------------------------------------------------------------------------

SingleLevelFunction = _SingleLevelFunction
"""The base class of autograd functions that act at one level of nested torch.func transforms."""
single_level = enable_single_level_autograd_function
"""Returns a context in which a program may call `apply` of a `SingleLevelFunction`."""
below_autograd = torch._C._AutoDispatchBelowAutograd
"""Returns a context in which autograd records nothing, as within a kernel."""
forward_gradients = forward_ad._set_fwd_grad_enabled
"""Returns a context in which forward mode is on or off, as its argument says."""
forward_enabled = forward_ad._is_fwd_grad_enabled
"""Returns whether forward mode is on. Only autograd functions turn it off."""
graph_task = torch._C._current_graph_task_id
"""Returns the number of the running backward pass, or -1 outside of a backward pass."""
autograd_node = torch._C._current_autograd_node
"""Returns the node of the graph that a backward pass is computing, or None."""
at_end_of_backward = torch.autograd.Variable._execution_engine.queue_callback
"""Registers a function to call at the end of the running backward pass."""
saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""Returns the innermost pair of hooks for saved tensors, or None."""
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def redispatch_below_autograd(operator: Any, keyset: Any, *args: Any) -> Tensor:
    """Calls an operator below autograd: with the dispatch keys that come after autograd's."""
    with below_autograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def redispatch_below_views(operator: Any, keyset: Any, *args: Any, out: Tensor) -> None:
    """Calls an operator below the dispatch key ADInplaceOrView, which counts in-place changes."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        operator.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out)


def forward_mode() -> bool:
    """Returns whether forward mode is active. Does not notice forward mode in compiled programs."""
    return (forward_ad._current_level >= 0 or transforms_active()) and forward_enabled()


def dual(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Returns the primal and the tangent of a tensor.

    Unlike forward_ad.unpack_dual, this works within a compiled program, too.
    """
    return torch._VF._unpack_dual(x, level=0)


is_below_autograd = functools.partial(torch._C._dispatch_tls_is_dispatch_key_excluded, _AUTOGRAD)
"""Returns whether the caller runs below autograd, as a kernel does."""


@contextlib.contextmanager
def above_autograd() -> Iterator[None]:
    """A context in which autograd records, even if the caller runs below autograd.

    The mode of torch.utils.flop_counter, for example, calls operators below autograd.
    """
    excluded = is_below_autograd()
    torch._C._dispatch_tls_set_dispatch_key_excluded(_AUTOGRAD, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_AUTOGRAD, excluded)


# ---- other ---------------------------------------------------------------------------------------

not_compiled = torch._disable_dynamo
"""Makes torch.compile skip a function, as torch.compiler.disable does, without loading the
compiler."""
RECURRENT = torch._VF
"""The module with the functions of torch's recurrent layers."""
