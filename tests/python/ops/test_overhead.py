# SPDX-License-Identifier: Apache-2.0
"""Counts the Python functions that a call on a small array calls once its caches are filled.

The count is a measure of overhead that no load of the machine disturbs. A wrapper around a hot
function, or a text that is parsed twice, increases it. The limits in `MOST` may only decrease.
`benchmarks/overhead.py` measures the time.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import cpd

torch = pytest.importorskip("torch")

MOST = {
    "numpy: cast of a format": 10,
    "numpy: cast of a text": 10,
    "numpy: cast with a seed": 12,
    "numpy: scaled cast": 16,
    "numpy: encode": 8,
    "numpy: mul": 11,
    "numpy: sum": 10,
    "numpy: gemm": 10,
    "numpy: gemm of a text": 11,
    "torch: cast of a format": 19,
    "torch: cast of a text": 19,
    "torch: cast with a seed": 23,
    "torch: scaled cast": 27,
    "torch: encode": 14,
    "torch: mul": 20,
    "torch: sum": 19,
    "torch: gemm": 21,
    "torch: gemm of a text": 22,
    "codec.encode": 22,
    "functional.linear": 82,
    "functional.matmul": 73,
    "converted Linear": 106,
    "quantizer": 22,
    "simulate_all_reduce": 64,
    "Communicator.all_reduce": 81,
}
"""The greatest number of Python functions that each call may call when its caches are filled.

Functions of torch and NumPy do not count.
"""

OTHERS = tuple(str(Path(module.__file__).parent) for module in (torch, np))


def python_calls(work: Callable[[], Any]) -> int:
    """Returns the number of Python functions that `work` calls, a second time or later."""
    count = -1  # work itself

    def see(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and not frame.f_code.co_filename.startswith(OTHERS)

    for _ in range(3):
        work()
    gc.disable()  # what it finds may call Python
    before = sys.getprofile()
    sys.setprofile(see)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return count


def of_either(front_end: str, x: Any, a: Any) -> dict[str, Callable[[], Any]]:
    f, acc, mx = cpd.Format("e4m3"), cpd.Accumulator("e6m9"), cpd.Scaled("mxfp8")
    stochastic = cpd.Cast("e4m3 stochastic")
    calls: dict[str, Callable[[], Any]] = {
        "cast of a format": lambda: cpd.cast(x, f),
        "cast of a text": lambda: cpd.cast(x, "e4m3"),
        "cast with a seed": lambda: cpd.cast(x, stochastic, seed=3),
        "scaled cast": lambda: cpd.cast(x, mx),
        "encode": lambda: cpd.encode(x, f),
        "mul": lambda: cpd.mul(x, x, f),
        "sum": lambda: cpd.sum(a, acc, 0),
        "gemm": lambda: cpd.gemm(a, a, acc),
        "gemm of a text": lambda: cpd.gemm(a, a, "e6m9"),
    }
    return {f"{front_end}: {name}": call for name, call in calls.items()}


def others(x: Any, a: Any) -> dict[str, Callable[[], Any]]:
    codec, how, sums = cpd.Codec("qsgd bits=4 bucket=512"), cpd.Recipe("mxfp8"), cpd.Reduce("e4m3")
    comm = cpd.comm.local(1).ranks[0]
    layer = torch.nn.Linear(8, 8)
    cpd.convert(layer, "mxfp8", coverage=False)
    quantize = cpd.quantizer("e4m3", "e5m2")
    t = torch.from_numpy(a)
    return {
        "codec.encode": lambda: codec.encode(x, seed=3),
        "functional.linear": lambda: cpd.functional.linear(t, t, recipe=how),
        "functional.matmul": lambda: cpd.functional.matmul(t, t, sums="e6m9"),
        "converted Linear": lambda: layer(t),
        "quantizer": lambda: quantize(t),
        "simulate_all_reduce": lambda: cpd.simulate_all_reduce([[x], [x]], sums),
        "Communicator.all_reduce": lambda: comm.all_reduce([x], sums),
    }


def test_warm_calls_make_no_more_python_calls_than_they_did() -> None:
    x, a = np.ones(16, np.float32), np.ones((8, 8), np.float32)
    calls = {
        **of_either("numpy", x, a),
        **of_either("torch", torch.from_numpy(x), torch.from_numpy(a)),
        **others(x, a),
    }
    found = {name: python_calls(call) for name, call in calls.items()}
    more = {name: count for name, count in found.items() if count > MOST[name]}
    assert not more, f"more calls of Python functions than in MOST: {more}"


def test_a_wrapper_shows() -> None:
    def cast(*args: Any, **keywords: Any) -> Any:
        return cpd.cast(*args, **keywords)

    x = np.ones(16, np.float32)
    assert python_calls(lambda: cast(x, "e4m3")) == python_calls(lambda: cpd.cast(x, "e4m3")) + 1
