# SPDX-License-Identifier: Apache-2.0
"""Tests the use of virtual nodes: division of batches, errors, reports and saved state."""

from __future__ import annotations

import collections
import copy
import itertools
import pickle
import random
import shutil
import warnings

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
from node_cases import (  # noqa: E402
    batch_of,
    by_hand,
    classifier,
    drawn,
    gradients_of,
    loss_of,
    optimizer_of,
    perceptron,
    state_hash,
)

pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
E4M3 = cpd.Reduce("e4m3")
APS = cpd.Reduce("e4m3", aps=True)


# ---- batches -------------------------------------------------------------------------------------

Pair = collections.namedtuple("Pair", ["x", "y"])


def test_batches_are_divided_whatever_holds_them():
    """A batch of several tensors is divided: each node gets its rows of every tensor."""
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, E4M3)
    x = torch.arange(12.0).reshape(4, 3)
    seen = []

    def loss(micro):
        seen.append(micro)
        return model(x).sum()

    nodes.step(loss, (torch.arange(4), {"x": x, "rest": [Pair(x, (x[:, 0],))]}))
    assert [micro[0].tolist() for micro in seen] == [[0, 1], [2, 3]]
    assert [micro[1]["x"].tolist() for micro in seen] == [x[:2].tolist(), x[2:].tolist()]
    assert type(seen[1][1]["rest"]) is list
    assert seen[1][1]["rest"][0].y[0].tolist() == [6.0, 9.0]
    seen.clear()
    batches = iter("abc")
    nodes.step(loss, micro_batches=batches)
    assert seen == ["a", "b"]
    assert next(batches) == "c"


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({}, TypeError, "step takes either a batch or micro_batches, got neither"),
        ({"batch": 1, "micro_batches": [1]}, TypeError, "a batch or micro_batches, got both"),
        ({"batch": torch.ones(3)}, ValueError, r"multiple of 2 \(the nodes\), got shape \(3,\)"),
        ({"batch": torch.ones(())}, ValueError, r"got shape \(\)"),
        ({"batch": torch.ones(0, 2)}, ValueError, r"got shape \(0, 2\)"),
        ({"batch": [torch.ones(2), "a"]}, TypeError, "a batch must be a tensor, .* got str"),
        ({"batch": np.ones(2)}, TypeError, "a batch must be a tensor, .* got ndarray"),
        (
            {"batch": torch.nn.utils.rnn.pack_sequence([torch.ones(2)] * 2)},
            TypeError,
            "got PackedSequence",
        ),
        ({"micro_batches": [1]}, ValueError, "there are 2 nodes but 1 micro_batches"),
        ({"micro_batches": 3}, TypeError, "micro_batches must be a sequence or None, got int"),
    ],
)
def test_batches_that_do_not_fit(options, error, message):
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, E4M3)
    with pytest.raises(error, match=message):
        nodes.step(lambda micro: model(torch.ones(3)).sum(), **options)
    assert nodes.next_step == 0


def test_a_second_tensor_by_position():
    """A batch of several tensors must be one tuple; a second positional tensor is a TypeError."""
    nodes = cpd.VirtualNodes(perceptron(), 2, E4M3)
    names = "takes all arguments after batch= by keyword: micro_batches=, on_gradients="
    with pytest.raises(TypeError, match=names):
        nodes.step(len, torch.ones(2, 3), torch.ones(2))


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("keep", ["memory", "disk", "recompute"])
@pytest.mark.parametrize("call", [0, 2, 3, 7])
def test_a_loss_that_raises_changes_nothing(keep, call, tmp_path):
    """A loss that raises changes nothing, even if keep="recompute" computes it a second time.

    With four nodes, calls 4 to 7 of the loss are the second computations.
    """
    model = classifier()
    nodes = cpd.VirtualNodes(
        model, 4, APS, keep, folder=str(tmp_path), broadcast_buffers=False, generators=range(4)
    )
    for parameter in list(model.parameters())[::2]:
        parameter.grad = torch.ones_like(parameter)
    before = copy.deepcopy((model.state_dict(), gradients_of(model), nodes.state_dict()))
    held = [p.grad for p in model.parameters()]
    random.seed(3)
    np.random.seed(3)
    torch.manual_seed(3)
    calls = itertools.count()

    def loss(micro):
        found = loss_of(model, micro) + drawn()[0]
        if next(calls) == call:
            raise KeyboardInterrupt
        return found

    if call < 4 or keep == "recompute":
        with pytest.raises(KeyboardInterrupt):
            nodes.step(loss, batch_of(0, 4))
        after = (model.state_dict(), gradients_of(model), nodes.state_dict())
        assert repr(after) == repr(before)
        assert all(p.grad is g for p, g in zip(model.parameters(), held, strict=True))
        draws = drawn()
        random.seed(3)
        np.random.seed(3)
        torch.manual_seed(3)
        assert draws == drawn()
    nodes.step(lambda micro: loss_of(model, micro), batch_of(0, 4))
    wanted = by_hand(APS, 4, steps=1, broadcast_buffers=False)
    assert nodes.losses.tolist() == wanted.losses[0]
    assert list(nodes.report.values()) == wanted.reports[0]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("loss", "error", "message"),
    [
        (lambda m, x: 3.0, TypeError, "must return a tensor, or yield tensors, got float"),
        (lambda m, x: "loss", TypeError, "got str"),
        (lambda m, x: {"loss": m(x).sum()}, TypeError, "got dict"),
        (lambda m, x: [m(x).sum(), 1.0], TypeError, "got float"),
        (lambda m, x: [], ValueError, "yielded no loss"),
        (lambda m, x: m(x), RuntimeError, "grad can be implicitly created only for scalar"),
        (lambda m, x: m(x).sum().detach(), RuntimeError, "does not require grad"),
    ],
)
def test_losses_that_are_none(loss, error, message):
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, E4M3)
    with pytest.raises(error, match=message):
        nodes.step(lambda x: loss(model, x), torch.ones(2, 3))
    assert gradients_of(model) == [None] * 4


def test_sparse_gradients_are_refused():
    model = torch.nn.Embedding(5, 2, sparse=True)
    nodes = cpd.VirtualNodes(model, 2, E4M3)
    with pytest.raises(TypeError, match=r"gradient of weight is sparse.*sparse=False"):
        nodes.step(lambda x: model(x).sum(), torch.tensor([1, 2]))
    assert model.weight.grad is None


@pytest.mark.parametrize(
    ("first", "second"), [(0.0, 1.0), (float("nan"), 2.0), (1.0, float("nan"))]
)
def test_recomputed_losses_must_be_the_same(first, second):
    model, nan = perceptron(), float("nan")
    nodes = cpd.VirtualNodes(model, 2, APS, "recompute")
    added = iter([first, second])
    with pytest.raises(RuntimeError, match=f"node 1 has the loss {first}, and {second} when it is"):
        nodes.step(
            lambda node: model(torch.ones(3)).sum() * 0 + (next(added) if node else nan),
            micro_batches=[0, 1],
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": 3}, TypeError, "model must be a torch.nn.Module, got int"),
        ({"model": torch.nn.ReLU()}, ValueError, "no parameters that require a gradient"),
        ({"model": torch.nn.LazyLinear(3)}, ValueError, "parameter weight has no shape yet"),
        (
            {"model": torch.nn.Linear(1, 1, device="meta")},
            ValueError,
            "parameter weight must be on the CPU or CUDA, got meta",
        ),
        (
            {"model": torch.nn.Linear(1, 1).double()},
            TypeError,
            "parameter weight must be of type float32, bfloat16 or float16, got float64",
        ),
        ({"nodes": 0}, ValueError, "nodes must be at least 1, got 0"),
        ({"nodes": 2.0}, TypeError, "nodes must be an int, got float"),
        ({"nodes": 2**31}, ValueError, "nodes must fit in 32 bits"),
        ({"spec": 3}, TypeError, "spec: a format must be"),
        ({"spec": "e4m3 aps=maybe"}, ValueError, "aps must be false, true or paper, got 'maybe'"),
        ({"spec": E4M3.replace(group_size=3)}, ValueError, r"group_size must be 1…2"),
        (
            {"spec": cpd.Schedule(E4M3, exempt=["lm_head"])},
            ValueError,
            "'lm_head' matches no tensor",
        ),
        ({"keep": "ram"}, ValueError, "keep must be None or one of memory, disk, recompute"),
        ({"average": 1}, TypeError, "average"),
        ({"generators": [1]}, ValueError, "there are 2 nodes but 1 generators"),
        (
            {"generators": [1, 2.5]},
            TypeError,
            "generators must be a sequence of ints",
        ),
        ({"spec": APS, "keep": "disk", "folder": "/nowhere"}, OSError, "nowhere"),
    ],
)
def test_mistakes_are_told_at_once(options, error, message):
    given = {"model": perceptron(), "nodes": 2, "spec": E4M3} | options
    with pytest.raises(error, match=message):
        cpd.VirtualNodes(**given)


def test_sums_that_may_stall_are_told_once():
    with pytest.warns(cpd.PrecisionWarning, match="the sum over 20 ranks in e4m3") as told:
        nodes = cpd.VirtualNodes(perceptron(), 20, E4M3)
    assert told[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        nodes.step(lambda x: nodes.model(x).sum(), torch.ones(20, 3))


def test_room_is_looked_for_beforehand(monkeypatch):
    """`cpd.VirtualNodes` raises an error if gradients exceed the available memory or disk space.

    100 nodes have 104 bytes of gradients each. 10,400 available bytes suffice, 10,399 do not.
    """
    told = "the nodes' gradients take 10.4 kB, and there are 10.4 kB"
    for keep, error, where in (
        ("memory", MemoryError, "of memory available: keep them on"),
        ("disk", OSError, "free on disk"),
    ):
        for free in (10_399, 10_400):
            memory, disk = (free if keep == kind else 99 for kind in ("memory", "disk"))
            monkeypatch.setattr("cpd.parallel.nodes.keep._available_memory", lambda m=memory: m)
            usage = shutil._ntuple_diskusage(0, 0, disk)
            monkeypatch.setattr("shutil.disk_usage", lambda folder, usage=usage: usage)
            if free < 10_400:
                with pytest.raises(error, match=f"{told} {where}"):
                    cpd.VirtualNodes(perceptron(), 100, APS, keep)
            else:
                cpd.VirtualNodes(perceptron(), 100, APS, keep)
    cpd.VirtualNodes(perceptron(), 100, APS, "recompute")
    monkeypatch.setattr("cpd.parallel.nodes.keep._available_memory", lambda: None)
    cpd.VirtualNodes(perceptron(), 100, APS)


# ---- what is told, and what is saved -------------------------------------------------------------


def test_what_is_kept_is_told():
    model = perceptron()  # 26 values
    ring_bias = cpd.Schedule(E4M3, exempt=["*.bias"], exempt_spec=cpd.Reduce("bf16", order="ring"))
    later = cpd.Schedule(APS, first_steps=3)
    for spec, keep, count, told in (
        (E4M3, None, 0, "nothing kept"),
        (E4M3, "disk", 0, "nothing kept"),
        (APS, None, 8 * 104, "832 bytes of gradients kept in memory"),
        (APS, "disk", 8 * 104, "832 bytes of gradients kept on disk"),
        (APS, "recompute", 0, "gradients recomputed"),
        (ring_bias, None, 8 * 24, "192 bytes of gradients kept in memory"),
        (later, None, 8 * 104, "832 bytes of gradients kept in memory"),
    ):
        nodes = cpd.VirtualNodes(model, 8, spec, keep)
        assert nodes.kept_bytes == count
        assert repr(nodes) == f"VirtualNodes(8 nodes, 4 tensors of 26 values, {told})"


@pytest.mark.parametrize("own", [False, True])
def test_a_checkpoint_goes_on(own, tmp_path):
    """Five steps give the same bits as two steps, a checkpoint and three more steps."""
    text = "e4m3 accumulator='e4m3 sequential rounding=stochastic' rounding=stochastic"
    schedule = cpd.Schedule(text, first_steps=1)
    options = {"broadcast_buffers": not own, "generators": range(3) if own else None}
    path = tmp_path / "checkpoint.pt"

    def run(steps: range, resume: bool, seed: int = 7) -> str:
        model = classifier()
        optimizer = optimizer_of(model)
        nodes = cpd.VirtualNodes(model, 3, schedule, seed=seed, **options)
        held = {"model": model, "optimizer": optimizer, "nodes": nodes}
        if resume:
            saved = torch.load(path)  # weights_only
            torch.set_rng_state(saved.pop("generator"))
            for name, state in saved.items():
                held[name].load_state_dict(state)
        for step in steps:
            assert nodes.next_step == step
            nodes.step(lambda micro: loss_of(model, micro), batch_of(step, 3))
            optimizer.step()
        saved = {name: one.state_dict() for name, one in held.items()}
        torch.save(saved | {"generator": torch.get_rng_state()}, path)
        return state_hash(model)

    wanted = run(range(5), False)
    run(range(2), False)
    assert run(range(2, 5), True, seed=1) == wanted


def test_states_of_other_nodes_are_refused():
    nodes = cpd.VirtualNodes(perceptron(), 2, E4M3)
    state = nodes.state_dict()
    with pytest.raises(ValueError, match="the state has 3 nodes, not 2"):
        nodes.load_state_dict(state | {"world_size": 3})
    with pytest.raises(ValueError, match="these nodes differ in whether nodes have generators"):
        nodes.load_state_dict(state | {"generators": []})
    mine = cpd.VirtualNodes(classifier(), 2, E4M3, broadcast_buffers=False)
    state = mine.state_dict()
    with pytest.raises(ValueError, match=r"the buffers are 1.running_mean, .*, got other"):
        mine.load_state_dict(state | {"buffers": [{"other": None}] * 2})
    assert mine.state_dict() is not state


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda n: pickle.loads(pickle.dumps(n))])
def test_copies_go_on_by_themselves(copied):
    spec = cpd.Reduce("e4m3", rounding="stochastic")
    nodes = cpd.VirtualNodes(classifier(), 2, spec, broadcast_buffers=False, generators=[0, 1])
    images = batch_of(0, 2)
    nodes.step(lambda micro: loss_of(nodes.model, micro), images)
    other = copied(nodes)
    for one in (nodes, other):
        one.step(lambda micro, one=one: loss_of(one.model, micro), images)
    assert other.model is not nodes.model
    pairs = zip(other.model.parameters(), nodes.model.parameters(), strict=True)
    assert all(torch.equal(a.grad, b.grad) for a, b in pairs)


def test_layers_that_never_change_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.PReLU(), torch.nn.Linear(4, 1))
    nodes = cpd.VirtualNodes(model, 2, cpd.Reduce("terngrad"))
    named = r"tensor 1\.weight of shape \(1,\) and of tensors 2\.bias: .*exempt=\[its name\]"
    with pytest.warns(cpd.PrecisionWarning, match=named):
        nodes.step(lambda x: model(x).sum(), torch.randn(2, 3))
    schedule = cpd.Schedule(cpd.Reduce("terngrad"), exempt=["1.weight", "2.bias"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        nodes = cpd.VirtualNodes(model, 2, schedule)
        nodes.step(lambda x: model(x).sum(), torch.randn(2, 3))


def test_reports_have_what_codecs_chose():
    model = torch.nn.Linear(30, 20)
    nodes = cpd.VirtualNodes(model, 3, cpd.Reduce("uniform bits=6 coding=fixed"))
    nodes.step(lambda x: model(x).square().sum(), torch.randn(6, 30))
    report = nodes.report["weight"]
    assert report.bits == (6, 6, 6)
    assert report.values == 3 * 600
    assert report.bytes == 3 * (12 + 600 * 6 // 8)
    assert report.bits_a_value == 8 * report.bytes / report.values


# ---- accumulation ----------------------------------------------------------------------------


def test_accumulated_gradients_are_those_of_one_loss():
    """Several calls under no_sync give the sums of a single call that yields several losses."""
    images = torch.randn(12, 3)
    found = []
    for how in ("calls", "yields"):
        model = perceptron()
        nodes = cpd.VirtualNodes(model, 2, APS)
        per_node = images.split(6)

        def loss(x, m=model):
            return m(x).square().mean()

        if how == "yields":
            nodes.step(lambda x, one=loss: map(one, x.split(2)), micro_batches=per_node)
        else:
            for call in range(3):
                parts = [node.split(2)[call] for node in per_node]
                if call == 2:
                    nodes.step(loss, micro_batches=parts)
                    continue
                with nodes.no_sync():
                    mean = nodes.step(loss, micro_batches=parts)
                assert torch.equal(mean, nodes.losses.mean())
                assert nodes.next_step == 0
                assert nodes.report == {}
                assert gradients_of(model) == [None] * 4
        found.append(gradients_of(model))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("keep", ["memory", "disk", "recompute"])
def test_a_step_that_raises_keeps_what_was_accumulated(keep):
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, APS, keep)
    images = torch.randn(4, 3)

    def loss(x):
        return model(x).square().mean()

    def fails(x):
        loss(x).backward()
        raise RuntimeError("lost")

    with nodes.no_sync():
        nodes.step(loss, images)
        with pytest.raises(RuntimeError, match="lost"):
            nodes.step(fails, images)
    with pytest.raises(RuntimeError, match="lost"):
        nodes.step(fails, images)
    assert nodes.next_step == 0
    nodes.step(loss, images)
    twice = gradients_of(model)
    nodes.step(loss, images)
    once = gradients_of(model)
    assert all(torch.equal(a, 2 * b) for a, b in zip(twice, once, strict=True))


def test_what_is_accumulated_is_not_saved_and_can_be_dropped():
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, APS)
    images = torch.randn(4, 3)
    with nodes.no_sync():
        nodes.step(lambda x: model(x).sum(), images)
    with pytest.raises(RuntimeError, match="not reduced yet"):
        nodes.state_dict()
    nodes.drop_accumulated()
    nodes.state_dict()
    nodes.step(lambda x: model(x).square().mean(), images)
    dropped = gradients_of(model)
    cpd.VirtualNodes(model, 2, APS).step(lambda x: model(x).square().mean(), images)
    assert all(torch.equal(a, b) for a, b in zip(dropped, gradients_of(model), strict=True))
