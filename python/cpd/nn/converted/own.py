# SPDX-License-Identifier: Apache-2.0
"""Modules of other packages and user-defined ones, which compute by torch's functions.

Their forward runs unchanged, and those functions by the recipe. `cpd.nn.registered` lists them.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cpd._torch.rounding import rounded
from cpd.nn import functional
from cpd.nn.autocast import ADDITIONS, FORMS, autocast, pause
from cpd.nn.converted import dense_attention
from cpd.nn.converted.replaced import described, idle, lacks, used
from cpd.nn.converted.state import State
from cpd.nn.streams import MAX_POSITIONS, Bits

_POSITIONS = 256
"""The positions of one call in its module's stream, for attention's parts or groups."""
_HISTORIES = 16
"""The number of products of a module that have their own delayed scales."""


class ByRecipe(autocast):
    """Torch's products, attention and softmax by the recipe of a converted module.

    It is for one call of the module's forward. Call number n uses the module's stream XOR 256 n,
    below 2^20: the calls after 4096, as of a long loop over time, repeat the first ones' bits. If
    scaling is delayed, each product has its own scales, as far as `histories` goes: those after
    share them.
    """

    _forms: ClassVar[dict[str, Any]] = {
        name: form
        for name, form in FORMS.items()
        if name not in ("add", "add_", "embedding") and not name.endswith("_norm")
    }

    def __init__(self, state: State) -> None:
        TorchFunctionMode.__init__(self)
        assert state.recipe is not None
        self.recipe = state.recipe
        self.bits = Bits.of(state.recipe, **state.numbers())
        self.left: dict[str, int] = {}
        self._calls = self._paused = self._products = 0
        self.delayed = state.delayed
        self._around: Any = None

    def __enter__(self) -> ByRecipe:
        TorchFunctionMode.__enter__(self)  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        TorchFunctionMode.__exit__(self, *error)  # type: ignore[no-untyped-call]

    def _next(self, products: int = 1) -> dict[str, Any]:
        """Counts a call, and returns the keywords of its functional form."""
        position = self._calls * _POSITIONS % MAX_POSITIONS
        how = {"recipe": self.recipe, **self.bits.at(position)}
        if self.delayed is not None and products:
            how["delayed"] = self.delayed.at(self._products)
        self._calls += 1
        self._products += products
        return how


def _product_of_attention(mode: autocast, a: Tensor, b: Tensor) -> Tensor:
    how = mode._next()
    attention, delayed = how["recipe"].attention, how.get("delayed")
    if attention is None:
        return a @ b
    kept = None if delayed is None else delayed.attending
    return functional.matmul(a, b, **how | {"recipe": attention, "delayed": kept})


class ByAttention(ByRecipe):
    """As `ByRecipe`, with products of two matrices by the recipe's `attention`.

    Attention is written out by these products; its projections are layers themselves.
    """

    _forms: ClassVar[dict[str, Any]] = {
        **ByRecipe._forms,
        "matmul": _product_of_attention,
        "rmatmul": lambda mode, b, a: _product_of_attention(mode, a, b),
    }


class ByResidual(ByRecipe):
    """Additions of two tensors of one shape, rounded to the recipe's `residual`."""

    _forms: ClassVar[dict[str, Any]] = {name: FORMS[name] for name in ADDITIONS}


class EmulatedForward:
    """The module's own forward, the products in it by the recipe."""

    what: ClassVar[str] = "products"
    mode: ClassVar[type[ByRecipe]] = ByRecipe
    parts: ClassVar[tuple[str, ...]] = ("attention", "softmax")
    cpd: State

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Computes the module's forward by the recipe."""
        with self.mode(self.cpd):
            return self._computed(*args, **kwargs)

    def _computed(self, *args: Any, **kwargs: Any) -> Any:
        return super().forward(*args, **kwargs)  # type: ignore[misc]  # the module's

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return used(state, *cls.parts)

    @classmethod
    def refuses(cls, module: Any, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return idle(state, *cls.parts)

    @classmethod
    def histories(cls, module: Any) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return _HISTORIES, _HISTORIES


class EmulatedAttention(EmulatedForward):
    """Runs the module's own forward; the recipe's `attention` computes its attention products."""

    what: ClassVar[str] = "attention"
    counted: ClassVar[bool] = False
    mode: ClassVar[type[ByRecipe]] = ByAttention
    config: Any

    def _computed(self, *args: Any, **kwargs: Any) -> Any:
        if _implementation(self) != "flex_attention":
            return super()._computed(*args, **kwargs)
        config, self.config = self.config, dense_attention.config_of(self.config)
        try:
            return super()._computed(*args, **kwargs)
        finally:
            self.config = config

    @classmethod
    def refuses(cls, module: Any, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        if all(how.attention is None and how.softmax is None for how in state.phases()):
            return "the recipe leaves attention's products to torch (attention=)"
        chosen = _implementation(module)
        if chosen.startswith(("flash", "paged")):
            return (
                f"{chosen} is one kernel, which is not seen: choose sdpa, eager or flex_attention"
            )
        return ""


def _implementation(module: Any) -> str:
    """The implementation of attention that a module of transformers is to use; "": it has none."""
    return str(getattr(getattr(module, "config", None), "_attn_implementation", ""))


class EmulatedMixer(EmulatedForward):
    """A mixer that convolves by the weight of a layer within it, without calling it."""

    inner: ClassVar[tuple[str, ...]] = ("conv1d",)


class EmulatedMamba(EmulatedMixer):
    """Mamba's first mixer, which multiplies by another layer's weight too."""

    inner: ClassVar[tuple[str, ...]] = ("conv1d", "dt_proj")


class EmulatedExperts(EmulatedForward):
    """Experts of transformers, the products of each expert by the recipe.

    They are computed by the implementation 'grouped_mm' whichever is chosen, so that all have its
    bits: an expert's rows are in the order of tokens, those of a token in the order of its experts.
    """

    def _computed(self, *args: Any, **kwargs: Any) -> Any:
        from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

        if not hasattr(self, "is_transposed"):  # written without implementations to choose from
            return super()._computed(*args, **kwargs)
        return ALL_EXPERTS_FUNCTIONS["grouped_mm"](self, *args, **kwargs)

    @classmethod
    def histories(cls, module: Any) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return sum(len(w) for w in module.parameters(recurse=False) if w.dim() == 3), 0


class EmulatedResidual(EmulatedForward):
    """The module's own forward, with its additions rounded to the recipe's `residual`.

    Additions in modules within it are not.
    """

    what: ClassVar[str] = "residual"
    mode: ClassVar[type[ByRecipe]] = ByResidual
    alone: ClassVar[bool] = True

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return described(state, "residual")

    @classmethod
    def refuses(cls, module: Any, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return lacks(state, "residual")

    @classmethod
    def histories(cls, module: Any) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return 0, 0


def stand_alone(module: nn.Module) -> None:
    """Has the modules within compute outside of the module's own mode."""
    for child in module.modules():
        if child is not module and _pause not in child._forward_pre_hooks.values():
            child.register_forward_pre_hook(_pause)
            child.register_forward_hook(_resume)


def end_stand_alone(module: nn.Module) -> None:
    """Undoes `stand_alone` in one of the modules within."""
    for hooks, ours in ((module._forward_pre_hooks, _pause), (module._forward_hooks, _resume)):
        for number in [number for number, hook in hooks.items() if hook is ours]:
            del hooks[number]


def _pause(module: nn.Module, inputs: Any) -> None:
    pause(1)


def _resume(module: nn.Module, inputs: Any, outputs: Any) -> None:
    pause(-1)


class EmulatedResult:
    """The module's own forward, with its result rounded by one part of the recipe.

    The gradient that comes back to the result is rounded by the same part.
    """

    what: ClassVar[str]
    part: ClassVar[str]
    cpd: State

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Computes the module's forward by the recipe."""
        how = self.cpd.recipe
        assert how is not None
        y = super().forward(*args, **kwargs)  # type: ignore[misc]  # the module's
        to = getattr(how, self.part)
        return rounded(y, to, to, **self.cpd.numbers())

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return described(state, cls.part)

    @classmethod
    def refuses(cls, module: Any, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return lacks(state, cls.part)


class EmulatedOwnNorm(EmulatedResult):
    """A normalization."""

    what: ClassVar[str] = "norm"
    part: ClassVar[str] = "norm"


class EmulatedBag(EmulatedResult):
    """torch.nn.EmbeddingBag: sums, means or maxima of rows, formed by torch and then rounded."""

    what: ClassVar[str] = "table"
    part: ClassVar[str] = "embedding"


MIXINS: dict[type[nn.Module], type[Any]] = {
    nn.Bilinear: EmulatedForward,
    nn.EmbeddingBag: EmulatedBag,
    nn.SyncBatchNorm: EmulatedOwnNorm,
}
