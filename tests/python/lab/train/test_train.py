# SPDX-License-Identifier: Apache-2.0
"""Tests training over emulated nodes: data, determinism, the effect of APS, and divergence."""

import json
import os
import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

import cpd
import forked

torch = pytest.importorskip("torch")
pytest.importorskip("sklearn")

from cpd.cli import build_parser, main  # noqa: E402
from cpd_lab.cli.train import train_options  # noqa: E402
from cpd_lab.train import (  # noqa: E402
    TrainOptions,
    VirtualRanks,
    digit_classifier,
    epoch_order,
    gather_integers,
    load_digits,
    sampled_gradients,
    train,
    weights_hash,
)

QUICK = TrainOptions(epochs=1, depth=2, width=16)


@pytest.fixture(scope="module")
def digits():
    return load_digits()


def test_digits_are_split_once_and_standardised(digits):
    assert len(digits.train_x) == 1438
    assert len(digits.test_x) == 359
    varied = digits.train_x.std(dim=0) > 0
    torch.testing.assert_close(digits.train_x.mean(dim=0), torch.zeros(64), atol=1e-5, rtol=0)
    deviations = digits.train_x[:, varied].std(dim=0, correction=0)
    torch.testing.assert_close(deviations, torch.ones(int(varied.sum())), atol=1e-4, rtol=0)
    again = load_digits()
    assert torch.equal(again.test_x, digits.test_x)
    assert torch.equal(again.test_y, digits.test_y)


def test_every_digit_is_in_one_part_only(digits):
    from sklearn import datasets

    labels = datasets.load_digits(return_X_y=True)[1]
    ours = torch.cat([digits.train_y, digits.test_y])
    assert np.bincount(ours.numpy()).tolist() == np.bincount(labels).tolist()


def test_an_epoch_takes_each_image_at_most_once():
    order = epoch_order(seed=3, epoch=2, count=1438, nodes=8, batch=16)
    assert order.shape == (11, 8, 16)
    assert len(np.unique(order)) == order.size == 1438 - 30
    assert order.min() >= 0
    assert order.max() < 1438
    assert not np.array_equal(order, epoch_order(3, 3, 1438, 8, 16))
    assert not np.array_equal(order, epoch_order(4, 2, 1438, 8, 16))


def test_first_weights_depend_on_the_seed_alone():
    first = weights_hash(digit_classifier(3, 8, seed=1))
    torch.rand(5)  # another state of torch's own generator
    assert weights_hash(digit_classifier(3, 8, seed=1)) == first
    assert weights_hash(digit_classifier(3, 8, seed=2)) != first


def test_a_codec_takes_the_formats_place():
    options = TrainOptions(wire="qsgd bucket=64 bits=2", min_size=50, last_layer_fp32=True)
    assert options.wire == "qsgd bits=2 bucket=64"
    assert options.label() == options.wire
    schedule = options.reduction(steps_per_epoch=1)
    assert schedule.spec_of("hidden1.weight", 0, 64).codec == cpd.Codec(options.wire)
    for name, size in (("hidden1.weight", 49), ("output.weight", 64)):
        assert schedule.spec_of(name, 0, size).format == cpd.Format("fp32")
    assert (TrainOptions(wire="mxfp8").format, TrainOptions(wire="mxfp8").wire) == ("mxfp8", None)


def plain_fp32_weights(digits, options: TrainOptions) -> str:
    """Trains by a separate loop, which adds the nodes' gradients in rank order by torch's own fp32
    additions. Returns a hash of the weights."""
    model = digit_classifier(options.depth, options.width, options.seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=options.lr, momentum=options.momentum)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for epoch in range(1, options.epochs + 1):
        for step in epoch_order(options.seed, epoch, 1438, options.nodes, options.batch):
            sums = None
            for rows in step:
                outputs = model(digits.train_x[rows])
                loss = torch.nn.functional.cross_entropy(outputs, digits.train_y[rows])
                gradients = torch.autograd.grad(loss / options.nodes, parameters)
                sums = (
                    gradients
                    if sums is None
                    else [a + b for a, b in zip(sums, gradients, strict=True)]
                )
            for parameter, gradient in zip(parameters, sums, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    torch.set_num_threads(threads)
    return weights_hash(model)


def test_fp32_is_the_plain_sum_in_rank_order(digits):
    result = train(QUICK, data=digits)
    assert result.weights == plain_fp32_weights(digits, QUICK)
    assert result.total("underflowed") == result.total("overflowed") == 0


def test_repeats_are_equal_and_options_matter(digits):
    options = replace(QUICK, format="e4m3", aps="on")
    weights = train(options, data=digits).weights
    assert train(options, data=digits).weights == weights
    others = [
        replace(options, seed=1),
        replace(options, format="e5m2"),
        replace(options, aps="off"),
        replace(options, kahan=True),
        replace(options, order="ring"),
        replace(options, order="tree"),
        replace(options, nodes=4),
        replace(options, group_size=4),
        replace(options, rounding="stochastic"),
        replace(options, last_layer_fp32=True),
        replace(options, exempt=("hidden1.*",)),
    ]
    hashes = [train(other, data=digits).weights for other in others]
    assert len({weights, *hashes}) == 1 + len(others)


def test_torch_settings_come_back(digits):
    before = (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled())
    train(QUICK, data=digits)
    assert (torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()) == before


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param({"CPD_NUM_THREADS": "1"}, marks=pytest.mark.exhaustive),
        {"CPD_NUM_THREADS": "3", "CPD_BACKEND": "scalar"},
    ],
)
def test_weights_do_not_depend_on_threads_or_backend(digits, environment):
    options = replace(QUICK, format="e3m0", aps="on", rounding="stochastic", width=200)
    done = forked.run(
        ["-m", "cpd", "train", *shlex.split(options.arguments())],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"weights {train(options, data=digits).weights}"


@pytest.mark.slow("trains six hidden layers twice")
def test_the_main_effect(digits):
    """Without APS, e4m3 turns most gradients of a model with six hidden layers into zero, and the
    model learns nothing. With APS the model trains."""
    options = TrainOptions(format="e4m3", epochs=24, divide="before")
    plain = train(options, data=digits)
    aps = train(replace(options, aps="on"), data=digits)
    assert plain.accuracy < 0.3
    assert plain.total("underflowed") > 0.9 * plain.total("nonzero")
    assert aps.accuracy > 0.9
    assert aps.total("overflowed") == 0
    assert len(aps.curve) == 24


@pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
def test_last_layer_in_fp32_is_summed_exactly_as_fp32(digits):
    """With last_layer_fp32, the output layer is summed exactly as in an fp32 run: after one step
    its weights are equal. The weights of all other layers differ."""
    options = TrainOptions(format="e3m0", epochs=1, depth=1, width=8, nodes=11, batch=130)
    models = [
        train(chosen, data=digits).model
        for chosen in (replace(options, last_layer_fp32=True), replace(options, format="fp32"))
    ]
    mixed, full = (dict(model.named_parameters()) for model in models)
    assert torch.equal(mixed["output.weight"], full["output.weight"])
    assert torch.equal(mixed["output.bias"], full["output.bias"])
    assert not torch.equal(mixed["hidden1.weight"], full["hidden1.weight"])


def test_exempt_layers_and_first_epochs_are_summed_as_fp32(digits):
    options = replace(QUICK, format="e4m3", epochs=2)
    plain = train(replace(options, format="fp32"), data=digits).weights
    assert train(replace(options, fp32_epochs=2), data=digits).weights == plain
    assert train(replace(options, exempt=("*",)), data=digits).weights == plain
    mixed = train(replace(options, fp32_epochs=1), data=digits)
    assert mixed.weights not in (plain, train(options, data=digits).weights)
    by_name = train(replace(options, exempt=("output.*",)), data=digits).weights
    assert by_name == train(replace(options, last_layer_fp32=True), data=digits).weights


def test_the_exchange_moves_other_messages_for_the_same_sums(digits):
    options = replace(QUICK, format="e4m3", aps="on", order="ring")
    weights = train(options, data=digits).weights
    assert train(replace(options, exchange="ring"), data=digits).weights == weights


def test_nodes_must_be_those_of_the_ranks(digits):
    with pytest.raises(ValueError, match="nodes must be the number of ranks, 3, got 8"):
        train(QUICK, data=digits, ranks=VirtualRanks(3))


@pytest.mark.parametrize("numbers", [[0, 1, 2**24 - 1], [2**24, 2**64 - 1, 2**72 - 1], []])
def test_gathered_integers_are_exact(numbers):
    assert gather_integers(VirtualRanks(2), [numbers, numbers[::-1]]) == [numbers, numbers[::-1]]


def test_divergence_is_told_and_does_not_crash(digits, capsys, tmp_path):
    arguments = ["--reduce", f"e5m2 loss_scale={2.0**100}", "--epochs", "3", "--depth", "2"]
    assert main(["train", *arguments, "--json", str(tmp_path / "run.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "state diverged at epoch 1" in lines
    assert re.search(r"[1-9]\d* sums overflowed", " ".join(lines))
    accuracy = r"accuracy 0\.\d{4} \(\d+ of 359 held-out images\); in fp32 0\.\d{4}"
    assert re.fullmatch(accuracy, lines[-2])
    row = json.loads((tmp_path / "run.json").read_text(), parse_constant=pytest.fail)
    assert row["state"] == "diverged at epoch 1"
    assert len(row["curve"]) == 1


def test_a_sum_that_may_stall_is_told_in_one_line(capsys):
    arguments = "--reduce e3m0 --nodes 3 --batch 200 --epochs 1 --depth 1 --width 8"
    assert main(["train", *arguments.split()]) == 0
    told = capsys.readouterr().err.splitlines()
    warnings = [line for line in told if "warning" in line]
    assert len(warnings) == 1
    assert warnings[0].startswith("cpd train: warning: the sum over 3 ranks in e3m0")
    assert [line.split(":")[0] for line in told if line not in warnings] == ["in fp32", "training"]


def test_recipes_decide_how_layers_compute_and_weights_are_updated(digits, tmp_path):
    weights = {train(QUICK, data=digits).weights}
    recipes = ("mxfp8", "te-delayed", "nvfp4", "ibm-fp8-2018", "fp16", "native sums='e4m3 kahan'")
    for name in recipes:
        options = replace(QUICK, recipe=name)
        result = train(options, data=digits)
        assert result.diverged_at is None
        assert options.label() == f"FP32, layers by {name}"
        weights.add(result.weights)
    assert len(weights) == 1 + len(recipes)
    file = tmp_path / "mine.toml"
    file.write_text(cpd.Recipe("nvfp4").to_toml())
    assert train(replace(QUICK, recipe=str(file)), data=digits).weights in weights


@pytest.mark.parametrize(("name", "format"), [("aps-e4m3", "e4m3"), ("aps-e3m0", "e3m0")])
def test_a_recipes_wire_is_applied(digits, name, format):
    assert cpd.Recipe(name)._is_native
    by_recipe = replace(QUICK, recipe=name)
    assert by_recipe.label() == f"({format[1]},{format[3]}) + APS, by {name}"
    weights = train(by_recipe, data=digits).weights
    assert weights == train(replace(QUICK, format=format, aps="on"), data=digits).weights
    plain = train(QUICK, data=digits).weights
    assert weights != plain
    assert train(replace(by_recipe, format="fp32"), data=digits).weights == plain


def test_options_change_a_recipes_wire(tmp_path):
    file = tmp_path / "mine.json"
    text = "e4m3 average accumulator=e5m7 order=tree"
    file.write_text(cpd.Recipe("native", reduce=text).to_json())
    options = TrainOptions(recipe=str(file), nodes=4)
    assert options.spec == cpd.Reduce(text).replace(average=False)
    for changes, wanted in (
        ({"order": "ring"}, {"order": "ring"}),
        ({"aps": "paper"}, {"aps": "paper"}),
        ({"loss_scale": 4.0, "exchange": "gather"}, {"loss_scale": 4.0, "exchange": "gather"}),
        ({"group_size": 2}, {"group_size": 2}),
        ({"epochs": 3}, {}),
    ):
        changed = replace(options, **changes)
        assert changed.spec == options.spec.replace(**wanted)
        parsed = build_parser().parse_args(["train", *shlex.split(changed.arguments())])
        assert train_options(parsed, changed.nodes).spec == changed.spec
    assert replace(options, aps="off").spec.aps is False
    assert replace(options, wire="int4").spec == TrainOptions(wire="int4", nodes=4).spec
    assert replace(options, format="e5m2").spec == TrainOptions(format="e5m2", nodes=4).spec
    with pytest.raises(ValueError, match="rounding goes with a format or a wire of its own"):
        replace(options, rounding="up")


def test_a_recipes_schedule_is_followed(digits, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        cpd.Recipe("native", schedule=[("epoch", 1, cpd.Recipe(sums="e4m3 chunked"))]).to_toml()
    )
    two = replace(QUICK, epochs=2, recipe=str(file))
    result = train(two, data=digits)
    plain = train(replace(two, recipe=None), data=digits)
    assert result.loss[0] == plain.loss[0]
    assert result.loss[1] != plain.loss[1]
    steps = cpd.Recipe(
        "native", schedule=[("step", result.steps_per_epoch, cpd.Recipe(sums="e4m3 chunked"))]
    )
    file.write_text(steps.to_toml())
    assert train(two, data=digits).weights == result.weights


def test_sampled_gradients_are_each_nodes_own(digits):
    model = digit_classifier(2, 8, seed=0)
    per_rank = sampled_gradients(model, digits, nodes=3, batch=4, seed=0)
    assert len(per_rank) == 3
    assert not torch.equal(per_rank[0][0], per_rank[1][0])
    again = sampled_gradients(model, digits, nodes=3, batch=4, seed=0)
    for mine, yours in zip(per_rank, again, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(mine, yours, strict=True))
