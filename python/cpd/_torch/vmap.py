# SPDX-License-Identifier: Apache-2.0
"""Batching rules of torch.ops.cpd.* for torch.vmap. `cpd.ops` documents their random bits."""

# Relaxes mypy's checks: torch's functions that register operators have no type annotations.
# mypy: disable-error-code="no-any-return,no-untyped-call,untyped-decorator"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from cpd._torch.library import ops
from cpd.numeric.accumulator import parsed
from cpd.numeric.cast import named_cast

_NUMBERS = ("seed", "stream", "numbers")
"""The names of the operators' arguments that determine random bits."""


Results: TypeAlias = "Tensor | tuple[Tensor, ...]"
Widen: TypeAlias = "Callable[[BatchedCall], Callable[[Tensor], Tensor] | None]"
"""Changes the arguments of a call so that one call computes the whole batch. Returns a function
that makes the batch the first dimension of the result, or None if it is already the first."""


class BatchedCall:
    """A call of an operator by torch.vmap.

    `arguments` has the call's arguments by name. The batch is the first dimension of batched
    tensors, whose names are in `along`. `size` is the number of examples.
    """

    def __init__(self, operator: Any, args: tuple[Any, ...], in_dims: tuple[Any, ...]) -> None:
        names = [argument.name for argument in operator._schema.arguments]
        self.operator = operator
        self.arguments = dict(zip(names, args, strict=True))
        self.along = [n for n, dim in zip(names, in_dims, strict=True) if isinstance(dim, int)]
        for name, dim in zip(names, in_dims, strict=True):
            if isinstance(dim, int):
                self.arguments[name] = self.arguments[name].movedim(dim, 0)
        self.size: int = self.arguments[self.along[0]].shape[0]

    def rank(self, name: str) -> int:
        """Returns the number of an operand's dimensions, without the batch."""
        return self.arguments[name].dim() - (name in self.along)

    def widen(self, name: str, rank: int | None = None) -> None:
        """Makes the batch the first dimension of an operand, before `rank` dimensions.

        Dimensions of size 1 are added after the batch if needed. If `rank` is None, none are added.
        """
        x = self.arguments[name]
        if name not in self.along:
            x = x.unsqueeze(0).expand(self.size, *x.shape)
        missing = 0 if rank is None else rank - (x.dim() - 1)
        self.arguments[name] = x[(slice(None), *(None,) * missing)]

    def at_once(self, widen: Widen) -> Tensor:
        """Returns the result of one call of the operator with the whole batch."""
        parted = widen(self)
        y = self.operator(*self.arguments.values())
        return y if parted is None else parted(y)

    def one_by_one(self) -> Results:
        """Calls the operator for each example of the batch and stacks the results.

        For an empty batch, a call with zeros determines the shape of the result.
        """
        along = {name: self.arguments[name] for name in self.along}
        if self.size == 0:
            zeros = {name: x.new_zeros(x.shape[1:]) for name, x in along.items()}
            result = self.operator(*(self.arguments | zeros).values())
            return tree_map(lambda y: y.unsqueeze(0)[:0], result)
        results = [
            self.operator(*(self.arguments | {name: x[i] for name, x in along.items()}).values())
            for i in range(self.size)
        ]
        return tree_map(lambda *ys: torch.stack(ys), *results)


def cast_draws(arguments: dict[str, Any]) -> bool:
    """Returns whether the cast in an operator's argument `how` rounds stochastically."""
    return named_cast(arguments["how"]).rounding == "stochastic"


def sum_draws(arguments: dict[str, Any]) -> bool:
    """Returns whether the accumulator in an operator's arguments rounds stochastically."""
    return text_draws(arguments["accumulator"])


def text_draws(text: str) -> bool:
    """Returns whether the accumulator with the text `text` rounds stochastically."""
    return parsed(text).rounding == "stochastic"


def never(of: Any) -> bool:
    """Returns False for every call. Serves as `Batching.draws` or as `Batching.alone`.

    `draws`: the operator never rounds stochastically. `alone`: examples need no separate calls.
    """
    return False


class Batching(NamedTuple):
    """The rule by which torch.vmap calls an operator."""

    widen: Widen | None
    """Changes the arguments for one call with the whole batch. None: each of torch.vmap's examples
    needs its own call."""
    draws: Callable[[dict[str, Any]], bool] = cast_draws
    """Returns whether a call rounds stochastically, from its arguments by name."""
    alone: Callable[[BatchedCall], bool] = never
    """Returns True for a call that must be split into one call per example. `widen` does not
    support such a call."""


def register(name: str, batching: Batching | Callable[..., Any]) -> None:
    """Registers the batching rule of torch.ops.cpd.<name>."""
    if not isinstance(batching, Batching):
        torch.library.register_vmap(f"cpd::{name}", batching)
        return
    operator = getattr(ops, name).default
    widen, draws, alone = batching

    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Results, Any]:
        call = BatchedCall(operator, args, in_dims)
        apart = widen is None or alone(call)
        if draws(call.arguments) and call.arguments.get("random") is None:
            apart = _draws_apart(name, call, info.randomness, apart)
        else:
            call.arguments |= {number: None for number in _NUMBERS if number in call.arguments}
            call.along = [argument for argument in call.along if argument not in _NUMBERS]
        results = call.one_by_one() if widen is None or apart else call.at_once(widen)
        return results, tree_map(lambda y: 0, results)

    torch.library.register_vmap(f"cpd::{name}", rule)


def _draws_apart(name: str, call: BatchedCall, randomness: str, apart: bool) -> bool:
    """Returns whether each example uses the random bits of a separate call.

    True if examples have their own seeds or streams, or if torch.vmap's `randomness` is "same".
    Raises RuntimeError if `randomness` is "error", or if it is "different" and each example needs a
    separate call (`apart`).
    """
    if any(number in call.along for number in _NUMBERS) or randomness == "same":
        return True
    if randomness == "error":
        raise RuntimeError(
            f"cpd.{name} rounds stochastically under torch.vmap: give randomness='same' (each "
            "example draws the bits of its own elements, as in a call of its own) or 'different' "
            "(those of the whole batch's elements), or give each example a stream of its own"
        )
    if apart:
        raise RuntimeError(
            f"cpd.{name} takes the examples of torch.vmap one by one and does not support "
            "randomness='different': give 'same', or give each example a stream of its own"
        )
    return False


# ---- ways to widen -------------------------------------------------------------------------------


def widen_elements(call: BatchedCall) -> None:
    for name in ("x", "y", "z", "random"):
        if call.arguments.get(name) is not None:
            call.widen(name)


def widen_sum(call: BatchedCall) -> None:
    widen_elements(call)
    call.arguments["dim"] += 1


def widen_hadamard(call: BatchedCall) -> None:
    call.widen("x")
    call.arguments["axis"] += 1


def widen_product(call: BatchedCall) -> None:
    """Gives the operands of a product, a, b and c, equally many dimensions, the batch first."""
    rank = max(call.rank("a"), call.rank("b"))
    if not {"a", "b"} & set(call.along):
        call.widen("a", rank)
    random = call.arguments.get("random")
    for name in call.along:
        if name != "random":
            call.widen(name, rank)
    if random is not None:  # its dimensions are the result's, and one for the integers
        call.widen("random", rank + 1)


def widen_blocks(call: BatchedCall, *names: str) -> Callable[[Tensor], Tensor] | None:
    """Makes the batch the first dimension of operands that are cast in blocks.

    The call's `axis` becomes negative. Examples of fewer than two dimensions get leading dimensions
    of size 1, so that no block covers more than one example. The returned function removes these
    dimensions from the result.
    """
    rank = call.rank("x")
    if call.arguments["axis"] >= 0:
        call.arguments["axis"] -= max(rank, 1)
    for name in names:
        if call.arguments[name] is not None:
            call.widen(name, max(rank, 2))
    if rank >= 2:
        return None
    shape = call.arguments["x"].shape
    return lambda y: y.reshape(shape[0], *shape[3 - rank :])
