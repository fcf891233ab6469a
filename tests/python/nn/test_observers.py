# SPDX-License-Identifier: Apache-2.0
"""Tests observers: the counts that they record, by NumPy's definitions, and the tensors that they
measure. A model must compute the same with an observer, and be unchanged after the observer is
removed."""

from __future__ import annotations

import copy
import csv
import json
import math
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd.nn.observed_rows import COLUMNS  # noqa: E402
from tensors import converted, normal, same, wide  # noqa: E402

FP8 = cpd.Recipe("native", activation="e4m3fn", weight="mxfp8", gradient="e5m2")
MX = cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8")


def mean_square(x):
    return pytest.approx(float(x.detach().double().square().mean()), rel=1e-6)


@pytest.mark.parametrize("x", [torch.zeros(3, 4), torch.full((2, 4), math.nan)])
def test_nothing_to_lose(x):
    layer = nn.Linear(4, 2)
    with cpd.observe(layer, what_if={"mx": MX}) as watch:
        layer(x)
    row = watch.rows[0]
    assert row.sqnr is row.smallest is row.dynamic_range is row.scale_min is None
    assert row.mse == row.underflow == row.overflow == row.amax == 0
    assert (row.min is None) == bool(x.isnan().any())
    str(watch)
    with cpd.observe(layer) as watch:
        layer(torch.ones(0, 4))
    assert {row.role for row in watch} == {"weight"}


# ---- which tensors are seen ----------------------------------------------------------------------


def seen(model, run, role, layer, **options):
    """Returns the rows of an observer's table that describe one tensor of a layer."""
    with cpd.observe(model, **options) as watch:
        run(model)
    return [row for row in watch if (row.role, row.layer) == (role, layer)]


def test_each_role_is_the_tensor_of_that_name():
    model = nn.Sequential(nn.Linear(5, 4), nn.ReLU(inplace=True), nn.Linear(4, 3, bias=False))
    x, g = wide(2, 3, 5), wide(2, 3, 3)
    y = model[0](x).detach().requires_grad_()
    model[2](y.relu()).backward(g)
    with cpd.observe(model) as watch:
        model(x).backward(g)
    rows = {(row.layer, row.role): row for row in watch}
    assert [key for key in rows if key[0] == "0"] == [
        ("0", role) for role in ("activation", "weight", "output", "gradient")
    ]
    for key, tensor in {
        ("0", "activation"): x,
        ("0", "weight"): model[0].weight,
        ("0", "output"): y,
        ("0", "gradient"): y.grad,
        ("2", "gradient"): g,
        ("2", "weight"): model[2].weight,
    }.items():
        assert rows[key].count == tensor.numel()
        assert (rows[key].min, rows[key].max) == (tensor.min().item(), tensor.max().item())


class Calls(nn.Module):
    """A module that calls one layer twice, then another layer that shares its weight."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4)
        self.tied.weight = self.layer.weight

    def forward(self, x):
        return self.tied(self.layer(input=self.layer(x)))


def test_shared_layers_count_all_calls_and_weights_once():
    model = Calls()
    with cpd.observe(model) as watch:
        model(torch.ones(3, 4)).sum().backward()
    counts = {(row.layer, row.role): row.count for row in watch}
    assert counts["layer", "activation"] == counts["layer", "gradient"] == 24
    assert counts["tied", "output"] == 12
    assert counts["layer", "weight"] == counts["tied", "weight"] == 16


def test_recurrent_layers_and_attention():
    x = normal(2, 5, 8)
    lstm = nn.LSTM(8, 6, batch_first=True)
    with cpd.observe(lstm, what_if={"mx": MX}) as watch:
        lstm(x)[0].sum().backward()
    assert {row.layer for row in watch if row.role == "weight"} == {"weight_ih_l0", "weight_hh_l0"}
    assert {row.role for row in watch} == {"activation", "weight", "output", "gradient"}
    attention = nn.Sequential(nn.MultiheadAttention(8, 2, batch_first=True))
    with cpd.observe(attention) as watch:
        attention[0](x, x, x)
        assert len(watch) == 0  # the model itself was not called
    holder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with cpd.observe(holder) as watch:
        holder(x).sum().backward()
    names = {row.layer for row in watch if row.role == "weight"}
    assert names == {
        "self_attn.in_proj_weight",
        "self_attn.out_proj.weight",
        "linear1",
        "linear2",
    }
    packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3], batch_first=True)
    with cpd.observe(lstm) as watch:
        lstm(packed)[0].data.sum().backward()
    assert watch.rows[0].count == 8 * 8


def test_operands_lie_along_the_sum_of_each_product():
    x, text = wide(32, 64), "mxfp8"
    linear = nn.Linear(64, 32)
    what_if = {"it": MX}
    rows = seen(linear, lambda m: m(x).backward(wide(32, 32)), "activation", "", what_if=what_if)
    assert [row.gemm for row in rows] == ["forward", "grad_weight"]
    for row, axis in zip(rows, (1, 0), strict=True):
        assert row.mse == mean_square(cpd.cast(x, text, axis=axis) - x)
    w = linear.weight
    rows = seen(linear, lambda m: m(x), "weight", "", what_if=what_if)
    for row, axis in zip(rows, (1, 0), strict=True):
        assert row.mse == mean_square(cpd.cast(w, text, axis=axis) - w)


@pytest.mark.parametrize("transposed", [False, True])
def test_operands_of_convolutions_lie_within_their_groups(transposed):
    kind = nn.ConvTranspose2d if transposed else nn.Conv2d
    layer = kind(12, 8, 3, groups=2)
    x = wide(3, 12, 6, 6)
    how = cpd.Recipe("native", activation="bfp8 block=4", weight="bfp8 block=4")
    with cpd.observe(layer, what_if={"it": how}) as watch:
        layer(x)
    rows = {(row.role, row.gemm): row.mse for row in watch if row.recipe}

    def error(x, axis):
        return mean_square(cpd.cast(x, "bfp8 block=4", axis=axis) - x)

    assert rows["activation", "forward"] == error(x.reshape(3, 2, 6, 6, 6), 2)
    assert rows["activation", "grad_weight"] == error(x, 0)
    w = layer.weight.detach()
    of_groups = w.reshape(2, -1, *w.shape[1:])
    first, second = ("grad_input", "forward") if transposed else ("forward", "grad_input")
    assert rows["weight", first] == error(w, 1)
    assert rows["weight", second] == error(of_groups, 1)


def test_a_layers_own_recipe_is_judged_by_its_own_casts():
    layer = converted(nn.Linear(32, 16), FP8)
    x, g = normal(8, 32), normal(8, 16, seed=5)
    with cpd.observe(layer, what_if={"mx": MX}) as watch:
        layer(x).backward(g)
    mine = {row.role: row for row in watch if row.recipe == "own" and row.gemm != "grad_input"}
    assert mine["activation"].cast == "e4m3fn"
    assert mine["activation"].mse == mean_square(cpd.cast(x, "e4m3fn") - x)
    assert mine["weight"].mse == mean_square(cpd.cast(layer.weight, "mxfp8") - layer.weight)
    (gradient,) = [r for r in watch if (r.role, r.recipe) == ("gradient", "own")]
    assert gradient.mse == mean_square(cpd.cast(g, "e5m2") - g)
    assert {row.recipe for row in watch if row.role == "activation"} == {"own", "mx"}


def test_what_if_by_name_and_why_not():
    layer = nn.Linear(16, 4)
    with cpd.observe(layer, what_if=("mxfp8", "bf16")) as watch:
        layer(normal(3, 16))
    assert set(watch._what_if) == {"mxfp8", "bf16"}
    assert {row.recipe for row in watch if row.role == "weight"} == {"mxfp8", "bf16"}


# ---- converted models ----------------------------------------------------------------------------


class Blocks(nn.Module):
    """A model with attention, a recurrent layer, a convolution and linear layers."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.recurrent = nn.GRU(16, 16, batch_first=True)
        self.convolution = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = x + self.attention(x, x, x)[0]
        x = x + self.recurrent(x)[0]
        return self.head(torch.relu_(self.convolution(x.unsqueeze(2)).squeeze(2)))


def steps_of(model, count=3):
    """Trains for some steps and returns the parameters."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(count):
        optimizer.zero_grad()
        model(normal(2, 8, 16, seed=step)).square().mean().backward()
        optimizer.step()
    return [p.detach() for p in model.parameters()]


def test_converted_models():
    how = cpd.Recipe("nvfp4")
    plain, watched = Blocks(), Blocks()
    for model in (plain, watched):
        cpd.convert(model, how, rules=[("head", None)])
    with cpd.observe(watched, every=2, what_if=("te-current", "mxfp4-rht-sr")) as watch:
        assert same(steps_of(plain), steps_of(watched))
    layers = {row.layer for row in watch}
    assert {"attention", "recurrent", "convolution", "head", "recurrent.weight_ih_l0"} <= layers
    judged = {(row.layer, row.recipe) for row in watch if row.role == "weight"}
    assert ("convolution", "own") in judged
    assert ("head", "own") not in judged
    assert ("head", "te-current") in judged
    own = [row for row in watch if (row.layer, row.recipe) == ("convolution", "own")]
    assert {row.cast for row in own if row.role == "weight"} == {how.weight.text}
    assert {row.role for row in own} == {"activation", "weight", "gradient"}
    (gradient,) = [r for r in own if (r.role, r.gemm, r.step) == ("gradient", "grad_weight", 0)]
    assert gradient.cast == how._operand("grad_weight_gradient").text
    cpd.restore(watched)
    assert hooks(watched) == 0


def test_rules_of_what_if():
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    mx = cpd.Recipe("native", weight="mxfp8", rules=[("last 2", None), ("0", cpd.Recipe("bf16"))])
    with cpd.observe(model, what_if={"it": mx}) as watch:
        model(normal(2, 4))
    casts = {row.layer: row.cast for row in watch if row.role == "weight"}
    assert casts == {"0": "bf16", "1": "mxfp8", "2": "", "3": ""}


# ---- the model is as it was ----------------------------------------------------------------------


def hooks(model):
    names = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks", "_backward_pre_hooks")
    return sum(len(getattr(m, name)) for m in model.modules() for name in names)


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


def train(model, steps=4):
    torch.manual_seed(7)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        optimizer.zero_grad()
        model(normal(5, 8, seed=step)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def test_observing_changes_nothing():
    watched = network()
    stochastic = cpd.Recipe("native", activation="nvfp4 rounding=stochastic", weight="mxfp4")
    with cpd.observe(watched, every=2, what_if={"it": stochastic}) as watch:
        same_as = train(watched)
    assert same(train(network()), same_as)
    assert sorted({row.step for row in watch}) == [0, 2]


def test_between_the_steps_one_hook_stays_and_afterwards_none():
    model = network()
    watch = cpd.observe(model, every=2)
    assert hooks(model) == 1
    model(normal(2, 8)).sum().backward()
    assert hooks(model) == 1 + 2 * 2
    rows = watch.rows  # ends the step
    assert hooks(model) == 1
    model(normal(2, 8))
    assert hooks(model) == 1
    model(normal(2, 8))
    assert hooks(model) == 5
    watch.remove()
    assert hooks(model) == 0
    assert watch.rows[: len(rows)] == rows
    watch.remove()


def test_calls_in_the_other_mode_are_no_steps():
    model = network()
    with cpd.observe(model, every=1) as watch:
        model(normal(2, 8))
        model.eval()
        model(normal(2, 8))
        model.train()
        model(normal(2, 8))
    assert sorted({row.step for row in watch}) == [0, 1]
    with cpd.observe(model.eval(), every=1) as watch, torch.no_grad():
        model(normal(2, 8))
    assert {row.role for row in watch} == {"activation", "weight", "output"}


def test_copies_are_not_observed():
    model = network()
    with cpd.observe(model, every=1) as watch:
        model(normal(2, 8))  # hooks of layers, too, are copied
        for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
            other(normal(2, 8))
        model(normal(2, 8))
    assert sorted({row.step for row in watch}) == [0, 1]
    assert watch.rows[0].count == 16


def test_a_gradient_that_comes_late_is_left_out():
    model = network()
    with cpd.observe(model, every=2) as watch:
        first = model(normal(2, 8))
        model(normal(2, 8))
        first.sum().backward()
    assert "gradient" not in {row.role for row in watch}


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.reentrant = reentrant

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=self.reentrant)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_layers_count_once(reentrant):
    model = Checkpointed(reentrant)
    x, g = normal(3, 8).requires_grad_(), wide(3, 8)
    with cpd.observe(model) as watch:
        model(x).backward(g)
    counts = {(row.layer, row.role): row.count for row in watch}
    assert set(counts.values()) == {24, 64}
    assert len(counts) == 8
    assert watch.rows[-1].amax == g.abs().max().item()


class Scalars(TorchDispatchMode):
    """Counts the operations that wait for a device (reads of a scalar on the host)."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._local_scalar_dense.default:
            self.count += 1
        return function(*args, **(kwargs or {}))


def test_nothing_waits_before_the_step_is_over():
    model = network()
    how = {"mx": MX, "nv": cpd.Recipe("native", activation="nvfp4", weight="e4m3fn")}
    with cpd.observe(model, what_if=how) as watch:
        with Scalars() as scalars:
            model(normal(4, 8)).sum().backward()
        assert scalars.count == 0
    assert len(watch) > 8


def test_data_parallel():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        ddp = nn.parallel.DistributedDataParallel(network())
        with cpd.observe(ddp, every=1) as watch:
            for _ in range(2):
                ddp(normal(4, 8)).sum().backward()
        left = hooks(ddp)
        # The DDP wrapper must not be the last owner of the process group. Otherwise its end may
        # deadlock: torch 2.13 joins the group's thread while it holds the GIL, which that thread
        # needs.
        del ddp
    finally:
        dist.destroy_process_group()
    assert {row.layer for row in watch} == {"0", "3"}
    assert sum(row.role == "gradient" for row in watch) == 4
    assert left == 0


@pytest.mark.exhaustive
def test_compiled_models():
    model = network()
    with cpd.observe(model, every=1):
        step = torch.compile(lambda x: model(x), fullgraph=True, backend="eager")
        with pytest.raises(Exception, match="observers look at what runs eagerly"):
            step(normal(4, 8))
    with cpd.observe(model, every=2) as watch:
        torch._dynamo.reset()
        step = torch.compile(lambda x: model(x), backend="eager")
        for _ in range(3):
            step(normal(4, 8)).sum().backward()
    assert sorted({row.step for row in watch}) == [0, 2]
    with pytest.raises(ValueError, match="model is compiled: observers look at what runs eagerly"):
        cpd.observe(torch.compile(model))
    model[0].compile()
    with pytest.raises(ValueError, match="its module '0' is compiled"):
        cpd.observe(model)


def test_transforms_of_functions_are_refused():
    layer = nn.Linear(4, 2)
    with (
        cpd.observe(layer),
        pytest.raises(RuntimeError, match=r"observers do not look into torch.func's transforms"),
    ):
        torch.vmap(layer)(torch.ones(3, 4))


# ---- what is made of rows ------------------------------------------------------------------------


class Writer:
    def __init__(self):
        self.known = {}

    def add_scalar(self, tag, value, step):
        assert math.isfinite(value)
        assert (tag, step) not in self.known
        self.known[tag, step] = value


@pytest.fixture(scope="module")
def watched():
    model = nn.Sequential(nn.Linear(8, 8), converted(nn.Linear(8, 4), FP8))
    writer = Writer()
    with cpd.observe(model, every=1, what_if={"mx": MX}, writer=writer) as watch:
        for _ in range(2):
            model(wide(4, 8)).sum().backward()
    return watch, writer


def test_writer(watched):
    watch, writer = watched
    tags = {tag for tag, _ in writer.known}
    assert {"0/activation/amax", "0/activation/mx/sqnr", "1/weight/own/scale_max"} <= tags
    assert {"0/activation/mx grad_weight/sqnr", "1/gradient/own/overflow"} <= tags
    assert {step for _, step in writer.known} == {0, 1}
    row = watch.rows[0]
    assert writer.known["0/activation/amax", 0] == row.amax


def test_json_and_csv(watched, tmp_path):
    watch, _ = watched
    rows = json.loads(watch.to_json(tmp_path / "rows.json"))
    assert json.loads((tmp_path / "rows.json").read_text()) == rows
    assert tuple(rows[0]) == COLUMNS
    assert [row["layer"] for row in rows] == [row.layer for row in watch]
    json.loads(watch.to_json(), parse_constant=pytest.fail)  # nothing that JSON has not
    watch.to_csv(tmp_path / "rows.csv")
    with open(tmp_path / "rows.csv") as file:
        read = list(csv.DictReader(file))
    assert len(read) == len(rows)
    assert float(read[0]["amax"]) == watch.rows[0].amax


def test_table(watched):
    watch, _ = watched
    head, columns, *lines = str(watch).splitlines()
    assert head == "step 1"
    assert columns.split()[:4] == ["layer", "role", "recipe", "gemm"]
    assert len(lines) == len(watch.last())
    assert lines[0].startswith("0      activation  mx      forward")
    assert repr(watch).startswith("<cpd.observe: every 1 steps, 'mx': ")
    assert "nothing observed yet" in str(cpd.observe(nn.Linear(1, 1)))


def test_plot(watched, tmp_path):
    pytest.importorskip("matplotlib")
    watch, _ = watched
    path = tmp_path / "plot.svg"
    watch.plot(path)
    text = path.read_text()
    for word in ("activation", "weight", "gradient", "own", "mx", "mx grad_weight", "SQNR in dB"):
        assert f">{word}<" in text
    watch.plot(tmp_path / "again.svg")
    assert (tmp_path / "again.svg").read_text() == text
    with pytest.raises(ValueError, match=r"must end in .png or .svg"):
        watch.plot(tmp_path / "plot.pdf")
    with pytest.raises(ValueError, match="nothing was observed yet"):
        cpd.observe(nn.Linear(1, 1)).plot(path)


def test_wrong_arguments():
    layer = nn.Linear(2, 2)
    for error, message, arguments in (
        (TypeError, r"model must be a torch.nn.Module, got int", {"model": 3}),
        (TypeError, "every must be an int, got float", {"every": 1.5}),
        (ValueError, "every must be at least 1, got 0", {"every": 0}),
        (TypeError, "what_if must be a list or dict of recipes", {"what_if": "mxfp8"}),
        (ValueError, "what_if has a recipe twice", {"what_if": ["mxfp8", "mxfp8"]}),
        (ValueError, "what_if needs names, other than 'own'", {"what_if": {"own": MX}}),
        (TypeError, r"writer must have add_scalar\(tag, value, step\), got int", {"writer": 3}),
    ):
        with pytest.raises(error, match=message):
            cpd.observe(**{"model": layer, **arguments})
    assert hooks(layer) == 0


def test_a_converted_models_coverage_comes_first():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    cpd.convert(model, "mxfp8", [("0", None)], coverage=0)
    with cpd.observe(model, every=1) as watch:
        model(torch.ones(2, 4)).sum().backward()
        lines = str(watch).splitlines()
    assert lines[0].startswith("coverage: 60.0 % emulated")
    assert lines[1].startswith("  not emulated: 20.0 %  aten.")


def test_a_rule_exempts_a_layer():
    """`what_if` names recipes to try. If a rule of such a recipe leaves a layer to torch, the rows
    of the observer's table on this layer name the rule and state no error of a cast."""
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    rules = cpd.Recipe("native", activation="e4m3fn", rules=[("last 1", None)])
    watch = cpd.observe(model, every=1, what_if={"ruled": rules})
    model(torch.randn(8, 16)).sum().backward()
    rows = watch.rows
    watch.remove()
    exempt = [row for row in rows if row.exempt]
    assert {(row.layer, row.role) for row in exempt} == {
        ("2", "activation"),
        ("2", "weight"),
        ("2", "gradient"),
    }
    for row in exempt:
        assert (row.recipe, row.cast, row.sqnr) == ("ruled", "", None)
        assert row.why == "left in torch by the rule 'last 1'"
        assert row.amax > 0
    judged = [row for row in rows if row.recipe and not row.exempt]
    assert {row.layer for row in judged} == {"0"}
    assert "left in torch by the rule 'last 1'" in str(watch)


def test_the_plot_joins_no_layers_and_hides_no_recipe(tmp_path, monkeypatch):
    figure = pytest.importorskip("matplotlib.figure")
    drawn = []
    save = figure.Figure.savefig
    monkeypatch.setattr(
        figure.Figure, "savefig", lambda own, *a, **k: (drawn.append(own), save(own, *a, **k))
    )
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    alike = {
        name: cpd.Recipe("native", activation="e4m3fn", rules=[("last 1", None)]) for name in "ab"
    }
    watch = cpd.observe(model, every=1, what_if=alike)
    model(torch.randn(8, 16)).sum().backward()
    watch.plot(tmp_path / "plot.png")
    watch.remove()
    (made,) = drawn
    assert [text.get_text() for text in made.axes[0].get_yticklabels()] == ["0", "2"]
    assert not any(axes.lines for axes in made.axes)
    drawn_marks = [one.get_offsets() for one in made.axes[1].collections]
    marks = [tuple(each[0]) for each in drawn_marks if len(each)]
    of_layer = [mark for mark in marks if -0.5 < mark[1] < 0.5 and mark[0] > 1]
    assert len(of_layer) == 2
    assert of_layer[0][0] == of_layer[1][0]  # both rows have the same SQNR
    assert of_layer[0][1] != of_layer[1][1]
    exempt = [mark for mark in marks if 0.5 < mark[1] < 1.5]
    assert [mark[0] for mark in exempt] == [0.03, 0.03]
