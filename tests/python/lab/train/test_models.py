# SPDX-License-Identifier: Apache-2.0
"""Tests the models: parameter counts as in their papers, shapes, and that a step lowers the
loss."""

from dataclasses import replace

import pytest

pytest.importorskip("torch")
pytest.importorskip("sklearn")

import torch

from cpd_lab.train import DATA, MODELS, TrainOptions
from cpd_lab.train.metrics import loss_of
from cpd_lab.train.models import TextLstm, lenet, resnet110, seeded

SMALL = {"mlp": 16, "lenet": 6, "cifarnet": 8, "resnet110": 2, "text_lstm": 16, "gpt": 16}


def parameters(model):
    return sum(p.numel() for p in model.parameters())


def quick(name, **options):
    chosen = {"width": SMALL.get(name, 4), "length": 8, **options}
    return TrainOptions(model=name, **chosen)


@pytest.mark.parametrize(
    ("name", "options", "count"),
    [
        ("lenet", {"data": "cifar10"}, 62_006),  # LeNet-5 with three channels, fully connected
        ("cifarnet", {"width": 64}, 1_068_298),  # TensorFlow's tutorial: about 1.06 million
        ("resnet18", {"width": 64}, 11_173_962),  # 11.17 million
        ("resnet110", {"width": 16}, 1_727_962),  # He et al., table 6: 1.7 million
        ("davidnet", {"width": 64}, 6_573_120),  # 6.57 million
        ("mlp", {}, 64 * 64 * 6 + 64 * 6 + 64 * 10 + 10),
    ],
)
def test_full_width_has_the_published_number_of_parameters(name, options, count):
    assert sum(layer.size for layer in TrainOptions(model=name, **options).layers) == count


def test_lenet_of_its_paper():
    """LeNet has its paper's number of parameters for 1 x 32 x 32 images, with all connections
    between the convolutions."""
    assert parameters(lenet((1, 32, 32))) == 61_706


def test_resnet_has_6n_plus_2_layers():
    model = resnet110(width=2, blocks=3)
    kinds = [m for m in model.modules() if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert len(kinds) == 20
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def inputs_of(options, count):
    """Returns random inputs and targets with shapes that fit the model."""
    sample, kind = options.sample, DATA[options.data].kind
    draw = torch.Generator().manual_seed(0)
    if kind == "text":
        characters = torch.randint(sample.classes, (count, sample.length + 1), generator=draw)
        return characters[:, :-1], characters[:, 1:]
    shape = (count, *sample.shape[1:]) if kind == "pixels" else (count,)
    targets = torch.randint(sample.classes, shape, generator=draw)
    return torch.randn(count, *sample.shape, generator=draw), targets


@pytest.mark.parametrize(
    ("name", "options"),
    [(name, {"data": data}) for name, model in MODELS.items() for data in model.data]
    + [("cifarnet", {"augment": "none"}), ("lenet", {"data": "cifar10", "augment": "crop24"})],
)
def test_shapes_and_that_a_step_lowers_the_loss(name, options):
    options = quick(name, **options)
    model = seeded(0, options.make_model)
    names = [(layer.name, layer.shape) for layer in options.layers]
    assert names == [(name, tuple(p.shape)) for name, p in model.named_parameters()]
    x, y = inputs_of(options, 4)
    outputs = model(x)
    kind, classes = DATA[options.data].kind, options.sample.classes
    wanted = {"classes": (4, classes), "pixels": (4, classes, 32, 32), "text": (4, 8, classes)}
    assert outputs.shape == wanted[kind]
    before = loss_of(outputs, y)
    gradients = torch.autograd.grad(before, list(model.parameters()))
    size = sum(float(g.square().sum()) for g in gradients)
    with torch.no_grad():
        for parameter, gradient in zip(model.parameters(), gradients, strict=True):
            parameter.sub_(gradient, alpha=min(0.05, 0.01 / size))
        assert loss_of(model(x), y) < before


def test_an_upsampled_plane_is_torchs_bilinear_one():
    upsample = seeded(0, TrainOptions(model="fcn", width=4).make_model).upsample
    x = torch.randn(2, 3, 8, 8)
    expected = torch.nn.functional.interpolate(x, scale_factor=4, mode="bilinear")
    torch.testing.assert_close(upsample(x), expected)


@pytest.mark.parametrize(
    "name", [name for name, model in MODELS.items() if "dropout" in model.takes]
)
def test_dropout_is_where_the_model_trains(name):
    options = quick(name, dropout=0.5)
    model = seeded(0, options.make_model)
    plain = seeded(0, replace(options, dropout=0.0).make_model)
    assert parameters(model) == parameters(plain)
    x, _ = inputs_of(options, 4)
    assert not torch.equal(model(x), model(x))
    model.eval(), plain.eval()
    assert torch.equal(model(x), plain(x))


def test_first_weights_of_cifarnet_are_those_of_its_tutorial():
    model = seeded(0, TrainOptions(model="cifarnet").make_model)
    assert model.conv1.weight.abs().max() <= 0.1
    assert model.conv1.weight.std().item() == pytest.approx(0.05 * 0.88, rel=0.02)  # cut off at 2
    assert (model.conv2.bias == 0.1).all()
    assert (model.output.bias == 0).all()


def test_gpts_width_is_of_its_heads():
    with pytest.raises(
        ValueError, match=r"width must be a multiple of 4 \(the heads of gpt\), got 6"
    ):
        TrainOptions(model="gpt", width=6)


def test_an_lstm_of_the_examples_has_no_dropout():
    assert TextLstm(5, 8, 2).lstm.dropout == 0
