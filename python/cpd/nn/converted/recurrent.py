# SPDX-License-Identifier: Apache-2.0
"""Recurrent layers and cells, written out over time."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import nn

from cpd.nn import recurrent
from cpd.nn.converted.replaced import delays, idle, run_with, used
from cpd.nn.converted.state import State


def _layer(compute: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """Called as torch calls its functions: with a packed sequence its sizes come second."""

    def run(*args: Any, **how: Any) -> Any:
        if isinstance(args[3], bool):
            return compute(*args, **options, **how)
        data, sizes, *rest = args
        return compute(data, *rest, **options, **how, batch_sizes=sizes)

    return run


_LAYERS: dict[Any, Callable[..., Any]] = {
    torch._VF.lstm: _layer(recurrent.lstm),
    torch._VF.gru: _layer(recurrent.gru),
    torch._VF.rnn_tanh: _layer(recurrent.rnn),
    torch._VF.rnn_relu: _layer(recurrent.rnn, nonlinearity="relu"),
}
_CELLS: dict[Any, Callable[..., Any]] = {
    torch._VF.lstm_cell: recurrent.lstm_cell,
    torch._VF.gru_cell: recurrent.gru_cell,
    torch._VF.rnn_tanh_cell: recurrent.rnn_cell,
    torch._VF.rnn_relu_cell: functools.partial(recurrent.rnn_cell, nonlinearity="relu"),
}
"""Torch's, of which each layer here calls one, and what answers in its place."""


class EmulatedCell:
    """Torch's forward, with the function of that name of `cpd.functional`."""

    what: ClassVar[str] = "recurrence"
    functions: ClassVar[Mapping[Any, Callable[..., Any]]] = _CELLS
    cpd: State

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        forward = super().forward  # type: ignore[misc]  # the module's
        return run_with(self.functions, self.cpd, forward, *args, **kwargs)

    @classmethod
    def describe(cls, state: State) -> str:
        return used(state)

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        return delays(state, "several products") or idle(state)


class EmulatedRecurrent(EmulatedCell):
    """The same of whole layers; packed sequences too.

    torch.compile leaves torch's recurrent layers to torch, which breaks the graph, unless it is
    told to look into them: where one is emulated, it is told, for all.
    """

    functions = _LAYERS

    def __init_subclass__(cls) -> None:
        if issubclass(cls, nn.Module):
            torch._dynamo.config.allow_rnn = True


MIXINS: dict[type[nn.Module], type[Any]] = {
    **dict.fromkeys((nn.LSTM, nn.GRU, nn.RNN), EmulatedRecurrent),
    **dict.fromkeys((nn.LSTMCell, nn.GRUCell, nn.RNNCell), EmulatedCell),
}
