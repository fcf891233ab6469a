# SPDX-License-Identifier: Apache-2.0
"""Tests cpd.autocast. Within cpd.autocast, torch's functions give the results of CPD's functional
forms. Converted layers keep their own recipe."""

from __future__ import annotations

import pytest

import cpd

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from cpd import functional  # noqa: E402
from cpd.numeric.purposes import Purpose  # noqa: E402
from cpd.numeric.streams import stream_tag  # noqa: E402
from tensors import compiled, leaves_of, normal, same  # noqa: E402

HOW = cpd.Recipe(
    sums="e6m9 chunked",
    activation="(4,3)",
    weight="e3m2",
    gradient="e5m2",
    norm="e5m3",
    softmax="(4,3)",
    embedding="e3m2",
    residual="(4,3)",
    attention=cpd.Recipe(sums="e6m9 chunked"),
)
X, W, B, A = normal(5, 8), normal(6, 8), normal(6), normal(2, 5, 8)
W3 = normal(2, 8, 8)
IMAGES, KERNEL = normal(2, 4, 6, 6), normal(3, 4, 3, 3)


def rounded(x, to):
    return cpd.cast(x, to)


CASES = {
    "linear": (
        lambda: F.linear(X, W, B),
        lambda: functional.linear(X, W, B, recipe=HOW),
    ),
    "matmul": (lambda: torch.matmul(A, W.T), lambda: functional.matmul(A, W.T, recipe=HOW)),
    "at": (lambda: A @ A.mT, lambda: functional.matmul(A, A.mT, recipe=HOW)),
    "method": (lambda: X.matmul(W.T), lambda: functional.matmul(X, W.T, recipe=HOW)),
    "rmatmul": (lambda: X.mT.__rmatmul__(W), lambda: functional.matmul(W, X.mT, recipe=HOW)),
    "mm": (lambda: torch.mm(X, W.T), lambda: functional.matmul(X, W.T, recipe=HOW)),
    "mv": (lambda: X.mv(X[0]), lambda: functional.matmul(X, X[0], recipe=HOW)),
    "bmm": (lambda: torch.bmm(A, A.mT), lambda: functional.matmul(A, A.mT, recipe=HOW)),
    "addmm of a bias": (
        lambda: torch.addmm(B, X, W.T),
        lambda: functional.linear(X, W, B, recipe=HOW),
    ),
    "addmm": (
        lambda: torch.addmm(X[:, :6], X, W.T, beta=2, alpha=3),
        lambda: 3 * functional.matmul(X, W.T, recipe=HOW) + 2 * X[:, :6],
    ),
    "baddbmm": (
        lambda: A[:, :, :5].baddbmm(A, A.mT),
        lambda: functional.matmul(A, A.mT, recipe=HOW) + A[:, :, :5],
    ),
    "linalg.matmul": (
        lambda: torch.linalg.matmul(A, A.mT),
        lambda: functional.matmul(A, A.mT, recipe=HOW),
    ),
    "dot": (lambda: X[0].dot(W[1]), lambda: functional.matmul(X[0], W[1], recipe=HOW)),
    "vdot": (lambda: torch.vdot(X[0], W[1]), lambda: functional.matmul(X[0], W[1], recipe=HOW)),
    "outer": (
        lambda: torch.outer(X[0], W[1]),
        lambda: functional.matmul(X[0][:, None], W[1][None], recipe=HOW),
    ),
    "inner": (lambda: torch.inner(A, W), lambda: functional.matmul(A, W.T, recipe=HOW)),
    "tensordot": (
        lambda: torch.tensordot(A, A, ([1, 2], [1, 2])),
        lambda: functional.matmul(A.flatten(1), A.flatten(1).T, recipe=HOW),
    ),
    "tensordot of a number of dimensions": (
        lambda: torch.tensordot(A, W.T, 1),
        lambda: functional.matmul(A, W.T, recipe=HOW),
    ),
    "einsum": (
        lambda: torch.einsum("bij, kj -> kib", A, W),
        lambda: (
            functional.matmul(A.flatten(0, 1), W.T, recipe=HOW).reshape(2, 5, 6).permute(2, 1, 0)
        ),
    ),
    "einsum of batches": (
        lambda: torch.einsum("bij,bkj->bki", A, A + 1),
        lambda: functional.matmul(A, (A + 1).mT, recipe=HOW).mT,
    ),
    "einsum without a result's letters": (
        lambda: torch.einsum("ij,kj", X, W),
        lambda: functional.matmul(X, W.T, recipe=HOW),
    ),
    "einsum of several sums": (
        lambda: torch.einsum("bij,cij->bc", A, A),
        lambda: functional.matmul(A.flatten(1), A.flatten(1).T, recipe=HOW),
    ),
    "bilinear": (
        lambda: F.bilinear(X, X + 1, W3, normal(2)),
        lambda: (
            functional.matmul(
                functional.matmul(X, W3.transpose(0, 1).reshape(8, 16), recipe=HOW).reshape(
                    5, 2, 8
                ),
                (X + 1)[..., None],
                recipe=HOW,
            )[..., 0]
            + normal(2)
        ),
    ),
    "addmv": (
        lambda: torch.addmv(B, W, X[0], beta=2),
        lambda: functional.matmul(W, X[0], recipe=HOW) + 2 * B,
    ),
    "addr": (
        lambda: torch.addr(X, X[:, 0], W[0], alpha=3),
        lambda: 3 * functional.matmul(X[:, :1], W[:1], recipe=HOW) + X,
    ),
    "addbmm": (
        lambda: torch.addbmm(X[:, :5], A, A.mT),
        lambda: (
            functional.matmul(A.transpose(0, 1).flatten(1), A.mT.flatten(0, 1), recipe=HOW)
            + X[:, :5]
        ),
    ),
    "addmm_": (
        lambda: X[:, :6].clone().addmm_(X, W.T),
        lambda: functional.matmul(X, W.T, recipe=HOW) + X[:, :6],
    ),
    "baddbmm_": (
        lambda: A[:, :, :5].clone().baddbmm_(A, A.mT, beta=0.5),
        lambda: functional.matmul(A, A.mT, recipe=HOW) + 0.5 * A[:, :, :5],
    ),
    "matmul by names": (
        lambda: torch.matmul(other=A.mT, input=A),
        lambda: functional.matmul(A, A.mT, recipe=HOW),
    ),
    "mm by a name": (lambda: X.mm(mat2=W.T), lambda: functional.matmul(X, W.T, recipe=HOW)),
    "baddbmm by names": (
        lambda: A[:, :, :5].baddbmm(batch2=A.mT, batch1=A, beta=2),
        lambda: functional.matmul(A, A.mT, recipe=HOW) + 2 * A[:, :, :5],
    ),
    "addmm by names": (
        lambda: torch.addmm(input=B, mat2=W.T, mat1=X),
        lambda: functional.linear(X, W, B, recipe=HOW),
    ),
    "addmv by names": (
        lambda: torch.addmv(B, vec=X[0], mat=W),
        lambda: functional.matmul(W, X[0], recipe=HOW) + B,
    ),
    "outer by a name": (
        lambda: torch.outer(X[0], vec2=W[1]),
        lambda: functional.matmul(X[0][:, None], W[1][None], recipe=HOW),
    ),
    "dot by a name": (
        lambda: torch.dot(X[0], tensor=W[1]),
        lambda: functional.matmul(X[0], W[1], recipe=HOW),
    ),
    "tensordot by names": (
        lambda: torch.tensordot(b=W.T, a=A, dims=1),
        lambda: functional.matmul(A, W.T, recipe=HOW),
    ),
    "aten.mm": (lambda: torch.ops.aten.mm(X, W.T), lambda: functional.matmul(X, W.T, recipe=HOW)),
    "aten.bmm.default": (
        lambda: torch.ops.aten.bmm.default(A, A.mT),
        lambda: functional.matmul(A, A.mT, recipe=HOW),
    ),
    "aten.addmm": (
        lambda: torch.ops.aten.addmm(B, X, W.T),
        lambda: functional.linear(X, W, B, recipe=HOW),
    ),
    "aten.linear": (
        lambda: torch.ops.aten.linear(X, W, B),
        lambda: functional.linear(X, W, B, recipe=HOW),
    ),
    "conv1d": (
        lambda: F.conv1d(IMAGES[:, 0, :3], KERNEL[:, :3, 0], padding=1),
        lambda: functional.conv1d(IMAGES[:, 0, :3], KERNEL[:, :3, 0], padding=1, recipe=HOW),
    ),
    "conv2d": (
        lambda: F.conv2d(IMAGES, KERNEL, None, 2, padding=1),
        lambda: functional.conv2d(IMAGES, KERNEL, None, 2, padding=1, recipe=HOW),
    ),
    "conv3d": (
        lambda: F.conv3d(IMAGES[:, None], KERNEL[:, :1, None]),
        lambda: functional.conv3d(IMAGES[:, None], KERNEL[:, :1, None], recipe=HOW),
    ),
    "conv_transpose2d": (
        lambda: F.conv_transpose2d(IMAGES, KERNEL.transpose(0, 1), None, 2),
        lambda: functional.conv_transpose2d(IMAGES, KERNEL.transpose(0, 1), None, 2, recipe=HOW),
    ),
    "layer_norm": (
        lambda: F.layer_norm(X, (8,)),
        lambda: functional.layer_norm(X, (8,), recipe=HOW),
    ),
    "rms_norm": (lambda: F.rms_norm(X, (8,)), lambda: functional.rms_norm(X, (8,), recipe=HOW)),
    "group_norm": (
        lambda: F.group_norm(IMAGES, 2),
        lambda: functional.group_norm(IMAGES, 2, recipe=HOW),
    ),
    "softmax": (lambda: X.softmax(-1), lambda: rounded(torch.softmax(X, -1), "e4m3")),
    "embedding": (
        lambda: F.embedding(torch.tensor([1, 3]), W),
        lambda: functional.embedding(torch.tensor([1, 3]), W, recipe=HOW),
    ),
    "attention": (
        lambda: F.scaled_dot_product_attention(A, A, A, is_causal=True),
        lambda: functional.scaled_dot_product_attention(A, A, A, is_causal=True, recipe=HOW),
    ),
    "add": (lambda: X + X[:, :1].expand(5, 8), lambda: rounded(X + X[:, :1], "e4m3")),
    "add of a bias": (lambda: X + X[0], lambda: X + X[0]),
    "add of a number": (lambda: torch.add(X, 1), lambda: X + 1),
    "add in place": (lambda: X.clone().add_(X), lambda: rounded(X + X, "e4m3")),
    "a layer": (
        lambda: LAYER(X),
        lambda: functional.linear(X, LAYER.weight, LAYER.bias, recipe=HOW),
    ),
}
LAYER = nn.Linear(8, 4)
ADDS = cpd.Recipe(sums="e6m9 chunked", residual="(4,3)")


@pytest.mark.parametrize("case", CASES)
def test_functions(case):
    theirs, ours = CASES[case]
    wanted, plain = ours(), theirs()
    mode = cpd.autocast(HOW)
    with mode:
        assert same(theirs(), wanted)
    assert same(theirs(), plain)
    assert not mode.left


def test_gradients():
    x, w, b = leaves_of((5, 8), (6, 8), (6,))
    with cpd.autocast(HOW):
        F.linear(x, w, b).square().sum().backward()
    got = [p.grad for p in (x, w, b)]
    x, w, b = leaves_of((5, 8), (6, 8), (6,))
    functional.linear(x, w, b, recipe=HOW).square().sum().backward()
    assert same(got, [p.grad for p in (x, w, b)])
    x, y = leaves_of((5, 8), (5, 8))
    with cpd.autocast(ADDS):
        (x + y).backward(normal(5, 8))
    assert same([x.grad, y.grad], [cpd.cast(normal(5, 8), "e4m3")] * 2)


def test_what_stays_torchs_is_counted():
    with cpd.autocast(cpd.Recipe(sums="e4m3")) as mode:
        torch.einsum("ij,kj,kj->ik", X, W, W)
        torch.einsum("ij,kj,kj->ik", X, W, W)
        X.double() @ W.double().T
        torch.ones(2, 2, dtype=torch.int64) @ torch.ones(2, 2, dtype=torch.int64)
        X.relu().sum()
    assert mode.left == {"einsum": 2, "matmul": 2}


def _lstm():
    torch.nn.LSTM(8, 3)(X)


@pytest.mark.parametrize(
    ("run", "left"),
    [
        (lambda: torch.linalg.multi_dot([X, W.T, W]), {"multi_dot": 1}),
        (lambda: torch.cdist(X, W), {"cdist": 1}),
        (_lstm, {"lstm": 1}),
        (lambda: torch.einsum("ii,ij->j", X[:, :5], X), {"einsum": 1}),
        (lambda: torch.einsum("ij,k->k", X, B), {"einsum": 1}),
        (lambda: torch.einsum("...j,kj->k", X, W), {"einsum": 1}),
        (lambda: torch.cov(X), {"aten.mm": 1}),
        (lambda: torch.linalg.matrix_power(A[:, :, :5], 2), {"aten.bmm": 1}),
        (lambda: torch.ops.aten.convolution(IMAGES, KERNEL, None, *([1, 1], [0, 0], [1, 1]),
                                            False, [0, 0], 1), {"aten.convolution": 1}),
    ],
)  # fmt: skip
def test_every_product_is_emulated_or_counted(run, left):
    with cpd.autocast(cpd.Recipe(sums="e4m3")) as mode:
        run()
    assert mode.left == left


def test_attention_that_the_recipe_leaves_to_torch_is_counted():
    with cpd.autocast("mxfp8") as mode:
        F.scaled_dot_product_attention(A[None], A[None], A[None])
    assert mode.left == {"aten._scaled_dot_product_flash_attention_for_cpu": 1}


def test_backward_passes_are_not_counted():
    x, w = leaves_of((5, 8), (6, 8))
    with cpd.autocast(cpd.Recipe("mxfp8")) as mode:
        (x @ w.T).square().sum().backward()
    assert mode.left == {}


def test_calls_draw_different_bits():
    how = cpd.Recipe("native", activation="(4,3) rounding=stochastic")
    stream = torch.tensor(7 << 36)
    for given in (7 << 36, stream):
        mode = cpd.autocast(how, stream=given)
        for _ in range(2):  # a context may be entered again
            with mode:
                got = [F.linear(X, W), F.linear(X, W), X @ W.T]
            for number, y in enumerate(got):
                of_call = (7 << 36) ^ stream_tag(Purpose.given, number)
                assert same(y, functional.linear(X, W, recipe=how, stream=of_call))


def test_converted_layers_are_left_alone():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.MultiheadAttention(8, 2))
    other = cpd.Recipe("native", weight="e4m3fn", norm="e3m2", attention="native")
    cpd.convert(model, other, [("1", None)])
    with torch.no_grad():
        wanted = model[0](X), model[2](A, A, A)[0]
    with cpd.autocast(HOW), torch.no_grad():
        assert same((model[0](X), model[2](A, A, A)[0]), wanted)
        of_norm = model[1](X)
    norm = model[1]
    assert same(of_norm, functional.layer_norm(X, (8,), norm.weight, norm.bias, recipe=HOW))
    cpd.restore(model)
    with cpd.autocast(HOW), torch.no_grad():
        assert same(model[0](X), functional.linear(X, model[0].weight, model[0].bias, recipe=HOW))


def test_modes_within_one_another():
    with cpd.autocast(cpd.Recipe(sums="e4m3")), cpd.autocast(cpd.Recipe(sums="e6m9 chunked")):
        inner = X @ W.T
    assert same(inner, functional.matmul(X, W.T, sums="e6m9 chunked"))
    with cpd.autocast(cpd.Recipe(sums="e4m3")), torch.device("cpu"):
        assert same(X @ W.T, functional.matmul(X, W.T, sums="e4m3"))


def work(x, w, b):
    return F.linear(x, w, b) + (x @ w.mT) + F.scaled_dot_product_attention(x, x, x) @ w.mT


def test_compiled_within_and_around():
    x, w, b = leaves_of((2, 5, 8), (6, 8), (6,))
    how = HOW.replace(activation="(4,3) rounding=stochastic")
    stream = torch.tensor(1 << 36)

    def within(x, w, b):
        with cpd.autocast(how, stream=stream):
            return work(x, w, b)

    def gradients(run):
        y = run(x, w, b)
        return [y, *torch.autograd.grad(y.square().sum(), (x, w, b))]

    call, counter = compiled(within)
    for step in (1, 2, 3):
        stream.fill_(step << 36)
        assert same(gradients(call), gradients(within))
    assert counter.frame_count == 1
    around, counter = compiled(work)
    with cpd.autocast(how, stream=stream):
        got = gradients(around)
    assert same(got, gradients(within))


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpointing(reentrant):
    """Activation checkpointing recomputes the same bits if cpd.autocast is inside the checkpointed
    function."""
    how = HOW.replace(gradient="e5m2 rounding=stochastic")
    leaves = leaves_of((2, 5, 8), (6, 8), (6,))

    def within(*leaves):
        with cpd.autocast(how):
            return work(*leaves)

    def gradients(y):
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    def recomputed(*leaves):
        return checkpoint(within, *leaves, use_reentrant=reentrant)

    got = recomputed(*leaves)
    got.square().sum().backward()
    assert same([got, *(p.grad for p in leaves)], gradients(within(*leaves)))
    with (
        cpd.autocast(how),
        pytest.raises(RuntimeError, match="enter the context within the function"),
    ):
        checkpoint(work, *leaves, use_reentrant=reentrant)
    with cpd.autocast(how), torch.no_grad():
        work(*leaves)


def test_arguments():
    with pytest.raises(ValueError, match="no such"):
        cpd.autocast("no such")
    with pytest.raises(
        ValueError, match=r"depend on past steps, which cpd\.autocast does not store"
    ):
        cpd.autocast("te-delayed")
    with pytest.raises(TypeError, match="stream must be an int"):
        cpd.autocast(cpd.Recipe(sums="e4m3"), stream=1.5)
