# SPDX-License-Identifier: Apache-2.0
"""`OPERATIONS`: a table of the torch operations that CPD can compute by a recipe.

A row has the functions of torch that perform the operation, the function that computes them by a
recipe, and torch's modules that call them. `cpd.autocast` replaces the functions. `cpd.convert`
makes the emulations of torch's modules from the rows (`cpd.nn.converted`). A new operation is a
function of `cpd.functional` and a row here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cpd._torch.private import RECURRENT
from cpd._torch.rounding import rounded
from cpd.nn import (
    attention,
    contractions,
    convolution,
    embedding,
    functional,
    grouped,
    norms,
    recurrent,
)
from cpd.nn.arguments import autocast_type

RESIDUAL = "residual"


def takes_all(tensors: Sequence[Tensor]) -> bool:
    """Returns False: torch accepts operands of different types. The default of `refuses`."""
    return False


class Operation(NamedTuple):
    """A row of `OPERATIONS`: an operation of torch, and how to compute it by a recipe."""

    name: str
    """The operation's name in errors, and in `cpd.autocast(…).left`."""
    functions: str
    """The operation's names in torch, Tensor and torch.nn.functional. A name with "F." or "linalg."
    is only in torch.nn.functional or torch.linalg."""
    form: Callable[..., Any] | None = None
    """A function of (mode, *arguments of torch's function) that computes the operation by a recipe.
    It returns NotImplemented for arguments that torch must compute. It gets the recipe, the seed
    and the stream from `mode._take(products)`. If `form` is None, torch computes the operation."""
    part: str = ""
    """The part of a recipe that rounds the operation's result; "": the operation has products."""
    refuses: Callable[[Sequence[Tensor]], bool] = takes_all
    """Returns True if torch's function raises an error for the types of these tensors."""
    aten: bool = False
    """True if torch.ops.aten also has the operations in `functions`, with the same arguments."""
    in_order: bool = False
    """True if `form` takes tensors only as positional arguments. `contractions.in_order` then moves
    tensors that the caller of torch's function gave by keyword."""
    modules: tuple[type[nn.Module], ...] = ()
    """The classes of torch's modules whose forward calls one of the functions in `functions`."""
    what: str = "products"
    """The report's word for the emulated part of a module. While the module's own forward runs,
    the functions of all operations with the same word are replaced."""
    call: Callable[..., Any] | None = None
    """A function of (module, *arguments of its forward, **recipe, seed and stream) that replaces
    the module's forward. Set it if torch's forward would be slower (linear layers, embeddings) or
    changes the operands first (the padding of convolutions). None: torch's forward runs, with its
    functions replaced."""
    only_modules: bool = False
    """True if `cpd.autocast` does not replace the functions; only `cpd.convert` does."""
    parts: tuple[str, ...] = ()
    """Parts of a recipe, such as "softmax", that the modules use in addition to sums and casts."""
    inner: tuple[str, ...] = ()
    """Names of submodules whose weights a module uses without calling them, such as "out_proj"."""
    histories: Callable[[Any], tuple[int, int]] | None = None
    """Returns the number of a module's products with separate delayed scales, and the number of its
    attention products with separate delayed scales. None: a module has one product, or, if the
    operation has a `part`, no product."""


def by_function(operations: Iterable[Operation]) -> dict[Any, Operation]:
    """Maps torch's functions to the operations that they perform."""
    return {function: row for row in operations for function in _functions(row)}


def _functions(row: Operation) -> Iterator[Any]:
    homes = {"F": (F,), "linalg": (torch.linalg,), "": (torch, Tensor, F, RECURRENT)}
    for name in row.functions.split():
        home, _, last = name.rpartition(".")
        yield from (getattr(place, last) for place in homes[home] if hasattr(place, last))
        packet = getattr(torch.ops.aten, last, None) if row.aten else None
        if packet is not None:
            yield from (packet, packet.default)


# ---- forms ---------------------------------------------------------------------------------------


def _by(function: Callable[..., Any], products: int = 1) -> Callable[..., Any]:
    """Returns a `form` of `Operation` that calls `function` with torch's arguments and a recipe.

    `function` is a function of `cpd.functional` that computes `products` products in each call.
    """

    def compute(mode: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs, **mode._take(products))

    return compute


def _grouped_mm(mode: Any, a: Tensor, b: Tensor, offs: Any = None, **rest: Any) -> Tensor:
    groups = 1 if offs is None else offs.numel()
    return grouped.grouped_mm(a, b, offs=offs, **rest, **mode._take(groups))


def _softmax(mode: Any, *args: Any, **kwargs: Any) -> Tensor:
    numbers = mode._take(0)
    to = numbers.pop("recipe").softmax
    return rounded(F.softmax(*args, **kwargs), to, to, **numbers)


def _add(mode: Any, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    numbers = mode._take(0)
    to = numbers.pop("recipe").residual
    sum_of = torch.add(input, other, alpha=alpha)
    if to is None or not isinstance(other, Tensor) or input.is_nested or input.shape != other.shape:
        return sum_of
    return rounded(sum_of, to, to, **numbers)


def _add_in_place(mode: Any, input: Tensor, other: Any, *, alpha: Any = 1) -> Tensor:
    return input.copy_(_add(mode, input, other, alpha=alpha))


def _over_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function of `cpd.nn.recurrent` so that it takes the arguments of torch's function.

    For a packed sequence, torch passes the batch sizes as the second argument.
    """

    def run(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[3], bool):
            return function(*args, **kwargs)
        data, sizes, *rest = args
        return function(data, *rest, **kwargs, batch_sizes=sizes)

    return run


# ---- types that torch refuses --------------------------------------------------------------------


def _several(tensors: Sequence[Tensor]) -> bool:
    types = {x.dtype for x in tensors[:3] if x.is_floating_point()}
    return len(types) > 1 and autocast_type(tensors[0]) is None


def _of_attention(tensors: Sequence[Tensor]) -> bool:
    if len(tensors) > 3 and attention.refuses_mask(tensors[0], tensors[3]):
        return True
    return _several(tensors)


def _of_norm(tensors: Sequence[Tensor]) -> bool:
    return norms.mixes_types(tensors[0], tensors[1:])


# ---- calls of modules ----------------------------------------------------------------------------


def _linear(module: Any, input: Tensor, **options: Any) -> Tensor:
    return functional.linear(input, module.weight, module.bias, **options)


def _convolved(m: Any, input: Tensor, **options: Any) -> Tensor:
    geometry = m.stride, m.padding, m.dilation, m.groups
    function = (convolution.conv1d, convolution.conv2d, convolution.conv3d)[m.weight.dim() - 3]
    return function(input, m.weight, m.bias, *geometry, padding_mode=m.padding_mode, **options)


_TRANSPOSED = (
    convolution.conv_transpose1d,
    convolution.conv_transpose2d,
    convolution.conv_transpose3d,
)


def _transposed(
    m: Any, input: Tensor, output_size: list[int] | None = None, **options: Any
) -> Tensor:
    rank = m.weight.dim() - 2
    further = m._output_padding(
        input, output_size, m.stride, m.padding, m.kernel_size, rank, m.dilation
    )
    geometry = m.stride, m.padding, further, m.groups, m.dilation
    return _TRANSPOSED[rank - 1](input, m.weight, m.bias, *geometry, **options)


def _embedded(m: Any, input: Tensor, *, delayed: None, **options: Any) -> Tensor:
    of_rows = m.padding_idx, m.max_norm, m.norm_type, m.scale_grad_by_freq, m.sparse
    return embedding.embedding(input, m.weight, *of_rows, **options)


def _histories_of_cell(cell: Any) -> tuple[int, int]:
    return recurrent.PRODUCTS, 0


def _histories_over_time(layer: Any) -> tuple[int, int]:
    directions = 2 if layer.bidirectional else 1
    return recurrent.PRODUCTS * directions * layer.num_layers, 0


# ---- the rows ------------------------------------------------------------------------------------


def _contraction(
    name: str, form: Callable[..., Any], functions: str = "", **fields: Any
) -> Operation:
    usual: dict[str, Any] = {"refuses": _several, "aten": True, "in_order": True}
    return Operation(name, functions or name, form, **usual | fields)


def _adding(name: str, kind: contractions.Kind, **fields: Any) -> tuple[Operation, ...]:
    form = contractions.adding(kind)
    in_place = contractions.in_place(form)
    return _contraction(name, form, **fields), _contraction(f"{name}_", in_place, **fields)


def _convolution(name: str, module: type[nn.Module], call: Callable[..., Any]) -> Operation:
    form = _by(getattr(convolution, name))
    return Operation(name, f"F.{name}", form, refuses=_several, modules=(module,), call=call)


def _norm(name: str, functions: str, *modules: type[nn.Module], **fields: Any) -> Operation:
    form = _by(getattr(norms, name))
    return Operation(name, functions, form, "norm", modules=modules, what="norm", **fields)


def _recurrent(name: str, function: Callable[..., Any], module: type[nn.Module]) -> Operation:
    fields: dict[str, Any] = {"modules": (module,), "what": "recurrence", "only_modules": True}
    if name.endswith("cell"):
        return Operation(name, name, _by(function), **fields, histories=_histories_of_cell)
    return Operation(
        name, name, _by(_over_time(function)), **fields, histories=_histories_over_time
    )


OPERATIONS = (
    _contraction(
        "linear",
        _by(functional.linear),
        "F.linear",
        in_order=False,
        modules=(nn.Linear,),
        call=_linear,
    ),
    _contraction("matmul", contractions.matmul, "matmul __matmul__ linalg.matmul"),
    _contraction("rmatmul", contractions.rmatmul, "__rmatmul__", aten=False),
    _contraction("mm", contractions.product(contractions.MM)),
    _contraction("mv", contractions.product(contractions.MV)),
    _contraction("bmm", contractions.product(contractions.BMM)),
    _contraction("dot", contractions.product(contractions.DOT), "dot vdot"),
    _contraction("outer", contractions.product(contractions.OUTER), "outer ger", refuses=takes_all),
    *_adding("addmm", contractions.MM),
    *_adding("addmv", contractions.MV),
    *_adding("baddbmm", contractions.BMM),
    *_adding("addbmm", contractions.BATCH_SUMMED),
    *_adding("addr", contractions.OUTER, refuses=takes_all),
    _contraction("inner", contractions.inner),
    _contraction("tensordot", contractions.tensordot, aten=False),
    _contraction("einsum", contractions.einsum, aten=False, in_order=False),
    _contraction("grouped_mm", _grouped_mm, "grouped_mm _grouped_mm", in_order=False),
    Operation("bilinear", "bilinear", _by(functional.bilinear, 2), refuses=_several),
    _convolution("conv1d", nn.Conv1d, _convolved),
    _convolution("conv2d", nn.Conv2d, _convolved),
    _convolution("conv3d", nn.Conv3d, _convolved),
    _convolution("conv_transpose1d", nn.ConvTranspose1d, _transposed),
    _convolution("conv_transpose2d", nn.ConvTranspose2d, _transposed),
    _convolution("conv_transpose3d", nn.ConvTranspose3d, _transposed),
    Operation(
        "scaled_dot_product_attention",
        "F.scaled_dot_product_attention",
        _by(attention.scaled_dot_product_attention, 2),
        refuses=_of_attention,
    ),
    Operation(
        "multi_head_attention_forward",
        "F.multi_head_attention_forward",
        _by(attention.multi_head_attention, 4),
        modules=(nn.MultiheadAttention,),
        what="attention",
        parts=("attention", "softmax"),
        inner=("out_proj",),
        histories=lambda module: (4, 2),
    ),
    Operation("softmax", "softmax", _softmax, "softmax"),
    _norm("layer_norm", "F.layer_norm", nn.LayerNorm, refuses=_of_norm),
    _norm("rms_norm", "rms_norm", nn.RMSNorm),  # compiled programs call torch.rms_norm
    _norm("group_norm", "F.group_norm", nn.GroupNorm, refuses=_of_norm),
    _norm(
        "batch_norm",
        "F.batch_norm",
        nn.BatchNorm1d,
        nn.BatchNorm2d,
        nn.BatchNorm3d,
        refuses=_of_norm,
    ),
    _norm(
        "instance_norm",
        "F.instance_norm",
        nn.InstanceNorm1d,
        nn.InstanceNorm2d,
        nn.InstanceNorm3d,
        refuses=_of_norm,
    ),
    Operation(
        "embedding",
        "F.embedding",
        _by(embedding.embedding),
        "embedding",
        modules=(nn.Embedding,),
        what="table",
        call=_embedded,
    ),
    Operation("add", "add __add__ __radd__", _add, RESIDUAL),
    Operation("add_", "add_ __iadd__", _add_in_place, RESIDUAL),
    _recurrent("lstm", recurrent.lstm, nn.LSTM),
    _recurrent("gru", recurrent.gru, nn.GRU),
    _recurrent("rnn_tanh", recurrent.rnn, nn.RNN),
    _recurrent("rnn_relu", functools.partial(recurrent.rnn, nonlinearity="relu"), nn.RNN),
    _recurrent("lstm_cell", recurrent.lstm_cell, nn.LSTMCell),
    _recurrent("gru_cell", recurrent.gru_cell, nn.GRUCell),
    _recurrent("rnn_tanh_cell", recurrent.rnn_cell, nn.RNNCell),
    _recurrent(
        "rnn_relu_cell", functools.partial(recurrent.rnn_cell, nonlinearity="relu"), nn.RNNCell
    ),
    Operation("cdist", "cdist"),
    Operation("chain_matmul", "chain_matmul"),
    Operation("embedding_bag", "embedding_bag"),
    Operation("multi_dot", "linalg.multi_dot"),
)
