# SPDX-License-Identifier: Apache-2.0
"""`autocast`: torch's functions computed as a recipe says."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils.checkpoint import CheckpointFunction

from cpd._torch.rounding import rounded
from cpd.nn import attention, convolution, embedding, functional, grouped, norms
from cpd.nn.ready import recipe as _recipe
from cpd.nn.recipe import RecipeLike
from cpd.numeric.numbers import Number, check_number
from cpd.numeric.purposes import Purpose
from cpd.numeric.streams import MAX_LAYERS, stream_tag


class autocast(TorchFunctionMode):  # noqa: N801  # as torch.autocast
    """Within `with cpd.autocast(recipe):` torch's functions compute as the recipe says.

    These are, of torch.nn.functional, linear, the convolutions, attention (of the recipe's
    `attention`), the normalisations, softmax and embedding (rounded as the recipe says);
    matmul (@, mm, mv, bmm, addmm, baddbmm); and, where the recipe has `residual`, the addition of
    two tensors of one shape: all calls to them, also those that torch's own modules make. A
    converted layer keeps its own recipe. Functions that hold products within them and are not
    among these (einsum, tensordot, lstm, …), and products of other types than float32, bfloat16
    and float16, stay torch's; `left` counts them by name, except in compiled code.

    Args:
        recipe: as for `cpd.convert`; its rules and schedule are ignored. Raises ValueError where
            its scaling is delayed.
        stream: of all random bits, instead of the streams of the recipe's parts: a tensor, for
            compiled steps. The calls, numbered whenever the context is entered, draw from it XOR
            number << 20.

    Works under torch.compile, inside the compiled function and around it. A function under
    activation checkpointing must enter the context itself, as it is recomputed outside of any
    context around it: else a call raises RuntimeError. Not for several threads at once.

    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast("e4m3"):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    forms: ClassVar[Mapping[str, Callable[..., Any]]]
    """What computes torch's functions, by their names in `_NAMES`."""

    def __init__(self, recipe: RecipeLike, *, stream: Number = 0) -> None:
        super().__init__()
        self.recipe = _recipe(recipe)
        if self.recipe.delays:
            raise ValueError(
                "autocast keeps no scales of former steps, which the recipe asks for: cpd.convert "
                "does, in each layer"
            )
        check_number("stream", stream)
        self.stream = stream
        self.left: dict[str, int] = {}
        self._calls = 0
        self._paused = 0
        self._around: Any = None

    def __enter__(self) -> autocast:
        self._calls = 0
        self._around = _checkpoint()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        name = None if self._paused else _NAMES.get(func)
        if name is None:
            return func(*args, **keywords)
        form = self.forms.get(name)
        if form is not None and _are_ours(args) and "out" not in keywords:
            if _checkpoint() is not self._around:
                raise RuntimeError(
                    "activation checkpointing would recompute this outside of cpd.autocast: enter "
                    "the context within the function that is checkpointed"
                )
            return form(self, *args, **keywords)
        if name not in _ADDITIONS and not torch.compiler.is_compiling():
            self.left[name] = self.left.get(name, 0) + 1
        return func(*args, **keywords)

    def next(self) -> dict[str, Any]:
        """Counts a call, and returns the recipe and stream for its functional form."""
        if not self.recipe.draws:
            return {"recipe": self.recipe}
        number = self._calls % MAX_LAYERS
        self._calls += 1
        return {"recipe": self.recipe, "stream": self.stream ^ stream_tag(Purpose.given, number)}


@contextmanager
def paused() -> Iterator[None]:
    """A context in which no `autocast` does anything."""
    stack: list[Any] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    modes = [mode for mode in stack if isinstance(mode, autocast)]
    for mode in modes:
        mode._paused += 1
    try:
        yield
    finally:
        for mode in modes:
            mode._paused -= 1


def _checkpoint() -> Any:
    """An object that identifies the surrounding activation checkpoint; None where there is none,
    or in compiled code, whose graph is recomputed with the casts in it."""
    if torch.compiler.is_compiling():
        return None
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None and hooks[0].__module__ == "torch.utils.checkpoint":
        return hooks[0]
    if torch.is_grad_enabled():
        return None
    frame: FrameType | None = sys._getframe(1)  # one with use_reentrant=True has no hooks
    while frame is not None and frame.f_code is not CheckpointFunction.forward.__code__:
        frame = frame.f_back
    return frame


# ---- torch's functions, by name ------------------------------------------------------------------


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


def _grouped_mm(mode: autocast, a: Tensor, b: Tensor, offs: Any = None, **rest: Any) -> Tensor:
    return grouped.grouped_mm(a, b, offs=offs, **rest, **mode.next())


def _as_torch(form: Callable[..., Any]) -> Callable[..., Any]:
    """The entry of `FORMS` for a functional form whose arguments are those of torch's function."""

    def compute(mode: autocast, *args: Any, **kwargs: Any) -> Any:
        return form(*args, **kwargs, **mode.next())

    return compute


def _softmax(mode: autocast, *args: Any, **kwargs: Any) -> Tensor:
    how = mode.next()
    to = how["recipe"].softmax
    return rounded(F.softmax(*args, **kwargs), to, to, **_draws(how))


def _draws(how: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `rounded` that choose its random bits."""
    return {"stream": how.get("stream"), "layer": how["recipe"].layer}


def _add(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    how = mode.next()
    to = how["recipe"].residual
    sum_of = torch.add(input, other, alpha=alpha)
    if to is None or not isinstance(other, Tensor) or input.shape != other.shape:
        return sum_of
    return rounded(sum_of, to, to, **_draws(how))


def _add_in_place(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return input.copy_(_add(mode, input, other, alpha=alpha))


FORMS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "matmul": _matmul,
    "rmatmul": _rmatmul,
    "addmm": _addmm,
    "add": _add,
    "add_": _add_in_place,
    "grouped_mm": _grouped_mm,
    "softmax": _softmax,
    "conv1d": _as_torch(convolution.conv1d),
    "conv2d": _as_torch(convolution.conv2d),
    "conv3d": _as_torch(convolution.conv3d),
    "conv_transpose1d": _as_torch(convolution.conv_transpose1d),
    "conv_transpose2d": _as_torch(convolution.conv_transpose2d),
    "conv_transpose3d": _as_torch(convolution.conv_transpose3d),
    "layer_norm": _as_torch(norms.layer_norm),
    "rms_norm": _as_torch(norms.rms_norm),
    "group_norm": _as_torch(norms.group_norm),
    "batch_norm": _as_torch(norms.batch_norm),
    "instance_norm": _as_torch(norms.instance_norm),
    "embedding": _as_torch(embedding.embedding),
    "scaled_dot_product_attention": _as_torch(attention.scaled_dot_product_attention),
    "multi_head_attention_forward": _as_torch(attention.multi_head_attention),
}
autocast.forms = FORMS
_ADDITIONS = ("add", "add_")
_LEFT = (
    *("einsum", "tensordot", "inner", "addbmm", "addmv", "chain_matmul", "bilinear", "cdist"),
    *("embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
_TORCHS = {
    "matmul": "matmul mm mv bmm __matmul__",
    "rmatmul": "__rmatmul__",
    "addmm": "addmm baddbmm",
    "add": "add __add__ __radd__",
    "add_": "add_ __iadd__",
    "grouped_mm": "grouped_mm _grouped_mm",
    "softmax": "softmax",
    "rms_norm": "rms_norm",  # which compiled programs call
    **{name: name for name in _LEFT},
}
"""Their names in torch and in its Tensor; the others are in torch.nn.functional alone."""


def _names() -> dict[Any, str]:
    """Torch's functions, each with its name in `FORMS` or `_LEFT`."""
    found = {getattr(F, name): name for name in FORMS if hasattr(F, name)}
    for ours, theirs in _TORCHS.items():
        for name in theirs.split():
            for home in (torch, Tensor, F, torch._VF):
                if hasattr(home, name):
                    found[getattr(home, name)] = ours
    return found


_NAMES = _names()
_OURS = (torch.float32, torch.bfloat16, torch.float16)


def _are_ours(operands: Sequence[Any]) -> bool:
    """Whether tensors are of types that products take; indices and masks do not count."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    floats = [x.dtype for x in tensors if x.is_floating_point()]
    exact = all(dtype in _OURS for dtype in floats) and not any(x.is_complex() for x in tensors)
    return exact and len(floats) > 0
