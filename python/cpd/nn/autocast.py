# SPDX-License-Identifier: Apache-2.0
"""`cpd.autocast`: a context in which torch's functions compute as a recipe says."""

# Relaxes mypy's checks: torch's dispatch modes and graphs have no type annotations.
# mypy: disable-error-code="no-untyped-call,no-any-return"

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from cpd._torch.private import TorchDispatchMode, autograd_node
from cpd.nn.arguments import FORMATS
from cpd.nn.checkpoints import activation_checkpoint
from cpd.nn.contractions import in_order
from cpd.nn.operations import OPERATIONS, RESIDUAL, Operation, by_function
from cpd.nn.products import is_ours, is_product, name_of
from cpd.nn.recipe import Recipe, RecipeLike, as_recipe
from cpd.numeric.numbers import Number, check_number
from cpd.numeric.purposes import Purpose
from cpd.numeric.renamed import refuses_old
from cpd.numeric.streams import MAX_LAYERS, stream_tag
from cpd.ops.arguments import check_whole


class Mode(TorchFunctionMode):
    """A torch function mode that computes functions by the table of `cpd.nn.operations`.

    Args:
        recipe: the recipe of the operations in the table.
        operations: the table's rows, by torch's functions. torch computes all other functions.

    Attributes:
        left: the number of calls that torch computed although the table has their operation, by
            the operation's name.
    """

    _calls = _paused = 0
    _around: Any = None

    def __init__(self, recipe: Recipe, operations: Mapping[Any, Operation]) -> None:
        super().__init__()
        self.recipe = recipe
        self.left: dict[str, int] = {}
        self._operations = operations

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        keywords = kwargs or {}
        operation = None if self._paused else self._operations.get(func)
        if operation is None:
            return func(*args, **keywords)
        result = self._computed(operation, args, dict(keywords))
        if result is not NotImplemented:
            return result
        if operation.part == RESIDUAL or torch.compiler.is_compiling():
            return func(*args, **keywords)
        with unwatched():
            result = func(*args, **keywords)
        self.left[operation.name] = self.left.get(operation.name, 0) + 1
        return result

    def _computed(
        self, operation: Operation, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> Any:
        """Computes one of torch's operations as the recipe defines it.

        Returns NotImplemented if torch itself must compute the operation.
        """
        if operation.form is None:
            return NotImplemented
        out = keywords.pop("out", None)
        tensors = tensors_of((*args, *keywords.values()))
        if not _are_ours(tensors) or (out is not None and not _takes(out, tensors)):
            return NotImplemented
        asks = any(isinstance(x, torch.dtype) for x in (*args, *keywords.values()))  # out_dtype
        if not asks and operation.refuses(tensors):
            return NotImplemented  # torch's function raises an error
        if operation.part != RESIDUAL:
            for x in tensors:
                check_whole(f"an operand of {operation.name}", x)
        if activation_checkpoint() is not self._around:
            raise RuntimeError(
                "activation checkpointing would recompute this outside of cpd.autocast: enter "
                "the context within the function that is checkpointed"
            )
        if operation.in_order:
            args, keywords = in_order(args, keywords)
        result = operation.form(self, *args, **keywords)
        if out is None or result is NotImplemented:
            return result
        return _written(out, result) if out.dtype == result.dtype else NotImplemented

    def _take(self, products: int = 1) -> dict[str, Any]:
        """Counts a call of an operation that computes `products` products.

        Returns the call's recipe, seed and stream, as keywords.
        """
        raise NotImplementedError


@refuses_old
class autocast(Mode):  # noqa: N801  # as torch.autocast
    """Computes torch's functions as a recipe says, within `with cpd.autocast(recipe):`.

    The functions are:

    - of torch.nn.functional: linear, the convolutions, attention (by the recipe's `attention`),
      grouped_mm, bilinear, the normalizations, softmax and embedding (rounded as the recipe says);
    - matmul: @, mm, mv, bmm, dot, outer, inner, tensordot, einsum of two tensors; addmm, addmv,
      addbmm, baddbmm and addr (torch computes the addition); torch.linalg.matmul; and the functions
      of torch.ops.aten with these names;
    - if the recipe has `residual`: the addition of two tensors of one shape.

    All calls of these functions are emulated, also calls in torch's own modules and calls with
    `out=`. A converted layer follows its own recipe. torch computes all other products (lstm,
    cdist, multi_dot, einsum of three tensors, …), products of sparse operands, and products in
    other types than float32, bfloat16 and float16. The attribute `left` counts such products by the
    function's name or the aten operation. `left` does not count products in compiled code or in
    operators of other packages. If attention is written as matmul and softmax, the recipe itself
    computes its products, not the recipe's `attention`; only `cpd.convert` recognizes such code as
    attention.

    In a 16-bit type, alpha · product + beta · input is computed in float32 and rounded once.

    Arguments have the same meaning as in torch: `beta=0` ignores the input, a size of 1 broadcasts
    in einsum and tensordot, and invalid shapes raise torch's error. Nested tensors and DTensors
    raise TypeError.

    addbmm, tensordot and einsum form one sum over all summed dimensions. The sum is row-major, with
    the dimensions in the order of the first operand.

    Args:
        recipe: a `cpd.Recipe`, a recipe's name, text or file, or a format for all operands; its
            rules and schedule are ignored.
        seed: the seed of all random bits, an int or a one-element integer tensor; default 0.
        stream: the stream of all random bits, as `seed`. Calls are numbered from 0 whenever the
            context is entered, and use this stream XOR number << 20. Default 0.
        coverage: whether `left` also counts products that torch's functions compute internally;
            default True. This takes some microseconds for each operation of torch within the
            context, which slows small models. False: `left` counts only functions.

    Raises:
        ValueError: if the recipe's scaling is delayed.

    The context works under torch.compile, inside the compiled function and around it. A function
    under activation checkpointing must enter the context itself, because it is recomputed outside
    of any surrounding context; otherwise a call raises RuntimeError. Several threads must not use
    one context at the same time.

    >>> import cpd
    >>> x, w = torch.ones(2, 40), torch.ones(3, 40)
    >>> with autocast(cpd.Recipe(sums="e4m3")):
    ...     (x @ w.T)[0].tolist()
    [16.0, 16.0, 16.0]
    """

    def __init__(
        self,
        recipe: RecipeLike,
        *,
        seed: Number = 0,
        stream: Number = 0,
        coverage: bool = True,
    ) -> None:
        super().__init__(as_recipe(recipe), _OPERATIONS)
        parts = (self.recipe, self.recipe.attention)
        if any(part is not None and part._kept.delays for part in parts):
            raise ValueError(
                "the recipe's scales depend on past steps, which cpd.autocast does not store: use "
                "cpd.convert"
            )
        for name, number in (("seed", seed), ("stream", stream)):
            check_number(name, number)
        self.seed, self.stream = seed, stream
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

    def _take(self, products: int = 1) -> dict[str, Any]:
        if not self.recipe._kept.draws:
            return {"recipe": self.recipe}
        number = self._calls % MAX_LAYERS
        self._calls += 1
        stream = self.stream ^ stream_tag(Purpose.given, number)
        return {"recipe": self.recipe, "seed": self.seed, "stream": stream}


_OPERATIONS = by_function(
    row._replace(form=None) if row.only_modules else row for row in OPERATIONS
)


class Unseen(TorchDispatchMode):
    """Counts the products that torch's functions compute internally, by name in torch.ops.aten."""

    supports_higher_order_operators = True
    _unwatched: ClassVar[int] = 0

    def __init__(self, left: dict[str, int]) -> None:
        super().__init__()
        self.left = left

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Returns True: compiled functions remain compiled within this mode."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        result = func(*args, **keywords)
        in_backward = autograd_node() is not None  # already counted in the forward pass
        if not (Unseen._unwatched or in_backward or is_ours(func)) and is_product(func):
            name = name_of(func)
            self.left[name] = self.left.get(name, 0) + 1
        return result


@contextmanager
def unwatched() -> Iterator[None]:
    """A context in which `autocast.left` ignores the products within torch's functions."""
    Unseen._unwatched += 1
    try:
        yield
    finally:
        Unseen._unwatched -= 1


@contextmanager
def paused() -> Iterator[None]:
    """A context in which every `Mode` is inactive."""
    pause(1)
    try:
        yield
    finally:
        pause(-1)


def pause(count: int) -> None:
    """Pauses each `Mode` on torch's stack of function modes (`count` 1), or ends a pause (-1).

    A paused `Mode` leaves all functions to torch, and counts nothing. Pauses may be nested.
    """
    stack: list[Any] = _get_current_function_mode_stack()
    for mode in stack:
        if isinstance(mode, Mode):
            mode._paused += count


# ---- arguments -----------------------------------------------------------------------------------


def tensors_of(values: Iterable[Any]) -> list[Tensor]:
    """Returns the tensors among the arguments and in lists among the arguments."""
    tensors: list[Tensor] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, (list, tuple)):
            tensors += [x for x in value if isinstance(x, Tensor)]
    return tensors


def _are_ours(tensors: Sequence[Tensor]) -> bool:
    """Returns True if the tensors are dense and of types that products support.

    Indices and masks are not checked. Products themselves raise an error for nested tensors.
    """
    floats = [x.dtype for x in tensors if x.is_floating_point()]
    dense = all(x.layout is torch.strided or x.is_nested for x in tensors)
    exact = all(dtype in FORMATS for dtype in floats) and not any(x.is_complex() for x in tensors)
    return dense and exact and len(floats) > 0


def _takes(out: Any, tensors: Sequence[Tensor]) -> bool:
    """Returns True if a result may be written to `out=`; with gradients, torch raises an error."""
    if not isinstance(out, Tensor) or not _are_ours([out]):
        return False
    return not (torch.is_grad_enabled() and any(x.requires_grad for x in (out, *tensors)))


def _written(out: Tensor, result: Tensor) -> Tensor:
    """Copies the tensor `result` to `out`, resizing `out` as torch does, and returns `out`."""
    if out.shape == result.shape:
        return out.copy_(result)
    return torch.ops.aten.clone.out(result, out=out)
