# SPDX-License-Identifier: Apache-2.0
"""Tests delayed scaling: scales equal TransformerEngine's bit for bit. Also tests casts by these
scales, and the stored state."""

from __future__ import annotations

import functools

import numpy as np
import pytest

import cpd
import scaled_cases
import spawn
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from cpd.nn.delayed import OPERANDS, Delayed, update  # noqa: E402
from cpd.numeric.cast import Cast, as_cast  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

GOLDEN = scaled_cases.DATA / "delayed_optim.npz"
ELEMENTS = {"e4m3": "e4m3fn", "e5m2": "e5m2"}
CASES = [
    f"{algo}_m{margin}.{element}"
    for algo in ("max_h1", "max_h4", "max_h16", "most_recent_h1", "most_recent_h16")
    for margin in (0, 2)
    for element in ELEMENTS
]
TINY, MOST = np.float32(1e-45), np.finfo(np.float32).max


def spec(element="e4m3fn", history=4, amax="max", margin=0, rounding="nearest_even"):
    text = f"{element} block=tensor scale=fp32 arithmetic=te margin={margin}"
    return Cast(text, rounding=rounding, history=history, amax=amax)


def hybrid(**options):
    """Returns a layer's state for TransformerEngine's HYBRID recipe: e4m3 forward, e5m2 for
    gradients."""
    forward = spec(**options)
    return Delayed(forward, forward, spec("e5m2", **options))


def note(delayed, magnitudes):
    """Makes delayed scaling record `magnitudes` as the operands' largest ones in this step."""
    for name, amax in zip(OPERANDS, magnitudes, strict=True):
        if name == "gradient":
            y = delayed.watch(torch.zeros(2, requires_grad=True))
            y.backward(torch.tensor([0.0, -amax]))
        else:
            delayed.quantize(name, torch.tensor([0.0, -amax]))


# ---- scales --------------------------------------------------------------------------------------


@functools.cache
def golden():
    return dict(np.load(GOLDEN))


@pytest.mark.skipif(not GOLDEN.exists(), reason=scaled_cases.REASON)
@pytest.mark.parametrize("name", CASES)
def test_scales_are_those_of_transformer_engine(name):
    rule, element = name.split(".")
    amax, history, margin = rule.rsplit("_", 2)
    operand = spec(ELEMENTS[element], int(history[1:]), amax, int(margin[1:]))
    magnitudes, wanted = golden()["te_delayed.amax"], golden()[f"te_delayed.{name}.scale"]
    assert magnitudes.shape == wanted.shape == (48, 6)
    layers = Delayed(operand, operand, operand), Delayed(operand, operand, operand)
    for step in range(48):
        for layer, columns in zip(layers, (slice(0, 3), slice(3, 6)), strict=True):
            note(layer, magnitudes[step, columns])
        update(layers)
        made = np.concatenate([layer.scale.numpy() for layer in layers])
        assert np.array_equal(made.view(np.uint32), wanted[step].view(np.uint32)), step


@pytest.mark.parametrize("amax", ["max", "most_recent"])
@pytest.mark.parametrize("margin", [-3, 0, 5])
@pytest.mark.parametrize("history", [1, 3])
def test_scales_against_a_step_by_step_oracle(amax, margin, history):
    layer = hybrid(history=history, amax=amax, margin=margin)
    most = np.float32([448, 448, 57344])
    scale = np.ones(3, np.float32)
    rows = [np.zeros(3, np.float32)] * history
    odd = [0, 1, TINY, np.inf, 3, np.nan, MOST, 1e-38, 448, 7, 0, 0, 0, 0, 1e-40, 2, 2]
    for step in range(len(odd)):
        now = np.float32([odd[step], odd[-step], odd[step // 2]])
        note(layer, now)
        rows = [now, *rows[: history - 1]]
        a = now if amax == "most_recent" else np.maximum.reduce(rows)
        with np.errstate(all="ignore"):
            new = (np.float32(1) / a * most) / np.float32(2.0**margin)
        new = np.where(np.isinf(new), MOST, new)
        scale = np.where((a > 0) & np.isfinite(a), new, scale)
        layer.update()
        assert layer.scale.dtype == torch.float32
        assert np.array_equal(layer.scale.numpy(), scale), step
        assert not layer.amax_history[0].any()


def test_the_larger_of_two_magnitudes_of_a_step_counts():
    layer = hybrid()
    for values in ([1.0, -3.0], [2.0], []):
        layer.quantize("activation", torch.tensor(values))
    assert layer.amax_history[0].tolist() == [3.0, 0.0, 0.0]
    layer.quantize("activation", torch.tensor([float("nan")]))
    assert layer.amax_history[0, 0].isnan()


# ---- casts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("which", OPERANDS)
def test_casts_are_those_written_by_hand(which, dtype):
    layer = hybrid()
    x = normal(40, 30, dtype=dtype).t()
    note(layer, [3.0, 0.7, 1e-5])
    layer.update()
    scale = layer.scale[OPERANDS.index(which)]
    assert scale != 1
    element = layer.casts[which].format.element
    by_hand = cpd.cast(x.float() * scale, cpd.Cast(element, overflow="saturate")) * (1 / scale)
    assert same(layer.quantize(which, x), by_hand.to(dtype))
    assert layer.amax_history[0, OPERANDS.index(which)] == x.abs().max()


def test_a_scale_that_is_too_large_saturates():
    layer = hybrid()
    note(layer, [1.0, 1.0, 1.0])
    layer.update()
    assert layer.quantize("activation", torch.tensor([3.0, -float("inf")])).tolist() == [1, -1]


def test_gradients_pass_straight_through():
    layer = hybrid()
    note(layer, [3.0, 0.7, 1e-5])
    layer.update()
    x = normal(7, seed=1).requires_grad_()
    g = normal(7, seed=2)
    (made,) = torch.autograd.grad(layer.watch(layer.quantize("activation", x)), x, g)
    assert same(made, g)
    assert layer.amax_history[0, 2] == g.abs().max()


def test_evaluation_notes_nothing():
    layer = hybrid().eval()
    x = normal(7).requires_grad_()
    layer.watch(layer.quantize("weight", x)).sum().backward()
    assert not layer.amax_history.any()


def test_stochastic_casts_draw_from_the_stream_that_is_given():
    layer = Delayed(spec(rounding="stochastic"))
    x = normal(500)
    draws = {"rounding": "stochastic", "overflow": "saturate", "seed": 3, "stream": 5}
    assert same(
        layer.quantize("activation", x, seed=3, stream=5),
        by_keywords(cpd.cast, x, "e4m3fn", **draws),
    )
    assert same(layer.quantize("activation", x), layer.quantize("activation", x, stream=0))


def test_multipliers_outlive_an_update():
    layer = hybrid()
    held = layer.multipliers()[2]
    note(layer, [1.0, 1.0, 1.0])
    layer.update()
    assert held == 1
    assert layer.multipliers()[2] == 57344


# ---- in models -----------------------------------------------------------------------------------


class Layer(nn.Linear):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)
        self.cpd_delayed = hybrid(history=3)

    def forward(self, x):
        delayed = self.cpd_delayed
        x = delayed.quantize("activation", x)
        y = nn.functional.linear(x, delayed.quantize("weight", self.weight), self.bias)
        return delayed.watch(y) * delayed.multipliers()[2].log2()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = Layer(8, 16), Layer(16, 4)

    def forward(self, x):
        update((self.first.cpd_delayed, self.last.cpd_delayed))
        return self.last(torch.relu(self.first(x)))


def train(model, steps, run=None):
    """Trains for some steps and returns the last output. `run` is called in place of the model, for
    example a compiled model."""
    for step in steps:
        x = normal(6, 8, seed=step)
        y = (model if run is None else run)(x)
        model.zero_grad()
        y.square().sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p -= 1e-5 * p.grad
    return y.detach()


def test_compiled_steps_have_the_same_bits():
    eager, model = Model(), Model()
    program, counter = compiled(model)
    assert same(train(eager, range(5)), train(model, range(5), program))
    assert same(eager.state_dict(), model.state_dict())
    assert counter.frame_count == 1


def in_place_models(in_place):
    """Yields models whose activations overwrite their input, as in VGG and NFNet."""
    relu = functools.partial(nn.ReLU, in_place)
    yield (
        nn.Sequential(
            *(nn.Conv2d(3, 8, 3, padding=1), relu(), nn.Conv2d(8, 8, 3), relu(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(72, 16), relu(), nn.Dropout(0, in_place), nn.Linear(16, 4)),
        ),
        (2, 3, 8, 8),
    )
    yield nn.Sequential(nn.Conv1d(3, 8, 3), relu(), nn.ConvTranspose1d(8, 4, 3), relu()), (2, 3, 9)
    yield nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), relu()), (2, 3, 8, 8)
    yield nn.Sequential(nn.Linear(9, 8), relu()), (9,)
    yield nn.Sequential(nn.Conv3d(3, 8, 2), relu()), (3, 4, 4, 4)


@pytest.mark.parametrize("recipe", ["te-delayed", "te-current", "e4m3fn"])
@pytest.mark.parametrize("number", range(5))
def test_activations_in_place(recipe, number):
    (model, shape), (twin, _) = (list(in_place_models(how))[number] for how in (True, False))
    twin.load_state_dict(model.state_dict())
    for each in (model, twin):
        cpd.convert(each, recipe)
    for step in range(2):
        x = normal(*shape, seed=step).requires_grad_()
        y = x.detach().clone().requires_grad_()
        given, wanted = model(x), twin(y)
        for result in (given, wanted):
            result.square().sum().backward()
        assert same(given, wanted)
        assert same(x.grad, y.grad)
        for one, other in zip(model.parameters(), twin.parameters(), strict=True):
            assert same(one.grad, other.grad)
        for one, other in zip(model.buffers(), twin.buffers(), strict=True):
            assert same(one, other)


def test_compiled_activations_in_place():
    model, shape = next(in_place_models(True))
    twin, _ = next(in_place_models(False))
    twin.load_state_dict(model.state_dict())
    for each in (model, twin):
        cpd.convert(each, "te-delayed")
    x = normal(*shape)
    given, wanted = compiled(model)[0](x), twin(x)
    for result in (given, wanted):
        result.square().sum().backward()
    assert same(given, wanted)
    for one, other in zip(model.buffers(), twin.buffers(), strict=True):
        assert same(one, other)


def test_the_state_stays_in_binary32():
    layer = hybrid().to(torch.bfloat16).half()
    assert {buffer.dtype for buffer in layer.buffers()} == {torch.float32}


def test_the_meta_device():
    layer = Delayed(spec()).to("meta").to_empty(device="cpu")
    layer.reset_parameters()
    assert same(dict(layer.named_buffers()), dict(Delayed(spec()).named_buffers()))


def test_a_layer_of_a_recipe():
    """A product's result and gradients equal casts and products by hand, with the scales of the
    previous step."""
    forward, gradient = spec(), spec("e5m2")
    recipe = cpd.Recipe("native", activation=forward, weight=forward, gradient=gradient)
    delayed = Delayed.of(recipe)
    assert delayed.casts == {"activation": forward, "weight": forward, "gradient": gradient}
    assert list(Delayed.of(cpd.Recipe("native", weight=forward)).casts) == ["weight"]
    x, w, g = normal(5, 8, seed=1), normal(3, 8, seed=2), normal(5, 3, seed=3)
    for _ in range(2):
        x.requires_grad_()
        w.requires_grad_()
        y = cpd.functional.linear(x, w, recipe=recipe, delayed=delayed)
        made = y, *torch.autograd.grad(y, (x, w), g)
        with torch.no_grad():
            qx, qw, qg = (
                cpd.cast(t * s, cpd.Cast(one.format.element, overflow="saturate")) * (1 / s)
                for t, s, one in zip((x, w, g), delayed.scale, recipe._kept.operands, strict=False)
            )
        assert same(made, (nn.functional.linear(qx, qw), qg @ qw, qg.mT @ qx))
        delayed.update()
    assert len(set(delayed.scale.tolist())) == 3


def test_a_gradient_that_is_not_delayed():
    layer = Delayed(spec())
    y = torch.ones(2, requires_grad=True)
    assert layer.watch(y) is y


# ---- transforms and errors -----------------------------------------------------------------------


def test_transforms_of_torch_func():
    layer = hybrid()
    x = normal(5)

    def f(x):
        return layer.watch(layer.quantize("activation", x)).square().sum()

    assert same(torch.func.grad(f)(x), 2 * cpd.cast(x, "e4m3fn"))
    assert layer.amax_history[0, 2] > 0
    assert torch.func.jvp(f, (x,), (torch.ones(5),))[1] == (2 * cpd.cast(x, "e4m3fn")).sum()
    calls = (lambda x: layer.quantize("activation", x)), layer.watch, torch.func.grad(f)
    for call in calls:
        with pytest.raises(ValueError, match=r"not supported under torch.vmap.*share one history"):
            torch.vmap(call)(normal(3, 5))


def test_errors():
    with pytest.raises(ValueError, match="weight must be a Cast with history > 0, got mxfp8"):
        Delayed(spec(), as_cast("mxfp8"))
    with pytest.raises(ValueError, match=r"one history and one amax, got activation=.*history=4"):
        Delayed(spec(), spec(history=2))
    with pytest.raises(ValueError, match="one history and one amax, got activation=None"):
        Delayed()
    with pytest.raises(ValueError, match="delayed are activation, got 'gradient'"):
        Delayed(spec()).quantize("gradient", torch.ones(1))
    with pytest.raises(ValueError, match="delayed are activation, got 'bias'"):
        Delayed(spec()).quantize("bias", torch.ones(1))


def test_ranks_have_one_history():
    told = [rank.result for rank in spawn.spawn_ranks("gloo", 2, "delayed_ranks:run")]
    assert told == ["", ""]
