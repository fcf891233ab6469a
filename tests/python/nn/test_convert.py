# SPDX-License-Identifier: Apache-2.0
"""Tests cpd.convert: every converted layer equals the same step written by hand. Also tests rules,
schedules, reports and restore. test_convert_torch.py tests converted models with torch's other
tools."""

from __future__ import annotations

import copy
import json

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from tensors import normal, same  # noqa: E402

FP8 = cpd.Recipe("native", activation="e4m3fn", weight="e4m3fn", gradient="e5m2")
MX = cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8")
DRAWING = cpd.Recipe(
    "native",
    activation="e4m3fn rounding=stochastic random_bits=8",
    weight="e4m3fn",
    gradient="e5m2 rounding=stochastic random_bits=8",
)


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 12), nn.ReLU(), nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 4))


def step_of(model, x):
    """Returns the output and all gradients of a step. The gradient of the output is fixed."""
    x = x.clone().requires_grad_()
    model.zero_grad()
    y = model(x)
    y.backward(normal(*y.shape, seed=9))
    return [y, x.grad, *(p.grad for p in model.parameters())]


# ---- by hand -------------------------------------------------------------------------------------


CONVOLUTIONS = [
    (nn.Conv1d, (4, 6, 3), {"padding": 1}),
    (nn.Conv2d, (4, 6, 3), {"padding": "same", "padding_mode": "reflect"}),
    (nn.Conv2d, (4, 6, (3, 1)), {"stride": 2, "groups": 2, "bias": False}),
    (nn.Conv3d, (4, 6, 2), {"dilation": 2}),
    (nn.ConvTranspose1d, (4, 6, 3), {"stride": 2, "output_padding": 1}),
    (nn.ConvTranspose2d, (4, 6, 3), {"stride": 2, "padding": 1, "groups": 2}),
    (nn.ConvTranspose3d, (4, 6, 2), {"dilation": 2}),
]


@pytest.mark.parametrize(("kind", "shape", "options"), CONVOLUTIONS)
def test_convolutions_with_native_sums(kind, shape, options):
    torch.manual_seed(0)
    layer = kind(*shape, **options)
    plain = copy.deepcopy(layer)
    cpd.convert(layer, FP8)
    rank = layer.weight.dim() - 2
    x = normal(2, 4, *(7, 6, 5)[:rank])
    y, of_x, of_w, *of_b = step_of(layer, x)
    with torch.no_grad():
        plain.weight.copy_(cpd.cast(plain.weight, "e4m3fn"))
    qx = cpd.cast(x, "e4m3fn").requires_grad_()
    wanted = plain(qx)
    g = normal(*wanted.shape, seed=9)
    wanted.backward(cpd.cast(g, "e5m2"))
    assert same(y, wanted)
    assert same(of_x, qx.grad)
    assert same(of_w, plain.weight.grad)
    if options.get("bias", True):
        assert torch.allclose(of_b[0], g.sum([d for d in range(g.dim()) if d != 1]))


def test_a_transposed_convolution_of_a_given_size():
    layer = nn.ConvTranspose2d(2, 3, 3, stride=2)
    cpd.convert(layer, FP8)
    plain = copy.deepcopy(layer)
    cpd.restore(plain)
    x = cpd.cast(normal(1, 2, 4, 4), "e4m3fn")
    with torch.no_grad():
        plain.weight.copy_(cpd.cast(plain.weight, "e4m3fn"))
    assert same(layer(x, output_size=[10, 10]), plain(x, output_size=[10, 10]))


# ---- what stays ----------------------------------------------------------------------------------


def test_restore_gives_the_model_back():
    model, plain, x = mlp(), mlp(), normal(5, 8)
    before = [list(vars(m)) for m in model.modules()]
    hooks = [dict(m._forward_pre_hooks) for m in model.modules()]
    parameters = list(model.parameters())
    for recipe in (FP8, DRAWING, "te-delayed"):
        cpd.convert(model, recipe)
        assert not same(model(x), plain(x))
        cpd.restore(model)
        assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
        assert same(step_of(model, x), step_of(plain, x))
        assert [dict(m._forward_pre_hooks) for m in model.modules()] == hooks
    assert [list(vars(m)) for m in model.modules()] == before
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    cpd.restore(model)  # an unconverted model may be restored


def test_the_model_may_be_one_layer():
    layer = nn.Linear(8, 4)
    report = cpd.convert(layer, DRAWING)
    assert [row.name for row in report] == [""]
    assert isinstance(layer, nn.Linear)
    assert list(layer.state_dict()) == ["weight", "bias", "cpd_clock"]
    assert not same(layer(normal(5, 8)), layer(normal(5, 8)))
    cpd.restore(layer)
    assert type(layer) is nn.Linear
    assert list(layer.state_dict()) == ["weight", "bias"]


def test_converting_again_replaces_it():
    model, x = mlp(), normal(5, 8)
    cpd.convert(model[2], DRAWING)
    cpd.convert(model, DRAWING)
    assert [n for n in model.state_dict() if "clock" in n] == ["cpd_clock"]
    model(x)
    cpd.convert(model, DRAWING)
    assert model.cpd_clock == 1  # the clock goes on
    model(x)
    assert model.cpd_clock == 2
    cpd.convert(model, FP8)
    assert "cpd_clock" not in model.state_dict()
    fresh = mlp()
    cpd.convert(fresh, FP8)
    assert same(model(x), fresh(x))


def test_off_is_torch_itself():
    model, plain, x = mlp(), mlp(), normal(5, 8)
    report = cpd.convert(model, FP8)
    report.off()
    assert same(step_of(model, x), step_of(plain, x))
    report.on()
    assert not same(model(x), plain(x))


def test_containers_keep_their_length():
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4)))
    cpd.convert(model, DRAWING)
    assert len(model) == 2
    assert len(list(model.children())) == 2
    model(normal(2, 4))


# ---- rules ---------------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self, n=4):
        super().__init__()
        self.up, self.down = nn.Linear(n, 2 * n), nn.Linear(2 * n, n)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


class Model(nn.Module):
    def __init__(self, blocks=3):
        super().__init__()
        self.stem = nn.Conv1d(4, 4, 1)
        self.blocks = nn.ModuleList(Block() for _ in range(blocks))
        self.lm_head = nn.Linear(4, 7)

    def forward(self, x):
        x = self.stem(x.mT).mT
        for block in self.blocks:
            x = block(x)
        return self.lm_head(x)


ALL = ["stem", *(f"blocks.{n}.{part}" for n in range(3) for part in ("up", "down")), "lm_head"]


@pytest.mark.parametrize(
    ("selector", "left"),
    [
        ("lm_head", ["lm_head"]),
        ("*.lm_head", ["lm_head"]),
        ("blocks.1", ["blocks.1.up", "blocks.1.down"]),
        ("*.up", [name for name in ALL if name.endswith("up")]),
        ("*", ALL),
        ("type Conv1d", ["stem"]),
        ("type _ConvNd", ["stem"]),
        ("type Block", ALL[1:-1]),
        (nn.Linear, ALL[1:]),
        ("first 2", ALL[:2]),
        ("last 3", ALL[-3:]),
        ("last 99", ALL),
        ("first 1 block", ["blocks.0.up", "blocks.0.down"]),
        ("last 2 blocks", ALL[3:-1]),
        ("last 15%", ALL[-2:]),  # 1.2 of 8, rounded up
        ("first 100 %", ALL),
        ("first 34% blocks", ALL[1:5]),
    ],
)
def test_selectors(selector, left):
    model = Model()
    report = cpd.convert(model, FP8, [(selector, None)])
    assert [row.name for row in report.emulated] == [name for name in ALL if name not in left]
    reasons = {row.name: row.why_not for row in report.not_emulated}
    assert list(reasons) == left
    assert all("left in torch by the rule" in reason for reason in reasons.values())
    model(normal(2, 3, 4))


def test_the_first_rule_that_matches_decides():
    model = Model()
    how = cpd.Recipe("native", activation="e5m2", rules=[("blocks.0", None), ("blocks.*", FP8)])
    report = cpd.convert(
        model, how, [("blocks.0.up", cpd.Recipe(sums="e6m9 chunked")), ("last 1", "mxfp8")]
    )
    said = {row.name: row.how for row in report.emulated}
    assert list(said) == [name for name in ALL if name != "blocks.0.down"]
    assert "e6m9 chunked" in said["blocks.0.up"]
    assert "mxfp8" in said["lm_head"]
    assert said["blocks.2.up"] == str(FP8)
    assert said["stem"] == "native activation=e5m2"
    # A layer's number is its index in the model, whichever recipe a rule gives to the layer.
    assert {row.name: row.layer for row in report} == {name: n for n, name in enumerate(ALL)}


def test_a_rule_that_matches_nothing():
    model = Model()
    with pytest.raises(ValueError, match=r"no module of the model matches the rule 'lmhead'"):
        cpd.convert(model, FP8, [("stem", None), ("lmhead", None)])
    assert type(model.stem) is nn.Conv1d  # the model is as it was
    report = cpd.convert(model, cpd.Recipe("native", rules=[("lmhead", None)]))
    assert any("no module matches the recipe's rule 'lmhead'" in note for note in report.notes)


@pytest.mark.parametrize(
    ("rules", "error", "message"),
    [
        (
            [("a", None, 1)],
            TypeError,
            r"rules must be a list of pairs \(selector, recipe or None\)",
        ),
        ([(3, None)], TypeError, "a rule's selector is a pattern"),
        ([(int, None)], TypeError, "a rule's selector is a pattern"),
        ([("stem", "no such")], ValueError, "no such"),
    ],
)
def test_wrong_rules(rules, error, message):
    model = Model()
    with pytest.raises(error, match=message):
        cpd.convert(model, FP8, rules)
    assert type(model.stem) is nn.Conv1d


def test_rules_of_classes_within_recipes():
    how = cpd.Recipe("native", weight="(4,3)", rules=[(nn.Linear, None)])
    assert all(
        row.why_not.startswith("left in torch")
        for row in cpd.convert(mlp(), how)
        if row.kind == "Linear"
    )
    with pytest.raises(TypeError, match="rules must be pairs"):
        cpd.convert(mlp(), FP8, "last 1")


def test_a_recipe_that_rounds_nothing_says_so():
    note = "the recipe rounds nothing in layers: they compute as torch does"
    for rules in ((), [("*", None)]):
        assert note in cpd.convert(mlp(), "aps-e4m3", rules).notes
    for rules in ([("last 1", FP8)], lambda name, module: FP8):
        assert note not in cpd.convert(mlp(), "aps-e4m3", rules).notes
    by_its_own_rule = cpd.Recipe("native", rules=[("last 1", FP8)])
    assert cpd.convert(mlp(), by_its_own_rule).notes == ()


def test_wrong_models():
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, got function"):
        cpd.convert(mlp, FP8)
    with pytest.raises(ValueError, match="no converted layer"):
        cpd.set_step(mlp(), step=1)
    model = mlp()
    cpd.convert(model, FP8)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        cpd.set_step(model, step=-1)
    with pytest.raises(TypeError, match=r"set_step\(\) takes step= in place of calls="):
        cpd.set_step(model, calls=1)


# ---- schedules -----------------------------------------------------------------------------------


@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_a_schedule_follows_set_step(unit):
    later = cpd.Recipe(sums="e6m9 chunked")
    schedule = [(unit, 2, None), (unit, 4, later)]
    model, x = mlp(), normal(5, 8)
    cpd.convert(model, cpd.Recipe("native", activation="e4m3fn", schedule=schedule))
    phases = []
    for recipe in (cpd.Recipe("native", activation="e4m3fn"), None, later):
        phases.append(mlp())
        if recipe is not None:
            cpd.convert(phases[-1], recipe)
    assert same(model(x), phases[0](x))
    for number, phase in ((0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (9, 2), (1, 0)):
        cpd.set_step(model, **{unit: number})
        assert same(step_of(model, x), step_of(phases[phase], x))
    cpd.set_step(model)  # without arguments, nothing changes
    assert same(model(x), phases[0 if unit == "epoch" else 1](x))  # step 2 begins


# ---- the report ----------------------------------------------------------------------------------


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


class OwnRepr(nn.Linear):
    def extra_repr(self):
        return "mine"


class Coded(nn.Module):
    def forward(self, x):
        return x @ x.mT


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.own = OwnForward(4, 4)
        self.mine = OwnRepr(4, 4)
        self.replaced = nn.Linear(4, 4)
        self.replaced.forward = lambda x: x
        self.cast = cpd.quantizer("e4m3")
        self.prelu = nn.PReLU()
        self.coded = Coded()
        self.gelu, self.relu, self.flatten = nn.GELU(), nn.ReLU(), nn.Flatten()
        self.norm = nn.LayerNorm(4)
        self.position = nn.Parameter(torch.zeros(4))
        self.again = self.mine


def test_the_report_names_what_is_not_emulated_and_why():
    model = Odd()
    report = cpd.convert(model, FP8)
    said = {row.name: (row.how, row.why_not) for row in report}
    assert "uses its parameters position" in said[""][1]
    assert "has its own forward" in said["own"][1]
    assert said["mine"] == (str(FP8), "")
    assert "replaced on the object" in said["replaced"][1]
    assert said["cast"] == ("its own formats: forward='e4m3'", "")
    assert "no emulation of this class" in said["prelu"][1]
    assert "no emulation of this class" in said["gelu"][1]
    assert "its own code is not seen" in said["coded"][1]
    assert "no format" in said["norm"][1]
    assert set(said) == {
        *("", "own", "mine", "replaced", "cast", "prelu", "gelu", "norm"),
        "coded",
    }
    assert any("products that the forward of Odd computes itself" in note for note in report.notes)
    assert len(report) == 9
    assert report[0] is report.rows[0]
    assert repr(report) == f"<cpd.Report: {FP8.text}: 2 emulated, 7 not>"


def test_the_report_names_what_is_not_the_models():
    how = cpd.Recipe(
        "native", residual="bf16", optimizer="bf16", loss_scale="dynamic", reduce="e4m3"
    )
    report = cpd.convert(mlp(), how)
    starts = [note.partition(":")[0] for note in report.notes[-3:]]
    assert starts == ["residual", "optimizer='bf16', loss_scale='dynamic'", "reduce='e4m3'"]
    assert report._elsewhere == report.notes[-2:]


def test_a_recipe_of_the_wire_alone_says_so_first():
    model = mlp()
    classes = [type(module) for module in model.modules()]
    report = cpd.convert(model, "aps-e3m0")
    assert [type(module) for module in model.modules()] == classes
    assert not report.emulated
    first = str(report).splitlines()[0]
    assert first.startswith("not convert's: reduce='e3m0 aps average': the exchange of gradients")
    assert repr(report).startswith("<cpd.Report: reduce='e3m0 aps average': the exchange")
    assert all(
        row.why_not == "the recipe rounds nothing in it: torch computes it"
        for row in report
        if row.kind == "Linear"
    )


def test_the_report_in_print_and_as_json():
    model = Model(12)
    report = cpd.convert(model, FP8, [("lm_head", None)])
    lines = str(report).splitlines()
    assert lines[0] == f"emulated (recipe {FP8.text}): 25"
    assert lines[2].split()[:3] == ["Linear", "×", "24"]
    assert "blocks.0.up … blocks.11.down" in lines[2]
    assert "not emulated: 1" in lines
    assert len(lines) == 6
    read = json.loads(report.to_json())
    assert read["rows"][0] == {
        "name": "stem",
        "kind": "Conv1d",
        "what": "products",
        "how": str(FP8),
        "why_not": "",
        "layer": 0,
    }
    assert [row["name"] for row in read["rows"]] == [row.name for row in report]
    assert read["notes"] == list(report.notes)


def test_what_torch_reads_behind_ones_back():
    attention = nn.MultiheadAttention(8, 2)
    report = cpd.convert(attention, FP8)
    assert [(row.name, row.what, row.why_not) for row in report] == [
        ("", "attention", ""),
        ("out_proj", "", ""),
    ]
    assert report[1].how == "within the model"
    report = cpd.convert(attention, FP8, [(nn.MultiheadAttention, None)])
    assert "never calls it" in {row.name: row.why_not for row in report}["out_proj"]
    assert type(attention.out_proj) is nn.modules.linear.NonDynamicallyQuantizableLinear
    if hasattr(nn, "LinearCrossEntropyLoss"):
        (row,) = (r for r in cpd.convert(nn.LinearCrossEntropyLoss(4, 3), FP8) if r.name)
        assert "never calls it" in row.why_not
