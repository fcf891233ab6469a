# SPDX-License-Identifier: Apache-2.0
"""Tests converted models with torch's other tools: compilation, checkpoints, copies, saving,
export, function transforms, hooks, parametrizations, optimizers, loss scalers and several ranks."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch._inductor import config as inductor  # noqa: E402
from torch.func import functional_call, grad, stack_module_state, vmap  # noqa: E402
from torch.nn.utils import parametrizations, parametrize  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

import spawn  # noqa: E402
from convert_ranks import CASES  # noqa: E402
from tensors import NARROW, SOME, compiled, leaves_of, normal, same  # noqa: E402

DRAWING = cpd.Recipe(
    "native",
    activation="e4m3fn rounding=stochastic random_bits=8",
    weight="e4m3fn",
    gradient="e5m2 rounding=stochastic random_bits=8",
)
SUMS = cpd.Recipe(sums="e6m9 chunked", weight="(4,3)")
HOW = pytest.mark.parametrize("how", [SUMS, DRAWING], ids=["sums", "drawing"])


class Net(nn.Module):
    def __init__(self, reentrant=None):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv1d(3, 4, 3, padding=1)
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)
        self.reentrant = reentrant

    def block(self, x):
        return x + self.down(F.relu(self.up(x)))

    def forward(self, x):
        x = self.conv(x).mT
        if self.reentrant is None:
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


X = normal(2, 3, 5)


def converted(how=DRAWING, **options):
    model = Net(**options)
    cpd.convert(model, how)
    return model


def step_of(model, x=X):
    """Returns the output and all gradients of a step."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.square().sum().backward()
    return [y, x.grad, *(p.grad for p in model.parameters())]


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()


# ---- torch.compile -------------------------------------------------------------------------------


def test_compiled_training():
    """torch.compile makes one graph of a converted model for all steps, and one more graph for each
    further phase of a schedule. The bits are the same as in eager mode."""
    later = cpd.Recipe(sums="e6m9 chunked", activation="(4,3)")
    how = DRAWING.replace(schedule=[("step", 2, None), ("step", 4, later)])
    eager, model = converted(how), converted(how)
    call, counter = compiled(model)
    optimizers = [torch.optim.SGD(m.parameters(), 0.01) for m in (eager, model)]
    counts = []
    for step in range(6):
        for m in (eager, model):
            cpd.set_step(m, step=step)
        train(eager, optimizers[0], 1)
        train(call, optimizers[1], 1)
        assert same(list(eager.state_dict().values()), list(model.state_dict().values()))
        counts.append(counter.frame_count)
    first = counts[0]  # the clock's hook is a frame of its own
    assert counts == [first, first, first + 1, first + 1, first + 2, first + 2]


@pytest.mark.few("", 2)
@pytest.mark.parametrize(
    "how",
    [NARROW, cpd.Recipe("te-delayed"), DRAWING.replace(sums=SOME, grad_weight="e6m9 chunked")],
    ids=["sums", "delayed", "drawn sums"],
)
def test_other_recipes_compiled(how):
    model, eager = converted(how), converted(how)
    call, counter = compiled(model)
    for _ in range(3):
        wanted, x = step_of(eager), X.clone().requires_grad_()
        model.zero_grad()
        y = call(x)
        y.square().sum().backward()
        assert same([y, x.grad, *(p.grad for p in model.parameters())], wanted)
    assert counter.frame_count <= 2  # a frame of the model and a frame of its clock


@pytest.mark.parametrize("rows", [pytest.param(1, marks=pytest.mark.exhaustive), 33])
def test_compiled_by_inductor(rows):
    """A converted layer compiled by inductor has the bits of eager mode. The caches of inductor are
    disabled, so that no program of another test is reused."""
    eager, model = nn.Linear(4, 4), nn.Linear(4, 4)
    model.load_state_dict(eager.state_dict())
    for layer in (eager, model):
        cpd.convert(layer, DRAWING)
    with inductor.patch(force_disable_caches=True):
        call, _ = compiled(model, "inductor")
        for _ in range(2):
            x, g = leaves_of((rows, 4), (rows, 4))
            got, wanted = call(x), eager(x)
            assert same(got, wanted)
            leaves = x, model.weight, model.bias
            gradients = torch.autograd.grad(got, leaves, g.detach())
            leaves = x, eager.weight, eager.bias
            assert same(gradients, torch.autograd.grad(wanted, leaves, g.detach()))


@pytest.mark.exhaustive
def test_checkpointing_compiled():
    plain, model = converted(), converted(reentrant=False)
    call, _ = compiled(model)
    for _ in range(2):
        wanted = step_of(plain)
        x = X.clone().requires_grad_()
        model.zero_grad()
        y = call(x)
        y.square().sum().backward()
        assert same([y, x.grad, *(p.grad for p in model.parameters())], wanted)


def test_a_compiled_model_may_be_converted():
    model = Net()
    call = torch.compile(model, fullgraph=True, backend="aot_eager")
    call(X)
    cpd.convert(call, SUMS)
    assert same(call(X), converted(SUMS)(X))
    model.up.compile(backend="aot_eager")
    assert same(model(X), converted(SUMS)(X))
    cpd.restore(call)
    assert same(model(X), Net()(X))


# ---- copies and checkpoints ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", [SUMS, DRAWING, cpd.Recipe("te-delayed")], ids=["sums", "drawing", "delayed"]
)
def test_copies(how):
    model = converted(how)
    step_of(model)
    saved = io.BytesIO()
    torch.save(model, saved)
    saved.seek(0)
    twins = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        pickle.loads(pickle.dumps(model, protocol=0)),
        torch.load(saved, weights_only=False),
        torch.optim.swa_utils.AveragedModel(model).module,
    ]
    wanted = [step_of(model), step_of(model)]
    for twin in twins:
        assert type(twin.up) is type(model.up)
        assert same([step_of(twin), step_of(twin)], wanted)
    layer = copy.deepcopy(model.up)
    assert same(layer(normal(2, 4)), model.up(normal(2, 4)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_two_calls_before_one_backward_pass_repeat_their_own_bits(reentrant):
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        model = nn.Linear(4, 4)
        cpd.convert(model, DRAWING, coverage=False)
        x = normal(6, 4).requires_grad_()

        def call(x, model=model, checkpointed=checkpointed):
            return checkpoint(model, x, use_reentrant=reentrant) if checkpointed else model(x)

        (call(x).square().sum() + 3 * call(x + 1).square().sum()).backward()
        results.append([x.grad, model.weight.grad, model.bias.grad])
    assert same(*results)


@pytest.mark.parametrize(
    "export",
    [
        lambda model: torch.jit.trace(model, X),
        torch.jit.script,
        lambda model: torch.onnx.export(model, (X,), "model.onnx", dynamo=False),
    ],
    ids=["trace", "script", "onnx"],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_formats_that_cannot_hold_emulated_layers(export):
    with pytest.raises(RuntimeError, match=r"cpd\.restore"):
        export(converted())


def test_meta_models():
    source = converted()
    step_of(source)
    with torch.device("meta"):
        models = Net(), Net(), Net()
    for model in models[:2]:
        cpd.convert(model, DRAWING)
        assert model(X.to("meta")).device.type == "meta"
    for model in models:
        model.to_empty(device="cpu")
    cpd.convert(models[2], DRAWING)
    models[0].load_state_dict(source.state_dict())
    models[1].load_state_dict(source.state_dict(), strict=False)
    cpd.set_step(models[1], step=1)
    models[2].load_state_dict(source.state_dict())
    wanted = step_of(source)
    for model in models:
        assert same(step_of(model), wanted)


@pytest.mark.parametrize("mode", [True, False], ids=["train", "eval"])
def test_export(mode):
    model = converted().train(mode)
    exported = torch.export.export(copy.deepcopy(model), (X,), strict=not mode).module()
    for _ in range(2):
        assert same(exported(X), model(X))


# ---- hooks, parametrizations, tied weights -------------------------------------------------------


def test_hooks_stay():
    model, seen = Net(), []
    model.up.register_forward_pre_hook(lambda *_: seen.append("before"))
    model.up.register_forward_hook(lambda *_: seen.append("after"))
    model.up.register_full_backward_hook(lambda *_: seen.append("backward"))
    model.up.weight.register_hook(lambda _: seen.append("weight"))
    for change in (lambda m: cpd.convert(m, SUMS), cpd.restore):
        change(model)
        step_of(model)
        assert sorted(seen) == ["after", "backward", "before", "weight"]
        seen.clear()


def test_a_forward_kept_and_replaced():
    """accelerate stores `layer.forward` and replaces it by its own function. The stored method runs
    CPD's forward pass while the layer is converted, and torch's after `restore`."""
    layer, x = nn.Linear(4, 4), normal(5, 4)
    cpd.convert(layer, SUMS)
    kept = layer.forward
    layer.forward = lambda x: 2 * kept(x)
    wanted = cpd.functional.linear(x, layer.weight, layer.bias, recipe=SUMS)
    assert same(layer(x), 2 * wanted)
    cpd.restore(layer)
    assert same(layer(x), 2 * F.linear(x, layer.weight, layer.bias))


def test_parametrized_before():
    model = Net()
    parametrizations.weight_norm(model.up)
    report = cpd.convert(model, SUMS)
    assert next(row for row in report if row.name == "up").what == "products"
    assert "makes a weight" in report.not_emulated[-1].why_not
    x = normal(5, 4)
    wanted = cpd.functional.linear(x, model.up.weight, model.up.bias, recipe=SUMS)
    assert same(model.up(x), wanted)
    assert same(copy.deepcopy(model).up(x), wanted)
    assert parametrize.is_parametrized(model.up)
    with pytest.raises(RuntimeError, match="Serialization of parametrized modules"):
        pickle.dumps(model)
    parametrize.remove_parametrizations(model.up, "weight")
    assert type(model.up).__name__ == "EmulatedLinear"
    assert same(model.up(x), wanted)
    cpd.restore(model)
    assert type(model.up) is nn.Linear


def test_parametrized_after():
    model = converted(SUMS)
    parametrizations.weight_norm(model.up)
    x = normal(5, 4)
    wanted = cpd.functional.linear(x, model.up.weight, model.up.bias, recipe=SUMS)
    assert same(model.up(x), wanted)
    cpd.restore(model)
    assert parametrize.is_parametrized(model.up)
    assert same(model.up(x), F.linear(x, model.up.weight, model.up.bias))
    parametrize.remove_parametrizations(model.up, "weight")
    assert type(model.up) is nn.Linear


def test_tied_weights_and_layers_used_twice():
    torch.manual_seed(0)
    table, layer = nn.Embedding(7, 4), nn.Linear(4, 4)
    model = nn.Sequential(table, layer, layer, nn.Linear(4, 7, bias=False))
    model[3].weight = table.weight
    cpd.convert(model, FP8_AND_TABLE)
    assert model[3].weight is model[0].weight
    assert model[1] is model[2]
    model(torch.tensor([1, 2, 2])).square().sum().backward()
    g = table.weight.grad
    assert g.shape == (7, 4)
    assert g[3].any()


FP8_AND_TABLE = cpd.Recipe("native", weight="e4m3fn", gradient="e5m2", embedding="(4,3)")


def test_sparse_gradients():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(7, 4, sparse=True), nn.Linear(4, 2))
    dense = copy.deepcopy(model)
    dense[0].sparse = False
    for one in (model, dense):
        cpd.convert(one, FP8_AND_TABLE)
        one(torch.tensor([1, 2, 2])).square().sum().backward()
    assert model[0].weight.grad.is_sparse
    assert same(model[0].weight.grad.to_dense(), dense[0].weight.grad)
    torch.optim.SparseAdam([model[0].weight]).step()


# ---- transforms of functions ---------------------------------------------------------------------


def loss(parameters, model, x):
    return functional_call(model, parameters, (x,)).square().sum()


@HOW
def test_functional_calls(how):
    """In a functional call, the caller passes the buffer with the step counter (the clock), and
    this buffer advances. The model's own clock does not advance."""
    model = converted(how)
    parameters = dict(model.named_parameters())
    buffers = {name: torch.full_like(b, 5) for name, b in model.named_buffers()}
    got = grad(loss)({**parameters}, model, X) if how is SUMS else None
    with_buffers = grad(lambda p: loss({**p, **buffers}, model, X))(parameters)
    if how is DRAWING:
        assert model.cpd_clock == 0
        assert buffers["cpd_clock"] == 5
        cpd.set_step(model, step=4)
    step_of(model)
    wanted = {name: p.grad for name, p in model.named_parameters()}
    assert same(with_buffers, wanted)
    if got is not None:
        assert same(got, wanted)


def test_vmap():
    model = converted(SUMS)
    parameters = dict(model.named_parameters())
    each = vmap(grad(loss), in_dims=(None, None, 0))(parameters, model, X)
    for n, x in enumerate(X):
        assert same({k: v[n] for k, v in each.items()}, grad(loss)(parameters, model, x))
    drawing = converted()
    parameters = dict(drawing.named_parameters())
    with pytest.raises(RuntimeError, match="randomness='same'"):
        vmap(grad(loss), in_dims=(None, None, 0))(parameters, drawing, X)
    each = vmap(grad(loss), in_dims=(None, None, 0), randomness="same")(parameters, drawing, X)
    assert same({k: v[1] for k, v in each.items()}, grad(loss)(parameters, drawing, X[1]))


@HOW
def test_ensembles(how):
    models = [converted(how) for _ in range(3)]
    for n, model in enumerate(models):
        nn.init.normal_(model.up.weight, generator=torch.Generator().manual_seed(n))
    parameters, buffers = stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def call(parameters, buffers):
        return functional_call(base, (parameters, buffers), (X,))

    got = vmap(call, randomness="same")(parameters, buffers)
    assert same(list(got), [model.eval()(X) for model in models])  # in none a step of the clock


def test_the_bias_under_transforms_with_native_sums():
    layer = nn.Linear(4, 3)
    cpd.convert(layer, cpd.Recipe("native", weight="e4m3fn"))
    parameters, x = dict(layer.named_parameters()), normal(2, 5, 4)
    each = vmap(grad(loss), in_dims=(None, None, 0))(parameters, layer, x)
    for n in range(2):
        alone = grad(loss)(parameters, layer, x[n])
        assert torch.allclose(each["bias"][n], alone["bias"])
        assert torch.allclose(each["weight"][n], alone["weight"])
    y = layer(x[0]).square()
    (first,) = torch.autograd.grad(y.sum(), layer.bias, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), layer.bias)  # 2 for each row
    assert torch.allclose(second, torch.full((3,), 10.0))


@pytest.mark.parametrize("sums", ["native", "fp32"])
def test_double_backward(sums):
    """Second derivatives of a converted linear layer equal second derivatives of torch's linear
    function with the cast weight, up to the order of sums."""
    layer = nn.Linear(4, 4)
    weight = cpd.cast(layer.weight.detach(), "e4m3fn").requires_grad_()
    plain = lambda x: F.linear(x, weight, layer.bias.detach())  # noqa: E731
    cpd.convert(layer, cpd.Recipe(sums=sums, weight="e4m3fn"))
    found = []
    for call, w in ((layer, layer.weight), (plain, weight)):
        x = normal(2, 4).requires_grad_()
        (first,) = torch.autograd.grad(call(x).square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.square().sum(), (x, w)))
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-5) for a, b in zip(*found, strict=True))


# ---- training ------------------------------------------------------------------------------------


def test_scaler_clipping_and_accumulation():
    model = converted()
    plain = copy.deepcopy(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    before = copy.deepcopy(list(model.parameters()))
    for _ in range(2):
        scaler.scale(model(X).square().sum()).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    for _ in range(2):
        (plain(X).square().sum() * 2.0**8).backward()
    unscaled = torch.stack([p.grad.mul(2.0**-8).norm() for p in plain.parameters()]).norm()
    assert torch.allclose(norm, unscaled)
    assert not any(same(p, q) for p, q in zip(model.parameters(), before, strict=True))
    assert model.cpd_clock == 2


def test_unused_parameters_and_frozen_ones():
    model = converted()
    model.down.requires_grad_(False)
    model.extra = nn.Linear(2, 2)
    wanted = converted()
    got, expected = step_of(model), step_of(wanted)
    assert same(got[:2], expected[:2])
    assert model.down.weight.grad is None
    assert same(model.up.weight.grad, wanted.up.weight.grad)


@pytest.mark.parametrize("how", [DRAWING, cpd.Recipe(sums="e5m6", gradient="e5m2")], ids=str)
def test_learning(how):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    cpd.convert(model, how)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    x = normal(64, 4)
    y = x[:, :1] * x[:, 1:2]
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        error = (model(x) - y).square().mean()
        error.backward()
        optimizer.step()
        losses.append(error.item())
    assert losses[-1] < 0.3 * losses[0]


# ---- ranks ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def told():
    """Runs all cases of convert_ranks.py on two ranks. Returns the errors of each case, by rank."""
    ranks = spawn.spawn_ranks("gloo", 2, "convert_ranks:run_all")
    return [rank.result for rank in ranks]


@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_ranks(told, case):
    for rank, result in enumerate(told):
        assert not result[case], f"rank {rank}: {result[case]}"
