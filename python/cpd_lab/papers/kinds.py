# SPDX-License-Identifier: Apache-2.0
"""`KINDS`: the kinds of measurement by name, and the function that measures each kind."""

from __future__ import annotations

import functools
import hashlib
import importlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cpd import _core
from cpd.study.processor import cpu_name
from cpd_lab.papers.study import Cell, Found

VERSION: str = _core.__version__


@dataclass(frozen=True)
class Kind:
    """A kind of measurement.

    Attributes:
        measure: the function that measures, as `module:function`. It takes a cell's options as
            keyword arguments and returns JSON.
        sources: further modules and packages, besides that module, whose files decide the result.
    """

    measure: str
    sources: tuple[str, ...] = ()

    def function(self) -> Callable[..., dict[str, Any]]:
        """Returns the function that makes measurements of this kind."""
        module, _, name = self.measure.partition(":")
        measure: Callable[..., dict[str, Any]] = getattr(importlib.import_module(module), name)
        return measure


_TRAIN = ("cpd_lab.train",)
KINDS: dict[str, Kind] = {
    "train": Kind("cpd_lab.papers.trained:trained", _TRAIN),
    "roundoff": Kind("cpd_lab.papers.distributions:roundoff", (*_TRAIN, "cpd.study.reduce")),
    "distribution": Kind("cpd_lab.papers.distributions:distribution", _TRAIN),
    "ternary": Kind("cpd_lab.papers.ternary:ternary", (*_TRAIN, "cpd_lab.papers.trained")),
    "weights": Kind(
        "cpd_lab.papers.weights:weights", ("cpd.parallel.outer", "cpd_lab.train.digits")
    ),
    "masks": Kind("cpd_lab.papers.trained:masks", _TRAIN),
    "scale-factor": Kind("cpd_lab.papers.small:scale_factor"),
    "dot-product": Kind("cpd_lab.papers.small:dot_product"),
    "demo": Kind("cpd_lab.demo.measured:trained", _TRAIN),
    "demo-roundoff": Kind("cpd_lab.demo.measured:roundoff", (*_TRAIN, "cpd.study.series")),
}


def measure(cell: Cell) -> Found:
    """Measures a cell (one measurement of a study) in this process."""
    kind = KINDS[cell.kind]
    begin = time.perf_counter()
    result = kind.function()(**cell.options)
    seconds = round(time.perf_counter() - begin, 2)
    return Found(cell, result, seconds, cpu_name(), VERSION, sources_of(cell.kind))


@functools.cache
def sources_of(kind: str) -> str:
    """Returns the first 16 hex digits of the SHA-256 of the files that decide a kind's results."""
    known = KINDS[kind]
    digest = hashlib.sha256()
    for name in (known.measure.partition(":")[0], *known.sources):
        for path in _files(name):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _files(module: str) -> list[Path]:
    """Returns the source file of a module, or all Python files of a package."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)]
    return sorted(Path(spec.origin).parent.rglob("*.py"))
