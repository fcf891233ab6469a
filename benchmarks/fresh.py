# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `cast/fresh/<front end>`: a cast that returns a new array, compared to the same
cast with `out=`, alternately. Both results must have the same bits. The difference is the cost of
new memory: the system clears and maps its pages, and takes them back."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import gemm
import numpy as np
import torch
from timing import Row, Side, timed

import cpd

BAR = 1 / 1.6
FORMAT = cpd.Format("e4m3")


def front_ends(
    options: Namespace,
) -> Iterator[tuple[str, Callable[[], object], Callable[[], object]]]:
    """Yields for NumPy and for torch: the name, the call that returns a new array, and the call
    with `out=`."""
    rng = np.random.default_rng(options.seed)
    x = np.resize(rng.standard_normal(1 << 20, dtype=np.float32), options.floats)
    out = np.empty_like(x)
    tx, tout = torch.from_numpy(x), torch.from_numpy(out)
    yield "numpy", lambda: cpd.cast(x, FORMAT), lambda: cpd.cast(x, FORMAT, out=out)
    yield "torch", lambda: cpd.cast(tx, FORMAT), lambda: cpd.cast(tx, FORMAT, out=tout)


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on one thread."""
    names = ("cast/fresh/numpy", "cast/fresh/torch")
    if not any(map(options.selection.wants, names)):
        return
    moved = 8 * options.floats
    with gemm.setting("", 1):
        for front_end, make, into in front_ends(options):
            name = f"cast/fresh/{front_end}"
            if not options.selection.wants(name):
                continue
            if not np.array_equal(np.asarray(make()), np.asarray(into())):
                yield {"name": name, "wrong": "the two results differ"}
                continue
            row = timed(name, "GB/s", Side(make, moved), "out=", Side(into, moved), options.repeats)
            yield row | {"bar": round(BAR, 3), "backend": cpd.backend(), "counted": 8}
