# SPDX-License-Identifier: Apache-2.0
"""Defines `EMULATIONS`: an `Emulation` for each kind of module that `cpd.convert` emulates.

Most emulations are made from the table `cpd.nn.operations`. The others run a module's own forward,
for modules of other packages and user-defined modules; `cpd.nn.registered` lists them.
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
"""A function of (module, the module's own forward, *arguments) that returns the module's result."""

PARTS = ("norm", "softmax", "embedding", RESIDUAL, "attention")
TRAINING = ("optimizer", "reduce", "loss_scale")
_HISTORIES = 16
"""The number of products that have separate delayed scales in a module whose own forward runs. With
more products, several share scales."""


@dataclass(frozen=True)
class Emulation:
    """Describes how `cpd.convert` emulates a kind of module. Pickled modules contain the name."""

    name: str
    what: str
    """The report's word for the part of a module that is emulated, such as "products" or "norm"."""
    forward: Forward | None
    """Computes the module's forward by its recipe; None: the module's own forward runs."""
    part: str = ""
    """The only part of a recipe that the module uses, such as "norm". "": the module uses the sums
    and casts of products, and the parts named in `parts`."""
    parts: tuple[str, ...] = ()
    """Parts of a recipe, such as "softmax", that the module uses in addition to sums and casts."""
    histories: Callable[[Any], tuple[int, int]] = lambda module: (0, 0)
    """Returns the number of a module's products with separate delayed scales, and the number of its
    attention products with separate delayed scales."""
    inner: tuple[str, ...] = ()
    """The names of submodules that the module computes itself, without calling them."""
    one_type: bool = False
    """True if torch raises an error for an input of another type than the weights."""
    is_counted: bool = True
    """True if the rules "first N" and "last N" count the module.

    These rules count modules with products, except modules that have only attention's products. The
    projections of such modules are layers themselves.
    """
    own_reason: Callable[[Any, State], str] | None = None
    """Returns the reason why a module is not emulated, or "". Default None: `refuses` finds the
    reason in the recipe."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Class attributes, by name, that the subclass made by `cpd.convert` gets besides `forward`."""

    @property
    def stands_alone(self) -> bool:
        """True if the emulation rounds additions in the module's own code, not in submodules."""
        return self.part == RESIDUAL

    def describe(self, state: State) -> str:
        """Returns the parts of a layer's recipe that the emulation uses, for the report."""
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
    """Returns a forward that runs torch's forward with the functions in `operations` replaced."""

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
    """Returns a forward that calls `call` with the module, the arguments and the recipe."""

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
    """Returns a forward that runs the module's forward, with functions in `operations` replaced."""

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
    """Runs the module's own forward; the recipe's `attention` computes attention's products."""
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
    """Returns the attention implementation that a module of transformers uses; "": it has none."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", ""))


def _experts(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Any:
    """Computes a mixture of experts of transformers, with the experts' products by the recipe.

    transformers' implementation 'grouped_mm' always computes the experts, so that the bits do not
    depend on the configured implementation. An expert's rows are in the order of tokens; a token's
    rows are in the order of its experts.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    with ByRecipe(module.cpd, PRODUCTS):
        if not hasattr(module, "is_transposed"):  # has only one implementation
            return own(module, *args, **kwargs)
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](module, *args, **kwargs)


def _histories_of_experts(module: Any) -> tuple[int, int]:
    return sum(len(w) for w in module.parameters(recurse=False) if w.dim() == 3), 0


def _rounding(name: str, what: str, part: str) -> Emulation:
    """Returns the emulation that rounds a module's result, and the gradient of the result."""

    def forward(module: Any, own: Forward, *args: Any, **kwargs: Any) -> Tensor:
        to = getattr(module.cpd.recipe, part)
        return rounded(own(module, *args, **kwargs), to, to, **module.cpd.numbers())

    return Emulation(name, what, forward, part)


def _conv1d(module: Any, x: Tensor, **options: Any) -> Tensor:
    """Computes transformers' Conv1D: a linear layer with a weight of shape in × out."""
    return functional.linear(x, module.weight.t(), module.bias, **options)


# ---- torch.nn.TransformerEncoder and its layers --------------------------------------------------
# The encoder modules themselves round nothing. But their fast path in eval mode uses the weights of
# inner layers without calling the layers. `_switch` turns off the fast path if a layer is emulated.


def _switch(name: str, off: Any) -> property:
    """Returns a property that replaces an encoder's attribute `name`.

    The property has the value `off` if a layer of the encoder is emulated, else the attribute's
    value. The encoder's `cpd_states` has the states of its layers.
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
    _rounding("Bag", "table", "embedding"),  # sums, means or maxima of rows
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
"""The emulations of torch's classes. They also apply to subclasses with the same forward."""
ENCODERS: dict[type[nn.Module], Emulation] = {
    nn.TransformerEncoderLayer: EMULATIONS["CallsItsLayers"],
    nn.TransformerEncoder: EMULATIONS["MakesNoNestedTensors"],
}


def nearest(cls: type, table: Mapping[type[nn.Module], Emulation]) -> type[nn.Module] | None:
    """Returns the first class in `cls.__mro__` that is a key of `table`; None if none is."""
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
    """Returns an emulation's name. Pickles of version 0.7 have a mixin class instead of a name."""
    last = name.removeprefix("Emulated")
    last = _NAMES.get(last, last)
    if last not in EMULATIONS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return last
