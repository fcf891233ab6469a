# SPDX-License-Identifier: Apache-2.0
"""What the mixins have in common that let torch's own forward run but for what it computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from cpd.nn.converted.state import State

    from cpd.nn.recipe import Recipe


class Replaced(TorchFunctionMode):
    """Within it, calls of functions of torch are answered by others, {theirs: ours}, which are told
    `how` by name. What those call is torch's own again."""

    def __init__(self, functions: Mapping[Any, Callable[..., Any]], how: dict[str, Any]) -> None:
        super().__init__()
        self.functions, self.how = functions, how

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        ours = self.functions.get(func)
        given = kwargs or {}
        return func(*args, **given) if ours is None else ours(*args, **given, **self.how)


PARTS = ("norm", "softmax", "embedding", "residual", "attention")
TRAINING = ("update", "state", "wire", "loss_scale")


def used(state: State, *parts: str) -> str:
    """What of a layer's recipe products use, and those other parts: for a report."""
    unused = dict.fromkeys(name for name in (*PARTS, *TRAINING) if name not in parts)
    return str(replace(_first(state), layer=0, source="", **unused))


def lacks(state: State, part: str) -> str:
    """Why a layer that uses one part of a recipe alone cannot be emulated; empty: it can."""
    has = any(getattr(how, part) is not None for how in state.phases())
    return "" if has else f"the recipe has no format for it ({part}=)"


def delays(state: State, products: str) -> str:
    """Why a layer of several products cannot be emulated; empty: it can."""
    if not any(how.delays for how in state.phases()):
        return ""
    return f"delayed scaling keeps one history a layer, and this one has {products}"


def _first(state: State) -> Recipe:
    return next(iter(state.phases())) if state.recipe is None else state.recipe
