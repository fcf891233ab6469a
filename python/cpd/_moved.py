# SPDX-License-Identifier: Apache-2.0
"""The names that modules had before: `import cpd.formats` gives `cpd.numeric.formats`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.abc import Loader
else:
    Loader = object  # whose module takes 10 ms to import

MOVED: dict[str, tuple[str, ...]] = {
    "cpd.accumulator": ("cpd.numeric.accumulator",),
    "cpd.compiling": ("cpd.numeric.compiling",),
    "cpd.ddp": ("cpd.parallel.ddp",),
    "cpd.formats": ("cpd.numeric.formats",),
    "cpd.fsdp": ("cpd.parallel.fsdp",),
    "cpd.gradient_files": ("cpd.study.gradient_files",),
    "cpd.gradients": ("cpd.study.gradients",),
    "cpd.numpy_ops": ("cpd.ops.on_numpy",),
    "cpd.recipes": ("cpd.nn.recipe", "cpd.numeric.cast"),
    "cpd.reduce": ("cpd.comm.spec", "cpd.comm.virtual", "cpd.comm.layers"),
    "cpd.report": ("cpd.demo.report",),
    "cpd.report.checked": ("cpd.demo.report.checked",),
    "cpd.report.demo": ("cpd.demo.report.demo",),
    "cpd.report.figures": ("cpd.demo.report.figures",),
    "cpd.report.page": ("cpd.demo.report.page",),
    "cpd.report.results": ("cpd.demo.report.results", "cpd._files"),
    "cpd.report.roundoff": ("cpd.study.series",),
    "cpd.report.roundoff_plot": ("cpd.study.plot",),
    "cpd.schedule": ("cpd.comm.schedule",),
    "cpd.tensors": ("cpd.numeric.options", "cpd.ops.arguments"),
    "cpd.torch_conv": (
        "cpd._torch.conv",
        "cpd._torch.convolution",
        "cpd._torch.moves",
        "cpd._torch.unfolded",
    ),
    "cpd.torch_derivatives": ("cpd._torch.derivatives",),
    "cpd.torch_gemm": ("cpd._torch.gemm",),
    "cpd.torch_library": ("cpd._torch.library",),
    "cpd.torch_ops": ("cpd._torch.operators",),
    "cpd.torch_vmap": ("cpd._torch.vmap",),
    "cpd.training": ("cpd.demo.training",),
    "cpd.training.data": ("cpd.demo.training.data",),
    "cpd.training.loop": ("cpd.demo.training.loop",),
    "cpd.training.model": ("cpd.demo.training.model",),
    "cpd.training.options": ("cpd.demo.training.options",),
    "cpd.training.ranks": ("cpd.parallel.nodes",),
}
"""A module's old name, and where its contents are now."""


class _Finder(Loader):
    """Finds modules by their old names, and loads the new ones in their place."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        now = [importlib.import_module(name) for name in MOVED[module.__name__]]
        if len(now) == 1:
            sys.modules[module.__name__] = now[0]  # what import then gives
        for one in reversed(now):
            vars(module).update({k: v for k, v in vars(one).items() if not k.startswith("__")})


def find_them() -> None:
    """Lets `import` know the old names; nothing is loaded before one is asked for."""
    sys.meta_path.insert(0, _Finder())


def old_names(module: str, name: str) -> list[str]:
    """What `name` of a module was called before, as pickles name it."""
    return [f"{old}.{name}" for old, now in MOVED.items() if module in now]
