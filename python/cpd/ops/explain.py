# SPDX-License-Identifier: Apache-2.0
"""Explains a call: reports the kernels that the call would run, without running them."""

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
"""The names of the functions that `explain` supports, by module."""
PRODUCTS = ("gemm", "gemm_scaled", "convolve", "correlate", "product_of_bf16", "native_product")
"""The values of `Explanation.name` that are matrix products or convolutions."""


@dataclass(frozen=True)
class Explanation:
    """The plan of a call: its backend, kernel, path, tile and threads.

    The plan of a call with several operations has the fields of the call's matrix product, or else
    of its last operation. `str()` returns a readable text.

    Attributes:
        name: the operation: `cast`, `gemm`, …; for the products of a layer `forward`, `grad_input`
            or `grad_weight`.
        backend: an instruction set (`avx512`, `avx2`, `neon`, `scalar`), a GPU (`cuda:0`), a BLAS
            by its name, `torch` for torch's own kernels, or `portable` for code that needs no
            particular instruction set. Empty if nothing runs, for example for empty arrays.
        kernel: the name of the backend's function. Empty if nothing runs.
        path: the name of the method of computation, from the table in `cpd/ops/README.md`.
            `general` is the method for all formats, roundings and values; other paths are faster.
        tile: the size of the tile that a thread computes at a time. For a matrix product: rows,
            columns, and products in each sum. For a scaled format: rows and columns. Empty if
            values are computed one after another.
        threads: the largest number of threads that work at the same time; 1 on a GPU.
        why: the reason why the path is `general`, or the choice between paths that depends on
            values. Empty if neither applies.
        products: the plans of the matrix products of a layer or of a function of `cpd.functional`;
            else empty.
        steps: the plans of all operations in their order, if the call has several; else empty.
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
        """Returns the explanation as a dict with the attributes' names as keys."""
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
    """Returns the plan of a call without computing it.

    Arguments are checked as in the call, and the call's own dispatch chooses the path. But no
    kernel runs, no result is allocated, and values are not read. Tensors on torch's device `meta`
    stand for tensors on the CPU, so that shapes can be of any size. If the choice between paths
    depends on values, `why` says so. A program compiled by torch.compile runs the same kernels.

    Args:
        function: `cpd.cast`, `encode`, `decode`, `add`, `mul`, `fma`, `div`, `sqrt`, `sum`, `gemm`,
            `hadamard` or `simulate_all_reduce`; `matmul`, `linear`, `bilinear` or a convolution of
            `cpd.functional`; or a layer that `cpd.convert` has converted.
        *args: the call's positional arguments; for a layer its input.
        **kwargs: the call's keyword arguments.

    Returns:
        The plan. A layer's `products` are `forward`, `grad_input` and `grad_weight`. The products
        of a function of `cpd.functional` are the forward product, and the products of the gradients
        that its operands require.

    Raises:
        TypeError: for an unknown function; for a layer that is not converted, or that has several
            products, as attention and recurrent layers have.
        ValueError: for arguments for which the call itself raises it, except for errors that depend
            on values.

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
    """Raises TypeError unless `explain` supports the function."""
    name, module = getattr(function, "__name__", ""), getattr(function, "__module__", "")
    if name in KNOWN.get(module, ()):
        return
    names = sorted(name for names in KNOWN.values() for name in names)
    label = name or type(function).__name__
    raise TypeError(
        f"explain knows {', '.join(names)}, and layers that cpd.convert has converted, got {label}"
    )


def step_of(fields: dict[str, Any]) -> Explanation:
    """Makes the explanation of one operation from the fields that C++ reports."""
    return Explanation(**fields)


def explanation(steps: Any, products: tuple[Explanation, ...] = ()) -> Explanation:
    """Combines the explanations of a call's operations, in order, into one explanation."""
    steps = tuple(steps)
    heads = products or tuple(s for s in steps if s.name in PRODUCTS) or steps
    if not heads:
        return Explanation("", "", "", "", (), 1, "")
    head = heads[0] if products else heads[-1]
    return replace(head, products=products, steps=steps if len(steps) > 1 else ())


def _leaves(x: Any) -> list[Any]:
    """Returns the values in nested tuples, lists and dicts as a flat list."""
    if isinstance(x, dict):
        x = list(x.values())
    if not isinstance(x, (tuple, list)):
        return [x]
    return [leaf for item in x for leaf in _leaves(item)]
