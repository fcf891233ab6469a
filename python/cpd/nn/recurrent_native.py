# SPDX-License-Identifier: Apache-2.0
"""`over_time`: computes all time steps of a recurrent layer in one autograd node.

It is a fast path for products with torch's own sums. Its results have the same bits as the loop in
`cpd.nn.recurrent`, which defines them.

A weight is cast once for all steps, in the forward pass and again in the backward pass. All other
operations of a step are the torch functions that the loop and its derivatives call, on operands
with the same memory layouts and in the same order. So each kernel gives the same bits. If the
backward pass itself is differentiated, the loop is computed again, and its autograd graph gives the
gradients. A second backward pass runs this node again, so each pass casts its gradients separately.
"""

# Relaxes mypy's checks: some of torch's functions have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call"

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from cpd._torch.operands import cast_operand
from cpd._torch.private import below_autograd, is_plain
from cpd._torch.recipe import RecipeCall, resolved
from cpd.nn.recipe import Recipe
from cpd.numeric.cast import Cast
from cpd.numeric.purposes import Purpose

State: TypeAlias = "tuple[Tensor, ...]"
Gradients: TypeAlias = "tuple[Tensor | None, ...]"

_sigmoid_backward = torch.ops.aten.sigmoid_backward.default
_tanh_backward = torch.ops.aten.tanh_backward.default
_threshold_backward = torch.ops.aten.threshold_backward.default


def takes(how: Recipe, tensors: Iterable[Tensor | None]) -> bool:
    """Returns whether `over_time` supports a recipe and its tensors.

    The fast path needs native sums and float32 tensors. Casts must have no random bits, no delayed
    scales, and `factor` 1. The result is False under autocast, and within torch.compile, torch.func
    and dispatch modes, which must see each product.
    """
    held = tuple(x for x in tensors if x is not None)
    return (
        how._is_native
        and how.scales_at == "operand"
        and not (how._kept.draws or how._kept.delays or any(map(_has_factor, how._kept.operands)))
        and not torch.compiler.is_compiling()
        and is_plain(held)
        and all(map(_is_float32, held))
    )


def _has_factor(spec: Cast | None) -> bool:
    return spec is not None and spec.factor != 1


def _is_float32(x: Tensor) -> bool:
    return x.dtype == torch.float32 and not torch.is_autocast_enabled(x.device.type)


# ---- products ------------------------------------------------------------------------------------


def _cast(x: Tensor, spec: Cast | None) -> Tensor:
    return x if spec is None else cast_operand(x, spec.text, -1)


class _Product:
    """The product of the state with a weight, which is computed in each time step."""

    def __init__(self, recipe: Recipe, weight: Tensor, bias: Tensor | None) -> None:
        self.call = RecipeCall(resolved(recipe._kept.gemms))
        self.before, before_weight = recipe._kept.before
        self.output = recipe.output
        self.weight = _cast(weight, before_weight)
        self.factor = self.call.cast(Purpose.cast_weight, self.weight, -1).mT
        self.bias = bias

    def step(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Multiplies `h` by the weight. Returns the product, and the `h` that backward needs."""
        entered = _cast(h, self.before)
        a = self.call.cast(Purpose.cast_activation, entered, -1)
        if self.bias is None:
            y = torch.mm(a, self.factor)
        else:
            y = torch.addmm(self.bias, a, self.factor)
        return _cast(y, self.output), entered


class _ProductGradients:
    """The backward pass of a `_Product`.

    Adds up the gradients of weight and bias over the steps.
    """

    of_weight: Tensor | None = None
    of_bias: Tensor | None = None
    term: Tensor | None = None
    """A buffer for one step's gradient of the weight, before it is added to `of_weight`."""

    def __init__(self, recipe: Recipe, weight: Tensor, needs: Sequence[bool]) -> None:
        self.call = RecipeCall(resolved(recipe._kept.gemms))
        self.for_weight, self.for_bias = needs
        self.factor = self.call.cast(Purpose.recast_weight, weight, -2)

    def step(self, g: Tensor, entered: Tensor, for_input: bool) -> Tensor | None:
        """Adds one step's gradients of weight and bias, from the product's gradient `g`.

        Returns the gradient of the state if `for_input`, else None.
        """
        if self.for_bias:
            summed = g if len(g) == 1 else g.sum([0], keepdim=True)
            self.of_bias = _sum(self.of_bias, summed.reshape(-1))
        needs = for_input, self.for_weight
        cast = self.call.gradients(g, needs, (-1, -2), torch.float32)
        to_input, to_weight = (factor.values for factor in cast)
        if self.for_weight:
            a = self.call.cast(Purpose.recast_activation, entered, -2)
            self._add_to_weight(to_weight.mT, a)
        return torch.mm(to_input, self.factor) if for_input else None

    def _add_to_weight(self, g: Tensor, a: Tensor) -> None:
        if self.of_weight is None:
            self.of_weight = torch.mm(g, a)
            return
        if self.term is None:
            self.term = torch.empty_like(self.of_weight)
        self.of_weight.add_(torch.mm(g, a, out=self.term))


def _sum(*terms: Tensor | None) -> Tensor | None:
    """Adds the terms that are not None, in order; returns None if there are none."""
    total = None
    for term in terms:
        if term is not None:
            total = term if total is None else total + term
    return total


# ---- cells ---------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A kind of recurrent cell: what a step computes apart from products, and its derivative."""

    forward: Callable[[Tensor, Tensor, State], tuple[State, State]]
    """A function of the input's product, the state's product and the state. It returns the next
    state and the values that `backward` needs. The next state is the hidden state before its
    projection, and an LSTM's cell state."""
    backward: Callable[[State, State, Gradients], tuple[Tensor, Tensor, Gradients]]
    """A function of the values from `forward`, the state before the step, and the gradients of the
    state after the step. It returns the gradients of both products, and of the state before the
    step. The gradient of the state lacks the term that the caller adds: the gradient that
    reaches the state through its product with the weight."""


def _lstm(x: Tensor, y: Tensor, state: State) -> tuple[State, State]:
    i, f, g, o = (x + y).chunk(4, -1)
    i, f, g, o = i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()
    c = (f * state[1]).add_(i * g)
    bounded = c.tanh()
    return (o * bounded, c), (i, f, g, o, bounded)


def _lstm_backward(
    saved: State, state: State, grads: Gradients
) -> tuple[Tensor, Tensor, Gradients]:
    i, f, g, o, bounded = saved
    of_h, of_c = grads
    if of_h is None:
        of_o = torch.zeros_like(o)
    else:
        of_c = _sum(of_c, _tanh_backward(of_h * o, bounded))
        of_o = _sigmoid_backward(of_h * bounded, o)
    assert of_c is not None  # a state has a gradient
    of_i, of_f = _sigmoid_backward(of_c * g, i), _sigmoid_backward(of_c * state[1], f)
    z = torch.cat([of_i, of_f, _tanh_backward(of_c * i, g), of_o], -1)
    return z, z, (None, of_c * f)


def _gru(x: Tensor, y: Tensor, state: State) -> tuple[State, State]:
    (x_r, x_z, x_n), (y_r, y_z, y_n) = x.chunk(3, -1), y.chunk(3, -1)
    r, z = (x_r + y_r).sigmoid(), (x_z + y_z).sigmoid()
    n = (x_n + r * y_n).tanh()
    apart = state[0] - n
    return ((apart * z).add_(n),), (r, z, n, apart, y_n)


def _gru_backward(saved: State, state: State, grads: Gradients) -> tuple[Tensor, Tensor, Gradients]:
    r, z, n, apart, y_n = saved
    (of_h,) = grads
    assert of_h is not None  # the only state has a gradient
    of_apart = of_h * z
    of_n = _tanh_backward(of_h - of_apart, n)
    of_r, of_z = _sigmoid_backward(of_n * y_n, r), _sigmoid_backward(of_h * apart, z)
    of_x, of_y = (torch.cat([of_r, of_z, last], -1) for last in (of_n, of_n * r))
    return of_x, of_y, (of_apart,)


def _rnn(
    activation: Callable[[Tensor], Tensor], derivative: Callable[[Any, Tensor], Tensor]
) -> Cell:
    """Returns the `Cell` of an RNN with this activation function.

    `derivative` computes the gradient of the activation function's argument. Its arguments are the
    gradient of the function's result, and that result.
    """

    def forward(x: Tensor, y: Tensor, state: State) -> tuple[State, State]:
        h = activation(x + y)
        return (h,), (h,)

    def backward(saved: State, state: State, grads: Gradients) -> tuple[Tensor, Tensor, Gradients]:
        z = derivative(grads[0], saved[0])
        return z, z, (None,)

    return Cell(forward, backward)


LSTM = Cell(_lstm, _lstm_backward)
GRU = Cell(_gru, _gru_backward)
TANH = _rnn(torch.tanh, _tanh_backward)
RELU = _rnn(torch.relu, lambda g, h: _threshold_backward(g, h, 0))


# ---- over time -----------------------------------------------------------------------------------


class Examples:
    """The state of a batch's examples, sorted by length, while the layer runs over time.

    In a layer that runs forward in time, the state of an example is stored when the example ends.
    In a layer that runs backward in time, an example joins the batch at its last step.
    """

    def __init__(self, first: State, count: int) -> None:
        self.first, self.count = first, count
        self.state = tuple(s[:count] for s in first)
        self.ended: list[State] = []

    def at(self, count: int) -> State:
        """Returns the state of the first `count` examples, which the next time step computes."""
        have, self.count = self.count, count
        if count < have:
            self.ended.append(tuple(s[count:] for s in self.state))
            self.state = tuple(s[:count] for s in self.state)
        elif count > have:
            joined = zip(self.state, self.first, strict=True)
            self.state = tuple(torch.cat((s, f[have:count])) for s, f in joined)
        return self.state

    def last(self) -> State:
        """Returns the last state of each example."""
        if not self.ended:
            return self.state
        return tuple(map(torch.cat, zip(self.state, *reversed(self.ended), strict=True)))


class Steps(NamedTuple):
    """Describes one direction of a layer: its cell, recipe, time steps and their order."""

    cell: Cell
    how: Recipe
    sizes: list[int]
    """For each time step, the number of examples that have an input at the step."""
    reverse: bool
    loop: Callable[..., tuple[Tensor, ...]]
    """A function that computes all time steps in a Python loop; `over_time` gives the same bits.

    The function's arguments are the arguments of `over_time` except `steps`.
    """

    @property
    def times(self) -> range:
        """The numbers of the time steps, in the order in which the forward pass computes them."""
        return range(len(self.sizes))[:: -1 if self.reverse else 1]


def over_time(
    steps: Steps,
    x: Tensor,
    w_hh: Tensor,
    b_hh: Tensor | None,
    w_hr: Tensor | None,
    *first: Tensor,
) -> tuple[Tensor, ...]:
    """Returns the hidden states of all steps, rows of the first step first, and the last state.

    `x`: input · w_ihᵀ + b_ih of all steps, with rows in the order of the result. `first`: the state
    before the first step.
    """
    return _OverTime.apply(steps, x, w_hh, b_hh, w_hr, *first)


class _OverTime(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        steps: Steps,
        x: Tensor,
        w_hh: Tensor,
        b_hh: Tensor | None,
        w_hr: Tensor | None,
        *first: Tensor,
    ) -> tuple[Tensor, ...]:
        keeps = any(ctx.needs_input_grad)
        with below_autograd():
            rows, state, casts, step_tensors = _forward(steps, (x, w_hh, b_hh, w_hr, *first), keeps)
        if keeps:
            ctx.steps, ctx.states = steps, len(first)
            ctx.each = len(step_tensors) // len(steps.sizes)
            ctx.save_for_backward(x, w_hh, b_hh, w_hr, *first, *casts, *step_tensors)
            ctx.set_materialize_grads(False)
        return rows, *state

    @staticmethod
    def backward(ctx: Any, of_rows: Tensor | None, *of_last: Tensor | None) -> Any:
        saved = ctx.saved_tensors  # which may be read once, where a checkpoint makes them again
        if torch.is_grad_enabled():
            return None, *_differentiable(ctx, saved[: 4 + ctx.states], (of_rows, *of_last))
        with below_autograd():
            return None, *_backward(ctx, saved[4 + ctx.states :], of_rows, of_last)


def _forward(
    steps: Steps, operands: Sequence[Any], keeps: bool
) -> tuple[Tensor, State, Sequence[Tensor | None], list[Tensor]]:
    """Returns hidden states, the last state, and the values that the backward pass needs.

    These values are the cast weights, and tensors of each step for `_backward`.
    """
    x, w_hh, b_hh, w_hr, *first = operands
    hidden = _Product(steps.how, w_hh, b_hh)
    projection = None if w_hr is None else _Product(steps.how, w_hr, None)
    inputs = x.split_with_sizes(steps.sizes)
    outputs: list[Tensor] = [x] * len(inputs)
    step_tensors: list[Tensor] = []
    examples = Examples(tuple(first), steps.sizes[steps.times[0]])
    for t in steps.times:
        state = examples.at(steps.sizes[t])
        y, entered = hidden.step(state[0])
        new, own = steps.cell.forward(inputs[t], y, state)
        of_step = [entered, *state[1:], *own]
        if projection is not None:
            h, entered = projection.step(new[0])
            new, of_step = (h, *new[1:]), [*of_step, entered]
        if keeps:
            step_tensors += of_step
        examples.state, outputs[t] = new, new[0]
    casts = hidden.weight, None if projection is None else projection.weight
    return torch.cat(outputs), examples.last(), casts, step_tensors


def _backward(
    ctx: Any, saved: Sequence[Any], of_rows: Tensor | None, grads: Gradients
) -> Gradients:
    """Returns the gradients of the operands of `over_time`.

    `saved` has the values that `_forward` returned for the backward pass.
    """
    steps: Steps = ctx.steps
    _, _, *needs = ctx.needs_input_grad
    hidden_weight, projection_weight, *step_tensors = saved
    hidden = _ProductGradients(steps.how, hidden_weight, needs[:2])
    projection = None
    if projection_weight is not None:
        projection = _ProductGradients(steps.how, projection_weight, (needs[2], False))
    sizes, first = steps.sizes, steps.times[0]
    outputs = [None] * len(sizes) if of_rows is None else of_rows.split_with_sizes(sizes)
    of_inputs: list[Tensor] = [hidden_weight] * len(sizes)
    of_states = _StateGradients(grads)
    for t in reversed(steps.times):
        terms, *others = of_states.before(sizes[t])
        of_h = _sum(outputs[t], *terms)
        rest = [_sum(*addends) for addends in others]
        entered, *own = step_tensors[len(step_tensors) - ctx.each :]
        del step_tensors[len(step_tensors) - ctx.each :]
        if projection is not None:
            of_projected, of_h = of_h, None
            operand = own.pop()
            if of_projected is not None:
                of_h = projection.step(of_projected, operand, True)
        before = entered, *own[: ctx.states - 1]
        gradients = steps.cell.backward(tuple(own[ctx.states - 1 :]), before, (of_h, *rest))
        of_inputs[t], of_y, (direct, *rest) = gradients
        product = hidden.step(of_y, entered, t != first or needs[3])
        of_states.terms = [[direct, product], *([g] for g in rest)]
    of_x = torch.cat(of_inputs) if ctx.needs_input_grad[1] else None
    of_projection = None if projection is None else projection.of_weight
    return of_x, hidden.of_weight, hidden.of_bias, of_projection, *of_states.of_first()


class _StateGradients:
    """The gradients of the state while the backward pass runs over the time steps.

    Stores the terms of each gradient in the order in which autograd adds them. So gradients have
    autograd's bits, even the signs of zeros.
    """

    def __init__(self, of_last: Gradients) -> None:
        self.of_last = of_last
        self.terms: list[list[Tensor | None]] | None = None
        self.count = 0
        self.came_in: list[list[Tensor]] = [[] for _ in of_last]

    def before(self, count: int) -> list[list[Tensor | None]]:
        """Returns the gradients of the state after a time step with `count` examples."""
        have, self.count = self.count, count
        if self.terms is None:
            return [[None if g is None else g[:count]] for g in self.of_last]
        if count == have:
            return self.terms
        joined = [_sum(*terms) for terms in self.terms]
        if count > have:
            return [
                [
                    _padded(g, 0, count),
                    None if last is None else _padded(last[have:count], have, count),
                ]
                for g, last in zip(joined, self.of_last, strict=True)
            ]
        for rows, g in zip(self.came_in, joined, strict=True):
            if g is not None:
                rows.insert(0, g[count:])
        return [[None if g is None else g[:count]] for g in joined]

    def of_first(self) -> Gradients:
        """Returns the gradients of the state before the first step."""
        assert self.terms is not None  # there is a step
        gradients = []
        for terms, rows in zip(self.terms, self.came_in, strict=True):
            g = _sum(*terms)
            gradients.append(torch.cat([g, *rows]) if g is not None and rows else g)
        return tuple(gradients)


def _padded(g: Tensor | None, start: int, count: int) -> Tensor | None:
    """Returns a tensor of `count` rows: g begins at row `start`, and all other rows are zeros."""
    if g is None:
        return None
    whole = g.new_zeros(count, *g.shape[1:])
    whole[start : start + len(g)] = g
    return whole


def _differentiable(ctx: Any, operands: Sequence[Any], grads: Gradients) -> Gradients:
    """Returns the gradients of the operands; autograd can differentiate these gradients again."""
    results = ctx.steps.loop(*operands)
    pairs = [(y, g) for y, g in zip(results, grads, strict=True) if g is not None]
    outputs, output_grads = zip(*pairs, strict=True)
    needs = ctx.needs_input_grad[1:]
    inputs = [x for x, n in zip(operands, needs, strict=True) if n]
    input_grads = iter(
        torch.autograd.grad(outputs, inputs, output_grads, create_graph=True, allow_unused=True)
    )
    return tuple(next(input_grads) if n else None for n in needs)
