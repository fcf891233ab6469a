# SPDX-License-Identifier: Apache-2.0
"""`TrainOptions`: the options of a training run, as of `cpd train`."""

import math
import re
import shlex
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from cpd.comm.schedule import Schedule, averaging
from cpd.comm.spec import Reduce, check_world
from cpd.compress.codecs import Codec
from cpd.nn.recipe import as_recipe
from cpd.numeric.names import checked_name
from cpd.numeric.scaled import Scaled, format_or_scaled
from cpd_lab.train.data import Data
from cpd_lab.train.images import AUGMENTS
from cpd_lab.train.layers import Layer, exempt_names, largest_min_size, layers_of, share_of
from cpd_lab.train.optimizers import OPTIMIZERS
from cpd_lab.train.schedules import RateSchedule, rate_schedule
from cpd_lab.train.table import DATA, Sample, defaults_of, model_named, sample_of
from cpd_lab.train.wire import APS, is_power_of_two, power_of_two, reduce_spec, reduce_text

if TYPE_CHECKING:
    from torch import nn

DIVIDES = ("before", "after", "none")
_COUNTS = ("epochs", "depth", "width", "nodes", "batch", "length", "images", "tests")
_SHOWN = ("epochs", "depth", "width", "batch", "lr", "momentum")
"""Options that `TrainOptions.arguments` writes even if they have the model's default."""


@dataclass(frozen=True)
class TrainOptions:
    """All options that decide the result of a training run on one type of CPU.

    An option of the all-reduce (`format` to `overflow`, and `wire`) that is None is taken from
    `reduce`. Without `reduce`, it is taken from the all-reduce of `recipe`, unless `format` or
    `wire` replaces that all-reduce. Otherwise it has its default.

    An option whose default depends on the model (`batch`, `lr`, `data`, …) and that is None becomes
    the model's default in `cpd_lab.train.table`. `dataclasses.replace` with another model preserves
    that value.

    Attributes:
        format, aps, loss_scale, kahan, group_size, order, exchange, rounding, overflow: the options
            of the all-reduce, as in `cpd.Reduce`.
        last_layer_fp32: whether the last layer's gradients are summed in fp32.
        exempt: names of layers, or patterns of names, that are summed in fp32.
        fp32_epochs: the number of first epochs in which all layers are summed in fp32.
        seed: the seed of the first weights, the shuffles, dropout and stochastic rounding.
        epochs: the number of epochs.
        nodes: the number of nodes.
        batch: the number of inputs of a node's micro-batch.
        lr, momentum: the learning rate and the momentum of the optimizer.
        depth, width: the sizes of the model; None if the model has no such option.
        recipe: the name or the file of a recipe, by which layers compute; None: as torch computes.
        wire: a codec that replaces `format`.
        min_size: layers of fewer values are summed in fp32.
        model, data: names in `cpd_lab.train.MODELS` and `cpd_lab.train.DATA`.
        images, tests: the numbers of inputs in the training part and in the held-out part.
        optimizer: a name in `cpd_lab.train.OPTIMIZERS`.
        schedule: the schedule of the rate `lr`, as a text of `cpd_lab.train.rate_schedule`.
        weight_decay: the factor by which the optimizer adds weights to their gradients.
        dropout: the probability of dropout; 0: no dropout.
        ema: the decay of a moving average of the weights, which is evaluated; 0: no average.
        divide: where the average over nodes is divided by the number of nodes. `"after"` (default)
            divides the sum of the gradients, as `cpd.ddp_hook` does. `"before"` divides each node's
            loss. `"none"` divides nothing: gradients are sums over the nodes.
        augment: the change of training images: `none`, `shift`, `cutout` or `crop24`.
        loss_sum: a factor of the loss; the rate is divided by it. With the number of images of a
            batch, the loss is a sum over images, as in DavidNet.
        exempt_types: names of torch's module classes, such as BatchNorm2d, whose layers are summed
            in fp32.
        quantized_share: chooses the largest `min_size` that leaves at least this share of the
            parameters to the format or codec.
        reduce: the whole all-reduce as a text of `cpd.Reduce`, in place of `format`.
        length: the number of characters in each training sequence of a text.
        device: the device of the model: `cpu`, `cuda` or `cuda:N`.

    Raises:
        ValueError: for an invalid value. The message names the value and the valid ones.
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
    epochs: int = None  # type: ignore[assignment]
    depth: int | None = None
    width: int | None = None
    nodes: int = 8
    batch: int = None  # type: ignore[assignment]
    lr: float = None  # type: ignore[assignment]
    momentum: float = None  # type: ignore[assignment]
    recipe: str | None = None
    wire: str | None = None
    min_size: int | None = None
    model: str = "mlp"
    data: str = None  # type: ignore[assignment]
    images: int = None  # type: ignore[assignment]
    tests: int = None  # type: ignore[assignment]
    optimizer: str = None  # type: ignore[assignment]
    schedule: str = None  # type: ignore[assignment]
    weight_decay: float = None  # type: ignore[assignment]
    dropout: float = None  # type: ignore[assignment]
    ema: float = 0.0
    divide: str = "after"
    augment: str = None  # type: ignore[assignment]
    loss_sum: float = None  # type: ignore[assignment]
    exempt_types: tuple[str, ...] = ()
    quantized_share: float | None = None
    reduce: str | None = None
    length: int = None  # type: ignore[assignment]
    device: str = "cpu"

    def __post_init__(self) -> None:
        for name, value in defaults_of(self.model, self.data).items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        self._take_wire()
        _check_numbers(self)
        _check_names(self)
        _check_model(self)
        check_world(self.spec, self.nodes)
        if "bits=gradient" in str(self.spec.codec).split():
            raise ValueError(
                f"{self.spec.codec} chooses its bits for weights, by the gradients that they have: "
                "gradients, which cpd_lab.train sends, have none; give uniform a number of bits"
            )
        schedule = self.reduction(steps_per_epoch=1)  # the first to make layers, and import torch
        schedule._check_names([layer.name for layer in self.layers])
        schedule._check_world(self.nodes)

    def _take_wire(self) -> None:
        """Stores the codec's text in its canonical form.

        If `wire` is the name of a format, it becomes the option `format` instead.
        """
        if self.wire is not None:
            wire = Codec(self.wire)
            if self.format not in (None, "fp32"):
                raise ValueError(f"format and wire exclude each other, got {self.format}, {wire}")
            object.__setattr__(self, "wire", wire.text if wire._is_compressor else None)
            object.__setattr__(self, "format", None if wire._is_compressor else wire.text)
        if self.format is not None:
            object.__setattr__(self, "format", str(format_or_scaled(self.format)))
        for name in ("format", "wire"):
            if self.reduce is not None and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} and reduce exclude each other, got {getattr(self, name)}, "
                    f"{self.reduce!r}"
                )

    def check_data(self, count: int) -> None:
        """Raises ValueError if one step needs more than `count` training images.

        Also raises ValueError if torch does not have the device.
        """
        check_data(self.nodes, self.batch, count)
        if self.device != "cpu":
            import torch

            available = torch.cuda.device_count()
            if int(self.device.partition(":")[2] or 0) >= available:
                raise ValueError(
                    f"device must be cpu or one of torch's {available} CUDA devices, got "
                    f"{self.device!r}"
                )

    def load_data(self) -> Data:
        """Loads the data on which the model is trained.

        Returns:
            The data, with `images` training inputs and `tests` held-out inputs.

        Raises:
            ValueError: if the data have fewer inputs.
            FileNotFoundError: if files are missing. The message says which file to put where.
        """
        return DATA[self.data].load(self.images, self.tests, self.length)

    @property
    def sample(self) -> Sample:
        """The sizes for which the model is made: input shape, classes, length of a sequence."""
        return sample_of(self.data, self.augment, self.length)

    @property
    def taken(self) -> dict[str, Any]:
        """Maps each option that the model's constructor takes to the option's value."""
        takes = model_named(self.model).takes
        return {name: getattr(self, name) for name in takes if name != "augment"}

    def make_model(self) -> "nn.Module":
        """Returns the model, with weights from torch's global generator (see `models.seeded`)."""
        return model_named(self.model).make(self.sample, **self.taken)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The model's parameter tensors, in their order."""
        return layers_of(self.model, self.sample, tuple(self.taken.items()))

    @property
    def rates(self) -> RateSchedule:
        """The schedule of the learning rate."""
        return rate_schedule(self.schedule)

    @cached_property
    def chosen_min_size(self) -> int:
        """The least size of a layer that is not summed in fp32.

        `quantized_share` chooses it; without `quantized_share`, it is the option `min_size`.
        """
        if self.quantized_share is None:
            return self.min_size or 0
        return largest_min_size(self.layers, self.exempt_patterns, self.quantized_share)

    @cached_property
    def share(self) -> float:
        """The share of the parameters that are summed in the format or codec, not in fp32."""
        return share_of(self.layers, self.exempt_patterns, self.chosen_min_size)

    @cached_property
    def exempt_patterns(self) -> tuple[str, ...]:
        """Names and patterns of the layers that are summed in fp32 in every step."""
        last = (self.layers[-1].name.rpartition(".")[0] + ".*",)
        by_type = exempt_names(self.layers, self.exempt_types)
        in_fp32 = last if self.last_layer_fp32 else ()
        return (*self.exempt, *in_fp32, *by_type, *self.of_one_value)

    @cached_property
    def of_one_value(self) -> tuple[str, ...]:
        """The names of layers with a single value; they are summed in fp32 if a codec is in use.

        A codec that scales by the deviation, such as TernGrad, would turn such a layer's gradient
        into zero in each step, and the layer would never change.
        """
        compresses = self.spec.format is None
        return tuple(layer.name for layer in self.layers if layer.size == 1 and compresses)

    @cached_property
    def recipes_wire(self) -> str | None:
        """The text of the all-reduce: the option `reduce` or, without it, the recipe's all-reduce.

        None if neither is given, or if `format` or `wire` replaces the recipe's all-reduce.
        """
        if self.reduce is not None:
            return self.reduce
        recipe = None if self.recipe is None else as_recipe(self.recipe)
        if (
            recipe is None
            or recipe.reduce is None
            or self.format is not None
            or self.wire is not None
        ):
            return None
        return recipe.reduce.text

    @cached_property
    def spec(self) -> Reduce:
        """The all-reduce of layers that are not exempt, in the epochs after `fp32_epochs`.

        The all-reduce sums gradients and does not average them.

        Raises ValueError for two options that cannot be combined.
        """
        names = ("loss_scale", "group_size", "order", "exchange")
        chosen = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        if self.recipes_wire is not None:
            return self._spec_of_text(self.recipes_wire, chosen)
        return reduce_spec(
            format=self.format or "fp32",
            wire=self.wire,
            aps=self.aps or "off",
            kahan=bool(self.kahan),
            rounding=self.rounding or "nearest_even",
            overflow=self.overflow,
            **chosen,
        )

    def _spec_of_text(self, wire: str, chosen: dict[str, Any]) -> Reduce:
        """Returns the all-reduce that the text `wire` describes, with the changes in `chosen`.

        The all-reduce sums and does not average: `divide` controls the division. Raises ValueError
        for the options kahan, rounding and overflow, because the text already decides them.
        """
        whose = "reduce" if self.reduce is not None else "the recipe's"
        for name in ("kahan", "rounding", "overflow"):
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} goes with a format or a wire of its own, which replaces {whose}, "
                    f"{wire!r}"
                )
        if self.aps is not None:
            chosen["aps"] = APS[self.aps]
        return Reduce(wire, **{"average": False, **chosen})

    def reduction(self, steps_per_epoch: int) -> Schedule:
        """Returns the schedule that says how each layer is reduced in each step.

        A layer is reduced in the chosen format or codec, or in fp32 without scaling. With
        `divide="after"` the result is an average.
        """
        spec = self.spec
        in_fp32 = reduce_spec(
            group_size=spec.group_size,
            order=spec.order,
            exchange=spec.exchange,
            rounding=spec.accumulator.rounding,
            overflow=spec.accumulator.overflow,
        )
        schedule = Schedule(
            spec,
            exempt=self.exempt_patterns,
            exempt_spec=in_fp32,
            first_steps=self.fp32_epochs * steps_per_epoch,
            first_spec=in_fp32,
            min_size=self.chosen_min_size,
        )
        return averaging(schedule, "after") if self.divide == "after" else schedule

    def in_fp32(self) -> "TrainOptions | None":
        """Returns the options of the fp32 training with which this training is compared.

        That training has the same data, first weights and rates. Its layers compute as in torch,
        and its gradients are summed in fp32. Returns None if this training already is such a
        training.
        """
        if self.recipe is None and str(self.spec.format) == "fp32":
            return None
        plain: dict[str, Any] = {f.name: f.default for f in fields(self) if f.name in _OF_NUMBERS}
        return replace(self, **plain)

    def arguments(self) -> str:
        """Returns all `cpd train` options that repeat exactly this run, as one text."""
        default = defaults_of(self.model, self.data)
        words: list[str] = []
        if any(getattr(self, name) is not None for name in (*_OF_REDUCE, "reduce")):
            words += ["--reduce", _quoted(reduce_text(self.spec))]
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in (*_OF_REDUCE, "reduce"):
                continue
            if field.name in default:
                hidden = field.name not in _SHOWN and value == default[field.name]
                if field.name == "data":
                    hidden = value == model_named(self.model).data[0]
            else:
                hidden = field.name in _LATER and value == field.default
            words += [] if hidden else _words(field.name, value)
        return " ".join(words)

    def key(self) -> dict[str, Any]:
        """Returns all options for JSON, sorted by name. Equal options give equal dicts."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {n: list(v) if isinstance(v, tuple) else v for n, v in sorted(values.items())}

    def label(self) -> str:
        """Returns a short name for tables and legends, such as '(4,3) + APS' or '(4,3) × 2⁸'."""
        spec = self.spec
        wire = spec.format
        if wire is None:
            name = spec.codec.text
        elif isinstance(wire, Scaled):
            name = str(wire)
        else:
            name = "FP32" if str(wire) == "fp32" else f"({wire.exp},{wire.man})"
        if spec.aps:
            name += " + APS (paper)" if spec.aps == "paper" else " + APS"
        if spec.loss_scale != 1:
            name += f" × {power_of_two(int(math.log2(spec.loss_scale)))}"
        if self.fp32_epochs:
            name = f"FP32, then {name}"
        if self.recipes_wire is not None and self.reduce is None:
            return f"{name}, by {self.recipe}"
        return name if self.recipe is None else f"{name}, layers by {self.recipe}"


def check_data(nodes: int, batch: int, count: int) -> None:
    """Raises ValueError if one step needs more than `count` training images."""
    if nodes * batch > count:
        raise ValueError(
            f"nodes × batch must be at most {count} (the training images), got {nodes} × {batch}"
        )


_OF_REDUCE = (
    *("format", "wire", "aps", "loss_scale", "kahan", "group_size", "order", "exchange"),
    *("rounding", "overflow"),
)
"""The options that the text of an all-reduce can express too."""
_OF_NUMBERS = (
    *_OF_REDUCE,
    *("reduce", "recipe", "min_size", "quantized_share", "exempt", "exempt_types"),
    *("last_layer_fp32", "fp32_epochs"),
)
"""The options that decide in which number formats a training computes and reduces."""
_LATER = ("model", "ema", "exempt_types", "quantized_share", "device")
"""Options that `TrainOptions.arguments` omits if they have their default."""


def _check_numbers(options: TrainOptions) -> None:
    for name in _COUNTS:
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    if options.group_size is not None and not 1 <= options.group_size <= options.nodes:
        raise ValueError(
            f"group size must be 1…{options.nodes} (the nodes), got {options.group_size}"
        )
    if not 0 <= options.seed < 2**32:
        raise ValueError(f"seed must be 0…4294967295, got {options.seed}")
    if options.loss_scale is not None and not is_power_of_two(options.loss_scale):
        raise ValueError(f"loss scale must be a power of two, got {options.loss_scale:g}")
    for name in ("lr", "loss_sum"):
        value = getattr(options, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be positive and finite, got {value}")
    for name in ("momentum", "dropout", "ema"):
        value = getattr(options, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name} must be at least 0 and below 1, got {value}")
    if not (math.isfinite(options.weight_decay) and options.weight_decay >= 0):
        raise ValueError(f"weight decay must be at least 0 and finite, got {options.weight_decay}")
    if options.fp32_epochs < 0:
        raise ValueError(f"fp32 epochs must be at least 0, got {options.fp32_epochs}")
    _check_share(options)


def _check_share(options: TrainOptions) -> None:
    if options.quantized_share is None:
        return
    if not 0 < options.quantized_share <= 1:
        raise ValueError(
            f"quantized share must be above 0 and at most 1, got {options.quantized_share}"
        )
    if options.min_size is not None:
        raise ValueError(
            f"quantized share and min size exclude each other, got {options.quantized_share}, "
            f"{options.min_size}"
        )


def _check_names(options: TrainOptions) -> None:
    if options.aps is not None:
        checked_name("aps", options.aps, APS)
    checked_name("optimizer", options.optimizer, OPTIMIZERS)
    checked_name("divide", options.divide, DIVIDES)
    checked_name("augment", options.augment, AUGMENTS)
    rate_schedule(options.schedule)
    if options.optimizer == "nesterov" and options.momentum == 0:
        raise ValueError("nesterov needs a momentum above 0, got 0")
    if not re.fullmatch(r"cpu|cuda(:\d+)?", options.device):
        raise ValueError(f"device must be cpu, cuda or cuda:N, got {options.device!r}")


def _check_model(options: TrainOptions) -> None:
    """Raises ValueError for options that the model does not take or its data do not support."""
    takes = model_named(options.model).takes
    for name, off in (("depth", None), ("width", None), ("dropout", 0.0), ("augment", "none")):
        value = getattr(options, name)
        if name not in takes and value != off:
            raise ValueError(
                f"{options.model} has no {name}, got {value}; it takes {', '.join(takes)}"
            )
    if options.augment != "none" and options.data != "cifar10":
        raise ValueError(f"augment is for cifar10, got {options.augment!r} with {options.data}")


def _quoted(text: str) -> str:
    """Returns a text quoted as one shell word, in double quotes if it contains single quotes."""
    return f'"{text}"' if "'" in text and not set(text) & set('"$`\\!') else shlex.quote(text)


def _words(name: str, value: Any) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, tuple):
        return [word for item in value for word in (flag, shlex.quote(item))]
    if value is None or value is False:
        return []
    if value is True:
        return [flag]
    if isinstance(value, float):
        return [flag, f"{value:.0f}" if value.is_integer() else repr(value)]
    return [flag, shlex.quote(str(value))]
