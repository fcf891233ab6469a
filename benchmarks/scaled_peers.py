# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `scaled/peer/…`: a cast to a scaled format, compared to torchao's emulation of
the same format. Both return new arrays and are measured alternately. The ratio is how many times as
fast CPD is. Checks first that the values equal torchao's. The data avoid the corner cases for which
torchao's release has older rules. The rows are skipped if torchao is not installed."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterator

import gemm
import numpy as np
import torch
from timing import Row, Side, timed

import cpd

BAR = 10
VALUES = 1 << 24
NAMES = ("scaled/peer/torchao/mxfp8", "scaled/peer/torchao/mxfp4")


def theirs(element: torch.dtype, x: torch.Tensor) -> Callable[[], torch.Tensor]:
    """Returns torchao's cast of `x` to an OCP MX format with this element format, and back."""
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    def run() -> torch.Tensor:
        return MXTensor.to_mx(x, element, block_size=32).dequantize(torch.float32)

    return run


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows, measured on one thread."""
    selected = [name for name in NAMES if options.selection.wants(name)]
    if not selected:
        return
    try:
        import torchao  # noqa: F401
    except ImportError:
        for name in selected:
            yield {"name": name, "skipped": "no torchao"}
        return
    rng = np.random.default_rng(options.seed)
    n = min(options.floats, VALUES) // 4096 * 4096
    x = torch.from_numpy(np.resize(rng.standard_normal(1 << 20, dtype=np.float32), n))
    x = x.reshape(-1, 4096)
    elements = {"mxfp8": torch.float8_e4m3fn, "mxfp4": torch.float4_e2m1fn_x2}
    with gemm.setting("", 1):
        for name in selected:
            text = name.rpartition("/")[2]
            peer = theirs(elements[text], x)
            if not torch.equal(peer(), cpd.cast(x, text)):
                yield {"name": name, "wrong": "not torchao's values"}
                continue
            ours = Side(lambda text=text: cpd.cast(x, text), 8 * n)  # type: ignore[misc]
            row = timed(name, "GB/s", ours, "torchao", Side(peer, 8 * n), options.repeats)
            yield row | {"bar": BAR, "counted": 8, "moved": 8}
