# SPDX-License-Identifier: Apache-2.0
"""`observe`: measures what number formats lose of a model's tensors during training.

In every n-th step, it measures the tensors that enter and leave the layers. It also measures the
losses of the layers' own formats, and of formats in other recipes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from cpd._files import write_text
from cpd._torch.private import graph_task, transforms_active
from cpd.nn import observed_rows
from cpd.nn.coverage import coverage_of, uncounted
from cpd.nn.losses import Judged, Measured, judge, measure
from cpd.nn.observed import (
    GEMMS,
    as_operand,
    layers_of,
    multiplier_of,
    recipe_of,
    weights_of,
)
from cpd.nn.observed_rows import EXEMPT, Key, WatchRow
from cpd.nn.recipe import Recipe, RecipeLike, as_recipe
from cpd.nn.rules import Choice
from cpd.numeric.cast import Cast, is_whole
from cpd.numeric.checked import check_module, checked
from cpd.numeric.numbers import at_least
from cpd.numeric.shown import shown

WhatIf: TypeAlias = "Iterable[RecipeLike] | Mapping[str, RecipeLike]"

OWN = "own"
"""The value of `WatchRow.recipe` for the recipe with which a layer was converted."""
COMPILED = (
    "observers look at what runs eagerly, and torch.compile would run past them: observe the model "
    "without it, or in a step of its own under torch.compiler.set_stance('force_eager')"
)


@checked
def observe(model: nn.Module, every: int = 100, what_if: WhatIf = (), writer: Any = None) -> Watch:
    """Measures the layers of `model` in the first step, and then in every `every`-th step.

    A step is a call of `model` in the mode that it has now (training or evaluation). Each layer
    with products (linear, convolution, recurrent, attention) has four measured tensors: activation,
    weights, output, and the output's gradient. For a layer that `cpd.convert` has converted, the
    losses of its recipe are measured too; `WatchRow` defines them.

    Blocks of scaled formats run along the axis that each GEMM sums over. With delayed scaling,
    losses are measured for the layer's present scale; without such a scale, for the scale of the
    tensor's own largest magnitude. Stochastic rounding uses other random bits than the layer.

    The model computes the same values as before. Between measured steps, the only hook is on the
    model itself; it counts calls. `Watch.remove` removes it. Measurements are copied to the CPU at
    the end of the step: at the next call, or when rows are read. Recomputation under activation
    checkpointing is not measured. In DDP each rank measures its own layers. If torch.compile has
    compiled the model without fullgraph, torch runs it eagerly in a measured step; a program that
    was compiled before `observe` is not measured.

    Args:
        model: the model, converted or not; not compiled.
        every: the number of calls from one measured step to the next; default 100.
        what_if: other recipes whose losses are measured too: a list of recipes, or of their names
            or texts, or a dict of recipes by names of your choice. Default (): no other recipes.
            Their rules are applied. A schedule's recipe is the one before its first phase. If a
            rule leaves a layer to torch, nothing is measured; the row names the rule.
        writer: an object with a method `add_scalar(tag, value, step)`, such as TensorBoard's
            SummaryWriter. Tags are, for example, `layer/role/amax` and `layer/role/recipe/sqnr`.
            Default None: nothing is written.

    Returns:
        A `Watch`, which has the measured rows, writes them, and ends the observation (`remove`).

    Raises:
        ValueError: for an invalid argument, or a compiled model.
        TypeError: for an argument of another type.
        RuntimeError: in a call of the model, if a measured layer runs within
            torch.compile(fullgraph=True) or a transform of torch.func.

    >>> layer = torch.nn.Linear(4, 2)
    >>> fp8 = Recipe("native", activation="e4m3fn", weight="e4m3fn", gradient="e5m2")
    >>> watch = observe(layer, every=1, what_if={"fp8": fp8})
    >>> layer(torch.tensor([[1.0, 3.3, 500.0, 0.0]])).sum().backward()
    >>> [row.overflow for row in watch if row.role == "activation"]
    [25.0]
    >>> watch.remove()
    """
    return Watch(model, every, what_if, writer)


class Watch:
    """The result of `observe`: the rows of all measured steps, and methods that write them.

    It iterates over the rows, and prints the last step as a table. As a context manager, it calls
    `remove` at the end. Reading rows ends the step that is being measured.

    Args:
        model: the model whose layers are measured, converted or not; not compiled.
        every: the number of calls from one measured step to the next; default 100.
        what_if: other recipes whose losses are measured, in the forms that `observe` takes; default
            (): no other recipes.
        writer: an object with a method `add_scalar(tag, value, step)`; default None: nothing is
            written.

    Attributes:
        every: the argument `every`.
    """

    every: int
    _what_if: dict[str, Recipe]

    def __init__(
        self, model: nn.Module, every: int = 100, what_if: WhatIf = (), writer: Any = None
    ) -> None:
        self._model = _checked(model)
        self.every = at_least(1, "every", every)
        self._what_if = _named(what_if)
        if writer is not None and not callable(getattr(writer, "add_scalar", None)):
            raise TypeError(
                f"writer must have add_scalar(tag, value, step), got {type(writer).__name__}"
            )
        self._writer = writer
        self._mode = self._model.training
        self._calls = 0
        self._rows: list[WatchRow] = []
        self._open: _Step | None = None
        self._handle = self._model.register_forward_pre_hook(_Hook(self, _begin), with_kwargs=True)

    @property
    def rows(self) -> list[WatchRow]:
        """All rows, ordered by step, layer, role and recipe."""
        self._close()
        return list(self._rows)

    def __iter__(self) -> Iterator[WatchRow]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def remove(self) -> None:
        """Ends the observation: removes all hooks from the model. The rows remain."""
        self._close()
        self._handle.remove()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()

    def to_json(self, path: str | Path | None = None) -> str:
        """Returns the rows as a JSON array of objects.

        Infinities and NaN, which JSON does not have, become the texts "inf", "-inf" and "nan".

        Args:
            path: a file to which the text is also written; default None: no file.

        Returns:
            The text.
        """
        text = observed_rows.json_of(self.rows)
        if path is not None:
            write_text(path, text + "\n")
        return text

    def to_csv(self, path: str | Path) -> None:
        """Writes a CSV file: a line with the names of columns, then a line for each row.

        None becomes an empty field.

        Args:
            path: the file.
        """
        observed_rows.write_csv(Path(path), self.rows)

    def plot(self, path: str | Path) -> None:
        """Draws the last measured step: for each layer the ranges, and the SQNR of each recipe.

        Args:
            path: the picture's file, which ends in .png or .svg.

        Raises:
            ValueError: if `path` does not end in .png or .svg, or if nothing was measured.
            ImportError: if matplotlib is not installed.
        """
        from cpd.nn.observed_plot import draw

        draw(Path(path), self.last())

    def last(self) -> list[WatchRow]:
        """Returns the rows of the last measured step."""
        rows = self.rows
        return [row for row in rows if row.step == rows[-1].step]

    def __str__(self) -> str:
        rows = self.last()
        if not rows:
            return "nothing observed yet: the model has not been called, or by a compiled program"
        counted = coverage_of(self._model)
        first = "" if counted is None else f"{counted}\n"
        return f"{first}step {rows[-1].step}\n{observed_rows.table(rows)}"

    def __repr__(self) -> str:
        names = "".join(f", {name!r}" for name in self._what_if)
        return f"<cpd.observe: every {self.every} steps{names}: {len(self._rows)} rows>"

    # ---- one step --------------------------------------------------------------------------------

    def _close(self) -> None:
        """Ends the step that is being measured, if any, and stores its measurements as rows."""
        step, self._open = self._open, None
        if step is None:
            return
        for handle in step.handles:
            handle.remove()
        rows = step.rows()
        self._rows += rows
        if self._writer is not None:
            observed_rows.write_scalars(self._writer, rows)

    def _look(self, name: str, module: nn.Module, role: str, x: Tensor, suffix: str = "") -> None:
        """Measures one tensor of a layer. `suffix`: the tensor's name in the layer."""
        step = self._open
        if step is None or not _is_measurable(x):
            return
        layer = f"{name}.{suffix}" if name and suffix else name or suffix
        with torch.no_grad(), uncounted():
            seen = measure(x.detach())
            step.add((layer, role, "", ""), seen.measured)
            own = recipe_of(module)
            if own is not None:
                self._judge(step, layer, module, role, OWN, own, seen.x)
            for label, choice in step.choices.items():
                recipe, selector = choice.of(name)
                if recipe is not None:
                    self._judge(step, layer, module, role, label, recipe, seen.x)
                elif role != "output":
                    step.exempt((layer, role, label, GEMMS[role][0][0]), selector)

    def _judge(
        self,
        step: _Step,
        layer: str,
        module: nn.Module,
        role: str,
        name: str,
        recipe: Recipe,
        x: Tensor,
    ) -> None:
        """Measures the errors of a recipe's casts of a tensor.

        Two GEMMs share one measurement if their casts are equal and do not depend on the axis.
        """
        multiplier = multiplier_of(module, role) if name == OWN else None
        known: set[tuple[str, str]] = set()
        for gemm, operand in GEMMS[role]:
            spec: Cast | None = recipe._operand(operand)
            if spec is None:
                continue
            which = spec.text, "" if is_whole(spec.text) else gemm
            if which in known:
                continue
            known.add(which)
            view, axis = as_operand(x, module, role, gemm)
            key = layer, role, name, gemm
            step.casts[key] = spec.text
            try:
                step.add(key, judge(view, spec, axis, multiplier))
            except ValueError as error:
                step.refused[key] = str(error)


@dataclass
class _Step:
    """The measurements of one step: float64 vectors, each on its tensor's device."""

    number: int
    choices: dict[str, Choice]
    handles: list[Any] = field(default_factory=list)
    parts: dict[Key, list[Tensor]] = field(default_factory=dict)
    casts: dict[Key, str] = field(default_factory=dict)
    refused: dict[Key, str] = field(default_factory=dict)
    weights: set[str] = field(default_factory=set)

    def exempt(self, key: Key, selector: str) -> None:
        """Records that a rule exempts a layer from the recipe: torch computes the layer."""
        self.casts[key], self.refused[key] = "", f"{EXEMPT} {selector!r}"

    def add(self, key: Key, numbers: Tensor) -> None:
        self.parts.setdefault(key, []).append(numbers)

    def rows(self) -> list[WatchRow]:
        """Returns a row for each tensor and each measured cast of the tensor.

        A tensor without measured casts has one row.
        """
        parts = _transferred(self.parts)
        ranges = {key[:2]: Measured.total(p) for key, p in parts.items() if not key[2]}
        watch_rows: list[WatchRow] = []
        for layer, role in sorted(ranges, key=_place(ranges)):
            keys = [key for key in self.casts if key[:2] == (layer, role)]
            for key in keys or [(layer, role, "", "")]:
                judged = Judged.total(parts[key]) if key[2] and key in parts else None
                cast, why = self.casts.get(key, ""), self.refused.get(key, "")
                watch_rows.append(
                    observed_rows.row_of(self.number, key, cast, ranges[layer, role], judged, why)
                )
        return watch_rows


def _place(tensors: Iterable[tuple[str, str]]) -> Callable[[tuple[str, str]], tuple[int, int]]:
    """Returns a sort key: the order of the layers' calls, then the role (activation, weight, …)."""
    layers = {layer: place for place, (layer, _) in reversed(list(enumerate(tensors)))}
    roles = list(GEMMS)
    return lambda tensor: (layers[tensor[0]], roles.index(tensor[1]))


def _transferred(parts: dict[Key, list[Tensor]]) -> dict[Key, list[list[float]]]:
    """Copies the measurements to the CPU, with one transfer for each device."""
    flat = [numbers for tensors in parts.values() for numbers in tensors]
    places = {numbers.device for numbers in flat}
    there = {
        place: iter(torch.cat([n for n in flat if n.device == place]).tolist()) for place in places
    }
    return {
        key: [[next(there[n.device]) for _ in range(n.numel())] for n in tensors]
        for key, tensors in parts.items()
    }


# ---- hooks ---------------------------------------------------------------------------------------


class _Hook:
    """A hook that a `Watch` adds to a module.

    In a copy of the model, or after unpickling, it has no `Watch` and does nothing.
    """

    def __init__(
        self, watch: Watch | None = None, run: Callable[..., None] | None = None, *more: Any
    ) -> None:
        self._watch, self._run, self._more = watch, run, more

    def __call__(self, *arguments: Any) -> None:
        if self._watch is not None and self._run is not None:
            self._run(self._watch, *self._more, *arguments)

    def __deepcopy__(self, memo: Any) -> _Hook:
        return _Hook()

    def __reduce__(self) -> tuple[Any, ...]:
        return _Hook, ()


def _begin(watch: Watch, model: nn.Module, args: Any, kwargs: Any) -> None:
    """A hook before each call of the model: ends the measurement of the previous step.

    Begins to measure a step at the first call in the observed mode, then at every `every`-th call.
    """
    if torch.compiler.is_compiling():
        raise RuntimeError(COMPILED)
    watch._close()
    if model.training != watch._mode:
        return
    number, watch._calls = watch._calls, watch._calls + 1
    if number % watch.every:
        return
    layers = list(layers_of(model))
    names = [name for name, _ in layers]
    choices = {
        label: Choice(model, names, recipe.rules, recipe)
        for label, recipe in watch._what_if.items()
    }
    step = watch._open = _Step(number, choices)
    for name, layer in layers:
        entering = _Hook(watch, _entering, name)
        leaving = _Hook(watch, _leaving, name)
        step.handles += [
            layer.register_forward_pre_hook(entering, with_kwargs=True),
            layer.register_forward_hook(leaving),
        ]
        if layer is model:  # the model's hooks are running already
            entering(model, args, kwargs)


def _entering(watch: Watch, name: str, layer: nn.Module, args: Any, kwargs: Any) -> None:
    """Runs before a layer's forward: measures its input and, once in each step, its weights."""
    _check_eager()
    step = watch._open
    if step is None or _is_repeated():
        return
    x = _first_tensor((args, kwargs))
    if x is not None:
        watch._look(name, layer, "activation", x)
    if name in step.weights:
        return
    step.weights.add(name)
    for suffix, weight in weights_of(layer):
        watch._look(name, layer, "weight", weight, suffix)


def _leaving(watch: Watch, name: str, layer: nn.Module, args: Any, result: Any) -> None:
    """Runs after a layer: measures its output and, in the backward pass, the output's gradient."""
    _check_eager()
    step = watch._open
    y = _first_tensor(result)
    if step is None or y is None:
        return
    if not _is_repeated():
        watch._look(name, layer, "output", y)
    if y.requires_grad:
        _on_gradient(y, _Hook(watch, _returning, step, name, layer))


def _on_gradient(y: Tensor, hook: _Hook) -> None:
    """Calls `hook` with the gradient of `y`, even if `y` is later changed in place.

    A hook on a view is lost when an in-place function (such as ReLU) changes the view. So for a
    view, the hook is on the autograd node of its base tensor.
    """
    base = y._base if y._is_view() else None
    whole = base is not None and base.is_contiguous() and base.numel() == y.numel()
    if base is None or base.grad_fn is None or not whole:
        y.register_hook(hook)  # type: ignore[no-untyped-call]
        return
    number, shape = base.output_nr, base.shape
    place = y.size(), y.stride(), y.storage_offset() - base.storage_offset()

    def of_base(gradients: tuple[Tensor | None, ...]) -> None:
        gradient = gradients[number]
        if gradient is not None:
            hook(gradient.detach().reshape(shape).contiguous().as_strided(*place))

    base.grad_fn.register_prehook(of_base)


def _returning(watch: Watch, step: _Step, name: str, layer: nn.Module, gradient: Tensor) -> None:
    if watch._open is step:
        watch._look(name, layer, "gradient", gradient)


def _is_repeated() -> bool:
    """Returns True if a backward pass is running: then a checkpoint is recomputing the layer."""
    return graph_task() != -1


def _check_eager() -> None:
    if torch.compiler.is_compiling():
        raise RuntimeError(COMPILED)
    if transforms_active():
        raise RuntimeError(
            "observers do not look into torch.func's transforms: remove them (watch.remove()) "
            "before the model is called in one"
        )


# ---- arguments -----------------------------------------------------------------------------------


def _checked(model: Any) -> nn.Module:
    """Checks the argument `model`. Returns the module whose calls count as steps."""
    check_module("model", model)
    module: nn.Module = model
    if isinstance(model, nn.parallel.DistributedDataParallel):
        return _checked(model.module)
    compiled = [
        name
        for name, part in model.named_modules()
        if isinstance(getattr(part, "_orig_mod", None), nn.Module)
        or vars(part).get("_compiled_call_impl") is not None
    ]
    if compiled:
        place = f"its module {compiled[0]!r} is compiled" if compiled[0] else "model is compiled"
        raise ValueError(f"{place}: {COMPILED}")
    return module


def _named(what_if: Any) -> dict[str, Recipe]:
    """Returns the recipes of `what_if` by name. Raises an error for an invalid `what_if`."""
    if isinstance(what_if, (str, Recipe)) or not isinstance(what_if, Iterable):
        raise TypeError(
            f"what_if must be a list or dict of recipes, such as ['mxfp8'], got {shown(what_if)}"
        )
    if isinstance(what_if, Mapping):
        recipes = {name: as_recipe(recipe) for name, recipe in what_if.items()}
    else:
        pairs = [
            (recipe if isinstance(recipe, str) else str(recipe), as_recipe(recipe))
            for recipe in what_if
        ]
        recipes = dict(pairs)
        if len(recipes) < len(pairs):
            raise ValueError(f"what_if has a recipe twice: {[name for name, _ in pairs]}")
    for name in recipes:
        if not isinstance(name, str) or not name or name == OWN:
            raise ValueError(f"what_if needs names, other than {OWN!r}, got {shown(name)}")
    return recipes


def _first_tensor(value: Any) -> Tensor | None:
    """Returns the first tensor among a layer's arguments or results; None if there is none."""
    if isinstance(value, Tensor):
        return value
    items = value.values() if isinstance(value, dict) else value
    if not isinstance(value, (dict, tuple, list)):
        return None
    tensors = (_first_tensor(item) for item in items)
    return next((x for x in tensors if x is not None), None)


def _is_measurable(x: Tensor) -> bool:
    """Returns True if a tensor has floating-point values that can be measured."""
    return (
        x.is_floating_point()
        and x.layout == torch.strided
        and not x.is_nested
        and not x.is_meta
        and x.numel() > 0
    )
