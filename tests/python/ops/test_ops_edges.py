# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of operations' arguments.

Examples are bounds, bools in place of numbers, and one missing argument of a pair.
"""

from __future__ import annotations

import _thread
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest

import cpd
from cpd.numeric import warned
from cpd.numeric.checked import check_text, checked
from cpd.numeric.compiling import constant
from cpd.numeric.formats import named
from cpd.ops.arguments import product_shape
from cpd.ops.flat import host_values
from patience import scaled

X = np.linspace(-4, 4, 24, dtype=np.float32).reshape(4, 6)


def encoded(x, q, axis=-1):
    return cpd.Encoded(*cpd.encode(x, q, axis=axis), q, x.shape, axis)


def test_text_that_utf8_cannot_hold():
    with pytest.raises(ValueError, match="format must be text that UTF-8 can hold"):
        check_text("format", "e4\ud800")
    check_text("format", "∞")


def test_arguments_that_cannot_be_hashed_raise():
    @constant
    def length(value):
        return 5

    assert length("a") == 5
    with pytest.raises(TypeError, match="unhashable"):
        length([])


def test_constants_are_computed_once_and_not_all_are_kept():
    calls = []

    @constant
    def one(value):
        calls.append(value)
        return [value]

    @constant
    def two(first, second):
        calls.append((first, second))
        return [first, second]

    for number in range(1500):
        assert one(number) is one(number) == [number]
        assert two(number, 7) is two(number, 7) == [number, 7]
        assert two(-7, number) == [-7, number]
    assert len(calls) == len(set(calls)) == 4500
    assert [one(0), two(0, 7)] == [[0], [0, 7]]
    assert calls[4500:] == [0, (0, 7)]  # forgotten, as memory is bounded


def test_the_widest_format_that_is_listed():
    widest = cpd.Format(exp=8, man=15)
    assert widest.bits == 24
    values = widest.values()
    assert len(values) == len(np.unique(values)) == 2 * 255 * 2**15 - 1  # one zero
    with pytest.raises(ValueError, match="formats of up to 24 bits"):
        cpd.Format(exp=8, man=16).values()


@pytest.mark.parametrize("factor", [True, False, "2"])
def test_a_factor_is_a_number(factor):
    with pytest.raises(TypeError, match="factor must be a number"):
        cpd.Cast("int8 row", factor=factor)


def test_scale_max_is_binary32():
    """`scale_max` is rounded to binary32, and the format's text gives the same format again."""
    q = cpd.Scaled("e2m1", block=16, scale="e4m3fn", tensor_scale="fp32", scale_max=0.1)
    assert q.scale_max == float(np.float32(0.1)) != 0.1
    assert cpd.Scaled(q.text) == q


@pytest.mark.parametrize(
    ("a", "b", "shape"),
    [
        ((2, 3), (3, 4), (2, 4)),
        ((2, 3), (5, 3, 4), (5, 2, 4)),
        ((5, 2, 3), (3, 4), (5, 2, 4)),
        ((7, 1, 2, 3), (5, 3, 4), (7, 5, 2, 4)),
    ],
)
def test_shapes_of_products(a, b, shape):
    """The shapes of products equal the shapes of NumPy's matmul."""
    assert product_shape(a, b) == np.matmul(np.zeros(a), np.zeros(b)).shape == shape


def test_values_of_a_turned_array_are_in_the_order_of_its_elements():
    for x in (X.T, X[::-1], X[:, ::2]):
        assert host_values(x).tolist() == [float(value) for value in x.flat]


@pytest.mark.parametrize("more", [1, -1])
def test_codes_of_scales_are_neither_too_few_nor_too_many(more):
    q = cpd.Scaled("mxfp8")
    x = np.ones((2, 64), np.float32)
    _, scales, *_ = cpd.encode(x, q)
    wrong = np.resize(scales, scales.size + more)
    for call in (cpd.cast, cpd.encode):
        with pytest.raises(ValueError, match=rf"scales must have {scales.size} bytes"):
            call(x, q, scales=wrong)


def test_decoded_values_have_the_type_of_out():
    packed = encoded(X, "int8 row")
    out = np.empty(X.shape, np.float16)
    assert cpd.decode(packed, out=out) is out
    assert np.array_equal(out, cpd.decode(packed).astype(np.float16))


def test_a_scale_of_the_whole_tensor_has_no_axis():
    """An operand with one scale for the whole tensor may be encoded along any axis.

    Operands of a product that have several blocks must have the blocks along k.
    """
    whole = [encoded(x, "int8 tensor", axis) for x, axis in ((X, 0), (X.T.copy(), -1))]
    wanted = cpd.gemm(cpd.decode(whole[0]), cpd.decode(whole[1]), "fp32")
    assert np.array_equal(cpd.gemm(*whole, "fp32"), wanted)
    rows = [encoded(x, "int8 row", axis) for x, axis in ((X, 0), (X.T.copy(), -1))]
    with pytest.raises(ValueError, match="blocks must lie along k"):
        cpd.gemm(*rows, "fp32")


def test_scales_at_blocks_and_in_the_epilogue():
    """Scales applied to each block prevent an overflow that scales applied at the end cause.

    The sum of 32 products 127 · 127 exceeds the range of e5m10. The sum of a block of two products
    does not, and the block scales make the total exact: 3 · 3 · 32 = 288.
    """
    a = np.full((1, 32), 3, np.float32)
    rows = encoded(a, "int8 row", -1), encoded(a.T.copy(), "int8 row", 0)
    blocks = encoded(a, "int8 2", -1), encoded(a.T.copy(), "int8 2", 0)
    assert np.isinf(cpd.gemm(*rows, "e5m10", scales_at="epilogue").item())
    assert cpd.gemm(*rows, "fp32", scales_at="epilogue").item() == pytest.approx(288)
    with pytest.raises(ValueError, match="epilogue"):
        cpd.gemm(*blocks, "fp32", scales_at="epilogue")
    assert cpd.gemm(*blocks, "e5m10", scales_at="block").item() == pytest.approx(288, rel=1e-2)


def test_products_by_the_blas_add_c():
    a, b = np.float32([[1, 2]]), np.float32([[3, 5], [4, 6]])
    for c, total in ((np.float32([100, 200]), [[111, 217]]), (None, [[11, 17]])):
        assert cpd.gemm(a, b, "fp32", c, blas=True).tolist() == total


def test_a_scaled_formats_name_in_the_place_of_a_format():
    with pytest.raises(ValueError, match=r"is a scaled format .* without scales is needed"):
        named("mxfp8")
    with pytest.raises(ValueError, match="unknown"):
        named("no_such_format")


def test_calls_of_objects_are_checked():
    @checked
    class Function:
        def __call__(self, bits: int) -> int:
            return bits

        def _of(self, bits: int) -> int:
            return bits

    assert Function()(3) == 3
    with pytest.raises(TypeError, match="bits must be an int, got str"):
        Function()("3")
    assert Function()._of("3") == "3"


def test_random_integers_are_counted_below_2_58():
    acc = cpd.Accumulator("e5m10", rounding="stochastic")
    assert acc.sum_integers(2**58 - 1) >= 2**58 - 1
    for count in (2**58, -1):
        with pytest.raises(ValueError, match=r"must be 0…2\^58 - 1"):
            acc.sum_integers(count)


def test_a_warning_from_a_thread_of_torchs_points_behind_the_package():
    torch = pytest.importorskip("torch")
    ours, theirs = (
        str(Path(package.__file__).with_name("made_for_a_test.py")) for package in (cpd, torch)
    )
    names = {"warn": warned.warn, "done": threading.Event()}
    exec(compile("def inner():\n    warn('told')", ours, "exec"), names)
    exec(compile("def outer():\n    inner(); done.set()", theirs, "exec"), names)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        _thread.start_new_thread(names["outer"], ())  # without a frame of threading's
        assert names["done"].wait(scaled(60))
    assert [warning.filename for warning in caught] == [theirs]
