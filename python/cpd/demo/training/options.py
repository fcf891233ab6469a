# SPDX-License-Identifier: Apache-2.0
"""What a training run depends on; the options of `cpd train` in one value."""

import math
import shlex
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from cpd.comm import spec_text
from cpd.comm.schedule import Schedule
from cpd.comm.spec import ReduceSpec, sums_format
from cpd.compress import Codec, codec
from cpd.compress.table import is_compressor
from cpd.nn.ready import recipe
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.scaled import Scaled, format_or_scaled

_APS: dict[str, bool | Literal["paper"]] = {"off": False, "on": True, "paper": "paper"}


def is_power_of_two(value: float) -> bool:
    return math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5


def power_of_two(exponent: int) -> str:
    """'2⁸' for 8."""
    return "2" + str(exponent).translate(str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻"))


def reduce_spec(
    *,
    format: str = "fp32",
    wire: str | None = None,
    aps: str = "off",
    loss_scale: float = 1.0,
    kahan: bool = False,
    group_size: int | None = None,
    order: str = "sequential",
    exchange: str = "owner",
    rounding: str = "nearest_even",
    overflow: str | None = None,
    seed: int = 0,
) -> ReduceSpec:
    """The all-reduce that these options name; `wire`: a codec, in place of `format`, or the name of
    a format, which is that format. Raises ValueError for what CPD refuses."""
    if wire is not None and not is_compressor(wire):
        format, wire = wire, None
    cast = None if wire is not None else format_or_scaled(format)
    accumulator = Accumulator(
        sums_format(cast),
        "kahan" if kahan else "sequential",
        rounding=rounding,
        overflow=overflow or "ieee",
        seed=seed,
    )
    return ReduceSpec(
        cast,
        wire=wire,
        accumulator=accumulator,
        order=order,
        exchange=exchange,
        group_size=group_size,
        aps=_APS[aps],
        loss_scale=loss_scale,
        rounding=rounding,
        overflow=overflow,
        seed=seed,
    )


def layer_names(depth: int) -> list[str]:
    """The parameter tensors of the digit classifier, in their order."""
    modules = [*(f"hidden{index}" for index in range(1, depth + 1)), "output"]
    return [f"{module}.{part}" for module in modules for part in ("weight", "bias")]


@dataclass(frozen=True)
class TrainOptions:
    """Everything that decides the result of a run, on one type of CPU.

    None, for an option of the all-reduce (`format` to `overflow`, `wire`), is what the `wire` of
    `recipe` says, where it has one and neither `format` nor `wire` replaces it; else the default.
    """

    format: str | None = None
    aps: str | None = None
    loss_scale: float | None = None
    kahan: bool | None = None
    group_size: int | None = None
    order: str | None = None
    exchange: str | None = None
    rounding: str | None = None
    overflow: str | None = None
    last_layer_fp32: bool = False
    exempt: tuple[str, ...] = ()
    fp32_epochs: int = 0
    seed: int = 0
    epochs: int = 40
    depth: int = 6
    width: int = 64
    nodes: int = 8
    batch: int = 16
    lr: float = 0.05
    momentum: float = 0.9
    recipe: str | None = None
    wire: str | None = None
    min_size: int | None = None

    def __post_init__(self) -> None:
        if self.wire is not None:
            self._take_wire(codec(self.wire))
        if self.format is not None:
            object.__setattr__(self, "format", str(format_or_scaled(self.format)))
        for name in ("epochs", "depth", "width", "nodes", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.group_size is not None and not 1 <= self.group_size <= self.nodes:
            raise ValueError(
                f"group size must be 1…{self.nodes} (the nodes), got {self.group_size}"
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be 0…4294967295, got {self.seed}")
        if self.loss_scale is not None and not is_power_of_two(self.loss_scale):
            raise ValueError(f"loss scale must be a power of two, got {self.loss_scale:g}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.fp32_epochs < 0:
            raise ValueError(f"fp32 epochs must be at least 0, got {self.fp32_epochs}")
        if self.aps is not None:
            _check_choice("aps", self.aps, tuple(_APS))
        schedule = self.schedule(steps_per_epoch=1)
        schedule.check_names(layer_names(self.depth))
        schedule.check_world(self.nodes)

    def _take_wire(self, wire: Codec) -> None:
        """The codec's name in its one form; that of a format is the format."""
        if self.format not in (None, "fp32"):
            raise ValueError(f"format and wire exclude each other, got {self.format}, {wire}")
        object.__setattr__(self, "wire", wire.name if wire.is_compressor else None)
        object.__setattr__(self, "format", None if wire.is_compressor else wire.name)

    def check_data(self, count: int) -> None:
        """Raises ValueError where one step needs more than `count` training images."""
        if self.nodes * self.batch > count:
            raise ValueError(
                f"nodes × batch must be at most {count} (the training images), "
                f"got {self.nodes} × {self.batch}"
            )

    @cached_property
    def recipes_wire(self) -> str | None:
        """The recipe's `wire` where it is in use: `format` and `wire` replace it."""
        how = None if self.recipe is None else recipe(self.recipe)
        return how.wire if how is not None and self.format is None is self.wire else None

    @cached_property
    def spec(self) -> ReduceSpec:
        """The all-reduce of layers that are not exempt, after the first epochs. Raises ValueError
        for options that exclude each other."""
        names = ("loss_scale", "group_size", "order", "exchange")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.recipes_wire is not None:
            return self._recipes_spec(self.recipes_wire, chosen)
        return reduce_spec(
            format=self.format or "fp32",
            wire=self.wire,
            aps=self.aps or "off",
            kahan=bool(self.kahan),
            rounding=self.rounding or "nearest_even",
            overflow=self.overflow,
            seed=self.seed,
            **chosen,
        )

    def _recipes_spec(self, wire: str, chosen: dict[str, Any]) -> ReduceSpec:
        """The spec of a recipe's `wire`, with the chosen options. It does not average: each node's
        loss is already divided by the number of nodes."""
        for name in ("kahan", "rounding", "overflow"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} goes with a format or a wire of its own, which replaces the "
                    f"recipe's, {wire!r}"
                )
        if self.aps is not None:
            chosen["aps"] = _APS[self.aps]
        spec = spec_text.reduce_spec(wire)
        return replace(spec, average=False, seed=spec.seed or self.seed, **chosen)

    def schedule(self, steps_per_epoch: int) -> Schedule:
        """How each layer is reduced at each step: the chosen format or codec, or fp32 without
        scaling."""
        spec = self.spec
        plain = reduce_spec(
            group_size=spec.group_size,
            order=spec.order,
            exchange=spec.exchange,
            rounding=self.rounding or "nearest_even",
            overflow=self.overflow,
            seed=self.seed,
        )
        return Schedule(
            spec,
            exempt=(*self.exempt, *(("output.*",) if self.last_layer_fp32 else ())),
            exempt_spec=plain,
            first_steps=self.fp32_epochs * steps_per_epoch,
            first_spec=plain,
            min_size=self.min_size or 0,
        )

    def arguments(self) -> str:
        """The `cpd train` options, complete, that make exactly this run."""
        words: list[str] = []
        for field in fields(self):
            words += _words(field.name, getattr(self, field.name))
        return " ".join(words)

    def label(self) -> str:
        """A few words for tables and legends: '(4,3) + APS', '(4,3) × 2⁸'."""
        spec = self.spec
        wire = spec.format
        if wire is None:
            name = str(spec.wire.name)  # type: ignore[union-attr]
        elif isinstance(wire, Scaled):
            name = str(wire)
        else:
            name = "FP32" if str(wire) == "fp32" else f"({wire.exp},{wire.man})"
        if spec.aps:
            name += " + APS (paper)" if spec.aps == "paper" else " + APS"
        if spec.loss_scale != 1:
            name += f" × {power_of_two(int(math.log2(spec.loss_scale)))}"
        if self.recipes_wire is not None:
            return f"{name}, by {self.recipe}"
        return name if self.recipe is None else f"{name}, layers by {self.recipe}"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if name == "aps":
        return {None: [], "off": [flag, "off"], "on": [flag], "paper": [flag, "paper"]}[value]
    if isinstance(value, tuple):
        return [word for one in value for word in (flag, shlex.quote(one))]
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, float):
        return [flag, f"{value:.0f}" if value.is_integer() else repr(value)]
    return [flag, shlex.quote(str(value))]
