# SPDX-License-Identifier: Apache-2.0
"""The names of torch's private API that cpd uses, each with what it is for.

tests/python/_torch/test_plain.py lists the few that other modules use.

Names that save time come first. Each has a fallback of public names in `PUBLIC`, which a torch
without the private name gets. The gains are ratios of CPU times, the fallback's to this one's, on
a 2-core EPYC of family 26, one thread, a cast of 16 values or a linear layer of 8 x 16 x 16.

No public name does what the rest do. torch.autograd.Function refuses torch.func's transforms
within an operator, and torch.library.register_autograd drops tangents.
"""

# torch's registries are untyped.
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
    """Returns False: replaces `is_plain` if nothing is known. The dispatcher takes the call."""
    return False


def _always(args: tuple[Any, ...]) -> bool:
    """Returns True: replaces `may_differentiate` if nothing is known."""
    return True


PUBLIC: dict[str, Callable[..., Any]] = {
    "is_plain": _never_plain,
    "may_differentiate": _always,
    "direct": lambda overload: overload,
    "autocast_off": lambda x: torch.autocast(x.device.type, enabled=False),
}
"""The fallbacks, by the names of the private functions that they replace."""


def _keys(*names: str) -> int:
    """Returns the number of a set of dispatch keys."""
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
"""Returns whether a call concerns only the kernel and reverse-mode autograd.

No mode, transform, tracer or profiler is on, and all tensors are torch's own dense ones, without a
pending negation. The dispatcher, which would find the kernel and autograd, is passed by: 1.9 for a
cast that records a gradient, 1.3 for a step of the layer.
"""
may_differentiate: Callable[[tuple[Any, ...]], bool] = _found["may_differentiate"]
"""Returns whether a gradient, a tangent or a transform of torch.func may go through a call.

If none does, the operator without derivatives is called: 2.2 for a cast.
"""
direct: Callable[[Any], Callable[..., Any]] = _found["direct"]
"""The function below an operator's Python object: 1.05 for a cast."""
autocast_off: Callable[[Tensor], Any] = _found["autocast_off"]
"""A context in which autocast casts no operands like x."""


# ---- modes and transforms ------------------------------------------------------------------------

transforms_active = torch._C._are_functorch_transforms_active
"""Returns whether a transform of torch.func or torch.vmap is under way."""
function_modes = torch._C._len_torch_function_stack
"""The number of modes that see calls of torch's functions."""
dispatch_modes = torch._C._len_torch_dispatch_stack
"""The number of modes that see calls of operators."""
modes_off = _disable_current_modes
"""A context without modes."""
tracing_state = torch._C._get_tracing_state
"""The state of torch.jit.trace, or None."""
requires_grad = torch._C._any_requires_grad
"""Returns whether a tensor among the arguments requires a gradient."""
CPU_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
"""The dispatch keys of a call that only the CPU's kernel sees (OpOverload.redispatch)."""


def transform_level() -> Any:
    """Returns the level of the innermost transform of torch.func, or None."""
    return torch._C._functorch.maybe_current_level()


def unwrapped(x: Tensor) -> Tensor:
    """Returns the tensor within the wrappers of torch.func and vmap, with the whole batch."""
    if transforms_active():
        while torch._C._functorch.is_functorch_wrapped_tensor(x):
            x = torch._C._functorch.get_unwrapped(x)
    return x


# ---- autograd ------------------------------------------------------------------------------------

SingleLevelFunction = _SingleLevelFunction
"""An autograd function for one level of torch.func's transforms."""
single_level = enable_single_level_autograd_function
"""A context in which such a function may be applied."""
below_autograd = torch._C._AutoDispatchBelowAutograd
"""A context in which autograd records nothing, as within a kernel."""
forward_gradients = forward_ad._set_fwd_grad_enabled
"""A context in which forward mode is on or off."""
forward_enabled = forward_ad._is_fwd_grad_enabled
"""Returns whether forward mode is on; it is on but for autograd functions."""
graph_task = torch._C._current_graph_task_id
"""The number of the backward pass under way; -1: none."""
autograd_node = torch._C._current_autograd_node
"""The node that a backward pass computes now, or None."""
at_end_of_backward = torch.autograd.Variable._execution_engine.queue_callback
"""Has a function called at the end of the backward pass under way."""
saved_tensors_hooks = torch._C._autograd._top_saved_tensors_default_hooks
"""The innermost hooks of saved tensors, or None."""
_AUTOGRAD = torch._C.DispatchKey.AutogradFunctionality


def redispatch_below_autograd(operator: Any, keyset: Any, *args: Any) -> Tensor:
    """Calls an operator with its keys that come after autograd's."""
    with below_autograd():
        return operator.redispatch(keyset & torch._C._after_autograd_keyset, *args)


def redispatch_below_views(operator: Any, keyset: Any, *args: Any, out: Tensor) -> None:
    """Calls an operator with its keys that come after the key that counts changes."""
    with torch._C._AutoDispatchBelowADInplaceOrView():
        operator.redispatch(keyset & torch._C._after_ADInplaceOrView_keyset, *args, out=out)


def forward_mode() -> bool:
    """Returns whether Python knows of forward mode; compiled programs enter it unseen."""
    return (forward_ad._current_level >= 0 or transforms_active()) and forward_enabled()


def dual(x: Tensor) -> tuple[Tensor, Tensor | None]:
    """Primal and tangent; forward_ad.unpack_dual knows no level within a compiled program."""
    return torch._VF._unpack_dual(x, level=0)


is_below_autograd = functools.partial(torch._C._dispatch_tls_is_dispatch_key_excluded, _AUTOGRAD)
"""Returns whether a call comes from a kernel, which has its own derivatives."""


@contextlib.contextmanager
def above_autograd() -> Iterator[None]:
    """A context in which autograd records though a mode below it called us.

    torch.utils.flop_counter has such a mode.
    """
    excluded = is_below_autograd()
    torch._C._dispatch_tls_set_dispatch_key_excluded(_AUTOGRAD, False)
    try:
        yield
    finally:
        torch._C._dispatch_tls_set_dispatch_key_excluded(_AUTOGRAD, excluded)


# ---- other ---------------------------------------------------------------------------------------

not_compiled = torch._disable_dynamo
"""As torch.compiler.disable, which loads the compiler."""
RECURRENT = torch._VF
"""The namespace of the functions of torch's recurrent layers."""
