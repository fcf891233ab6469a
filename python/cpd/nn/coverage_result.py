# SPDX-License-Identifier: Apache-2.0
"""`Coverage`: which products of a training step ran emulated."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Products:
    """The products of one operation in one module's forward or backward pass.

    Attributes:
        module: the qualified name of the innermost module whose forward or backward pass computed
            the products; "" for the model itself.
        operation: the operation in torch.ops, such as "aten.bmm" or "cpd.matmul".
        backward: whether the backward pass computed the products.
        recipe: the name or text of the recipe that computed the products; "" if torch did.
        macs: the number of multiply-accumulates.
        calls: the number of calls.
    """

    module: str
    operation: str
    backward: bool
    recipe: str
    macs: int
    calls: int


@dataclass(frozen=True)
class Coverage:
    """The products of a training step: which ran emulated, and which torch computed.

    Counts matrix products, convolutions, attention and recurrence, of the forward and the backward
    pass.

    Attributes:
        products: a `Products` for each module, operation, pass and recipe, in the order of first
            calls.
        parameters: the number of elements of the parameters that enter products of modules. Only
            parameters with two or more dimensions count, each once. Parameters of parametrizations
            and of the projections in nn.MultiheadAttention are included.
        emulated_parameters: the number of these elements in modules that emulated all their
            products of parameters.
        never_called: names of the converted layers that were not called.
    """

    products: tuple[Products, ...]
    parameters: int
    emulated_parameters: int
    never_called: tuple[str, ...]

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates of all products."""
        return sum(product.macs for product in self.products)

    @property
    def left(self) -> tuple[Products, ...]:
        """The products that torch computed, ordered by multiply-accumulates, the largest first."""
        return tuple(sorted((p for p in self.products if not p.recipe), key=lambda p: -p.macs))

    @property
    def share(self) -> float:
        """The share of multiply-accumulates that ran emulated, 0…1.

        1 for a step without products.
        """
        left = sum(product.macs for product in self.left)
        return 1.0 - left / self.macs if self.macs else 1.0

    @property
    def by_recipe(self) -> dict[str, float]:
        """Each recipe's share of the multiply-accumulates, the largest first."""
        sums: dict[str, int] = {}
        for product in self.products:
            if product.recipe:
                sums[product.recipe] = sums.get(product.recipe, 0) + product.macs
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return {recipe: count / self.macs for recipe, count in ordered}

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as numbers, texts, lists and dicts, for JSON.

        The dict is {"share": …, "macs": …, "parameters": …, "emulated_parameters": …, "by_recipe":
        {…}, "left": [{"module": …, "operation": …, "backward": …, "macs": …, "calls": …}, …],
        "never_called": […]}. `left` has the products that torch computed.
        """
        left = [
            {"module": p.module, "operation": p.operation, "backward": p.backward, "macs": p.macs,
             "calls": p.calls}
            for p in self.left
        ]  # fmt: skip
        return {
            "share": self.share,
            "macs": self.macs,
            "parameters": self.parameters,
            "emulated_parameters": self.emulated_parameters,
            "by_recipe": self.by_recipe,
            "left": left,
            "never_called": list(self.never_called),
        }

    def __str__(self) -> str:
        """Returns the emulated share in the first line, then the products that torch computed.

        Products of one operation share a line if their modules' names differ only in numbers.
        """
        if not self.by_recipe:
            return self._first_line()
        return "\n".join([self._first_line(), *self._left_lines(), *self._never_called_line()])

    def _first_line(self) -> str:
        if not self.macs:
            return "coverage: the training step had no products"
        recipes = ", ".join(f"{name} {_percent(s)}" for name, s in self.by_recipe.items())
        by = f" ({recipes})" if recipes else ""
        share = self.emulated_parameters / self.parameters if self.parameters else 1.0
        return (
            f"coverage: {_percent(self.share)} emulated{by} of {_count(self.macs)} "
            f"multiply-accumulates of a training step; {_percent(share)} of the "
            f"{_count(self.parameters)} parameters in them"
        )

    def _left_lines(self) -> list[str]:
        alike: dict[tuple[str, str], int] = {}
        for product in self.left:
            key = product.operation, re.sub(r"(?<=\.)\d+(?=\.|$)|^\d+(?=\.|$)", "*", product.module)
            alike[key] = alike.get(key, 0) + product.macs
        ordered = sorted(alike.items(), key=lambda item: -item[1])
        lines = [
            f"  not emulated: {_percent(count / self.macs)}  {operation} in {module or '(model)'}"
            for (operation, module), count in ordered[:_MOST_LINES]
        ]
        more = sum(count for _, count in ordered[_MOST_LINES:])
        if more:
            kinds = len(ordered) - _MOST_LINES
            lines.append(f"  not emulated: {_percent(more / self.macs)}  in {kinds} further kinds")
        return lines

    def _never_called_line(self) -> list[str]:
        names = list(self.never_called)
        if not names:
            return []
        shown = ", ".join(names[:_MOST_LINES]) + (" …" if len(names) > _MOST_LINES else "")
        return [f"  converted and never called: {len(names)}: {shown}"]


_MOST_LINES = 6


def _percent(share: float) -> str:
    """Returns a share in percent with one decimal place, at least 0.1 % and at most 99.9 %.

    Only shares of exactly 0 and 1 give '0 %' and '100 %'.
    """
    if share in (0, 1):
        return f"{round(100 * share)} %"
    return f"{min(max(100 * share, 0.1), 99.9):.1f} %"


def _count(number: int) -> str:
    """Returns a number as a short text in thousands (k), millions (M) and so on."""
    for unit, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {letter}"
    return str(number)
