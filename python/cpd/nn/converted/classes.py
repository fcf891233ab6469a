# SPDX-License-Identifier: Apache-2.0
"""Makes the subclasses of emulated modules. Their objects can be copied and pickled."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from cpd._torch.private import function_modes, tracing_state
from cpd.nn.arguments import mixes_types
from cpd.nn.autocast import paused
from cpd.nn.converted.emulations import EMULATIONS, Emulation, Forward

_Class = type[nn.Module]
_made: dict[tuple[str, type], _Class] = {}


def emulated(emulation: Emulation, cls: _Class) -> _Class:
    """Returns the subclass of `cls` whose forward is the emulation's.

    Repeated calls return the same class.
    """
    key = emulation.name, cls
    if key not in _made:
        _made[key] = _make(emulation, cls)
    return _made[key]


def _make(emulation: Emulation, cls: _Class) -> _Class:
    def reduce(self: Any, protocol: Any) -> Any:
        constructor, arguments, *state = super(subclass, self).__reduce_ex__(max(protocol, 2))
        # Replaces copyreg.__newobj__: pickle cannot find `subclass`, made at run time, by its name.
        if arguments == (subclass,):
            return _new, (emulation.name, cls), *state
        return constructor, arguments, *state

    def apply(self: Any, function: Any, recurse: bool = True) -> Any:
        state = self.__dict__.get("cpd")
        if state is not None and state.clock is not None:
            state.clock.before_apply(function)
        return super(subclass, self)._apply(function, recurse)

    def load(self: Any, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any) -> None:
        super(subclass, self)._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
        delayed = self._modules.get("cpd_delayed")
        if delayed is not None and local_metadata.get("assign_to_params_buffers"):
            delayed.leave_meta(state_dict, prefix)

    names = {
        **emulation.attributes,
        "__reduce_ex__": reduce,
        "_load_from_state_dict": load,
        "_apply": apply,  # called by to_empty and to
        "__prepare_scriptable__": refuse_scripts,  # called by torch.jit.script
        "__module__": cls.__module__,
        "__doc__": cls.__doc__,
        "_cpd_class": cls,
    }
    if emulation.forward is not None:
        names["forward"] = _forward(emulation.forward, emulation.one_type, cls.forward)
    # Without this option, torch.compile leaves recurrent layers to torch, which breaks the graph.
    # The option holds for the whole process.
    if issubclass(cls, nn.RNNBase):
        torch._dynamo.config.allow_rnn = True
    subclass: _Class = type(f"Emulated{cls.__name__}", (cls,), names)
    return subclass


def refuse_scripts(module: nn.Module) -> None:
    """Raises RuntimeError: TorchScript and ONNX cannot express an emulated layer."""
    raise RuntimeError(
        f"torch.jit and torch.onnx cannot export {type(module).__name__}: use torch.export, or "
        "cpd.restore(model) first, which exports torch's own arithmetic"
    )


def _forward(computed: Forward, one_type: bool, original: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the forward of an emulated class, made from the emulation's forward `computed`.

    In each call, `original` runs instead if the module's recipe is None. `cpd.autocast` has no
    effect within the emulation's forward. The model's clock is notified of each call and of the
    backward pass of its result.
    """

    @functools.wraps(original)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        state = self.__dict__.get("cpd")  # None: this forward was kept beyond `restore`
        clock = None if state is None else state.clock
        if clock is None:
            return compute(state, self, args, kwargs)
        clock.enter(state, self.training)
        return clock.mark(compute(state, self, args, kwargs), self.training)

    def compute(state: Any, self: Any, args: Any, kwargs: Any) -> Any:
        if state is None or state.recipe is None:
            return original(self, *args, **kwargs)
        if tracing_state() is not None or torch.onnx.is_in_onnx_export():
            refuse_scripts(self)
        if one_type and mixes_types(self, *args, *kwargs.values()):
            original(self, *args, **kwargs)  # raises torch's error
        if function_modes():
            with paused():
                return computed(self, original, *args, **kwargs)
        return computed(self, original, *args, **kwargs)

    return forward


def _new(name: str, cls: _Class) -> nn.Module:
    """Returns a module without its state, for unpickling. `name`: the emulation's name."""
    subclass = emulated(EMULATIONS[name], cls)
    return subclass.__new__(subclass)


def is_emulated(module: nn.Module) -> bool:
    """Returns True if the module's class is a subclass that the function `emulated` made."""
    return hasattr(type(module), "_cpd_class")


def own_class(module: nn.Module) -> _Class:
    """Returns the module's class without the subclasses that CPD, FSDP2 and parametrize added."""
    cls = type(module)
    below = _below(cls)
    while below is not None:
        cls, below = below, _below(below)
    return _original(cls)


def emulate(module: nn.Module, emulation: Emulation) -> None:
    """Replaces the module's class by its emulated subclass.

    Classes that FSDP2 and parametrizations derived are derived again from the subclass.
    """
    module.__class__ = _changed(type(module), lambda cls: emulated(emulation, cls))


def restore(module: nn.Module) -> None:
    """Restores the module's class from before `emulate`."""
    module.__class__ = _changed(type(module), _original)


def _original(cls: _Class) -> _Class:
    """Returns the class from which `emulated` made `cls`.

    Returns `cls` itself if `emulated` did not make it.
    """
    original: _Class = vars(cls).get("_cpd_class", cls)
    return original


def _below(cls: _Class) -> _Class | None:
    """Returns the class from which FSDP2 or parametrize derived `cls`; None if neither did."""
    below = cls.__bases__[-1]
    theirs = cls.__module__.startswith(("torch.nn.utils.parametrize", "torch.distributed."))
    return below if theirs and cls.__name__.endswith(below.__name__) else None


def _changed(cls: _Class, change: Callable[[_Class], _Class]) -> _Class:
    """Applies `change` to `cls`, or to the class from which FSDP2 or parametrize derived `cls`.

    In the second case, returns a class like `cls` that is derived from the result of `change`.
    """
    below = _below(cls)
    if below is None:
        return change(cls)
    new = _changed(below, change)
    bases = tuple(new if base is below else base for base in cls.__bases__)
    names = {k: v for k, v in vars(cls).items() if k not in ("__dict__", "__weakref__")}
    anew: _Class = type(cls.__name__.replace(below.__name__, new.__name__), bases, names)
    return anew
