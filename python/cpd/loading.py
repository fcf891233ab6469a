# SPDX-License-Identifier: Apache-2.0
"""Lets torch.load, by default, read checkpoints that hold specs of this package, without importing
torch: what they are is told when torch is imported, before or after this package."""

from __future__ import annotations

import importlib.abc
import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from cpd import accumulator, formats, recipes, reduce, schedule

SPECS: list[Any] = [
    formats.format,  # what a pickled Format calls
    accumulator.Accumulator,
    accumulator.BlockFma,
    recipes.CastSpec,
    recipes.Recipe,
    reduce.ReduceSpec,
    schedule.Schedule,
]
"""Values of plain fields: unpickling one runs no code but this package's own."""


def tell_torch() -> None:
    """Makes them safe globals of torch.load(weights_only=True)."""
    _when_imported("torch.serialization", lambda module: module.add_safe_globals(SPECS))


def _when_imported(name: str, then: Callable[[ModuleType], None]) -> None:
    """`then(module)` now, or once the module has been imported."""
    module = sys.modules.get(name)
    if module is None:
        sys.meta_path.insert(0, _Waiting(name, then))
    else:
        then(module)


class _Waiting(importlib.abc.MetaPathFinder):
    """Finds one module by the other finders, once, and adds `then` to what its loader does."""

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        self._name, self._then = name, then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != self._name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Then(spec.loader, self._then)
        return spec


class _Then(importlib.abc.Loader):
    """A loader, and what is done after it."""

    def __init__(self, loader: Any, then: Callable[[ModuleType], None]) -> None:
        self._loader, self._then = loader, then

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        made: ModuleType | None = self._loader.create_module(spec)
        return made

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader  # as if this had not been here
        self._loader.exec_module(module)
        self._then(module)
