# SPDX-License-Identifier: Apache-2.0
"""Functions of torch whose products, sums and results are rounded as a recipe says.

A recipe gives the casts and the sums; `sums=` alone gives the sums of native products.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from cpd import _Number, _RecipeLike, _Sums

_Single: TypeAlias = int | tuple[int]
_Pair: TypeAlias = int | tuple[int, int]
_Triple: TypeAlias = int | tuple[int, int, int]

def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `batch_norm` as a recipe says."""

def bilinear(
    input1: Tensor,
    input2: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `bilinear` as a recipe says."""

def conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Single = 1,
    padding: _Single | str = 0,
    dilation: _Single = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv1d` as a recipe says."""

def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Pair = 1,
    padding: _Pair | str = 0,
    dilation: _Pair = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv2d` as a recipe says."""

def conv3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Triple = 1,
    padding: _Triple | str = 0,
    dilation: _Triple = 1,
    groups: int = 1,
    *,
    padding_mode: str = "zeros",
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv3d` as a recipe says."""

def conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Single = 1,
    padding: _Single = 0,
    output_padding: _Single = 0,
    groups: int = 1,
    dilation: _Single = 1,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv_transpose1d` as a recipe says."""

def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Pair = 1,
    padding: _Pair = 0,
    output_padding: _Pair = 0,
    groups: int = 1,
    dilation: _Pair = 1,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv_transpose2d` as a recipe says."""

def conv_transpose3d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: _Triple = 1,
    padding: _Triple = 0,
    output_padding: _Triple = 0,
    groups: int = 1,
    dilation: _Triple = 1,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `conv_transpose3d` as a recipe says."""

def embedding(
    input: Tensor,
    weight: Tensor,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `embedding` as a recipe says."""

def group_norm(
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `group_norm` as a recipe says."""

def grouped_mm(
    mat_a: Tensor,
    mat_b: Tensor,
    *,
    offs: Tensor | None = None,
    bias: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `grouped_mm` as a recipe says."""

def gru(
    input: Tensor,
    hx: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    batch_sizes: Tensor | None = None,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch's `gru` as a recipe says."""

def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `gru_cell` as a recipe says."""

def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-05,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `instance_norm` as a recipe says."""

def layer_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-05,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `layer_norm` as a recipe says."""

def linear(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `linear` as a recipe says."""

def lstm(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    weights: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    batch_sizes: Tensor | None = None,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes torch's `lstm` as a recipe says."""

def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch's `lstm_cell` as a recipe says."""

def matmul(
    a: Tensor,
    b: Tensor,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `matmul` as a recipe says."""

def multi_head_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """Computes torch's `multi_head_attention` as a recipe says."""

def rms_norm(
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Computes torch's `rms_norm` as a recipe says."""

def rnn(
    input: Tensor,
    hx: Tensor,
    weights: Sequence[Tensor],
    has_biases: bool = True,
    num_layers: int = 1,
    dropout: float = 0.0,
    training: bool = False,
    bidirectional: bool = False,
    batch_first: bool = False,
    *,
    batch_sizes: Tensor | None = None,
    nonlinearity: str = "tanh",
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch's `rnn` as a recipe says."""

def rnn_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    nonlinearity: str = "tanh",
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `rnn_cell` as a recipe says."""

def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    recipe: _RecipeLike | None = None,
    sums: _Sums | None = None,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch's `scaled_dot_product_attention` as a recipe says."""
