# SPDX-License-Identifier: Apache-2.0
"""Tests attention. With torch's own sums ("native"), attention gives torch's results. With sums in
a narrow format, attention gives the bits of the same computation written by hand."""

from __future__ import annotations

import copy
import math
import subprocess
import sys

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402

from cpd import functional as ours  # noqa: E402
from cpd.nn.attention import HEADS, KEY, OUTPUT, QUERY, SCORES, SOFTMAX, VALUE, VALUES  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from cpd.numeric.streams import stream_tag  # noqa: E402
from tensors import close, compiled, normal, same  # noqa: E402

FP8 = cpd.Recipe("native", activation="e4m3fn", weight="e4m3fn", gradient="e5m2")
SUMS = "e6m9 chunked chunk=5 rounding=stochastic random_bits=8"
DRAWN = cpd.Cast("e4m3", rounding="stochastic", random_bits=8)
NATIVE = cpd.Recipe("native", attention="native")
RECIPES = {
    "native": NATIVE,
    "softmax": cpd.Recipe("native", softmax="(4,3)"),
    "fp8": cpd.Recipe("native", attention=FP8, softmax="e5m6"),
    "mx": cpd.Recipe(
        "native",
        attention=cpd.Recipe(sums="fp32", activation="mxfp8", weight="mxfp8", output="bf16"),
    ),
    "drawing": cpd.Recipe(
        sums=SUMS,
        weight=DRAWN,
        attention=cpd.Recipe(sums=SUMS, gradient=DRAWN),
        softmax=DRAWN,
    ),
}
STREAM = 5 << 36


def tensors(*shape, length=6, keys=7):
    """Returns random query, key and value. Query and key have 8 features, and the value has 5."""
    shapes = (*shape, length, 8), (*shape, keys, 8), (*shape, keys, 5)
    return tuple(normal(*each, seed=i) for i, each in enumerate(shapes))


def with_gradients(f, leaves):
    """Calls `f`. Returns its results except None, and the gradients of a weighted sum of these
    results with respect to the tensors `leaves`."""
    made = f()
    results = [y for y in (made if isinstance(made, tuple) else (made,)) if y is not None]
    total = sum((y * normal(*y.shape, seed=i)).sum() for i, y in enumerate(results))
    return [y.detach() for y in results], torch.autograd.grad(total, leaves)


class Rounded(torch.autograd.Function):
    """Rounds attention weights in the forward pass, and their gradient in the backward pass, by
    cpd.cast."""

    @staticmethod
    def forward(ctx, x, how, stream):
        ctx.how, ctx.stream = how, stream
        return cast(x, how, stream, "cast_output")

    @staticmethod
    def backward(ctx, g):
        return cast(g, ctx.how, ctx.stream, "cast_gradient"), None, None


def cast(x, how, stream, purpose):
    spec = how.softmax
    tagged = (stream ^ stream_tag(Purpose[purpose])) % 2**64
    return cpd.cast(x, spec, stream=tagged)


def by_hand(q, k, v, mask, how, stream=STREAM, scale=None):
    """Computes attention by its definition, with a separate product for each step."""

    def product(a, b, position):
        if how.attention is None:
            return a @ b
        return ours.matmul(a, b, recipe=how.attention, stream=stream ^ position)

    scores = product(q, k.mT, SCORES) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
    weights = torch.softmax(scores, -1)
    if how.softmax is not None:
        weights = Rounded.apply(weights, how, stream ^ SOFTMAX)
    return product(weights, v, VALUES), weights


CASES = {
    "plain": {},
    "boolean": {"attn_mask": normal(6, 7, seed=5) > -1},
    "added": {"attn_mask": normal(2, 1, 6, 7, seed=5)},
    "causal": {"is_causal": True},
    "scaled": {"scale": 0.3},
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", RECIPES)
def test_attention_by_hand_and_torchs(name, case):
    """Attention has the bits of its definition, in the result and the gradients. With torch's own
    sums ("native"), it has torch's values."""
    leaves = [x.requires_grad_() for x in tensors(2, 3)]
    how, options = RECIPES[name], CASES[case]
    mask = options.get("attn_mask")
    if case == "causal":
        mask = torch.ones(6, 7, dtype=torch.bool).tril()
    got = with_gradients(
        lambda: ours.scaled_dot_product_attention(*leaves, **options, recipe=how, stream=STREAM),
        leaves,
    )
    wanted = with_gradients(
        lambda: by_hand(*leaves, mask, how, scale=options.get("scale"))[0], leaves
    )
    assert same(got, wanted)
    theirs = with_gradients(lambda: F.scaled_dot_product_attention(*leaves, **options), leaves)
    assert close(got, theirs) == (name == "native")


def test_attention_without_a_recipe_for_it_is_torchs():
    q, k, v = tensors(2, 3)
    how = cpd.Recipe(sums="e4m3", norm="(4,3)")
    assert same(
        ours.scaled_dot_product_attention(q, k, v, recipe=how),
        F.scaled_dot_product_attention(q, k, v),
    )
    given = cpd.Recipe(attention=cpd.Recipe("e5m2", sums="e4m3"))
    narrow = ours.scaled_dot_product_attention(q, k, v, recipe=given)
    assert same(narrow, by_hand(q, k, v, None, given)[0])
    cast = ours.scaled_dot_product_attention(q, k, v, recipe="int8 row")  # of both products
    given = cpd.Recipe(attention="int8 row")
    assert same(cast, ours.scaled_dot_product_attention(q, k, v, recipe=given))
    assert not same(cast, F.scaled_dot_product_attention(q, k, v))


def test_heads_may_share_keys():
    q, k, v = normal(2, 6, 4, 8), normal(2, 3, 5, 8, seed=1), normal(2, 3, 5, 5, seed=2)
    got = ours.scaled_dot_product_attention(q, k, v, enable_gqa=True, recipe=NATIVE)
    assert close(got, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    with pytest.raises(ValueError, match="heads must be a multiple of key's, got 6 and 4"):
        ours.scaled_dot_product_attention(
            q, normal(2, 4, 5, 8), normal(2, 4, 5, 5), enable_gqa=True, recipe=NATIVE
        )


def test_rows_without_keys_give_zeros():
    q, k, v = tensors(2)
    mask = torch.ones(6, 7, dtype=torch.bool)
    mask[2] = False
    y = ours.scaled_dot_product_attention(q, k, v, mask, recipe=RECIPES["fp8"])
    assert y[:, 2].eq(0).all()
    assert y[:, 1].ne(0).all()


def test_dropout_is_torchs():
    q, k, v = tensors(2)
    torch.manual_seed(1)
    got = ours.scaled_dot_product_attention(q, k, v, dropout_p=0.5, recipe=NATIVE)
    torch.manual_seed(1)
    _, weights = by_hand(q, k, v, None, NATIVE)
    assert close(got, F.dropout(weights, 0.5) @ v)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_types_have_scores_in_float32(dtype):
    q, k, v = (x.to(dtype) for x in tensors(2))
    how = cpd.Recipe("native", attention="native", softmax="(4,3)")
    got = ours.scaled_dot_product_attention(q, k, v, recipe=how)
    scores = q.float() @ k.float().mT * (1 / math.sqrt(8))
    weights = cpd.cast(torch.softmax(scores, -1), "e4m3").to(dtype)
    assert same(got, weights @ v)
    with pytest.raises(ValueError, match="cannot represent"):
        ours.scaled_dot_product_attention(q, k, v, recipe=cpd.Recipe("native", softmax="e7m11"))


def test_attention_under_vmap():
    q, k, v = tensors(3, 2)
    how = RECIPES["fp8"]

    def attend(q, k, v):
        return ours.scaled_dot_product_attention(q, k, v, recipe=how)

    assert close(torch.func.vmap(attend)(q, k, v), attend(q, k, v))


def test_attention_says_what_it_does_not_take():
    q, k, v = tensors(2)
    how = RECIPES["fp8"]
    with pytest.raises(ValueError, match=r"query must be … × L × E, key … × S × E"):
        ours.scaled_dot_product_attention(q, k[..., :5], v, recipe=how)
    with pytest.raises(ValueError, match="is_causal and attn_mask exclude each other"):
        ours.scaled_dot_product_attention(q, k, v, torch.zeros(6, 7), is_causal=True, recipe=how)
    with pytest.raises(TypeError, match="key must be a torch tensor"):
        ours.scaled_dot_product_attention(q, k.numpy(), v, recipe=how)


# ---- many heads ----------------------------------------------------------------------------------


def layer(**options):
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(8, 2, **options)
    for p in module.parameters():
        torch.nn.init.normal_(p, std=0.4)
    return module


def arguments(module):
    """Returns the arguments that torch.nn.MultiheadAttention passes to its function."""
    packed = module._qkv_same_embed_dim
    return (
        8,
        2,
        module.in_proj_weight,
        module.in_proj_bias,
        module.bias_k,
        module.bias_v,
        module.add_zero_attn,
        0.0,
        module.out_proj.weight,
        module.out_proj.bias,
    ), {
        "use_separate_proj_weight": not packed,
        **({} if packed else {n: getattr(module, n) for n in SEPARATE}),
    }


SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
FLOATS = torch.zeros(4, 7, 7).masked_fill(normal(4, 7, 7) > 1, -math.inf)
PADDING = torch.zeros(2, 7, dtype=torch.bool).index_fill(1, torch.tensor([5, 6]), True)
CAUSAL = torch.ones(7, 7, dtype=torch.bool).triu(1)
HEADED = {
    "plain": ({}, {}),
    "no bias": ({"bias": False}, {"need_weights": False}),
    "widths": ({"kdim": 5, "vdim": 3}, {"average_attn_weights": False}),
    "masks": ({}, {"attn_mask": CAUSAL, "key_padding_mask": PADDING}),
    "causal": ({}, {"attn_mask": CAUSAL, "is_causal": True, "need_weights": False}),
    "added": ({}, {"attn_mask": FLOATS, "need_weights": False}),
    "more keys": (
        {"add_bias_kv": True, "add_zero_attn": True},
        {"attn_mask": CAUSAL, "key_padding_mask": PADDING},
    ),
}


@pytest.mark.parametrize("case", HEADED)
@pytest.mark.parametrize("sharing", ["none", "key", "all"])
def test_native_heads_are_torchs(case, sharing):
    made, options = HEADED[case]
    module = layer(**made)
    shapes = (7, 2, 8), (7, 2, made.get("kdim", 8)), (7, 2, made.get("vdim", 8))
    query, key, value = (normal(*shape, seed=i) for i, shape in enumerate(shapes))
    if module._qkv_same_embed_dim:
        key = query if sharing == "all" else key
        value = key if sharing != "none" else value
    given, more = arguments(module)
    leaves = list(module.parameters())
    call = (query, key, value, *given)
    for how in (NATIVE, cpd.Recipe("native")):
        got = with_gradients(
            lambda how=how: ours.multi_head_attention(*call, **more, **options, recipe=how), leaves
        )
        wanted = with_gradients(
            lambda: F.multi_head_attention_forward(*call, **more, **options), leaves
        )
        assert close(got, wanted)


@pytest.mark.parametrize("sharing", ["none", "key", "all"])
@pytest.mark.parametrize("name", ["fp8", "drawing"])
def test_heads_by_hand(name, sharing):
    """In multi-head attention, projections follow the recipe, and attention follows the recipe's
    `attention`. Each product has its own random stream."""
    how, module = RECIPES[name], layer()
    query, key, value = (normal(6, 2, 8, seed=i) for i in range(3))
    key = query if sharing == "all" else key
    value = key if sharing != "none" else value
    weight, bias = module.in_proj_weight, module.in_proj_bias
    leaves = list(module.parameters())

    def project(x, first, last, position):
        w, b = weight[8 * first : 8 * last], bias[8 * first : 8 * last]
        y = ours.linear(x, w, b, recipe=how, stream=STREAM ^ position)
        return y.split(8, -1)

    def hand():
        if sharing == "all":
            parts = project(query, 0, 3, QUERY)
        elif sharing == "key":
            parts = *project(query, 0, 1, QUERY), *project(key, 1, 3, KEY)
        else:
            parts = [
                project(x, i, i + 1, position)[0]
                for i, (x, position) in enumerate(
                    zip((query, key, value), (QUERY, KEY, VALUE), strict=True)
                )
            ]
        heads = [x.reshape(6, 2, 2, 4).permute(1, 2, 0, 3) for x in parts]
        y, weights = by_hand(*heads, None, how, STREAM ^ HEADS)
        y = y.permute(2, 0, 1, 3).reshape(6, 2, 8)
        out = module.out_proj
        y = ours.linear(y, out.weight, out.bias, recipe=how, stream=STREAM ^ OUTPUT)
        return y, weights.mean(dim=1)

    given, _ = arguments(module)
    got = with_gradients(
        lambda: ours.multi_head_attention(query, key, value, *given, recipe=how, stream=STREAM),
        leaves,
    )
    assert same(got, with_gradients(hand, leaves))


def test_one_example_without_a_batch():
    module = layer()
    x = normal(6, 8)
    given, _ = arguments(module)
    mask = torch.zeros(6, dtype=torch.bool).index_fill(0, torch.tensor(5), True)
    got = ours.multi_head_attention(x, x, x, *given, key_padding_mask=mask, recipe=NATIVE)
    wanted = F.multi_head_attention_forward(x, x, x, *given, key_padding_mask=mask)
    assert close(got, wanted)


@pytest.mark.parametrize("zero", [False, True])
def test_given_keys_and_values_stand_in_their_place(zero):
    given, _ = arguments(layer(add_zero_attn=zero))
    x = normal(6, 2, 8)
    more = {"static_k": normal(4, 5, 4, seed=1), "static_v": normal(4, 5, 4, seed=2)}
    got = ours.multi_head_attention(x, x, x, *given, **more, recipe=NATIVE)
    assert close(got, F.multi_head_attention_forward(x, x, x, *given, **more))


@pytest.mark.exhaustive
def test_compiled_heads_have_eagers_bits():
    module, stream = layer(), torch.tensor(0)
    x = normal(6, 2, 8)
    given, _ = arguments(module)
    leaves = list(module.parameters())
    how = RECIPES["drawing"]

    def run():
        y, _ = ours.multi_head_attention(
            x, x, x, *given, need_weights=False, recipe=how, stream=stream
        )
        return y

    program, counter = compiled(run)
    seen = []
    for step in (1, 2):
        stream.fill_(step << 36)
        seen.append(with_gradients(program, leaves))
        assert same(seen[-1], with_gradients(run, leaves))
    assert not same(*seen)
    assert counter.frame_count == 1


def test_heads_say_what_they_do_not_take():
    module = layer()
    x = normal(6, 2, 8)
    given, _ = arguments(module)
    with pytest.raises(ValueError, match="is_causal says that attn_mask is causal"):
        ours.multi_head_attention(x, x, x, *given, is_causal=True, recipe=NATIVE)
    with pytest.raises(ValueError, match="query must have 8 features"):
        ours.multi_head_attention(x[..., :4], x, x, *given, recipe=NATIVE)
    nested = torch.nested.nested_tensor([x[0], x[1]])
    with pytest.raises(TypeError, match="query must be a dense tensor, got a nested one"):
        ours.multi_head_attention(nested, nested, nested, *given, recipe=NATIVE)


# ---- converted layers ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["plain", "no bias", "widths", "more keys", "causal"])
@pytest.mark.parametrize("batch_first", [False, True])
def test_converted_layers_are_torchs_with_native_sums(case, batch_first):
    """With torch's own sums ("native"), a converted MultiheadAttention equals torch's layer. This
    holds in training mode and in eval mode, in which torch would take its fast path."""
    made, options = HEADED[case]
    module = layer(**made, batch_first=batch_first)
    names = list(module.state_dict())
    converted = copy.deepcopy(module)
    first, inner = cpd.convert(converted, NATIVE)
    assert (first.what, first.how) == ("attention", str(NATIVE))
    assert (inner.name, inner.what, inner.how) == ("out_proj", "", "within the model")
    assert list(converted.state_dict()) == names
    shapes = (7, 2, 8), (7, 2, made.get("kdim", 8)), (7, 2, made.get("vdim", 8))
    x = [normal(*shape, seed=i) for i, shape in enumerate(shapes)]
    x = [each.transpose(0, 1) for each in x] if batch_first else x
    x = x if made.get("kdim") else [x[0]] * 3
    for training in (True, False):
        with torch.set_grad_enabled(training):
            wanted = module.train(training)(*x, **options)
            got = converted.train(training)(*x, **options)
        assert close([y for y in got if y is not None], [y for y in wanted if y is not None])


def test_a_converted_layer_is_the_function_in_any_mode():
    module = layer()
    cpd.convert(module, RECIPES["drawing"])
    x = normal(6, 2, 8)
    given, _ = arguments(module)
    for training in (True, True, False):
        y = module.train(training)(x, x, x)
        how = {"recipe": module.cpd.recipe, **module.cpd.numbers()}
        assert same(y, ours.multi_head_attention(x, x, x, *given, **how))
    with torch.no_grad():
        assert same(module(x, x, x), [z.detach() for z in y])
    program, counter = compiled(module)
    assert same(program(x, x, x), y)
    assert counter.frame_count == 1


ENCODED = cpd.Recipe(sums="e5m3", attention=cpd.Recipe(sums="e5m3"), softmax="(4,3)", norm="e5m6")
LATER = ENCODED.replace(schedule=[("step", 0, None)])
ENCODERS = {
    "all layers emulated": ([], None),
    "a layer left by a rule": ([("layers.0", None)], None),
    "a layer left by a schedule": ([("layers.1.*", LATER)], None),
    "the first layer off": ([], 0),
    "the second layer off": ([], 1),
}


@pytest.mark.parametrize("case", ENCODERS)
def test_an_encoder_with_an_emulated_layer_has_no_fast_path(case):
    """An encoder with an emulated layer does not take torch's fast path. In eval mode it computes
    the same as in training mode, also for padded batches. If a schedule leaves all parts of a layer
    to torch, results agree up to the order of sums."""
    rules, off = ENCODERS[case]
    alike = close if "schedule" in case else same
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = torch.nn.TransformerEncoder(block, 2)
    plain = copy.deepcopy(model)
    cpd.convert(model, ENCODED, rules, coverage=False)
    x = normal(2, 7, 8)
    whole = model(x)
    if off is not None:
        model.layers[off].linear1.cpd.set_off(True)
        assert not same(model(x), whole)
    for mask in (None, PADDING):
        trained = model.train()(x, src_key_padding_mask=mask).detach()
        assert not close(trained, plain(x, src_key_padding_mask=mask))
        with torch.no_grad():
            assert alike(model.eval()(x, src_key_padding_mask=mask), trained)
    cpd.restore(model)
    assert [type(m) for m in model.modules()] == [type(m) for m in plain.modules()]
    assert model.layers[0].activation_relu_or_gelu
    assert model.use_nested_tensor
    assert same(model(x), plain.eval()(x))


def test_exported_programs_have_eagers_bits(tmp_path):
    module = layer().eval()
    cpd.convert(module, RECIPES["fp8"])
    x = normal(6, 2, 8)
    torch.export.save(torch.export.export(module, (x, x, x)), tmp_path / "program.pt2")
    torch.save((x, module(x, x, x)), tmp_path / "tensors.pt")
    script = (
        "import cpd._torch.operators, sys, torch\n"
        "x, wanted = torch.load(sys.argv[2])\n"
        "got = torch.export.load(sys.argv[1]).module()(x, x, x)\n"
        "assert all(map(torch.equal, got, wanted))\n"
    )
    files = [tmp_path / "program.pt2", tmp_path / "tensors.pt"]
    subprocess.run([sys.executable, "-c", script, *files], check=True)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_converted_encoder_on_cuda():
    torch.manual_seed(0)
    block = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    cpd.convert(
        block,
        cpd.Recipe(sums="e8m20", attention=cpd.Recipe(sums="e8m20"), softmax="e8m20", norm="e8m20"),
    )
    x = normal(2, 7, 8)
    wanted = with_gradients(lambda: block(x), list(block.parameters()))
    block.cuda()
    y, gradients = with_gradients(lambda: block(x.cuda()).cpu(), list(block.parameters()))
    assert close((y, [g.cpu() for g in gradients]), wanted, 1e-3)
