# SPDX-License-Identifier: Apache-2.0
"""`Choice`: finds the recipe of each layer of a model, by the first rule that matches."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from torch import nn

from cpd.nn.recipe import Recipe, RecipeLike, as_recipe
from cpd.nn.recipe_arguments import check_selector
from cpd.numeric.shown import shown

Selector: TypeAlias = "str | type[nn.Module]"
Rule: TypeAlias = "tuple[Selector, RecipeLike | None]"
Decision: TypeAlias = "Callable[[str, nn.Module], Any]"
"""A function of a layer's name and module. It returns the layer's recipe, None (torch computes the
layer) or `...` (the rules decide)."""
Rules: TypeAlias = "Iterable[Rule] | Mapping[Any, RecipeLike | None] | Decision"

_POSITIONS = re.compile(r"(first|last) 0*(\d{1,18})( ?%)?( blocks?)?")


class Choice:
    """Finds the recipe of each layer of a model by rules. An invalid selector raises an error.

    A selector is one of:

    - a pattern of names ("lm_head", "*.attention", "encoder.*"; `fnmatch`); the pattern may match
      the whole name or the part after any dot;
    - a class, or "type" and a class's name, of the module or of a base of its class;
    - "first N", "last N": the first or last N layers with products;
    - "first N blocks", "last N blocks": everything within these children of the model's longest
      ModuleList or Sequential (the first, if several are equally long).

    A pattern or a class matches a module and everything within it. N may be a percentage, such as
    "15%"; it is rounded up to a whole number.

    Args:
        model: the model whose modules the selectors name.
        layers: names of the layers with products, which "first N" and "last N" count.
        rules: pairs (selector, recipe or None); None: torch computes the layer. The first matching
            rule decides.
        otherwise: the recipe of layers that no rule matches.
        decide: a function that decides before the rules; if it returns `...`, the rules decide.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[str],
        rules: Iterable[Rule],
        otherwise: Recipe | None,
        decide: Decision | None = None,
    ) -> None:
        self._modules = dict(model.named_modules(remove_duplicate=False))
        self._layers = list(layers)
        self._rules = [(_checked(rule), self._matching(rule[0]), rule[1]) for rule in rules]
        self._otherwise = otherwise
        self._decide = decide

    def of(self, name: str) -> tuple[Recipe | None, str]:
        """Returns the recipe of the module `name`, and the text of the rule's selector.

        The text is "" if no rule matched.
        """
        decided = ... if self._decide is None else self._decide(name, self._modules[name])
        if decided is not ...:
            return None if decided is None else _decided(decided, name), "a function"
        for text, matches, recipe in self._rules:
            if matches(name):
                return None if recipe is None else as_recipe(recipe), text
        return self._otherwise, ""

    def unused(self) -> list[tuple[int, str]]:
        """Returns index and text of each selector that matches no module."""
        return [
            (place, text)
            for place, (text, matches, _) in enumerate(self._rules)
            if not any(matches(name) for name in self._modules)
        ]

    def _matching(self, selector: Selector) -> Callable[[str], bool]:
        """Returns a function of a module's name: True if `selector` selects the module."""
        if isinstance(selector, type):
            return lambda name: any(isinstance(self._modules[n], selector) for n in _within(name))
        place = _POSITIONS.fullmatch(selector)
        if place is None:
            fits = self._of_class if selector.startswith("type ") else _fits
            pattern = selector.removeprefix("type ").strip()
            return lambda name: any(fits(n, pattern) for n in _within(name))
        names = longest_list(self._modules) if place[4] else self._layers
        number = -(-int(place[2]) * len(names) // 100) if place[3] else int(place[2])
        number = min(number, len(names))
        chosen = set(names[:number] if place[1] == "first" else names[len(names) - number :])
        return lambda name: any(n in chosen for n in _within(name))

    def _of_class(self, name: str, pattern: str) -> bool:
        classes = type(self._modules[name]).__mro__
        return any(
            pattern in (kind.__name__, f"{kind.__module__}.{kind.__qualname__}") for kind in classes
        )


def _decided(recipe: Any, name: str) -> Recipe:
    """Converts to a recipe what the user's function `rules` returned for the module `name`."""
    try:
        return as_recipe(recipe)
    except TypeError:
        raise TypeError(
            "the function of rules must return a recipe, None (torch computes the layer) or ... "
            f"(the recipe's rules decide), got {shown(recipe)} for {name!r}"
        ) from None


def longest_list(modules: dict[str, nn.Module]) -> list[str]:
    """Returns the names of the children of the longest ModuleList or Sequential.

    If several are equally long, takes the first.
    """
    best: list[str] = []
    for name, module in modules.items():
        if isinstance(module, (nn.ModuleList, nn.Sequential)) and len(module) > len(best):
            best = [f"{name}.{child}".lstrip(".") for child in module._modules]
    return best


def _checked(rule: Rule) -> str:
    """Checks a rule, and returns its selector's text. Raises TypeError or ValueError."""
    if not isinstance(rule, (tuple, list)) or len(rule) != 2:
        raise TypeError(
            "rules must be a list of pairs (selector, recipe or None), such as [('last 1', None)], "
            f"got {shown(rule)} in it"
        )
    selector = rule[0]
    if isinstance(selector, type) and issubclass(selector, nn.Module):
        return selector.__name__
    if not isinstance(selector, str):
        raise TypeError(
            "a rule's selector is a pattern of names, 'type' and a class's name, a class of "
            "modules, or 'first N', 'last N', 'first N blocks', 'last N blocks', "
            f"got {shown(selector)}"
        )
    check_selector(selector)
    return selector


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)


def _within(name: str) -> list[str]:
    """Returns a module's name and the names of all modules that contain the module.

    The model itself, whose name is "", is only included if `name` is "".
    """
    parts = name.split(".")
    return [".".join(parts[:n]) for n in range(len(parts), 0, -1)]
