# SPDX-License-Identifier: Apache-2.0
"""Runs TransformerEngine's modules with CPD's recipes, as a TransformerEngine `CustomRecipe`.

    import transformer_engine.pytorch as te
    from cpd.compat.transformer_engine import custom_recipe

    with te.autocast(enabled=True, recipe=custom_recipe(recipe)):
        y = model(x)

TransformerEngine gets a quantizer for each tensor of a module from a factory, and lets the
quantizers compute the products. This module's quantizers cast tensors as `cpd.functional.linear`
does: scaled blocks run along the axis that a GEMM sums over. The cast values are stored in the
tensor's own type. The quantizers then sum products as the recipe says. So TransformerEngine's
modules run in any format, also on a GPU without FP8 units. Only a linear layer's three GEMMs are
emulated, not attention's products, and not a module's outputs in FP8.

The module is written for TransformerEngine 2.20, whose interface for custom recipes is
experimental. It can be imported without TransformerEngine; its first use then raises RuntimeError.
"""

# mypy can check uses of TransformerEngine's classes only where TransformerEngine is installed.
# mypy: disable-error-code="no-any-return,misc,name-defined"

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cpd import ops
from cpd._torch.arguments import call_numbers, name_of
from cpd._torch.operands import cast_operand
from cpd.nn.clock import SHIFT
from cpd.nn.recipe import NATIVE, Recipe, RecipeLike, as_recipe
from cpd.numeric.cast import Cast
from cpd.numeric.checked import checked
from cpd.ops.arguments import holds

__all__ = ["custom_recipe", "qfactory"]

OPERANDS = {
    "input": ("activation", "grad_weight_activation"),
    "weight": ("weight", "grad_input_weight"),
    "grad_output": ("grad_input_gradient", "grad_weight_gradient"),
}
"""Maps TransformerEngine's name of a tensor to the recipe's names of the tensor as an operand.

The first name is for the GEMM that sums over the tensor's columns ('rowwise'), the second for the
GEMM that sums over its rows ('columnwise').
"""
SUMS = {"fprop": "forward", "dgrad": "grad_input", "wgrad": "grad_weight"}


@checked
def custom_recipe(recipe: RecipeLike, **options: Any) -> Any:
    """Returns a TransformerEngine `CustomRecipe` that emulates a recipe of CPD.

    Args:
        recipe: a `cpd.Recipe`, or a recipe's name or text.
        **options: further arguments of TransformerEngine's `CustomRecipe`.

    Returns:
        The `CustomRecipe`, for `te.autocast`.

    Raises:
        RuntimeError: if transformer_engine cannot be imported.
        ValueError: for an invalid recipe, or a recipe with delayed scaling.
    """
    factory = qfactory(recipe)
    return _engine("transformer_engine.common.recipe").CustomRecipe(qfactory=factory, **options)


@checked
def qfactory(recipe: RecipeLike) -> Callable[[Any], Any]:
    """Returns a factory of quantizers that emulate a recipe of CPD.

    The factory takes a role: a TransformerEngine `QuantizerRole`, or a text such as `linear_input`.
    It returns a quantizer for the tensor of that role. Inputs, weights and output gradients of
    linear layers are cast; tensors of other roles are not. The factory raises RuntimeError if
    transformer_engine cannot be imported.

    Args:
        recipe: a `cpd.Recipe`, or a recipe's name or text.

    Returns:
        The factory, the argument `qfactory` of TransformerEngine's `CustomRecipe`.

    Raises:
        ValueError: for an invalid recipe, or a recipe with delayed scaling. TransformerEngine
            stores the state of delayed scaling only for its own recipes.

    >>> import cpd
    >>> qfactory(cpd.Recipe(sums="e6m9 kahan"))
    cpd.compat.transformer_engine.qfactory(cpd.Recipe("native sums='e6m9 kahan'"))
    """
    resolved = as_recipe(recipe)
    if resolved._kept.delays:
        raise ValueError(
            "a recipe with a history needs state in each layer, which TransformerEngine keeps only "
            "for its own DelayedScaling: use that one, or cpd.convert"
        )
    return _Factory(resolved)


@dataclass(frozen=True, repr=False)
class _Factory:
    """The factory that `qfactory` returns."""

    how: Recipe

    def __call__(self, role: Any) -> Any:
        tensor_type = getattr(role, "tensor_type", role) or ""
        kind = str(tensor_type).removeprefix("linear_")
        if getattr(role, "module_type", "linear") not in ("", "linear", "grouped_linear"):
            kind = ""
        along_rows, along_columns = OPERANDS.get(kind, (None, None))
        return _classes()[0](
            self.how,
            None if along_rows is None else self.how._operand(along_rows),
            None if along_columns is None else self.how._operand(along_columns),
        )

    def __repr__(self) -> str:
        return f"cpd.compat.transformer_engine.qfactory({self.how!r})"


# ---- casts and products --------------------------------------------------------------------------


def _cast(x: Tensor, spec: Cast | None, axis: int, call: int) -> Tensor:
    """Returns `x` cast as an operand of a GEMM that sums over axis `axis` of `x`.

    `call` is the number of the tensor that the quantizer casts; it selects the random bits.
    """
    if spec is None:
        return x
    numbers = call_numbers(spec, 0, call << SHIFT, x)
    return cast_operand(x, spec.text, axis, numbers)


def _unfactored(spec: Cast | None, x: Tensor) -> Tensor:
    """Returns 1/factor of a cast, as a tensor of one element on x's device.

    A product of the operand is multiplied by this number, which undoes the cast's factor.
    """
    factor = 1.0 if spec is None else spec.factor
    return torch.full((1,), 1 / factor, device=x.device)


def _product(recipe: Recipe, gemm: str, x: Tensor, w: Tensor, dtype: torch.dtype) -> Tensor:
    """Returns x · wᵀ in the type `dtype`; the recipe's accumulator for `gemm` adds the products."""
    acc = getattr(recipe, SUMS[gemm])
    if acc == NATIVE:
        return (x @ w.mT).to(dtype)
    held = dtype if holds(name_of(dtype), acc.format.name) else torch.float32
    return ops.gemm(x, w.mT, acc, dtype=held).to(dtype)


# ---- subclasses of TransformerEngine's classes, defined at their first use -----------------------


def _engine(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RuntimeError(
            "cpd.compat.transformer_engine needs TransformerEngine 2.20 or newer "
            f"(https://github.com/NVIDIA/TransformerEngine), and cannot import it: {error}"
        ) from error


@functools.cache
def _classes() -> tuple[type, type]:
    """Returns two subclasses of TransformerEngine's classes: the quantizers and their tensors."""
    base = _engine("transformer_engine.pytorch.quantized_tensor")

    class Emulated(base.QuantizedTensorStorage):
        """The values of a tensor, cast twice: as an operand of two GEMMs.

        `data` (rows × columns) is for the GEMM that sums over the tensor's columns. `data_t`
        (columns × rows) is transposed, for the GEMM that sums over the tensor's rows.
        """

        custom = True

        data: Tensor | None
        data_t: Tensor | None
        scale: Tensor | None
        scale_t: Tensor | None

        def __init__(self, x: Tensor, quantizer: Any) -> None:
            self.data = self.data_t = self.scale = self.scale_t = None
            self._quantizer = quantizer
            self.fill(x)

        def fill(self, x: Tensor) -> None:
            """Casts the values of `x` and stores them in this tensor."""
            self.original_shape, self.dtype, self.device = x.shape, x.dtype, x.device
            quantizer, rows = self._quantizer, x.detach().reshape(-1, x.shape[-1])
            call = quantizer.count()
            if quantizer.rowwise_usage:
                self.data = _cast(rows, quantizer.along_rows, -1, call)
                self.scale = _unfactored(quantizer.along_rows, x)
            if quantizer.columnwise_usage:
                self.data_t = _cast(rows, quantizer.along_columns, 0, call).t().contiguous()
                self.scale_t = _unfactored(quantizer.along_columns, x)

        def prepare_for_saving(self) -> tuple[list[Tensor | None], Any]:
            tensors = [self.data, self.data_t, self.scale, self.scale_t]
            self.data = self.data_t = self.scale = self.scale_t = None
            return tensors, self

        def restore_from_saved(self, tensors: list[Tensor | None]) -> list[Tensor | None]:
            self.data, self.data_t, self.scale, self.scale_t = tensors[:4]
            return tensors[4:]

        def update_usage(
            self, rowwise_usage: bool | None = None, columnwise_usage: bool | None = None
        ) -> None:
            """Deletes `data` if `rowwise_usage` is False, and `data_t` if `columnwise_usage` is.

            Raises RuntimeError if one of the two is missing although its usage is True. It cannot
            be made from the other one, because a second cast would round cast values again.
            """
            for usage, name in ((rowwise_usage, "data"), (columnwise_usage, "data_t")):
                if usage and getattr(self, name) is None:
                    raise RuntimeError(f"{name} of an emulated tensor was not asked for in time")
                if usage is False:
                    setattr(self, name, None)

        def dequantize(self, *, dtype: torch.dtype | None = None) -> Tensor:
            if self.data is None or self.scale is None:
                raise RuntimeError("an emulated tensor has no values by its rows any more")
            values = (self.data * self.scale).reshape(self.original_shape)
            return values.to(dtype or self.dtype)

        def size(self, *args: Any) -> Any:
            shape = self.original_shape
            flat = torch.Size([math.prod(shape[:-1]), shape[-1]])
            return flat[args[0]] if args else flat

        def __repr__(self) -> str:
            return f"Emulated({tuple(self.original_shape)}, {self._quantizer})"

    class EmulatingQuantizer(base.Quantizer):
        """A quantizer that casts tensors and computes products as a recipe says."""

        custom = True
        supports_allgather_fp8 = False

        def __init__(
            self, how: Recipe, along_rows: Cast | None, along_columns: Cast | None
        ) -> None:
            super().__init__(rowwise=True, columnwise=True)
            self.internal = True
            self.how, self.along_rows, self.along_columns = how, along_rows, along_columns
            self.with_amax_reduction, self.amax_reduction_group = False, None
            self._calls = 0

        def count(self) -> int:
            """Counts a tensor that this quantizer casts and returns its number, from 1."""
            self._calls += 1
            return self._calls

        def quantize(self, tensor: Tensor, **options: Any) -> Any:
            out = options.get("out")
            return Emulated(tensor, self) if out is None else self.update_quantized(tensor, out)

        quantize_impl = quantize

        def update_quantized(
            self, src: Tensor, dst: Any, *, noop_flag: Tensor | None = None
        ) -> Any:
            if noop_flag is None or noop_flag.item() == 0:
                dst.fill(src)
            return dst

        def make_empty(
            self,
            shape: Any,
            *,
            dtype: torch.dtype = torch.float32,
            device: Any = None,
            **options: Any,
        ) -> Any:
            return Emulated(torch.zeros(shape, dtype=dtype, device=device or "cuda"), self)

        def calibrate(self, tensor: Tensor) -> None:
            """Does nothing: these quantizers have no state that calibration could set."""

        def _get_compatible_recipe(self) -> Any:
            return _engine("transformer_engine.common.recipe").CustomRecipe

        def qgemm(
            self,
            qx: Tensor,
            qw: Tensor,
            m_params: Any,
            out_dtype: torch.dtype,
            sx: Tensor,
            sw: Tensor,
            bias: Tensor | None = None,
            out: Tensor | None = None,
            accumulate: bool = False,
            gemm_type: Any = None,
            **operands: Any,
        ) -> Tensor:
            """Returns (qx · qwᵀ) · sx · sw + bias, in the type `out_dtype`.

            qx and qw are the cast operands. Each cast multiplies by a factor; sx and sw are the
            reciprocals of the two factors. If `out` is given, stores the result there or, with
            `accumulate`, adds it to `out`.
            """
            y = _product(self.how, getattr(gemm_type, "value", "fprop"), qx, qw, out_dtype)
            y = (y * (sx * sw)).to(out_dtype)
            if bias is not None and bias.numel():
                y = y + bias.to(out_dtype)
            return y if out is None else out.add_(y) if accumulate else out.copy_(y)

        def __repr__(self) -> str:
            return f"EmulatingQuantizer({self.how!r})"

    return EmulatingQuantizer, Emulated
