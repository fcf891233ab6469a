# SPDX-License-Identifier: Apache-2.0
"""Tests that every front end raises the same exception for each invalid argument.

The message must name the argument, and the call must not write anything.
"""

from __future__ import annotations

import numpy as np
import pytest

import cpd
from by_keywords import by_keywords
from front_ends import FrontEnd

torch = pytest.importorskip("torch")


X = np.linspace(-3, 3, 12, dtype=np.float32).reshape(3, 4)


def numpy(x):
    return x.numpy().copy() if isinstance(x, torch.Tensor) else np.array(x)


def tensor(x):
    return torch.from_numpy(np.array(x))


# ---- options: the same for every operation -------------------------------------------------------

OPTIONS = [
    ({"rounding": "nearest"}, ValueError, "rounding.*nearest_even.*'nearest'"),
    ({"rounding": 3}, TypeError, "rounding must be a str, got int"),
    ({"overflow": "clamp"}, ValueError, "overflow.*saturate.*'clamp'"),
    ({"overflow": True}, TypeError, "overflow"),
    ({"variant": "D"}, ValueError, "variant.*A.*'D'"),
    ({"variant": 1}, TypeError, "variant"),
    ({"random_bits": 0}, ValueError, "random_bits must be 1…24, got 0"),
    ({"random_bits": 25}, ValueError, "random_bits must be 1…24, got 25"),
    ({"random_bits": 8.0}, TypeError, "random_bits must be an int, got float"),
    ({"random_bits": True}, TypeError, "random_bits"),
    ({"seed": -1}, ValueError, r"seed must be 0…2\^64 - 1, got -1"),
    ({"seed": 2**64}, ValueError, "seed"),
    ({"seed": 1.0}, TypeError, "seed must be an int, got float"),
    ({"seed": None}, TypeError, "seed"),
    ({"seed": True}, TypeError, "seed"),
    ({"stream": -1}, ValueError, "stream"),
    ({"stream": 2**64}, ValueError, "stream"),
    ({"stream": "3"}, TypeError, "stream must be an int, got str"),
    ({"stream": torch.tensor([1, 2])}, ValueError, "stream must have one element"),
    ({"stream": torch.tensor(1.0)}, TypeError, "stream must be an integer tensor"),
    ({"seed": torch.tensor(True)}, TypeError, "seed must be an integer tensor"),
]


@pytest.mark.parametrize(("options", "error", "message"), OPTIONS)
@pytest.mark.parametrize("stochastic", [False, True])
def test_options(front_end: FrontEnd, options, error, message, stochastic):
    if stochastic and "rounding" not in options:
        options = {"rounding": "stochastic"} | options
    x = front_end.array(X)
    numbers = {name: options[name] for name in ("seed", "stream") if name in options}
    rest = {name: value for name, value in options.items() if name not in numbers}
    accumulators = [lambda: cpd.sum(x, cpd.Accumulator("e4m3", **rest), **numbers)]
    if None in options.values():  # there it stands for what the first argument says
        accumulators = []
    for call in front_end.some(
        lambda: by_keywords(cpd.cast, x, "e4m3", **options),
        lambda: by_keywords(cpd.encode, x, "e4m3", **options),
        lambda: by_keywords(cpd.add, x, x, "e4m3", **options),
        lambda: by_keywords(cpd.mul, x, x, "e4m3", **options),
        lambda: by_keywords(cpd.fma, x, x, x, "e4m3", **options),
        *accumulators,
    ):
        front_end.refuse(error, message, call)


@pytest.mark.parametrize(
    ("f", "error"),
    [
        ("e12m3", ValueError),
        ("", ValueError),
        ("e4m3 ieee", ValueError),
        (None, TypeError),
        (8, TypeError),
    ],
)
def test_formats(front_end: FrontEnd, f, error):
    x, codes = front_end.array(X), front_end.array(np.zeros(1, np.uint8))
    for call in front_end.some(
        lambda: cpd.cast(x, f),
        lambda: cpd.encode(x, f),
        lambda: cpd.decode(codes, f, 1),
        lambda: cpd.add(x, x, f),
        lambda: cpd.sum(x, f),
        lambda: cpd.Format(f),
        lambda: cpd.Accumulator(f),
    ):
        front_end.refuse(error, r"format|exp|name|e12m3|scheme", call)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"exp": 0}, ValueError, "exp"),
        ({"exp": 12}, ValueError, "exp must be 1…8, got 12; .*exp up to 11"),
        ({"exp": 9, "encoding": "fn"}, ValueError, "exp must be 1…8, got 9"),
        ({"exp": 4.0}, TypeError, "exp must be an int, got float"),
        ({"exp": True}, TypeError, "exp"),
        ({"exp": 2**40}, ValueError, "exp"),
        ({"man": -1}, ValueError, "man"),
        ({"man": 53}, ValueError, "man must be 0…23, got 53; .*man up to 52"),
        ({"man": 24, "encoding": "fn"}, ValueError, "man must be 0…23, got 24"),
        ({"man": "3"}, TypeError, "man"),
        ({"bias": 400}, ValueError, "bias|binary32"),
        ({"bias": -400}, ValueError, "bias|binary32"),
        ({"bias": 1.5}, TypeError, "bias"),
        ({"encoding": "ocp"}, ValueError, "encoding.*'ocp'"),
        ({"encoding": 3}, TypeError, "encoding must be a str, got int"),
        ({"encoding": "fnuz", "signed": False}, ValueError, "fnuz"),
        ({"encoding": "e8m0"}, ValueError, "e8m0"),
    ],
)
def test_format_fields(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Format(**{"exp": 4, "man": 3} | arguments)


# ---- inputs --------------------------------------------------------------------------------------


def inputs():
    yield "list", [1.0, 2.0], TypeError, "list"
    yield "float", 1.0, TypeError, "float"
    yield "None", None, TypeError, "None"
    for dtype in ("int32", "uint8", "bool", "complex64"):
        yield dtype, np.zeros(3, dtype), TypeError, dtype
        yield f"torch.{dtype}", torch.zeros(3, dtype=getattr(torch, dtype)), TypeError, dtype
    yield "object", np.array([1.0, None]), TypeError, "object"
    yield "longdouble", np.zeros(3, np.longdouble), TypeError, "longdouble|float128"
    yield "big-endian", np.zeros(3, ">f4"), TypeError, ">f4"
    yield "big-endian half", np.zeros(3, ">f2"), TypeError, ">f2"
    yield "masked", np.ma.zeros(3, "float32"), TypeError, "MaskedArray"
    yield "sparse", torch.eye(3).to_sparse(), TypeError, "strided"
    yield "float8", torch.zeros(3).to(torch.float8_e4m3fn), TypeError, "float8"
    yield "rank 17", np.zeros((1,) * 17, np.float32), ValueError, "16 dimensions"
    yield "torch rank 17", torch.zeros((1,) * 17), ValueError, "16 dimensions"


@pytest.mark.parametrize(
    ("x", "error", "message"), [i[1:] for i in inputs()], ids=[i[0] for i in inputs()]
)
def test_inputs(x, error, message):
    good = torch.zeros(3) if isinstance(x, torch.Tensor) else np.zeros(3, np.float32)
    for call in (
        lambda: cpd.cast(x, "e4m3"),
        lambda: cpd.encode(x, "e4m3"),
        lambda: cpd.add(x, x, "e4m3"),
        lambda: cpd.mul(good, x, "e4m3"),
        lambda: cpd.fma(good, good, x, "e4m3"),
        lambda: cpd.sum(x, "e4m3"),
    ):
        with pytest.raises(error, match=message):
            call()


def test_float64_goes_with_itself_and_not_into_gemm(front_end: FrontEnd):
    x, narrow = front_end.array(X.astype(np.float64)), front_end.array(X)
    for call in front_end.some(
        lambda: cpd.add(x, narrow, "e4m3"),
        lambda: cpd.fma(x, x, narrow, "e4m3"),
        lambda: cpd.mul(narrow, x, "e4m3"),
        lambda: cpd.gemm(x, x.T, "e4m3"),
    ):
        front_end.refuse(TypeError, "float64", call)


@pytest.mark.parametrize("f", ["bf16", "fp32", "e5m11", "e6m9"])
def test_storage_must_hold_the_format(front_end: FrontEnd, f):
    x = front_end.array(X.astype(np.float16))
    for call in front_end.some(
        lambda: cpd.cast(x, f),
        lambda: cpd.add(x, x, f),
        lambda: cpd.sum(x, f),
        lambda: cpd.decode(cpd.encode(x, f), f, X.shape, dtype=x.dtype),
    ):
        front_end.refuse(ValueError, "(fp|float)16(, which)? cannot represent", call)


def test_operands_must_match(front_end: FrontEnd):
    x = front_end.array(X)
    other = tensor(X) if front_end.name == "numpy" else numpy(X)
    front_end.refuse(TypeError, "y must be", lambda: cpd.add(x, other, "e4m3"))
    front_end.refuse(TypeError, "y must have x's type", cpd.mul, x, X.astype(np.float16), "e4m3")
    front_end.refuse(TypeError, "z must be", cpd.fma, x, x, 1.0, "e4m3")
    front_end.refuse(
        ValueError,
        r"x and y must broadcast together.*\(3, 4\) and \(3, 3\)",
        cpd.add,
        x,
        X[:, :3],
        "e4m3",
    )


def test_sum_arguments(front_end: FrontEnd):
    x = front_end.array(X)
    for dim in (2, -3, 100):
        front_end.refuse(ValueError, "axis must be -2…1 for 2 dimensions", cpd.sum, x, "e4m3", dim)
    front_end.refuse(ValueError, "at least one dimension", cpd.sum, X[0, 0, ...], "e4m3", 0)
    front_end.refuse(TypeError, "takes axis= in place of dim=", cpd.sum, x, "e4m3", dim=0)
    front_end.refuse(
        TypeError, r"sum\(\) got an unexpected keyword argument 'dims'", cpd.sum, x, "e4m3", dims=0
    )
    for dim in (1.0, (0,), True):
        front_end.refuse(TypeError, "axis", cpd.sum, x, "e4m3", dim)
    front_end.refuse(TypeError, "format", cpd.sum, x, 3)


# ---- matrix products -----------------------------------------------------------------------------

A, B = X.copy(), np.ascontiguousarray(X.T)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"a": [[1.0]]}, TypeError, "a must be a NumPy array or a torch tensor, got list"),
        ({"a": None}, TypeError, "a must be"),
        ({"b": [[1.0]]}, TypeError, "b must be a (NumPy array|torch tensor) like a, got list"),
        ({"c": 1.0}, TypeError, "c must be a (NumPy array|torch tensor) like a, got float"),
        ({"a": A.astype(np.float64)}, TypeError, "a must be of type float32.*float64"),
        ({"b": B.astype(np.float64)}, TypeError, "b must be of type float32.*float64"),
        ({"c": X[0].astype(np.float64)}, TypeError, "c must be of type float32.*float64"),
        ({"b": B.astype(np.int32)}, TypeError, "b must be of type.*int32"),
        ({"a": A[0]}, ValueError, r"at least two dimensions, got shapes \(4,\), \(4, 3\)"),
        ({"b": B[:, 0]}, ValueError, "at least two dimensions"),
        ({"b": A}, ValueError, r"shapes \(3, 4\), \(3, 4\): K is 4 in a, 3 in b"),
        (
            {"a": np.ones((2, 3, 4), "f4"), "b": np.ones((3, 4, 3), "f4")},
            ValueError,
            r"broadcast together, got shapes \(2, 3, 4\), \(3, 4, 3\)",
        ),
        ({"c": X}, ValueError, r"c must broadcast to the result, \(3, 3\), got \(3, 4\)"),
        ({"c": np.ones((1, 3, 3), "f4")}, ValueError, "c must broadcast to the result"),
        ({"a": A.astype(np.int64)}, TypeError, "a must be of type.*int64"),
        ({"b": np.ones((5, 6), "f4")}, ValueError, "K is 4 in a, 5 in b"),
        ({"a": np.ones((1,) * 17, "f4")}, ValueError, "a must have at most 16 dimensions"),
        ({"accumulator": None}, TypeError, "must be a cpd.Accumulator, its text, .* got None"),
        ({"accumulator": 3}, TypeError, "must be a cpd.Accumulator, its text, .* got int"),
        ({"accumulator": "e9m3"}, ValueError, "exp|e9m3"),
        ({"accumulator": "e4m3 tree"}, ValueError, "scheme must be"),
        ({"accumulator": "e4m3 chunked chunk=0"}, ValueError, "chunk must be at least 1"),
        ({"blas": 1}, TypeError, "blas must be a bool"),
        ({"blas": True, "accumulator": "e4m3"}, ValueError, "fp32|e4m3|BLAS"),
        ({"accumulator": "h100-fp8"}, ValueError, "e4m3fn"),
    ],
)
def test_gemm(front_end: FrontEnd, arguments, error, message):
    given = {"a": A, "b": B, "accumulator": "fp32", "c": None} | arguments
    for name in "abc":
        if isinstance(given[name], np.ndarray):
            given[name] = front_end.array(given[name])
    front_end.refuse(error, message, cpd.gemm, **given)


def test_gemm_of_mixed_kinds():
    with pytest.raises(TypeError, match="b must be a NumPy array like a, got Tensor"):
        cpd.gemm(A, tensor(B), "fp32")
    with pytest.raises(TypeError, match="c must be a torch tensor like a, got ndarray"):
        cpd.gemm(tensor(A), tensor(B), "fp32", X[0, :3])
    with pytest.raises(TypeError, match="b must be in native byte order"):
        cpd.gemm(A, B.astype(">f4"), "fp32")
    with pytest.raises(ValueError, match="b must be on a's device, cpu, got meta"):
        cpd.gemm(tensor(A), tensor(B).to("meta"), "fp32")


def test_gemm_result_types(front_end: FrontEnd):
    a, b = front_end.array(A.astype(np.float16)), front_end.array(B.astype(np.float16))
    for acc in ("fp32", "e6m9", "bf16 kahan", "h100-fp16")[: front_end.few]:
        front_end.refuse(
            ValueError,
            r"float16, which cannot represent every value of \w+: give dtype=",
            cpd.gemm,
            a,
            b,
            acc,
        )
    assert cpd.gemm(a, b, "e4m3").dtype == a.dtype
    for dtype in (torch.int32, "float33", np.int32, torch.float64, np.float64)[: front_end.few]:
        front_end.refuse(TypeError, "dtype must be", cpd.gemm, a, b, "e4m3", dtype=dtype)
    if front_end.name != "numpy":
        bf16 = a.bfloat16(), b.bfloat16()
        front_end.refuse(
            ValueError,
            "bfloat16, which cannot represent every value of fp32: give dtype=",
            cpd.gemm,
            *bf16,
            "fp32",
        )
        assert cpd.gemm(*bf16, "fp32", dtype=torch.float32).dtype == torch.float32


# ---- memory --------------------------------------------------------------------------------------

MOST = 2**46
"""The number of values whose bytes exceed the address space of a process."""


def larger_than_memory():
    x, row = torch.zeros(1).expand(MOST), torch.zeros(1, 1).expand(1, MOST)
    a, b = torch.zeros(1, 1).expand(2**23, 1), torch.zeros(1, 1).expand(1, 2**23)
    yield "cast", lambda: cpd.cast(x, "e4m3"), 2**48
    yield "codes", lambda: cpd.encode(x.expand(4, -1), "e4m3"), 2**48
    yield "add", lambda: cpd.add(row, row, "e4m3"), 2**48
    yield "gemm", lambda: cpd.gemm(a, b, "e4m3"), 2**48
    yield "gemm kahan", lambda: cpd.gemm(a, b, "e4m3 kahan"), 2**48
    yield "mxfp8", lambda: cpd.cast(row, "mxfp8"), 2**48
    yield "half", lambda: cpd.cast(torch.zeros(1).half().expand(2, MOST), "e4m3"), 2**48
    yield "linear", lambda: cpd.functional.linear(a, a, recipe=cpd.Recipe(sums="e4m3")), 2**48
    yield "gradient", lambda: cpd.cast(x.requires_grad_(), "e4m3"), 2**48


@pytest.mark.parametrize(("call", "size"), [i[1:] for i in larger_than_memory()])
def test_no_memory_names_the_size(call, size):
    pytest.importorskip("cpd.functional")
    with pytest.raises(MemoryError, match=f"no memory for {size} bytes, a tensor of shape"):
        call()


# ---- given random integers -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("random", "bits", "error", "message"),
    [
        (np.zeros((4, 3), np.int64), 24, ValueError, r"x's shape, \(3, 4\), got \(4, 3\)"),
        (np.zeros(12, np.int64), 24, ValueError, "x's shape"),
        (np.zeros((3, 4), np.float32), 24, TypeError, "integers"),
        (np.zeros((3, 4), bool), 24, TypeError, "integers"),
        (np.full((3, 4), -1), 24, ValueError, r"random must be 0…2\^24 - 1, got -1…-1"),
        (np.full((3, 4), 8), 3, ValueError, r"random must be 0…2\^3 - 1, got 8…8"),
        (
            np.full((3, 4), 2**40),
            24,
            ValueError,
            r"random must be 0…2\^24 - 1, got 1099511627776",
        ),
    ],
)
def test_random(front_end: FrontEnd, random, bits, error, message):
    x = front_end.array(X)
    for operation in (cpd.cast, cpd.encode):
        front_end.refuse(
            error, message, operation, x, "e4m3", "stochastic", random_bits=bits, random=random
        )


def test_random_is_for_stochastic_rounding(front_end: FrontEnd):
    x = front_end.array(X)
    front_end.refuse(
        ValueError, "stochastic", cpd.cast, x, "e4m3", random=np.zeros((3, 4), np.int64)
    )
    other = tensor if front_end.name == "numpy" else numpy
    front_end.refuse(
        TypeError,
        "random",
        lambda: cpd.cast(x, "e4m3 stochastic", random=other(np.zeros((3, 4), np.int64))),
    )
    front_end.refuse(TypeError, "random", cpd.cast, x, "e4m3", "stochastic", random=[0] * 12)


def test_random_integers():
    for shape, error in (
        (-1, ValueError),
        (2.0, TypeError),
        ("3", TypeError),
        ((2, -1), ValueError),
        ((2**40, 2**40), ValueError),
        (2**70, ValueError),
    ):
        with pytest.raises(error, match="shape"):
            cpd.random_integers(shape)
    with pytest.raises(ValueError, match="random_bits"):
        cpd.random_integers(3, random_bits=25)
    with pytest.raises(ValueError, match="seed"):
        cpd.random_integers(3, -1)


# ---- out -----------------------------------------------------------------------------------------


def read_only(x):
    x.flags.writeable = False
    return x


MEMORY = np.zeros(100, np.float32)
BYTES = np.zeros(101, np.uint8)

NUMPY_OUTS = [
    ([0.0] * 12, TypeError, "out must be a NumPy array"),
    (np.zeros((3, 4)), TypeError, "out must be of type float32, got float64"),
    (np.zeros((3, 4), ">f4"), TypeError, ">f4"),
    (np.zeros((4, 3), np.float32), ValueError, r"out must have shape \(3, 4\), got \(4, 3\)"),
    (np.zeros((1, 3, 4), np.float32), ValueError, "shape"),
    (read_only(np.zeros((3, 4), np.float32)), ValueError, "read-only"),
    (np.broadcast_to(MEMORY[:4], (3, 4)), ValueError, "writable|overlap"),
    (
        np.lib.stride_tricks.as_strided(MEMORY, (3, 4), (0, 4)),
        ValueError,
        "out must not overlap itself",
    ),
    (
        np.lib.stride_tricks.as_strided(MEMORY, (3, 4), (8, 4)),
        ValueError,
        "out must not overlap itself",
    ),
    (BYTES[1:49].view(np.float32).reshape(3, 4), ValueError, "aligned"),
]


@pytest.mark.parametrize(("out", "error", "message"), NUMPY_OUTS)
def test_numpy_out(out, error, message):
    before = np.copy(out)
    for call in (
        lambda: cpd.cast(X, "e4m3", out=out),
        lambda: cpd.add(X, X, "e4m3", out=out),
        lambda: cpd.decode(np.zeros(12, np.uint8), "e4m3", (3, 4), dtype=np.float32, out=out),
    ):
        with pytest.raises(error, match=message):
            call()
    assert np.array_equal(before, out)


TORCH_OUTS = [
    (np.zeros((3, 4), np.float32), TypeError, "out must be a torch tensor"),
    (torch.zeros(3, 4, dtype=torch.float64), TypeError, "out must be of type torch.float32"),
    (torch.zeros(4, 3), ValueError, r"out must have shape \(3, 4\), got \(4, 3\)"),
    (torch.zeros(3, 4, device="meta"), ValueError, "device"),
    (torch.zeros(3, 4).to_sparse(), TypeError, "strided"),
    (torch.zeros(4).expand(3, 4), ValueError, "out must not overlap itself"),
    (torch.zeros(100).as_strided((3, 4), (2, 1)), ValueError, "out must not overlap itself"),
    (torch.zeros(3, 4, requires_grad=True), ValueError, "autograd"),
]


@pytest.mark.parametrize(("out", "error", "message"), TORCH_OUTS)
def test_torch_out(out, error, message):
    x = tensor(X)
    for call in (
        lambda: cpd.cast(x, "e4m3", out=out),
        lambda: cpd.add(x, x, "e4m3", out=out),
        lambda: cpd.decode(
            torch.zeros(12, dtype=torch.uint8), "e4m3", (3, 4), dtype=torch.float32, out=out
        ),
    ):
        with pytest.raises(error, match=message):
            call()


def test_out_must_not_overlap_an_input_in_part(front_end: FrontEnd):
    memory = front_end.array(np.arange(40, dtype=np.float32))
    before = front_end.numpy(memory).copy()
    x, y = memory[:20], memory[20:]
    for out in (memory[1:21], memory[19:39], memory[:40:2]):
        front_end.refuse(
            ValueError, "out must be x itself or lie apart from it", cpd.cast, x, "e4m3", out=out
        )
        front_end.refuse(ValueError, r"out must be (x|y) itself", cpd.mul, x, y, "e4m3", out=out)
    front_end.refuse(ValueError, "out must be y itself", cpd.mul, y, x[:1], "e4m3", out=memory[:20])
    codes = front_end.array(np.zeros(80, np.uint8))
    shared = codes[:80].view(np.float32 if front_end.name == "numpy" else torch.float32)[:3]
    front_end.refuse(
        ValueError,
        "out must be codes itself or lie apart from it",
        cpd.decode,
        codes[:3],
        "e4m3",
        3,
        out=shared,
    )
    assert np.array_equal(before, front_end.numpy(memory))
    cpd.cast(x, "e4m3", out=y)


# ---- codec ---------------------------------------------------------------------------------------


def test_codes(front_end: FrontEnd):
    codes = front_end.array(np.zeros(6, np.uint8))
    good = (codes, "e2m1", (3, 4))
    assert tuple(cpd.decode(*good).shape) == (3, 4)
    for bad, error, message in (
        (front_end.array(np.zeros(6, np.int8)), TypeError, "codes must be a 1-D uint8"),
        (front_end.array(np.zeros((2, 3), np.uint8)), TypeError, "codes must be a 1-D uint8"),
        (
            front_end.array(np.zeros(5, np.uint8)),
            ValueError,
            r"codes must have 6 bytes for \(3, 4\) of e2m1",
        ),
        (front_end.array(np.zeros(7, np.uint8)), ValueError, "codes must have 6 bytes"),
        (b"123456", TypeError, "codes"),
    ):
        front_end.refuse(error, message, cpd.decode, bad, "e2m1", (3, 4))
    for shape, error in ((-12, ValueError), (2.0, TypeError), ((3, None), TypeError)):
        front_end.refuse(error, "shape", cpd.decode, codes, "e2m1", shape)
    for shape in ((2**40, 2**40), (2**63,), 2**64, (2**70, 0), (2**31,) * 3, (1, 2**62)):
        front_end.refuse(
            ValueError,
            r"shape must be of fewer than 2\^58 elements",
            cpd.decode,
            codes,
            "e2m1",
            shape,
        )
    for dtype in (np.int32, torch.int32, "float33"):
        with pytest.raises(TypeError):
            cpd.decode(codes, "e2m1", 12, dtype=dtype)
    front_end.refuse(
        ValueError, "16 dimensions", cpd.decode, np.zeros(1, np.uint8), "e2m1", (1,) * 17
    )


@pytest.mark.parametrize("f", ["e2m1", "e3m0", "e4m3finite"])
def test_nan_without_a_code(front_end: FrontEnd, f):
    x = X.copy()
    x[1, 2] = np.nan
    assert np.isnan(front_end.numpy(cpd.cast(front_end.array(x), f))).sum() == 1
    front_end.refuse(ValueError, "6", cpd.encode, x, f)
