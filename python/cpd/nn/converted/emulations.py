# SPDX-License-Identifier: Apache-2.0
"""The emulation of each kind of module by `cpd.convert`: `EMULATIONS`.

Most are made of the rows of `cpd.nn.operations`. The others run a module's own forward: modules of
other packages and user-defined ones, which `cpd.nn.registered` lists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from cpd._torch.rounding import rounded
from cpd.nn import functional
from cpd.nn.converted import dense_attention
from cpd.nn.converted.modes import ADDITIONS, ATTENTION, PRODUCTS, ByRecipe, Replacing
from cpd.nn.converted.state import State
from cpd.nn.operations import OPERATIONS, RESIDUAL, Operation, by_function
from cpd.nn.recipe_files import text_of

Forward = Callable[..., Any]
"""(module, its own forward, *arguments): the module's result."""

PARTS = ("norm", "softmax", "embedding", RESIDUAL, "attention")
TRAINING = ("optimizer", "reduce", "loss_scale")
_HISTORIES = 16
"""The number of products of a module that have their own delayed scales."""


@dataclass(frozen=True)
class Emulation:
    """A kind of module and its emulation. Pickled modules hold its name."""

    name: str
    what: str
    """The name of the emulation in the report."""
    forward: Forward | None
    """Computes the module's forward by its recipe; None: its own forward does."""
    part: str = ""
    """The one part of a recipe that the module uses; "": its products', and `parts`."""
    parts: tuple[str, ...] = ()
    """The parts of a recipe that it uses in addition to its products' parts."""
    histories: Callable[[Any], tuple[int, int]] = lambda module: (0, 0)
    """The number of its products, and of attention's, that keep scales where these are delayed."""
    inner: tuple[str, ...] = ()
    """The names of submodules that it computes itself, without calling them."""
    one_type: bool = False
    """True if torch refuses an input of another type than the weights'."""
    is_counted: bool = True
    """True if "first N" and "last N" count the module: it has products, and not only attention's,
    whose projections are layers themselves."""
    own_reason: Callable[[Any, State], str] | None = None
    """Returns the reason why a module is not emulated; None: `refuses` finds it in the recipe."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """The attributes of the emulated class."""

    @property
    def stands_alone(self) -> bool:
        """True if it rounds additions between the results of modules, not those within them."""
        return self.part == RESIDUAL

    def describe(self, state: State) -> str:
        """Returns the parts of a layer's recipe that it uses, for the report."""
        if self.part:
            formats = (getattr(recipe, self.part) for recipe in state.phases())
            return f"{self.part}={next(str(to) for to in formats if to is not None)!r}"
        first = next(iter(state.phases())) if state.recipe is None else state.recipe
        unused = (name for name in (*PARTS, *TRAINING) if name not in self.parts)
        return text_of(first.replace(**dict.fromkeys(unused)), {})

    def refuses(self, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        if self.own_reason is not None:
            return self.own_reason(module, state)
        if self.part:
            has = any(getattr(recipe, self.part) is not None for recipe in state.phases())
            return "" if has else f"the recipe has no format for it ({self.part}=)"
        for recipe in state.phases():
            of_parts = (getattr(recipe, part) for part in self.parts)
            casts = [*recipe._kept.operands, recipe.output, *of_parts]
            if not recipe._is_native or any(spec is not None for spec in casts):
                return ""
        return "the recipe rounds nothing in it: torch computes it"


# ---- emulations of operations' modules -----------------------------------------------------------


def replacing(operations: dict[Any, Operation]) -> Forward:
    """Returns torch's own forward, in which these functions are replaced. It calls one of them."""

    def forward(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
        mode = Replacing(module.cpd, operations)
        with mode:
            y = own(module, *args, **kwargs)
        if not mode.calls:
            names = ", ".join(dict.fromkeys(row.name for row in operations.values()))
            raise RuntimeError(
                f"this torch ({torch.__version__}) computes the layer by none of {names}: it is "
                "not emulated; leave it out by a rule of cpd.convert"
            )
        return y

    return forward


def calling(call: Callable[..., Any]) -> Forward:
    """Returns the forward of a module with one product. `call` computes it from the arguments."""

    def forward(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
        return call(module, *args, **kwargs, **module.cpd.arguments())

    return forward


def _of_operation(row: Operation) -> Emulation:
    alike = (other for other in OPERATIONS if other.modules and other.what == row.what)
    options: dict[str, Any] = {"part": row.part, "parts": row.parts, "inner": row.inner}
    if not row.part:
        options["histories"] = row.histories or _one_product
    forward = replacing(by_function(alike)) if row.call is None else calling(row.call)
    return Emulation(row.name, row.what, forward, one_type=not row.part, **options)


def _one_product(module: Any) -> tuple[int, int]:
    return 1, 0


# ---- emulations of modules' own forward ----------------------------------------------------------


def within(operations: dict[Any, Operation]) -> Forward:
    """Returns the module's own forward, with those operations by the recipe."""

    def forward(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
        with ByRecipe(module.cpd, operations):
            return own(module, *args, **kwargs)

    return forward


def _own(
    name: str, what: str = "products", forward: Forward | None = None, **more: Any
) -> Emulation:
    usual: dict[str, Any] = {"parts": ("attention", "softmax"), "histories": _histories}
    return Emulation(name, what, forward or within(PRODUCTS), **usual | more)


def _histories(module: Any) -> tuple[int, int]:
    return _HISTORIES, _HISTORIES


def _attend(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    """Returns the module's own forward, its attention's products by the recipe's `attention`."""
    with ByRecipe(module.cpd, ATTENTION):
        if _implementation(module) != "flex_attention":
            return own(module, *args, **kwargs)
        config, module.config = module.config, dense_attention.config_of(module.config)
        try:
            return own(module, *args, **kwargs)
        finally:
            module.config = config


def _refuses_attention(module: Any, state: State) -> str:
    if all(recipe.attention is None and recipe.softmax is None for recipe in state.phases()):
        return "the recipe leaves attention's products to torch (attention=)"
    chosen = _implementation(module)
    if chosen.startswith(("flash", "paged")):
        return f"{chosen} is one kernel, which is not seen: choose sdpa, eager or flex_attention"
    return ""


def _implementation(module: Any) -> str:
    """Returns the implementation of attention that a module of transformers is to use.

    "": it has none.
    """
    return str(getattr(getattr(module, "config", None), "_attn_implementation", ""))


def _experts(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    """Computes the experts of transformers, the products of each expert by the recipe.

    The implementation 'grouped_mm' computes them, whichever is chosen, so that all have the same
    bits. An expert's rows are in the order of tokens; a token's rows are in the order of its
    experts.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    with ByRecipe(module.cpd, PRODUCTS):
        if not hasattr(module, "is_transposed"):  # written without implementations to choose from
            return own(module, *args, **kwargs)
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, *args, **kwargs)


def _histories_of_experts(module: Any) -> tuple[int, int]:
    return sum(len(w) for w in module.parameters(recurse=False) if w.dim() == 3), 0


def _rounding(name: str, what: str, part: str) -> Emulation:
    """Returns the module's own forward. The part rounds its result and the returning gradient."""

    def forward(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Tensor:
        to = getattr(module.cpd.recipe, part)
        return rounded(own(module, *args, **kwargs), to, to, **module.cpd.numbers())

    return Emulation(name, what, forward, part)


def _conv1d(module: Any, x: Tensor, **options: Any) -> Tensor:
    """Returns the linear layer of transformers that has its weight as in × out."""
    return functional.linear(x, module.weight.t(), module.bias, **options)


# ---- torch.nn.TransformerEncoder and its layers --------------------------------------------------
# They round nothing themselves. But in eval mode a layer may read its inner layers' weights and
# compute without calling them, on nested tensors.


def _switch(name: str, off: Any) -> property:
    """Returns the module's attribute of that name.

    It is `off` while layers of its model's encoders are emulated: `cpd_states` are their states.
    """

    def get(module: Any) -> Any:
        if any(state.recipe is not None for state in module.cpd_states):
            return off
        return vars(module)[name]

    def put(module: Any, value: Any) -> None:
        vars(module)[name] = value

    return property(get, put)


def _encoder(name: str, attribute: str, off: Any) -> Emulation:
    return Emulation(name, "", None, attributes={attribute: _switch(attribute, off)})


# ---- the table -----------------------------------------------------------------------------------

_ALL = (
    *(_of_operation(row) for row in OPERATIONS if row.modules),
    Emulation("Conv1D", "products", calling(_conv1d), histories=_one_product, one_type=True),
    _own("Forward"),
    _own("Attention", "attention", _attend, is_counted=False, own_reason=_refuses_attention),
    _own("Mixer", inner=("conv1d",)),  # convolves by the weight of that layer
    _own("Mamba", inner=("conv1d", "dt_proj")),  # multiplies by another layer's weight too
    _own("Experts", forward=_experts, histories=_histories_of_experts),
    Emulation("Residual", RESIDUAL, within(ADDITIONS), RESIDUAL),
    _rounding("OwnNorm", "norm", "norm"),
    _rounding("Bag", "table", "embedding"),  # of sums, means or maxima of rows
    _encoder("CallsItsLayers", "activation_relu_or_gelu", 0),
    _encoder("MakesNoNestedTensors", "use_nested_tensor", False),
)
EMULATIONS = {emulation.name: emulation for emulation in _ALL}
TORCHS: dict[type[nn.Module], Emulation] = {
    **{module: EMULATIONS[row.name] for row in OPERATIONS for module in row.modules},
    nn.Bilinear: EMULATIONS["Forward"],
    nn.EmbeddingBag: EMULATIONS["Bag"],
    nn.SyncBatchNorm: EMULATIONS["OwnNorm"],
}
"""Torch's classes. Subclasses that compute as these do are taken too."""
ENCODERS: dict[type[nn.Module], Emulation] = {
    nn.TransformerEncoderLayer: EMULATIONS["CallsItsLayers"],
    nn.TransformerEncoder: EMULATIONS["MakesNoNestedTensors"],
}


def nearest(cls: type, table: Mapping[type[nn.Module], Emulation]) -> type[nn.Module] | None:
    """Returns the nearest base of a class that the table has, or None."""
    return next((base for base in cls.__mro__ if base in table), None)


_NAMES = {
    "Linear": "linear",
    "Conv": "conv2d",
    "ConvTranspose": "conv_transpose2d",
    "MultiheadAttention": "multi_head_attention_forward",
    "Cell": "lstm_cell",
    "Recurrent": "lstm",
    "Norm": "layer_norm",
    "Embedding": "embedding",
}


def __getattr__(name: str) -> str:
    """Returns the emulation's name in place of a mixin, which pickles of 0.7 hold."""
    last = name.removeprefix("Emulated")
    last = _NAMES.get(last, last)
    if last not in EMULATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return last
