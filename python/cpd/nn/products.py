# SPDX-License-Identifier: Apache-2.0
"""`macs`: counts the multiply-accumulates of a call of an operation of torch or CPD.

Matrix products, convolutions, attention and recurrent layers are counted.
"""

# Relaxes mypy's checks: torch's registries have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import flop_registry


def macs(operation: Any, args: Sequence[Any], kwargs: dict[str, Any], result: Any) -> int | None:
    """Returns the number of multiply-accumulates of one call of an operation in torch.ops.

    The addition of a bias is not counted. Returns None if the operation is not a product.
    """
    packet = _packet(operation)
    name = getattr(packet, "_qualified_op_name", "")
    if name in _MACS:
        return _MACS[name](result, *args, **kwargs)
    if not name.startswith("cpd::") and packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=result)) // 2
    return None


def is_product(operation: Any) -> bool:
    """Returns True if an operation (an overload in torch.ops) is a product."""
    packet = _packet(operation)
    return getattr(packet, "_qualified_op_name", "") in _MACS or packet in flop_registry


def name_of(operation: Any) -> str:
    """Returns an operation's name without its overload, such as "aten.mm" or "flex_attention"."""
    return str(_packet(operation))


def _packet(operation: Any) -> Any:
    """Returns the operation of an overload.

    Returns a higher-order operation (flex_attention) as it is.
    """
    return getattr(operation, "_overloadpacket", operation)


def is_ours(operation: Any) -> bool:
    """Returns True if an operation is CPD's own, which computes by a recipe or an accumulator."""
    return getattr(operation, "namespace", "") == "cpd"


# ---- matrices ------------------------------------------------------------------------------------


def _terms(result: Tensor, left: Tensor) -> int:
    """Counts a matrix product: each element of the result is a sum over the columns of `left`."""
    return result.numel() * left.shape[-1]


def _ours(result: Tensor, left: Tensor, *rest: Any, **kwargs: Any) -> int | None:
    """Counts a matrix product of CPD.

    Returns None for the gradient of a bias, whose left operand is a broadcast row of ones.
    """
    return None if left.stride(-1) == 0 and left.shape[-2] == 1 else _terms(result, left)


def _second(result: Tensor, c: Any, left: Tensor, *rest: Any, **kwargs: Any) -> int:
    return _terms(result, left)


def _first(result: Tensor, left: Tensor, *rest: Any, **kwargs: Any) -> int:
    return _terms(result, left)


def _batch_summed(result: Tensor, c: Any, left: Tensor, *rest: Any, **kwargs: Any) -> int:
    return _terms(result, left) * left.shape[0]


def _grouped(result: Tensor, left: Tensor, right: Tensor, *rest: Any, **kwargs: Any) -> int:
    """Counts grouped matrix products. For two matrices, groups are ranges of the summed axis."""
    if left.dim() == right.dim() == 2:
        return left.shape[0] * left.shape[1] * right.shape[1]
    return _terms(result, left)


def _both(result: Any, x: Tensor, g: Tensor, w: Tensor, mask: Sequence[bool]) -> int:
    """Counts a linear layer's backward pass: the gradients of input and weight that are needed."""
    return sum(mask[:2]) * g.numel() * x.shape[-1]


# ---- sparse matrices -----------------------------------------------------------------------------


def _sparse(result: Tensor, left: Tensor, right: Tensor, *rest: Any, **kwargs: Any) -> int:
    """Counts the product of a sparse and a dense matrix."""
    return left._nnz() * right.shape[-1]


def _sparse_second(result: Tensor, c: Any, left: Tensor, right: Tensor, **kwargs: Any) -> int:
    return _sparse(result, left, right)


def _both_sparse(result: Tensor, left: Tensor, right: Tensor) -> int:
    """Counts the product of two sparse matrices: only products of two stored values."""
    columns, rows = (x.to_sparse_coo().coalesce().indices() for x in (left, right))
    return int(torch.bincount(rows[0], minlength=right.shape[0])[columns[1]].sum())


def _sampled(result: Tensor, c: Any, left: Tensor, *rest: Any, **kwargs: Any) -> int:
    return result._nnz() * left.shape[-1]


# ---- convolutions --------------------------------------------------------------------------------


def _slid(images: Sequence[int], w: Sequence[int]) -> int:
    """Returns the multiply-accumulates of a convolution.

    `images` is the shape of a convolution's result, or of a transposed convolution's input. Each
    pixel of each image in the batch is multiplied once by the kernels of its group.
    """
    return images[0] * math.prod(images[2:]) * math.prod(w)


def _convolution(result: Tensor, x: Tensor, w: Tensor, *rest: Any, **kwargs: Any) -> int:
    transposed = rest[4] if len(rest) > 4 else kwargs.get("transposed", False)
    return _slid((x if transposed else result).shape, w.shape)


def _functional_convolution(result: Tensor, x: Tensor, w: Tensor, *rest: Any, **kw: Any) -> int:
    return _slid(result.shape, w.shape)


def _convolution_backward(result: Any, g: Tensor, x: Tensor, w: Tensor, *rest: Any) -> int:
    transposed, mask = rest[4], rest[-1]
    return sum(mask[:2]) * _slid((x if transposed else g).shape, w.shape)


def _convolution_input(result: Tensor, g: Tensor, w: Tensor, *rest: Any) -> int:
    transposed = rest[5]
    return _slid((result if transposed else g).shape, w.shape)


def _convolution_weight(result: Tensor, g: Tensor, x: Tensor, *rest: Any) -> int:
    transposed = rest[5]
    return _slid((x if transposed else g).shape, result.shape)


# ---- attention and recurrence --------------------------------------------------------------------


def _attention(result: Any, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **kwargs: Any) -> int:
    """Counts attention's two products: query · keyᵀ, and weights · value."""
    scores = q.numel() // q.shape[-1] * k.shape[-2]
    return scores * (q.shape[-1] + v.shape[-1])


def _attention_backward(
    result: Any, g: Tensor, q: Tensor, k: Tensor, v: Tensor, *rest: Any, **kwargs: Any
) -> int:
    """Counts the five products of attention's backward pass.

    The products are the recomputed scores, and the gradients of weights, value, query and key.
    """
    scores = q.numel() // q.shape[-1] * k.shape[-2]
    return scores * (3 * q.shape[-1] + 2 * v.shape[-1])


def _recurrent_layer(
    result: Any, x: Tensor, of_input: Tensor, of_hidden: Tensor, *rest: Any
) -> int:
    steps = x.numel() // x.shape[-1]
    return steps * (of_input.numel() + of_hidden.numel())


def _recurrent(result: Any, x: Tensor, weights: Sequence[Tensor], *rest: Any) -> int:
    steps = x.numel() // x.shape[-1]
    return steps * sum(w.numel() for w in weights if w.dim() == 2)


def _twice(forward: Callable[..., int]) -> Callable[..., int]:
    """Returns a function that counts a backward pass as two forward passes.

    The two passes stand for the gradients of the input and of the weight.
    """
    return lambda *args, **kwargs: 2 * forward(*args, **kwargs)


def _trilinear(result: Tensor, first: Tensor, second: Tensor, third: Tensor, *rest: Any) -> int:
    """Counts torch.nn.functional.bilinear: x1 times the weight, and that product times x2."""
    samples = result.numel() // result.shape[-1]
    return samples * (math.prod(second.shape[-3:]) + second.shape[-3] * third.shape[-1])


_MACS: dict[str, Callable[..., int | None]] = {
    "cpd::matmul": _first,
    "cpd::gemm": _ours,
    "cpd::gemm_plain": _ours,
    "cpd::gemm_scaled": _first,
    "cpd::convolution": _convolution,
    "cpd::convolution_input": _convolution_input,
    "cpd::convolution_weight": _convolution_weight,
    "aten::mv": _first,
    "aten::dot": _first,
    "aten::vdot": _first,
    "aten::matmul": _first,
    "aten::linear": _first,
    "aten::_sparse_addmm": _sparse_second,
    "aten::_sparse_sparse_matmul": _both_sparse,
    "aten::hspmm": _sparse,
    "aten::sparse_sampled_addmm": _sampled,
    "aten::sspaddmm": _sparse_second,
    "aten::addmv": _second,
    "aten::addbmm": _batch_summed,
    "aten::_addmm_activation": _second,
    "aten::_int_mm": _first,
    "aten::_grouped_mm": _grouped,
    "aten::_scaled_grouped_mm": _grouped,
    "aten::_trilinear": _trilinear,
    "aten::_cdist_forward": _first,
    "aten::linear_backward": _both,
    "aten::convolution": _convolution,
    "aten::convolution_backward": _convolution_backward,
    "aten::conv1d": _functional_convolution,
    "aten::conv2d": _functional_convolution,
    "aten::conv3d": _functional_convolution,
    "aten::scaled_dot_product_attention": _attention,
    "aten::_scaled_dot_product_attention_math": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention_for_cpu_backward": _attention_backward,
    "aten::_scaled_dot_product_fused_attention_overrideable": _attention,
    "aten::_scaled_dot_product_fused_attention_overrideable_backward": _attention_backward,
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _twice(_recurrent_layer),
    "aten::_cudnn_rnn": _recurrent,
    "aten::_cudnn_rnn_backward": _twice(_recurrent),
}
"""Functions that count operations which torch.utils.flop_counter does not count."""
