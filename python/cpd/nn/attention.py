# SPDX-License-Identifier: Apache-2.0
"""torch's attention functions, with products and softmax computed as a recipe says.

`scaled_dot_product_attention` has three steps, defined by `recipe.attention` and `recipe.softmax`:

1. Scores: query · keyᵀ. If the operands' type cannot represent the sums, the sums are in float32.
The scores are rounded to the attention recipe's `output`, if it has one, and multiplied by `scale`.
Then the mask is added, in float32. The mask is -inf where a boolean mask is False, and above the
diagonal if `is_causal`.
2. Weights: the softmax of each row, in float32, rounded once by `recipe.softmax`. In the backward
pass, the gradient of the weights is rounded in the same way. The weights are float32 if the
attention recipe casts them, else in the query's type. Then dropout is applied.
3. The result: weights · value, in the query's type, or torch.autocast's.

In the two products, the query and the attention weights have the casts of a recipe's `activation`;
the key and the value have the casts of its `weight`. The attention recipe casts each operand of the
forward and backward GEMMs. If the recipe has neither `attention` nor `softmax`, torch's function
computes everything. If it has only `softmax`, torch computes the products.

`multi_head_attention` adds the projections of query, key and value before the attention, and the
projection of the output after it. Each projection is a `cpd.functional.linear` by the recipe
itself. As in torch, the input's projections are one product if query, key and value are the same
tensor. They are two products if only key and value are the same tensor, and otherwise three.

Each product takes random bits from the stream XOR its position: 0 for the scores, 1 for the
weighted values, 2 for the softmax. In `multi_head_attention` these three have the positions 4, 5
and 6. The projections of query, key and value have the positions 0, 1 and 2, and the projection of
the output has position 3. Dropout takes random numbers from torch's generator.

All functions work under autograd, `torch.func` and `torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.functional import _mha_shape_check  # type: ignore[attr-defined]

from cpd._torch import operators
from cpd._torch.kept import kept
from cpd._torch.rounding import rounded
from cpd.nn.arguments import autocast_type, check_operand, check_types, recipe_of
from cpd.nn.delayed import at as delayed_at
from cpd.nn.delayed import attending_at
from cpd.nn.functional import linear, matmul
from cpd.nn.recipe import Recipe, RecipeLike, Sums
from cpd.nn.streams import Bits
from cpd.numeric.cast import element_of
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number
from cpd.ops.arguments import check_storage

SCORES, VALUES, SOFTMAX = 0, 1, 2
QUERY, KEY, VALUE, OUTPUT, HEADS = 0, 1, 2, 3, 4
"""Positions of the steps of a call: the random stream of a step is the call's stream XOR its
position. The steps of an attention have positions 0 to 2. In multi_head_attention, the projections
have positions 0 to 3, and the steps of its attention have positions 4 to 6."""


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.functional.scaled_dot_product_attention by a recipe.

    A row of the result is zero if the mask excludes all keys, as in torch.

    Args:
        query: a tensor of shape … × L × E.
        key: a tensor of shape … × S × E.
        value: a tensor of shape … × S × F.
        attn_mask: as in torch; default None.
        dropout_p: as in torch, with torch's own random numbers; default 0.
        is_causal: as in torch; default False.
        scale: the factor of the scores; default None: 1/√E.
        enable_gqa: as in torch; default False.
        recipe: a `cpd.Recipe`, whose `attention` and `softmax` are used; or a recipe's name or
            text, or a format for both products' operands. Default None: operands are not cast, and
            `sums` must be given.
        sums: the sums of both products and their backward GEMMs, as for `cpd.Recipe`; default None:
            the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the query's.
        delayed: the state of the attention's delayed scaling, a `cpd.nn.delayed.Delayed.of(recipe,
            0, 2)`; default None.

    Returns:
        The result, of shape … × L × F.

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> q = k = torch.eye(2)
    >>> how = cpd.Recipe(attention=cpd.Recipe(sums="e4m3"), softmax="(4,3)")
    >>> scaled_dot_product_attention(q, k, torch.eye(2), recipe=how)    # 0.6698 and 0.3302
    tensor([[0.6875, 0.3438],
            [0.3438, 0.6875]])
    """
    call_recipe = _attending(recipe, sums)
    if call_recipe.attention is None and call_recipe.softmax is None:
        y = F.scaled_dot_product_attention(
            query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
        )
        return y if dtype is None else y.to(dtype)
    _check(query, key, value, attn_mask, is_causal)
    if enable_gqa:
        key, value = _for_each_head("key", key, query), _for_each_head("value", value, query)
    factor = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    mask = attn_mask
    if is_causal:
        mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    bits = Bits.of(call_recipe, seed, stream)
    zeros = attn_mask is not None  # no other row can be empty
    weights = _weights(query, key, mask, factor, call_recipe, bits, delayed, zeros)
    weights = F.dropout(weights, dropout_p) if dropout_p else weights
    return _weighted(weights, value, query, call_recipe, bits, delayed, dtype)


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    dtype: torch.dtype | None = None,
    delayed: Any = None,
) -> tuple[Tensor, Tensor | None]:
    """Computes torch.nn.functional.multi_head_attention_forward by a recipe.

    torch.nn.MultiheadAttention calls this function. Masks are as in torch: a boolean mask is True
    for the keys that are excluded.

    Args:
        query: L × N × E (or L × E).
        key: S × N × … (or S × …).
        value: S × N × … (or S × …).
        embed_dim_to_check: the size E of the embedding.
        num_heads: the number of heads.
        in_proj_weight: the weights of the three projections in one tensor, 3 E × E, or None.
        in_proj_bias: the biases of the three projections, 3 E values, or None.
        bias_k: a learned key that is appended to the keys, 1 × 1 × E, or None.
        bias_v: a learned value that is appended to the values, 1 × 1 × E, or None.
        add_zero_attn: whether a key and a value of zeros are appended.
        dropout_p: as in torch, with torch's own random numbers.
        out_proj_weight: the weight of the output's projection, E × E.
        out_proj_bias: the bias of the output's projection, E values, or None.
        training: whether dropout is applied; default True.
        key_padding_mask: a mask of keys, N × S; default None.
        need_weights: whether the attention weights are returned; default True.
        attn_mask: a mask of scores, L × S or N · heads × L × S; default None.
        use_separate_proj_weight: whether the next three arguments replace `in_proj_weight`; default
            False.
        q_proj_weight: the weight of the query's projection; default None.
        k_proj_weight: the weight of the key's projection; default None.
        v_proj_weight: the weight of the value's projection; default None.
        static_k: keys that replace the projected keys, N · heads × S × E/heads; default None.
        static_v: values that replace the projected values, as `static_k`; default None.
        average_attn_weights: whether returned weights are averaged over heads; default True.
        is_causal: as in torch; default False.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format for the projections' operands,
            with attention as torch computes it. Default None: operands are not cast, and `sums`
            must be given.
        sums: the sums of the projections and of the recipe's attention, as for `cpd.Recipe`;
            default None: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: with `seed`, determines all random bits: an int or a one-element integer tensor.
            Give another number at each step. Default 0.
        dtype: the result's type; default None: the query's.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed.of(recipe, 4, 2)`; default
            None.

    Returns:
        A tuple of the result, L × N × E, and the attention weights (None without `need_weights`).

    Raises:
        ValueError: for shapes that do not match, an invalid option, or a result type that cannot
            represent the format.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w = torch.ones(3, 1, 4), torch.full((12, 4), 0.5)
    >>> y, _ = multi_head_attention(x, x, x, 4, 2, w, None, None, None, False, 0.0, w[:4], None,
    ...                             need_weights=False, recipe=cpd.Recipe(sums="e4m3"))
    >>> y[0].tolist()
    [[4.0, 4.0, 4.0, 4.0]]
    """
    call_recipe = recipe_of(recipe, sums)
    bits = Bits.of(call_recipe, seed, stream)
    _check_dense(query, key, value)
    batched = _mha_shape_check(query, key, value, key_padding_mask, attn_mask, num_heads)
    if not batched:
        query, key, value = _one_example(query, key, value)
        key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
    if is_causal and attn_mask is None:
        raise ValueError("is_causal says that attn_mask is causal: give that mask as well")
    size = query.shape[-1]
    if size != embed_dim_to_check or size % num_heads:
        raise ValueError(
            f"query must have {embed_dim_to_check} features, a multiple of {num_heads} heads, "
            f"got shape {tuple(query.shape)}"
        )
    matrices = (q_proj_weight, k_proj_weight, v_proj_weight) if use_separate_proj_weight else None

    def project(x: Tensor, w: Any, b: Tensor | None, position: int, **to: Any) -> Tensor:
        scaling_state = delayed_at(delayed, position)
        return linear(x, w, b, recipe=call_recipe, delayed=scaling_state, **bits.at(position), **to)

    q, k, v = _projected((query, key, value), in_proj_weight, matrices, in_proj_bias, project)
    q = _by_head(q, num_heads)
    k = _with_more(_by_head(_behind(k, bias_k), num_heads), static_k, add_zero_attn)
    v = _with_more(_by_head(_behind(v, bias_v), num_heads), static_v, add_zero_attn)
    added = k.shape[-2] - key.shape[0] if static_k is None else int(add_zero_attn)
    mask = _merged(attn_mask, key_padding_mask, added, num_heads, q.dtype)
    dropout = dropout_p if training else 0.0
    inner = Bits(**bits.at(HEADS))
    weights = None
    if need_weights:
        factor = 1 / math.sqrt(q.shape[-1])
        weights = _weights(q, k, mask, factor, call_recipe, inner, delayed, False)
        weights = F.dropout(weights, dropout) if dropout else weights
        y = _weighted(weights, v, q, call_recipe, inner, delayed, None)
        weights = weights.to(q.dtype)
        weights = weights.mean(dim=1) if average_attn_weights else weights
        weights = weights if batched else weights.squeeze(0)
    else:
        options = {"recipe": call_recipe, "delayed": delayed, **inner.at(0)}
        y = scaled_dot_product_attention(q, k, v, mask, dropout, **options)
    y = y.permute(2, 0, 1, 3).flatten(2)
    y = project(y, out_proj_weight, out_proj_bias, OUTPUT, dtype=dtype)
    return (y if batched else y.squeeze(1)), weights


# ---- one attention -------------------------------------------------------------------------------


def _attending(recipe: RecipeLike | None, sums: Sums | None) -> Recipe:
    """Returns the recipe of one call of attention.

    A `Recipe` is returned unchanged. All other arguments (a recipe's name or text, a format, or
    `sums` alone) define the recipe of attention's two products, `Recipe.attention`.
    """
    call_recipe = recipe_of(recipe, sums)
    return (
        call_recipe
        if isinstance(recipe, Recipe)
        else Recipe(sums=call_recipe, attention=call_recipe)
    )


def _product(
    a: Tensor,
    b: Tensor,
    recipe: Recipe,
    which: int,
    bits: Bits,
    delayed: Any,
    dtype: torch.dtype | None,
) -> Tensor:
    """Computes one of attention's two products: the scores, or the weighted sum of values."""
    if recipe.attention is not None:
        options = {"recipe": recipe.attention, "dtype": dtype, **bits.at(which)}
        return matmul(a, b, delayed=attending_at(delayed, which), **options)
    y = a @ b.to(a.dtype)
    return y if dtype is None else y.to(dtype)


def _weighted(
    weights: Tensor,
    value: Tensor,
    query: Tensor,
    recipe: Recipe,
    bits: Bits,
    delayed: Any,
    dtype: torch.dtype | None,
) -> Tensor:
    """Returns weights · value, in `dtype` if given, else in autocast's or the query's type."""
    if weights.dtype == query.dtype:
        return _product(weights, value, recipe, VALUES, bits, delayed, dtype)
    result_type = dtype or autocast_type(query) or query.dtype
    # If the attention weights are float32, their gradient must be float32 too.
    return _product(weights, value, recipe, VALUES, bits, delayed, torch.float32).to(result_type)


def _are_cast(recipe: Recipe) -> bool:
    """Returns True if the recipe casts attention weights before they are multiplied."""
    of = recipe.attention
    if of is None:
        return False
    activation, _, _, _, grad_weight_activation, _ = of._kept.operands
    return activation is not None or grad_weight_activation is not None


def _weights(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None,
    factor: float,
    recipe: Recipe,
    bits: Bits,
    delayed: Any,
    zeros: bool,
) -> Tensor:
    """Returns the attention weights. A row whose keys are all masked is 0 if `zeros`, else NaN."""
    are_cast = _are_cast(recipe)
    if recipe.softmax is not None and not are_cast:
        check_storage(operators.name_of(query.dtype), element_of(recipe.softmax).name)
    scores = _product(query, key.mT, recipe, SCORES, bits, delayed, torch.float32) * factor
    if mask is not None and mask.dtype == torch.bool:
        scores = scores.masked_fill(~mask, -math.inf)
    elif mask is not None:
        scores = scores + mask
    (weights,) = _softmax(scores, sizes=[int(zeros)])
    weights = rounded(weights, recipe.softmax, recipe.softmax, **bits.at(SOFTMAX))
    return weights if are_cast else weights.to(query.dtype)


@kept
def _softmax(x: Tensor, *, sizes: Any, numbers: Any) -> list[Tensor]:
    zeros = bool(sizes[0])
    return [torch.ops.aten._safe_softmax(x, -1) if zeros else torch.softmax(x, -1)]


def _check(query: Any, key: Any, value: Any, attn_mask: Tensor | None, is_causal: bool) -> None:
    _check_dense(query, key, value)
    shapes = [tuple(x.shape) for x in (query, key, value)]
    q, k, v = shapes
    if min(map(len, shapes)) < 2 or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ValueError(
            f"query must be … × L × E, key … × S × E and value … × S × F, got shapes {q}, {k}, {v}"
        )
    if is_causal and attn_mask is not None:
        raise ValueError("is_causal and attn_mask exclude each other: give one of them")
    check_types("query, key and value", query, key, value)
    if attn_mask is not None and refuses_mask(query, attn_mask):
        raise ValueError(
            f"attn_mask must be bool, float32 or of the query's type, "
            f"{operators.name_of(query.dtype)}, got {operators.name_of(attn_mask.dtype)}"
        )


def refuses_mask(query: Tensor, mask: Tensor) -> bool:
    """Returns True if torch does not support the mask's type."""
    allowed = (torch.bool, torch.float32, query.dtype)
    return mask.dtype not in allowed and autocast_type(query) is None


def _check_dense(query: Any, key: Any, value: Any) -> None:
    """Raises TypeError unless all arguments are dense floating-point tensors."""
    for name, x in (("query", query), ("key", key), ("value", value)):
        check_operand(name, x, like="query")


def _for_each_head(name: str, x: Tensor, query: Tensor) -> Tensor:
    """Repeats each head of key or value for the query's heads that share the head."""
    heads, groups = query.shape[-3], x.shape[-3]
    if groups == 0 or heads % groups:
        raise ValueError(
            f"enable_gqa: query's heads must be a multiple of {name}'s, got {heads} and {groups}"
        )
    return x.repeat_interleave(heads // groups, -3)


# ---- many heads ----------------------------------------------------------------------------------


def _one_example(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Adds a batch dimension of size 1 to query, key and value.

    Equal arguments remain one tensor.
    """
    q = query.unsqueeze(1)
    k = q if key is query else key.unsqueeze(1)
    return q, k, k if value is key else value.unsqueeze(1)


def _projected(
    inputs: tuple[Tensor, Tensor, Tensor],
    packed: Tensor | None,
    matrices: tuple[Tensor | None, ...] | None,
    bias: Tensor | None,
    project: Callable[..., Tensor],
) -> tuple[Tensor, ...]:
    """Projects query, key and value, with three weights (`matrices`) or one packed weight."""
    query, key, value = inputs
    if matrices is None and packed is not None:
        size = query.shape[-1]
        if query is key and key is value:
            return project(query, packed, bias, QUERY).chunk(3, -1)
        if key is value:
            of_bias = (None, None) if bias is None else bias.split_with_sizes((size, 2 * size))
            for_query, for_both = packed.split_with_sizes((size, 2 * size))
            both = project(key, for_both, of_bias[1], KEY)
            return project(query, for_query, of_bias[0], QUERY), *both.chunk(2, -1)
        matrices = packed.chunk(3)
    if matrices is None or any(w is None for w in matrices):
        raise ValueError("give in_proj_weight, or with use_separate_proj_weight all three of them")
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    positions = (QUERY, KEY, VALUE)
    return tuple(map(project, inputs, matrices, biases, positions))


def _by_head(x: Tensor, heads: int) -> Tensor:
    """Reshapes L × N × E to N × heads × L × E/heads."""
    return torch.unflatten(x, -1, (heads, -1)).permute(1, 2, 0, 3)


def _behind(x: Tensor, bias: Tensor | None) -> Tensor:
    """Appends the learned key or value, if there is one, to keys or values of shape L × N × E."""
    return x if bias is None else torch.cat((x, bias.to(x.dtype).repeat(1, x.shape[1], 1)))


def _with_more(x: Tensor, static: Tensor | None, zero: bool) -> Tensor:
    """Splits keys or values by head, and appends a zero key or value if `zero`.

    `static`, of shape N · heads × S × …, replaces the keys or values if given.
    """
    if static is not None:
        x = torch.unflatten(static, 0, tuple(x.shape[:2]))
    return F.pad(x, (0, 0, 0, 1)) if zero else x


def _merged(
    attn_mask: Tensor | None, padding: Tensor | None, added: int, heads: int, dtype: torch.dtype
) -> Tensor | None:
    """Combines torch's two masks to one mask that is added to the scores.

    Its shape is N × heads × L × S or broadcasts to that shape. The last `added` keys are never
    masked.
    """
    masks = []
    if attn_mask is not None:
        by_head = attn_mask if attn_mask.dim() == 2 else torch.unflatten(attn_mask, 0, (-1, heads))
        masks.append(_to_add(by_head, added, dtype))
    if padding is not None:
        masks.append(_to_add(padding[:, None, None, :], added, dtype))
    return functools.reduce(torch.add, masks) if masks else None


def _to_add(mask: Tensor, added: int, dtype: torch.dtype) -> Tensor:
    """Returns a mask as a tensor to add to the scores. True in a boolean mask becomes -inf."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=dtype).masked_fill(mask, -math.inf)
    return F.pad(mask.to(dtype), (0, added)) if added else mask.to(dtype)
