# SPDX-License-Identifier: Apache-2.0
"""`MODELS` and `DATA`: the models and the data of trainings, by name."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpd.numeric.later import Later
from cpd.numeric.names import checked_name
from cpd_lab.train.data import Data, Kind
from cpd_lab.train.digits import load_digits
from cpd_lab.train.images import AUGMENTS, CROP, data_folder, load_cifar10
from cpd_lab.train.shapes import load_shapes
from cpd_lab.train.text import load_text, text_runs

if TYPE_CHECKING:
    from torch import nn

    from cpd_lab.train import models
else:
    nn, models = Later("torch.nn"), Later("cpd_lab.train.models")


@dataclass(frozen=True)
class Source:
    """Data on which models can be trained.

    Attributes:
        text: a description for the help.
        kind: the kind of targets, as `Data.kind`.
        shape: the shape of one input; empty for a text.
        classes: the number of classes; 0 for a text, whose characters determine the number.
        images, tests: the default numbers of inputs in the training and the held-out part.
        load: loads the data, given `images`, `tests` and the length of a text's sequences.
    """

    text: str
    kind: Kind
    shape: tuple[int, ...]
    classes: int
    images: int
    tests: int
    load: Callable[[int, int, int], Data]


DATA: dict[str, Source] = {
    "digits": Source(
        "scikit-learn's 1797 digits, 8 x 8",
        "classes",
        (64,),
        10,
        1438,
        359,
        lambda images, tests, _: load_digits().first(images, tests),
    ),
    "cifar10": Source(
        "CIFAR-10 from $CPD_DATA, 3 x 32 x 32",
        "classes",
        (3, 32, 32),
        10,
        2048,
        2000,
        lambda images, tests, _: load_cifar10(data_folder(), images, tests),
    ),
    "shapes": Source(
        "generated discs, squares and triangles, 3 x 32 x 32, a class for each pixel",
        "pixels",
        (3, 32, 32),
        4,
        512,
        128,
        lambda images, tests, _: load_shapes(images, tests),
    ),
    "text": Source(
        "characters of Python's language reference", "text", (), 0, 2048, 256, text_runs
    ),
}


@dataclass(frozen=True)
class Sample:
    """The sizes for which a model is made: input shape, number of classes, length of a sequence."""

    shape: tuple[int, ...]
    classes: int
    length: int


@dataclass(frozen=True)
class Model:
    """A model that can be trained.

    Attributes:
        text: a description for the help.
        make: makes the model from a `Sample` and the options `takes`, with weights from torch's
            global generator.
        data: the names in `DATA` on which the model can be trained; the first is the default.
        takes: the names of its options, among `depth`, `width`, `dropout` and `augment`.
        defaults: the defaults of training options that differ from `DEFAULTS`.
    """

    text: str
    make: Callable[..., nn.Module]
    data: tuple[str, ...]
    takes: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)


DEFAULTS: dict[str, Any] = {
    "batch": 16,
    "epochs": 40,
    "lr": 0.05,
    "momentum": 0.9,
    "optimizer": "sgd",
    "schedule": "constant",
    "weight_decay": 0.0,
    "dropout": 0.0,
    "augment": "none",
    "loss_sum": 1.0,
    "length": 64,
}


def _mlp(sample: Sample, depth: int, width: int, dropout: float) -> nn.Module:
    net = models.mlp(math.prod(sample.shape), sample.classes, depth, width, dropout)
    return net if len(sample.shape) == 1 else _behind("pixels", nn.Flatten(), net)


def _lenet(sample: Sample, width: int, dropout: float) -> nn.Module:
    if len(sample.shape) == 3:
        channels, height, across = sample.shape
        return models.lenet((channels, height, across), sample.classes, width, dropout)
    net = models.lenet((1, 8, 8), sample.classes, width, dropout)
    return _behind("image", nn.Unflatten(1, (1, 8, 8)), net)


def _behind(name: str, first: nn.Module, net: nn.Sequential) -> nn.Sequential:
    """Puts the layer `first` before the layers of `net`. The new layer's name is `name`."""
    return nn.Sequential(OrderedDict([(name, first), *net.named_children()]))


def _gpt(sample: Sample, depth: int, width: int, dropout: float) -> nn.Module:
    if width % 4:
        raise ValueError(f"width must be a multiple of 4 (the heads of gpt), got {width}")
    return models.Gpt(sample.classes, width, 4, depth, context=sample.length, dropout=dropout)


_CIFAR = {"data": "cifar10", "augment": "shift", "epochs": 8}
MODELS: dict[str, Model] = {
    "mlp": Model(
        "hidden layers (depth) of equal width, as in the demo",
        _mlp,
        ("digits", "cifar10"),
        ("depth", "width", "dropout", "augment"),
        {"depth": 6, "width": 64},
    ),
    "lenet": Model(
        "LeNet-5; width: channels of the first layer",
        _lenet,
        ("digits", "cifar10"),
        ("width", "dropout", "augment"),
        {"width": 6, "epochs": 20},
    ),
    "cifarnet": Model(
        "TensorFlow's CIFAR-10 tutorial: 2 convolutions, 3 linear layers",
        lambda sample, width, dropout: models.cifarnet(
            sample.shape[1], sample.classes, width, dropout
        ),
        ("cifar10",),
        ("width", "dropout", "augment"),
        {**_CIFAR, "width": 64, "augment": "crop24"},
    ),
    "resnet18": Model(
        "ResNet-18 for 32 x 32; width: channels of the first stage",
        lambda sample, width: models.resnet18(sample.classes, width),
        ("cifar10",),
        ("width", "augment"),
        {
            **_CIFAR,
            "width": 8,
            "lr": 0.1,
            "weight_decay": 1e-4,
            "schedule": "warmup 0.05 from 0.0625 steps 0.4 0.8",
        },
    ),
    "resnet110": Model(
        "ResNet-110 for CIFAR-10; width: channels of the first stage",
        lambda sample, width: models.resnet110(sample.classes, width),
        ("cifar10",),
        ("width", "augment"),
        {
            **_CIFAR,
            "width": 16,
            "lr": 0.1,
            "weight_decay": 1e-4,
            "schedule": "warmup 0.05 from 0.1 steps 0.5 0.75",
        },
    ),
    "davidnet": Model(
        "DavidNet of DAWNBench; width: channels of the first layer",
        lambda sample, width: models.davidnet(sample.classes, width),
        ("cifar10",),
        ("width", "augment"),
        {
            **_CIFAR,
            "width": 8,
            "lr": 0.1,
            "optimizer": "nesterov",
            "weight_decay": 0.256,
            "loss_sum": 512.0,
            "schedule": "warmup 0.2 linear",
        },
    ),
    "fcn": Model(
        "a fully convolutional network of 3 stages; width: of the first",
        lambda sample, width: models.fcn(sample.classes, width, sample.shape[1]),
        ("shapes",),
        ("width",),
        {"width": 16, "epochs": 10, "batch": 8},
    ),
    "text_lstm": Model(
        "an LSTM of depth layers on characters",
        lambda sample, depth, width, dropout: models.TextLstm(
            sample.classes, width, depth, dropout
        ),
        ("text",),
        ("depth", "width", "dropout"),
        {"depth": 2, "width": 128, "epochs": 10, "batch": 8, "lr": 0.005, "optimizer": "adam"},
    ),
    "gpt": Model(
        "a decoder of depth blocks with 4 heads on characters",
        _gpt,
        ("text",),
        ("depth", "width", "dropout"),
        {"depth": 4, "width": 128, "epochs": 10, "batch": 8, "lr": 0.003, "optimizer": "adam"},
    ),
}


def model_named(name: object) -> Model:
    """Returns the model with this name.

    Raises ValueError for an unknown name; the message suggests the nearest name.
    """
    return MODELS[checked_name("model", name, MODELS)]


def sample_of(data: str, augment: str, length: int) -> Sample:
    """Returns the input shape, the number of classes and the sequence length of a data set."""
    source = DATA[checked_name("data", data, DATA)]
    checked_name("augment", augment, AUGMENTS)
    shape = source.shape
    if augment == "crop24":
        shape = (shape[0], CROP, CROP)
    return Sample(shape, source.classes or len(load_text().characters), length)


def defaults_of(model: str, data: str | None = None) -> dict[str, Any]:
    """Returns the default options of a model on `data`; None: the first data of the model.

    Raises ValueError for an unknown name, and for data on which the model cannot be trained.
    """
    known = model_named(model)
    name = known.data[0] if data is None else checked_name("data", data, DATA)
    if name not in known.data:
        raise ValueError(f"data of {model} must be one of {', '.join(known.data)}, got {name!r}")
    source = DATA[name]
    sizes = {"data": name, "images": source.images, "tests": source.tests}
    return {**DEFAULTS, **sizes, **known.defaults}
