# SPDX-License-Identifier: Apache-2.0
"""Replaces transformers' flex_attention by scaled_dot_product_attention with a dense mask.

A converted module computes torch's scaled_dot_product_attention by its recipe. So all attention
implementations of transformers give the same bits.
"""

from __future__ import annotations

import copy
from typing import Any

import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_mask

NAME = "cpd_dense"


def config_of(config: Any) -> Any:
    """Returns a copy of a module's configuration that makes its forward call `attend`."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    if NAME not in ALL_ATTENTION_FUNCTIONS:
        ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    new_config = copy.copy(config)
    new_config._attn_implementation = NAME
    return new_config


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Any,
    scaling: float | None = None,
    dropout: float = 0.0,
    **rest: Any,
) -> tuple[Tensor, None]:
    """Computes attention by torch's scaled_dot_product_attention.

    Has the arguments and results of an attention function of transformers. Raises ValueError if
    softcap, s_aux or position_bias is given: flex_attention computes these in a score function,
    which is not emulated. Modules that use these arguments are emulated if their attention
    implementation is "eager".
    """
    further = [name for name in ("softcap", "s_aux", "position_bias") if rest.get(name) is not None]
    if further:
        raise ValueError(
            f"flex_attention with {further[0]} is not emulated: choose attn_implementation='eager'"
        )
    mask = attention_mask
    if isinstance(mask, BlockMask):
        mask = create_mask(mask.mask_mod, *_shape(mask, query, key), device=query.device)
    y = F.scaled_dot_product_attention(
        query, key, value, mask, dropout if module.training else 0.0, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return y.transpose(1, 2).contiguous(), None


def _shape(mask: BlockMask, query: Tensor, key: Tensor) -> tuple[int, int, int, int]:
    batch, heads = mask.shape[:2]
    return batch, heads, query.shape[-2], key.shape[-2]
