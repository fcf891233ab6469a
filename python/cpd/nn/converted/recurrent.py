# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and cells, written out over time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from cpd._torch.private import RECURRENT
from cpd.nn import recurrent
from cpd.nn.converted.replaced import idle, run_with, used
from cpd.nn.converted.state import State


def _layer(compute: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`compute` with the arguments of torch's function: a packed sequence's sizes come second."""

    def run(*args: Any, **how: Any) -> Any:
        if isinstance(args[3], bool):
            return compute(*args, **options, **how)
        data, sizes, *rest = args
        return compute(data, *rest, **options, **how, batch_sizes=sizes)

    return run


_LAYERS: dict[Any, Callable[..., Any]] = {
    RECURRENT.lstm: _layer(recurrent.lstm),
    RECURRENT.gru: _layer(recurrent.gru),
    RECURRENT.rnn_tanh: _layer(recurrent.rnn),
    RECURRENT.rnn_relu: _layer(recurrent.rnn, nonlinearity="relu"),
}
_CELLS: dict[Any, Callable[..., Any]] = {
    RECURRENT.lstm_cell: recurrent.lstm_cell,
    RECURRENT.gru_cell: recurrent.gru_cell,
    RECURRENT.rnn_tanh_cell: recurrent.rnn_cell,
    RECURRENT.rnn_relu_cell: functools.partial(recurrent.rnn_cell, nonlinearity="relu"),
}
"""Torch's functions, of which each layer here calls one, and what replaces them."""


class EmulatedCell:
    """Torch's forward, with the function of the same name in `cpd.functional`."""

    what: ClassVar[str] = "recurrence"
    one_type: ClassVar[bool] = True
    functions: ClassVar[Mapping[Any, Callable[..., Any]]] = _CELLS
    cpd: State

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's forward by the recipe."""
        forward = super().forward  # type: ignore[misc]  # the module's
        return run_with(self.functions, self.cpd, forward, *args, **kwargs)

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return used(state)

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return idle(state)

    @classmethod
    def histories(cls, module: Any) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return recurrent.PRODUCTS, 0


class EmulatedRecurrent(EmulatedCell):
    """Torch's forward of a whole layer, also of packed sequences, with `cpd.functional`'s function.

    torch.compile leaves torch's recurrent layers to torch, which breaks the graph, unless
    `torch._dynamo.config.allow_rnn` is set: where one is emulated it is set, for all.
    """

    functions = _LAYERS

    @classmethod
    def histories(cls, module: Any) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        directions = 2 if module.bidirectional else 1
        return recurrent.PRODUCTS * directions * module.num_layers, 0

    def __init_subclass__(cls) -> None:
        if issubclass(cls, nn.Module):
            torch._dynamo.config.allow_rnn = True


MIXINS: dict[type[nn.Module], type[Any]] = {
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), EmulatedRecurrent),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), EmulatedCell),
}
