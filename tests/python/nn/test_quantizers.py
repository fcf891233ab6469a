# SPDX-License-Identifier: Apache-2.0
"""Tests `cpd.quantizer`, a module that casts a tensor anywhere in a model."""

from __future__ import annotations

import copy
import io
import pickle

import pytest

import cpd
from by_keywords import by_keywords

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd._torch.sums import tagged  # noqa: E402
from cpd.nn.clock import SHIFT  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

STOCHASTIC = "e4m3 rounding=stochastic random_bits=8"
CASES = (
    ("e4m3", "e5m2", {}),
    (cpd.Format("e4m3fn"), None, {}),
    (None, cpd.Cast("e5m2", rounding="toward_zero", overflow="saturate"), {}),
    ("mxfp8", "mxfp4", {"axis": 1}),
    ("nvfp4", cpd.Scaled("int8 row"), {"axis": (-1, 0)}),
    (cpd.Cast("mxfp4", rounding="up"), "bf16", {"axis": 0}),
    (None, None, {}),
)


def by_hand(x, spec, axis):
    """Casts `x` by a spec without stochastic rounding. Returns `x` if there is no spec."""
    if spec is None:
        return x
    return cpd.cast(x, spec, axis=axis if isinstance(spec.format, cpd.Scaled) else -1)


@pytest.mark.parametrize(("forward", "backward", "options"), CASES)
def test_equals_the_casts_by_hand(forward, backward, options):
    q = cpd.quantizer(forward, backward, **options)
    axis = options.get("axis", -1)
    axes = axis if isinstance(axis, tuple) else (axis, axis)
    for dtype in (torch.float32, torch.bfloat16):
        x = normal(6, 40, dtype=dtype).requires_grad_()
        if forward == "nvfp4" and dtype == torch.bfloat16:
            with pytest.raises(ValueError, match="bfloat16 cannot represent every value of nvfp4"):
                q(x)
            continue
        g = normal(6, 40, seed=1, dtype=dtype)
        y = q(x)
        assert same(y, by_hand(x.detach(), q.quantize.forward, axes[0]))
        y.backward(g)
        assert same(x.grad, by_hand(g, q.quantize.backward, axes[1]))
        assert q.step is None
        assert list(q.state_dict()) == []


@pytest.mark.parametrize("seed", [0, 7, torch.tensor(7)])
def test_stochastic_casts_draw_from_the_stream(seed):
    q = cpd.quantizer(STOCHASTIC, "e5m2 rounding=stochastic", seed=seed)
    x, g = normal(64).requires_grad_(), normal(64, seed=1)
    for stream in (0, 5, torch.tensor(5)):
        x.grad = None
        y = q(x, stream=stream)
        y.backward(g)
        number = torch.as_tensor(stream)
        first, second = (
            int(tagged(number, way)) % 2**64 for way in (Purpose.cast_output, Purpose.cast_gradient)
        )
        how = {"rounding": "stochastic", "random_bits": 8, "seed": seed}
        assert same(y.detach(), by_keywords(cpd.cast, x.detach(), "e4m3", **how, stream=first))
        assert same(x.grad, cpd.cast(g, "e5m2 stochastic", seed=seed, stream=second))
    assert q.step.item() == 0


def test_it_prints_and_pickles():
    q = cpd.quantizer("e4m3fn", "mxfp8", axis=0, seed=2)
    assert repr(q) == "Quantizer(forward='e4m3fn', backward='mxfp8', axis=0, seed=2)"
    assert repr(pickle.loads(pickle.dumps(q))) == repr(q)
    assert repr(cpd.quantizer(axis=(0, 1))) == "Quantizer(axis=(0, 1))"


def test_a_pickle_of_0_7_had_a_layer():
    quantize = cpd.quantizer("e4m3").quantize
    state = {"forward": quantize.forward, "backward": None, "axes": (-1, -1)}
    old = object.__new__(type(quantize))
    old.__setstate__({**state, "layer": 0})
    assert same(old(normal(4)), quantize(normal(4)))
    with pytest.raises(
        ValueError, match=r"has a layer number, which is gone: make it anew by cpd.q"
    ):
        old.__setstate__({**state, "layer": 3})


def test_functions_of_functions():
    q = cpd.quantizer("e4m3", "e5m2")
    x, g = normal(3, 8), normal(3, 8, seed=1)
    assert same(torch.vmap(q)(x), q(x))
    for blocks in ("mxfp8", "fp8-block 4x4"):  # no block holds values of two examples
        q_blocks = cpd.quantizer(blocks)
        for batch in (normal(5), normal(5, 8), normal(5, 6, 8)):
            assert same(torch.vmap(q_blocks)(batch), torch.stack([q_blocks(one) for one in batch]))
    _, vjp = torch.func.vjp(q, x)
    assert same(vjp(g)[0], cpd.cast(g, "e5m2"))
    y, tangent = torch.func.jvp(q, (x,), (g,))
    assert same((y, tangent), (cpd.cast(x, "e4m3"), g))


def test_compiled_functions():
    q = cpd.quantizer("e4m3", "e5m2")
    run, counter = compiled(lambda x: q(x * 2) * 3)
    for seed in range(3):
        x, z = (normal(4, 8, seed=seed).requires_grad_() for _ in range(2))
        run(x).sum().backward()
        (q(z * 2) * 3).sum().backward()
        assert same(x.grad, z.grad)
    assert counter.frame_count == 1


# ---- the module ----------------------------------------------------------------------------------


def drawing():
    return cpd.quantizer(STOCHASTIC, "e5m2 rounding=stochastic", seed=4)


def run(module, steps=1, seed=0):
    """Calls the module on random inputs. Returns its results and the gradients of the inputs."""
    found = []
    for step in range(steps):
        x = normal(5, 16, seed=seed + step).requires_grad_()
        y = module(x)
        y.backward(normal(5, 16, seed=99))
        found += [y.detach(), x.grad]
    return found


def test_the_clock_counts_calls_in_training_mode():
    module, x = drawing(), normal(64)
    for step in (1, 2, 3):
        assert same(module(x), module.quantize(x, stream=step << SHIFT))
        assert module.step.item() == step
    module.eval()
    assert same(module(x), module(x))
    assert module.step.item() == 3


def test_a_run_goes_on_from_its_state():
    whole = run(drawing(), 4)
    first = drawing()
    run(first, 2)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = drawing()
    second.load_state_dict(torch.load(file))
    assert same(run(second, 2, seed=2), whole[4:])


def test_copies_go_on_by_themselves():
    module = drawing()
    run(module, 2)
    others = copy.deepcopy(module), pickle.loads(pickle.dumps(module))
    for other in others:
        assert same(run(other), run(copy.deepcopy(module)))
        assert (other.step.item(), module.step.item()) == (3, 2)
    assert list(module.state_dict()) == ["step"]


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints_repeat_the_bits(reentrant):
    plain, repeated = drawing(), drawing()
    for seed in range(2):
        x, z = (normal(5, 16, seed=seed).requires_grad_() for _ in range(2))
        plain(x).square().sum().backward()
        checkpoint(lambda z: repeated(z).square(), z, use_reentrant=reentrant).sum().backward()
        assert same(x.grad, z.grad)
    assert repeated.step.item() == 2


def test_compiled_modules_are_eager_ones():
    eager, module = drawing(), drawing()
    fast, counter = compiled(module)
    assert same(run(fast, 3), run(eager, 3))
    assert counter.frame_count == 1
    assert same(module.step, eager.step)


def test_it_stands_anywhere():
    model = nn.Sequential(nn.Linear(8, 8), cpd.quantizer("e4m3", "e5m2"), nn.Linear(8, 2))
    x = normal(3, 8)
    y = model[2](cpd.quantizer("e4m3", "e5m2")(model[0](x)))
    y.sum().backward()
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x).sum().backward()
    assert same([p.grad for p in model.parameters()], wanted)
    assert not same(wanted, by_torch(model, x))


def by_torch(model, x):
    model.zero_grad()
    model[2](model[0](x)).sum().backward()
    return [p.grad for p in model.parameters()]


def test_wrong_arguments():
    for error, message, call in (
        (ValueError, "unknown format 'e9x2'", lambda: cpd.quantizer("e9x2")),
        (TypeError, "a dtype, got int", lambda: cpd.quantizer(3)),
        (ValueError, "axis must be an int, or one for", lambda: cpd.quantizer(axis=(1, 2, 3))),
        (TypeError, "axis must be an int, got str", lambda: cpd.quantizer(axis="x")),
        (ValueError, r"seed must be 0…2\^64 - 1, got -1", lambda: cpd.quantizer(seed=-1)),
        (TypeError, "x must be a torch tensor, got list", lambda: cpd.quantizer("e4m3")([1.0])),
        (
            ValueError,
            "fp16 cannot represent every value of bf16",
            lambda: cpd.quantizer("bf16")(torch.zeros(2, dtype=torch.float16)),
        ),
        (
            ValueError,
            "transform=, factor= and history= are for the operands",
            lambda: cpd.quantizer("mxfp4 factor=0.75")(torch.zeros(32)),
        ),
    ):
        with pytest.raises(error, match=message):
            call()
