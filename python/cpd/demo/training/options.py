# SPDX-License-Identifier: Apache-2.0
"""What a training run depends on; the options of `cpd train` in one value."""

import math
import shlex
from dataclasses import dataclass, fields
from typing import Any, Literal

from cpd.comm.schedule import Schedule
from cpd.comm.spec import ReduceSpec, sums_format
from cpd.compress import Codec, codec
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
    """The all-reduce that these options name; `wire`: a codec, in place of `format`. Raises
    ValueError for what CPD refuses."""
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
    """Everything that decides the result of a run, on one type of CPU."""

    format: str = "fp32"
    aps: str = "off"
    loss_scale: float = 1.0
    kahan: bool = False
    group_size: int | None = None
    order: str = "sequential"
    exchange: str = "owner"
    rounding: str = "nearest_even"
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
        wire = format_or_scaled(self.format)
        object.__setattr__(self, "format", str(wire))
        if self.wire is None and not isinstance(wire, Scaled):
            object.__setattr__(self, "overflow", self.overflow or "ieee")
        for name in ("epochs", "depth", "width", "nodes", "batch"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.group_size is not None and not 1 <= self.group_size <= self.nodes:
            raise ValueError(
                f"group size must be 1…{self.nodes} (the nodes), got {self.group_size}"
            )
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be 0…4294967295, got {self.seed}")
        if not is_power_of_two(self.loss_scale):
            raise ValueError(f"loss scale must be a power of two, got {self.loss_scale:g}")
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ValueError(f"lr must be positive and finite, got {self.lr}")
        if not 0 <= self.momentum < 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {self.momentum}")
        if self.fp32_epochs < 0:
            raise ValueError(f"fp32 epochs must be at least 0, got {self.fp32_epochs}")
        _check_choice("aps", self.aps, tuple(_APS))
        if self.recipe is not None:
            recipe(self.recipe)
        self.schedule(steps_per_epoch=1).check_names(layer_names(self.depth))

    def _take_wire(self, wire: Codec) -> None:
        """The codec's name in its one form; that of a format is the format."""
        if self.format != "fp32":
            raise ValueError(f"format and wire exclude each other, got {self.format}, {wire}")
        object.__setattr__(self, "wire", wire.name if wire.is_compressor else None)
        object.__setattr__(self, "format", "fp32" if wire.is_compressor else wire.name)

    def check_data(self, count: int) -> None:
        """Raises ValueError where one step needs more than `count` training images."""
        if self.nodes * self.batch > count:
            raise ValueError(
                f"nodes × batch must be at most {count} (the training images), "
                f"got {self.nodes} × {self.batch}"
            )

    def schedule(self, steps_per_epoch: int) -> Schedule:
        """How each layer is reduced at each step: the chosen format or codec, or fp32 without
        scaling."""
        plain = self._spec("fp32", None, "off", 1.0, False)
        return Schedule(
            self._spec(self.format, self.wire, self.aps, self.loss_scale, self.kahan),
            exempt=(*self.exempt, *(("output.*",) if self.last_layer_fp32 else ())),
            exempt_spec=plain,
            first_steps=self.fp32_epochs * steps_per_epoch,
            first_spec=plain,
            min_size=self.min_size or 0,
        )

    def _spec(
        self, format: str, wire: str | None, aps: str, loss_scale: float, kahan: bool
    ) -> ReduceSpec:
        return reduce_spec(
            format=format,
            wire=wire,
            aps=aps,
            loss_scale=loss_scale,
            kahan=kahan,
            group_size=self.group_size,
            order=self.order,
            exchange=self.exchange,
            rounding=self.rounding,
            overflow=self.overflow,
            seed=self.seed,
        )

    def arguments(self) -> str:
        """The `cpd train` options, complete, that make exactly this run."""
        words: list[str] = []
        for field in fields(self):
            words += _words(field.name, getattr(self, field.name))
        return " ".join(words)

    def label(self) -> str:
        """A few words for tables and legends: '(4,3) + APS', '(4,3) × 2⁸'."""
        wire = format_or_scaled(self.format)
        if self.wire is not None:
            name = self.wire
        elif isinstance(wire, Scaled):
            name = str(wire)
        else:
            name = "FP32" if str(wire) == "fp32" else f"({wire.exp},{wire.man})"
        if self.aps != "off":
            name += " + APS" if self.aps == "on" else " + APS (paper)"
        if self.loss_scale != 1:
            name += f" × {power_of_two(int(math.log2(self.loss_scale)))}"
        return name if self.recipe is None else f"{name}, layers by {self.recipe}"


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


def _words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if name == "aps":
        return {"off": [], "on": [flag], "paper": [flag, "paper"]}[value]
    if isinstance(value, tuple):
        return [word for one in value for word in (flag, shlex.quote(one))]
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, float):
        return [flag, f"{value:.0f}" if value.is_integer() else repr(value)]
    return [flag, shlex.quote(str(value))]
