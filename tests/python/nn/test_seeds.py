# SPDX-License-Identifier: Apache-2.0
"""Tests the seed and the stream of a call: in functional forms, in cpd.autocast and in converted
models."""

from __future__ import annotations

import copy

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from cpd import functional  # noqa: E402
from tensors import SOME, compiled, normal, same  # noqa: E402

SEED, STREAM = 2**63 + 5, 3 << 36


def recipe():
    """Returns a recipe in which every rounding is stochastic."""
    cast = cpd.Cast("e5m2", rounding="stochastic", random_bits=8)
    operands = {
        "sums": SOME,
        "activation": cast,
        "weight": cpd.Cast("mxfp4", rounding="stochastic"),
        "gradient": cpd.Cast("mxfp8", rounding="stochastic"),
        "output": cast,
    }
    rounded = dict.fromkeys(("norm", "softmax", "embedding", "residual"), cast)
    return cpd.Recipe(attention=cpd.Recipe(**operands), **rounded, **operands)


HOW = recipe()
X, W = normal(4, 64), normal(64, 64, seed=1)
IMAGES, KERNEL = normal(2, 3, 6, 6), normal(4, 3, 3, 3, seed=1)
HEADS = normal(2, 3, 4, 32)
ENDS = torch.tensor([1, 4], dtype=torch.int32)
GATES = normal(32, 32, seed=2)

FORMS = {
    "linear": ((X, W), {}),
    "matmul": ((X, W), {}),
    "bilinear": ((X, X, normal(2, 64, 64, seed=1)), {}),
    "conv2d": ((IMAGES, KERNEL), {}),
    "conv_transpose2d": ((IMAGES, normal(3, 4, 3, 3)), {}),
    "grouped_mm": ((X, normal(2, 64, 8)), {"offs": ENDS}),
    "scaled_dot_product_attention": ((HEADS, HEADS, HEADS), {}),
    "multi_head_attention": (
        (
            *(normal(3, 2, 32),) * 3,
            32,
            2,
            normal(96, 32),
            None,
            None,
            None,
            False,
            0.0,
            GATES,
            None,
        ),
        {},
    ),
    "lstm_cell": (
        (normal(2, 32), (normal(2, 8), normal(2, 8)), normal(32, 32), normal(32, 8)),
        {},
    ),
    "gru": ((normal(3, 2, 32), normal(1, 2, 8), (normal(24, 32), normal(24, 8)), False), {}),
    "layer_norm": ((X, (64,)), {}),
    "group_norm": ((IMAGES, 3), {}),
    "embedding": ((torch.tensor([1, 0]), W), {}),
}


def of_type(values, dtype):
    """Converts the floating-point tensors among the arguments to `dtype`, as leaves that require
    gradients."""

    def made(x):
        if isinstance(x, tuple) and x and isinstance(x[0], torch.Tensor):
            return tuple(made(one) for one in x)
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            return x
        return x.detach().clone().to(dtype).requires_grad_()

    return tuple(made(x) for x in values)


def run(name, dtype=torch.float32, **how):
    """Calls a functional form. Returns its result and the gradients of its floating-point
    arguments."""
    args, keywords = FORMS[name]
    args = of_type(args, dtype)
    y = getattr(functional, name)(*args, **keywords, **how)
    y = y[0] if isinstance(y, tuple) else y
    leaves = [x for x in torch.utils._pytree.tree_leaves(args) if isinstance(x, torch.Tensor)]
    leaves = [x for x in leaves if x.requires_grad]
    y.float().square().sum().backward()
    return [y.detach(), *(x.grad for x in leaves if x.grad is not None)]


@pytest.mark.parametrize("name", FORMS)
def test_ints_and_tensors_give_the_same_bits(name):
    for dtype in (torch.float32, torch.bfloat16):
        wanted = run(name, dtype, recipe=HOW, seed=SEED, stream=STREAM)
        tensors = {"seed": torch.tensor(SEED - 2**64), "stream": torch.tensor(STREAM)}
        assert same(run(name, dtype, recipe=HOW, **tensors), wanted)
        for other in ({"seed": SEED}, {"seed": 1, "stream": STREAM}):
            assert not same(run(name, dtype, recipe=HOW, **other), wanted)


def test_sums_alone_are_of_native_products():
    for sums in (SOME, cpd.Accumulator(SOME), (SOME, "fp32", "e5m2 kahan")):
        wanted = run("linear", recipe=cpd.Recipe(sums=sums), seed=3)
        assert same(run("linear", sums=sums, seed=3), wanted)
        both = cpd.Recipe("native", weight="e4m3fn").replace(sums=sums)
        how = cpd.Recipe("native", weight="e4m3fn")
        assert same(run("linear", recipe=how, sums=sums), run("linear", recipe=both))


@pytest.mark.parametrize(
    "name",
    [
        "linear",
        "layer_norm",
        pytest.param("conv2d", marks=pytest.mark.exhaustive),
        pytest.param("scaled_dot_product_attention", marks=pytest.mark.exhaustive),
    ],
)
def test_compiled_steps(name):
    """Over ten steps, a compiled functional form compiles at most twice with seeds as ints, and
    once with seeds as tensors. The bits are the same as in eager mode."""
    args, keywords = FORMS[name]

    def step(seed):
        return getattr(functional, name)(*args, **keywords, recipe=HOW, seed=seed)

    for seeds, most in ((range(10), 2), ([torch.tensor(n) for n in range(10)], 1)):
        program, counter = compiled(step)
        seen = set()
        for seed in seeds:
            got = program(seed)
            assert same(got, step(seed))
            seen.add(got.numpy().tobytes())
        assert len(seen) == 10
        assert counter.frame_count <= most


def test_compiled_sums():
    program, _ = compiled(lambda x, w: functional.matmul(x, w, sums="e4m3 kahan"))
    assert same(program(X, W), cpd.gemm(X, W, "e4m3 kahan"))


# ---- autocast ------------------------------------------------------------------------------------


def block(x):
    y = F.layer_norm(F.linear(x, W), (64,)) @ W
    return torch.softmax(y + y, -1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_autocast_has_the_numbers_of_all_calls(dtype):
    def gradients(how, **numbers):
        x = X.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            with cpd.autocast(how, **numbers):
                y = block(x)
            y.float().square().sum().backward()
        return y.detach(), x.grad

    for stream in (0, STREAM):
        wanted = gradients(HOW, seed=SEED, stream=stream)
        assert same(gradients(HOW, seed=torch.tensor(SEED - 2**64), stream=stream), wanted)
        assert not same(gradients(HOW, seed=1, stream=stream), wanted)


def test_compiled_autocast():
    def step(x, seed):
        with cpd.autocast(HOW, seed=seed):
            return block(x)

    for seeds, most in ((range(4), 2), ([torch.tensor(n) for n in range(4)], 1)):
        program, counter = compiled(step)
        assert all(same(program(X, seed), step(X, seed)) for seed in seeds)
        assert counter.frame_count <= most


# ---- converted models ----------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(8, 64)
        self.norm = nn.LayerNorm(64)
        self.attention = nn.MultiheadAttention(64, 2, batch_first=True)
        self.gru = nn.GRU(64, 8, batch_first=True)
        self.bilinear = nn.Bilinear(8, 8, 8)
        self.head = nn.Linear(8, 4)

    def forward(self, words):
        x = self.norm(self.table(words))
        y, _ = self.attention(x, x, x)
        z, _ = self.gru(x + y)
        return self.head(self.bilinear(z, z))


def converted(how, **options):
    model = Model()
    report = cpd.convert(model, how, coverage=False, **options)
    assert not report.not_emulated
    return model


def steps(model, count=2, call=None):
    """Trains for some steps and returns the results and gradients."""
    words, found = torch.tensor([[1, 2, 3]]), []
    for _ in range(count):
        model.zero_grad()
        y = (call or model)(words)
        y.float().square().sum().backward()
        found += [y.detach(), *(p.grad.clone() for p in model.parameters())]
    return found


def test_one_seed_serves_a_model():
    wanted = steps(converted(HOW, seed=SEED))
    assert same(steps(converted(HOW, seed=SEED)), wanted)
    assert not same(steps(converted(HOW, seed=1)), wanted)


def test_models_of_two_seeds_train_beside_each_other():
    """Two models with different seeds train by turns. Each model has the same bits as if it trained
    alone, even if its state is loaded in the middle of the training."""
    x = torch.randn(8, 16, generator=torch.Generator().manual_seed(3))
    how = cpd.Recipe(
        "e4m3fn", sums="fp32 rounding=stochastic", activation="e4m3fn stochastic", gradient="e5m2"
    )

    def model(seed):
        torch.manual_seed(0)
        made = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
        cpd.convert(made, how, seed=seed)
        return made, torch.optim.SGD(made.parameters(), 0.1)

    def step(made, optimizer):
        optimizer.zero_grad()
        losses = []
        for part in x.chunk(2):  # gradients accumulate
            loss = made(part).square().mean()
            loss.backward()
            losses.append(loss.item())
        optimizer.step()
        return losses

    alone = {}
    for seed in (1, 2):
        pair = model(seed)
        alone[seed] = [step(*pair) for _ in range(4)]
    assert alone[1] != alone[2]
    pairs = {seed: model(seed) for seed in (1, 2)}
    beside = {seed: [] for seed in (1, 2)}
    for count in range(4):
        for seed in (1, 2):
            if count == 2:
                stored = pairs[seed][0].state_dict()
                pairs[seed] = model(seed)
                pairs[seed][0].load_state_dict(stored)
            beside[seed].append(step(*pairs[seed]))
    assert beside == alone


def test_copies_have_the_models_seed():
    model = converted(HOW, seed=SEED)
    twin = copy.deepcopy(model)
    assert same(steps(twin), steps(model))
    cpd.convert(model, HOW, seed=1, coverage=False)
    assert not same(steps(twin), steps(model))


@pytest.mark.few("", 1)
def test_compiled_models_have_the_seed():
    models = [nn.Sequential(nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 4)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        cpd.convert(model, HOW, seed=SEED, coverage=False)
    program, counter = compiled(models[0])
    for _ in range(10):
        got, wanted = program(X), models[1](X)
        assert same(got, wanted)
        got.sum().backward()
        wanted.sum().backward()
        assert all(
            same(p.grad, q.grad)
            for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True)
        )
    assert counter.frame_count == 1


def test_a_layers_stream_is_documented():
    """A converted layer equals its functional form with the documented stream, step << 36 XOR layer
    << 20."""
    model = nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 8))
    cpd.convert(model, HOW, seed=SEED, coverage=False)
    for step in (1, 2):
        got, y = model(X), X
        for layer, module in enumerate(model):
            how = {"recipe": HOW, "seed": SEED, "stream": step << 36 ^ layer << 20}
            if isinstance(module, nn.Linear):
                y = functional.linear(y, module.weight, module.bias, **how)
            else:
                y = functional.layer_norm(y, (64,), module.weight, module.bias, **how)
        assert same(got, y)
        got.sum().backward()


def test_a_models_seed_is_an_int():
    model = nn.Linear(64, 4)
    with pytest.raises(TypeError, match="seed must be an int, got float"):
        cpd.convert(model, HOW, seed=1.0)


# ---- the clock and schedules ---------------------------------------------------------------------


def test_schedules_follow_the_clock_that_is_set():
    """A schedule follows the model's step counter (its clock), which set_step sets. Step n of the
    schedule is the training step that begins while the clock is at n."""
    later = cpd.Recipe("native", weight="e5m2 rounding=stochastic")
    how = cpd.Recipe("native", weight="e4m3fn", schedule=[("step", 2, later)])
    model, x = nn.Linear(8, 4), normal(3, 8)
    cpd.convert(model, how, seed=7, coverage=False)

    def wanted(step):
        stream = (step + 1) << 36  # the clock has begun this step
        phase = later if step >= 2 else how.replace(schedule=())
        numbers = {"seed": 7, "stream": stream}
        return functional.linear(x, model.weight, model.bias, recipe=phase, **numbers)

    for step in (0, 1, 2, 3, 1, 5, 0):
        cpd.set_step(model, step=step)
        assert model.cpd_clock == step
        assert same(model(x), wanted(step))
        assert model.cpd_clock == step + 1
        model(x).sum().backward()  # the next step, by itself
        assert same(model(x), wanted(step + 2))
