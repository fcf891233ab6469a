# SPDX-License-Identifier: Apache-2.0
"""Tests recurrent layers, which CPD computes one time step after another. With torch's own sums
("native"), they give torch's results. Otherwise they give the bits of a loop written by hand."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest

import cpd

torch = pytest.importorskip("torch")

from torch import _VF  # noqa: E402
from torch.nn.utils.rnn import pack_padded_sequence  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd import functional as ours  # noqa: E402
from cpd.nn import recurrent_native  # noqa: E402
from tensors import NARROW, close, compiled, normal, same  # noqa: E402

NATIVE = cpd.Recipe("native", activation="fp32")  # a cast that changes nothing: emulated
DRAWING = cpd.Recipe(
    sums="e4m3 sequential rounding=stochastic random_bits=8",
    activation="(4,3) rounding=stochastic random_bits=8",
    gradient="e5m2 rounding=stochastic random_bits=8",
)
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
LENGTHS = [5, 4, 4, 1]


def torchs(kind, **options):
    """Returns torch's recurrent layer of this kind, with 3 inputs and 4 hidden values."""
    torch.manual_seed(0)
    if kind.startswith("rnn_"):
        return torch.nn.RNN(3, 4, nonlinearity=kind[4:], **options)
    return {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[kind](3, 4, **options)


def function(kind):
    """Returns CPD's functional form for this kind of layer."""
    if kind.startswith("rnn_"):
        return lambda *args, **how: ours.rnn(*args, nonlinearity=kind[4:], **how)
    return getattr(ours, kind)


def states(layer, kind, examples=4):
    chains = layer.num_layers * (2 if layer.bidirectional else 1)
    hidden = normal(chains, examples, layer.proj_size or 4, seed=7)
    return (hidden, normal(chains, examples, 4, seed=8)) if kind == "lstm" else hidden


def arguments(layer):
    """Returns the arguments that the layer's functional form takes after the weights."""
    return (layer.bias, layer.num_layers, 0.0, True, layer.bidirectional, layer.batch_first)


def with_gradients(f, leaves):
    """Returns the results of `f`, and the gradients of a weighted sum of all results for each
    leaf."""
    results = f()
    total = sum((y * normal(*y.shape, seed=i)).sum() for i, y in enumerate(results))
    return [y.detach() for y in results], torch.autograd.grad(total, leaves, materialize_grads=True)


OPTIONS = (
    {},
    {"bias": False, "batch_first": True},
    {"num_layers": 2, "bidirectional": True},
)
PROJECTED = ("lstm", {"proj_size": 2, "num_layers": 2, "bidirectional": True})


@pytest.mark.parametrize(
    ("kind", "options"), [*itertools.product(KINDS, OPTIONS), PROJECTED], ids=str
)
@pytest.mark.parametrize("packed", [False, True], ids=("padded", "packed"))
def test_native_sums_give_torchs_results(kind, options, packed):
    layer = torchs(kind, **options)
    hx = states(layer, kind)
    x = normal(5, 4, 3)
    x = x.transpose(0, 1) if layer.batch_first else x
    leaves = list(layer.parameters())
    if packed:
        rows, sizes, *_ = pack_padded_sequence(x, LENGTHS, batch_first=layer.batch_first)
        mine = (rows, hx, layer._flat_weights, *arguments(layer))
        how = {"batch_sizes": sizes}
        theirs = (rows, sizes, hx, layer._flat_weights, *arguments(layer)[:-1])
    else:
        mine = theirs = (x, hx, layer._flat_weights, *arguments(layer))
        how = {}
    got = with_gradients(lambda: function(kind)(*mine, recipe=NATIVE, **how), leaves)
    wanted = with_gradients(lambda: getattr(_VF, kind)(*theirs), leaves)
    assert close(got, wanted)


# ---- bit for bit ---------------------------------------------------------------------------------


def step_by_hand(kind, x, state, product):
    """Torch's formulas."""
    if kind == "lstm":
        h, c = state
        i, f, g, o = (x + product(h)).chunk(4, -1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c
    h = state[0]
    if kind == "gru":
        (x_r, x_z, x_n), (h_r, h_z, h_n) = x.chunk(3, -1), product(h).chunk(3, -1)
        n = torch.tanh(x_n + torch.sigmoid(x_r + h_r) * h_n)
        return ((h - n) * torch.sigmoid(x_z + h_z) + n,)
    return ((torch.tanh if kind == "rnn_tanh" else torch.relu)(x + product(h)),)


def loop_by_hand(kind, x, state, weights, recipe, stream, chain=0, chains=1, reverse=False):
    """Computes one direction of one layer by a loop, over a padded batch."""
    w_ih, w_hh, b_ih, b_hh, *projection = weights
    how = {"recipe": recipe}

    def at(t, which):
        return (
            how if stream is None else how | {"stream": stream ^ (4 * (t * chains + chain) + which)}
        )

    products = ours.linear(x, w_ih, b_ih, **at(0, 0))
    outputs = [None] * len(x)
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        state = step_by_hand(
            kind, products[t], state, lambda h, t=t: ours.linear(h, w_hh, b_hh, **at(t, 1))
        )
        for w_hr in projection:
            state = ours.linear(state[0], w_hr, **at(t, 2)), *state[1:]
        outputs[t] = state[0]
    return torch.stack(outputs), state


@pytest.mark.parametrize("recipe", [NATIVE, NARROW, DRAWING], ids=("native", "narrow", "drawing"))
@pytest.mark.parametrize("kind", KINDS)
def test_a_layer_is_a_loop_by_hand(kind, recipe):
    """Two layers with two directions give the bits of a loop by hand, in the results and in all
    gradients."""
    layer = torchs(kind, num_layers=2, bidirectional=True)
    hx, x = states(layer, kind), normal(5, 4, 3).requires_grad_()
    leaves = [x, *layer.parameters()]
    stream = 3 << 36 if recipe is DRAWING else None
    order = arguments(layer)

    def mine():
        return function(kind)(x, hx, layer._flat_weights, *order, recipe=recipe, stream=stream)

    def by_hand():
        rows, ends = x, []
        for i in range(2):
            ways = []
            for chain in (2 * i, 2 * i + 1):
                state = tuple(s[chain] for s in (hx if kind == "lstm" else (hx,)))
                y, end = loop_by_hand(
                    kind, rows, state, layer.all_weights[chain], recipe, stream, chain, 4, chain % 2
                )
                ways.append(y)
                ends.append(end)
            rows = torch.cat(ways, -1)
        return rows, *(torch.stack(each) for each in zip(*ends, strict=True))

    assert same(with_gradients(mine, leaves), with_gradients(by_hand, leaves))


# ---- all time steps in one node -----------------------------------------------------------------


FORMATS = ("native activation=(4,3) weight=(4,3) gradient=e5m2", "te-current", "mxfp8", "bf16")


class Unchanged(TorchDispatchMode):
    """A TorchDispatchMode that changes nothing. While a mode is active, a recurrent layer computes
    each time step by separate operations, because the mode must see each product."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


@pytest.fixture
def at_once(monkeypatch):
    """Returns a list that grows by one entry for each layer and direction that is computed as one
    autograd node."""
    taken = []

    def over_time(*args):
        taken.append(args[0])
        return real(*args)

    real = recurrent_native.over_time
    monkeypatch.setattr(recurrent_native, "over_time", over_time)
    return taken


def wide_layer(kind, **options):
    """Returns a layer with 24 inputs and 35 hidden values. The rows of its weights are longer than
    a SIMD vector but not a multiple of a vector's length."""
    torch.manual_seed(1)
    cls = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(kind, torch.nn.RNN)
    named = {"nonlinearity": kind[4:]} if cls is torch.nn.RNN else {}
    return cls(24, 35, **named, **options)


def used(results, which):
    """Returns all results if `which` is "all", else only the result with this index: the output or
    a last state."""
    return results if which == "all" else (results[which],)


@pytest.mark.few("", 4)
@pytest.mark.parametrize("recipe", FORMATS, ids=lambda text: text.split(";")[-1].strip())
@pytest.mark.parametrize("kind", [*KINDS, "projected"])
def test_native_sums_in_one_node_have_the_loops_bits(kind, recipe, at_once):
    """With torch's own sums ("native"), one direction of a layer is one autograd node. Its results
    and gradients have the bits of a loop over time steps. This holds whether the loss uses the
    output, a last state or all results, and for batches or sequences of length one."""
    options = {"proj_size": 9} if kind == "projected" else {}
    kind = "lstm" if options else kind
    layer, how = wide_layer(kind, **options), cpd.Recipe(recipe)
    weights = layer.all_weights[0]
    for steps, examples in ((6, 7), (3, 1), (1, 2)):
        x = normal(steps, examples, 24).requires_grad_()
        first = [normal(1, examples, options.get("proj_size", 35), seed=7).requires_grad_()]
        if kind == "lstm":
            first.append(normal(1, examples, 35, seed=8).requires_grad_())
        leaves = [x, *first, *weights]

        def mine(x=x, first=first):
            hx = tuple(first) if kind == "lstm" else first[0]
            return function(kind)(x, hx, weights, *arguments(layer), recipe=how)

        def by_hand(x=x, first=first):
            y, state = loop_by_hand(kind, x, [s[0] for s in first], weights, how, None)
            return y, *(s[None] for s in state)

        for which in ("all", *range(1 + len(first))):
            got, wanted = (
                with_gradients(lambda f=f: used(f(), which), leaves)  # noqa: B023  # called here
                for f in (mine, by_hand)
            )
            assert same(got, wanted), which
    assert len(at_once) == 3 * (2 + len(first))


@pytest.mark.few("", 3)
@pytest.mark.parametrize("kind", [*KINDS, "projected"])
def test_packed_sequences_in_one_node_have_the_loops_bits(kind, at_once):
    """One direction of a layer over packed sequences is one autograd node, with the bits of a loop
    over time steps. The test covers both directions, losses of the output, of a last state or of
    all results, and gradients that are zeros of either sign."""
    options = {"proj_size": 9} if kind == "projected" else {}
    kind = "lstm" if options else kind
    layer, how = wide_layer(kind, bidirectional=True, **options), cpd.Recipe(FORMATS[0])
    rows, sizes, *_ = pack_padded_sequence(normal(5, 4, 24), LENGTHS)
    rows.requires_grad_()
    first = [normal(2, 4, options.get("proj_size", 35), seed=7).requires_grad_()]
    if kind == "lstm":
        first.append(normal(2, 4, 35, seed=8).requires_grad_())
    leaves = [rows, *first, *layer.parameters()]

    def run(which, scale):
        hx = tuple(first) if kind == "lstm" else first[0]
        order = arguments(layer)
        y = function(kind)(rows, hx, layer._flat_weights, *order, recipe=how, batch_sizes=sizes)
        return with_gradients(lambda: [scale * x for x in used(y, which)], leaves)

    for which in ("all", *range(1 + len(first))):
        for scale in (1.0, -0.0):
            before = len(at_once)
            got = run(which, scale)
            assert len(at_once) == before + 2
            with Unchanged():
                assert same(got, run(which, scale)), (which, scale)


@pytest.mark.parametrize("kind", KINDS)
def test_second_derivatives_of_native_sums_are_the_loops(kind, at_once):
    """With torch's own sums ("native"), second derivatives equal the second derivatives of a loop
    over time steps. Computing them does not change the bits of the first derivatives."""
    layer = torchs(kind)
    x, hx = normal(3, 2, 3).requires_grad_(), states(layer, kind, 2)
    leaves = [x, *layer.parameters()]
    how = cpd.Recipe("native activation=(4,3) weight=(4,3)")

    def derivatives():
        y = function(kind)(x, hx, layer._flat_weights, *arguments(layer), recipe=how)[0]
        first = torch.autograd.grad(y.square().sum(), leaves, create_graph=True)
        return first, torch.autograd.grad(sum(g.square().sum() for g in first), leaves)

    first, second = derivatives()
    assert len(at_once) == 1
    with Unchanged():
        wanted = derivatives()
    assert same(first, wanted[0])
    assert close(second, wanted[1])
    assert len(at_once) == 1


def test_a_frozen_weight_has_no_gradient_and_others_keep_theirs(at_once):
    layer, how = wide_layer("lstm", proj_size=9), cpd.Recipe("mxfp8")
    x, hx = normal(4, 3, 24), (normal(1, 3, 9), normal(1, 3, 35))

    def gradients():
        layer.zero_grad()
        ours.lstm(x, hx, layer._flat_weights, *arguments(layer), recipe=how)[0].sum().backward()
        return [w.grad for w in layer.parameters()]

    whole = gradients()
    for frozen in range(len(whole)):
        for i, w in enumerate(layer.parameters()):
            w.requires_grad_(i != frozen)
        own = gradients()
        assert own[frozen] is None
        assert same(own[:frozen] + own[frozen + 1 :], whole[:frozen] + whole[frozen + 1 :])
    with torch.no_grad():
        y = ours.lstm(x, hx, layer._flat_weights, *arguments(layer), recipe=how)[0]
    assert not y.requires_grad
    assert len(at_once) == len(whole) + 2


def test_weights_change_between_calls_and_a_layer_is_called_twice(at_once):
    """Cast weights are cached for one call only. If a step calls a layer twice, the backward pass
    completes the weights' gradients of one call before it adds the other call's gradients."""
    layer = wide_layer("gru")
    cpd.convert(layer, FORMATS[0], coverage=False)
    x = normal(5, 2, 24)

    def steps():
        made = []
        for _ in range(2):
            layer.zero_grad()
            y = layer(layer(x)[0][..., :24])[0]
            y.square().sum().backward()
            made += [y.detach(), *(w.grad.clone() for w in layer.parameters())]
            with torch.no_grad():
                for w in layer.parameters():
                    w.sub_(w.grad, alpha=0.1)
        return made

    before = copy.deepcopy(layer.state_dict())
    got = steps()
    assert len(at_once) == 4
    layer.load_state_dict(before)
    with Unchanged():
        assert same(got, steps())
    assert len(at_once) == 4


def test_checkpoints_and_hooks_of_saved_tensors(at_once):
    layer = wide_layer("lstm")
    cpd.convert(layer, "te-current", coverage=False)
    x = normal(5, 2, 24)

    def gradients(call):
        layer.zero_grad()
        call(x).sum().backward()
        return [w.grad for w in layer.parameters()]

    wanted = gradients(lambda x: layer(x)[0])
    again = gradients(lambda x: checkpoint(lambda x: layer(x)[0], x, use_reentrant=False))
    assert same(wanted, again)
    with torch.autograd.graph.save_on_cpu():
        assert same(wanted, gradients(lambda x: layer(x)[0]))
    assert len(at_once) == 4


def test_what_is_counted_or_draws_is_computed_step_by_step(at_once):
    x = normal(5, 2, 24)
    layer = wide_layer("lstm")
    report = cpd.convert(layer, "te-current")
    layer(x)[0].sum().backward()
    counted = report.coverage()
    assert counted.share == 1
    assert sum(p.calls for p in counted.products) == 3 + 3 * 5 - 2  # no gradients of x and h_0
    assert not at_once
    for recipe in ("te-delayed", "nvfp4", cpd.Recipe(sums="e4m3"), "mxfp4-rht-sr"):
        other = wide_layer("lstm")
        cpd.convert(other, recipe, coverage=False, rules=[("*", cpd.Recipe(recipe))])
        other(x)
    assert not at_once
    layer(x)
    assert len(at_once) == 1


def test_packed_sequences_are_computed_one_by_one():
    """Each example of a packed batch has the bits that it has alone, with its own length."""
    layer = torchs("lstm", bidirectional=True)
    hx, x = states(layer, "lstm"), normal(5, 4, 3)
    rows, sizes, *_ = pack_padded_sequence(x, LENGTHS)
    how = {"recipe": NARROW}
    order = arguments(layer)
    y, h, c = ours.lstm(rows, hx, layer._flat_weights, *order, batch_sizes=sizes, **how)
    padded, _ = torch.nn.utils.rnn.pad_packed_sequence(torch.nn.utils.rnn.PackedSequence(y, sizes))
    for i, length in enumerate(LENGTHS):
        own = tuple(s[:, i : i + 1] for s in hx)
        alone = ours.lstm(x[:length, i : i + 1], own, layer._flat_weights, *order, **how)
        assert same(alone[0][:, 0], padded[:length, i])
        assert same(alone[1:], (h[:, i : i + 1], c[:, i : i + 1]))


@pytest.mark.parametrize("recipe", [NATIVE, DRAWING], ids=("native", "drawing"))
@pytest.mark.parametrize("kind", KINDS)
def test_cells_are_torchs_and_the_loops(kind, recipe):
    torch.manual_seed(0)
    name = {"lstm": "LSTMCell", "gru": "GRUCell"}.get(kind, "RNNCell")
    options = {"nonlinearity": kind[4:]} if name == "RNNCell" else {}
    cell = getattr(torch.nn, name)(3, 4, **options)
    weights = list(cell.parameters())
    x, state = normal(2, 3), (normal(2, 4, seed=1), normal(2, 4, seed=2))
    hx = state if kind == "lstm" else state[0]
    f = ours.rnn_cell if options else getattr(ours, f"{kind}_cell")
    got = f(x, hx, *weights, recipe=recipe, stream=5 << 36, **options)
    first = got if kind == "lstm" else (got,)
    if recipe is NATIVE:
        assert close(first, cell(x, hx) if kind == "lstm" else (cell(x, hx),))
    _, by_hand = loop_by_hand(kind, x[None], state, weights, recipe, 5 << 36)
    assert same(first, by_hand[: len(first)])


# ---- streams, dropout, compiled programs, errors -------------------------------------------------


def test_each_product_has_a_stream_of_its_own():
    """Each product has its own random stream: the same operands give different products in
    different time steps."""
    w, u = torch.zeros(1, 3), torch.full((1, 1), 0.3)
    recipe = cpd.Recipe(
        forward="e8m3 sequential rounding=stochastic", grad_input="fp32", grad_weight="fp32"
    )
    x, h = torch.zeros(1, 1, 3), torch.ones(1, 1, 1)
    seen = set()
    for t in range(20):
        y, _ = ours.rnn(x, h, [w, u], False, recipe=recipe, stream=t << 36)
        seen.add(y.item())
    assert len(seen) == 2


def test_dropout_is_torchs():
    layer = torchs("gru", num_layers=2)
    x, h = normal(5, 4, 3), states(layer, "gru")
    order = (True, 2, 0.5, True, False, False)
    torch.manual_seed(4)
    got = ours.gru(x, h, layer._flat_weights, *order, recipe=NATIVE)
    torch.manual_seed(4)
    assert close(got, _VF.gru(x, h, layer._flat_weights, *order))


@pytest.mark.parametrize("kind", ["lstm", pytest.param("gru", marks=pytest.mark.exhaustive)])
def test_compiled_layers_have_eagers_bits(kind):
    layer = torchs(kind)
    weights = [w.detach().requires_grad_() for w in layer._flat_weights]
    hx, x, stream = states(layer, kind), normal(2, 4, 3), torch.tensor(0)

    order, compute = arguments(layer), function(kind)

    def run():
        return compute(x, hx, weights, *order, recipe=DRAWING, stream=stream)

    program, counter = compiled(run)
    for step in (1, 2):
        stream.fill_(step << 36)
        assert same(with_gradients(program, weights), with_gradients(run, weights))
    assert counter.frame_count == 1


def test_recurrent_layers_say_what_they_do_not_take():
    w, u = torch.ones(1, 3), torch.ones(1, 1)
    x, h = torch.ones(2, 1, 3), torch.ones(1, 1, 1)
    with pytest.raises(ValueError, match="weights must be 2 for each of 1 layers"):
        ours.rnn(x, h, [w], False, recipe=NATIVE)
    with pytest.raises(ValueError, match="at least one time step"):
        ours.rnn(x[:0], h, [w, u], False, recipe=NATIVE)
    with pytest.raises(ValueError, match="input must have 3 dimensions"):
        ours.rnn(x[0], h, [w, u], False, recipe=NATIVE)
    with pytest.raises(ValueError, match="nonlinearity must be 'tanh' or 'relu', got 'gelu'"):
        ours.rnn(x, h, [w, u], False, recipe=NATIVE, nonlinearity="gelu")
    with pytest.raises(ValueError, match="time steps · layers · directions must be at most 262144"):
        ours.rnn(torch.ones(1 << 19, 1, 3), h, [w, u], False, recipe=NATIVE)


# ---- converted layers ----------------------------------------------------------------------------


CONVERTED = ("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell")


def inputs_of(name, batch_first):
    if name.endswith("Cell"):
        return (normal(4, 3),), (normal(3),)
    padded = normal(4, 5, 3) if batch_first else normal(5, 4, 3)
    lengths = torch.tensor([4, 1, 5, 4])
    packed = pack_padded_sequence(padded, lengths, batch_first, enforce_sorted=False)
    return (padded,), (normal(5, 3),), (packed,)


@pytest.mark.parametrize("name", CONVERTED)
def test_converted_layers_are_torchs_with_native_sums(name):
    """With torch's own sums ("native"), a converted recurrent layer equals torch's, for every form
    in which torch's forward accepts its arguments."""
    torch.manual_seed(0)
    cls = getattr(torch.nn, name)
    options = {} if name.endswith("Cell") else {"batch_first": True, "bidirectional": True}
    layer = cls(3, 4, **options)
    names = list(layer.state_dict())
    converted = copy.deepcopy(layer)
    report = cpd.convert(converted, NATIVE)
    assert [row.what for row in report] == ["recurrence"]
    assert list(converted.state_dict()) == names
    for arguments in inputs_of(name, True):
        assert close(leaves_of(converted(*arguments)), leaves_of(layer(*arguments)))
    cpd.restore(converted)
    assert type(converted) is cls


def leaves_of(made):
    return [x for x in torch.utils._pytree.tree_leaves(made) if isinstance(x, torch.Tensor)]


def test_a_converted_layer_is_the_function_and_draws_anew_in_each_step():
    layer = torchs("lstm", num_layers=2, dropout=0.5)
    cpd.convert(layer, DRAWING)
    x, hx = normal(5, 4, 3), states(layer, "lstm")
    order = (True, 2, 0.5, True, False, False)
    seen = []
    for step in (1, 2):
        torch.manual_seed(step)
        y, (h, c) = layer(x, hx)
        torch.manual_seed(step)
        how = {"recipe": layer.cpd.recipe, **layer.cpd.numbers()}
        assert same((y, h, c), ours.lstm(x, hx, layer._flat_weights, *order, **how))
        seen.append(y)
    assert not same(*seen)
    again = pickle.loads(pickle.dumps(layer)).eval()
    assert same(again(x, hx), layer.eval()(x, hx))


def test_a_converted_layer_in_one_graph():
    layer = torchs("gru")
    cpd.convert(layer, NARROW)
    x = normal(2, 4, 3)
    program, counter = compiled(layer)
    assert same(program(x), layer(x))
    assert counter.frame_count == 1
