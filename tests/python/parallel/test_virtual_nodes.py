# SPDX-License-Identifier: Apache-2.0
"""Tests that virtual nodes have the results of real ranks, bit for bit.

The results are weights, buffers, losses, and the number of bytes sent.
"""

from __future__ import annotations

import random
import weakref

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import spawn  # noqa: E402
from front_ends import require_gpu_itself  # noqa: E402
from node_cases import (  # noqa: E402
    DDP_CASES,
    WORLD,
    batch_of,
    by_hand,
    by_nodes,
    classifier,
    drawn,
    gradients_of,
    loss_of,
    nodes_hash,
    perceptron,
)

pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
E4M3 = cpd.Reduce("e4m3")
APS = cpd.Reduce("e4m3", aps=True)


# ---- against ranks of DDP ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ranks() -> list[dict[str, str]]:
    found = spawn.spawn_ranks("gloo", WORLD, "node_ranks:run_ranks")
    return [rank.result for rank in found]


@pytest.mark.parametrize("name", DDP_CASES)
def test_the_state_is_that_of_rank_0(ranks, name):
    assert nodes_hash(DDP_CASES[name]) == ranks[0][name], ranks[0][name]


def test_the_traffic_is_that_of_rank_0(ranks):
    model = classifier()
    nodes = cpd.VirtualNodes(model, WORLD, E4M3)
    assert nodes.traffic is None
    told = []
    for step in range(2):
        nodes.step(lambda micro: loss_of(model, micro), batch_of(step, WORLD))
        assert nodes.traffic.exact
        assert nodes.traffic.seconds > 0
        told.append(f"step {nodes.traffic.step}: {nodes.traffic.bytes_sent} bytes")
    assert ranks[0]["traffic"] == ", ".join(told)


# ---- against the step written by hand ------------------------------------------------------------

ONE_PASS = {
    "sequential": E4M3,
    "groups": cpd.Reduce("e4m3", group_size=3),
    "tree": cpd.Reduce("e5m2", order="tree"),
    "kahan": cpd.Reduce("e4m3", accumulator="e4m3 kahan", group_size=2),
    "pairwise": cpd.Reduce("e4m3", accumulator="bf16 pairwise"),
    "chunked": cpd.Reduce("e4m3", accumulator="e6m9 chunked chunk=2", loss_scale=4.0),
    "stochastic": cpd.Reduce(
        "e4m3",
        accumulator="e4m3 sequential rounding=stochastic",
        rounding="stochastic",
        group_size=2,
    ),
    "mxfp8": cpd.Reduce("mxfp8", rounding="stochastic", result="bf16"),
    "schedule": cpd.Schedule(E4M3, exempt=["*.bias"], first_steps=1),
}
SEVERAL = {
    "aps": cpd.Reduce("e3m0", aps=True, rounding="stochastic"),
    "paper": cpd.Reduce("e4m3", aps="paper", group_size=2),
    "ring": cpd.Reduce("e4m3", accumulator="e4m3 kahan", order="ring"),
    "ring with groups": cpd.Reduce("e4m3", order="ring", group_size=2),
    "ring with aps": cpd.Reduce("e4m3", order="ring", aps=True),
    "schedule": cpd.Schedule(
        APS, exempt=["*.bias"], exempt_spec=cpd.Reduce("bf16", order="ring"), first_steps=1
    ),
}


def expect_same(spec, world, keep=None, **options) -> None:
    wanted = by_hand(spec, world, **options)
    got = by_nodes(spec, world, keep=keep, **options)
    assert got.losses == wanted.losses
    assert got.reports == wanted.reports
    assert got.hash == wanted.hash


@pytest.mark.parametrize("name", ONE_PASS)
def test_one_pass(name):
    expect_same(ONE_PASS[name], 5, seed=3)


@pytest.mark.parametrize("keep", ["memory", "disk", "recompute"])
@pytest.mark.parametrize("name", SEVERAL)
def test_what_is_kept_or_recomputed(name, keep):
    expect_same(SEVERAL[name], 5, keep)


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_numbers_of_nodes(world):
    for spec in (E4M3, cpd.Reduce("e4m3", order="ring", aps=True)):
        for keep in (None, "recompute"):
            expect_same(spec, world, keep, steps=2)


def test_options():
    expect_same(APS, 3, broadcast_buffers=False)
    expect_same(APS, 3, "recompute", broadcast_buffers=False)
    expect_same(APS, 3, average=False)
    for keep in (None, "recompute"):
        expect_same(APS.replace(divide="before"), 3, keep)


def test_where_an_average_divides():
    """`divide="before"` divides each node's gradients before the sum, also for codecs."""
    images = torch.randn(6, 3)
    model = perceptron()

    def loss(micro):
        return model(micro).square().mean()

    for spec in (E4M3, cpd.Reduce("uniform bits=8")):
        nodes = cpd.VirtualNodes(model, 3, spec, divide="before")
        nodes.step(loss, images)
        per_rank = []
        for part in images.split(2):
            gradients = torch.autograd.grad(loss(part), list(model.parameters()))
            per_rank.append([gradient / 3 for gradient in gradients])
        wanted = cpd.simulate_all_reduce(per_rank, spec)
        assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))


@pytest.mark.parametrize("spec", [cpd.Reduce("e4m3", group_size=16), APS])
def test_256_nodes(spec):
    model, images = perceptron(), torch.randn(512, 3)
    nodes = cpd.VirtualNodes(model, 256, spec, "recompute")
    loss = nodes.step(lambda micro: model(micro).square().mean(), images)
    per_rank = [
        torch.autograd.grad(model(part).square().mean(), list(model.parameters()))
        for part in images.split(2)
    ]
    wanted = cpd.simulate_all_reduce(per_rank, spec.replace(average=True))
    assert all(torch.equal(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))
    assert torch.equal(loss, nodes.losses.mean())


# ---- random numbers, buffers, parameters ---------------------------------------------------------


def noisy(model: torch.nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Returns a loss with random numbers from torch's, Python's and NumPy's generators."""
    noise = random.random() + np.random.random()
    return model(images + torch.rand_like(images) * noise).square().mean()


def test_without_seeds_nodes_draw_as_a_loop_does():
    """Every value of `keep` gives the random numbers of a plain loop over the nodes, during the
    step and in later draws from torch, Python and NumPy."""
    found = []
    for keep in (None, "memory", "disk", "recompute", "loop"):
        random.seed(1)
        np.random.seed(1)
        model = perceptron()
        images = torch.ones(8, 3)
        if keep == "loop":
            losses = [float(noisy(model, part).detach()) for part in images.split(2)]
            found.append((losses, None, drawn()))
            continue
        nodes = cpd.VirtualNodes(model, 4, cpd.Reduce("bf16", order="ring", aps=True), keep)
        nodes.step(lambda micro, m=model: noisy(m, micro), images)
        gradients = [g.tolist() for g in gradients_of(model)]
        found.append((nodes.losses.tolist(), gradients, drawn()))
    assert found[0] == found[1] == found[2] == found[3]
    assert found[0][0] == found[4][0]
    assert found[0][2] == found[4][2]


def test_seeded_nodes_leave_torchs_generator_alone():
    nodes = cpd.VirtualNodes(classifier(), 2, E4M3, generators=[1, 2])
    torch.manual_seed(5)
    nodes.step(lambda micro: loss_of(nodes.model, micro), batch_of(0, 2))
    after = torch.rand(3)
    torch.manual_seed(5)
    assert torch.equal(after, torch.rand(3))


class Counting(torch.nn.Module):
    """A module whose forward pass replaces a buffer, creates a buffer, and stores a magnitude in a
    history of largest magnitudes, as layers with delayed scaling do.
    """

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("last", None)
        self.cpd_delayed = torch.nn.Module()
        self.cpd_delayed.register_buffer("amax_history", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        assert self.last is None or float(self.seen) > 0
        self.seen = self.seen + 1
        self.last = x
        history = self.cpd_delayed.amax_history
        history[0] = torch.maximum(history[0], x.abs().max())
        return (self.weight * x).sum()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("keep", ["memory", "recompute"])
def test_buffers_begin_as_node_0s_and_histories_rise(keep, own):
    model = Counting()
    nodes = cpd.VirtualNodes(model, 3, APS, keep, broadcast_buffers=not own)
    for step, largest in ((1, 4.0), (2, 9.0)):
        x = torch.tensor([1.0, largest, 2.0])
        nodes.step(model, x)
        assert float(model.seen) == step
        assert model.last.tolist() == [1.0]
        assert model.cpd_delayed.amax_history.tolist() == [largest, 0.0]
        assert x.tolist() == [1.0, largest, 2.0]


def test_unused_shared_and_frozen_parameters():
    model = perceptron()
    model.extra = torch.nn.Linear(3, 4)  # used by no node
    model[2].weight = torch.nn.Parameter(torch.ones(2, 4))
    model.shared = model[2]
    model[0].bias.requires_grad_(False)
    model[0].bias.grad = torch.full((4,), 7.0)
    nodes = cpd.VirtualNodes(model, 2, cpd.Reduce("fp32"))
    assert nodes.names == ["0.weight", "2.weight", "2.bias", "extra.weight", "extra.bias"]
    images = torch.randn(2, 3)

    def loss(micro):
        node, x = micro
        hidden = model[0](x).relu()
        return model[2](hidden).sum() if node else model.shared(hidden).sum() + hidden.sum()

    nodes.step(loss, micro_batches=enumerate(images))
    hidden = (model[0](images).detach().relu() / 2).sum(0)
    assert torch.allclose(model[2].weight.grad, hidden.expand(2, 4))
    assert model.extra.weight.grad is model.extra.bias.grad is None
    assert model[0].bias.grad.tolist() == [7.0] * 4
    nodes.step(lambda x: model[0](x).sum(), micro_batches=images)
    assert model[2].weight.grad is None
    report = nodes.report["2.weight"]
    assert (report.shift, report.non_finite, report.overflowed, report.underflowed) == (0, 0, 0, 0)
    assert report.zeros_share == 1
    model[0].bias.requires_grad_(True)
    with pytest.raises(RuntimeError, match="others than when its VirtualNodes was made"):
        nodes.step(lambda x: model[0](x).sum(), micro_batches=images)


def test_a_node_without_a_gradient_contributes_zeros():
    model = torch.nn.ParameterList([torch.ones(2), torch.ones(2)])
    nodes = cpd.VirtualNodes(model, 3, APS, "recompute")
    nodes.step(lambda i: model[i].sum() * 3, micro_batches=[0, 1, 0])
    assert [p.grad.tolist() for p in model] == [[2.0, 2.0], [1.0, 1.0]]


def test_bfloat16_gradients_are_widened_and_sums_rounded():
    model = perceptron().bfloat16()
    images = torch.randn(6, 3, dtype=torch.bfloat16)
    for keep in ("memory", "disk"):
        spec = cpd.Reduce("fp16", aps=True)
        nodes = cpd.VirtualNodes(model, 3, spec, keep)
        assert nodes.kept_bytes == 3 * 2 * 26
        nodes.step(lambda x: model(x).float().square().sum(), images)
        per_rank = [
            torch.autograd.grad(model(x).float().square().sum(), list(model.parameters()))
            for x in images.split(2)
        ]
        wanted = cpd.simulate_all_reduce(per_rank, spec.replace(average=True))
        for parameter, sums in zip(model.parameters(), wanted, strict=True):
            assert torch.equal(parameter.grad, sums.bfloat16())


def test_one_pass_holds_one_nodes_gradients():
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 4, E4M3, "memory")
    held: list[weakref.ref[torch.Tensor]] = []

    def watch(node, gradients):
        assert list(gradients) == nodes.names
        assert [ref() for ref in held] == [None] * len(held)
        held.extend(weakref.ref(g) for g in gradients.values())

    nodes.step(lambda x: model(x).sum(), torch.randn(4, 3), on_gradients=watch)
    assert len(held) == 16


def test_losses_of_a_node_are_summed():
    """The gradients of several losses that a node yields are added.

    Each backward pass follows its loss at once.
    """
    model = perceptron()
    nodes = cpd.VirtualNodes(model, 2, cpd.Reduce("fp32"), average=False)
    images = torch.randn(8, 3)
    seen = []

    def several(micro):
        for part in micro.split(2):
            yield model(part).sum()
            seen.append(float(model[2].bias.grad.sum()))

    loss = nodes.step(several, images)
    assert seen == [4.0, 8.0, 4.0, 8.0]
    whole = [model(x).sum() for x in images.split(4)]
    assert torch.allclose(nodes.losses, torch.stack(whole).detach())
    assert torch.allclose(loss, sum(whole) / 2)
    wanted = torch.autograd.grad(sum(whole), list(model.parameters()))
    assert all(torch.allclose(p.grad, w) for p, w in zip(model.parameters(), wanted, strict=True))


def test_scaled_losses_and_clipped_gradients():
    """torch's own treatment of gradients between backward and the optimizer's step works.

    The test scales losses and clips gradients.
    """
    model = perceptron()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    nodes = cpd.VirtualNodes(model, 2, cpd.Reduce("fp32"))
    before = model[2].bias.detach().clone()
    nodes.step(lambda x: scaler.scale(model(x).sum() * 100), torch.randn(4, 3))
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert float(norm) > 1
    assert float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])) < 1.001
    scaler.step(optimizer)
    assert not torch.equal(before, model[2].bias)


@pytest.mark.gpu
def test_on_the_gpu(gpu):
    """Gradients of virtual nodes on a GPU are summed on the GPU, with the same bits as on a CPU."""
    require_gpu_itself("random generators")
    model = perceptron().cuda()
    images = torch.randn(6, 3, device="cuda")
    for keep in ("memory", "disk", "recompute"):
        nodes = cpd.VirtualNodes(model, 3, APS, keep, generators=range(3))
        nodes.step(lambda x: model(x).square().sum(), images)
        per_rank = [
            [g.cpu() for g in torch.autograd.grad(model(x).square().sum(), [*model.parameters()])]
            for x in images.split(2)
        ]
        wanted = cpd.simulate_all_reduce(per_rank, APS.replace(average=True))
        for parameter, sums in zip(model.parameters(), wanted, strict=True):
            assert torch.equal(parameter.grad, sums.cuda())
