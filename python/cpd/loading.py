# SPDX-License-Identifier: Apache-2.0
"""Prepares the use of torch without importing torch.

Operations on tensors are loaded when the first tensor is passed to an operation. When torch is
imported, before or after this package, the package's specs (formats, accumulators, recipes, …)
become safe globals of torch.load. torch.load then reads checkpoints with specs by default.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cpd.ops import front_ends

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # whose module takes 10 ms to import

SPECS = [
    ("cpd.numeric.formats", "Format"),
    ("cpd.numeric.formats", "format"),  # what a Format pickled by 0.7 calls
    ("cpd.numeric.accumulator", "Accumulator"),
    ("cpd.numeric.accumulator", "BlockFma"),
    ("cpd.numeric.accumulator", "FixedPoint"),
    ("cpd.numeric.cast", "Cast"),
    ("cpd.numeric.cast", "CastSpec"),  # of 0.7
    ("cpd.numeric.hadamard", "Hadamard"),
    ("cpd.numeric.scaled_cast", "ScaledCast"),  # of 0.7
    ("cpd.numeric.scaled", "Scaled"),
    ("cpd.numeric.scaled", "scaled"),  # what a Scaled pickled by 0.7 calls
    ("cpd.ops.encoded", "Encoded"),
    ("cpd.nn.recipe", "Recipe"),
    ("cpd.compress.codecs", "Codec"),
    ("cpd.compress.codec", "Codec"),  # of 0.7
    ("cpd.compress.states", "States"),
    ("cpd.comm.spec", "Reduce"),
    ("cpd.comm.spec", "ReduceSpec"),  # of 0.7
    ("cpd.comm.schedule", "Schedule"),
]
"""The functions that pickles of specs call. Unpickling a spec runs only code of this package."""


def load_operations_with_the_first_tensor() -> None:
    """Makes `cpd.ops` load the operations on tensors when the first tensor is passed to it."""
    front_ends.on_tensors = _operations


def _operations() -> front_ends.FrontEnd:
    from cpd._torch import on_torch

    front_ends.on_tensors = lambda: on_torch  # an import statement takes its time at each call
    return on_torch


def register_safe_globals() -> None:
    """Makes the specs safe globals of torch.load(weights_only=True)."""
    _when_imported("torch.serialization", lambda torch: torch.add_safe_globals(_safe_globals()))


def _safe_globals() -> list[Any]:
    return [
        (getattr(importlib.import_module(module), name), f"{module}.{name}")
        for module, name in SPECS
    ]


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """Calls `then(module)`, now if the module is imported, else when it is imported."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Waiting(name, then))
    else:
        then(module)


class _Waiting:
    """A finder that looks for one module, once, by asking the other finders of sys.meta_path.

    The loader that it returns calls `then` after it has loaded the module.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        from importlib.util import find_spec  # which importing torch has loaded by now

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._then)
        return spec


class _Then(Loader):
    """A loader that lets another loader load the module, then calls `then` with the module."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if this had not been here
        self._loader.exec_module(module)
        self._then(module)
