# SPDX-License-Identifier: Apache-2.0
"""Recurrent cells (LSTM, GRU, RNN): compute the next state from a time step's products."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from cpd._torch.kept import kept
from cpd.nn import recurrent_native
from cpd.numeric.shown import shown


@kept
def _lstm_step(x: Tensor, y: Tensor, c: Tensor, **none: Any) -> list[Tensor]:
    i, f, g, o = (x + y).chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return [o.sigmoid() * c.tanh(), c]


@kept
def _gru_step(x: Tensor, y: Tensor, h: Tensor, **none: Any) -> list[Tensor]:
    (x_r, x_z, x_n), (y_r, y_z, y_n) = x.chunk(3, -1), y.chunk(3, -1)
    n = (x_n + (x_r + y_r).sigmoid() * y_n).tanh()
    return [(h - n) * (x_z + y_z).sigmoid() + n]


@kept
def _tanh_step(x: Tensor, y: Tensor, **none: Any) -> list[Tensor]:
    return [(x + y).tanh()]


@kept
def _relu_step(x: Tensor, y: Tensor, **none: Any) -> list[Tensor]:
    return [(x + y).relu()]


class Kind(NamedTuple):
    """A kind of recurrent cell, such as LSTM."""

    step: Callable[..., Sequence[Tensor]]
    """Computes the next state from the input's product and the hidden state's product."""
    carries: bool
    """True if `step` needs the previous state besides the two products: an LSTM's cell state, a
    GRU's hidden state."""
    native: recurrent_native.Cell
    """`step` and its derivative, for `cpd.nn.recurrent_native`."""


LSTM = Kind(_lstm_step, True, recurrent_native.LSTM)
GRU = Kind(_gru_step, True, recurrent_native.GRU)
RNN = {
    "tanh": Kind(_tanh_step, False, recurrent_native.TANH),
    "relu": Kind(_relu_step, False, recurrent_native.RELU),
}


def activation(nonlinearity: str) -> Kind:
    """Returns the RNN cell with this activation function. Raises ValueError for an unknown name."""
    if nonlinearity not in RNN:
        raise ValueError(f"nonlinearity must be 'tanh' or 'relu', got {shown(nonlinearity)}")
    return RNN[nonlinearity]
