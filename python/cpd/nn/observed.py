# SPDX-License-Identifier: Apache-2.0
"""Finds what observers measure: layers with products, their weights, recipes and GEMM operands."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy

from cpd.nn.recipe import Recipe

GEMMS = {
    "activation": (("forward", "activation"), ("grad_weight", "grad_weight_activation")),
    "weight": (("forward", "weight"), ("grad_input", "grad_input_weight")),
    "output": (("forward", "output"),),
    "gradient": (("grad_input", "grad_input_gradient"), ("grad_weight", "grad_weight_gradient")),
}
"""Maps the role of a tensor, such as "weight", to pairs: a GEMM that uses the tensor, and the
argument of `cpd.Recipe` that casts the tensor for this GEMM."""

_KINDS = (nn.Linear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention)
_DELAYED = ("activation", "weight", "gradient")
"""The roles of the tensors that may have delayed scales, in the order of `Delayed.scale`."""


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yields the layers with products, each with its name; a shared layer once, no lazy layer."""
    for name, module in model.named_modules():
        if isinstance(module, _KINDS) and not any(map(is_lazy, module.parameters())):
            yield name, module


def weights_of(layer: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yields the weight matrices of a layer, each with its name; "" if there is only one."""
    if isinstance(layer, (nn.Linear, _ConvNd)):
        yield "", layer.weight  # parametrized or not
        return
    for name, weight in layer.named_parameters(recurse=False):
        if "weight" in name and weight.dim() >= 2:
            yield name, weight
    if isinstance(layer, nn.MultiheadAttention):
        yield "out_proj.weight", layer.out_proj.weight


def recipe_of(layer: nn.Module) -> Recipe | None:
    """Returns a layer's present recipe; None if torch computes the layer."""
    state = vars(layer).get("cpd")
    return None if state is None else state.recipe


def multiplier_of(layer: nn.Module, role: str) -> Tensor | None:
    """Returns the delayed scale by which a layer multiplies a tensor in this step.

    Returns None if the layer has no delayed scaling, or separate scales for several products.
    """
    delayed = getattr(layer, "cpd_delayed", None)
    if delayed is None or delayed.products != 1 or role not in _DELAYED:
        return None
    scale: Tensor = delayed.scale
    return scale[_DELAYED.index(role)]


def as_operand(x: Tensor, layer: nn.Module, role: str, gemm: str) -> tuple[Tensor, int]:
    """Reshapes a layer's tensor to an operand of a GEMM.

    Also returns the axis that the GEMM sums over.
    """
    if isinstance(layer, _ConvNd):
        return _of_convolution(x, layer, role, gemm)
    if role == "weight":
        return x, 1 if gemm == "forward" else 0
    rows = x.reshape(-1, x.shape[-1]) if x.dim() else x.reshape(1, 1)
    return rows, 0 if gemm == "grad_weight" else 1


def _of_convolution(x: Tensor, layer: _ConvNd, role: str, gemm: str) -> tuple[Tensor, int]:
    """Reshapes a convolution's tensor to an operand of a GEMM.

    Returns the operand and the axis over which the GEMM sums.

    The convolution's GEMMs sum over the channels of a group. The GEMM of the weight's gradient sums
    over the images of the batch.
    """
    if role == "weight":
        by_rows = (gemm == "forward") == layer.transposed  # the groups are along axis 0
        return (_grouped(x, 0, layer.groups), 1) if by_rows else (x, 1)
    images = x if x.dim() == len(layer.kernel_size) + 2 else x.unsqueeze(0)
    if gemm == "grad_weight":
        return images, 0
    return _grouped(images, 1, layer.groups), 2


def _grouped(x: Tensor, axis: int, groups: int) -> Tensor:
    """Splits an axis of `x` in two: the groups, and the channels within a group."""
    group_size = x.shape[axis] // groups
    return x.reshape(*x.shape[:axis], groups, group_size, *x.shape[axis + 1 :])
