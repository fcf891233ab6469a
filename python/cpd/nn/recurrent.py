# SPDX-License-Identifier: Apache-2.0
"""torch's recurrent layers and cells, computed step by step with `cpd.functional.linear`.

A layer computes, for each direction:

1. The input's product x · w_ihᵀ + b_ih, of all time steps at once. Rows are time-major.
2. In each time step, the state's product h · w_hhᵀ + b_hh, and from the two products the next
state, by torch's formulas in the products' type. LSTM: i, f, g and o are the quarters of the
products' sum; c = σ(f)·c + σ(i)·tanh(g), h = σ(o)·tanh(c), and with `proj_size` the product h ·
w_hrᵀ. GRU: x_r, x_z, x_n and h_r, h_z, h_n are the thirds of the two products; r = x_r + h_r, z =
x_z + h_z, n = tanh(x_n + σ(r)·h_n), h = (h - n)·σ(z) + n. RNN: h is the activation function of the
products' sum.

The recipe casts the operands of each product, and rounds its result to `output`. The gates and the
state have no further rounding. For the gradients of w_hh and w_hr, each time step has a GEMM. Its
results are added in float32 in the order of the backward pass. This sum is then added to the
weight's other gradients. `cpd.nn.recurrent_native` computes the same in fewer calls, if possible.

Each product takes random bits from the layer's stream XOR its position, 4 · (t · n + m) + kind. t
is the time step (0 for the input's product), m = layer · directions + direction, n is the number of
values of m, and kind is 0 for the input's product, 1 for the state's, 2 for the projection. A cell
has t = 0 in each call: give each time step another stream.

If scaling is delayed, `delayed` is a `cpd.nn.delayed.Delayed` with 3 products for each layer and
direction, or with 3 products for a cell. All time steps share the scales of product 3 · m + kind.

All functions work under autograd and, for a sequence of fixed length,
`torch.compile(fullgraph=True)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from cpd.nn import recurrent_native
from cpd.nn.arguments import recipe_of
from cpd.nn.delayed import at as delayed_at
from cpd.nn.functional import linear
from cpd.nn.recipe import Recipe, RecipeLike, Sums
from cpd.nn.recurrent_cells import GRU, LSTM, Kind, activation
from cpd.nn.recurrent_native import Examples
from cpd.nn.streams import MAX_POSITIONS, Bits
from cpd.numeric.checked import refused_by_torch
from cpd.numeric.numbers import Number

State: TypeAlias = "tuple[Tensor, ...]"
"""The hidden state, and for an LSTM the cell state. Each row belongs to one example."""

INPUT, HIDDEN, PROJECTION = 0, 1, 2
_KINDS = 4
PRODUCTS = 3
"""The number of products with separate delayed scales in each direction of each layer."""


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Computes torch.nn.LSTM by a recipe.

    Args:
        input: time × batch × in; batch × time × in if `batch_first`; with `batch_sizes` the data of
            a PackedSequence, rows × in.
        hx: hidden and cell state, each (layers · directions) × batch × size.
        weights: for each layer and direction w_ih, w_hh, then b_ih, b_hh if there are biases, and
            w_hr if the hidden state is projected, as torch.nn.LSTM stores them.
        has_biases: whether `weights` has biases; default True.
        num_layers: the number of layers; default 1.
        dropout: the probability of dropout between layers, with torch's own random numbers; default
            0.
        training: whether dropout is applied; default False.
        bidirectional: whether each layer has a second direction; default False.
        batch_first: whether the batch is the first dimension of input and output; default False.
        batch_sizes: the `batch_sizes` of a PackedSequence; the output is then packed too. Default
            None: not packed.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the layer's random bits; `cpd.nn.recurrent`
            documents the stream of each product. Default 0.
        delayed: a `cpd.nn.delayed.Delayed` of 3 products for each layer and direction, which a
            recipe that delays scales needs; default None.

    Returns:
        The output, the last hidden state and the last cell state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w, u = torch.ones(3, 1, 2), torch.ones(4, 2), torch.ones(4, 1)
    >>> state = torch.zeros(1, 1, 1), torch.zeros(1, 1, 1)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> y, h, c = lstm(x, state, [w, u], has_biases=False, recipe=how)
    >>> y.flatten().tolist() == [*y[:2].flatten().tolist(), h.item()], y.shape
    (True, torch.Size([3, 1, 1]))
    """
    order = _Order(has_biases, num_layers, dropout, training, bidirectional, batch_first)
    arithmetic = _How.of(recipe, sums, seed, stream, delayed)
    y, (h, c) = _layers(LSTM, input, tuple(hx), weights, order, arithmetic, batch_sizes)
    return y, h, c


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch.nn.GRU by a recipe.

    Args:
        input: time × batch × in; batch × time × in if `batch_first`; with `batch_sizes` the data of
            a PackedSequence, rows × in.
        hx: the hidden state, (layers · directions) × batch × size.
        weights: for each layer and direction w_ih, w_hh, then b_ih, b_hh if there are biases, as
            torch.nn.GRU stores them.
        has_biases: whether `weights` has biases; default True.
        num_layers: the number of layers; default 1.
        dropout: the probability of dropout between layers, with torch's own random numbers; default
            0.
        training: whether dropout is applied; default False.
        bidirectional: whether each layer has a second direction; default False.
        batch_first: whether the batch is the first dimension of input and output; default False.
        batch_sizes: the `batch_sizes` of a PackedSequence; the output is then packed too. Default
            None: not packed.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the layer's random bits; `cpd.nn.recurrent`
            documents the stream of each product. Default 0.
        delayed: a `cpd.nn.delayed.Delayed` of 3 products for each layer and direction, which a
            recipe that delays scales needs; default None.

    Returns:
        The output and the last hidden state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w, u = torch.ones(2, 1, 2), torch.ones(3, 2), torch.ones(3, 1)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> y, h = gru(x, torch.zeros(1, 1, 1), [w, u], has_biases=False, recipe=how)
    >>> bool(y[-1] == h[0])
    True
    """
    order = _Order(has_biases, num_layers, dropout, training, bidirectional, batch_first)
    arithmetic = _How.of(recipe, sums, seed, stream, delayed)
    y, (h,) = _layers(GRU, input, (hx,), weights, order, arithmetic, batch_sizes)
    return y, h


@refused_by_torch
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
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch.nn.RNN by a recipe.

    Args:
        input: time × batch × in; batch × time × in if `batch_first`; with `batch_sizes` the data of
            a PackedSequence, rows × in.
        hx: the hidden state, (layers · directions) × batch × size.
        weights: for each layer and direction w_ih, w_hh, then b_ih, b_hh if there are biases, as
            torch.nn.RNN stores them.
        has_biases: whether `weights` has biases; default True.
        num_layers: the number of layers; default 1.
        dropout: the probability of dropout between layers, with torch's own random numbers; default
            0.
        training: whether dropout is applied; default False.
        bidirectional: whether each layer has a second direction; default False.
        batch_first: whether the batch is the first dimension of input and output; default False.
        batch_sizes: the `batch_sizes` of a PackedSequence; the output is then packed too. Default
            None: not packed.
        nonlinearity: "tanh" (default) or "relu".
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the layer's random bits; `cpd.nn.recurrent`
            documents the stream of each product. Default 0.
        delayed: a `cpd.nn.delayed.Delayed` of 3 products for each layer and direction, which a
            recipe that delays scales needs; default None.

    Returns:
        The output and the last hidden state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, w, u = torch.ones(2, 1, 2), torch.ones(1, 2), torch.ones(1, 1)
    >>> how = {"recipe": cpd.Recipe(sums="e4m3"), "nonlinearity": "relu"}
    >>> y, h = rnn(x, torch.zeros(1, 1, 1), [w, u], has_biases=False, **how)
    >>> y.flatten().tolist()
    [2.0, 4.0]
    """
    order = _Order(has_biases, num_layers, dropout, training, bidirectional, batch_first)
    arithmetic = _How.of(recipe, sums, seed, stream, delayed)
    kind = activation(nonlinearity)
    y, (h,) = _layers(kind, input, (hx,), weights, order, arithmetic, batch_sizes)
    return y, h


# ---- cells ---------------------------------------------------------------------------------------


@refused_by_torch
def lstm_cell(
    input: Tensor,
    hx: tuple[Tensor, Tensor],
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> tuple[Tensor, Tensor]:
    """Computes torch.nn.LSTMCell by a recipe; `cpd.nn.recurrent` documents what is rounded.

    Args:
        input: batch × in.
        hx: hidden and cell state, each batch × size.
        w_ih: 4 size × in.
        w_hh: 4 size × size.
        b_ih: 4 size; default None: no bias.
        b_hh: 4 size; default None: no bias.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the cell's random bits: give another one in
            each time step. Default 0.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed` of 3 products, which a
            recipe that delays scales needs; default None.

    Returns:
        The next hidden and cell state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> state = torch.zeros(1, 1), torch.zeros(1, 1)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> h, c = lstm_cell(torch.ones(1, 2), state, torch.ones(4, 2), torch.ones(4, 1), recipe=how)
    >>> h.shape, c.shape
    (torch.Size([1, 1]), torch.Size([1, 1]))
    """
    weights, arithmetic = (w_ih, w_hh, b_ih, b_hh), _How.of(recipe, sums, seed, stream, delayed)
    h, c = _cell(LSTM, input, tuple(hx), weights, arithmetic)
    return h, c


@refused_by_torch
def gru_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.GRUCell by a recipe; `cpd.nn.recurrent` documents what is rounded.

    Args:
        input: batch × in.
        hx: the hidden state, batch × size.
        w_ih: 3 size × in.
        w_hh: 3 size × size.
        b_ih: 3 size; default None: no bias.
        b_hh: 3 size; default None: no bias.
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the cell's random bits: give another one in
            each time step. Default 0.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed` of 3 products, which a
            recipe that delays scales needs; default None.

    Returns:
        The next hidden state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> h = torch.zeros(1, 1)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> gru_cell(torch.zeros(1, 2), h, torch.ones(3, 2), torch.ones(3, 1), recipe=how).item()
    0.0
    """
    weights, arithmetic = (w_ih, w_hh, b_ih, b_hh), _How.of(recipe, sums, seed, stream, delayed)
    return _cell(GRU, input, (hx,), weights, arithmetic)[0]


@refused_by_torch
def rnn_cell(
    input: Tensor,
    hx: Tensor,
    w_ih: Tensor,
    w_hh: Tensor,
    b_ih: Tensor | None = None,
    b_hh: Tensor | None = None,
    *,
    nonlinearity: str = "tanh",
    recipe: RecipeLike | None = None,
    sums: Sums | None = None,
    seed: Number = 0,
    stream: Number = 0,
    delayed: Any = None,
) -> Tensor:
    """Computes torch.nn.RNNCell by a recipe; `cpd.nn.recurrent` documents what is rounded.

    Args:
        input: batch × in.
        hx: the hidden state, batch × size.
        w_ih: size × in.
        w_hh: size × size.
        b_ih: size; default None: no bias.
        b_hh: size; default None: no bias.
        nonlinearity: "tanh" (default) or "relu".
        recipe: a `cpd.Recipe`, a recipe's name or text, or a format. None (default) needs `sums`.
        sums: the accumulators of the three GEMMs, as for `cpd.Recipe`; default: the recipe's.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the number that, with `seed`, determines the cell's random bits: give another one in
            each time step. Default 0.
        delayed: the state of delayed scaling, a `cpd.nn.delayed.Delayed` of 3 products, which a
            recipe that delays scales needs; default None.

    Returns:
        The next hidden state.

    Raises:
        ValueError: for shapes that do not match, or an invalid option.
        TypeError: for an argument of another type.

    >>> import cpd
    >>> x, h, w, u = torch.ones(1, 20), torch.ones(1, 1), torch.ones(1, 20), torch.ones(1, 1)
    >>> how = cpd.Recipe(sums="e4m3")
    >>> rnn_cell(x, h, w, u, recipe=how, nonlinearity="relu")
    tensor([[17.]])
    """
    weights, arithmetic = (w_ih, w_hh, b_ih, b_hh), _How.of(recipe, sums, seed, stream, delayed)
    return _cell(activation(nonlinearity), input, (hx,), weights, arithmetic)[0]


# ---- over time -----------------------------------------------------------------------------------


class _Order(NamedTuple):
    """The options of a recurrent layer, in the order of the arguments of torch's functions."""

    has_biases: bool
    num_layers: int
    dropout: float
    training: bool
    bidirectional: bool
    batch_first: bool

    @property
    def directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def chains(self) -> int:
        """The number of passes over time: one for each direction of each layer."""
        return self.num_layers * self.directions


class _How(NamedTuple):
    """The arithmetic of a layer's products: recipe, random bits and delayed scales."""

    recipe: Recipe
    bits: Bits
    delayed: Any

    @classmethod
    def of(cls, recipe: Any, sums: Any, seed: Number, stream: Number, delayed: Any) -> _How:
        call_recipe = recipe_of(recipe, sums)
        return cls(call_recipe, Bits.of(call_recipe, seed, stream), delayed)


class _Chain(NamedTuple):
    """The weights of one direction of one layer. Computes products with these weights."""

    weights: tuple[Tensor | None, ...]
    """w_ih, w_hh, b_ih, b_hh and w_hr."""
    how: _How
    number: int = 0
    chains: int = 1

    def product(self, x: Tensor, which: int, t: int) -> Tensor:
        """Returns the product `which` (INPUT, HIDDEN or PROJECTION) of time step t."""
        w, b = ((0, 2), (1, 3), (4, None))[which]
        weight: Any = self.weights[w]
        bias = None if b is None else self.weights[b]
        recipe, bits, delayed = self.how
        numbers = bits.at(_KINDS * (t * self.chains + self.number) + which)
        scaling_state = delayed_at(delayed, PRODUCTS * self.number + which)
        return linear(x, weight, bias, recipe=recipe, delayed=scaling_state, **numbers)

    def step(self, kind: Kind, x: Tensor, state: State, t: int) -> State:
        carried = state[-1:] if kind.carries else ()
        h, *rest = kind.step(x, self.product(state[0], HIDDEN, t), *carried)
        return (h if self.weights[4] is None else self.product(h, PROJECTION, t), *rest)


def _cell(
    kind: Kind,
    input: Tensor,
    state: State,
    weights: tuple[Tensor | None, ...],
    arithmetic: _How,
) -> State:
    chain = _Chain((*weights, None), arithmetic)
    x = chain.product(input, INPUT, 0)
    return chain.step(kind, x, tuple(s.to(x.dtype) for s in state), 0)


def _layers(
    kind: Kind,
    input: Tensor,
    state: State,
    weights: Sequence[Tensor],
    order: _Order,
    arithmetic: _How,
    batch_sizes: Tensor | None,
) -> tuple[Tensor, State]:
    """Returns the output and the last states of all layers.

    Sequences are stored like packed sequences: the rows of the first time step, of the second, ….
    In a padded batch, all time steps have the same number of rows.
    """
    x = input.transpose(0, 1) if order.batch_first and batch_sizes is None else input
    sizes = _sizes(x, batch_sizes)
    if _KINDS * len(sizes) * order.chains > MAX_POSITIONS:
        most = MAX_POSITIONS // _KINDS
        raise ValueError(
            f"time steps · layers · directions must be at most {most}, as each product has a "
            f"stream of its own, got {len(sizes)} · {order.num_layers} · {order.directions}"
        )
    rows = x if batch_sizes is not None else x.flatten(0, 1)
    of_chain = _by_chain(weights, order)
    last: list[State] = []
    for layer in range(order.num_layers):
        outputs = []
        for direction in range(order.directions):
            number = layer * order.directions + direction
            chain = _Chain(of_chain[number], arithmetic, number, order.chains)
            first = tuple(s[number] for s in state)
            y, end = _over_time(kind, chain, rows, sizes, first, direction == 1)
            outputs.append(y)
            last.append(end)
        rows = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if order.dropout and layer < order.num_layers - 1:
            rows = F.dropout(rows, order.dropout, order.training)
    states = tuple(map(torch.stack, zip(*last, strict=True)))
    if batch_sizes is not None:
        return rows, states
    y = rows.view(x.shape[0], x.shape[1], -1)
    return (y.transpose(0, 1) if order.batch_first else y), states


def _over_time(
    kind: Kind, chain: _Chain, rows: Tensor, sizes: list[int], first: State, reverse: bool
) -> tuple[Tensor, State]:
    """Returns one output for each of `rows`, in their order, and the last state of each example."""
    x = chain.product(rows, INPUT, 0)
    first = tuple(s.to(x.dtype) for s in first)
    _, w_hh, _, b_hh, w_hr = chain.weights
    operands: tuple[Any, ...] = (x, w_hh, b_hh, w_hr, *first)

    def loop(x: Tensor, *rest: Any) -> tuple[Tensor, ...]:
        weights = (None if w is None else w.view_as(w) for w in rest[:3])
        w_hh, b_hh, w_hr = weights
        own = chain._replace(weights=(None, w_hh, None, b_hh, w_hr))
        return _step_by_step(kind, own, x, sizes, rest[3:], reverse)

    if recurrent_native.takes(chain.how.recipe, operands):
        steps = recurrent_native.Steps(kind.native, chain.how.recipe, sizes, reverse, loop)
        y, *last = recurrent_native.over_time(steps, *operands)
    else:
        y, *last = loop(*operands)
    return y, tuple(last)


def _step_by_step(
    kind: Kind, chain: _Chain, x: Tensor, sizes: list[int], first: State, reverse: bool
) -> tuple[Tensor, ...]:
    """Returns outputs and the last state of each example.

    `x` has the products of the input with the weight, for all time steps.
    """
    products = x.split_with_sizes(sizes)
    times = range(len(sizes))[:: -1 if reverse else 1]
    outputs: list[Tensor] = [x] * len(sizes)
    examples = Examples(first, sizes[times[0]])
    for t in times:
        examples.state = chain.step(kind, products[t], examples.at(sizes[t]), t)
        outputs[t] = examples.state[0]
    return torch.cat(outputs), *examples.last()


def _sizes(x: Tensor, batch_sizes: Tensor | None) -> list[int]:
    """Returns, for each time step, the number of examples that have an input at the step."""
    dimensions = 3 if batch_sizes is None else 2
    if x.dim() != dimensions:
        raise ValueError(f"input must have {dimensions} dimensions, got shape {tuple(x.shape)}")
    sizes = [x.shape[1]] * x.shape[0] if batch_sizes is None else batch_sizes.tolist()
    if not sizes:
        raise ValueError("input must have at least one time step, got none")
    return sizes


def _by_chain(weights: Sequence[Tensor], order: _Order) -> list[tuple[Tensor | None, ...]]:
    """Returns w_ih, w_hh, b_ih, b_hh and w_hr for each direction of each layer."""
    per_chain, rest = divmod(len(weights), order.chains)
    count = 4 if order.has_biases else 2
    if rest or per_chain not in (count, count + 1):
        raise ValueError(
            f"weights must be {count} for each of {order.chains} layers and directions, or "
            f"{count + 1} with a projection, got {len(weights)}"
        )
    chains = []
    for start in range(0, len(weights), per_chain):
        own = weights[start : start + per_chain]
        biases = own[2:4] if order.has_biases else (None, None)
        chains.append((*own[:2], *biases, own[count] if per_chain > count else None))
    return chains
