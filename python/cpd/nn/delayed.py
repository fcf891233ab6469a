# SPDX-License-Identifier: Apache-2.0
"""Delayed scaling: a tensor's scale is computed from its largest magnitudes in previous steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cpd._torch.arguments import call_numbers
from cpd._torch.delayed import refuse_vmap
from cpd._torch.derivatives import run
from cpd._torch.library import ops
from cpd.numeric.cast import Cast, elements, scaled_of
from cpd.numeric.numbers import Number
from cpd.numeric.purposes import TENSORS
from cpd.numeric.shown import shown

if TYPE_CHECKING:
    from cpd.nn.recipe import Recipe

OPERANDS = TENSORS
"""The operands of a product: activation, weight, gradient. For each operand of each product,
`amax_history` has a column and `scale` an element."""


class _Casts:
    """The base class of `Delayed` and `Product`: casts the operands of one product.

    The casts use the present scales, and record the largest magnitudes of the operands.
    """

    state: Delayed
    number: int

    def quantize(self, which: str, x: Tensor, seed: Number = 0, stream: Number = 0) -> Tensor:
        """Casts `x`, the "activation", "weight" or "gradient", with its present scale.

        Also calls `note`, which records x's largest magnitude. `seed` and `stream` select the
        random bits.
        """
        cast = self.state.cast_of(which)
        self.note(which, x)
        numbers = call_numbers(cast, seed, stream, x)
        scale = self.state.scale[self._column(which)]
        return run("cast_delayed", x, elements(cast), scale, *numbers)

    def note(self, which: str, x: Tensor) -> None:
        """Records x's largest magnitude.

        Records in training mode. Also records in eval mode if gradients are on and a clock counts
        the steps.
        """
        clock = self.state.records()
        if clock is not None:
            ops.record_amax(self.state.amax_history, x.detach(), self._column(which), clock)

    def multipliers(self) -> Tensor:
        """Returns a copy of the present scales; a later `update` does not change the copy."""
        first = self._column(OPERANDS[0])
        return self.state.scale[first : first + len(OPERANDS)].clone()

    def watch(self, y: Tensor) -> Tensor:
        """Returns `y` unchanged. Its backward pass records the largest magnitude of the gradient.

        Nothing is recorded if the gradient's scaling is not delayed. In eval mode, nothing is
        recorded without a clock, or with gradients off.
        """
        clock = self.state.records()
        if clock is None or "gradient" not in self.state.casts:
            return y
        function: Any = _Watch if torch.compiler.is_compiling() else _EagerWatch
        column = self._column("gradient")
        watched: Tensor = function.apply(y, self.state.amax_history, column, clock)
        return watched

    def at(self, number: int) -> Product:
        """Returns the layer's product that comes `number` products after this product.

        Counting wraps around: the layer's first product follows its last product.
        """
        return Product(self.state, self.number + number)

    @property
    def attending(self) -> Product | None:
        """The layer's attention product with the same number as this product.

        None if attention has no delayed scaling.
        """
        attention = self.state.attention
        return None if attention is None else Product(attention, self.number)

    def _column(self, which: str) -> int:
        return self.number % self.state.products * len(OPERANDS) + OPERANDS.index(which)


class Product(_Casts):
    """One product of a layer, with scales that a `Delayed` stores."""

    def __init__(self, state: Delayed, number: int) -> None:
        self.state, self.number = state, number


class Delayed(_Casts, nn.Module):
    """The state of one layer's delayed scaling, as in TransformerEngine's Python code.

    Args:
        activation: the cast of the activation, with `history` > 0; default None: its scaling is not
            delayed. All operands must have the same `history` and `amax`.
        weight: as `activation`.
        gradient: as `activation`.
        products: the number of products of the layer. Each product has its own scales. The methods
            of this object use the scales of product 0; `at(n)` returns an object for product n.
        attention: the state of the layer's attention products, which a recipe's `attention` casts;
            default None.

    The state_dict has two buffers. `amax_history` has `history` rows and three columns for each
    product; row 0 belongs to the present step. `scale` has three values for each product. The
    buffers remain float32 if the model is cast to another type, and `to_empty` preserves their
    values. When a model leaves the meta device, the buffers get the values before the first step.

    A value is multiplied by its scale before the cast; scales start at 1. The cast of an operand is
    fl(cast(fl(x * scale)) * fl(1/scale)) in binary32, then rounded to x's type. Gradients pass
    through the cast unchanged.

    In training mode, row 0 becomes the maximum of itself and an operand's largest magnitude.
    `update`, once before each step, computes the scales of that step: a = max of the history (row
    0 if `amax` is "most_recent"); scale = fl(fl(fl(1/a) * format's max) / 2^margin), or the largest
    finite number if that overflows. If a is 0, infinite or NaN, the scale does not change. The
    history then advances by a step.

    Raises:
        ValueError: for casts that differ in `history` or `amax`, and under torch.vmap.
    """

    amax_history: Tensor
    scale: Tensor
    number = 0
    clock: Any = None
    """The converted model's `cpd.nn.clock.Clock`, whose steps update the scales. None: a caller
    updates the scales by `update`."""
    seen = 0
    """The number of clock steps for which scales were computed."""
    place = 0
    """The number of this layer among the clock's layers with delayed scaling."""

    def __init__(
        self,
        activation: Cast | None = None,
        weight: Cast | None = None,
        gradient: Cast | None = None,
        *,
        products: int = 1,
        attention: Delayed | None = None,
    ) -> None:
        super().__init__()
        operands = dict(zip(OPERANDS, (activation, weight, gradient), strict=True))
        self.casts = {name: _delayed(name, cast) for name, cast in operands.items() if cast}
        rules = {(cast.history, cast.amax) for cast in self.casts.values()}
        if len(rules) != 1 and not (attention is not None and not rules):
            casts_text = ", ".join(f"{name}={cast}" for name, cast in operands.items())
            raise ValueError(f"delayed operands have one history and one amax, got {casts_text}")
        self.history, self.amax = rules.pop() if rules else (0, "max")
        self.products = products
        self.attention = attention
        columns = products * len(OPERANDS) if self.casts else 0
        self.register_buffer("amax_history", torch.zeros(self.history, columns))
        self.register_buffer("scale", torch.ones(columns))

    @classmethod
    def of(cls, recipe: Recipe, products: int = 1, of_attention: int = 0) -> Delayed | None:
        """Returns the state for a recipe; None if the recipe does not delay scaling.

        `products` is the number of products with the recipe's casts of activation, weight and
        gradient. `of_attention` is the number of products with the casts of its `attention`.

        >>> import cpd
        >>> made = Delayed.of(cpd.Recipe("native", activation="fp8-tensor arithmetic=te history=9"))
        >>> made
        Delayed(activation='fp8-tensor arithmetic=te history=9')
        >>> made.amax_history.shape, made.scale.tolist()
        (torch.Size([9, 3]), [1.0, 1.0, 1.0])
        """
        within = None
        if recipe.attention is not None and of_attention:
            within = cls.of(recipe.attention, of_attention)
        casts = {name: getattr(recipe, name) for name in OPERANDS if products}
        casts = {name: c for name, c in casts.items() if getattr(c, "history", 0)}
        if not casts and within is None:
            return None
        return cls(**casts, products=products, attention=within)

    @property
    def state(self) -> Delayed:  # type: ignore[override]
        """Itself."""
        return self

    def reset_parameters(self) -> None:
        """Resets the histories to 0 and the scales to 1, as before the first step."""
        with torch.no_grad():
            self.amax_history.zero_()
            self.scale.fill_(1)

    def records(self) -> int | None:
        """Returns the argument `clock` of torch.ops.cpd.record_amax, which records magnitudes.

        Returns None if magnitudes are not recorded: in eval mode without a clock or gradients.
        """
        if self.training:
            return -1
        return self.clock.key if self.clock is not None and torch.is_grad_enabled() else None

    def update(self) -> None:
        """Computes the scales of the step that begins, from the magnitudes of previous steps.

        The function `update` does so for many layers at once.
        """
        update((self,))

    def parts(self) -> Iterator[Delayed]:
        """Yields the states with delayed casts: this one, and the state of attention's products."""
        if self.casts:
            yield self
        if self.attention is not None:
            yield from self.attention.parts()

    def cast_of(self, which: str) -> Cast:
        """Returns an operand's cast. Raises ValueError if the operand's scaling is not delayed."""
        if which not in self.casts:
            raise ValueError(f"delayed are {', '.join(self.casts)}, got {shown(which)}")
        return self.casts[which]

    def advance(self, history: Tensor, scale: Tensor, steps: int = 1) -> None:
        """Computes scales from the history, then advances the history; does both `steps` times.

        Changes `history` and `scale` in place; they have the shapes of `amax_history` and `scale`.
        Magnitudes were recorded only in the first of the steps.
        """
        numbers = [1.0] * len(OPERANDS), [1.0] * len(OPERANDS)
        for name, cast in self.casts.items():
            q = scaled_of(cast)
            assert q is not None  # a history needs a scaled format
            numbers[0][OPERANDS.index(name)] = q.element.max
            numbers[1][OPERANDS.index(name)] = 2.0**q.margin
        for _ in range(min(steps, self.history + 1)):  # the history is then empty
            ops.update_delayed(history, scale, *numbers, self.amax == "most_recent")

    def catch_up(self) -> None:
        """Computes the scales of the clock's present step, if a step began since the last call."""
        if self.clock is not None and self.seen != self.clock.begun:
            self.clock.advance((self,), *tensors((self,)))

    def _save_to_state_dict(self, *args: Any) -> None:
        self.catch_up()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(
        self, state_dict: Any, prefix: str, local_metadata: Any, *rest: Any
    ) -> None:
        """Loads the buffers from `state_dict`.

        If `state_dict` is from an unconverted model, the buffers remain as they are.
        """
        ours = [key for key in state_dict if key.startswith(prefix)]
        if ours:
            for key in ours:
                if isinstance(state_dict[key], Tensor):
                    state_dict[key] = state_dict[key].to(torch.float32)
            super()._load_from_state_dict(state_dict, prefix, local_metadata, *rest)
            self.seen = 0 if self.clock is None else self.clock.begun

    def leave_meta(self, state_dict: Any, prefix: str) -> None:
        """Moves the state from the meta device, which has no values.

        The new device is the device of the layer's weights in `state_dict`, the state_dict of an
        unconverted model. The state then has its values from before the first step.
        """
        device = device_of(state_dict, prefix)
        if self.scale.is_meta and device is not None:
            self.to_empty(device=device)

    def extra_repr(self) -> str:
        """Returns the arguments, as `repr` shows them."""
        arguments = [f"{name}={str(cast)!r}" for name, cast in self.casts.items()]
        return ", ".join(arguments + [f"products={self.products}"] * (self.products > 1))

    def _apply(self, fn: Any, recurse: bool = True) -> Delayed:
        def keep_values(x: Tensor) -> Tensor:
            moved: Tensor = fn(x)
            if moved is x:
                return x
            if x.is_meta and not moved.is_meta:
                return torch.full_like(x, x is self.scale, device=moved.device)
            return x.to(moved.device)  # also where `fn` makes a tensor of another type, or an empty

        return super()._apply(keep_values, recurse)  # type: ignore[no-any-return,no-untyped-call]


def at(delayed: _Casts | None, number: int) -> Product | None:
    """Returns the product whose index is the index of `delayed` plus `number`.

    `delayed` is a product of a layer, or a `Delayed`, which stands for its product 0. Returns None
    if `delayed` is None. Raises TypeError for another type.
    """
    if delayed is None:
        return None
    if not isinstance(delayed, _Casts):
        raise TypeError(f"delayed must be a cpd.nn.delayed.Delayed, got {type(delayed).__name__}")
    return delayed.at(number)


def attending_at(delayed: _Casts | None, number: int) -> Product | None:
    """Returns the attention product whose index is the index of `delayed` plus `number`.

    `delayed` is a product of the same layer, or a `Delayed`, which stands for its product 0.
    Returns None if `delayed` is None, or if the layer's attention has no delayed scaling. Raises
    TypeError for another type.
    """
    first = at(delayed, 0)
    return None if first is None else at(first.attending, number)


def _delayed(name: str, cast: Any) -> Cast:
    """Returns the cast of operand `name`. Raises ValueError if its scaling is not delayed."""
    if not getattr(cast, "history", 0):
        raise ValueError(f"{name} must be a Cast with history > 0, got {cast}")
    return cast  # type: ignore[no-any-return]


@torch.no_grad()
def update(layers: Iterable[Delayed], group: dist.ProcessGroup | None = None) -> None:
    """Computes the scales of the step that begins, for all of `layers` in this order.

    If torch.distributed is initialized, the present step's magnitudes are first reduced over
    `group`, to their maximum, or NaN if one of them is NaN. Each device of the layers needs one
    all-reduce. All ranks must then call this function, with the same layers.
    """
    all_of = parts_of(layers)
    if dist.is_available() and dist.is_initialized():
        reduce([layer.amax_history for layer in all_of], group)
    for layer in all_of:
        layer.advance(layer.amax_history, layer.scale)


def reduce(histories: list[Tensor], group: dist.ProcessGroup | None) -> None:
    """Reduces row 0 of each history to the maximum over ranks, as int32.

    Compared as int32, a NaN is larger than any other magnitude.
    """
    if not histories or dist.get_world_size(group) <= 1:
        return
    rows = [history[0] for history in histories]
    for device in dict.fromkeys(row.device for row in rows):
        there = [row for row in rows if row.device == device]
        words = torch.cat(there).view(torch.int32)
        dist.all_reduce(words, dist.ReduceOp.MAX, group=group)
        reduced = torch.split(words.view(torch.float32), [len(row) for row in there])
        for row, values in zip(there, reduced, strict=True):
            row.copy_(values)


def parts_of(layers: Iterable[Delayed]) -> list[Delayed]:
    """Returns the states with delayed casts: of `layers` and of the attention in `layers`."""
    return [part for layer in layers for part in layer.parts()]


def tensors(layers: Iterable[Delayed]) -> tuple[list[Tensor], list[Tensor]]:
    """Returns the buffers `amax_history` and `scale` of all states in `parts_of(layers)`."""
    parts = parts_of(layers)
    return [part.amax_history for part in parts], [part.scale for part in parts]


def device_of(state_dict: Any, prefix: str) -> torch.device | None:
    """Returns the device of a state_dict's first tensor with a name that begins with `prefix`.

    Returns None if there is no such tensor.
    """
    tensors = (x for name, x in state_dict.items() if name.startswith(prefix))
    return next((x.device for x in tensors if isinstance(x, Tensor)), None)


def keep_from_ddp(root: nn.Module) -> None:
    """Prevents DistributedDataParallel from copying rank 0's buffers of `Delayed` to other ranks.

    `update` needs each rank's own magnitudes, which it reduces at each step. Call this function
    before DDP wraps `root`.
    """
    ignored = list(getattr(root, "_ddp_params_and_buffers_to_ignore", []))
    for name, module in root.named_modules():
        if isinstance(module, Delayed):
            prefix = f"{name}." if name else ""
            ignored += [f"{prefix}{buffer}" for buffer, _ in module.named_buffers()]
    root._ddp_params_and_buffers_to_ignore = sorted(set(ignored))  # type: ignore[assignment]


class _Watch(torch.autograd.Function):
    """The identity function. Its backward pass records the gradient's largest magnitude."""

    @staticmethod
    def forward(y: Tensor, history: Tensor, column: int, clock: int) -> Tensor:
        return y.detach()  # not a view to autograd: later code may change it in place

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, ctx.history, ctx.column, ctx.clock = inputs

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        ops.record_amax(ctx.history, grad.detach(), ctx.column, ctx.clock)
        return grad, None, None, None


class _EagerWatch(_Watch):
    """`_Watch` for eager calls: adds `jvp` and `vmap`, which torch.compile does not support."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *none: Any) -> Tensor:
        return tangent.view_as(tangent)

    @staticmethod
    def vmap(*args: Any) -> NoReturn:
        refuse_vmap()
