# SPDX-License-Identifier: Apache-2.0
"""`autocast`: torch's functions computed as a recipe says."""

# torch's modes and graphs are untyped.
# mypy: disable-error-code="no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from cpd._torch.private import RECURRENT, TorchDispatchMode, autograd_node
from cpd._torch.rounding import rounded
from cpd.nn import attention, contractions, convolution, embedding, functional, grouped, norms
from cpd.nn.arguments import autocast_type
from cpd.nn.checkpoints import activation_checkpoint
from cpd.nn.products import is_ours, is_product, name_of
from cpd.nn.recipe import RecipeLike, as_recipe
from cpd.numeric.numbers import Number, check_number
from cpd.numeric.purposes import Purpose
from cpd.numeric.renamed import refuses_old
from cpd.numeric.streams import MAX_LAYERS, stream_tag
from cpd.ops.arguments import check_whole


@refuses_old
class autocast(TorchFunctionMode):  # noqa: N801  # as torch.autocast
    """Computes torch's functions as a recipe says, within `with cpd.autocast(recipe):`.

    The functions are:

    - of torch.nn.functional: linear, the convolutions, attention (by the recipe's `attention`),
      grouped_mm, bilinear, the normalizations, softmax and embedding (rounded as the recipe says);
    - matmul: @, mm, mv, bmm, dot, outer, inner, tensordot, einsum of two tensors; addmm, addmv,
      addbmm, baddbmm, addr, which add to the product by torch; torch.linalg.matmul and those of
      torch.ops.aten;
    - if the recipe has `residual`: the addition of two tensors of one shape.

    All calls to them count, also by torch's own modules, by position or by name, and with `out=`. A
    converted layer has its own recipe. All other products (lstm, cdist, multi_dot, einsum of three
    tensors, …) remain torch's, and so do products of sparse operands and of other types than
    float32, bfloat16 and float16. `left` counts them by name, or as aten's operation. It does not
    see compiled code, nor operators that other packages define. Attention that is written out of
    matmul and softmax takes the recipe itself: `cpd.convert` knows attention as such.

    In a 16-bit type, alpha times a product plus beta times an input is formed in float32 and
    rounded once.

    Arguments mean what they mean in torch: `beta=0` ignores the input, a size of 1 broadcasts in
    einsum and tensordot, and shapes that torch refuses raise torch's error. Nested tensors and
    DTensors raise TypeError.

    Sums of addbmm, tensordot and einsum run over all summed dimensions, the last the fastest, in
    the order in which the first operand has them.

    Args:
        recipe: as for `cpd.convert`; its rules and schedule are ignored.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the stream of all random bits, as `seed`. Calls are numbered from 0 whenever the
            context is entered, and use this stream XOR number << 20. Default 0.
        coverage: whether `left` also counts what is called below the level of torch's functions.
            Counting takes some microseconds for each operation of torch within the context, which
            small models notice. Default True; False: it counts functions alone.

    Raises:
        ValueError: if the recipe's scaling is delayed.

    It works under torch.compile, inside the compiled function and around it. A function under
    activation checkpointing must enter the context itself, as it is recomputed outside of any
    context around it: else a call raises RuntimeError. One context is not for several threads at
    once.

    >>> import cpd
    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast(cpd.Recipe(sums="e4m3")):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    _forms: ClassVar[Mapping[str, Callable[..., Any]]]
    """The functional forms of torch's functions, by their names in `_NAMES`."""

    def __init__(
        self,
        recipe: RecipeLike,
        *,
        seed: Number = 0,
        stream: Number = 0,
        coverage: bool = True,
    ) -> None:
        super().__init__()
        self.recipe = as_recipe(recipe)
        if any(
            how is not None and how._kept.delays for how in (self.recipe, self.recipe.attention)
        ):
            raise ValueError(
                "autocast keeps no scales of former steps, which the recipe asks for: cpd.convert "
                "does, in each layer"
            )
        for name, number in (("seed", seed), ("stream", stream)):
            check_number(name, number)
        self.seed, self.stream = seed, stream
        self.left: dict[str, int] = {}
        self._calls = 0
        self._paused = 0
        self._around: Any = None
        self._watch = coverage
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
        form = self._forms.get(name)
        if form is not None:
            result = self._formed(form, name, args, dict(keywords))
            if result is not NotImplemented:
                return result
        if name in ADDITIONS or torch.compiler.is_compiling():
            return func(*args, **keywords)
        with unwatched():
            result = func(*args, **keywords)
        self.left[name] = self.left.get(name, 0) + 1
        return result

    def _formed(
        self, form: Callable[..., Any], name: str, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """The result of a function by its form; NotImplemented where torch's computes it."""
        out = keywords.pop("out", None)
        tensors = _tensors((*args, *keywords.values()))
        if not _are_ours(tensors) or (out is not None and not _takes(out, tensors)):
            return NotImplemented
        asks = any(isinstance(x, torch.dtype) for x in (*args, *keywords.values()))  # out_dtype
        if not asks and _refuses_types(name, tensors):
            return NotImplemented  # torch's function raises
        if name not in ADDITIONS:
            for x in tensors:
                check_whole(f"an operand of {name}", x)
        if activation_checkpoint() is not self._around:
            raise RuntimeError(
                "activation checkpointing would recompute this outside of cpd.autocast: enter "
                "the context within the function that is checkpointed"
            )
        if name in contractions.OF_OPERANDS:
            args, keywords = contractions.in_order(args, keywords)
        result = form(self, *args, **keywords)
        if out is None or result is NotImplemented:
            return result
        return _written(out, result) if out.dtype == result.dtype else NotImplemented

    def _next(self, products: int = 1) -> dict[str, Any]:
        """Counts a call of `products` products.

        Returns the keywords of its functional form: the recipe, the seed, the stream.
        """
        if not self.recipe._kept.draws:
            return {"recipe": self.recipe}
        number = self._calls % MAX_LAYERS
        self._calls += 1
        stream = self.stream ^ stream_tag(Purpose.given, number)
        return {"recipe": self.recipe, "seed": self.seed, "stream": stream}


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
        in_backward = autograd_node() is not None  # counted in the forward pass
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


def _grouped_mm(mode: autocast, a: Tensor, b: Tensor, offs: Any = None, **rest: Any) -> Tensor:
    groups = 1 if offs is None else offs.numel()
    return grouped.grouped_mm(a, b, offs=offs, **rest, **mode._next(groups))


def _as_torch(form: Callable[..., Any], products: int = 1) -> Callable[..., Any]:
    """Returns the entry of `FORMS` for a functional form of `products` products.

    The arguments are those of torch's function.
    """

    def compute(mode: autocast, *args: Any, **kwargs: Any) -> Any:
        return form(*args, **kwargs, **mode._next(products))

    return compute


def _softmax(mode: autocast, *args: Any, **kwargs: Any) -> Tensor:
    how = mode._next(0)
    to = how.pop("recipe").softmax
    return rounded(F.softmax(*args, **kwargs), to, to, **how)


def _add(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    how = mode._next(0)
    to = how.pop("recipe").residual
    sum_of = torch.add(input, other, alpha=alpha)
    if to is None or not isinstance(other, Tensor) or input.is_nested or input.shape != other.shape:
        return sum_of
    return rounded(sum_of, to, to, **how)


def _add_in_place(mode: autocast, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return input.copy_(_add(mode, input, other, alpha=alpha))


FORMS: dict[str, Callable[..., Any]] = {
    **contractions.FORMS,
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
autocast._forms = FORMS
ADDITIONS = ("add", "add_")
_LEFT = (
    *("chain_matmul", "cdist", "embedding_bag", "lstm", "gru", "rnn_tanh", "rnn_relu"),
    *("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"),
)
_TORCHS = {
    "matmul": "matmul __matmul__",
    "rmatmul": "__rmatmul__",
    **{name: name for name in contractions.FORMS if name not in ("linear", "matmul", "rmatmul")},
    "dot": "dot vdot",
    "outer": "outer ger",
    "bilinear": "bilinear",
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
            for home in (torch, Tensor, F, RECURRENT):
                if hasattr(home, name):
                    found[getattr(home, name)] = ours
            packet = getattr(torch.ops.aten, name, None) if ours in _OF_ATEN else None
            if packet is not None:
                found[packet] = found[packet.default] = ours
    found[torch.linalg.matmul] = "matmul"
    found[torch.linalg.multi_dot] = "multi_dot"
    found[torch.ops.aten.linear] = found[torch.ops.aten.linear.default] = "linear"
    return found


_OF_ATEN = {*contractions.FORMS, "grouped_mm"} - {"linear", "rmatmul", "tensordot", "einsum"}
"""Products whose operations of torch.ops.aten have the arguments of torch's functions."""


_NAMES = _names()
_OURS = (torch.float32, torch.bfloat16, torch.float16)


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    """The tensors among arguments and in their lists."""
    found: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            found.append(value)
        elif isinstance(value, (list, tuple)):
            found += [x for x in value if isinstance(x, Tensor)]
    return found


def _are_ours(tensors: Sequence[Tensor]) -> bool:
    """Returns whether tensors are dense and of types that products take.

    Indices and masks do not count. Products refuse nested tensors by themselves.
    """
    floats = [x.dtype for x in tensors if x.is_floating_point()]
    dense = all(x.layout is torch.strided or x.is_nested for x in tensors)
    exact = all(dtype in _OURS for dtype in floats) and not any(x.is_complex() for x in tensors)
    return dense and exact and len(floats) > 0


_OF_ONE_TYPE = {
    *(contractions.FORMS.keys() - {"outer", "addr", "addr_"}),  # products of elements
    *(name for name in FORMS if "conv" in name),
    *("bilinear", "grouped_mm", "scaled_dot_product_attention"),
}
"""Functions that torch refuses for operands of two types."""
_NORMS = ("layer_norm", "group_norm", "batch_norm", "instance_norm")


def _refuses_types(name: str, tensors: Sequence[Tensor]) -> bool:
    """Returns whether torch's function of that name refuses the tensors' types."""
    if name in _NORMS:
        return norms.mixes_types(tensors[0], tensors[1:])
    if name not in _OF_ONE_TYPE:
        return False
    is_masked = name == "scaled_dot_product_attention" and len(tensors) > 3
    if is_masked and attention.refuses_mask(tensors[0], tensors[3]):
        return True
    types = {x.dtype for x in tensors[:3] if x.is_floating_point()}
    return len(types) > 1 and autocast_type(tensors[0]) is None


def _takes(out: Any, tensors: Sequence[Tensor]) -> bool:
    """Returns whether a form may write into `out=`; torch refuses it with gradients."""
    if not isinstance(out, Tensor) or not _are_ours([out]):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (out, *tensors)))


def _written(out: Tensor, result: Tensor) -> Tensor:
    """`out`, resized as torch does, with the result's values."""
    if out.shape == result.shape:
        return out.copy_(result)
    return torch.ops.aten.clone.out(result, out=out)
