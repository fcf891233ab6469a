# SPDX-License-Identifier: Apache-2.0
"""Tests functions of `cpd.compat`, which have other libraries' names: signatures, results (compared
with exact arithmetic), and inputs for which the original libraries gave wrong results."""

from __future__ import annotations

import copy
import inspect
import io
import pickle
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import cpd
from rationals import Fraction

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

import scaled_cases  # noqa: E402
from cpd.compat import cpd2020, qpytorch, transformer_engine  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

NEAREST = {"rounding": "nearest"}


def of_bits(*words):
    """Returns float32 numbers with the given hexadecimal bit patterns."""
    return torch.from_numpy(np.array([int(w, 16) for w in words], np.uint32).view(np.float32))


def parameters(function):
    """Returns a function's positional arguments as pairs of name and default (or None)."""
    found = inspect.signature(function).parameters.values()
    empty = inspect.Parameter.empty
    return [(p.name, None if p.default is empty else p.default) for p in found]


# ---- wrong results of others ---------------------------------------------------------------------

# Each row: a format's (exp, man) bits, an input, its right cast; comments: others' wrong casts.
WRONG = (
    ((4, 3), "43780000", "7F800000"),  # 248: CPD 256, as overflow was tested before rounding
    ((4, 3), "3A800001", "3B000000"),  # CPD 0: sticky bits dropped
    ((8, 7), "00400000", "00400000"),  # CPD 0
    ((4, 3), "3F880000", "3F800000"),  # QPyTorch 3F900000: ties away
    ((5, 2), "7F800000", "7F800000"),  # QPyTorch 114688
    ((5, 2), "7FC00000", "7FC00000"),  # QPyTorch 114688
    ((8, 7), "7FFFFFFF", "7FC00000"),  # QPyTorch 80000000
    ((8, 23), "3F800000", "3F800000"),  # QPyTorch BF800000
    ((4, 3), "3A7FFFFF", "00000000"),  # QPyTorch 3B000000: two roundings
    ((5, 2), "3F900001", "3FA00000"),
)


@pytest.mark.parametrize(("format", "given", "correct"), WRONG)
def test_right_where_they_are_wrong(format, given, correct):
    x, wanted = of_bits(given), of_bits(correct)
    assert same(cpd2020.float_quantize(x, *format), wanted)
    if (format, given) != ((4, 3), "43780000"):  # 240 where finite values saturate
        assert same(qpytorch.float_quantize(x, *format, **NEAREST), wanted)
    assert same(x, of_bits(given))  # CPD of 2020 overwrote its input


# ---- QPyTorch ------------------------------------------------------------------------------------


def test_qpytorchs_signatures():
    q = qpytorch
    assert parameters(q.float_quantize) == [
        ("x", None), ("exp", None), ("man", None), ("rounding", "stochastic"),
    ]  # fmt: skip
    assert parameters(q.fixed_point_quantize) == [
        ("x", None), ("wl", None), ("fl", None), ("clamp", True), ("symmetric", False),
        ("rounding", "stochastic"),
    ]  # fmt: skip
    assert parameters(q.block_quantize) == [
        ("x", None), ("wl", None), ("dim", -1), ("rounding", "stochastic"),
    ]  # fmt: skip
    both = [
        ("forward_number", None), ("backward_number", None), ("forward_rounding", "stochastic"),
        ("backward_rounding", "stochastic"),
    ]  # fmt: skip
    rest = [("clamping_grad_zero", False), ("backward_hooks", ())]
    assert parameters(q.quantizer) == both + rest
    assert parameters(q.Quantizer) == both
    assert parameters(q.FloatingPoint) == [("exp", None), ("man", None)]
    assert parameters(q.FixedPoint) == [
        ("wl", None), ("fl", None), ("clamp", True), ("symmetric", False),
    ]  # fmt: skip
    assert parameters(q.BlockFloatingPoint) == [("wl", None), ("dim", -1)]
    assert parameters(q.OptimLP) == [
        ("optim", None), ("weight_quant", None), ("grad_scaling", 1.0), ("grad_quant", None),
        ("momentum_quant", None), ("acc_quant", None),
    ]  # fmt: skip


def test_floating_point_saturates():
    for (exp, man), largest in (((5, 2), 57344), ((5, 10), 65504), ((6, 9), 4290772992)):
        for rounding in ("nearest", "stochastic"):
            x = torch.tensor([2.0**50, -(2.0**50), np.inf, -np.inf])
            y = qpytorch.float_quantize(x, exp, man, rounding)
            assert y.tolist() == [largest, -largest, np.inf, -np.inf]
    x = normal(1000) * 30
    assert same(
        qpytorch.float_quantize(x, 5, 2, "nearest"),
        torch.from_numpy(x.numpy().astype(ml_dtypes.float8_e5m2).astype(np.float32)),
    )


def fixed(x, wl, fl, clamp, symmetric):
    """Rounds to the nearest multiple of 2^-fl, ties to even, in exact rationals. Then clamps."""
    step = Fraction(2) ** -fl
    low, high = -(Fraction(2) ** (wl - fl - 1)), Fraction(2) ** (wl - fl - 1) - step
    low += step * symmetric
    made = []
    for value in x.flatten().tolist():
        if not np.isfinite(value):
            ends = (float(low), float(high)) if clamp else (value, value)
            made.append(value if value != value else ends[value > 0])
            continue
        rounded = round(Fraction(value) / step) * step  # Python rounds ties to even
        made.append(float(min(max(rounded, low), high) if clamp else rounded))
    return torch.tensor(made).reshape(x.shape)


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("symmetric", [True, False])
def test_fixed_point_is_exact(clamp, symmetric):
    for wl, fl in ((1, 1), (4, 2), (8, 4), (8, 12), (16, 14), (24, 3), (5, -2)):
        step = 2.0**-fl
        x = torch.cat([
            normal(50) * 2.0 ** (wl - fl - 1),
            (torch.arange(-9, 9) + 0.5) * step,  # ties
            torch.tensor([np.nan, np.inf, -np.inf, 1e30, 1e-30, -0.0]),
        ])  # fmt: skip
        y = qpytorch.fixed_point_quantize(x, wl, fl, clamp, symmetric, "nearest")
        assert torch.equal(y.nan_to_num(7.5), fixed(x, wl, fl, clamp, symmetric).nan_to_num(7.5))


def block(x, wl):
    """Rounds a block to wl bits: to multiples of 2^(E - wl + 2), where max |x| has exponent E."""
    values = [Fraction(v) for v in x.flatten().tolist()]
    most = max(map(abs, values))
    if most == 0:
        return x
    exponent = int(np.floor(np.log2(float(most))))
    step, end = Fraction(2) ** (exponent - wl + 2), 2 ** (wl - 1) - 1
    made = [max(-end, min(end, round(v / step))) * step for v in values]
    return torch.tensor([float(v) for v in made]).reshape(x.shape)


def test_blocks_are_exact():
    x = normal(3, 4, 5) * torch.exp2(3 * normal(3, 4, 5, seed=1))
    x[1] = -x[1].abs()  # the largest magnitude is not the largest value
    x[2, 1] = 0
    for wl in (2, 4, 8, 16):
        assert torch.equal(qpytorch.block_quantize(x, wl, **NEAREST), block(x, wl))
        for dim in range(3):
            y = qpytorch.block_quantize(x, wl, dim, "nearest")
            for i in range(x.shape[dim]):
                assert torch.equal(y.select(dim, i), block(x.select(dim, i), wl))


def test_the_generator_of_torch_decides():
    x = normal(100)
    for number in (
        qpytorch.FloatingPoint(4, 3),
        qpytorch.FixedPoint(8, 4),
        qpytorch.BlockFloatingPoint(4, 0),
    ):
        q = qpytorch.quantizer(number)
        torch.manual_seed(1)
        first, second = q(x), q(x)
        torch.manual_seed(1)
        assert same(q(x), first)
        assert not same(first, second)
        near = qpytorch.quantizer(number, None, "nearest")(x)
        ulps = (first - near).abs() / (near.abs() + 2**-4)
        assert 0 < ulps.max() <= 1
    mean = torch.stack([qpytorch.float_quantize(torch.full((500,), 1.03), 4, 3)]).mean()
    assert abs(mean - 1.03) < 0.01


def test_gradients_of_numbers():
    number, coarse = qpytorch.FloatingPoint(4, 3), qpytorch.FixedPoint(4, 1)
    x, g = (normal(50) * 3).requires_grad_(), normal(50, seed=1)
    q = qpytorch.quantizer(number, coarse, "nearest", "nearest")
    q(x).backward(g)
    assert same(x.grad, qpytorch.fixed_point_quantize(g, 4, 1, **NEAREST))
    for plain in (
        lambda x: qpytorch.float_quantize(x, 4, 3),
        lambda x: qpytorch.fixed_point_quantize(x, 4, 1),
        lambda x: qpytorch.block_quantize(x, 4),
        qpytorch.quantizer(),
    ):
        x.grad = None
        plain(x).backward(g)
        assert same(x.grad, g)
    x.grad = None
    calls = []
    hooks = [lambda g: calls.append(g) or g * 2, lambda g: g + 1]
    q = qpytorch.quantizer(coarse, None, "nearest", "nearest", True, hooks)
    q(x).backward(g)
    beyond = (x < -4.25) | (x > 3.75)
    assert beyond.any()
    assert len(calls) == 1
    assert same(x.grad, (g * 2 + 1).masked_fill(beyond, 0))
    module = qpytorch.Quantizer(number, forward_rounding="nearest")
    assert same(pickle.loads(pickle.dumps(module))(x), copy.deepcopy(module)(x))
    run, counter = compiled(module)
    assert same(run(x), module(x))
    assert counter.frame_count == 1


def test_wrong_numbers():
    q = qpytorch
    for error, message, call in (
        (ValueError, "exp must be", lambda: q.FloatingPoint(9, 2)),
        (ValueError, "wl must be 1…24, got 25", lambda: q.FixedPoint(25, 2)),
        (TypeError, "fl must be an int, got float", lambda: q.FixedPoint(8, 2.0)),
        (ValueError, "wl must be 2…25, got 1", lambda: q.BlockFloatingPoint(1)),
        (ValueError, "dim must be -1 or more", lambda: q.BlockFloatingPoint(8, -2)),
        (ValueError, "dim is 2, but x has 1", lambda: q.block_quantize(torch.ones(3), 8, 2)),
        (
            ValueError,
            "rounding must be one of nearest, stochastic",
            lambda: q.quantizer(None, None, "up"),
        ),
        (TypeError, r"must be a number such as FloatingPoint\(5, 2\)", lambda: q.quantizer("e4m3")),
        (TypeError, "x must be a torch tensor, got float", lambda: q.float_quantize(0.5, 4, 3)),
        (
            ValueError,
            "needs a FixedPoint number that clamps",
            lambda: q.quantizer(q.FloatingPoint(4, 3), clamping_grad_zero=True),
        ),
        (
            TypeError,
            "SGD or Adam, got Adagrad",
            lambda: q.OptimLP(torch.optim.Adagrad([torch.ones(1)])),
        ),
        (
            ValueError,
            "grad_scaling must be above 0",
            lambda: q.OptimLP(sgd(torch.ones(1)), None, 0),
        ),
    ):
        with pytest.raises(error, match=message):
            call()


# ---- OptimLP -------------------------------------------------------------------------------------


def sgd(p, **options):
    return torch.optim.SGD([p], **{"lr": 2**-7, "momentum": 0.5, **options})


@pytest.fixture(scope="module")
def golden():
    path = scaled_cases.DATA / "delayed_optim.npz"
    if not path.exists():
        pytest.skip(scaled_cases.REASON)
    return np.load(path)


def nearest(exp, man):
    return qpytorch.quantizer(qpytorch.FloatingPoint(exp, man), None, "nearest")


RUNS = {
    "w_bf16": {},
    "w_bf16_g_e5m2_s256": {"grad_quant": nearest(5, 2), "grad_scaling": 256},
    "w_bf16_acc_fp16_m_bf16": {"acc_quant": nearest(5, 10), "momentum_quant": nearest(8, 7)},
}


@pytest.mark.parametrize("name", RUNS)
def test_runs_are_qpytorchs(golden, name):
    def bf16(key):
        return torch.from_numpy(golden[key].view(np.int16)).view(torch.bfloat16).float()

    p = nn.Parameter(bf16("optim.p0_bf16"))
    inner = sgd(p)
    made = qpytorch.OptimLP(inner, weight_quant=nearest(8, 7), **RUNS[name])
    for step, gradient in enumerate(bf16("optim.grads_bf16")):
        p.grad = gradient.clone()
        made.step()
        momentum = inner.state[p]["momentum_buffer"]
        for of, value in (("param", p.detach()), ("momentum", momentum)):
            wanted = torch.from_numpy(golden[f"qpytorch.{name}.{of}"][step])
            assert same(value, wanted), (step, of)
    assert step == 23


def adam(p):
    return torch.optim.Adam([p], lr=2**-7)


@pytest.mark.parametrize("inner", [sgd, adam])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_step_is_that_by_hand(inner, keeps):
    coarse, fine = nearest(5, 2), nearest(5, 6)
    p, by_hand = nn.Parameter(normal(40)), nn.Parameter(normal(40))
    made = qpytorch.OptimLP(inner(p), coarse, 4.0, fine, fine, fine if keeps else None)
    other, acc = inner(by_hand), normal(40)
    for step in range(4):
        p.grad, by_hand.grad = normal(40, seed=step), fine(normal(40, seed=step) * 4)
        assert made.step(lambda: 3.0) == 3.0
        if keeps:
            by_hand.data.copy_(acc)
        other.step()
        acc = fine(by_hand.detach()) if keeps else by_hand.detach()
        by_hand.data.copy_(coarse(acc))
        for name in ("momentum_buffer", "exp_avg", "exp_avg_sq"):
            if name in other.state[by_hand]:
                other.state[by_hand][name].copy_(fine(other.state[by_hand][name]))
        assert same(p, by_hand)
    assert not keeps or same(made.weight_acc[p], acc)


def test_a_run_goes_on_from_its_state():
    q = nearest(5, 2)

    def steps(made, p, numbers):
        for step in numbers:
            p.grad = normal(9, seed=step)
            made.step()
        return p.detach().clone()

    def new():
        p = nn.Parameter(normal(9))
        return qpytorch.OptimLP(sgd(p), q, momentum_quant=q, acc_quant=lambda x: x), p

    made, p = new()
    whole = steps(made, p, range(5))
    made, p = new()
    steps(made, p, range(2))
    file = io.BytesIO()
    torch.save((made.state_dict(), p.detach()), file)
    file.seek(0)
    state, value = torch.load(file)
    made, p = new()
    p.data.copy_(value)
    made.load_state_dict(state)
    assert same(steps(made, p, range(2, 5)), whole)
    made.zero_grad()
    made.step()  # without gradients, weights stay
    assert same(p.detach(), whole)
    with pytest.raises(ValueError, match="1 accumulators are needed, got 0"):
        made.load_state_dict({k: v for k, v in state.items() if k != "weight_acc"})


# ---- CPD of 2020 ---------------------------------------------------------------------------------


def test_cpds_signatures():
    assert parameters(cpd2020.float_quantize) == [("x", None), ("exp", None), ("man", None)]
    four = [
        ("forward_exp", 8), ("forward_man", 23), ("backward_exp", 8), ("backward_man", 23),
    ]  # fmt: skip
    assert parameters(cpd2020.quantizer) == parameters(cpd2020.Quantizer) == four
    assert parameters(cpd2020.quant_gemm) == [("a", None), ("b", None), ("man", 23), ("exp", 8)]
    assert parameters(cpd2020.sum_gradients)[:5] == [
        ("model", None), ("use_APS", False), ("grad_exp", 5), ("grad_man", 2), ("use_kahan", False),
    ]  # fmt: skip


def test_cpds_quantizers():
    x, g = normal(30).requires_grad_(), normal(30, seed=1)
    for q in (cpd2020.quantizer(4, 3, 5, 2), cpd2020.Quantizer(4, 3, 5, 2)):
        x.grad = None
        y = q(x)
        y.backward(g)
        assert same(y.detach(), cpd.cast(x.detach(), "e4m3"))
        assert same(x.grad, cpd.cast(g, "e5m2"))
    assert same(cpd2020.quantizer()(x), x)
    assert cpd2020.quantizer(2, 1).quantize.forward.format == cpd.Format((2, 1))  # not OCP's E2M1


def test_products_are_kahans():
    a, b = normal(7, 33), normal(33, 5, seed=1)
    y = cpd2020.quant_gemm(a, b, man=3, exp=4)
    assert same(y, cpd.gemm(a, b, cpd.Accumulator((4, 3), scheme="kahan")))
    assert same(cpd2020.quant_gemm(a, b, 3, 4), y)
    q = lambda x: cpd2020.float_quantize(x, 4, 3)  # noqa: E731
    total, rest = torch.zeros(7, 5), torch.zeros(7, 5)
    for k in range(33):
        y1 = q(q(a[:, k : k + 1] * b[k]) - rest)
        t = q(total + y1)
        total, rest = t, q(q(t - total) - y1)
    assert same(y, total)
    with pytest.raises(ValueError, match="a and b must be matrices"):
        cpd2020.quant_gemm(a[0], b)


def model_of(gradients):
    model = nn.ParameterList([nn.Parameter(torch.zeros_like(g)) for g in gradients])
    for p, g in zip(model, gradients, strict=True):
        p.grad = g.clone()
    model.append(nn.Parameter(torch.zeros(3)))  # a parameter without a gradient
    return model


def summed(per_rank, aps, exp, man, kahan):
    """Sums the ranks' gradients of one layer by the algorithm of CPD of 2020, with exact casts."""
    q = lambda x: cpd2020.float_quantize(x, exp, man)  # noqa: E731
    shift = torch.tensor(0.0)
    if aps:
        most = max((g * len(per_rank)).abs().max() for g in per_rank)
        shift = 2 ** (exp - 1) - 1 - torch.log2(most).ceil()
        per_rank = [q(g * torch.exp2(shift)) for g in per_rank]
    total, rest = torch.zeros_like(per_rank[0]), torch.zeros_like(per_rank[0])
    for g in per_rank:
        if kahan:
            y = q(g - rest)
            t = q(total + y)
            total, rest = t, q(q(t - total) - y)
        else:
            total = q(total + g)
    return total / torch.exp2(shift)


@pytest.mark.parametrize("aps", [False, True])
@pytest.mark.parametrize("kahan", [False, True])
def test_gradients_are_summed(aps, kahan):
    ranks = [[normal(40, seed=r), normal(3, 5, seed=9 + r) * 1e-3] for r in range(4)]
    spec = cpd2020._reduction(aps, 5, 2, kahan)
    sums = cpd.simulate_all_reduce(ranks, spec)
    for layer, total in enumerate(sums):
        assert torch.equal(total, summed([rank[layer] for rank in ranks], aps, 5, 2, kahan))
    model = model_of(ranks[0])
    cpd2020.sum_gradients(model, aps, 5, 2, kahan)
    for p, g in zip(model, ranks[0], strict=False):
        assert torch.equal(p.grad, summed([g], aps, 5, 2, kahan))
    assert model[2].grad is None


def test_the_form_of_2020_is_a_spec():
    spec = cpd.Reduce("fp32", accumulator="e4m3", result="e4m3")  # Reduce's docstring names it
    assert spec == cpd2020._reduction(False, 4, 3, False)
    ranks = [[normal(200, seed=r)] for r in range(8)]
    wanted = summed([x for (x,) in ranks], False, 4, 3, False)
    assert torch.equal(cpd.simulate_all_reduce(ranks, spec)[0], wanted)
    assert not torch.equal(cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3"))[0], wanted)


def test_gradients_over_torch_distributed():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        model = model_of([torch.zeros(3), normal(9)])
        for _ in range(2):  # the communicator is kept
            cpd2020.sum_gradients(model, use_APS=True, grad_exp=4, grad_man=3)
    finally:
        for one in cpd2020._communicators.values():
            one.close()
        cpd2020._communicators.clear()
        dist.destroy_process_group()
    assert same(model[0].grad, torch.zeros(3))  # NaN there
    assert same(model[1].grad, summed([normal(9)], True, 4, 3, False))
    cpd2020.sum_gradients(nn.Linear(1, 1))


# ---- TransformerEngine ---------------------------------------------------------------------------


@pytest.fixture
def engine(monkeypatch):
    """Provides the part of TransformerEngine that a custom recipe uses, as a small replacement."""

    class Quantizer:
        def __init__(self, *, rowwise, columnwise):
            self.rowwise_usage, self.columnwise_usage = rowwise, columnwise
            self.internal = False

    class CustomRecipe:
        def __init__(self, qfactory, **options):
            self.qfactory, self.options = qfactory, options

    tensors = types.ModuleType("transformer_engine.pytorch.quantized_tensor")
    tensors.Quantizer, tensors.QuantizedTensorStorage = Quantizer, type("Storage", (), {})
    recipes = types.ModuleType("transformer_engine.common.recipe")
    recipes.CustomRecipe = CustomRecipe
    for name in ("transformer_engine", "transformer_engine.pytorch", "transformer_engine.common"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, tensors.__name__, tensors)
    monkeypatch.setitem(sys.modules, recipes.__name__, recipes)
    transformer_engine._classes.cache_clear()
    yield recipes
    transformer_engine._classes.cache_clear()


class Role:
    def __init__(self, tensor_type, module_type="linear"):
        self.tensor_type, self.module_type = tensor_type, module_type


class Kind:
    def __init__(self, value):
        self.value = value


def linear(factory, roles, x, w, g, bias):
    """Computes the three products of a linear module, as TransformerEngine's custom_gemm does."""
    of_x, of_w, of_g = (factory(role) for role in roles)
    qx, qw = of_x.quantize(x), of_w.quantize(w)
    saved, kept = qx.prepare_for_saving()
    how = None, torch.float32
    y = of_x.qgemm(saved[0], qw.data, *how, saved[2], qw.scale, bias, gemm_type=Kind("fprop"))
    assert kept.restore_from_saved([*saved, 5]) == [5]
    qg = of_g.quantize(g)
    dx = of_g.qgemm(qg.data, qw.data_t, *how, qg.scale, qw.scale_t, gemm_type=Kind("dgrad"))
    scales = qg.scale_t, kept.scale_t
    dw = of_g.qgemm(qg.data_t, kept.data_t, *how, *scales, gemm_type=Kind("wgrad"))
    return y, dx, dw


RECIPES = (
    cpd.Recipe("native", activation="mxfp8", weight="mxfp8", gradient="mxfp8-e5m2"),
    cpd.Recipe(sums="e6m9 kahan", activation="e4m3fn", weight="mxfp4 factor=0.75", gradient="e5m2"),
    cpd.Recipe("native", grad_weight_gradient="nvfp4", grad_weight_activation="nvfp4"),
    cpd.Recipe(forward="e4m3", grad_input="e5m2", grad_weight="fp32"),
)


@pytest.mark.parametrize("how", RECIPES)
def test_transformer_engines_products(engine, how):
    # Operands are multiples of 1/8. So torch's own sums are exact in every memory layout.
    x, w, g = (
        (8 * each).round() / 8
        for each in (normal(6, 32), normal(8, 32, seed=1), normal(6, 8, seed=2))
    )
    bias = normal(8, seed=3)
    custom = transformer_engine.custom_recipe(how, fp8_dpa=False)
    assert isinstance(custom, engine.CustomRecipe)
    assert custom.options == {"fp8_dpa": False}
    words = "linear_input", "linear_weight", "linear_grad_output"
    roles = Role("input"), Role("weight"), Role("grad_output")
    leaves = x.clone().requires_grad_(), w.clone().requires_grad_()
    y = cpd.functional.linear(*leaves, recipe=how)
    y.backward(g)
    wanted = y.detach() + bias, leaves[0].grad, leaves[1].grad
    for each in (words, roles):
        assert same(linear(custom.qfactory, each, x, w, g, bias), wanted)


def test_transformer_engines_tensors(engine):
    factory = transformer_engine.qfactory(RECIPES[0])
    x = normal(2, 3, 32, dtype=torch.bfloat16)
    quantizer = factory(Role("input"))
    tensor = quantizer.quantize(x)
    assert (quantizer.custom, tensor.custom) == (True, True)
    assert (tensor.size(), tensor.size(-1)) == ((6, 32), 32)
    assert same(tensor.dequantize(), cpd.cast(x, "mxfp8"))
    quantizer.update_quantized(x * 2, tensor)
    assert same(tensor.dequantize(), cpd.cast(x * 2, "mxfp8"))
    quantizer.update_quantized(x, tensor, noop_flag=torch.ones(1))
    assert same(tensor.dequantize(), cpd.cast(x * 2, "mxfp8"))
    tensor.update_usage(columnwise_usage=False)
    assert tensor.data_t is None
    with pytest.raises(
        RuntimeError, match="data_t of an emulated tensor was not asked for in time"
    ):
        tensor.update_usage(columnwise_usage=True)
    for role in (None, Role("output"), Role("input", "dpa"), Role("qkv", "dpa")):
        assert same(factory(role).quantize(x).dequantize(), x)
    drawn = cpd.Recipe("native", activation="(4,3) rounding=stochastic random_bits=8")
    stochastic = transformer_engine.qfactory(drawn)
    drawing, other = stochastic("linear_input"), stochastic("linear_input")
    first, second = (drawing.quantize(x).dequantize() for _ in range(2))
    assert not same(first, second)
    assert same(other.quantize(x).dequantize(), first)
    out, ones, rows = torch.zeros(6, 6), torch.ones(1), x.float().reshape(6, 32)
    for times in (1, 2):
        quantizer.qgemm(rows, rows, None, torch.float32, ones, ones, out=out, accumulate=True)
        assert torch.allclose(out, times * rows @ rows.T, rtol=1e-5)
    assert repr(tensor).startswith("Emulated((2, 3, 32), EmulatingQuantizer(cpd.Recipe(")
    assert quantizer.make_empty((2, 32), device="cpu").size() == (2, 32)
    tensor.update_usage(rowwise_usage=False)
    with pytest.raises(RuntimeError, match="an emulated tensor has no values by its rows any more"):
        tensor.dequantize()


def test_without_transformer_engine():
    if "transformer_engine" in sys.modules:
        pytest.skip("TransformerEngine is installed")
    made = cpd.Recipe(sums="e4m3")
    factory = transformer_engine.qfactory(made)
    for call in (lambda: factory("linear_input"), lambda: transformer_engine.custom_recipe(made)):
        with pytest.raises(RuntimeError, match=r"needs TransformerEngine 2.20 or newer"):
            call()
    with pytest.raises(ValueError, match="a recipe with a history needs state in each layer"):
        transformer_engine.qfactory("te-delayed")
