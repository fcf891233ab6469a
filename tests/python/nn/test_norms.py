# SPDX-License-Identifier: Apache-2.0
"""Tests norms and embeddings whose results and incoming gradients are rounded, and the rounding
itself."""

from __future__ import annotations

import copy

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cpd import functional as ours  # noqa: E402
from cpd._torch.rounding import rounded  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from cpd.numeric.streams import stream_tag  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

NARROW = cpd.Recipe("native", norm="(4,3)", embedding="(4,3)")
DRAWN = cpd.Cast("e4m3", rounding="stochastic", random_bits=8)
DRAWING = cpd.Recipe("native", norm=DRAWN, embedding=DRAWN)
PLAIN = cpd.Recipe("native")


def by_hand(x, spec, purpose, stream=0):
    """Casts `x` as a layer does, with the random stream that the layer uses for `purpose`."""
    tagged = (stream ^ stream_tag(Purpose[purpose])) % 2**64
    how = cpd.Cast(spec.format, rounding=spec.rounding, random_bits=spec.random_bits)
    return cpd.cast(x, how, seed=3, stream=tagged)


def gradients(f, *operands, seed=9):
    """Returns the result, and the gradients of all operands that are floating-point tensors."""
    leaves = [
        x.detach().clone().requires_grad_()
        if isinstance(x, torch.Tensor) and x.is_floating_point()
        else x
        for x in operands
    ]
    y = f(*leaves)
    wanted = [x for x in leaves if isinstance(x, torch.Tensor) and x.requires_grad]
    return y, *torch.autograd.grad(y, wanted, normal(*y.shape, seed=seed, dtype=y.dtype))


def layer_norm(x, w, b, **how):
    return (ours if how else F).layer_norm(x, (6,), w, b, **how)


def rms_norm(x, w, **how):
    return (ours if how else F).rms_norm(x, (6,), w, **how)


def group_norm(x, w, b, **how):
    return (ours if how else F).group_norm(x, 3, w, b, **how)


def batch_norm(x, w, b, **how):
    return (ours if how else F).batch_norm(x, None, None, w, b, True, **how)


def instance_norm(x, w, b, **how):
    return (ours if how else F).instance_norm(x, None, None, w, b, **how)


NORMS = (layer_norm, rms_norm, group_norm, batch_norm, instance_norm)


def operands(norm, dtype=torch.float32):
    shapes = ((4, 6, 6), (6,)) if norm is rms_norm else ((4, 6, 6), (6,), (6,))
    return tuple(normal(*shape, seed=i, dtype=dtype) for i, shape in enumerate(shapes))


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("spec", [cpd.Cast("e4m3"), DRAWN], ids=str)
def test_norms_are_torchs_rounded(norm, spec):
    """If a recipe names a format for norms, a norm's result is torch's result, rounded to it. The
    gradient of the result is rounded before torch's backward pass of the norm."""
    how = cpd.Recipe("native", norm=spec)
    got = gradients(lambda *a: norm(*a, recipe=how, seed=3, stream=5 << 36), *operands(norm))

    leaves = [t.clone().requires_grad_() for t in operands(norm)]
    y = norm(*leaves)
    g = by_hand(normal(*y.shape, seed=9), spec, "cast_gradient", 5 << 36)
    wanted = (
        by_hand(y.detach(), spec, "cast_output", 5 << 36),
        *torch.autograd.grad(y, leaves, g),
    )
    assert same(got, wanted)


@pytest.mark.parametrize("norm", NORMS)
def test_norms_without_a_format_are_torchs(norm):
    assert same(
        gradients(lambda *a: norm(*a, recipe=PLAIN), *operands(norm)),
        gradients(norm, *operands(norm)),
    )


@pytest.mark.parametrize("norm", NORMS)
def test_narrow_types_are_rounded_once(norm):
    """A norm of bfloat16 values is computed in float32 and rounded once."""
    narrow = operands(norm, torch.bfloat16)
    got = norm(*narrow, recipe=NARROW)
    assert got.dtype == torch.bfloat16
    assert same(got, cpd.cast(norm(*(x.float() for x in narrow)), "e4m3").bfloat16())


def test_running_statistics_are_torchs():
    x = operands(batch_norm)[0]
    for dtype in (torch.float32, torch.bfloat16):
        mine = [torch.zeros(6, dtype=dtype), torch.ones(6, dtype=dtype)]
        theirs = [s.float() for s in mine]
        for training in (True, False):
            y = ours.batch_norm(x.to(dtype), *mine, training=training, recipe=NARROW)
            z = F.batch_norm(x.to(dtype).float(), *theirs, training=training)
            theirs = [s.to(dtype).float() for s in theirs]
            assert same(y, cpd.cast(z, "e4m3").to(dtype))
            assert same(mine, [s.to(dtype) for s in theirs])


@pytest.mark.parametrize("is_compiled", [False, True])
@pytest.mark.parametrize("norm", ["batch_norm", "instance_norm"])
def test_running_statistics_move_once_a_call(norm, is_compiled):
    """Running statistics are updated once per call, even if the result is rounded and a compiled
    backward pass computes the layer again."""
    how = {"training": True} if norm == "batch_norm" else {}
    recipe = cpd.Recipe("native", output="bf16")

    def normed(x, mean, var):
        return getattr(ours, norm)(x, mean, var, **how, recipe=recipe)

    program = torch.compile(normed, backend="aot_eager") if is_compiled else normed
    x = normal(4, 3, 5).requires_grad_()
    mine, theirs = ([torch.zeros(3), torch.ones(3)] for _ in range(2))
    for _ in range(2):
        program(x, *mine).sum().backward()
        getattr(F, norm)(x, *theirs, **how)
    assert same(mine, theirs)


@pytest.mark.few("", 3)
@pytest.mark.parametrize("norm", NORMS)
def test_compiled_norms_have_eagers_bits(norm):
    stream = torch.tensor(1 << 36)
    program, counter = compiled(lambda *a: norm(*a, recipe=DRAWING, stream=stream))
    for step in (1, 2):
        stream.fill_(step << 36)
        got = gradients(program, *operands(norm))
        assert same(
            got, gradients(lambda *a: norm(*a, recipe=DRAWING, stream=stream), *operands(norm))
        )
    assert counter.frame_count == 1


def test_norms_say_what_they_do_not_take():
    x = torch.ones(2, 4, dtype=torch.float16)
    with pytest.raises(ValueError, match="cannot represent"):
        ours.layer_norm(x, (4,), recipe=cpd.Recipe("native", norm="bf16"))
    wide = ours.layer_norm(x, (4,), recipe=cpd.Recipe("native", norm="bf16"), dtype=torch.float32)
    assert wide.dtype == torch.float32
    with pytest.raises(TypeError, match="input must be of type"):
        ours.layer_norm(x.double(), (4,), recipe=NARROW)
    for statistics in ((torch.ones(4), None), (None, torch.ones(4))):
        with pytest.raises(ValueError, match="give both running_mean and running_var"):
            ours.instance_norm(torch.ones(2, 4, 3), *statistics, recipe=PLAIN)


# ---- embeddings ----------------------------------------------------------------------------------


INDICES = torch.tensor([[1, 4, 1], [0, 2, 4]])


@pytest.mark.parametrize("recipe", [NARROW, DRAWING], ids=("nearest", "stochastic"))
@pytest.mark.parametrize(
    "options", [{}, {"padding_idx": 4}, {"scale_grad_by_freq": True}, {"sparse": True}], ids=str
)
def test_rows_are_rounded_and_the_gradient_is_torchs(options, recipe):
    table = normal(5, 6)
    got, wanted = table.clone().requires_grad_(), table.clone().requires_grad_()
    y = ours.embedding(INDICES, got, recipe=recipe, seed=3, **options)
    z = F.embedding(INDICES, wanted, **options)
    assert same(y, by_hand(z.detach(), recipe.embedding, "cast_output"))
    g = normal(*y.shape, seed=1)
    y.backward(g)
    z.backward(g)
    assert got.grad.is_sparse == options.get("sparse", False)
    assert same(got.grad.to_dense(), wanted.grad.to_dense())


def test_max_norm_renormalises_in_place():
    table, twin = (normal(5, 6) for _ in range(2))
    y = ours.embedding(INDICES, table, max_norm=1.0, recipe=NARROW)
    z = F.embedding(INDICES, twin, max_norm=1.0)
    assert same((table, y), (twin, cpd.cast(z, "e4m3")))


@pytest.mark.exhaustive
def test_compiled_embeddings_have_eagers_bits():
    def look_up(table):
        return ours.embedding(INDICES, table, recipe=DRAWING, seed=3, stream=1 << 36)

    program, counter = compiled(look_up)
    table = normal(5, 6)
    assert same(gradients(program, table), gradients(look_up, table))
    assert counter.frame_count == 1


# ---- the rounding itself -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("forward", "backward"), [("e4m3", "e5m2"), ("e4m3", None), (None, DRAWN), (DRAWN, DRAWN)]
)
def test_rounded_both_ways(forward, backward):
    specs = [cpd.Cast(s) if isinstance(s, str) else s for s in (forward, backward)]
    x, g = normal(5, 7), normal(5, 7, seed=1)

    def run(x):
        return rounded(x, *specs, seed=3, stream=5)

    def cast(t, spec, purpose):
        return t if spec is None else by_hand(t, spec, purpose, 5)

    wanted = cast(x, specs[0], "cast_output"), cast(g, specs[1], "cast_gradient")
    for f in (run, compiled(run)[0]):
        leaf = x.clone().requires_grad_()
        y = f(leaf)
        assert same((y, *torch.autograd.grad(y, leaf, g)), wanted)
    assert same(torch.func.jvp(run, (x,), (g,)), (wanted[0], g))
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(run(leaf).square().sum() / 2, leaf, create_graph=True)
    assert same(torch.autograd.grad(first, leaf, g)[0], wanted[1])


def test_rounded_under_vmap():
    first, second = cpd.Cast("e4m3"), cpd.Cast("e5m2")
    x, g = normal(5, 7), normal(5, 7, seed=1)

    def loss(x, g):
        return (rounded(x, first, second) * g).sum()

    assert same(torch.func.vmap(lambda x: rounded(x, first, second))(x), cpd.cast(x, "e4m3"))
    assert same(torch.func.vmap(torch.func.grad(loss))(x, g), cpd.cast(g, "e5m2"))
    with pytest.raises(RuntimeError, match="randomness='same'"):
        torch.func.vmap(lambda x: rounded(x, DRAWN, None))(x)
    alone = torch.stack([rounded(one, DRAWN, None) for one in x])
    same_bits = torch.func.vmap(lambda x: rounded(x, DRAWN, None), randomness="same")(x)
    assert same(same_bits, alone)


def test_round_both_passes_opcheck():
    x = normal(3, 4).requires_grad_()
    torch.library.opcheck(torch.ops.cpd.round_both.default, (x, "e4m3", "e5m2", -1, None))


# ---- what is kept from compilers -----------------------------------------------------------------


def test_inductor_keeps_eagers_bits():
    """A rms_norm compiled by inductor has the bits of eager mode. The inputs are chosen so that
    torch's own function would give different bits."""
    x, w = normal(64, 256), normal(256, seed=1)

    def run(x, w):
        return ours.rms_norm(x, (256,), w, recipe=PLAIN)

    program, counter = compiled(run, "inductor")
    assert same(gradients(program, x, w), gradients(run, x, w))
    assert counter.frame_count == 1


@pytest.mark.few("", 3)
@pytest.mark.parametrize("norm", NORMS)
def test_autocast_rounds_norms_in_compiled_programs_too(norm):
    def run(*given):
        with cpd.autocast(NARROW):
            return norm(*given)

    given = operands(norm)
    program, _ = compiled(run)
    assert same((program(*given), run(*given)), (norm(*given, recipe=NARROW),) * 2)


# ---- converted layers ----------------------------------------------------------------------------


LAYERS = {
    "LayerNorm": ((6,), (4, 6, 6)),
    "RMSNorm": ((6,), (4, 6, 6)),
    "GroupNorm": ((3, 6), (4, 6, 6)),
    "BatchNorm1d": ((6,), (4, 6, 5)),
    "BatchNorm2d": ((6,), (4, 6, 5, 3)),
    "BatchNorm3d": ((6, 1e-5, None), (4, 6, 5, 3, 2)),
    "InstanceNorm1d": ((6,), (6, 5)),
    "InstanceNorm2d": ((6, 1e-5, 0.1, True, True), (4, 6, 5, 3)),
    "InstanceNorm3d": ((6,), (4, 6, 5, 3, 2)),
}


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", LAYERS)
def test_converted_norms_are_torchs_rounded(name):
    """A converted norm rounds torch's result, in training and in evaluation mode. Its running
    statistics equal torch's."""
    given, shape = LAYERS[name]
    layer = getattr(torch.nn, name)(*given)
    for p in layer.parameters():
        torch.nn.init.normal_(p)
    converted = copy.deepcopy(layer)
    (row,) = cpd.convert(converted, NARROW)
    assert (row.what, row.how) == ("norm", "norm='e4m3'")
    x = normal(*shape)
    for training in (True, True, False):
        wanted, got = layer.train(training)(x), converted.train(training)(x)
        assert same(got, cpd.cast(wanted.detach(), "e4m3"))
    assert same(converted.state_dict(), layer.state_dict()) or not layer.state_dict()
    program, counter = compiled(converted)
    assert same(program(x), converted(x))
    assert counter.frame_count == 1
    cpd.restore(converted)
    assert same(converted(x), layer(x))


def test_a_converted_embedding_is_the_function():
    table = torch.nn.Embedding(5, 6, padding_idx=1)
    wanted = ours.embedding(INDICES, table.weight, 1, recipe=NARROW)
    model = torch.nn.Sequential(table, torch.nn.Linear(6, 5, bias=False))
    model[1].weight = table.weight  # tied
    report = cpd.convert(model, NARROW.replace(activation="fp32"))
    assert [row.what for row in report] == ["table", "products"]
    assert same(table(INDICES), wanted)
    assert model[1].weight is table.weight


def test_layers_without_a_format_stay_torchs():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 6), torch.nn.LayerNorm(6))
    report = cpd.convert(model, PLAIN)
    assert [row.why_not for row in report] == [
        "the recipe has no format for it (embedding=)",
        "the recipe has no format for it (norm=)",
    ]
    assert type(model[1]) is torch.nn.LayerNorm
