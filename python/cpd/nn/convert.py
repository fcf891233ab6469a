# SPDX-License-Identifier: Apache-2.0
"""Emulates a torch model in place: `convert`, `restore`, `set_step`, `plain_state_dict`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import ParametrizationList

from cpd._torch import operators
from cpd.nn import bypasses, clock, notes, ranks
from cpd.nn.arguments import FORMATS
from cpd.nn.converted import classes
from cpd.nn.converted.emulations import ENCODERS, Emulation, nearest
from cpd.nn.converted.modes import end_stand_alone, stand_alone
from cpd.nn.converted.state import State
from cpd.nn.coverage import WARN_BELOW, Census, forget
from cpd.nn.coverage import detach as detach_census
from cpd.nn.delayed import Delayed, keep_from_ddp
from cpd.nn.notes import name_of, title_of
from cpd.nn.operations import RESIDUAL
from cpd.nn.quantizers import Quantizer
from cpd.nn.recipe import NATIVE, Recipe, RecipeLike, Sums, is_native
from cpd.nn.registered import emulation_of, torchs_base
from cpd.nn.report import Report, ReportRow
from cpd.nn.rules import Choice, Decision, Rule, Rules
from cpd.numeric.checked import check_module, checked
from cpd.numeric.numbers import at_least, check_number
from cpd.numeric.shown import shown
from cpd.numeric.warned import PrecisionWarning, warn
from cpd.ops.arguments import holds

WITHOUT_PRODUCTS = ("norm", "table", RESIDUAL)
"""`Emulation.what` of modules without products. Rules "first N" and "last N" skip such modules."""


@checked
def convert(
    model: nn.Module,
    recipe: RecipeLike = NATIVE,
    rules: Rules = (),
    *,
    sums: Sums | None = None,
    seed: int = 0,
    coverage: float | bool = WARN_BELOW,
    amax_group: Any = None,
) -> Report:
    """Emulates the layers of `model`, in place, as `recipe` says.

    Each supported layer's class is replaced by a subclass. `Report` names the other layers, with a
    reason. Modules, parameters, the names in the state_dict, hooks, parametrizations, tied weights
    and optimizers remain the same. The model continues to work with deepcopy, pickle, DDP, FSDP2,
    torch.compile, torch.export and activation checkpointing. `restore` undoes the conversion;
    converting again replaces it and preserves the clock.

    Args:
        model: any module, also a single layer. If DistributedDataParallel or torch.compile wraps
            it, the wrapped module is converted.
        recipe: a `cpd.Recipe`, a recipe's name, text or file, or a format. A format, scaled or not,
            is the cast of activation, weight and gradient in all three GEMMs, with torch's own
            sums. Default: no casts. Under `torch.autocast(dtype=torch.bfloat16)` layers return
            bfloat16: a recipe with sums in fp32, for example, then needs `output="bf16"`.
        rules: pairs (selector, recipe), or a dict of them; default: no rules. If the recipe is
            None, torch computes the layer. The first matching rule decides; the recipe's own rules
            come after `rules`. A pattern of qualified names, a class of modules, or "type" and a
            class's name select matching modules and all modules within them. "first N" and "last N"
            select layers with products, "first N blocks" and "last N blocks" children of the
            longest ModuleList or Sequential. N may be a percentage ("15%"), rounded up. `rules` may
            also be a function of a layer's name and module. The function returns a recipe, None, or
            `...` to apply the recipe's own rules.
        sums: the accumulators of the three GEMMs of every layer: one `cpd.Accumulator`, text or
            format for all, or a tuple of three. Default None: the recipe's.
        seed: the seed of all random bits of the model; default 0.
        coverage: the least share of emulated multiply-accumulates, 0…1; default 0.9. The first
            training step counts products (`Report.coverage`), and warns (`PrecisionWarning`) if the
            share is smaller, unless the recipe rounds no layer. False: nothing is counted.
        amax_group: the ranks that exchange the largest magnitudes of delayed scaling, at each call
            of `model` in training mode. None: the ranks of DDP or FSDP2 if one of them wraps
            `model` itself, else no ranks. A process group of torch.distributed: all its ranks must
            call `model` equally often. False: no ranks. TransformerEngine's names are
            `amax_reduction_group` and `reduce_amax=False`.

    Returns:
        The report: a row for each module, emulated or not, with the reason.

    Raises:
        TypeError: for an argument of another type.
        ValueError: for an invalid argument, a rule of `rules` that matches nothing, weights of
            another type than float32, bfloat16 and float16, a lazy layer that was not called yet,
            and a convolution by a recipe whose `scales_at` is not `operand`. After an error, the
            model is unchanged.

    Warns (`PrecisionWarning`) if an operand is cast to integers without a scale, such as "int8".

    If a rounding is stochastic, a scale is delayed or a recipe has a schedule, the model gets a
    clock: the buffer `cpd_clock`, the number of the step, which determines random bits and scales.

    All stochastic roundings of the model use `seed`, each with its own stream: step << 36 XOR
    layer << 20 XOR purpose << 60 (modulo 2^64), where layer is the layer's number in the model's
    order (layers that torch computes count too), and `cpd.Recipe` lists the purposes. If a layer
    has several products, the position of each product is XORed into the lowest 20 bits. So a
    function of `cpd.functional`, with this seed and the stream step << 36 XOR layer << 20, gives
    the layer's bits.

    A step begins at a call of `model` in training mode. If only parts or methods of `model` are
    called, it begins at the first forward of a layer, with gradients on, after a backward pass has
    reached a converted layer. A layer in eval mode begins a step only after a backward pass through
    layers in eval mode. Calls without gradients, recomputation under activation checkpointing and
    transforms of torch.func do not begin a step. If a step begins at the forward of a layer, ranks
    exchange no magnitudes, and the report says so.

    A schedule of steps follows the clock; its first step is 0. A schedule of epochs follows the
    calls of `set_step`; if `set_step` was not called, the second step warns.

    >>> model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 2))
    >>> print(convert(model, "e5m2", [("last 1", None)]))
    emulated (activation, weight and gradient of all three GEMMs in e5m2, native sums): 1
      Linear  × 1  products  0  native activation=e5m2 weight=e5m2 gradient=e5m2
    not emulated: 2
      GELU    × 1  1  torch computes it: no emulation of this class
      Linear  × 1  2  left in torch by the rule 'last 1'
    >>> restore(model)
    """
    check_module("model", model)
    root = _within(model)
    if any(isinstance(module, torch.jit.ScriptModule) for module in root.modules()):
        raise TypeError("model must be as it was before torch.jit, got a torch.jit.ScriptModule")
    warn_below = _share(coverage)
    group = ranks.named(amax_group)
    check_number("seed", seed)
    decide = rules if callable(rules) else None
    plan = _Plan(root, Recipe(recipe, sums=sums), _pairs(rules), decide, seed)
    for loss in plan.losses:
        warn(loss, PrecisionWarning)
    old = clock.clock_of(root)
    step = None if old is None else old.step
    restore(root)
    report = plan.carry_out(old, step, group)
    if warn_below is not None:
        report._census = Census(root, warn_below if report.emulated else 0)
    return report


def _share(coverage: float | bool) -> float | None:
    """Returns the share of emulated products below which the first training step warns.

    Returns None if products are not counted.
    """
    if coverage is False:
        return None
    share = WARN_BELOW if coverage is True else coverage
    if not isinstance(share, (int, float)) or not 0 <= share <= 1:
        raise ValueError(f"coverage must be a share, 0…1, or False, got {shown(coverage)}")
    return share


def _pairs(rules: Any) -> list[Rule]:
    if callable(rules):
        return []
    if isinstance(rules, Mapping):
        return list(rules.items())
    if isinstance(rules, str) or not isinstance(rules, Iterable):
        raise TypeError(
            "rules must be pairs (selector, recipe or None), a dict of them, or a function of name "
            f"and module, got {shown(rules)}"
        )
    return list(rules)


@checked
def restore(model: nn.Module) -> None:
    """Undoes `convert`: restores the classes of all layers, and removes the clock and other state.

    Args:
        model: the model, changed in place. If it was not converted, nothing changes.
    """
    for module in list(_within(model).modules()):
        if classes.is_emulated(module):
            classes.restore(module)
        for name in ("cpd", "cpd_states"):
            module.__dict__.pop(name, None)
        module._modules.pop("cpd_delayed", None)
        clock.detach(module)
        end_stand_alone(module)
        detach_census(module)
        forget(module)
        _give_back_to_ddp(module)


@checked
def set_step(model: nn.Module, *, step: int | None = None, epoch: int | None = None) -> None:
    """Sets the number of the training step or epoch of a converted model.

    Random bits, and schedules of recipes, follow from these numbers.

    Args:
        model: the converted model.
        step: the number of training steps that have begun: the new value of the model's clock, if
            it has one. The next training step has this number in schedules of steps. The clock
            counts by itself and is in the state_dict. Default None: the number is not changed.
        epoch: the number of the epoch that begins, for schedules of epochs. When a phase of a
            schedule begins, torch.compile recompiles. Default None: the number is not changed.

    Raises:
        ValueError: if the model was not converted, or a number is below 0.
    """
    for name, number in (("step", step), ("epoch", epoch)):
        if number is not None:
            at_least(0, name, number)
    states = list(_states(_within(model)))
    if not states:
        raise ValueError("the model has no converted layer: call cpd.convert first")
    if epoch is not None:
        for state in states:
            state.set_epoch(epoch)
    if step is not None:
        for counter in {state.clock for state in states if state.clock is not None}:
            counter.set(step)


@checked
def plain_state_dict(model: nn.Module) -> dict[str, Any]:
    """Returns the model's state_dict without the tensors that `convert` added.

    `convert` adds the clock's step number, and the histories and scales of delayed scaling. The
    unconverted model loads the result with strict=True. A converted model also loads a state_dict
    without these tensors with strict=True, and then preserves its own values. To resume training
    with the same bits, save the converted model's own state_dict.

    Args:
        model: the model, converted or not.

    Returns:
        A dict of tensors by name.

    >>> model = nn.Linear(2, 2)
    >>> report = convert(model, sums="e4m3 sequential rounding=stochastic")
    >>> list(model.state_dict()), list(plain_state_dict(model))
    (['weight', 'bias', 'cpd_clock'], ['weight', 'bias'])
    """
    ours = {clock.NAME, "cpd_delayed"}
    state = model.state_dict()
    return {name: value for name, value in state.items() if ours.isdisjoint(name.split("."))}


def _within(model: nn.Module) -> nn.Module:
    """Returns the model that DistributedDataParallel or torch.compile wraps; otherwise `model`."""
    compiled = getattr(model, "_orig_mod", None)
    if isinstance(compiled, nn.Module):
        return _within(compiled)
    if isinstance(model, (nn.parallel.DistributedDataParallel, nn.DataParallel)):
        return _within(model.module)
    return model


def _give_back_to_ddp(module: nn.Module) -> None:
    """Undoes `keep_from_ddp`."""
    name = "_ddp_params_and_buffers_to_ignore"
    ignored = module.__dict__.get(name, [])
    others = [buffer for buffer in ignored if "cpd_delayed" not in buffer.split(".")]
    if others != ignored:
        module.__dict__.pop(name)
        if others:
            module.__dict__[name] = others


def _states(root: nn.Module) -> Iterator[State]:
    for module in root.modules():
        state = module.__dict__.get("cpd")
        if isinstance(state, State):
            yield state


# ---- what is to be done --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """A module that `convert` will emulate, with its name, emulation and state."""

    name: str
    module: nn.Module
    emulation: Emulation
    state: State

    def recipes(self) -> Iterator[Recipe]:
        """Yields the recipes that the layer may have in the phases of its schedule.

        Yields nothing for a layer without products.
        """
        return iter(()) if self.emulation.what in WITHOUT_PRODUCTS else self.state.phases()


class _Plan:
    """Decides what `convert` does with each module. Only `carry_out` changes the model."""

    def __init__(
        self, root: nn.Module, recipe: Recipe, rules: list[Rule], decide: Decision | None, seed: int
    ) -> None:
        self._root = root
        self._seed = seed
        self._how = recipe
        self._modules = {
            name: module for name, module in root.named_modules() if not isinstance(module, Delayed)
        }
        emulations = {name: emulation_of(_class_of(m)) for name, m in self._modules.items()}
        self._emulations = {name: known for name, known in emulations.items() if known is not None}
        known = self._emulations.items()
        numbered = sorted(known, key=lambda item: item[1].stands_alone)  # their numbers come last
        self._numbers = {name: number for number, (name, _) in enumerate(numbered)}
        counted = [n for n, e in known if e.is_counted and e.what not in WITHOUT_PRODUCTS]
        self._choice = Choice(root, counted, [*rules, *recipe.rules], recipe, decide)
        self._inner: dict[str, str] = {}
        self.layers: list[_Layer] = []
        self.rows = [row for name in self._modules for row in self._rows(name)]
        _check_layers(self.layers)
        unused = self._unused(len(rules))
        self.losses = _of_layers(self.layers, lambda how, _: notes.of_integers(how))
        units = _of_layers(self.layers, lambda how, _: notes.of_units(how))
        types = _of_layers(self.layers, notes.of_types)
        on_recipe = notes.on_recipe(recipe, emulates=bool(self.layers))
        self.notes = [*unused, *on_recipe, *self.losses, *units, *types]
        own = {name: m for name, m in self._modules.items() if name not in self._emulations}
        self.unseen = _unseen(own)
        self.elsewhere = notes.elsewhere(recipe)

    def _unused(self, ours: int) -> list[str]:
        """Returns notes on the recipe's rules that match no module.

        Raises ValueError if a rule of the argument `rules` matches no module.
        """
        unused = self._choice.unused()
        wrong = [repr(text) for place, text in unused if place < ours]
        if wrong:
            raise ValueError(
                f"no module of the model matches the rule {', '.join(wrong)}: a rule has a pattern "
                "of names, 'type' and a class's name, or 'first N' or 'last N'"
            )
        return [f"no module matches the recipe's rule {text!r}" for _, text in unused]

    def _rows(self, name: str) -> Iterator[ReportRow]:
        """Plans a module's conversion. Yields its row of the report unless it rounds nothing."""
        module = self._modules[name]
        cls = _class_of(module)
        kind = classes.own_class(module).__name__
        emulation = self._emulations.get(name)
        if name in self._inner:
            yield ReportRow(name, kind, how=f"within {self._inner[name] or 'the model'}")
            return
        reason = self._passed_over(name)
        if isinstance(module, Quantizer):
            yield ReportRow(name, kind, "cast", f"its own formats: {module.extra_repr()}")
            return
        if emulation is None or (emulation.stands_alone and not self._rounds_residuals(name)):
            unknown = _unknown(module, cls)
            if unknown:
                yield ReportRow(name, kind, why_not=reason or unknown)
            return
        number = self._numbers[name]
        recipe, rule = self._choice.of(name)
        if recipe is None and not reason:
            reason = f"left in torch by the rule {rule!r}"
        if not reason:
            assert recipe is not None
            state = State(recipe, number, self._seed)
            reason = _own_way(module, cls) or emulation.refuses(module, state)
        if not reason:
            _check_shapes(name, module)
        if reason:
            yield ReportRow(name, kind, why_not=reason, layer=number)
            return
        self.layers.append(_Layer(name, module, emulation, state))
        for child in emulation.inner:
            self._inner[f"{name}.{child}".lstrip(".")] = name
        yield ReportRow(name, kind, emulation.what, emulation.describe(state), layer=number)

    def _rounds_residuals(self, name: str) -> bool:
        recipe, _ = self._choice.of(name)
        phases = () if recipe is None else State(recipe).phases()
        return any(phase.residual is not None for phase in phases)

    def _passed_over(self, name: str) -> str:
        """Returns why a module of a supported class is not emulated; "" if it is."""
        parent, _, last = name.rpartition(".")
        if ".parametrizations." in f".{name}.":
            return "makes a weight, which the layer casts"
        reader = bypasses.reader_of(self._modules[parent], last) if name else ""
        return f"torch.nn.{reader} reads its weight and never calls it" if reader else ""

    def carry_out(
        self, old: clock.Clock | None, step: Tensor | None, group: str | bool | None
    ) -> Report:
        """Emulates the layers and returns the report.

        `old` is the clock of a previous conversion, and `step` that clock's buffer; None without
        one. `group` names the ranks that exchange magnitudes, as `ranks.named` returns it.
        """
        delayed: list[Delayed] = []
        for layer in self.layers:
            layer.module.__dict__["cpd"] = layer.state
            classes.emulate(layer.module, layer.emulation)
            if layer.emulation.stands_alone:
                stand_alone(layer.module)
            delayed += _keep_scales(layer)
        new_clock = self._clock(old, step, group)
        if delayed:
            keep_from_ddp(self._root)
        self._encoders()
        states = [layer.state for layer in self.layers]
        name, title = name_of(self._how), title_of(self._how)
        notes = self.notes, states, self.elsewhere
        return Report(self.rows, *notes, name, title, new_clock, self.unseen)

    def _clock(
        self, old: clock.Clock | None, step: Tensor | None, group: str | bool | None
    ) -> clock.Clock | None:
        """Adds a clock to the model if a layer needs it.

        The clock continues from the state of a previous clock.
        """
        states = [layer.state for layer in self.layers]
        for state in states:
            state.counts = state.delayed is not None or bool(state.given.schedule) or state.draws
        if not any(state.counts for state in states):
            return None
        if step is None:
            first = next(chain(self._root.parameters(), self._root.buffers()), None)
            place = None if first is None else first.device
            step = torch.zeros((), dtype=torch.int64, device=place)
        new_clock = clock.Clock(self._root, states, step, group)
        if old is not None:
            new_clock.reached, new_clock.fresh = old.reached, old.fresh
        return new_clock

    def _encoders(self) -> None:
        """Switches off the fast path of torch's transformer encoders with an emulated layer.

        The fast path would compute without calling the emulated layer.
        """
        encoders = {n: m for n, m in self._modules.items() if nearest(type(m), ENCODERS)}
        within = tuple(
            layer.state
            for layer in self.layers
            if any(layer.name.startswith(f"{name}." if name else "") for name in encoders)
        )
        for module in encoders.values() if within else ():
            module.__dict__["cpd_states"] = within
            base = nearest(type(module), ENCODERS)
            assert base is not None
            classes.emulate(module, ENCODERS[base])


def _keep_scales(layer: _Layer) -> Iterator[Delayed]:
    """Adds the state of delayed scaling to a layer and yields it, if the recipe delays scales."""
    products = layer.emulation.histories(layer.module)
    of_phases = (Delayed.of(recipe, *products) for recipe in layer.state.phases())
    scaling_state = next((state for state in of_phases if state is not None), None)
    if scaling_state is None:
        return
    tensor = next(layer.module.parameters(), None)
    scaling_state.to(None if tensor is None else tensor.device).train(layer.module.training)
    layer.module.add_module("cpd_delayed", scaling_state)
    layer.state.delayed = scaling_state
    yield scaling_state


# ---- why a module is not emulated ----------------------------------------------------------------

_EXACT = re.compile(
    "Identity|Flatten|Unflatten|ReLU|Pixel(Unshuffle|Shuffle)|ChannelShuffle|"
    "(Adaptive)?Max(Unpool|Pool)[123]d|(Zero|Constant|Reflection|Replication|Circular)Pad[123]d"
)
"""Torch's modules that do not round: they only select, move or pad values."""
_HOLDERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)


def _class_of(module: nn.Module) -> type[nn.Module]:
    """Returns the module's own class; for a lazy module, the class that its first call sets."""
    cls: type[nn.Module] = getattr(module, "cls_to_become", None) or classes.own_class(module)
    return cls


def _own_way(module: nn.Module, cls: type[nn.Module]) -> str:
    """Returns how a layer's forward differs from its torch class; "" if it does not."""
    if "forward" in vars(module):
        return "its forward was replaced on the object"
    base = torchs_base(cls)
    for name in _COMPUTING_METHODS if base is not None else ():
        if getattr(cls, name, None) is not getattr(base, name, None):
            return f"has its own {name}: write it with cpd.functional, or cpd.nn.register its class"
    return ""


def _check_shapes(name: str, module: nn.Module) -> None:
    """Raises ValueError for a lazy module that has no shapes yet."""
    tensors = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    if any(is_lazy(x) for x in tensors):
        raise ValueError(
            f"{name or 'the model'} is a {type(module).__name__} without shapes: call the model on "
            f"an input before cpd.convert, or give a rule ({name!r}, None) for the layer"
        )


def _unknown(module: nn.Module, cls: type[nn.Module]) -> str:
    """Returns the reason why a module of an unsupported class is not emulated.

    The reason is "" if the module only contains other modules, or does not round.
    """
    own = [name for name, _ in module.named_parameters(recurse=False)]
    if isinstance(module, ParametrizationList) or cls in _HOLDERS:
        return ""
    if any(True for _ in module.children()):
        if not own:
            return ""
        return f"its own code, which convert does not see, uses its parameters {', '.join(own)}"
    if not cls.__module__.startswith("torch.nn."):
        return "its own code is not seen; cpd.nn.register its class, or use cpd.autocast within it"
    return "" if _EXACT.fullmatch(cls.__name__) else "torch computes it: no emulation of this class"


def _unseen(modules: dict[str, nn.Module]) -> dict[str, str]:
    """Returns the names of modules whose own code may compute products, with their class names."""
    return {
        name: classes.own_class(m).__name__
        for name, m in modules.items()
        if any(True for _ in m.children()) and not type(m).__module__.startswith("torch.nn.")
    }


def _of_layers(layers: list[_Layer], of: Callable[[Recipe, nn.Module], Iterable[str]]) -> list[str]:
    """Returns the report's remarks on layers, each once, with the first layer that it is about."""
    first_layers: dict[str, str] = {}
    for layer in layers:
        for recipe in layer.recipes():
            for note in of(recipe, layer.module):
                first_layers.setdefault(note, layer.name or "the model")
    return [f"{note} (first: {name})" for note, name in first_layers.items()]


def _check_layers(layers: list[_Layer]) -> None:
    """Raises TypeError or ValueError now if a layer's first call would raise it."""
    for layer in layers:
        for name, p in layer.module.named_parameters(recurse=False):
            path = f"{layer.name}.{name}".lstrip(".")
            kind = type(p)
            if kind.__module__.partition(".")[0] != "torch" and (
                kind.__torch_dispatch__ is not Tensor.__torch_dispatch__
            ):
                raise TypeError(
                    f"{path} is a {kind.__module__.partition('.')[0]} {kind.__name__}, which CPD "
                    "cannot read: convert the model before it is quantized, or give a rule "
                    f"({layer.name!r}, None) for the layer"
                )
            if (p.is_floating_point() or p.is_complex()) and p.dtype not in FORMATS:
                raise TypeError(
                    f"{path} is {operators.name_of(p.dtype)}: emulated layers take float32, "
                    "bfloat16 and float16; call model.float(), or give a rule "
                    f"({layer.name!r}, None) for the layer"
                )
        for recipe in layer.recipes():
            _check_results(recipe, layer)
            if recipe.scales_at != "operand" and isinstance(layer.module, _CONVOLUTIONS):
                raise ValueError(
                    f"{layer.name or 'the model'}: convolutions multiply values that are scaled, "
                    "but the recipe's sums are a matrix unit's, which multiplies elements and "
                    f"scales sums (scales_at={recipe.scales_at!r}): give a rule "
                    f"('type {classes.own_class(layer.module).__name__}', None), or a recipe with "
                    "other sums"
                )


_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

_COMPUTING_METHODS = ("forward", "_conv_forward", "__call__", "__getattr__")
"""Methods that compute a torch layer's result. A subclass that overrides one is not emulated."""


def _check_results(recipe: Recipe, layer: _Layer) -> None:
    """Raises ValueError if the type of a layer's result cannot represent the format of its sums."""
    weight = getattr(layer.module, "weight", None)
    if not isinstance(weight, Tensor) or is_native(recipe.forward) or recipe.output is not None:
        return
    held, format = operators.name_of(weight.dtype), recipe.forward.format.name  # type: ignore[union-attr]
    if weight.is_floating_point() and not holds(held, format):
        output = FORMATS[weight.dtype]
        raise ValueError(
            f"{layer.name or 'the model'}: its results are {held}, which cannot represent every "
            f"value of the sums' format {format}: give the recipe {output=}, or make the layer "
            "float32"
        )
