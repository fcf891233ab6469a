# SPDX-License-Identifier: Apache-2.0
"""Makes calls of each operation. `tests/golden/results.json` has one SHA-256 of the results of each
function.

A changed checksum means that some bits changed. The tests that a function's docstring names compare
the same operation with an oracle, and so show which bits are right.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import cpd
from cpd.study.costs import transfer_seconds
from golden import FORMATS, Make, bfloat16, doubles, floats, halves, integers, points

SHORT = ("e4m3", "e3m0", "e4m3fn", "e5m2fnuz", "binary8p4se", "e5m2:nosub", "e6m9", "bf16", "fp32")
DRAWN = ("stochastic random_bits=4", "stochastic variant=B", "stochastic random_bits=8 variant=C")
ROUNDINGS = (
    *("", "rounding=up", "rounding=to_odd", "rounding=nearest_away overflow=saturate"),
    *("rounding=toward_zero", "rounding=down overflow=saturate", *DRAWN),
)
SCHEMES = ("sequential", "kahan", "chunked chunk=3", "chunked chunk=16 inner=e5m2", "pairwise")
NUMBERS = {"seed": 2**63 + 5, "stream": 2**64 - 1}
Results = Iterator[Any]


def stored(make: Make, seed: int) -> list[Any]:
    """Returns values of each storage type other than float32: float64, float16 and bfloat16. The
    values are random patterns and, for float64, neighbors of binary32 numbers too."""
    wide = doubles(floats((60,), seed), seed + 1)
    return [make(wide), *(make(halves(120, seed, kind)) for kind in (np.float16, bfloat16()))]


# ---- elements ------------------------------------------------------------------------------------


def cast(make: Make) -> Results:
    """Casts arrays in every format and rounding. Tests that compare these bits with an oracle:
    ops/test_cast.py, test_cast_layouts.py and test_float64.py."""
    for name, how in itertools.product(FORMATS, ROUNDINGS):
        yield cpd.cast(make(points(cpd.Format(name))), f"{name} {how}", **NUMBERS)
    for x, how in itertools.product(stored(make, 5), ROUNDINGS):
        yield cpd.cast(x, f"e4m3fnuz {how}", **NUMBERS)
    given = make(integers((3, 7), 4, 6))
    yield cpd.cast(make(floats((3, 7), 8)), "e5m2 stochastic random_bits=6", random=given)
    for view in (floats((6, 10), 8).T, floats((6, 10), 8)[::-2, ::3]):
        yield cpd.cast(make(view), "e4m3 stochastic", seed=1)


def encode(make: Make) -> Results:
    """Encodes arrays. ops/test_codec.py and numeric/test_tables.py test that the bits are right."""
    for name, how in itertools.product(FORMATS, ROUNDINGS):
        yield cpd.encode(make(np.nan_to_num(points(cpd.Format(name)))), f"{name} {how}", **NUMBERS)


def decode(make: Make) -> Results:
    """Decodes codes. ops/test_codec.py and numeric/test_tables.py test that the bits are right."""
    for name in FORMATS:
        f = cpd.Format(name)
        codes = integers((f.bits * 32,), 15, 8).astype(np.uint8)
        yield cpd.decode(make(codes), f, (16, 16))


def arithmetic(operation: str, operands: int, make: Make) -> Results:
    """Calls an element-wise operation. ops/test_arithmetic.py and test_float64.py test that the
    bits are right."""
    call = getattr(cpd, operation)
    for name, how in itertools.product(SHORT, ROUNDINGS):
        f = cpd.Format(name)
        for given in (
            [points(f, 20), np.roll(points(f, 21), 5), np.roll(points(f, 22), 60)],
            [floats((200,), 23 + i, -3, 2) for i in range(3)],
        ):
            yield call(*map(make, given[:operands]), f"{name} {how}", **NUMBERS)
    for given in zip(*(stored(make, 30 + 4 * i) for i in range(operands)), strict=True):
        yield call(*given, "e4m3 stochastic", seed=9)
    shapes = (5, 1, 7), (3, 1), (2, 5, 3, 7)
    yield call(*(make(floats(one, 36)) for one in shapes[:operands]), "e5m2 stochastic", seed=9)


def random_integers(make: Make) -> Results:
    """Makes random integers. ops/test_random.py tests that the bits are right, and compares them
    with the published test vectors."""
    for bits, seed, stream in itertools.product((1, 8, 24), (0, 2**64 - 1), (0, 2**63 + 9)):
        yield cpd.random_integers((3, 41), seed, stream, random_bits=bits)


# ---- sums and products ---------------------------------------------------------------------------


def accumulators() -> list[str]:
    """Returns texts of accumulators: every scheme with every rounding, and with formats of every
    kind."""
    draws = ("rounding=stochastic random_bits=8", "rounding=stochastic variant=B")
    roundings = ("rounding=up", "rounding=to_odd", "overflow=saturate", *draws)
    return [f"{name} {scheme}" for name, scheme in itertools.product(SHORT, SCHEMES)] + [
        f"e4m3fn {scheme} {rounding}" for scheme, rounding in itertools.product(SCHEMES, roundings)
    ]


def sums(make: Make) -> Results:
    """Proved by ops/test_sum.py."""
    x = floats((37, 5), 50, -3, 1)
    for text in accumulators():
        yield cpd.sum(make(x), text, 0, seed=3, stream=2**40)
    for scheme in SCHEMES:
        yield cpd.sum(make(points(cpd.Format("e4m3"))), f"e4m3 {scheme}")
    for kind in (np.float16, bfloat16(), np.float64):
        yield cpd.sum(make(x.astype(kind)), "e4m3 kahan", 1)


def gemm(make: Make) -> Results:
    """Multiplies matrices. ops/test_gemm.py, test_tensor_core.py and test_units_mmasim.py test that
    the bits are right."""
    a, b, c = floats((3, 70), 60, -3, 1), floats((70, 5), 61, -3, 1), floats((3, 5), 62)
    more = ("e6m9 fma", "e6m9 fma rounding=up", "e5m10 product=e4m3", "int32", "fixed<40,12>")
    for text in (*accumulators(), *more, "e6m9 chunked product=exact chunk=8 inner=e5m5"):
        yield cpd.gemm(make(a), make(b), text, make(c), seed=7, stream=11)
    for f, scheme in itertools.product(("e4m3", "e6m9", "fp32"), (*SCHEMES, "fma")):
        large = make(floats((17, 129), 63)), make(floats((129, 33), 64))
        yield cpd.gemm(*large, f"{f} {scheme}")
    for preset in cpd.Accumulator.named():
        unit = cpd.Accumulator(preset)
        a = cpd.cast(floats((4, 200), 65, -8, 4), unit.a)
        b = cpd.cast(floats((200, 3), 66, -8, 4), unit.b)
        yield cpd.gemm(make(a), make(b), unit)


# ---- torch ---------------------------------------------------------------------------------------

DRAWING = "e5m2 sequential rounding=stochastic random_bits=8"
RECIPES: dict[str, dict[str, Any]] = {
    "sums": {"sums": ("e4m3 kahan", "e6m9 chunked chunk=4 inner=e5m5", "e6m9 fma")},
    "draws": {"sums": (DRAWING, "e4m3 kahan rounding=stochastic", DRAWING), "grad_bias": DRAWING},
    "casts": {
        "forward": "e6m9 kahan",
        "grad_input": "e5m10",
        "grad_weight": "fp32",
        "activation": "e4m3fn",
        "weight": "e4m3fn rounding=up overflow=saturate",
        "gradient": "e5m2 stochastic random_bits=8",
        "output": "e5m5 stochastic",
    },
    "unit": {
        "forward": "h100-fp8",
        "grad_input": "h100-fp8 a=e5m2",
        "grad_weight": "h100-fp8",
        "activation": "e4m3fn",
        "weight": "e4m3fn",
        "gradient": "e5m2",
    },
}
"""Options of recipes."""


def differentiated(call: Callable[..., Any], *given: Any) -> Results:
    """Yields the result of a call, then the gradient of each operand."""
    import torch

    operands = [x.clone().requires_grad_() for x in given]
    y = call(*operands)
    yield y
    yield from torch.autograd.grad(y, operands, torch.from_numpy(floats(tuple(y.shape), 99, -2, 1)))


def layers(make: Make) -> Results:
    """Calls layers' functional forms. Tests that the bits are right: nn/test_functional.py,
    test_layer_derivatives.py, _torch/test_conv.py and test_convolution.py."""
    from cpd.functional import conv2d, linear

    x, w, b = make(floats((2, 7, 40), 104)), make(floats((6, 40), 105)), make(floats((6,), 106))
    images, kernel = make(floats((2, 4, 7, 6), 107)), make(floats((6, 4, 3, 2), 108))
    for options in RECIPES.values():
        how = {"recipe": cpd.Recipe(**options), "seed": 5, "stream": 9 ^ 3 << 20}
        yield from differentiated(functools.partial(linear, **how), x, w, b)
        strided = functools.partial(conv2d, padding=1, stride=(2, 1), **how)
        yield from differentiated(strided, images, kernel, b)


def derivatives(make: Make) -> Results:
    """Proved by _torch/test_derivatives.py."""
    import torch

    x, b = make(floats((5, 6), 110)), make(floats((6, 4), 113))
    drawn = functools.partial(cpd.gemm, accumulator=DRAWING, seed=5, stream=9)
    yield from differentiated(drawn, x, b)
    yield torch.func.jvp(drawn, (x, b), (x + 1, b))[1]
    for randomness in ("same", "different"):
        batched = torch.vmap(lambda x: drawn(x, b), randomness=randomness)
        yield batched(make(floats((3, 5, 6), 121)))
    yield cpd.cast(x, "e4m3 stochastic", seed=torch.tensor(-3), stream=torch.tensor(8))


# ---- all-reduce ----------------------------------------------------------------------------------

SIZES = (33, 1, 0, 20)
SPECS = [
    f"e4m3 order={order} {group} 'accumulator=e4m3 {scheme} {draws}' {draws} {more}"
    for order, group, scheme, draws, more in itertools.product(
        *(("sequential", "ring", "tree"), ("", "group_size=2", "group_size=3")),
        *(("sequential", "kahan"), ("", "rounding=stochastic random_bits=8")),
        ("", "aps", "aps=paper", "loss_scale=512 overflow=saturate", "average result=e5m10"),
    )
    if (order, scheme) != ("tree", "kahan")
] + [f"{name} aps" for name in (*SHORT, "e2m1")]
"""All-reduce specs with every order, several group sizes, and formats of every kind."""


def tensors_of(rank: int, make: Make) -> list[Any]:
    """Returns the tensors of one rank. Each tensor has another range of exponents."""
    seeds = range(200 + 8 * rank, 200 + 8 * rank + len(SIZES))
    return [
        make(floats((n,), seed, -3 - 4 * i, 2 - 3 * i))
        for i, (n, seed) in enumerate(zip(SIZES, seeds, strict=True))
    ]


def simulate_all_reduce(make: Make) -> Results:
    """Reduces over virtual ranks. comm/test_reduce.py tests that the bits are right.
    comm/test_comm.py and tests/comm/test_all_reduce.cpp compare real ranks with virtual ranks."""
    ranks = [tensors_of(rank, make) for rank in range(5)]
    for text in SPECS:
        numbers = {"seed": 2**63 + 1, "step": 7} if "stochastic" in text else {}
        values, reports = cpd.simulate_all_reduce(ranks, cpd.Reduce(text), report=True, **numbers)
        yield from values
        yield [dataclasses.astuple(one) for one in reports]
    drawn = cpd.Reduce("e4m3 rounding=stochastic random_bits=4")
    schedule = cpd.Schedule(drawn, exempt=["*.bias"], first_steps=2)
    for step in (0, 2, 3):
        names = ["a.weight", "a.bias", "b.bias", "b.weight"]
        yield from cpd.simulate_all_reduce(ranks, schedule, names=names, step=step)


def study(make: Make) -> Results:
    """Calls functions of cpd.study. study/test_roundoff.py, test_costs.py and
    tests/study/test_cost.cpp test that the results are right."""
    given = [[make(floats((n,), 400 + rank + n)) for n in (90, 31)] for rank in range(8)]
    machine = cpd.study.Machine("alpha=1e-6 beta=1e9")
    for order, average in itertools.product(("sequential", "ring", "tree"), ("", "average")):
        spec = cpd.Reduce(f"e4m3 order={order} {average}")
        for found in cpd.study.roundoff(given, spec, [1, 3, 8], per_tensor=True).values():
            yield from map(dataclasses.astuple, found)
        for exchange, group in itertools.product(("owner", "gather"), ("", "group_size=2")):
            spec = cpd.Reduce(f"e2m1 order={order} exchange={exchange} {group}")
            for rank in (0, 1, 6):
                cost = cpd.study.cost(spec, 7, [1000, 3, 0], rank, chunk=100)
                yield dataclasses.astuple(cost)
            yield transfer_seconds(spec, machine, 7, [1000, 3])


BOTH: dict[str, Callable[[Make], Results]] = {
    **{one.__name__: one for one in (cast, encode, decode, random_integers, gemm)},
    **{one.__name__: one for one in (simulate_all_reduce, study)},
    **{name: functools.partial(arithmetic, name, 2) for name in ("add", "mul")},
    "fma": functools.partial(arithmetic, "fma", 3),
    "sum": sums,
}
"""Operations that give the same results for NumPy arrays and for torch tensors."""
OF_TORCH: dict[str, Callable[[Make], Results]] = {"layers": layers, "derivatives": derivatives}
