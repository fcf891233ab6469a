# SPDX-License-Identifier: Apache-2.0
"""Tests the arguments `seed` and `stream` of `cpd.sum` and `cpd.gemm`.

The tests pass ints, NumPy integers and tensors, on every front end, in compiled programs, with
derivatives, and under vmap.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import cpd

torch = pytest.importorskip("torch")

from tensors import compiled, same  # noqa: E402

TEXTS = (
    "e4m3 rounding=stochastic",
    "e5m2 kahan rounding=stochastic random_bits=8 variant=B",
    "e6m9 chunked chunk=3 inner=e4m3 rounding=stochastic",
    "e4m3 pairwise product=exact rounding=stochastic",
)
UNITS = "e4m3 a=fp16 b=fp16 block=4 promote=4 rounding=stochastic"
NUMBERS = ((0, 0), (3, 0), (0, 5), (7, 2**64 - 1), (2**63, 9))


def values(*shape: int) -> np.ndarray:
    """Returns normal random values that fp16 can represent, because matrix units take fp16."""
    return np.random.default_rng(shape).normal(size=shape).astype(np.float16).astype(np.float32)


X, A, B, C = values(7, 5), values(4, 6), values(6, 3), values(4, 3)
ENCODED = [
    cpd.Encoded(*cpd.encode(x, "mxfp4", axis=axis), "mxfp4", x.shape, axis)
    for x, axis in ((values(4, 64), -1), (values(64, 3), -2))
]


def as_tensor(number: int) -> Any:
    """Returns an int64 tensor with the 64 bits of an unsigned number."""
    return torch.tensor(number - 2**64 if number >= 2**63 else number)


def results(acc: Any, make: Any, **numbers: Any) -> list[Any]:
    """Returns the results of all kinds of sums and products in accumulator `acc`.

    `numbers` has the arguments `seed` and `stream` of each call. `make` converts each operand,
    for example to a tensor.
    """
    x, a, b, c = (make(one) for one in (X, A, B, C))
    left, right = (cpd.Encoded(make(one.codes), make(one.scales), *one[2:]) for one in ENCODED)
    of = cpd.Accumulator(acc)
    found = [
        cpd.gemm(a, b, acc, c, **numbers),
        *cpd.gemm(a, b, acc, c, flags=True, **numbers),
        cpd.gemm(left, right, acc, **numbers),
    ]
    if of.form == "ordered":
        found += [
            cpd.sum(x, acc, 0, **numbers),
            cpd.sum(x, acc, **numbers),
            *cpd.sum(x, acc, -1, flags=True, **numbers),
            cpd.gemm(left, right, acc, scales_at="block", **numbers),
        ]
    return [np.asarray(one) for one in found]


@pytest.mark.parametrize("text", [*TEXTS, UNITS])
@pytest.mark.parametrize("make", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])
def test_numbers_of_every_kind_give_the_same_bits(text: str, make: Any) -> None:
    seen = []
    for seed, stream in NUMBERS:
        wanted = results(text, np.asarray, seed=seed, stream=stream)
        for kind in (int, np.uint64, as_tensor):
            got = results(text, make, seed=kind(seed), stream=kind(stream))
            for one, other in zip(got, wanted, strict=True):
                np.testing.assert_array_equal(one, other)
        seen.append([one.tobytes() for one in wanted])
    assert len({b"".join(one) for one in seen}) == len(NUMBERS)
    assert len({one[-1] for one in seen}) == len(NUMBERS)  # products of encoded operands


@pytest.mark.parametrize("text", [TEXTS[0], "e4m3", "h100-fp8", "int8"])
@pytest.mark.parametrize("name", ["seed", "stream"])
def test_bad_numbers(text: str, name: str) -> None:
    """cpd.sum and cpd.gemm refuse invalid seeds and streams even if no rounding is stochastic."""
    calls = [lambda make, n: cpd.gemm(make(A), make(B), text, **n)]
    if cpd.Accumulator(text).form != "unit":
        calls.append(lambda make, n: cpd.sum(make(X), text, **n))
    wrong = (
        (-1, ValueError, r"must be 0…2\^64 - 1, got -1"),
        (2**64, ValueError, r"must be 0…2\^64 - 1"),
        (1.5, TypeError, "int"),
        ("3", TypeError, "int"),
        (torch.tensor(1.5), TypeError, "must be an integer tensor"),
        (torch.tensor([1, 2]), ValueError, "must have one element"),
    )
    for call in calls:
        for make in (np.asarray, torch.as_tensor):
            for number, error, message in wrong:
                with pytest.raises(error, match=message):
                    call(make, {name: number})


STEPS = {
    "sum": lambda x, step: cpd.sum(x, TEXTS[1], axis=-1, seed=step),
    "sum of stream": lambda x, step: cpd.sum(x, TEXTS[0], 0, seed=3, stream=step),
    "gemm": lambda x, step: cpd.gemm(x, x.mT, TEXTS[0], seed=step, stream=step),
    "plain": lambda x, step: cpd.gemm(x, x.mT, "e4m3", seed=step) + step,
}


@pytest.mark.parametrize(
    "name",
    [
        "sum of stream",
        "plain",
        *(pytest.param(n, marks=pytest.mark.exhaustive) for n in ("sum", "gemm")),
    ],
)
def test_compiled_steps(name: str) -> None:
    """With ten int seeds, torch.compile compiles a function at most twice; with tensors, once.

    The compiled function gives the bits of eager mode.
    """
    step = STEPS[name]
    x = torch.as_tensor(values(20, 30))
    for numbers, most in (
        (range(10), 2),
        ((1, 0, *range(2, 10)), 2),
        ([torch.tensor(i) for i in range(10)], 1),
    ):
        run, counter = compiled(step)
        seen = set()
        for number in numbers:
            got = run(x, number)
            assert same(got, step(x, number))
            seen.add(got.numpy().tobytes())
        assert len(seen) == 10
        assert counter.frame_count <= most


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[1], UNITS])
def test_derivatives_with_numbers_of_either_kind(text: str) -> None:
    """Gradients and tangents of a product do not depend on the type of `stream`, int or tensor.

    They are equal in eager mode and in compiled programs.
    """

    def product(acc: Any, **numbers: Any) -> Any:
        return lambda a, b, c: cpd.gemm(a, b, acc, c, **numbers)

    operands = [torch.as_tensor(one).requires_grad_() for one in (A, B, C)]
    old = product(text, seed=3, stream=9)
    new = product(text, seed=3, stream=torch.tensor(9))

    def gradients(call: Any) -> Any:
        return torch.autograd.grad((call(*operands) * 0.5).sum(), operands)

    wanted = gradients(old)
    for call in (new, compiled(new)[0]):
        assert all(same(one, other) for one, other in zip(gradients(call), wanted, strict=True))
    operands = [one.detach() for one in operands]
    tangents = tuple(torch.flip(one, (0, 1)) for one in operands)
    got, expected = (torch.func.jvp(f, tuple(operands), tangents) for f in (new, old))
    assert all(same(one, other) for one, other in zip(got, expected, strict=True))
