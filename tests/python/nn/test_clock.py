# SPDX-License-Identifier: Apache-2.0
"""Tests when a training step of a converted model begins. A table lists ways to train a model, and
the number of steps that each way counts."""

from __future__ import annotations

import copy
import warnings

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.func import functional_call, grad  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tensors import compiled, normal, same  # noqa: E402

STOCHASTIC = "rounding=stochastic random_bits=8"
DRAWING = cpd.Recipe(
    "native", activation=f"e4m3fn {STOCHASTIC}", weight="e4m3fn", gradient=f"e5m2 {STOCHASTIC}"
)
DELAYED = cpd.Recipe("te-delayed")
RECIPES = pytest.mark.parametrize("recipe", [DRAWING, DELAYED], ids=["drawing", "delayed"])
ROUNDS = 3


class Net(nn.Module):
    """A model of two parts, a trunk and a head. Each part may also be called alone."""

    def __init__(self, checkpointed=None):
        super().__init__()
        torch.manual_seed(0)
        self.trunk = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 4)
        self.checkpointed = checkpointed

    def features(self, x):
        if self.checkpointed is None:
            return self.trunk(x)
        return checkpoint(self.trunk, x, use_reentrant=self.checkpointed)

    def forward(self, x):
        return self.head(self.features(x))

    def loss(self, x):
        return self.forward(x).square().mean()


def net(recipe=DRAWING, **options):
    model = Net(**options)
    cpd.convert(model, recipe, coverage=False)
    return model


def x_of(step):
    return normal(5, 8, seed=step) * 2.0**step


def called(model, n):
    model(x_of(n)).square().mean().backward()


def by_method(model, n):
    model.loss(x_of(n)).backward()


def by_forward(model, n):
    model.forward(x_of(n)).square().mean().backward()


def in_parts(model, n):
    model.head(model.features(x_of(n))).square().mean().backward()


def in_chunks(model, n):
    """Calls the model's head on each half of its trunk's output, then runs one backward pass."""
    halves = model.trunk(x_of(n)).split(3)
    sum(model.head(h).square().sum() for h in halves).backward()


def by_grad(model, n):
    torch.autograd.grad(model.loss(x_of(n)), list(model.parameters()))


def accumulated(model, n):
    for micro in range(2):
        model.loss(x_of(n + micro)).backward()


def accumulated_by_calls(model, n):
    for micro in range(2):
        called(model, n + micro)


def with_validation(model, n):
    by_method(model, n)
    model.eval()
    with torch.no_grad():
        model(x_of(9))
        model.loss(x_of(9))
        model.train()
        model.loss(x_of(9))


def with_validation_with_gradients(model, n):
    """Calls the model in eval mode, with gradients on, between two training calls."""
    called(model, n)
    model.eval()
    model(x_of(9))
    model.train()


def parts_before_the_call(model, n):
    """Computes an auxiliary loss by part of the model, then calls the whole model. Both forward
    passes count as one training step, because one backward pass follows them."""
    auxiliary = model.features(x_of(n)).square().mean()
    (auxiliary + model(x_of(n)).square().mean()).backward()


def parts_after_the_call(model, n):
    y = model(x_of(n)).square().mean()
    (y + model.features(x_of(n)).square().mean()).backward()


def calls_and_parts_in_turn(model, n):
    (called if n % 2 else by_method)(model, n)


def in_eval_mode(model, n):
    """Trains the model for one round in eval mode. In this mode, a forward pass begins a step only
    if a backward pass came before. So the first round begins no step."""
    model.eval()
    called(model, n)


def by_torch_func(model, n):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    buffers = {name: b.clone() for name, b in model.named_buffers()}
    grad(lambda p: functional_call(model, p | buffers, (x_of(n),)).square().mean())(parameters)


def twice_before_a_backward_pass(model, n):
    (model.loss(x_of(n)) + model.loss(x_of(n + 1))).backward()


def frozen_trunk(model, n):
    model.trunk.requires_grad_(False)
    in_parts(model, n)


def within_a_call(model, n):
    """Calls a model whose forward method itself runs a forward and a backward pass before it
    returns a loss."""
    forward = model.forward
    try:
        model.forward = lambda x: by_method_of(model, forward, x)
        model(x_of(n)).backward()
    finally:
        del model.forward


def by_method_of(model, forward, x):
    forward(x).square().mean().backward()
    return forward(x).square().mean()


CASES = {
    called: 3,
    by_method: 3,
    by_forward: 3,
    in_parts: 3,
    in_chunks: 3,
    by_grad: 3,
    accumulated: 6,
    accumulated_by_calls: 6,
    with_validation: 3,
    with_validation_with_gradients: 3,
    parts_before_the_call: 3,
    parts_after_the_call: 3,
    calls_and_parts_in_turn: 3,
    in_eval_mode: 2,
    by_torch_func: 0,
    twice_before_a_backward_pass: 3,
    frozen_trunk: 3,
    within_a_call: 3,
}
"""Maps each way to train to the number of steps that the model has counted after three rounds."""


@RECIPES
@pytest.mark.parametrize("train", CASES, ids=lambda train: train.__name__)
def test_the_steps_of_three_rounds(train, recipe):
    model = net(recipe)
    for n in range(ROUNDS):
        train(model, n)
    assert model.cpd_clock == CASES[train]


@RECIPES
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("part", ["trunk", "trunk of a call", "model"])
def test_recomputation_begins_no_step(part, reentrant, recipe):
    """A model with activation checkpoints has the bits and the step count of the same model without
    checkpoints."""
    plain, model = net(recipe), net(recipe, checkpointed=None if part == "model" else reentrant)
    for n in range(ROUNDS):
        for each in (plain, model):
            x = x_of(n).requires_grad_()
            if part == "trunk":
                y = each.head(each.features(x))
            elif part == "model" and each is model:
                y = checkpoint(model, x, use_reentrant=reentrant)
            else:
                y = each(x)
            y.square().mean().backward()
    assert model.cpd_clock == plain.cpd_clock == ROUNDS
    assert same(model.state_dict(), plain.state_dict())
    assert same([p.grad for p in model.parameters()], [p.grad for p in plain.parameters()])


def test_recomputation_of_all_layers_under_reentrant_checkpoints():
    """A reentrant checkpoint runs every layer without gradients in the forward pass. Layers run
    with gradients only when the backward pass recomputes them. A forward pass and its backward pass
    still count as one step."""
    model = net()
    for n in range(ROUNDS):
        x = x_of(n).requires_grad_()
        checkpoint(model.loss, x, use_reentrant=True).backward()
        with torch.no_grad():
            checkpoint(model.loss, x, use_reentrant=True)
    assert model.cpd_clock == ROUNDS


@RECIPES
@pytest.mark.parametrize("train", [by_method, in_parts, by_forward])
def test_parts_have_the_bits_of_calls(train, recipe):
    whole, model = net(recipe), net(recipe)
    for n in range(ROUNDS):
        called(whole, n)
        train(model, n)
    assert same([p.grad for p in model.parameters()], [p.grad for p in whole.parameters()])
    assert same(model.state_dict(), whole.state_dict())
    if recipe is DELAYED:
        assert model.head.cpd_delayed.scale.ne(1).all()


def test_random_bits_move_between_steps_and_repeat_within_one():
    model, x = net(), x_of(0)
    first, again = model.features(x), model.features(x)
    assert same(first, again)
    first.sum().backward()
    assert not same(model.features(x), first)


def test_layers_that_a_step_leaves_out_catch_up():
    """Some steps do not call a layer. Its delayed scales are later the same as in a model that
    calls the layer in every step."""
    recipe = cpd.Recipe("native", weight="e4m3fn tensor scale=fp32 arithmetic=te history=3")
    models = [net(recipe), net(recipe)]

    class Half(Net):
        def forward(self, x):
            return super().forward(x) if self.whole else self.features(x)

    models[0].__class__ = type("Half", (Half,), {})
    for n in range(7):
        for model in models:
            with torch.no_grad():
                model.head.weight.mul_(1.5)
        models[0].whole = n in (1, 6)
        models[0](x_of(n)).square().mean().backward()
        (by_method if n in (1, 6) else lambda m, n: m.features(x_of(n)).sum().backward())(
            models[1], n
        )
        if n == 4:
            assert same(models[0].state_dict(), models[1].state_dict())
    assert same(models[0].state_dict(), models[1].state_dict())


def test_two_models_of_which_one_trains_through_the_other():
    """A generator trains through a discriminator. In each round, two backward passes run through
    the discriminator, which counts two steps; the generator counts one."""
    made, judge = net(), net()
    judge.head = nn.Linear(8, 8)
    made.head = nn.Linear(8, 8)
    for model in (made, judge):
        cpd.convert(model, DRAWING, coverage=False)
    for n in range(ROUNDS):
        judge.loss(made.forward(x_of(n)).detach()).backward()
        judge.loss(made.forward(x_of(n))).backward()
    assert (made.cpd_clock, judge.cpd_clock) == (ROUNDS, 2 * ROUNDS)


def test_converting_again_goes_on():
    model = net()
    by_method(model, 0)
    cpd.convert(model, DELAYED, coverage=False)
    by_method(model, 1)
    assert model.cpd_clock == 2
    assert len(model._forward_hooks) == 1
    cpd.restore(model)
    assert not model._forward_hooks
    assert not model._forward_hooks_always_called
    assert not model._state_dict_pre_hooks


def test_a_call_that_raises_ends():
    model = net()
    with pytest.raises(ValueError, match="in"):
        model(torch.ones(2, 3))
    for n in range(2):
        by_method(model, n)
    assert model.cpd_clock == 2  # the call that failed began the first


@RECIPES
def test_training_resumes_in_parts(recipe):
    whole, model = net(recipe), net(recipe)
    for n in range(ROUNDS + 1):
        by_method(whole, n)
        if n < ROUNDS:
            by_method(model, n)
    again = net(recipe)
    again.load_state_dict(model.state_dict())
    again.zero_grad()
    whole.zero_grad()
    for each in (again, whole):
        if each is again:
            by_method(each, ROUNDS)
    assert same(again.state_dict(), whole.state_dict())


# ---- layers --------------------------------------------------------------------------------------


class Layer(nn.Module):
    """A model with one layer. A method other than forward calls the layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def loss(self, *inputs):
        y = self.layer(*inputs)
        return (y if isinstance(y, torch.Tensor) else y[0]).float().square().mean()


class Products(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(normal(3, 8, 8))

    def forward(self, x):
        return torch.bmm(x.expand(3, 5, 8), self.weight)


cpd.nn.register(Products, "products")
LAYERS = {
    "linear": (lambda: nn.Linear(8, 8), (5, 8)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3), (1, 2, 6, 6)),
    "transposed": (lambda: nn.ConvTranspose1d(2, 4, 3), (1, 2, 6)),
    "attention": (lambda: nn.MultiheadAttention(8, 2, batch_first=True), (2, 5, 8)),
    "lstm": (lambda: nn.LSTM(8, 8), (3, 2, 8)),
    "cell": (lambda: nn.GRUCell(8, 8), (3, 8)),
    "bilinear": (lambda: nn.Bilinear(8, 8, 4), (5, 8)),
    "products": (Products, (5, 8)),
}


@RECIPES
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "autocast"])
@pytest.mark.parametrize("kind", LAYERS)
def test_every_kind_of_layer_begins_steps(kind, dtype, recipe):
    torch.manual_seed(0)
    make, shape = LAYERS[kind]
    model = Layer(make())
    cpd.convert(model, recipe, coverage=False)
    inputs = [normal(*shape)] * {"attention": 3, "bilinear": 2}.get(kind, 1)
    if dtype == "bfloat16":
        model, inputs = model.bfloat16(), [x.bfloat16() for x in inputs]
    for _ in range(ROUNDS):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast"):
            model.loss(*inputs).backward()
    assert model.cpd_clock == ROUNDS
    if recipe is DELAYED:
        assert model.layer.cpd_delayed.scale.ne(1).any()


# ---- torch.compile -------------------------------------------------------------------------------


@pytest.mark.few("", 3)
@pytest.mark.parametrize("train", ["method", "part", "layers", "call"])
@RECIPES
def test_compiled_programs_count_without_compiling_again(train, recipe):
    eager, model = net(recipe), net(recipe)
    program = {
        "method": (lambda m: lambda x: m.forward(x)),
        "part": (lambda m: m.trunk),
        "layers": (lambda m: lambda x: m.head(m.trunk(x))),
        "call": (lambda m: m),
    }[train]
    call, counter = compiled(program(model))  # fullgraph
    counts = []
    for n in range(4):
        for run in (call, program(eager)):
            run(x_of(n)).square().mean().backward()
        counts.append(counter.frame_count)
    assert len(set(counts)) == 1
    assert model.cpd_clock == eager.cpd_clock == 4
    assert same(model.state_dict(), eager.state_dict())
    grads = [[p.grad for p in m.parameters() if p.grad is not None] for m in (model, eager)]
    assert same(*grads)


def test_compiled_layers_under_eager_checkpoints():
    """Recomputation by an eager checkpoint does not begin a step, even if the checkpointed module
    is compiled."""
    model = net()
    call, _ = compiled(model.trunk)
    for n in range(ROUNDS):
        checkpoint(call, x_of(n), use_reentrant=False).square().mean().backward()
    assert model.cpd_clock == ROUNDS


# ---- schedules -----------------------------------------------------------------------------------

LATER = cpd.Recipe(sums="e6m9 chunked")
FIRST = cpd.Recipe("native", activation="e4m3fn")


@pytest.mark.parametrize("train", [called, by_method])
def test_a_schedule_of_steps_follows_the_clock(train):
    schedule = [("step", 2, None), ("step", 4, LATER)]
    model = net(FIRST.replace(schedule=schedule))
    assert "cpd_clock" in model.state_dict()
    for n in range(6):
        phase = Net()
        phase.load_state_dict(cpd.plain_state_dict(model))
        how = (FIRST, None, LATER)[n // 2]
        if how is not None:
            cpd.convert(phase, how, coverage=False)
        model.zero_grad()
        train(model, n)
        train(phase, n)
        grads = [[p.grad for p in m.parameters()] for m in (model, phase)]
        assert same(*grads), n
        with torch.no_grad():
            assert same(model.eval()(x_of(0)), phase(x_of(0)))
        model.train()


def test_a_schedule_follows_a_checkpoint():
    model = net(FIRST.replace(schedule=[("step", 2, None)]))
    for n in range(3):
        by_method(model, n)
    again = net(FIRST.replace(schedule=[("step", 2, None)]))
    assert again.head.cpd.recipe is not None
    again.load_state_dict(model.state_dict())
    assert again.head.cpd.recipe is None


@pytest.mark.parametrize("train", [called, by_method])
def test_a_schedule_of_epochs_without_set_step_warns_once(train):
    model = net(FIRST.replace(schedule=[("epoch", 1, LATER)]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, 0)
    with pytest.warns(UserWarning, match=r"schedule counts epochs.*cpd\.set_step"):
        train(model, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train(model, 2)
    told = net(FIRST.replace(schedule=[("epoch", 1, LATER)]))
    cpd.set_step(told, epoch=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in range(3):
            train(told, n)


# ---- buffers -------------------------------------------------------------------------------------


def losses_of(model):
    found = []
    for n in range(3):
        y = model(x_of(n))
        y.square().mean().backward()
        found += [y.detach(), model.head.weight.grad.clone()]
    return found


def trained(recipe):
    model = net(recipe)
    for n in range(2):
        called(model, n)
    return model


def on_meta(recipe):
    with torch.device("meta"):
        return net(recipe)


def junk(model):
    """Calls `model.to_empty` with memory that holds NaN or 77 instead of arbitrary values."""
    empty_like = torch.empty_like
    torch.empty_like = lambda x, **how: torch.full_like(x, 77 if x.dtype == torch.int64 else
                                                        float("nan"), **how)  # fmt: skip
    try:
        return model.to_empty(device="cpu")
    finally:
        torch.empty_like = empty_like


@RECIPES
@pytest.mark.parametrize("of", ["plain", "full"])
@pytest.mark.parametrize("start", ["meta", "cpu"])
@pytest.mark.parametrize("way", ["to_empty", "assign"])
def test_buffers_survive(of, start, way, recipe):
    source = trained(recipe)
    weights = Net().state_dict()
    state = weights if of == "plain" else copy.deepcopy(source.state_dict())
    model = on_meta(recipe) if start == "meta" else net(recipe)
    if way == "to_empty":
        junk(model)
    model.load_state_dict(copy.deepcopy(state), assign=way == "assign")
    right = net(recipe)
    right.load_state_dict(state)
    assert same(losses_of(model), losses_of(right))
    assert same(model.state_dict(), right.state_dict())
    assert {b.dtype for b in model.buffers()} <= {torch.int64, torch.float32}


@RECIPES
def test_to_empty_keeps_the_state_of_training(recipe):
    model = trained(recipe)
    before = copy.deepcopy(model.state_dict())
    junk(model)
    own = {name: x for name, x in model.state_dict().items() if "cpd" in name}
    assert own
    assert all(same(x, before[name]) for name, x in own.items())


def test_moves_keep_the_number():
    model = trained(DRAWING)
    model.double()
    model.to("cpu", torch.bfloat16)
    assert (model.cpd_clock, model.cpd_clock.dtype) == (2, torch.int64)
    model.cpd_clock.fill_(7)
    model.float()
    by_method(model, 0)
    assert model.cpd_clock == 8


@pytest.mark.parametrize("state_of", ["float64", "bfloat16"])
def test_checkpoints_in_another_type_are_assigned_as_float32(state_of):
    model = trained(DELAYED)
    state = {k: v.to(getattr(torch, state_of)) if v.is_floating_point() else v
             for k, v in model.state_dict().items() if "cpd" in k}  # fmt: skip
    model.load_state_dict(Net().state_dict() | state, assign=True)
    assert model.head.cpd_delayed.scale.dtype == torch.float32
    assert model.head.cpd_delayed.amax_history.dtype == torch.float32


def test_groups_that_are_none():
    for given in (True, "world", 3):
        with pytest.raises(TypeError, match=r"amax_group must be .*process group"):
            cpd.convert(Net(), DELAYED, amax_group=given)
    cpd.convert(Net(), DELAYED, amax_group=False)
    cpd.convert(Net(), DRAWING, amax_group=None)
