# SPDX-License-Identifier: Apache-2.0
"""Tests torch's products of two tensors within cpd.autocast: beta = 0, sizes that broadcast, out=,
and sparse operands. Operands are small integers, so that torch's results are exact and serve as the
oracle."""

from __future__ import annotations

import random
import warnings

import pytest

import cpd

torch = pytest.importorskip("torch")

from cpd import functional  # noqa: E402
from tensors import compiled, normal, same  # noqa: E402

EXACT = cpd.Recipe("native", activation="fp32", weight="fp32", gradient="fp32")
NARROW = cpd.Recipe(sums="e6m9 chunked", activation="(4,3)", weight="e3m2")
NAN = float("nan")


def whole(*shape, seed=0):
    return (3 * normal(*shape, seed=seed)).round()


def equal(a, b):
    """Returns True if types, shapes and values are equal. Zeros may differ in sign, because torch
    does not define the sign of a zero sum."""
    return a.dtype == b.dtype and torch.equal(a, b)


def outcome(run):
    """Returns the result of a call, or the class and text of its error."""
    try:
        return run()
    except (RuntimeError, ValueError, IndexError) as error:
        return type(error), str(error)


def agree(run):
    """Returns two values: True if a call within cpd.autocast gives torch's result or error, and a
    list of the operations that autocast did not emulate."""
    wanted = outcome(run)
    with cpd.autocast(EXACT) as mode:
        got = outcome(run)
    if isinstance(wanted, tuple) or isinstance(got, tuple):
        return wanted == got, mode.left
    return equal(got, wanted), mode.left


# ---- beta = 0 ------------------------------------------------------------------------------------

ADDING = {
    "addmm": ((2, 4), (2, 3), (3, 4)),
    "addmv": ((2,), (2, 3), (3,)),
    "addr": ((2, 4), (2,), (4,)),
    "addbmm": ((2, 4), (5, 2, 3), (5, 3, 4)),
    "baddbmm": ((5, 2, 4), (5, 2, 3), (5, 3, 4)),
}


@pytest.mark.parametrize("fill", [NAN, float("inf")])
@pytest.mark.parametrize("name", ADDING)
def test_beta_0_ignores_the_input(name, fill):
    of_input, *operands = ADDING[name]
    a, b = (whole(*shape, seed=seed) for seed, shape in enumerate(operands))
    function, method = getattr(torch, name), getattr(torch.Tensor, name)
    in_place = getattr(torch.Tensor, f"{name}_")
    for beta in (0, 0.0, torch.tensor(0)):
        for run in (
            lambda x, beta: function(x, a, b, beta=beta, alpha=2),
            lambda x, beta: method(x, a, b, beta=beta, alpha=2),
            lambda x, beta: in_place(x.clone(), a, b, beta=beta, alpha=2),
            lambda x, beta: getattr(torch.ops.aten, name)(x, a, b, beta=beta, alpha=2),
        ):
            wanted = run(torch.zeros(of_input), 1)
            with cpd.autocast(EXACT) as mode:
                assert equal(run(torch.full(of_input, fill), beta), wanted)
            assert not mode.left
    with cpd.autocast(EXACT):
        one = function(torch.full((1,), fill), a, b, beta=0)
    assert equal(one, function(torch.zeros(1), a, b))


def test_beta_0_gives_the_input_a_gradient_of_zero():
    def gradients():
        x = torch.full((4,), NAN, requires_grad=True)
        a, b = (whole(*s, seed=i).requires_grad_() for i, s in enumerate([(2, 3), (3, 4)]))
        y = torch.addmm(x, a, b, beta=0)
        return [y, *torch.autograd.grad(y, (x, a, b), whole(2, 4, seed=5))]

    wanted = gradients()
    with cpd.autocast(EXACT):
        assert all(map(equal, gradients(), wanted))


def test_beta_0_when_compiled():
    def run(x, a, b):
        with cpd.autocast(EXACT):
            return torch.addmm(x, a, b, beta=0)

    a, b = whole(2, 3), whole(3, 4, seed=1)
    call, _ = compiled(run)
    assert same(call(torch.full((2, 4), NAN), a, b), a @ b)


@pytest.mark.parametrize("under_autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ADDING)
def test_a_sum_with_a_16_bit_input_is_rounded_once(name, dtype, under_autocast):
    of_input, (*batch, m, k), (*_, n) = (5, 7), *{
        "addmm": ((5, 40), (40, 7)),
        "addmv": ((5, 40), (40, 1)),
        "addr": ((5, 1), (1, 7)),
        "addbmm": ((3, 5, 40), (3, 40, 7)),
        "baddbmm": ((3, 5, 40), (3, 40, 7)),
    }[name]  # fmt: skip
    a, b = whole(*batch, m, k), whole(*batch, k, n, seed=1)
    exact = a.double() @ b.double()
    if name == "addmv":
        b, exact, of_input = b[:, 0], exact[:, 0], (5,)
    if name == "addr":
        a, b = a[:, 0], b[0]
    if name == "addbmm":
        exact = exact.sum(0)
    x = normal(*of_input, seed=2).to(dtype)
    wanted = (0.75 * exact + 1.25 * x.double()).to(dtype)
    if not under_autocast:
        a, b = a.to(dtype), b.to(dtype)
    for recipe in (EXACT, cpd.Recipe("native")):
        with torch.autocast("cpu", dtype, enabled=under_autocast), cpd.autocast(recipe) as mode:
            y = getattr(torch, name)(x, a, b, beta=1.25, alpha=0.75)
        assert not mode.left
        assert equal(y, wanted)


@pytest.mark.filterwarnings("ignore:This overload of")
def test_factors_by_position():
    a, b, x = whole(2, 3), whole(3, 4, seed=1), whole(2, 4, seed=2)
    for run in (
        lambda: torch.addmm(2, x, 3, a, b),
        lambda: torch.addmm(2, x, a, b),
        lambda: x.addmm(2, 3, a, b),
        lambda: x.clone().addmm_(2, a, b),
    ):
        assert agree(run) == (True, {})


# ---- shapes --------------------------------------------------------------------------------------


def equations(count):
    """Yields random einsum equations with two operands each. Most operands have shapes that fit the
    equation."""
    pick = random.Random(5)
    for number in range(count):
        letters = pick.sample("abcdeF", 4)
        size = {letter: pick.choice([1, 2, 3]) for letter in letters}
        terms, shapes = [], []
        for _ in range(2):
            term = pick.choices(letters, k=pick.randint(0, 3))
            if pick.random() < 0.8:
                term = list(dict.fromkeys(term))
            shape = [1 if pick.random() < 0.15 else size[letter] for letter in term]
            if shape and pick.random() < 0.05:
                shape[pick.randrange(len(shape))] = 4
            if pick.random() < 0.3:
                at = pick.randint(0, len(term))
                covered = [pick.choice([1, 2]) for _ in range(pick.randint(0, 2))]
                term.insert(at, "...")
                shape[at:at] = covered
            if pick.random() < 0.03:
                shape.append(2)
            terms.append("".join(term))
            shapes.append(shape)
        text = ",".join(terms)
        if pick.random() < 0.7:
            named = sorted(set(text) & set(letters))
            chosen = [x for x in named if pick.random() < 0.6]
            pick.shuffle(chosen)
            if "..." in text and pick.random() < 0.8:
                chosen.insert(pick.randint(0, len(chosen)), "...")
            if pick.random() < 0.03:
                chosen.append(pick.choice(letters))
            text += " -> " + "".join(chosen)
        yield text, [whole(*shape, seed=2 * number + i) for i, shape in enumerate(shapes)]


def test_einsum_of_random_equations():
    """einsum within cpd.autocast has torch's values, shapes and errors. Most valid equations are
    emulated."""
    refused = emulated = 0
    for text, operands in equations(3000):
        equal, left = agree(lambda text=text, operands=operands: torch.einsum(text, *operands))
        assert equal, (text, [tuple(x.shape) for x in operands])
        wanted = outcome(lambda text=text, operands=operands: torch.einsum(text, *operands))
        refused += isinstance(wanted, tuple)
        emulated += not isinstance(wanted, tuple) and not left
    assert refused > 200
    assert emulated > 800


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 2)]),
        ("bij,bjk->bik", [(4, 2, 3), (1, 3, 2)]),
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("ij,jk->ik", [(2, 3), (1, 4)]),
        ("...ij,...jk->...ik", [(5, 1, 2, 3), (4, 3, 2)]),
        ("...j,kj->...k", [(2, 3, 4), (5, 4)]),
        ("i...,i...->...", [(3, 2, 4), (3, 1, 4)]),
        ("ab...,bc...", [(2, 3, 2), (3, 4, 2)]),
    ],
)
def test_einsum_broadcasts(equation, shapes):
    operands = [whole(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    assert agree(lambda: torch.einsum(equation, *operands)) == (True, {})
    assert agree(lambda: torch.einsum(equation, operands)) == (True, {})


def test_einsum_of_lists_of_labels():
    a, b = whole(1, 2, 3), whole(4, 3, 2, seed=1)
    assert agree(lambda: torch.einsum(a, [0, 1, 2], b, [0, 2, 3], [0, 1, 3])) == (True, {})
    assert agree(lambda: torch.einsum(a, [..., 1, 2], b, [..., 2, 3], [..., 1, 3])) == (True, {})


def test_gradients_of_a_broadcast_batch_run_in_one_sum():
    a, b, g = normal(1, 2, 8), normal(4, 8, 3, seed=1), normal(4, 2, 3, seed=2)

    def gradients(run):
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        return torch.autograd.grad(run(*leaves), leaves, g)

    with cpd.autocast(NARROW):
        got = gradients(lambda a, b: torch.einsum("bij,bjk->bik", a, b))
    assert same(got, gradients(lambda a, b: functional.matmul(a, b, recipe=NARROW)))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (torch.mm, [(3, 4), (3, 4)]),
        (torch.mm, [(2, 3, 4), (4, 5)]),
        (torch.mm, [(4,), (4, 5)]),
        (torch.mv, [(3, 4), (4, 1)]),
        (torch.mv, [(3, 4), (1,)]),
        (torch.bmm, [(1, 2, 3), (4, 3, 2)]),
        (torch.bmm, [(2, 3), (3, 2)]),
        (torch.dot, [(3,), (4,)]),
        (torch.dot, [(3, 3), (3,)]),
        (torch.outer, [(3, 1), (3,)]),
        (torch.inner, [(2, 3), (4, 1)]),
        (lambda a, b: torch.tensordot(a, b, ([0], [0, 1])), [(2, 3), (2, 3)]),
        (lambda a, b: torch.tensordot(a, b, ([0, 0], [0, 1])), [(2, 3), (2, 2)]),
        (lambda a, b: torch.tensordot(a, b, ([2], [0])), [(2, 3), (2, 2)]),
        (lambda a, b: torch.tensordot(a, b, ([0], [1])), [(2, 3), (2, 3)]),
        (lambda a, b: torch.tensordot(a, b, 3), [(2, 3), (2, 3)]),
        (lambda a, b: torch.tensordot(a, b, -1), [(2, 3), (2, 3)]),
        (lambda a, b: torch.addmm(torch.ones(2, 2, 4), a, b), [(2, 3), (3, 4)]),
        (lambda a, b: torch.addmm(torch.ones(3), a, b), [(2, 3), (3, 4)]),
        (lambda a, b: torch.ones(4).addmm_(a, b), [(2, 3), (3, 4)]),
        (lambda a, b: torch.baddbmm(torch.ones(1), a, b), [(1, 2, 3), (4, 3, 4)]),
        (lambda a, b: torch.addbmm(torch.ones(1), a, b), [(1, 2, 3), (4, 3, 4)]),
        (lambda a, b: torch.addr(torch.ones(1), a, b), [(1, 2), (3,)]),
    ],
)
def test_what_torch_refuses_is_refused_with_its_error(function, shapes):
    operands = [whole(*shape, seed=seed) for seed, shape in enumerate(shapes)]
    assert isinstance(outcome(lambda: function(*operands)), tuple)
    assert agree(lambda: function(*operands)) == (True, {})


@pytest.mark.parametrize(
    "dims", [0, 1, 2, ([1], [0]), ([0], [0]), ([-1, 0], [0, 1]), torch.tensor([[1, 0], [0, 1]])]
)
def test_tensordot(dims):
    a, b = whole(3, 1), whole(1, 3, seed=1)
    c = whole(1, 3, 2, seed=2)
    for right in (b, c):
        assert agree(lambda right=right: torch.tensordot(a, right, dims=dims)) == (True, {})
        assert agree(lambda right=right: torch.tensordot(a, right, dims)) == (True, {})


# ---- out= ----------------------------------------------------------------------------------------

M, N, V = whole(2, 3), whole(3, 4, seed=1), whole(3, seed=2)
P, Q, R = normal(2, 3), normal(3, 4, seed=1), normal(3, seed=2)
OUT = {
    "mm": lambda **out: torch.mm(P, Q, **out),
    "matmul": lambda **out: torch.matmul(P, Q, **out),
    "linalg.matmul": lambda **out: torch.linalg.matmul(P, Q, **out),
    "mv": lambda **out: torch.mv(P, R, **out),
    "dot": lambda **out: torch.dot(R, R, **out),
    "vdot": lambda **out: torch.vdot(R, R, **out),
    "bmm": lambda **out: torch.bmm(P[None], Q[None], **out),
    "outer": lambda **out: torch.outer(R, R, **out),
    "ger": lambda **out: torch.ger(R, R, **out),
    "inner": lambda **out: torch.inner(P, R, **out),
    "tensordot": lambda **out: torch.tensordot(P, Q, 1, **out),
    "addmm": lambda **out: torch.addmm(R[0], P, Q, **out),
    "addmv": lambda **out: torch.addmv(R[:2], P, R, **out),
    "addr": lambda **out: torch.addr(R, R, R, **out),
    "baddbmm": lambda **out: torch.baddbmm(R[0], P[None], Q[None], beta=2, **out),
    "addbmm": lambda **out: torch.addbmm(R[0], P[None], Q[None], alpha=2, **out),
    "aten.mm": lambda **out: torch.ops.aten.mm(P, Q, **out),
    "add": lambda **out: torch.add(P, P, **out),
    "softmax": lambda **out: torch.softmax(P, 1, **out),
}


@pytest.mark.parametrize("name", OUT)
def test_out(name):
    run = OUT[name]
    how = NARROW.replace(residual="e3m2", softmax="e3m2")
    with cpd.autocast(how):
        wanted = run()
    assert not same(wanted, run())
    for out in (torch.empty_like(wanted), torch.empty(0), wanted.new_empty(9, *wanted.shape)[0]):
        with cpd.autocast(how) as mode:
            assert run(out=out) is out
            assert same(run(out=None), wanted)
        assert same(out, wanted)
        assert not mode.left
    strided = wanted.new_empty(*wanted.shape, 2)[..., 0]
    with cpd.autocast(how):
        run(out=strided)
    assert same(strided.contiguous(), wanted)


def test_out_as_torch_refuses_or_resizes_it():
    a = M.clone().requires_grad_()
    assert agree(lambda: torch.mm(a, N, out=torch.empty(2, 4))) == (True, {})
    assert agree(lambda: torch.mm(M, N, out=torch.empty(2, 4, dtype=torch.double))) == (True, {})
    assert agree(lambda: torch.mm(M, N, out=torch.empty(2, 4, requires_grad=True))) == (True, {})
    with torch.no_grad():
        assert agree(lambda: torch.mm(a, N, out=torch.empty(2, 4))) == (True, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert agree(lambda: torch.mm(M, N, out=torch.empty(5, 5))) == (True, {})
    with cpd.autocast(EXACT) as mode:  # a sum into another type is torch's
        torch.matmul(M.double(), N.double(), out=torch.empty(2, 4, dtype=torch.double))
    assert mode.left == {"matmul": 1}


def test_out_when_compiled():
    def run(a, b, out):
        with cpd.autocast(NARROW):
            torch.mm(a, b, out=out)
        return out + 0

    call, _ = compiled(run)
    out = torch.empty(2, 4)
    assert same(call(M, N, out), functional.matmul(M, N, recipe=NARROW))


# ---- arguments by name, and types ----------------------------------------------------------------


def test_all_arguments_by_name():
    x, w = whole(2, 3), whole(4, 3, seed=1)
    images, kernel = whole(1, 2, 4, 4), whole(3, 2, 2, 2, seed=1)
    nnf = torch.nn.functional
    for run in (
        lambda: nnf.linear(weight=w, input=x),
        lambda: nnf.conv2d(weight=kernel, input=images, stride=2),
        lambda: nnf.layer_norm(input=x, normalized_shape=(3,)),
        lambda: nnf.embedding(weight=w, input=torch.tensor([1])),
        lambda: torch.add(input=x, other=x),
        lambda: torch.mm(input=x, mat2=w.T, out=torch.empty(2, 4)),
    ):
        wanted = run()
        with cpd.autocast(EXACT.replace(norm="e3m2", embedding="e3m2")) as mode:
            got = run()
        assert not mode.left
        assert got.shape == wanted.shape


@pytest.mark.parametrize("by_position", [True, False])
def test_out_dtype_is_the_type_of_the_sums(by_position):
    a, b = normal(4, 9, dtype=torch.bfloat16), normal(9, 5, seed=1, dtype=torch.bfloat16)
    how = cpd.Recipe("fp32")
    wanted = functional.matmul(a, b, recipe=how, dtype=torch.float32)
    given = (torch.float32,) if by_position else ()
    by_name = {} if by_position else {"out_dtype": torch.float32}
    with cpd.autocast(how) as mode:
        assert same(torch.mm(a, b, *given, **by_name), wanted)
        assert same(torch.bmm(a[None], b[None], *given, **by_name), wanted[None])
        zeros = torch.zeros(5)
        assert same(torch.addmm(zeros, a, b, *given, **by_name), wanted)
    assert not mode.left
    with cpd.autocast(how), pytest.raises((RuntimeError, NotImplementedError)):
        torch.mm(a.float(), b.float(), out_dtype=torch.bfloat16)


# ---- sparse and nested operands ------------------------------------------------------------------

EYE = torch.eye(3)


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize(
    ("run", "left"),
    [
        (lambda: EYE.to_sparse() @ N, {"matmul": 1}),
        (lambda: torch.mm(EYE.to_sparse(), N), {"mm": 1}),
        (lambda: torch.mm(EYE.to_sparse_csr(), N), {"mm": 1}),
        (lambda: torch.addmm(N, EYE.to_sparse(), N), {"addmm": 1}),
        (lambda: torch.mv(EYE.to_sparse(), V), {"mv": 1}),
        (lambda: torch.bmm(EYE[None].to_sparse(), N[None]), {"bmm": 1}),
        (lambda: torch.sparse.mm(EYE.to_sparse(), N), {"aten._sparse_addmm": 1}),
        (lambda: torch.nn.functional.linear(EYE.to_sparse(), M), {"linear": 1}),
        (lambda: (EYE.to_sparse() + EYE.to_sparse()).to_dense(), {}),
    ],
)
def test_sparse_operands_stay_torchs_and_are_counted(run, left):
    wanted = run()
    with cpd.autocast(NARROW.replace(residual="e3m2")) as mode:
        assert same(run(), wanted)
    assert mode.left == left


def test_a_graph_layer_registered_as_products():
    class Graph(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(normal(4, 3))

        def forward(self, edges, x):
            return torch.addmm(torch.full((3, 3), NAN), edges @ x, self.weight, beta=0)

    cpd.nn.register(Graph, "products")
    model = Graph()
    cpd.convert(model, NARROW, coverage=False)
    edges = EYE.to_sparse()
    with torch.no_grad():
        wanted = functional.matmul(edges @ N, model.weight, recipe=NARROW)
        assert same(model(edges, N), wanted)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", ["matmul", "linear", "softmax", "layer_norm"])
def test_nested_operands_are_refused(name, layout):
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    run = {
        "matmul": lambda: torch.matmul(nested, N),
        "linear": lambda: torch.nn.functional.linear(nested, M),
        "softmax": lambda: torch.softmax(nested, -1),
        "layer_norm": lambda: torch.nn.functional.layer_norm(nested, (3,)),
    }[name]
    with (
        cpd.autocast(NARROW),
        pytest.raises(TypeError, match=f"an operand of {name} must be a dense .* got a nested"),
    ):
        run()
