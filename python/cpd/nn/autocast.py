# SPDX-License-Identifier: Apache-2.0
"""`autocast`: torch's functions computed as a recipe says."""

# torch's modes and graphs are untyped.
# mypy: disable-error-code="no-untyped-call,no-any-return"

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode

from cpd._torch.rounding import rounded
from cpd.nn import attention, convolution, embedding, functional, grouped, norms
from cpd.nn.checkpoints import activation_checkpoint
from cpd.nn.products import is_ours, is_product, name_of
from cpd.nn.ready import recipe as _recipe
from cpd.nn.recipe import RecipeLike
from cpd.numeric.numbers import Number, check_number
from cpd.numeric.purposes import Purpose
from cpd.numeric.streams import MAX_LAYERS, stream_tag


class autocast(TorchFunctionMode):  # noqa: N801  # as torch.autocast
    """Within `with cpd.autocast(recipe):` torch's functions compute as the recipe says.

    These are, of torch.nn.functional, linear, the convolutions, attention (of the recipe's
    `attention`), grouped_mm, bilinear, the normalisations, softmax and embedding (rounded as the
    recipe says); matmul (@, mm, mv, bmm, dot, outer, inner, tensordot, einsum of two tensors;
    addmm, addmv, addbmm, baddbmm, addr, which add to the product by torch), torch.linalg.matmul
    and those of torch.ops.aten; and, where the recipe has `residual`, the addition of two tensors
    of one shape: all calls to them, also those that torch's own modules make. A converted layer
    keeps its own recipe. All other products (lstm, cdist, multi_dot, einsum of three tensors, …),
    and those of other types than float32, bfloat16 and float16, stay torch's; `left` counts them
    by name, or as aten's operation, except in compiled code and within operators that other
    packages define, which are not looked into. Attention that is written out of matmul and softmax
    takes the recipe itself: `cpd.convert` knows attention as such.

    Sums of addbmm, tensordot and einsum run over all summed dimensions, the last the fastest, in
    the order in which the first operand has them.

    Args:
        recipe: as for `cpd.convert`; its rules and schedule are ignored. Raises ValueError where
            its scaling is delayed.
        stream: of all random bits, instead of the streams of the recipe's parts: a tensor, for
            compiled steps. The calls, numbered whenever the context is entered, draw from it XOR
            number << 20.
        watch: whether `left` also counts what is called below the level of torch's functions. That
            takes some microseconds for each operation of torch within the context, which small
            models notice; False: it counts functions alone.

    Works under torch.compile, inside the compiled function and around it. A function under
    activation checkpointing must enter the context itself, as it is recomputed outside of any
    context around it: else a call raises RuntimeError. Not for several threads at once.

    >>> import cpd
    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast(cpd.Recipe(sums="e4m3")):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    forms: ClassVar[Mapping[str, Callable[..., Any]]]
    """What computes torch's functions, by their names in `_NAMES`."""

    def __init__(self, recipe: RecipeLike, *, stream: Number = 0, watch: bool = True) -> None:
        super().__init__()
        self.recipe = _recipe(recipe)
        if any(how is not None and how.delays for how in (self.recipe, self.recipe.attention)):
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
        self._watch = watch
        self._unseen: list[Unseen] = []

    def __enter__(self) -> autocast:
        self._calls = 0
        self._around = activation_checkpoint()
        if self._watch and not torch.compiler.is_compiling():
            self._unseen.append(Unseen(self.left).__enter__())
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        if self._unseen:
            self._unseen.pop().__exit__(*error)

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
        if keywords.get("out") is None:
            keywords = {key: value for key, value in keywords.items() if key != "out"}
        if name in _OF_OPERANDS:
            args, keywords = _in_order(args, keywords)
        if form is not None and _are_ours(args) and "out" not in keywords:
            if activation_checkpoint() is not self._around:
                raise RuntimeError(
                    "activation checkpointing would recompute this outside of cpd.autocast: enter "
                    "the context within the function that is checkpointed"
                )
            result = form(self, *args, **keywords)
            if result is not NotImplemented:
                return result
        if name in ADDITIONS or torch.compiler.is_compiling():
            return func(*args, **keywords)
        self.left[name] = self.left.get(name, 0) + 1
        with unwatched():
            return func(*args, **keywords)

    def next(self, products: int = 1) -> dict[str, Any]:
        """Counts a call of so many products, and returns the keywords of its functional form: the
        recipe, the stream."""
        if not self.recipe.draws:
            return {"recipe": self.recipe}
        number = self._calls % MAX_LAYERS
        self._calls += 1
        return {"recipe": self.recipe, "stream": self.stream ^ stream_tag(Purpose.given, number)}


class Unseen(TorchDispatchMode):
    """Counts in `left` the products that torch computes below its functions' level."""

    supports_higher_order_operators = True
    _unwatched: ClassVar[int] = 0

    def __init__(self, left: dict[str, int]) -> None:
        super().__init__()
        self.left = left

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """True: compiled functions stay compiled within it."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        in_backward = torch._C._current_autograd_node() is not None  # counted in the forward pass
        if not (Unseen._unwatched or in_backward or is_ours(func)) and is_product(func):
            name = name_of(func)
            self.left[name] = self.left.get(name, 0) + 1
        return result


@contextmanager
def unwatched() -> Iterator[None]:
    """A context in which nothing is counted below the level of torch's functions."""
    Unseen._unwatched += 1
    try:
        yield
    finally:
        Unseen._unwatched -= 1


@contextmanager
def paused() -> Iterator[None]:
    """A context in which no `autocast` does anything."""
    pause(1)
    try:
        yield
    finally:
        pause(-1)


def pause(count: int) -> None:
    """Pauses each `autocast` that is entered now, once more, or with -1 once less."""
    stack: list[Any] = _get_current_function_mode_stack()
    for mode in stack:
        if isinstance(mode, autocast):
            mode._paused += count


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
    return _adding(_matmul)(mode, input, a, b, beta=beta, alpha=alpha)


def _adding(product: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The form of beta * input + alpha * (a product)."""

    def compute(
        mode: autocast, input: Tensor, *operands: Tensor, beta: Any = 1, alpha: Any = 1
    ) -> Tensor:
        made = product(mode, *operands)
        return torch.add(made if alpha == 1 else alpha * made, input, alpha=beta)

    return compute


def _in_place(form: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The form that writes into its first operand."""

    def compute(mode: autocast, input: Tensor, *operands: Tensor, **factors: Any) -> Tensor:
        return input.copy_(form(mode, input, *operands, **factors))

    return compute


def _outer(mode: autocast, a: Tensor, b: Tensor) -> Tensor:
    return _matmul(mode, a.unsqueeze(1), b.unsqueeze(0))


def _batch_summed(mode: autocast, a: Tensor, b: Tensor) -> Tensor:
    return _tensordot(mode, a, b, ([0, 2], [0, 1]))


def _inner(mode: autocast, a: Tensor, b: Tensor) -> Tensor:
    return _tensordot(mode, a, b, ([-1], [-1])) if a.dim() and b.dim() else NotImplemented


def _tensordot(mode: autocast, a: Tensor, b: Tensor, dims: Any = 2) -> Tensor:
    if isinstance(dims, Tensor):
        dims = dims.tolist()
    if isinstance(dims, int):
        dims = list(range(a.dim() - dims, a.dim())), list(range(dims))
    of_a, of_b = ([d % x.dim() for d in _listed(ds)] for x, ds in zip((a, b), dims, strict=True))
    if not of_a:
        return NotImplemented
    letters = iter(string.ascii_letters)
    in_a = [next(letters) for _ in range(a.dim())]
    in_b = [next(letters) for _ in range(b.dim())]
    for d, e in zip(of_a, of_b, strict=True):
        in_b[e] = in_a[d]
    free = [x for x in in_a + in_b if not (x in in_a and x in in_b)]
    return _pair(mode, a, b, in_a, in_b, free)


def _listed(dims: Any) -> list[int]:
    return [dims] if isinstance(dims, int) else list(dims)


def _einsum(mode: autocast, equation: Any, *operands: Any) -> Tensor:
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    match = _TWO.fullmatch(equation.replace(" ", "")) if isinstance(equation, str) else None
    if match is None or len(operands) != 2:
        return NotImplemented
    in_a, in_b = match[1], match[2]
    out = match[3]
    if out is None:
        both = in_a + in_b
        out = "".join(sorted(x for x in both if both.count(x) == 1))
    once = all(len(set(text)) == len(text) for text in (in_a, in_b, out))
    summed_alone = set(in_a) ^ set(in_b)
    if not once or not summed_alone <= set(out) or not set(out) <= set(in_a + in_b):
        return NotImplemented
    return _pair(mode, *operands, list(in_a), list(in_b), list(out))


_TWO = re.compile("([a-zA-Z]*),([a-zA-Z]*)(?:->([a-zA-Z]*))?")


def _pair(
    mode: autocast, a: Tensor, b: Tensor, in_a: list[str], in_b: list[str], out: list[str]
) -> Tensor:
    """The product of two tensors by the letters of their dimensions: those of `out` are kept, the
    others, which both have, are summed over in a's order."""
    batch = [x for x in in_a if x in in_b and x in out]
    summed = [x for x in in_a if x in in_b and x not in out]
    rows, columns = ([x for x in own if x in out and x not in batch] for own in (in_a, in_b))
    size = dict(zip(in_a + in_b, (*a.shape, *b.shape), strict=True))

    def arranged(x: Tensor, own: list[str], *parts: list[str]) -> Tensor:
        moved = x.permute([own.index(letter) for part in parts for letter in part])
        return moved.reshape([size[i] for i in batch] + [_product(size, p) for p in parts[1:]])

    left = arranged(a, in_a, batch, rows, summed)
    made = _matmul(mode, left, arranged(b, in_b, batch, summed, columns))
    has = batch + rows + columns
    return made.reshape([size[x] for x in has]).permute([has.index(x) for x in out])


def _product(size: dict[str, int], letters: list[str]) -> int:
    return math.prod(size[x] for x in letters)


def _grouped_mm(mode: autocast, a: Tensor, b: Tensor, offs: Any = None, **rest: Any) -> Tensor:
    groups = 1 if offs is None else offs.numel()
    return grouped.grouped_mm(a, b, offs=offs, **rest, **mode.next(groups))


def _as_torch(form: Callable[..., Any], products: int = 1) -> Callable[..., Any]:
    """The entry of `FORMS` for a functional form of so many products, whose arguments are those of
    torch's function."""

    def compute(mode: autocast, *args: Any, **kwargs: Any) -> Any:
        return form(*args, **kwargs, **mode.next(products))

    return compute


def _softmax(mode: autocast, *args: Any, **kwargs: Any) -> Tensor:
    how = mode.next(0)
    to = how["recipe"].softmax
    return rounded(F.softmax(*args, **kwargs), to, to, **_draws(how))


def _draws(how: dict[str, Any]) -> dict[str, Any]:
    """The keywords of `rounded` that choose its random bits."""
    return {"stream": how.get("stream"), "layer": how["recipe"].layer}


def _add(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    how = mode.next(0)
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
    "addmm_": _in_place(_addmm),
    "addr": _adding(_outer),
    "addr_": _in_place(_adding(_outer)),
    "addbmm": _adding(_batch_summed),
    "addbmm_": _in_place(_adding(_batch_summed)),
    "outer": _outer,
    "inner": _inner,
    "tensordot": _tensordot,
    "einsum": _einsum,
    "add": _add,
    "add_": _add_in_place,
    "bilinear": _as_torch(functional.bilinear, 2),
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
    "scaled_dot_product_attention": _as_torch(attention.scaled_dot_product_attention, 2),
    "multi_head_attention_forward": _as_torch(attention.multi_head_attention, 4),
}
autocast.forms = FORMS
ADDITIONS = ("add", "add_")
_LEFT = (
    *("chain_matmul", "cdist", "embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
_TORCHS = {
    "matmul": "matmul mm mv bmm dot vdot __matmul__",
    "rmatmul": "__rmatmul__",
    "addmm": "addmm addmv baddbmm",
    "addmm_": "addmm_ addmv_ baddbmm_",
    "addr": "addr",
    "addr_": "addr_",
    "addbmm": "addbmm",
    "addbmm_": "addbmm_",
    "outer": "outer ger",
    "inner": "inner",
    "bilinear": "bilinear",
    "tensordot": "tensordot",
    "einsum": "einsum",
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
            packet = getattr(torch.ops.aten, name, None) if ours in _OF_ATEN else None
            if packet is not None:
                found[packet] = found[packet.default] = ours
    found[torch.linalg.matmul] = "matmul"
    found[torch.linalg.multi_dot] = "multi_dot"
    found[torch.ops.aten.linear] = found[torch.ops.aten.linear.default] = "linear"
    return found


_OF_ATEN = ("matmul", "addmm", "addmm_", "addbmm", "addr", "outer", "inner", "grouped_mm")
"""Products whose operations of torch.ops.aten have the arguments of torch's functions."""


_NAMES = _names()
_OURS = (torch.float32, torch.bfloat16, torch.float16)


_OF_OPERANDS = frozenset({*_OF_ATEN, "rmatmul", "addbmm_", "addr_", "tensordot"})
"""Functions of tensors alone, whose names for them differ: mat2, batch2, vec2, other, …"""


def _in_order(
    args: Sequence[Any], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of such a function with its tensors by position, as their names follow one
    another in the alphabet, `input` first."""
    names = [name for name, value in keywords.items() if isinstance(value, Tensor)]
    names.sort(key=lambda name: (name not in ("input", "self"), name))
    rest = {name: value for name, value in keywords.items() if name not in names}
    return (*args, *(keywords[name] for name in names)), rest


def _are_ours(operands: Sequence[Any]) -> bool:
    """Whether tensors are of types that products take; indices and masks do not count."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    floats = [x.dtype for x in tensors if x.is_floating_point()]
    exact = all(dtype in _OURS for dtype in floats) and not any(x.is_complex() for x in tensors)
    return exact and len(floats) > 0
