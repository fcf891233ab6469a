# SPDX-License-Identifier: Apache-2.0
"""Finds calls of an operator that need torch's dispatcher.

The dispatcher takes 40 to 60 µs to call a function of Python (an EPYC of family 23), which adds up
to a third of a small layer's time. Where it would only find the kernel, and autograd, these are
called directly.
"""

# torch's registries are untyped.
# mypy: disable-error-code="no-any-return,no-untyped-call,attr-defined"

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _keys(*names: str) -> int:
    """The number of a set of dispatch keys."""
    sets = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return functools.reduce(lambda a, b: a | b, sets).raw_repr()


_NO_MODE = _keys("BackendSelect", "ADInplaceOrView")
_DENSE = frozenset(
    _keys(place, "ADInplaceOrView", f"Autograd{place}", f"Autocast{place}")
    for place in ("CPU", "CUDA")
)
_TENSORS = frozenset((Tensor, torch.nn.Parameter))
_VALUES = frozenset((type(None), str, int, bool, torch.dtype))
_included = torch._C._dispatch_tls_local_include_set
_functions = torch._C._len_torch_function_stack
_keys_of = torch._C._dispatch_keys
_is_profiled = torch.autograd._profiler_enabled


def is_plain(args: tuple[Any, ...]) -> bool:
    """Returns whether a call concerns only the kernel and reverse-mode autograd.

    No mode, transform, tracer or profiler is on, and all tensors are torch's own dense ones,
    without a pending negation.
    """
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
