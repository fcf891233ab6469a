# SPDX-License-Identifier: Apache-2.0
"""Tests the options of a training: defaults of models, command lines, the JSON data that identify a
training (its key), layers that are exempt from low precision, and errors."""

import inspect
import json
import re
import shlex
from dataclasses import fields, replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import cpd
from cpd.cli import build_parser, main
from cpd_lab.cli.train import Options, train_options
from cpd_lab.train import DATA, MODELS, OPTIMIZERS, TrainOptions
from cpd_lab.train.layers import Layer, largest_min_size, share_of

OF_REDUCE = (
    *("format", "wire", "aps", "loss_scale", "kahan", "group_size", "order", "exchange"),
    *("rounding", "overflow", "reduce"),
)


def assert_same_run(one: TrainOptions, other: TrainOptions) -> None:
    """Asserts that two sets of options mean the same training. The all-reduce may be a text in one
    set and separate options in the other set."""
    apart = dict.fromkeys(OF_REDUCE)
    assert replace(one, **apart) == replace(other, **apart)
    assert one.reduction(steps_per_epoch=7) == other.reduction(steps_per_epoch=7)


@pytest.mark.parametrize(
    "options",
    [
        *(TrainOptions(model=name) for name in MODELS),
        TrainOptions(model="lenet", data="cifar10", augment="shift", images=100, tests=50),
        TrainOptions(model="mlp", data="cifar10", depth=2, dropout=0.25, ema=0.9),
        TrainOptions(model="resnet18", optimizer="lars", schedule="warmup 5 steps 40 80"),
        TrainOptions(model="davidnet", optimizer="sgd", schedule="constant", loss_sum=1.0),
        TrainOptions(model="cifarnet", augment="none", weight_decay=0.5, divide="before"),
        TrainOptions(model="fcn", exempt_types=("BatchNorm2d", "Conv2d"), last_layer_fp32=True),
        TrainOptions(model="gpt", quantized_share=0.9, length=32, momentum=0.5),
        TrainOptions(reduce="e4m3 aps accumulator='fp16 kahan'", order="ring", divide="none"),
        TrainOptions(model="text_lstm", device="cuda:1", wire="qsgd bits=4"),
        TrainOptions(format="e4m3", loss_scale=4096.0, kahan=True, group_size=4),
        TrainOptions(format="e3m0", aps="paper", order="ring", rounding="stochastic", seed=7),
        TrainOptions(format="e3m0", rounding="stochastic", seed=7, last_layer_fp32=True),
        TrainOptions(loss_scale=2.0**-3, overflow="saturate", last_layer_fp32=True, lr=0.125),
        TrainOptions(format="mxfp8", overflow="ieee", exempt=("*.bias", "output.*")),
        TrainOptions(recipe="aps-e3m0", aps="off", order="ring"),
        TrainOptions(recipe="aps-e3m0", format="fp32"),
        TrainOptions(recipe="aps-e3m0"),
        TrainOptions(recipe="native sums='e6m9 chunked'"),
        TrainOptions(depth=3, width=32, nodes=4, batch=8, epochs=2, momentum=0.0),
        TrainOptions(order="tree", exchange="gather", fp32_epochs=3, exempt=("*.bias", "output.*")),
        TrainOptions(wire="qsgd bits=4 bucket=512", min_size=10_000, exchange="gather"),
        TrainOptions(wire="mxfp8"),
        TrainOptions(format="e5m2", loss_scale=2.0**100),
        TrainOptions(reduce="e4m3 accumulator='e5m7 rounding=stochastic'", seed=2),
    ],
)
def test_arguments_give_the_same_options_back(options):
    parsed = build_parser().parse_args(["train", *shlex.split(options.arguments())])
    assert_same_run(train_options(parsed, options.nodes), options)


def test_arguments_are_complete():
    assert TrainOptions(format="e4m3", aps="on").arguments() == (
        "--reduce 'e4m3 aps' --fp32-epochs 0 --seed 0 --epochs 40 --depth 6 --width 64 --nodes 8 "
        "--batch 16 --lr 0.05 --momentum 0.9 --divide after"
    )


def test_a_key_is_plain_json_with_every_option():
    options = TrainOptions(model="fcn", exempt=("*.bias",), format="e4m3")
    key = options.key()
    assert json.loads(json.dumps(key)) == key
    assert list(key) == sorted(field.name for field in fields(TrainOptions))
    assert (key["exempt"], key["batch"], key["data"], key["ema"]) == (["*.bias"], 8, "shapes", 0.0)
    again = {name: tuple(v) if isinstance(v, list) else v for name, v in key.items()}
    assert TrainOptions(**again) == options
    assert (
        TrainOptions(wire="qsgd bucket=64 bits=2").key()
        == TrainOptions(wire="qsgd bits=2 bucket=64").key()
    )


def test_a_model_has_defaults_of_its_own():
    options = TrainOptions(model="davidnet")
    assert (options.data, options.optimizer, options.loss_sum) == ("cifar10", "nesterov", 512)
    assert options.depth is None
    assert TrainOptions(model="davidnet", loss_sum=1.0).loss_sum == 1
    assert TrainOptions(model="mlp", data="cifar10").images == DATA["cifar10"].images


def test_the_help_lists_the_models():
    rows = {
        m[1]: m[0]
        for m in re.finditer(r"^  (\w+) +(\w+(?:, \w+)*)  .*$", inspect.getdoc(Options), re.M)
    }
    assert list(rows) == list(MODELS)
    for name, model in MODELS.items():
        assert re.match(rf"  {name} +{', '.join(model.data)}  ", rows[name])
        flags = {flag.removeprefix("--") for flag in rows[name].split() if flag.startswith("--")}
        assert flags == set(model.takes) - {"augment"}


LAYERS = [Layer("a", (100,), "Conv2d"), Layer("b", (10,), "Conv2d"), Layer("c", (1,), "Linear")]


@pytest.mark.parametrize(
    ("share", "exempt", "size", "reached"),
    [
        (0.5, (), 100, 100 / 111),
        (100 / 111, (), 100, 100 / 111),
        (0.95, (), 10, 110 / 111),
        (1.0, (), 1, 1.0),
        (0.05, ("a",), 10, 10 / 111),
    ],
)
def test_the_largest_size_that_leaves_a_share(share, exempt, size, reached):
    assert largest_min_size(LAYERS, exempt, share) == size
    assert share_of(LAYERS, exempt, size) == reached


def test_a_share_that_cannot_be_reached():
    with pytest.raises(ValueError, match=r"must be at most 0.0990991, which the exempt layers"):
        largest_min_size(LAYERS, ("a",), 0.5)


def test_a_share_chooses_what_is_exempt():
    options = TrainOptions(model="resnet18", quantized_share=0.99, format="e4m3")
    sizes = sorted(layer.size for layer in options.layers)
    size = options.chosen_min_size
    assert options.share >= 0.99
    larger = sizes[sizes.index(size) + sizes.count(size)]
    assert share_of(options.layers, (), larger) < 0.99
    schedule = options.reduction(1)
    assert schedule.min_size == size
    exempt = [one for one in options.layers if schedule._is_exempt(one.name, one.size)]
    left = 1 - sum(one.size for one in exempt) / sum(sizes)
    assert options.share == pytest.approx(left)


def test_layers_of_a_type_are_exempt():
    options = TrainOptions(model="resnet18", exempt_types=("BatchNorm2d",), format="e4m3")
    schedule = options.reduction(1)
    for layer in options.layers:
        formats = str(schedule.spec_of(layer.name, 0, layer.size).format)
        assert formats == ("fp32" if layer.module == "BatchNorm2d" else "e4m3")
    assert {one.module for one in options.layers} == {"Conv2d", "BatchNorm2d", "Linear"}


@pytest.mark.parametrize("name", list(MODELS))
def test_the_last_layer_of_any_model(name):
    options = TrainOptions(model=name, last_layer_fp32=True, format="e4m3")
    last = options.layers[-1].name.rpartition(".")[0]
    schedule = options.reduction(1)
    exempt = [one.name for one in options.layers if schedule._is_exempt(one.name, one.size)]
    assert exempt == [one.name for one in options.layers if one.name.startswith(f"{last}.")]
    assert 1 <= len(exempt) <= 2


def test_a_text_of_the_whole_all_reduce():
    options = TrainOptions(reduce="e4m3 aps accumulator='fp16 kahan' average", group_size=2)
    wanted = cpd.Reduce("e4m3 aps accumulator='fp16 kahan' group_size=2")
    assert options.spec == wanted
    assert options.label() == "(4,3) + APS"
    assert replace(options, recipe="mxfp8").label() == "(4,3) + APS, layers by mxfp8"
    assert TrainOptions(recipe="aps-e3m0", reduce="e5m2").spec == TrainOptions(format="e5m2").spec


def test_where_an_average_divides():
    specs = {where: TrainOptions(divide=where).reduction(1).spec for where in ("before", "after")}
    assert (specs["before"].average, specs["after"].average) == (False, True)
    assert specs["after"].divide == "after"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "resnt18"}, r"model must be one of mlp, .*, got 'resnt18'.*mean resnet1"),
        ({"model": "fcn", "data": "digits"}, "data of fcn must be one of shapes, got 'digits'"),
        ({"data": "digit"}, r"data must be one of .* \(did you mean digits\?\)"),
        ({"optimizer": "SGD"}, r"optimizer must be one of .* \(did you mean sgd\?\)"),
        ({"optimizer": "nesterov", "momentum": 0.0}, "nesterov needs a momentum above 0"),
        ({"schedule": "step 3"}, r"schedule must be one of .* \(did you mean steps\?\)"),
        ({"divide": "both"}, "divide must be one of before, after, none, got 'both'"),
        ({"augment": "shift"}, "augment is for cifar10, got 'shift' with digits"),
        ({"model": "fcn", "augment": "shift"}, "fcn has no augment, got shift; it takes width"),
        ({"model": "resnet18", "augment": "shit"}, r"\(did you mean shift\?\)"),
        ({"model": "resnet18", "depth": 3}, "resnet18 has no depth, got 3; it takes width"),
        ({"model": "resnet18", "dropout": 0.5}, "resnet18 has no dropout, got 0.5"),
        ({"dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"ema": -0.1}, "ema must be at least 0 and below 1, got -0.1"),
        ({"weight_decay": -1.0}, "weight decay must be at least 0 and finite, got -1.0"),
        ({"loss_sum": 0.0}, "loss_sum must be positive and finite, got 0.0"),
        ({"width": 0}, "width must be at least 1, got 0"),
        ({"images": 0}, "images must be at least 1, got 0"),
        ({"quantized_share": 0.0}, "quantized share must be above 0 and at most 1, got 0.0"),
        ({"quantized_share": 0.5, "min_size": 3}, "quantized share and min size exclude"),
        ({"quantized_share": 0.9, "exempt": ("hidden*",)}, "quantized share must be at most 0.025"),
        ({"exempt_types": ("linear",)}, r"exempt type must be one of Linear, .*you mean Linear"),
        ({"exempt": ("nowhere",)}, "exempt 'nowhere' matches no tensor"),
        ({"nodes": 4, "group_size": 9}, r"^group size must be 1…4 \(the nodes\), got 9$"),
        *(({"loss_scale": x}, "loss scale must be a power of two") for x in (3.0, 0.75, 0.0, -2.0)),
        (
            {"reduce": "e4m3", "format": "e5m2"},
            r"^format and reduce exclude each other, got e5m2, 'e4m3'",
        ),
        ({"format": "e5m2", "wire": "int4"}, "format and wire exclude each other, got e5m2, int4"),
        ({"reduce": "e4m3", "wire": "int4"}, "wire and reduce exclude each other"),
        ({"reduce": "e4m3", "kahan": True}, "kahan goes with a format or a wire of its own"),
        ({"reduce": "e4n3"}, "unknown format 'e4n3'"),
        ({"device": "gpu"}, "device must be cpu, cuda or cuda:N, got 'gpu'"),
        ({"aps": "maybe"}, "aps must be one of off, on, paper, got 'maybe'"),
    ],
)  # fmt: skip
def test_options_that_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainOptions(**options)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "davidnett"], "(did you mean davidnet?)"),
        (["--optimizer", "adm"], "(did you mean adam?)"),
        (["--images", "1439"], "images must be 1…1438 (of digits), got 1439"),
        (["--model", "resnet18", "--data", "text"], "data of resnet18 must be one of cifar10"),
        (["--recipe", "nvfp5"], "unknown recipe 'nvfp5': expected one of aps-e3m0, "),
        (["--reduce", "gzip"], "unknown format 'gzip'"),
        (["--reduce", "int4 aps"], "has scales of its own"),
        (["--reduce", "int4 rounding=up"], "rounding is an option of a cast"),
        (["--reduce", "int4", "--min-size", "-1"], "min_size must be at least 0"),
        (["--reduce", "uniform bits=gradient"], "chooses its bits for weights"),
    ],
)
def test_a_command_names_the_mistake_in_a_line(words, message, capsys):
    assert main(["train", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_a_folder_without_images_is_a_mistake_of_the_user(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CPD_DATA", str(tmp_path))
    assert main(["train", "--model", "resnet18"]) == 2
    assert "no CIFAR-10 in" in capsys.readouterr().err


def test_optimizers_are_named_in_the_help():
    command = build_parser()._subparsers._group_actions[0].choices["train"]
    help = {action.dest: action.help for action in command._actions}
    assert all(name in help["optimizer"] for name in OPTIMIZERS)


def test_exempt_layers_round_as_the_sums_do():
    """Layers that are exempt from low precision are summed in fp32 with the accumulator's rounding.
    The all-reduce may be given by options or by a text."""
    sums = "accumulator='e3m0 sequential rounding=stochastic'"
    for options in (
        TrainOptions(format="e3m0", rounding="stochastic", seed=7, last_layer_fp32=True),
        TrainOptions(reduce=f"e3m0 rounding=stochastic {sums}", seed=7, last_layer_fp32=True),
    ):
        spec = options.reduction(steps_per_epoch=1).exempt_spec
        wanted = cpd.Accumulator("fp32", rounding="stochastic")
        assert (spec.format, spec.accumulator) == (cpd.Format("fp32"), wanted)
