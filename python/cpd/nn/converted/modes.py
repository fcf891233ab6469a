# SPDX-License-Identifier: Apache-2.0
"""The modes in which a module's own forward runs: they compute torch's functions by its recipe."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from cpd.nn import functional
from cpd.nn.autocast import Mode, pause, tensors_of
from cpd.nn.converted.state import State
from cpd.nn.operations import OPERATIONS, RESIDUAL, Operation, by_function
from cpd.nn.streams import MAX_POSITIONS, Bits

_POSITIONS = 256
"""The positions of one call in its module's stream, for attention's parts or groups."""


class ByRecipe(Mode):
    """Operations by the recipe of a converted module, for one call of the module's forward.

    Call number n uses the module's stream XOR 256 n, below 2^20: the calls after 4096, as of a long
    loop over time, repeat the first ones' bits. If scaling is delayed, each product has its own
    scales, as far as the module's histories go: the products after share them.
    """

    calls = products = 0

    def __init__(self, state: State, operations: dict[Any, Operation]) -> None:
        assert state.recipe is not None
        super().__init__(state.recipe, operations)
        self.bits = Bits.of(state.recipe, **state.numbers())
        self.delayed = state.delayed

    def _take(self, products: int = 1) -> dict[str, Any]:
        position = self.calls * _POSITIONS % MAX_POSITIONS
        options = {"recipe": self.recipe, **self.bits.at(position)}
        if self.delayed is not None and products:
            options["delayed"] = self.delayed.at(self.products)
        self.calls += 1
        self.products += products
        return options


class Replacing(ByRecipe):
    """`ByRecipe` that leaves no call of its operations to torch, whatever the arguments."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        keywords = kwargs or {}
        operation = self._operations.get(func)
        if operation is None or operation.form is None:
            return func(*args, **keywords)
        try:
            return operation.form(self, *args, **keywords)
        except ValueError:
            if operation.refuses(tensors_of((*args, *keywords.values()))):
                func(*args, **keywords)  # raises torch's error
            raise


# ---- the operations of modes ---------------------------------------------------------------------


def _of(parts: Iterable[str]) -> dict[Any, Operation]:
    """Returns the operations that consist of products, and the operations of these recipe parts."""
    return by_function(row for row in OPERATIONS if row.part in parts and not row.only_modules)


def _product_of_attention(mode: Any, a: Tensor, b: Tensor) -> Tensor:
    options = mode._take()
    attention, delayed = options["recipe"].attention, options.get("delayed")
    if attention is None:
        return a @ b
    scaling_state = None if delayed is None else delayed.attending
    return functional.matmul(a, b, **options | {"recipe": attention, "delayed": scaling_state})


def _attending(row: Operation) -> Operation:
    if row.name == "matmul":
        return row._replace(form=_product_of_attention)
    if row.name == "rmatmul":
        return row._replace(form=lambda mode, b, a: _product_of_attention(mode, a, b))
    return row


PRODUCTS = _of(("", "softmax"))
ATTENTION = {function: _attending(row) for function, row in PRODUCTS.items()}
"""`PRODUCTS`, with products of two matrices by the recipe's `attention`: attention is written out
by these; its projections are layers themselves."""
ADDITIONS = by_function(row for row in OPERATIONS if row.part == RESIDUAL)


# ---- modules within a module ---------------------------------------------------------------------


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
