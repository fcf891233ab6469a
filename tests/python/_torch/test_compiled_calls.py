# SPDX-License-Identifier: Apache-2.0
"""Tests that every public operation gives the same bits, or raises the same error, in a compiled
program as in eager mode. A spec (a format, a recipe, …) is passed as a text, as an object made
outside the program, or as an object made inside it. A seed is an int or a tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

import cpd

torch = pytest.importorskip("torch")

F = cpd.functional
Spec = Callable[[], Any]
Run = Callable[[Any, Spec, Any], Any]

WEIGHT = torch.randn(8, 32, generator=torch.Generator().manual_seed(1))
RECIPE = "mxfp8 gradient='e5m2 stochastic' activation='mxfp8 stochastic'"
KNOWN = cpd.Recipe("mxfp8")
SUM = "fp32 rounding=stochastic"


class Operation(NamedTuple):
    """An operation to call, the class of the spec that the operation takes, and the text of that
    spec."""

    run: Run
    of: Callable[[str], Any]
    text: str


def encoded(x: Any, s: Spec, n: Any) -> Any:
    codes, scales = cpd.encode(x, s())
    return codes, scales[0], scales[1], cpd.decode(codes, s(), (4, 32), scales=scales)


def linear(x: Any, **how: Any) -> Any:
    return F.linear(x, WEIGHT.to(x.dtype), **how)


def under_autocast(x: Any, s: Spec, n: Any) -> Any:
    with cpd.autocast(s(), seed=n):
        return torch.nn.functional.linear(torch.matmul(x, x.T) @ x, WEIGHT.to(x.dtype))


def conv(x: Any, s: Spec, n: Any) -> Any:
    weight = WEIGHT[:3, :12].reshape(3, 4, 3).to(x.dtype)
    return F.conv1d(x[None], weight, recipe=s(), seed=n)


def attention(x: Any, s: Spec, n: Any) -> Any:
    return F.scaled_dot_product_attention(x[None], x[None], x[None], recipe=s(), seed=n)


OPERATIONS: dict[str, Operation] = {
    "cast": Operation(
        lambda x, s, n: cpd.cast(x, s(), seed=n, stream=n), cpd.Cast, "e4m3fn stochastic"
    ),
    "cast scaled": Operation(lambda x, s, n: cpd.cast(x, s()), cpd.Scaled, "mxfp8"),
    "cast to a format": Operation(lambda x, s, n: cpd.cast(x, s()), cpd.Format, "e5m2"),
    "encode": Operation(lambda x, s, n: cpd.encode(x, s(), seed=n), cpd.Cast, "e4m3fn stochastic"),
    "encode and decode": Operation(encoded, cpd.Scaled, "nvfp4"),
    "add": Operation(lambda x, s, n: cpd.add(x, x, s(), seed=n), cpd.Cast, "e5m2 stochastic"),
    "mul": Operation(lambda x, s, n: cpd.mul(x, x, s(), seed=n), cpd.Cast, "e5m2 stochastic"),
    "fma": Operation(lambda x, s, n: cpd.fma(x, x, x, s(), seed=n), cpd.Cast, "e5m2 stochastic"),
    "div": Operation(lambda x, s, n: cpd.div(x, x + 9, s(), seed=n), cpd.Cast, "e5m2 stochastic"),
    "sqrt": Operation(lambda x, s, n: cpd.sqrt(x.abs(), s(), seed=n), cpd.Cast, "e5m2 stochastic"),
    "sum": Operation(lambda x, s, n: cpd.sum(x, s(), seed=n), cpd.Accumulator, SUM),
    "sum along": Operation(lambda x, s, n: cpd.sum(x, s(), 0), cpd.Accumulator, "e8m7 kahan"),
    "gemm": Operation(lambda x, s, n: cpd.gemm(x, x.T, s(), seed=n), cpd.Accumulator, SUM),
    "gemm of a unit": Operation(
        lambda x, s, n: cpd.gemm(x.bfloat16(), x.T.bfloat16(), s(), dtype=torch.float32),
        cpd.Accumulator,
        "h100-bf16",
    ),
    "hadamard": Operation(lambda x, s, n: cpd.hadamard(x, s()), str, "hadamard16:te"),
    "quantizer": Operation(
        lambda x, s, n: cpd.quantizer(s(), s(), seed=3)(x), cpd.Cast, "e4m3fn stochastic"
    ),
    "autocast": Operation(under_autocast, cpd.Recipe, RECIPE),
    "linear": Operation(lambda x, s, n: linear(x, recipe=s(), seed=n), cpd.Recipe, RECIPE),
    "linear of a cast": Operation(
        lambda x, s, n: linear(x, recipe=s(), seed=n), cpd.Cast, "e4m3fn stochastic"
    ),
    "linear of a format": Operation(lambda x, s, n: linear(x, recipe=s()), cpd.Format, "(4,3)"),
    "sums": Operation(lambda x, s, n: linear(x, sums=s(), seed=n), cpd.Accumulator, SUM),
    "sums beside a text": Operation(
        lambda x, s, n: linear(x, recipe="mxfp8", sums=s(), seed=n), cpd.Accumulator, SUM
    ),
    "sums beside a recipe": Operation(
        lambda x, s, n: linear(x, recipe=KNOWN, sums=s(), seed=n), cpd.Accumulator, SUM
    ),
    "three sums": Operation(
        lambda x, s, n: linear(x, sums=(s(), "native", s()), seed=n), cpd.Accumulator, SUM
    ),
    "three sums beside a text": Operation(
        lambda x, s, n: linear(x, recipe="mxfp8", sums=(s(), "native", s()), seed=n),
        cpd.Accumulator,
        SUM,
    ),
    "sums of a recipe": Operation(
        lambda x, s, n: linear(x, recipe="e5m2", sums=cpd.Recipe(sums=s()), seed=n),
        cpd.Accumulator,
        SUM,
    ),
    "a recipe's sums": Operation(
        lambda x, s, n: linear(x, recipe=cpd.Recipe("mxfp8", sums=s()), seed=n),
        cpd.Accumulator,
        SUM,
    ),
    "a recipe's weight": Operation(
        lambda x, s, n: linear(x, recipe=cpd.Recipe(KNOWN, weight=s()), seed=n),
        cpd.Cast,
        "e4m3fn stochastic",
    ),
    "a recipe's attention": Operation(
        lambda x, s, n: attention(x, lambda: cpd.Recipe("bf16", attention=s()), n),
        cpd.Recipe,
        RECIPE,
    ),
    "matmul": Operation(lambda x, s, n: F.matmul(x, x.T, recipe=s(), seed=n), cpd.Recipe, RECIPE),
    "bilinear": Operation(
        lambda x, s, n: F.bilinear(
            x, x, WEIGHT[:6, :32].reshape(3, 2, 32).repeat(1, 16, 1).to(x.dtype), recipe=s(), seed=n
        ),
        cpd.Recipe,
        RECIPE,
    ),
    "conv1d": Operation(conv, cpd.Recipe, "e4m3fn activation='e4m3fn stochastic'"),
    "attention": Operation(attention, cpd.Recipe, RECIPE),
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(7.5), b.nan_to_num(7.5))


FORMS = ("text", "object", "object made inside")
NUMBERS = (5, torch.tensor(5))
DTYPES = (torch.float32, torch.bfloat16)


def spec_of(operation: Operation, form: str) -> Spec:
    """Returns a function that returns the operation's spec in `form`, one of FORMS."""
    made = operation.of(operation.text)
    specs = (
        lambda: operation.text,
        lambda: made,
        lambda: operation.of(operation.text),
    )
    return dict(zip(FORMS, specs, strict=True))[form]


def check(operation: Operation, dtype: Any, form: str, number: Any) -> None:
    x = torch.randn(4, 32, generator=torch.Generator().manual_seed(0)).to(dtype)
    spec = spec_of(operation, form)
    torch._dynamo.reset()

    def run(x: Any, n: Any) -> Any:
        return operation.run(x, spec, n)

    program = torch.compile(run, fullgraph=True, backend="eager")
    if dtype == torch.bfloat16 and operation.text == SUM:
        for call in (run, program):
            with pytest.raises(Exception, match=r"bf(loat)?16(, which)? cannot represent"):
                call(x, number)
    else:
        assert same(program(x, number), run(x, number)), (form, number)


@pytest.mark.parametrize("name", OPERATIONS)
def test_compiled_calls_have_eagers_bits(name: str) -> None:
    """Each operation is tested with one combination of a form of the spec, a kind of seed and a
    dtype. The combination changes from operation to operation."""
    turn = [*OPERATIONS].index(name)
    check(OPERATIONS[name], DTYPES[turn // 6 % 2], FORMS[turn % 3], NUMBERS[turn % 2])


@pytest.mark.exhaustive
@pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_calls_in_every_form_have_eagers_bits(name: str, dtype: Any) -> None:
    for form in FORMS:
        for number in NUMBERS:
            check(OPERATIONS[name], dtype, form, number)


def test_sums_of_compiled_programs_are_eagers_recipes() -> None:
    """A compiled program and eager mode construct recipes with the same text, with every
    combination of the recipe's parts."""
    made: list[str] = []
    acc, weight = cpd.Accumulator("e8m10 kahan"), cpd.Cast("e5m2 up")
    base = cpd.Recipe("mxfp8", attention="bf16", norm="bf16")

    def run(x: Any) -> Any:
        recipes = (
            cpd.Recipe(base, sums=(acc, "native", cpd.Accumulator("fp32"))),
            cpd.Recipe(cpd.Format("(4,3)"), weight=weight, sums=acc),
            cpd.Recipe("mxfp8", attention=cpd.Recipe(weight, sums="fp16"), grad_bias=acc),
            cpd.Recipe("bf16", sums=cpd.Recipe(sums=(acc, acc, "native", "fp32"))),
        )
        if not torch.compiler.is_compiling():
            made.extend(one.text for one in recipes)
        texts = [one._kept.text for one in recipes]
        return x, texts, recipes[0].attention._kept.text, recipes[2].attention._kept.text

    x = torch.ones(2)
    assert torch.compile(run, fullgraph=True, backend="eager")(x)[1:] == run(x)[1:]
    assert len(set(made)) == 4
