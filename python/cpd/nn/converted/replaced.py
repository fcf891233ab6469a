# SPDX-License-Identifier: Apache-2.0
"""Parts of the mixins that run torch's own forward with its function replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cpd.nn.converted.state import State
from cpd.nn.recipe import Recipe
from cpd.nn.recipe_files import text_of


class Replaced(TorchFunctionMode):
    """A context in which CPD's functions replace functions of torch, {theirs: ours}.

    They get the further keywords `how`; each replaced function is appended to `answered`. CPD's
    functions call torch's own ones.
    """

    def __init__(
        self,
        functions: Mapping[Any, Callable[..., Any]],
        how: dict[str, Any],
        answered: list[Any],
    ) -> None:
        super().__init__()
        self.functions, self.how, self.answered = functions, how, answered

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        ours = self.functions.get(func)
        keywords = kwargs or {}
        if ours is None:
            return func(*args, **keywords)
        self.answered.append(func)
        return ours(*args, **keywords, **self.how)


def run_with(
    functions: Mapping[Any, Callable[..., Any]],
    state: State,
    forward: Callable[..., Any],
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Torch's own forward of a module, with those functions replaced, of which it calls one."""
    answered: list[Any] = []
    how: dict[str, Any] = {"recipe": state.recipe, **state.numbers()}
    if state.delayed is not None:
        how["delayed"] = state.delayed
    with Replaced(functions, how, answered):
        y = forward(*args, **kwargs)
    if not answered:
        names = ", ".join(theirs.__name__ for theirs in functions)
        raise RuntimeError(
            f"this torch ({torch.__version__}) computes the layer by none of {names}: it is not "
            "emulated; leave it out by a rule of cpd.convert"
        )
    return y


PARTS = ("norm", "softmax", "embedding", "residual", "attention")
TRAINING = ("optimizer", "reduce", "loss_scale")


def used(state: State, *parts: str) -> str:
    """A report's text: what products, and those further parts, use of the layer's recipe."""
    unused: dict[str, Any] = dict.fromkeys(n for n in (*PARTS, *TRAINING) if n not in parts)
    return text_of(_first(state).replace(**unused), {})


def described(state: State, part: str) -> str:
    """A report's text: the one part that a layer uses of its recipe."""
    parts = (getattr(how, part) for how in state.phases())
    return f"{part}={next(str(given) for given in parts if given is not None)!r}"


def lacks(state: State, part: str) -> str:
    """Returns why a layer that uses one part of a recipe cannot be emulated; "" if it can."""
    has = any(getattr(how, part) is not None for how in state.phases())
    return "" if has else f"the recipe has no format for it ({part}=)"


def idle(state: State, *parts: str) -> str:
    """Returns why a layer in which the recipe rounds nothing is not emulated; "" otherwise.

    `parts`: the parts of a recipe, other than sums, operands and output, that the layer uses.
    """
    for how in state.phases():
        casts = [*how._kept.operands, how.output, *(getattr(how, part) for part in parts)]
        if not how._is_native or any(spec is not None for spec in casts):
            return ""
    return "the recipe rounds nothing in it: torch computes it"


def _first(state: State) -> Recipe:
    return next(iter(state.phases())) if state.recipe is None else state.recipe
