# SPDX-License-Identifier: Apache-2.0
"""Explains a call: reports what it would run, without running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from cpd import _core
from cpd.numeric.numbers import is_torch
from cpd.ops import front_ends
from cpd.ops.explaining import explaining

KNOWN = {
    "cpd.ops.casts": ("cast", "decode", "encode", "hadamard"),
    "cpd.ops.arithmetic": ("add", "div", "fma", "mul", "sqrt"),
    "cpd.ops.sums": ("gemm", "sum"),
    "cpd.nn.functional": ("bilinear", "linear", "matmul"),
    "cpd.nn.convolution": (
        *("conv1d", "conv2d", "conv3d"),
        *("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"),
    ),
    "cpd.comm.virtual": ("simulate_all_reduce",),
}
"""The functions that `explain` knows, by their modules."""
PRODUCTS = ("gemm", "gemm_scaled", "convolve", "correlate", "product_of_bf16", "native_product")
"""The names of steps that are products."""


@dataclass(frozen=True)
class Explanation:
    """The plan of a call: its backend, kernel, path, tile and threads.

    A call of several operations has the fields of its product, or else of its last operation.
    `str()` is a text for reading.

    Attributes:
        name: the operation: `cast`, `gemm`, …; of a layer's products `forward`, `grad_input`,
            `grad_weight`.
        backend: an instruction set (`avx512`, `avx2`, `neon`, `scalar`), a GPU (`cuda:0`), a BLAS
            by its name, `torch` for torch's own kernels, or `portable` for code of no instruction
            set. Empty if nothing runs, as for empty arrays.
        kernel: the backend's function. Empty if nothing runs.
        path: the name of the arithmetic in the table of `cpd/ops/README.md`. `general` is valid for
            all formats, roundings and values.
        tile: the size of a task. Of a product: rows, columns, and products in each sum. Of a scaled
            format: rows and columns. Empty if values are computed in their order.
        threads: the largest number of threads that work at the same time; 1 on a GPU.
        why: the reason why the path is general, or the choice that the values decide. Empty:
            neither.
        products: the matrix products of a layer or of a function of `cpd.functional`; else empty.
        steps: all operations in their order, if there are several; else empty.
    """

    name: str
    backend: str
    kernel: str
    path: str
    tile: tuple[int, ...]
    threads: int
    why: str
    products: tuple[Explanation, ...] = ()
    steps: tuple[Explanation, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as plain data, under the attributes' names."""
        return asdict(self)

    def __str__(self) -> str:
        shown = self.products or self.steps
        lines = [self._line()] if not shown else [f"{self.name}:"]
        lines += [f"  {line}" for part in shown for line in part._line().splitlines()]
        return "\n".join(lines)

    def _line(self) -> str:
        if not self.kernel:
            return f"{self.name}: nothing to run"
        tile = f", tile {' x '.join(map(str, self.tile))}" if self.tile else ""
        threads = f", {self.threads} thread" + ("" if self.threads == 1 else "s")
        threads = "" if self.backend.startswith("cuda") else threads
        line = f"{self.name}: {self.path} ({self.backend} {self.kernel}{tile}{threads})"
        return f"{line}\n  {self.why}" if self.why else line


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Returns the plan of a call, and computes nothing.

    The call's arguments are checked as in the call, and its own dispatch chooses the path. But no
    kernel is called, no result is allocated, and values are not read. Tensors on torch's device
    `meta` stand for tensors on the CPU, so shapes may be of any size. If values decide between
    paths, `why` reports so. A compiled program runs the same kernels.

    Args:
        function: `cpd.cast`, `encode`, `decode`, `add`, `mul`, `fma`, `div`, `sqrt`, `sum`, `gemm`,
            `hadamard` or `simulate_all_reduce`; `matmul`, `linear`, `bilinear` or a convolution of
            `cpd.functional`; or a layer that `cpd.convert` has converted.
        *args: the call's arguments; of a layer its input.
        **kwargs: the call's keywords.

    Returns:
        The plan. A layer's `products` are `forward`, `grad_input` and `grad_weight`. The products
        of a function of `cpd.functional` are the forward product, and the products of the gradients
        that its operands require.

    Raises:
        TypeError: for an unknown function; for a layer that is not converted, or that has several
            products, as attention and recurrent layers have.
        ValueError: as the call raises it, except for errors that depend on values.

    >>> import cpd, numpy as np
    >>> x = np.zeros((256, 256), np.float32)
    >>> cpd.explain(cpd.cast, x, "e4m3").path
    'addition'
    >>> plan = cpd.explain(cpd.cast, x, "e4m3 to_odd")
    >>> plan.path, plan.why
    ('general', 'rounding to_odd has no shorter form here')
    """
    is_layer = hasattr(function, "forward") and hasattr(function, "parameters")
    if not is_layer:
        check_known(function)
    reduces = getattr(function, "__module__", "") == "cpd.comm.virtual"
    if is_layer or (not reduces and any(map(is_torch, _leaves((args, kwargs))))):
        with explaining():
            result: Explanation = front_ends.on_tensors().explain(function, args, kwargs)
            return result
    scope = _core.Explaining()
    with explaining():
        scope.enter()
        try:
            function(*args, **kwargs)
        finally:
            steps = scope.exit()
    return explanation(step_of(step) for step in steps)


def check_known(function: Any) -> None:
    """Raises TypeError unless `explain` knows the function."""
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
    if name in KNOWN.get(module, ()):
        return
    names = sorted(name for names in KNOWN.values() for name in names)
    label = name or type(function).__name__
    raise TypeError(
        f"explain knows {', '.join(names)}, and layers that cpd.convert has converted, got {label}"
    )


def step_of(fields: dict[str, Any]) -> Explanation:
    """One operation's explanation from the fields of the native one."""
    return Explanation(**fields)


def explanation(steps: Any, products: tuple[Explanation, ...] = ()) -> Explanation:
    """Returns the explanation of a call with these steps, in their order."""
    steps = tuple(steps)
    heads = products or tuple(s for s in steps if s.name in PRODUCTS) or steps
    if not heads:
        return Explanation("", "", "", "", (), 1, "")
    head = heads[0] if products else heads[-1]
    return replace(head, products=products, steps=steps if len(steps) > 1 else ())


def _leaves(x: Any) -> list[Any]:
    """Returns the values within tuples, lists and dictionaries."""
    if isinstance(x, dict):
        x = list(x.values())
    if not isinstance(x, (tuple, list)):
        return [x]
    return [leaf for item in x for leaf in _leaves(item)]
