# SPDX-License-Identifier: Apache-2.0
"""Tests that steps of `cpd.optim.LowPrecision` equal steps written by hand."""

from __future__ import annotations

import copy
import io
import pickle
import warnings

import pytest

import cpd
import oracle
import spawn
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.optim.lr_scheduler import OneCycleLR, StepLR  # noqa: E402

from cpd.optim import LowPrecision  # noqa: E402
from cpd.optim.low_precision import STEPS  # noqa: E402
from tensors import bits, normal, same  # noqa: E402

BF16 = oracle.Spec(8, 7)
FLOAT32 = oracle.Spec(8, 23)
OPTIMIZERS = {
    "SGD": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01},
    "Adam": {"lr": 0.01, "amsgrad": True},
    "AdamW": {"lr": 0.01},
    "Adamax": {"lr": 0.01},
    "NAdam": {"lr": 0.01},
    "RAdam": {"lr": 0.01},
    "Adagrad": {"lr": 0.01},
    "Adadelta": {"lr": 0.1},
    "RMSprop": {"lr": 0.01, "momentum": 0.5, "centered": True},
    "ASGD": {"lr": 0.01},
    "Rprop": {"lr": 0.01},
    "Adafactor": {"lr": 0.01},
    "Muon": {"lr": 0.01},
}
MOMENTA = {"momentum_buffer", "exp_avg", "grad_avg"}
SQUARES = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta", "exp_inf"}
SQUARES |= {"row_var", "col_var", "variance"}


def parameters(dtype=torch.float32):
    return [nn.Parameter(normal(6, 20, seed=i, dtype=dtype)) for i in range(2)]


def give_gradients(params, step):
    for i, p in enumerate(params):
        p.grad = normal(*p.shape, seed=100 * step + i, dtype=p.dtype)


def run(optimizer, params, steps):
    for step in steps:
        give_gradients(params, step)
        optimizer.step()


def adam(params, **options):
    return torch.optim.AdamW(params, lr=0.01, **options)


def everything(dtype=torch.float32, **options):
    """Returns an optimizer that rounds weights, states and gradients, mostly stochastically."""
    params = parameters(dtype)
    given = {
        "weight": "bf16",
        "update": "stochastic",
        "momentum": "e5m6 rounding=stochastic",
        "second_moment": "e4m3fn 16",
        "gradient": "e5m2 rounding=stochastic",
        "seed": 7,
    }
    return LowPrecision(adam(params), **(given | options)), params


# ---- steps by hand -------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sgd_written_by_hand(dtype):
    params = parameters(dtype)
    sgd = torch.optim.SGD(params, lr=0.1, momentum=0.9)
    rounded = {"weight": "e6m7", "momentum": "e5m2", "gradient": "e4m3fn overflow=saturate"}
    optimizer = LowPrecision(sgd, **rounded)
    weights = [p.detach().float().clone() for p in params]
    momenta = [torch.zeros_like(w) for w in weights]
    for step in range(4):
        give_gradients(params, step)
        given = [p.grad.clone() for p in params]
        optimizer.step()
        assert same([p.grad for p in params], given)  # left as they are
        for i, p in enumerate(params):
            g = cpd.cast(given[i].float(), "e4m3fn overflow=saturate")
            m = momenta[i] * 0.9 + g if step else g
            weights[i] = cpd.cast(weights[i].add(m, alpha=-0.1), "e6m7")
            momenta[i] = cpd.cast(m, "e5m2")
            assert same(p.detach(), weights[i].to(dtype))
            assert same(optimizer.state[p]["momentum_buffer"], momenta[i])


@pytest.mark.parametrize("master", [None, "fp32", "e6m12"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_optimizer_of_torch(name, dtype, master):
    """A step equals torch's step on binary32 copies, with its results rounded by hand."""
    make, options = getattr(torch.optim, name), OPTIMIZERS[name]
    params = parameters(dtype)
    copies = [nn.Parameter(p.detach().float().clone()) for p in params]
    plain = make(copies, **options)
    plain.param_groups[0]["foreach"] = False
    kinds = {}
    kept = set(probe(name))
    kinds |= {"momentum": "e6m5"} if kept & MOMENTA else {}
    kinds |= {"second_moment": "e4m3fn 8"} if kept & SQUARES else {}
    optimizer = LowPrecision(make(params, **options), "bf16", "stochastic", master, **kinds, seed=5)
    for step in range(3):
        give_gradients(params, step)
        for p, c in zip(params, copies, strict=True):
            c.grad = p.grad.float()
        optimizer.step()
        plain.step()
        for i, (p, c) in enumerate(zip(params, copies, strict=True)):
            state = plain.state[c]
            for key in kept & (MOMENTA | SQUARES):
                state[key].copy_(cpd.cast(state[key], "e6m5" if key in MOMENTA else "e4m3fn 8"))
            draws = {"rounding": "stochastic", "seed": 5, "stream": step << 36 | i << 20}
            if master is not None:
                c.data = cpd.cast(c.data, master)
            weight = by_keywords(cpd.cast, c.data, "bf16", **draws)
            if master is None:
                c.data = weight
            assert same(p.detach(), weight.to(dtype)), (step, i)
            mine = optimizer.state[p]
            assert same({k: mine[k] for k in state}, dict(state)), (step, i)
            if master is not None:
                assert same(mine["master"], c.detach())


def probe(name):
    """Returns the names of the state tensors that torch's optimizer `name` stores for a matrix."""
    p = nn.Parameter(torch.ones(2, 2))
    p.grad = torch.ones(2, 2)
    optimizer = getattr(torch.optim, name)([p], **OPTIMIZERS[name])
    optimizer.step()
    return [key for key, value in optimizer.state[p].items() if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_kahan_against_exact_sums(dtype):
    params = parameters(dtype)
    optimizer = LowPrecision(torch.optim.SGD(params, lr=2**-9), "bf16", "kahan")
    shadow = [nn.Parameter(p.detach().float().clone()) for p in params]
    plain = torch.optim.SGD(shadow, lr=2**-9, foreach=False)
    lost = [torch.zeros(p.shape) for p in params]

    def add(x, y):
        pairs = zip(bits(x).flatten().tolist(), bits(y).flatten().tolist(), strict=True)
        words = [oracle.add(BF16, a % 2**32, b % 2**32) for a, b in pairs]
        return torch.tensor(words).to(torch.int32).view(torch.float32).view(x.shape)

    for step in range(6):
        give_gradients(params, step)
        for p, c in zip(params, shadow, strict=True):
            c.grad = p.grad.float()
        old = [c.detach().clone() for c in shadow]
        optimizer.step()
        plain.step()
        for i, (p, c) in enumerate(zip(params, shadow, strict=True)):
            carried = add(lost[i], c.detach() - old[i])
            new = add(old[i], carried)
            lost[i] = add(carried, add(old[i], -new))
            c.data = new
            assert same(p.detach(), new.to(dtype))
            assert same(optimizer.state[p]["compensation"], lost[i].to(dtype))
    assert lost[0].any()


def test_small_updates_are_not_lost():
    """A thousand updates of 2^-14 are lost to nearest rounding, but not to Kahan or stochastic
    rounding.

    Kahan's summation preserves their sum; stochastic rounding preserves it approximately.
    """
    after = {}
    for update in ("nearest_even", "kahan", "stochastic"):
        p = nn.Parameter(torch.ones(256))
        optimizer = LowPrecision(torch.optim.SGD([p], lr=2.0**-14), "bf16", update)
        for _ in range(1024):
            p.grad = torch.ones(256)
            optimizer.step()
        after[update] = p.detach().mean().item()
    assert after["nearest_even"] == 1
    assert after["kahan"] == 1 - 2**-4
    assert abs(after["stochastic"] - (1 - 2**-4)) < 0.002


def test_gradients_are_scaled_while_they_are_rounded():
    p = nn.Parameter(torch.zeros(3))
    sgd = torch.optim.SGD([p], lr=1.0)
    optimizer = LowPrecision(sgd, gradient="e5m2", gradient_scale=2.0**12)
    p.grad = torch.tensor([2.0**-20, 1.25 * 2.0**-18, 3.3])
    optimizer.step()
    assert p.tolist() == [-(2.0**-20), -1.25 * 2.0**-18, -3.5]
    p.grad = torch.tensor([1e-9, 0.0, 0.0])
    LowPrecision(sgd, gradient="e5m2").step()
    assert p[0] == -(2.0**-20)


def test_draws_of_parts_differ():
    """Stochastic rounding differs between seeds, steps, parameters and rounded tensors."""
    made = {}
    for seed in (0, 1):
        params = [nn.Parameter(torch.full((512,), 1.3)) for _ in range(2)]
        sgd = torch.optim.SGD(params, lr=0.0, momentum=1.0)
        how = "e8m3 rounding=stochastic"
        optimizer = LowPrecision(sgd, how, momentum=how, gradient=how, seed=seed)
        for step in range(2):
            for p in params:
                p.data.fill_(1.3)
                p.grad = torch.zeros(512)
                optimizer.state[p]["momentum_buffer"] = torch.full((512,), 0.3)
            optimizer.step()
            for i, p in enumerate(params):
                made[seed, step, i] = p.detach().clone()
                made[seed, step, i, "momentum"] = optimizer.state[p]["momentum_buffer"].clone()
    values = [(x == x.max()).tolist() for x in made.values()]
    assert all(any(v) and not all(v) for v in values)
    assert all(a != b for n, a in enumerate(values) for b in values[:n])


def test_rounding_weights_at_once():
    for update, master in (("stochastic", "fp32"), ("kahan", None), (None, None)):
        params = parameters()
        given = [p.detach().clone() for p in params]
        optimizer = LowPrecision(adam(params), "bf16", update, master)
        optimizer.round_weights()
        for p, x in zip(params, given, strict=True):
            assert same(p.detach(), cpd.cast(x, "bf16"))
            if master:
                assert same(optimizer.state[p]["master"], x)
            if update == "kahan":
                lost = optimizer.state[p]["compensation"]
                assert same(lost, cpd.cast(x - p.detach(), "bf16"))
        run(optimizer, params, range(2))


# ---- torch's ways --------------------------------------------------------------------------------

SAVED = {
    "stochastic": {},
    "master": {"master": "fp32"},
    "kahan": {"update": "kahan"},
    "nearest": {
        "update": "nearest_even",
        "weight": "e5m6 overflow=saturate",
        "second_moment": None,
    },
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", SAVED)
def test_resumed_runs_have_the_same_bits(case, dtype):
    whole, wanted = everything(dtype, **SAVED[case])
    run(whole, wanted, range(6))
    before, params = everything(dtype, **SAVED[case])
    run(before, params, range(3))
    file = io.BytesIO()
    torch.save({"optimizer": before.state_dict(), "weights": params}, file)
    file.seek(0)
    held = torch.load(file, weights_only=True)
    after, again = everything(dtype, **SAVED[case])
    for p, x in zip(again, held["weights"], strict=True):
        p.data.copy_(x)
    after.load_state_dict(held["optimizer"])
    run(after, again, range(3, 6))
    assert same(again, wanted)
    assert same(after.state_dict()["state"], whole.state_dict()["state"])
    assert after.param_groups[0][STEPS] == 6


def test_copies_and_pickles_go_on():
    optimizer, params = everything()
    run(optimizer, params, range(2))
    for made in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        theirs = made.param_groups[0]["params"]
        ours, mine = copy.deepcopy((optimizer, params))
        run(made, theirs, range(2, 4))
        run(ours, mine, range(2, 4))
        assert same(theirs, mine)


def test_a_plain_checkpoint_of_the_inner_optimizer():
    params, theirs = parameters(), parameters()
    optimizer, plain = LowPrecision(adam(params), "bf16"), adam(theirs)
    run(plain, theirs, range(2))
    optimizer.load_state_dict(plain.state_dict())
    assert optimizer.param_groups[0][STEPS] == 0
    run(optimizer, params, [2])
    assert optimizer.state[params[0]]["step"] == 3


def test_schedulers():
    for make in (
        lambda o: StepLR(o, 1, 0.5),
        lambda o: OneCycleLR(o, max_lr=0.1, total_steps=8),
    ):
        params, theirs = parameters(), parameters()
        optimizer, plain = LowPrecision(adam(params), momentum="bf16"), adam(theirs)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            both = make(optimizer), make(plain)
            for step in range(4):
                run(optimizer, params, [step])
                run(plain, theirs, [step])
                for scheduler in both:
                    scheduler.step()
                assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
                assert optimizer.inner.param_groups is optimizer.param_groups


def test_groups_are_added():
    optimizer, params = everything()
    run(optimizer, params, range(2))
    more = nn.Parameter(normal(6, 20, seed=9, dtype=torch.bfloat16))
    optimizer.add_param_group({"params": [more], "lr": 0.5})
    assert [group[STEPS] for group in optimizer.param_groups] == [2, 2]
    run(optimizer, [*params, more], [2])
    assert optimizer.state[more]["exp_avg"].dtype == torch.float32
    assert [group[STEPS] for group in optimizer.param_groups] == [3, 3]
    assert optimizer.param_groups[1]["foreach"] is False


def test_closures_and_parameters_without_gradients():
    optimizer, params = everything()
    before = params[1].detach().clone()

    def closure():
        optimizer.zero_grad()
        loss = params[0].square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == normal(6, 20, seed=0).square().sum()
    assert same(params[1].detach(), before)
    assert not optimizer.state.get(params[1])
    optimizer.zero_grad()
    assert params[0].grad is None


def test_a_step_that_fails_leaves_all_in_place():
    optimizer, params = everything(torch.bfloat16)
    run(optimizer, params, range(2))
    kept = copy.deepcopy(optimizer.state_dict())
    give_gradients(params, 2)
    gradients = [p.grad for p in params]
    optimizer.inner.step = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        optimizer.step()
    assert same(optimizer.state_dict()["state"], kept["state"])
    assert optimizer.param_groups[0]["params"] == params
    assert all(p.grad is g for p, g in zip(params, gradients, strict=True))


def test_grad_scaler():
    optimizer, params = everything(torch.float32)
    plain, theirs = everything(torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for step in range(3):
        give_gradients(params, step)
        give_gradients(theirs, step)
        for p in params:
            p.grad *= scaler.get_scale() if step != 1 else float("inf")
        scaler.scale(torch.ones(()))  # which makes its state
        scaler.step(optimizer)
        scaler.update()
        if step != 1:
            plain.step()
        assert same(params, theirs)


@pytest.mark.parametrize("gradient", [None, "e5m2"])
def test_sparse_gradients(gradient):
    made = []
    for sparse in (True, False):
        torch.manual_seed(0)
        layer = nn.Embedding(20, 4, sparse=sparse)
        sgd = torch.optim.SGD(layer.parameters(), lr=0.1)
        optimizer = LowPrecision(sgd, "e5m6", gradient=gradient)
        for _ in range(2):
            optimizer.zero_grad()
            layer(torch.tensor([3, 3, 7])).square().sum().backward()
            assert layer.weight.grad.is_sparse == sparse
            optimizer.step()
        made.append(layer.weight.detach())
    assert same(*made)


def test_clipping_and_accumulation():
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = LowPrecision(torch.optim.SGD(model.parameters(), lr=1.0), "bf16")
    for _ in range(2):
        (100 * model(torch.ones(2, 4)).square().sum()).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    wanted = [cpd.cast(p.detach() - p.grad, "bf16") for p in model.parameters()]
    optimizer.step()
    assert same([p.detach() for p in model.parameters()], wanted)


def test_foreach_and_fused_are_turned_off():
    for name in ("foreach", "fused"):
        params = parameters()
        with pytest.warns(UserWarning, match=f"{name}=True is turned off: its operations"):
            optimizer = LowPrecision(adam(params, **{name: True}), "bf16")
        assert optimizer.param_groups[0][name] is optimizer.defaults[name] is False
        run(optimizer, params, [0])
    assert LowPrecision(adam(parameters()), "bf16").param_groups[0]["foreach"] is False


def test_nothing_more_is_kept_than_asked_for():
    inner = {"step", "exp_avg", "exp_avg_sq"}
    for dtype in (torch.float32, torch.bfloat16):
        for case, more in (
            ("stochastic", set()),
            ("master", {"master"}),
            ("kahan", {"compensation"}),
        ):
            optimizer, params = everything(dtype, **SAVED[case])
            run(optimizer, params, range(2))
            assert set(optimizer.state) == set(params)
            assert set(optimizer.state[params[0]]) == inner | more
            given = {p.grad.dtype for p in params}
            assert given == {dtype}


def test_hooks_and_texts():
    optimizer, params = everything(master="fp32")
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    optimizer.inner.register_step_post_hook(lambda *_: seen.append("inner"))
    run(optimizer, params, [0])
    assert seen == ["inner", "after"]
    optimizer.register_state_dict_post_hook(lambda _, held: held | {"more": 1})
    assert optimizer.state_dict()["more"] == 1
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert "weight='bf16 rounding=stochastic', master='fp32', momentum=" in repr(optimizer)


def test_one_thread_is_many():
    made = []
    for threads in (1, 2):
        before = torch.get_num_threads()
        torch.set_num_threads(threads)
        optimizer, params = everything()
        run(optimizer, params, range(3))
        torch.set_num_threads(before)
        made.append(params)
    assert same(*made)


def test_errors():
    params = parameters()
    for wrong in (torch.optim.LBFGS(params), everything()[0], params):
        with pytest.raises(
            TypeError, match=r"optimizer must be a torch.optim.Optimizer other than LBFGS.*got"
        ):
            LowPrecision(wrong)
    cases = {
        "update must be one of nearest_even, stochastic, kahan, got 'odd'": {"update": "odd"},
        "update= and master= need a weight format": {"weight": None, "master": "fp32"},
        "update='stochastic' contradicts weight='bf16 rounding=toward_zero'": {
            "weight": "bf16 rounding=toward_zero",
            "update": "stochastic",
        },
        "update='kahan' needs a weight format without scales": {
            "weight": "mxfp8",
            "update": "kahan",
        },
        "update='kahan' and master= exclude each other": {"update": "kahan", "master": "fp32"},
        "momentum: .*blub": {"momentum": "blub"},
        "gradient must be a cast without history and factor": {"gradient": "fp8-tensor history=4"},
        "gradient_scale must be above 0": {"gradient_scale": 0.0},
        "seed must be": {"seed": -1},
    }
    for message, options in cases.items():
        with pytest.raises(ValueError, match=message):
            LowPrecision(adam(params), **({"weight": "bf16"} | options))
    with pytest.raises(ValueError, match="bf16 cannot represent every value of fp32"):
        LowPrecision(adam(parameters(torch.bfloat16)), "fp32")
    with pytest.raises(ValueError, match="differentiable=True is not supported"):
        LowPrecision(torch.optim.SGD(params, lr=0.1, differentiable=True), "bf16")
    optimizer = LowPrecision(torch.optim.SGD(params, lr=0.1), "bf16", momentum="bf16")
    give_gradients(params, 0)
    with pytest.raises(ValueError, match="momentum='bf16' has no effect: SGD stores no state"):
        optimizer.step()


def test_sharded_parameters():
    """Steps on FSDP2's shards and torch's checkpoints of them have the bits of whole parameters.

    The sizes of the shards are not multiples of the number of ranks.
    """
    told = [rank.result for rank in spawn.spawn_ranks("gloo", 2, "optim_ranks:run")]
    assert told == ["", ""]


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda p: torch.optim.SGD(p, lr=0.1), ["momentum", "second_moment"]),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), ["second_moment"]),
        (lambda p: torch.optim.RMSprop(p, lr=0.1), ["momentum"]),
        (lambda p: torch.optim.Adam(p, lr=0.1), []),
    ],
)
def test_a_recipes_state_that_an_optimizer_does_not_keep_is_left_out(make, left):
    recipe = cpd.Recipe("native", optimizer="bf16 momentum=bf16 second_moment=bf16")
    params = parameters()
    optimizer, _ = cpd.optim.from_recipe(make(params), recipe)
    optimizer = pickle.loads(pickle.dumps(optimizer)) if not left else optimizer
    for step in range(2):
        give_gradients(optimizer.param_groups[0]["params"], step)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            optimizer.step()
        said = [str(one.message) for one in seen if "is left out" in str(one.message)]
        wanted = left if step == 0 else []
        assert [text.split("'s ")[1].split("=")[0] for text in said] == wanted
    kept = {"momentum", "second_moment"} - set(left)
    assert all((getattr(optimizer.formats, kind) is not None) == (kind in kept)
               for kind in ("momentum", "second_moment"))  # fmt: skip
