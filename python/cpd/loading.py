# SPDX-License-Identifier: Apache-2.0
"""Prepares torch without importing it.

The operations on tensors are loaded with the first tensor. torch.load, by default, reads
checkpoints that hold specs of this package: they become safe globals once torch is imported, before
or after this package.
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
"""The function that pickles of specs call: unpickling a spec runs no code but this package's
own."""


def load_operations_with_the_first_tensor() -> None:
    """Has `cpd.ops` load the operations on tensors when it is passed the first tensor."""
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
    """`then(module)` now, or once the module has been imported."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Waiting(name, then))
    else:
        then(module)


class _Waiting:
    """A finder of one module, by the other finders and once, whose loader calls `then` at last."""

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
    """A loader that calls `then` with the module after another has loaded it."""

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
