# SPDX-License-Identifier: Apache-2.0
"""Functional code as a recipe says: `autocast`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from cpd.nn import functional
from cpd.nn.recipe import Recipe, RecipeLike
from cpd.nn.recipe import recipe as _recipe
from cpd.numeric.options import Number, check_number
from cpd.numeric.streams import MAX_LAYERS


class autocast(TorchFunctionMode):  # noqa: N801  # as torch.autocast
    """Within `with cpd.autocast(recipe):` torch's functions compute as the recipe says.

    These are torch.nn.functional.linear, matmul (@, mm, mv, bmm, addmm, baddbmm) and conv2d: calls
    to them, also those that torch's own modules make. A converted layer keeps its own recipe.
    Functions that hold products within them and are not among these (einsum, tensordot, lstm, …)
    stay torch's; `left` counts them by name.

    Args:
        recipe: a `cpd.Recipe`, or one accumulator. The calls are numbered from its layer on, so
            that each draws other random bits, anew whenever the context is entered.
        stream: instead of the streams of the recipe's parts; a tensor, for compiled steps.

    Works under torch.compile, within and around. Not for several threads at once.

    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast("e4m3"):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    def __init__(self, recipe: RecipeLike, *, stream: Number | None = None) -> None:
        super().__init__()
        self.recipe = _recipe(recipe)
        if stream is not None:
            check_number("stream", stream)
        self.stream = stream
        self.left: Counter[str] = Counter()
        self._calls = 0
        self._paused = 0

    def __enter__(self) -> autocast:
        self._calls = 0
        return super().__enter__()  # type: ignore[no-any-return]

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if self._paused:
            return func(*args, **given)
        form = _FORMS.get(func)
        if form is not None and "out" not in given:
            result = form(self, *args, **given)
            if result is not NotImplemented:
                return result
        if func in _LEFT:
            self.left[_LEFT[func]] += 1
        return func(*args, **given)

    def next(self) -> dict[str, Any]:
        """What the functional form of the next call takes of the recipe."""
        number = (self.recipe.layer + self._calls) % MAX_LAYERS
        self._calls += 1
        return {"recipe": self.recipe.for_layer(number), "stream": self.stream}
