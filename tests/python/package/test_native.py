# SPDX-License-Identifier: Apache-2.0
"""Tests the compiled module without the checks of the Python package around it.

Arguments that the package would refuse must raise an error, and no memory outside the arrays may be
touched. Results that only this module computes must be right.
"""

from __future__ import annotations

import numpy as np
import pytest

import cpd
from cpd import _core

E4M3 = cpd.Format("e4m3")._held
SUM = "fp32 sequential"
NEAREST = _core.RoundingOptions("nearest_even", "ieee", 24, "A")


def cast(x, out=None):
    out = np.full(x.shape, 7, np.float32) if out is None else out
    _core.cast(x, E4M3, NEAREST, out)
    return out


# ---- arrays ------------------------------------------------------------------------------------


def test_strides_of_parts_of_elements_are_refused():
    """Strides must be multiples of the element size; otherwise the call raises ValueError.

    A field of 6-byte records has such strides. An array of one element has no stride.
    """
    records = np.array([(1, 2.0), (3, 4.0)], [("a", "u2"), ("x", "<f4")])
    whole, out = np.float32([2, 4]), np.zeros(2, np.float32)
    for x, y in ((records["x"], out), (whole, records["x"])):
        with pytest.raises(ValueError, match="strides must be whole elements of 4 bytes, got 6"):
            cast(x, y)
    assert (out == 0).all()
    assert records["x"].tolist() == [2, 4]
    assert cast(records["x"][:1]).tolist() == [2]


def test_arrays_have_at_most_16_dimensions():
    assert cast(np.ones((1,) * 16, np.float32)).item() == 1
    with pytest.raises(ValueError, match="arrays must have at most 16 dimensions, got 17"):
        cast(np.ones((1,) * 17, np.float32))


@pytest.mark.parametrize("bits", [0, 25])
def test_numbers_of_random_bits(bits):
    for bound in (1, 24):
        _core.RoundingOptions("stochastic", "ieee", bound, "A")
    with pytest.raises(ValueError, match=f"random_bits must be 1…24, got {bits}"):
        _core.RoundingOptions("stochastic", "ieee", bits, "A")


# ---- codecs: pieces of a layer -----------------------------------------------------------------


def test_a_piece_takes_its_own_random_integers():
    """When a codec encodes a chunk of a layer, each value uses the value's own random integer.

    With norm 1, the random integer 0 rounds 0.4 down to 0, and the integer 2^24 - 1 rounds 0.4 up
    to 1.
    """
    held = cpd.Codec("qsgd bits=2 bucket=4")._held
    x = np.float32([1, 0.4, 0.4, 0.4] * 2)
    call = _core.CodecLayerCall(random=np.repeat(np.uint32([0, 2**24 - 1]), 4))
    assert held.decode(held.encode(x, call), 8).tolist() == [1, 0, 0, 0, 1, 1, 1, 1]
    assert held.decode(held.encode(x, call, 0, 4), 4).tolist() == [1, 0, 0, 0]
    assert held.decode(held.encode(x, call, 4, 4), 4).tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("count", [7, 9, 0])
def test_every_value_has_a_random_integer(count):
    held = cpd.Codec("qsgd bits=2 bucket=4")._held
    call = _core.CodecLayerCall(random=np.zeros(count, np.uint32))
    with pytest.raises(
        ValueError, match=f"random must be as many integers as there are values, 8, got {count}"
    ):
        held.encode(np.ones(8, np.float32), call)


def test_a_piece_leaves_what_is_kept_of_the_layer():
    """Encoding a chunk of a layer does not change the stored residual of the layer.

    0.06 is less than half of int4's step of 1/7. So encoding the whole layer rounds 0.06 to 0, and
    stores 0.06 as residual. The next encoding rounds 0.06 + 0.06 to one step.
    """
    held = cpd.Codec("feedback int4 bucket=4")._held
    x = np.float32([1, 0.06, 0.06, 0.06] * 2)
    call = _core.CodecLayerCall(states=_core.CodecStates())
    for _ in range(3):
        assert held.decode(held.encode(x, call, 0, 4), 4).tolist() == [1, 0, 0, 0]
    assert held.decode(held.encode(x, call), 8).tolist() == [1, 0, 0, 0] * 2
    step = np.float32(1) / np.float32(7)
    assert np.allclose(held.decode(held.encode(x, call), 8), [1, step, step, step] * 2, atol=1e-6)


def test_a_layer_is_encoded_times_its_shift():
    held = cpd.Codec("e4m3")._held
    x = np.float32([2.0**-20, 3 * 2.0**-20])
    assert held.decode(held.encode(x), 2).tolist() == [0, 0]
    assert held.decode(held.encode(x, _core.CodecLayerCall(shift=20)), 2).tolist() == [1, 3]


# ---- vectors and communicators -----------------------------------------------------------------


def test_codes_are_looked_up_below_the_tables_size():
    table = np.float32([2, 3])
    assert _core.look_up(table, np.uint32([1, 0])).tolist() == [3, 2]
    for code in (2, 2**32 - 1):
        with pytest.raises(ValueError, match="a code must be below 2"):
            _core.look_up(table, np.uint32([0, code]))


def test_operands_of_the_oracle_are_of_one_length():
    oracle = _core.ElementOracle("add", [E4M3, E4M3], E4M3, NEAREST, "after")
    for lengths in ((3, 2), (2, 3)):
        with pytest.raises(ValueError, match=r"operands must have [23] lines, got [23]"):
            oracle.results([np.zeros(n, np.uint32) for n in lengths])


@pytest.mark.parametrize("length", [0, 127, 129])
def test_an_id_of_nccl_has_128_bytes(length):
    with pytest.raises(ValueError, match=f"an NCCL id has 128 bytes, got {length}"):
        _core.nccl_communicator(bytes(length), 0, 1, 0, 0, 1.0, 1024)


CODES, SUMS = np.zeros(2, np.uint32), cpd.Accumulator("e5m7")._held


def oracle(formats=2):
    return _core.ElementOracle("add", [E4M3] * formats, E4M3, NEAREST, "after")


def sums_of_integers():
    int8 = cpd.Format("int8")._held
    return _core.SumRule(cpd.Accumulator("int32")._held, [int8, int8], 2, "after")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cast(np.zeros(2, np.int8)), "arrays must be of float32, .* or uint32, got int8"),
        (
            lambda: _core.flags("add", [], E4M3, NEAREST, "after", np.zeros(1, np.uint8)),
            "an operation needs operands, got none",
        ),
        (lambda: _core.kernel_calls("none"), "backend must be one of scalar.*, got 'none'"),
        (
            lambda: _core.check_storage("int8", E4M3),
            "element type must be float32, float64, bfloat16 or float16, got 'int8'",
        ),
        (
            lambda: cpd.Codec("e4m3")._held.decode(b"", -1),
            "n must not be negative, got -1",
        ),
        (lambda: oracle(1), "add takes 2 operands' formats, got 1"),
        (lambda: oracle().results([CODES]), "add takes 2 operands' codes, got 1"),
        (
            lambda: oracle().results([CODES, CODES], CODES[:1]),
            "random must have 2 lines, got 1",
        ),
        (
            lambda: _core.SumRule(SUMS, [E4M3, E4M3], 2, "after"),
            "formats must be that of a sum's terms, or 3 of a, b and c, got 2",
        ),
        (
            lambda: _core.oracle_sums(_core.SumRule(SUMS, [E4M3], 2, "after"), 1, CODES[:1]),
            "a must have 2 numbers, got 1",
        ),
        (
            lambda: _core.oracle_sums(sums_of_integers(), 1, CODES, CODES),
            "c_units must have 1 numbers, got 0",
        ),
        (
            lambda: _core.text_lines([(b"", np.zeros(2, np.int32), 8)], b""),
            "a column must be a C-contiguous array of unsigned integers for 2 lines, "
            "got int32 for 2",
        ),
    ],
)
def test_what_does_not_fit_is_refused(call, said):
    with pytest.raises(ValueError, match=said):
        call()


# ---- torch's operators -------------------------------------------------------------------------


def test_a_result_that_overlaps_itself_is_not_written():
    torch = pytest.importorskip("torch")
    from cpd._torch.library import ops

    x, row = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.zeros(1, 2)
    with pytest.raises(
        ValueError, match="out must not overlap itself, got stride 0 in dimension 0"
    ):
        ops.cast_out(x, "e4m3", None, None, None, out=row.expand(2, 2))
    assert (row == 0).all()
    ops.cast_out(x[:1], "e4m3", None, None, None, out=row.expand(1, 2))
    assert row.tolist() == [[1, 2]]


@pytest.mark.parametrize("groups", [0, -1])
def test_gradients_of_kernels_have_a_group(groups):
    torch = pytest.importorskip("torch")
    from cpd._torch.library import ops

    g, x = torch.ones(1, 2, 3), torch.ones(1, 2, 4)
    with pytest.raises(ValueError, match=f"groups must be at least 1, got {groups}"):
        ops.correlate(g, x, groups, [2], [1], [1], [0], SUM, None, None, torch.float32)
    got = ops.correlate(g, x, 2, [2], [1], [1], [0], SUM, None, None, torch.float32)
    assert got.tolist() == [[[3, 3]], [[3, 3]]]


def test_operators_refuse_what_does_not_fit():
    torch = pytest.importorskip("torch")
    from cpd._torch.library import ops

    x, images, kernel = torch.ones(2, 3), torch.ones(1, 1, 4), torch.ones(1, 1, 1, 2)

    def convolve(x=images, w=kernel, step=(1,), places=(3,)):
        how = SUM, None, None, torch.float32
        return ops.convolve(x, w, False, None, step, [1], [0], [1], places, *how)

    def correlate(g):
        return ops.correlate(g, images, 1, [2], [1], [1], [0], SUM, None, None, torch.float32)

    def multiply_by_blas(random):
        return ops.gemm(x, x.T, None, SUM, None, None, torch.float32, True, random)

    def round_to_e4m3(x):
        return ops.cast(x, "e4m3", None, None, None)

    assert convolve().tolist() == [[[2, 2, 2]]]
    windows = "windows need 1 numbers, one for each dimension of the image, got"
    for call, said in (
        (
            lambda: convolve(x=torch.ones(1, 1)),
            "images must have 1…8 dimensions in addition to two",
        ),
        (lambda: convolve(w=x), "w must be groups x outputs x channels x a kernel"),
        (lambda: convolve(step=(1, 1)), f"{windows} 2"),
        (lambda: convolve(places=()), f"{windows} 0"),
        (lambda: correlate(torch.ones(1)), "g must be images x outputs x places"),
        (lambda: ops.sum(x, 2, SUM, None, None, None), "dim must be 0…1, got 2"),
        (
            lambda: multiply_by_blas(torch.zeros(1, dtype=torch.int32)),
            "a BLAS takes no random integers",
        ),
        (
            lambda: round_to_e4m3(torch.ones((1,) * 17)),
            "tensors must have at most 16 dimensions, got 17",
        ),
        (
            lambda: round_to_e4m3(torch.ones(2, dtype=torch.int8)),
            "tensors must be of Float, .* or Long, got Char",
        ),
    ):
        with pytest.raises(ValueError, match=said):
            call()
