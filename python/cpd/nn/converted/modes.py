# SPDX-License-Identifier: Apache-2.0
"""torch function modes that compute functions by a module's recipe while its own forward runs."""

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
"""The number of positions (numbers XORed into a module's stream) reserved for each operation.

An operation uses several positions if it has several steps (attention) or groups (grouped_mm).
"""


class ByRecipe(Mode):
    """Computes operations by a converted module's recipe, during one call of the module's forward.

    Operation number n of the call uses the module's stream XOR (256 n mod 2^20). So after 4096
    operations, for example in a long loop over time, the random bits repeat. If scaling is delayed,
    each product has its own scales. A module stores scales for a fixed number of products; if it
    computes more products, they share these scales in turn.
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
    """A function mode that computes all calls of its operations by the recipe, none by torch."""

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
    """Maps torch's functions to their operations, for operations that use one of `parts`."""
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
"""Maps torch's functions to operations, for modules whose own code computes attention.

Like `PRODUCTS`, but matmul of two tensors follows the recipe's `attention`. Such a module computes
its projections by layers, so each matmul in the module's own code is a product of attention.
"""
ADDITIONS = by_function(row for row in OPERATIONS if row.part == RESIDUAL)


# ---- modules within a module ---------------------------------------------------------------------


def stand_alone(module: nn.Module) -> None:
    """Pauses the function mode of a module's own forward during calls of its submodules."""
    for child in module.modules():
        if child is not module and _pause not in child._forward_pre_hooks.values():
            child.register_forward_pre_hook(_pause)
            child.register_forward_hook(_resume)


def end_stand_alone(module: nn.Module) -> None:
    """Undoes `stand_alone` for one submodule."""
    for hooks, ours in ((module._forward_pre_hooks, _pause), (module._forward_hooks, _resume)):
        for number in [number for number, hook in hooks.items() if hook is ours]:
            del hooks[number]


def _pause(module: nn.Module, inputs: Any) -> None:
    pause(1)


def _resume(module: nn.Module, inputs: Any, outputs: Any) -> None:
    pause(-1)
