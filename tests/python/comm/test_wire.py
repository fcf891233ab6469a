# SPDX-License-Identifier: Apache-2.0
"""Tests all-reduces whose messages are encoded by a codec: specs, state between calls, small
layers, and virtual nodes. test_comm_ranks.py and test_virtual_nodes.py test the bits over real
ranks."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import cpd
from comm_cases import SHAPES, WIRES, codec_layers, same
from cpd import compress
from patience import scaled

QSGD = "qsgd bits=4 bucket=512"
SPEC = cpd.Reduce(QSGD)


# ---- specs --------------------------------------------------------------------------------------


def test_a_codec_in_a_spec():
    assert SPEC.format is None
    assert SPEC.codec == cpd.Codec(QSGD)
    assert (SPEC.accumulator.text, SPEC.result.name) == ("fp32 sequential", "fp32")
    assert eval(repr(SPEC), {"cpd": cpd, "Reduce": cpd.Reduce}) == SPEC
    for other in (copy.deepcopy(SPEC), pickle.loads(pickle.dumps(SPEC)), SPEC.replace()):
        assert other == SPEC
        assert hash(other) == hash(SPEC)
    assert cpd.Reduce("e4m3").format == cpd.Format("e4m3")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(cpd.Format, "e4m3"), (cpd.Scaled, "mxfp8"), (cpd.Scaled, "int5 7 scale=bf16")],
)
def test_a_formats_name_is_that_format(kind, name):
    assert cpd.Reduce(cpd.Codec(name)) == cpd.Reduce(name)
    assert cpd.Reduce(name).codec == cpd.Codec(name)
    spec = cpd.Reduce(name, rounding="stochastic", overflow="saturate")
    assert spec.format == kind(name)


STATE = {
    "format": cpd.Format("e4m3"),
    "accumulator": cpd.Accumulator("e5m10 kahan"),
    "order": "ring",
    "exchange": "owner",
    "group_size": None,
    "aps": True,
    "loss_scale": 1.0,
    "average": False,
    "divide": "before",
    "rounding": "nearest_even",
    "overflow": "ieee",
    "seed": 3,
    "random_bits": 8,
    "variant": "B",
    "result": cpd.Format("e4m3"),
    "step": 2,
}


def test_specs_of_before_are_loaded():
    """Pickles of version 0.7 load, even pickles from before the field `wire` existed."""
    loaded = [object.__new__(cpd.Reduce) for _ in range(3)]
    with pytest.warns(UserWarning, match="this Reduce of 0.7 had seed 3 and step 2: give them to"):
        loaded[0].__setstate__(STATE)
    loaded[1].__setstate__(STATE | {"wire": None})
    spec = cpd.Reduce("e4m3 accumulator='e5m10 kahan' order=ring aps divide=before")
    assert loaded[:2] == [spec, spec]
    coded = {"format": None, "wire": cpd.Codec(QSGD), "aps": False, "variant": "A"}
    loaded[2].__setstate__(STATE | coded)
    options = "order=ring divide=before result=e4m3 random_bits=8"
    assert loaded[2] == cpd.Reduce(f"{QSGD} accumulator='e5m10 kahan' {options}")
    schedule = cpd.Schedule(spec, exempt=["a"])
    old = object.__new__(cpd.Schedule)
    vars(old).update({k: v for k, v in vars(schedule).items() if k != "min_size"})
    assert old == schedule
    assert old.min_size == 0


def test_options_are_keywords_or_text():
    for made, text in (
        (cpd.Codec("qsgd", bits=2, bucket=128, norm=2), "qsgd bits=2 bucket=128 norm=2"),
        (cpd.Codec("qsgd bits=2 norm=2", bits=8), "qsgd norm=2 bits=8"),
        (
            cpd.Codec(cpd.Codec("qsgd bits=2"), bits=None, bucket="tensor"),
            "qsgd bits=2 bucket=tensor",
        ),
        (
            cpd.Codec("qsgd", s=16, spacing="optimal", axis=-2, whole=9, norm=2),
            "qsgd s=16 bucket=504 axis=-2 norm=2 spacing=optimal",
        ),
        (cpd.Codec("terngrad", clip="none", share=False), "terngrad clip=none share=off"),
        (cpd.Codec("one_bit", bucket=64, axis=0), "one_bit bucket=64 axis=0"),
        (cpd.Codec("int8_rows", stochastic=True), "int8_rows stochastic"),
        (cpd.Codec("int8_rows", row=4, stochastic=False), "int8_rows row=4"),
        (cpd.Codec("top_k 0.01", feedback=False), "top_k 0.01 fp32 feedback=off"),
        (cpd.Codec("uniform", c=3, results="exact"), "uniform c=3 results=exact"),
    ):
        assert made == cpd.Codec(text)
    own = cpd.Codec("qsgd bits=4", random_bits=3)
    assert cpd.Codec(own) == own
    assert cpd.Codec(own, bits=2) == cpd.Codec("qsgd bits=2", random_bits=3)
    for options, error, message in (
        ({"bits": [4]}, TypeError, "bits must be a number, a word or a bool, got list"),
        ({"s": 16.5}, ValueError, "s must be"),
        ({"spacing": "even"}, ValueError, "spacing must be uniform or optimal, got 'even'"),
        ({"norm": 3}, ValueError, "norm"),
        ({"buckets": 3}, ValueError, "bucket"),
    ):
        with pytest.raises(error, match=message):
            cpd.Codec("qsgd", **options)
    assert cpd.Reduce(own) == cpd.Reduce("qsgd bits=4", random_bits=3)
    assert cpd.Reduce(own, random_bits=4).random_bits == 4


# ---- reductions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("wire", WIRES)
def test_a_sum_is_that_of_what_is_encoded(wire):
    """A sum over one rank with exchange="gather" equals the codec's own result in every step."""
    spec, codec = cpd.Reduce(wire, exchange="gather"), cpd.Codec(wire)
    states, own = compress.States(), [compress.States() for _ in SHAPES]
    for step in range(3):
        layers = codec_layers(0, step)
        got = cpd.simulate_all_reduce([layers], spec, seed=5, step=step, states=states)
        wanted = []
        for number, (layer, state) in enumerate(zip(layers, own, strict=True)):
            stream = cpd._core.stream_of("wire", step, number, 0)
            wanted.append(codec.encode(layer, states=state, seed=5, stream=stream).values)
        assert same(got, wanted)


@pytest.mark.parametrize("wire", WIRES)
def test_kinds_of_layers(wire):
    torch = pytest.importorskip("torch")
    spec = cpd.Reduce(wire)
    ranks = [codec_layers(rank, 0) for rank in range(3)]
    wanted = cpd.simulate_all_reduce(ranks, spec)
    turned = [[np.asfortranarray(x) for x in rank] for rank in ranks]
    assert same(cpd.simulate_all_reduce(turned, spec), wanted)
    tensors = [[torch.from_numpy(x) for x in rank] for rank in ranks]
    assert same([x.numpy() for x in cpd.simulate_all_reduce(tensors, spec)], wanted)
    with cpd.comm.local(3) as group:
        for got in group.run(lambda comm: in_place(comm, turned[comm.rank], spec)):
            assert same(got, wanted)


def in_place(comm, layers, spec):
    out = [np.full(x.shape, np.nan, np.float32) for x in layers]
    assert comm.all_reduce(layers, spec, out=out)[0] is out[0]
    return out


@pytest.mark.parametrize("wire", WIRES)
def test_reduce_and_reduce_scatter(wire):
    """The rank that sums a slice sends the sum without encoding it again. So reduce and
    reduce_scatter give the same results as an all-reduce with exchange="gather"."""
    ranks = [codec_layers(rank, 0) for rank in range(3)]
    spec = cpd.Reduce(wire)
    sums = cpd.simulate_all_reduce(ranks, spec.replace(exchange="gather"))
    flat = cpd.simulate_all_reduce(
        [[x.reshape(-1) for x in rank] for rank in ranks],
        spec.replace(exchange="gather"),
    )

    def run(comm):
        total = comm.reduce(ranks[comm.rank], spec, 1, step=0)
        vectors = [x.reshape(-1) for x in ranks[comm.rank]]
        return total, comm.reduce_scatter(vectors, spec, step=0)

    with cpd.comm.local(3) as group:
        told = group.run(run)
    assert same(told[1][0], sums)
    for layer, whole in enumerate(flat):
        parts = [parts[layer] for _, parts in told]
        assert same([np.concatenate(parts)], [whole])


@pytest.mark.parametrize("wire", ["one_bit", "qsgd axis=0"])
def test_slices_of_columns_are_refused(wire):
    assert cpd.Codec(wire)._layout((3, 4)).axis == 0
    spec = cpd.Reduce(wire)
    with cpd.comm.local(1) as group, pytest.raises(ValueError, match="along axis 0"):
        group.run(lambda comm: comm.reduce_scatter([np.ones((3, 4), np.float32)], spec))


def test_an_axis_that_a_layer_has_not():
    spec = cpd.Reduce("one_bit axis=2")
    with pytest.raises(ValueError, match=r"tensor 4: axis must be -2…1"):
        cpd.simulate_all_reduce([[np.ones((3, 4), np.float32)]], spec, numbers=[4])


# ---- what is kept -------------------------------------------------------------------------------


def test_states_must_be_states():
    with pytest.raises(
        TypeError, match=r"states must be a cpd\.compress\.States or None, got dict"
    ):
        cpd.simulate_all_reduce([[np.ones(3, np.float32)]], SPEC, states={})
    with cpd.comm.local(1) as group, pytest.raises(TypeError, match="states must be"):
        group.run(lambda comm: comm.all_reduce([np.ones(3, np.float32)], SPEC, states=3))


def test_ranks_of_a_process_have_states_of_their_own():
    states = compress.States()
    layers = [np.ones(10**6, np.float32)]
    with (
        cpd.comm.local(2, timeout=scaled(60)) as group,
        pytest.raises(
            (RuntimeError, cpd.comm.Mismatch), match="each rank of a process needs its own"
        ),
    ):
        group.run(lambda comm: comm.all_reduce(layers, SPEC, states=states))


# ---- small layers -------------------------------------------------------------------------------


def test_small_layers_are_exempt():
    schedule = cpd.Schedule(SPEC, min_size=1000)
    names = ["large", "small", "bias"]
    assert schedule.spec_of("small", 0, 999).format == cpd.Format("fp32")
    assert schedule.spec_of("large", 0, 1000).codec == SPEC.codec
    assert [numbers for _, numbers in schedule._parts(names, 0, [1000, 999, 3])] == [[0], [1, 2]]
    ranks = [[np.full(size, 0.3, np.float32) for size in (1000, 999, 3)] for _ in range(2)]
    sums = cpd.simulate_all_reduce(ranks, schedule, names=names, step=0)
    assert np.array_equal(sums[1], np.full(999, np.float32(0.3) * 2))
    with cpd.comm.local(2) as group:
        for got in group.run(lambda c: c.all_reduce(ranks[c.rank], schedule, names=names, step=0)):
            assert same(got, sums)
    for error in (lambda: schedule._parts(names, 0), lambda: schedule.spec_of("small", 0)):
        with pytest.raises(ValueError, match="min_size=1000 needs the size of tensor"):
            error()
    with pytest.raises(ValueError, match="min_size must be at least 0"):
        cpd.Schedule(SPEC, min_size=-1)
    assert pickle.loads(pickle.dumps(schedule)) == schedule
    assert "min_size=1000" in repr(schedule)


# ---- what it costs ------------------------------------------------------------------------------


@pytest.mark.parametrize("exchange", ["owner", "gather"])
def test_cost_is_what_moves(exchange):
    spec = cpd.Reduce(QSGD, exchange=exchange)
    layers = [np.ones(5000, np.float32), np.ones(3, np.float32)]
    with cpd.comm.local(3) as group:
        told = group.run(lambda comm: comm.all_reduce(layers, spec, step=0, report=True)[1].traffic)
    for rank, traffic in enumerate(told):
        cost = cpd.study.cost(spec, 3, [5000, 3], rank)
        assert (cost.bytes_sent, cost.bytes_received) == (
            traffic.bytes_sent,
            traffic.bytes_received,
        )
        assert cost.steps == traffic.steps


# ---- virtual nodes ------------------------------------------------------------------------------


KEEPING = ["one_bit bucket=64", "one_bit", "top_k 0.1", "feedback int4"]


def nodes_of(spec, keep=None, world=3):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 30), torch.nn.ReLU(), torch.nn.Linear(30, 2))
    return model, cpd.VirtualNodes(model, world, spec, keep)


def stepped(model, nodes, step):
    torch = pytest.importorskip("torch")
    images = torch.randn(12, 5, generator=torch.Generator().manual_seed(step))
    nodes.step(lambda micro: model(micro).square().mean(), images)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 0.1 * parameter.grad
    return [parameter.grad.clone() for parameter in model.parameters()]


def equal(a, b):
    return all(x.equal(y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("keep", "order"), [("memory", "sequential"), ("recompute", "ring")])
@pytest.mark.parametrize("wire", KEEPING)
def test_nodes_keep_and_checkpoint(wire, keep, order):
    spec = cpd.Reduce(wire, order=order)
    model, nodes = nodes_of(spec, keep)
    first = [stepped(model, nodes, step) for step in range(2)]
    saved = pickle.loads(pickle.dumps((nodes.state_dict(), model.state_dict())))
    later = [stepped(model, nodes, step) for step in (2, 3)]
    other, again = nodes_of(spec, keep)
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    assert all(map(equal, [stepped(other, again, step) for step in (2, 3)], later))
    again.load_state_dict(saved[0])
    other.load_state_dict(saved[1])
    again.reset()
    assert again.states.state_dict() == {"layers": []}
    assert not equal(stepped(other, again, 2), later[0])
    assert len(first) == 2


def test_a_step_that_raises_leaves_what_was_kept():
    model, nodes = nodes_of(cpd.Reduce(KEEPING[0]))
    stepped(model, nodes, 0)
    kept = nodes.states.state_dict()
    calls = 0

    def loss(micro):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise ArithmeticError("the last node's")
        return model(micro).square().mean()

    torch = pytest.importorskip("torch")
    with pytest.raises(ArithmeticError, match="the last node's"):
        nodes.step(loss, torch.ones(12, 5))
    assert nodes.states.state_dict() == kept


def test_a_loss_that_changes_leaves_what_was_kept():
    model, nodes = nodes_of(cpd.Reduce(KEEPING[0], order="ring"), "recompute")
    torch = pytest.importorskip("torch")
    stepped(model, nodes, 0)
    kept = nodes.states.state_dict()
    calls = iter(range(100))
    with pytest.raises(RuntimeError, match="when it is computed again"):
        nodes.step(
            lambda micro: model(micro).square().mean() * (1 + next(calls)), torch.ones(12, 5)
        )
    assert nodes.states.state_dict() == kept


def test_nodes_reset_by_name():
    model, nodes = nodes_of(cpd.Reduce(KEEPING[0]))
    stepped(model, nodes, 0)
    kept = nodes.states.state_dict()["layers"]
    nodes.reset("0.bias")
    assert nodes.states.state_dict()["layers"] == [one for one in kept if one["number"] != 1]
    with pytest.raises(
        ValueError, match=r"there is no tensor '0\.gain'; the tensors are 0\.weight"
    ):
        nodes.reset("0.gain")


def test_small_layers_of_nodes():
    schedule = cpd.Schedule(SPEC, min_size=100)
    model, nodes = nodes_of(schedule)
    assert "4 tensors of 242 values" in repr(nodes)
    stepped(model, nodes, 0)
    assert nodes.schedule._parts(nodes.names, 0, [150, 30, 60, 2])[0][1] == [0]


def test_formats_keep_nothing():
    model, nodes = nodes_of(cpd.Reduce("mxfp8"))
    stepped(model, nodes, 0)
    assert nodes.states.state_dict() == {"layers": []}
