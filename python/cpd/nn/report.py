# SPDX-License-Identifier: Apache-2.0
"""`Report`: the result of `cpd.convert`, with a `ReportRow` for each module."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cpd.nn.clock import Clock
from cpd.nn.converted.state import State
from cpd.nn.coverage import Census, Coverage


@dataclass(frozen=True)
class ReportRow:
    """A row of a `Report`: how one module was converted, or why it was not.

    Attributes:
        name: the module's qualified name; "" for the model itself.
        kind: the name of the module's class.
        what: the emulated part of the module ("products", "norm", "attention", …), or "".
        how: the part of the recipe that the module uses, or the parent that computes the module.
        why_not: the reason why the module is not emulated; "" if it is.
        layer: the module's number in random streams; None if it has no number.
    """

    name: str
    kind: str
    what: str = ""
    how: str = ""
    why_not: str = ""
    layer: int | None = None


class Report(Sequence[ReportRow]):
    """The result of `cpd.convert`: a sequence of rows, one for each module that computes.

    Rows are in the model's order. str() returns a table of the rows, `to_json` a JSON text.

    Args:
        rows: all rows.
        notes: the notes on the model as a whole.
        states: the states of the layers; default (): none.
        elsewhere: the notes on parts of the recipe that `convert` does not apply: the optimizer and
            the all-reduce of gradients; default (): none.
        recipe: the name of the recipe, or its text; default "".
        title: the first line of the table; default "": the recipe.
        clock: the clock of the model; default None: the model has no clock.
        unseen: names of modules whose own code may compute products, with their classes' names;
            default None: none.

    Attributes:
        rows: all rows.
        recipe: the name of the recipe, or its text.
    """

    _census: Census | None = None
    """The counter of the products in the model's first training step; None: no counter."""

    def __init__(
        self,
        rows: Sequence[ReportRow],
        notes: Sequence[str],
        states: Sequence[State] = (),
        elsewhere: Sequence[str] = (),
        recipe: str = "",
        title: str = "",
        clock: Clock | None = None,
        unseen: Mapping[str, str] | None = None,
    ) -> None:
        self.rows = tuple(rows)
        self._elsewhere = tuple(elsewhere)
        self._notes = tuple(notes)
        self._clock = clock
        self._unseen = unseen or {}
        self.recipe = recipe
        self._title = title or f"recipe {recipe}"
        self._states = tuple(states)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the model as a whole, and on its steps so far.

        One note names the modules whose own code may compute products, which torch then computes.
        Once a training step is counted, it names only modules for which torch did so in that step.
        """
        of_steps = () if self._clock is None else self._clock.notes()
        return (*self._notes, *self._outside(), *of_steps, *self._elsewhere)

    def _outside(self) -> Iterator[str]:
        """Yields a remark if modules' own code may compute products, outside of layers."""
        counted = None if self._census is None else self._census.result
        unseen = self._unseen
        if counted is not None:
            left = {product.module for product in counted.left}
            unseen = {name: kind for name, kind in unseen.items() if name in left}
        if unseen:
            yield (
                f"products that the forward of {', '.join(dict.fromkeys(unseen.values()))} "
                "computes itself (F.linear, @, einsum, scaled_dot_product_attention) are left in "
                "torch; with cpd.autocast(recipe): emulates them, attention by the recipe's "
                "attention="
            )

    @property
    def emulated(self) -> tuple[ReportRow, ...]:
        """The report's rows for modules that are emulated."""
        return tuple(row for row in self.rows if not row.why_not)

    @property
    def not_emulated(self) -> tuple[ReportRow, ...]:
        """The report's rows for modules that are not emulated, each with the reason."""
        return tuple(row for row in self.rows if row.why_not)

    def coverage(self, *inputs: Any, **keywords: Any) -> Coverage:
        """Returns which products of a training step were emulated, and which torch computed.

        Without arguments, returns the counts of the first training step after `cpd.convert`,
        forward and backward. With a model's arguments, predicts the counts of a step by a forward
        and backward pass on tensors without values. That pass computes no values and does not
        change the model. It needs a model that torch.compile supports.

        Args:
            *inputs: the model's positional arguments, for a prediction.
            **keywords: the model's keyword arguments, for a prediction.

        Returns:
            The counts.

        Raises:
            ValueError: if no training step was counted yet, or if the model was converted with
                `coverage=False`.
        """
        if self._census is None:
            raise ValueError("nothing is counted: cpd.convert was called with coverage=False")
        if inputs or keywords:
            return self._census.trace(inputs, keywords)
        counted = self._census.finish()
        if counted is None:
            raise ValueError(
                "no training step was counted yet: call the model, or its parts, with gradients "
                "on, or give report.coverage() the model's arguments, as for a compiled model that "
                "runs the program of another"
            )
        return counted

    def off(self) -> None:
        """Makes the converted layers compute as torch does, until `on` is called."""
        for state in self._states:
            state.set_off(True)

    def on(self) -> None:
        """Makes the converted layers compute by their recipes again, after `off`."""
        for state in self._states:
            state.set_off(False)

    def to_json(self, **options: Any) -> str:
        """Returns the report as a JSON text.

        The text is {"recipe": …, "rows": [{"name": …, "kind": …, "what": …, "how": …, "why_not": …,
        "layer": …}, …], "notes": […], "coverage": {…}}, with "coverage" after a training step.

        Args:
            **options: keyword arguments of json.dumps.

        Returns:
            The text.
        """
        data: dict[str, Any] = {
            "recipe": self.recipe,
            "rows": [asdict(row) for row in self.rows],
            "notes": list(self.notes),
        }
        if self._census is not None and self._census.result is not None:
            data["coverage"] = self._census.result.to_dict()
        return json.dumps(data, **{"ensure_ascii": False, **options})

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> Any:
        return self.rows[index]

    def __iter__(self) -> Iterator[ReportRow]:
        return iter(self.rows)

    def __repr__(self) -> str:
        counts = f"{len(self.emulated)} emulated, {len(self.not_emulated)} not"
        first = "" if self.emulated else "".join(f"{note}; " for note in self._elsewhere)
        return f"<cpd.Report: {first}{self.recipe}: {counts}>"

    def __str__(self) -> str:
        parts = [] if self.rows else ["nothing to emulate: no module of the model computes"]
        for title, rows, field in (
            (f"emulated ({self._title})", self.emulated, "how"),
            ("not emulated", self.not_emulated, "why_not"),
        ):
            if rows:
                parts += [f"{title}: {len(rows)}", *_table(rows, field)]
        notes = [f"note: {note}" for note in self.notes if note not in self._elsewhere]
        others = [f"not convert's: {note}" for note in self._elsewhere]
        ordered = [*parts, *notes, *others] if self.emulated else [*others, *parts, *notes]
        counted = None if self._census is None else self._census.result
        return "\n".join(ordered if counted is None else [str(counted), *ordered])


def _table(rows: Sequence[ReportRow], field: str) -> list[str]:
    """Returns the lines of a table. Rows with the same class and text share a line."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for row in rows:
        alike.setdefault((row.kind, row.what, getattr(row, field)), []).append(
            row.name or "(model)"
        )
    cells = [
        (kind, f"× {len(names)}", what, _names(names), text)
        for (kind, what, text), names in alike.items()
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(4)]
    return [
        "  " + "  ".join(c.ljust(n) for c, n in zip(row, widths, strict=False) if n) + f"  {row[4]}"
        for row in cells
    ]


def _names(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 2 else f"{names[0]} … {names[-1]}"
