# SPDX-License-Identifier: Apache-2.0
"""Functional code as a recipe says: `autocast`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from cpd.nn import functional
from cpd.nn.recipe import RecipeLike
from cpd.nn.recipe import recipe as _recipe
from cpd.numeric.options import Number, check_number
from cpd.numeric.streams import MAX_LAYERS, stream_tag


class autocast(TorchFunctionMode):  # noqa: N801  # as torch.autocast
    """Within `with cpd.autocast(recipe):` torch's functions compute as the recipe says.

    These are torch.nn.functional.linear, matmul (@, mm, mv, bmm, addmm, baddbmm), conv2d and, where
    the recipe has `residual`, the addition of two tensors of one shape: calls to them, also those
    that torch's own modules make. A converted layer keeps its own recipe. Functions that hold
    products within them and are not among these (einsum, tensordot, lstm, …), and products of other
    types than float32, bfloat16 and float16, stay torch's; `left` counts them by name.

    Args:
        recipe: a `cpd.Recipe`, or one accumulator.
        stream: of all random bits, instead of the streams of the recipe's parts: a tensor, for
            compiled steps. The calls, numbered whenever the context is entered, draw from it XOR
            number << 20.

    Works under torch.compile, within and around. Not for several threads at once.

    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast("e4m3"):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    def __init__(self, recipe: RecipeLike, *, stream: Number = 0) -> None:
        super().__init__()
        self.recipe = _recipe(recipe)
        check_number("stream", stream)
        self.stream = stream
        self.left: dict[str, int] = {}
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
        name = None if self._paused else _NAMES.get(func)
        if name is None:
            return func(*args, **given)
        form = _FORMS.get(name)
        if form is not None and _are_ours(args) and "out" not in given:
            return form(self, *args, **given)
        if name not in _ADDITIONS and not torch.compiler.is_compiling():
            self.left[name] = self.left.get(name, 0) + 1
        return func(*args, **given)

    def next(self) -> dict[str, Any]:
        """What the functional form of the next call takes."""
        if not self.recipe.draws:
            return {"recipe": self.recipe}
        number = self._calls % MAX_LAYERS
        self._calls += 1
        return {"recipe": self.recipe, "stream": self.stream ^ stream_tag("given", number)}


@contextmanager
def paused() -> Iterator[None]:
    """Within it no `autocast` does anything."""
    modes = [m for m in _get_current_function_mode_stack() if isinstance(m, autocast)]
    for mode in modes:
        mode._paused += 1
    try:
        yield
    finally:
        for mode in modes:
            mode._paused -= 1


# ---- torch's functions, by name -------------------------------------------------------------------


def _linear(mode: autocast, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return functional.linear(input, weight, bias, **mode.next())


def _matmul(mode: autocast, input: Tensor, other: Tensor) -> Tensor:
    how = mode.next()
    return functional.matmul(input, other, how.pop("recipe"), **how)


def _rmatmul(mode: autocast, other: Tensor, input: Tensor) -> Tensor:
    return _matmul(mode, input, other)


def _addmm(
    mode: autocast, input: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1
) -> Tensor:
    if input.dim() == 1 and beta == 1 and alpha == 1 and input.shape[0] == b.shape[-1]:
        return _linear(mode, a, b.t(), input)
    product = _matmul(mode, a, b)
    return torch.add(product if alpha == 1 else alpha * product, input, alpha=beta)


def _conv2d(mode: autocast, *args: Any, **kwargs: Any) -> Tensor:
    return functional.conv2d(*args, **kwargs, **mode.next())


def _add(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    how = mode.next()
    to = how["recipe"].residual
    sum_of = torch.add(input, other, alpha=alpha)
    if to is None or not isinstance(other, Tensor) or input.shape != other.shape:
        return sum_of
    return rounded(sum_of, to, to, stream=how.get("stream"), layer=how["recipe"].layer)


def _add_in_place(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return input.copy_(_add(mode, input, other, alpha=alpha))


_FORMS: dict[str, Callable[..., Tensor]] = {
    "linear": _linear,
    "matmul": _matmul,
    "rmatmul": _rmatmul,
    "addmm": _addmm,
    "conv2d": _conv2d,
    "add": _add,
    "add_": _add_in_place,
}
_ADDITIONS = ("add", "add_")
_LIKE_MATMUL = ("mm", "mv", "bmm")
_LEFT = (
    "einsum tensordot inner addbmm addmv chain_matmul bilinear cdist embedding_bag "
    "multi_head_attention_forward lstm gru rnn_tanh rnn_relu conv1d conv3d conv_transpose1d "
    "conv_transpose2d conv_transpose3d scaled_dot_product_attention layer_norm rms_norm group_norm "
    "batch_norm instance_norm embedding softmax"
).split()


def _names() -> dict[Any, str]:
    """Torch's functions and what they are called here."""
    homes = (torch, F, Tensor, torch._VF)
    found: dict[Any, str] = {
        Tensor.__matmul__: "matmul",
        Tensor.__rmatmul__: "rmatmul",
        Tensor.__add__: "add",
        Tensor.__radd__: "add",
        Tensor.__iadd__: "add_",
    }
    called = {name: name for name in (*_FORMS, *_LEFT)}
    called |= dict.fromkeys(_LIKE_MATMUL, "matmul") | {"baddbmm": "addmm"}
    for torchs, ours in called.items():
        for home in homes:
            if hasattr(home, torchs):
                found[getattr(home, torchs)] = ours
    return found


_NAMES = _names()
_OURS = (torch.float32, torch.bfloat16, torch.float16)


def _are_ours(operands: Sequence[Any]) -> bool:
    """Whether all tensors are of types that products take."""
    return all(x.dtype in _OURS for x in operands if isinstance(x, Tensor))
