# SPDX-License-Identifier: Apache-2.0
"""Tests the arguments and results of `cpd.simulate_all_reduce`, and the errors of `cpd.Reduce`."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle

import numpy as np
import pytest

import cpd
from reduce_cases import gradients

# Many sums in this file are too long for their format: their last terms do not change the sum. CPD
# warns of such sums.
pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")

QSGD = "qsgd bits=4 bucket=512"

# ---- the interface -----------------------------------------------------------------------------


def test_kinds_of_ranks():
    torch = pytest.importorskip("torch")
    arrays = gradients(4)
    spec = cpd.Reduce("e4m3", aps=True, order="ring")
    wanted = cpd.simulate_all_reduce(arrays, spec)

    def equal(layers):
        assert [tuple(x.shape) for x in layers] == [x.shape for x in wanted]
        return all(np.array_equal(a, b) for a, b in zip(layers, wanted, strict=True))

    tensors = [[torch.tensor(x, requires_grad=x.ndim > 0) for x in r] for r in arrays]
    got = cpd.simulate_all_reduce(tensors, spec)
    assert all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in got)
    assert equal([x.numpy() for x in got])
    assert equal(cpd.simulate_all_reduce([lambda r=r: tuple(r) for r in arrays], spec))
    assert equal(cpd.simulate_all_reduce([arrays[0], lambda: arrays[1], *arrays[2:]], spec))

    class Stored:
        def __len__(self):
            return 4

        def __getitem__(self, rank):
            return [x.copy() for x in arrays[rank]]

    assert equal(cpd.simulate_all_reduce(Stored(), spec))
    strided = [[np.asarray(x, order="F") for x in r] for r in arrays]
    assert equal(cpd.simulate_all_reduce(strided, spec))


def test_narrow_layers_are_widened():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    torch = pytest.importorskip("torch")
    ranks = gradients(3, shapes=((50,),))
    for dtype, name in ((np.float16, "float16"), (ml_dtypes.bfloat16, "bfloat16")):
        narrow = [[x.astype(dtype) for x in r] for r in ranks]
        wide = [[x.astype(np.float32) for x in r] for r in narrow]
        spec = cpd.Reduce("e4m3")
        (wanted,) = cpd.simulate_all_reduce(wide, spec)
        assert np.array_equal(cpd.simulate_all_reduce(narrow, spec)[0], wanted)
        tensors = [[torch.from_numpy(x).to(getattr(torch, name)) for x in r] for r in wide]
        assert np.array_equal(cpd.simulate_all_reduce(tensors, spec)[0].numpy(), wanted)


def test_inputs_are_left_alone():
    ranks = gradients(3)
    before = copy.deepcopy(ranks)
    cpd.simulate_all_reduce(ranks, cpd.Reduce("e3m0", aps=True, loss_scale=1))
    for a, b in zip(ranks, before, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(("order", "aps", "calls"), [
    ("sequential", False, 1), ("sequential", True, 2), ("ring", False, 2), ("ring", True, 3),
    ("tree", False, 1), ("tree", True, 2),
])  # fmt: skip
def test_how_often_ranks_are_asked(order, aps, calls):
    asked = [0] * 6
    ranks = gradients(6)

    def rank(r):
        def make():
            asked[r] += 1
            return ranks[r]

        return make

    spec = cpd.Reduce("e4m3", order=order, aps=aps)
    cpd.simulate_all_reduce([rank(r) for r in range(6)], spec)
    assert max(asked) <= calls


def test_reports():
    ranks = [
        [np.float32([1.0, 200.0, 1e-9, 0.0]), np.float32([np.nan, 1.0])],
        [np.float32([1.0, 200.0, 1.0, 0.0]), np.float32([1.0, np.inf])],
    ]
    for order in ("sequential", "ring"):
        _, reports = cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3", order=order), report=True)
        assert reports[0] == cpd.comm.TensorReport(
            shift=0, non_finite=0, overflowed=1, underflowed=1, values=8, zeros=3, bytes=8
        )
        assert reports[1] == cpd.comm.TensorReport(
            shift=0, non_finite=2, overflowed=0, underflowed=0, values=4, zeros=0, bytes=4
        )


def test_no_layers_and_empty_layers():
    assert cpd.simulate_all_reduce([[], []], cpd.Reduce("e4m3")) == []
    empty = np.zeros((0, 3), np.float32)
    for aps in (False, True):
        (got,) = cpd.simulate_all_reduce([[empty], [empty]], cpd.Reduce("e4m3", aps=aps))
        assert got.shape == (0, 3)


def test_spec_is_a_value():
    spec = cpd.Reduce("e4m3", order="ring", aps="paper", group_size=4)
    for other in (copy.deepcopy(spec), pickle.loads(pickle.dumps(spec)), spec.replace()):
        assert other == spec
        assert hash(other) == hash(spec)
    assert spec.replace(aps=True) != spec
    assert spec.accumulator == cpd.Accumulator("e4m3")
    assert spec.result == cpd.Format("e4m3")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.order = "tree"


def test_a_spec_has_what_it_was_given():
    for aps in (False, True, "paper"):
        assert cpd.Reduce("e4m3", aps=aps).aps == aps
    ranks = [[np.float32([1.0])], [np.float32([3.0])]]
    for average, total in ((False, 4.0), (True, 2.0)):
        spec = cpd.Reduce("e4m3", average=average)
        assert spec.average is average
        assert cpd.simulate_all_reduce(ranks, spec)[0].item() == total


@pytest.mark.parametrize(
    ("ranks", "error", "message"),
    [
        ([], ValueError, "at least one rank"),
        (3, TypeError, "sequence of ranks"),
        ([np.zeros(3, np.float32)], TypeError, "rank 0 must be a list of tensors"),
        ([[1.0]], TypeError, "rank 0, tensor 0"),
        ([[np.zeros(3)]], TypeError, "rank 0, tensor 0.*float64"),
        ([[np.zeros(3, ">f4")]], TypeError, ">f4"),
        ([[np.zeros(3, np.int32)]], TypeError, "int32"),
        ([[np.zeros(3, np.float32)], []], ValueError, "rank 1 has 0 tensors, rank 0 has 1"),
        ([[], [np.zeros(3, np.float32)]], ValueError, "rank 1 has 1 tensors, rank 0 has 0"),
        (
            [
                [np.zeros(3, np.float32)] * 2,
                [np.zeros(3, np.float32), np.zeros((3, 1), np.float32)],
            ],
            ValueError,
            r"rank 1, tensor 1 has shape \(3, 1\), rank 0 has \(3,\)",
        ),
        ([lambda: 3], TypeError, "rank 0 must be a list of tensors"),
    ],
)
def test_bad_ranks(ranks, error, message):
    with pytest.raises(error, match=message):
        cpd.simulate_all_reduce(ranks, cpd.Reduce("e4m3"))


def test_errors_of_a_rank_arrive():
    def fail():
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        cpd.simulate_all_reduce([[np.zeros(3, np.float32)], fail], cpd.Reduce("e4m3"))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"format": 3}, TypeError, "format"),
        ({"format": "e9m3"}, ValueError, "e9m3|exp"),
        ({"accumulator": 3}, TypeError, "format"),
        (
            {"order": "star"},
            ValueError,
            "order must be sequential, ring or tree, got 'star'",
        ),
        ({"order": "tree", "accumulator": "e4m3 kahan"}, ValueError, "tree.*kahan"),
        ({"order": "tree", "accumulator": "e4m3 chunked"}, ValueError, "tree.*chunked"),
        ({"order": "tree", "accumulator": "e4m3 pairwise"}, ValueError, "tree.*pairwise"),
        ({"accumulator": "h100-fp8"}, ValueError, "block_fma"),
        ({"accumulator": "e4m3 chunked chunk=0"}, ValueError, "chunk"),
        (
            {"exchange": "star"},
            ValueError,
            "exchange must be owner, gather, ring or hierarchical, got 'star'",
        ),
        ({"exchange": "ring"}, ValueError, "ring.*sequential"),
        ({"exchange": "ring", "order": "ring", "group_size": 2}, ValueError, "ring.*group"),
        ({"exchange": "ring", "order": "tree"}, ValueError, "ring.*tree"),
        ({"exchange": "hierarchical", "order": "ring"}, ValueError, "hierarchical.*group"),
        ({"exchange": "hierarchical", "group_size": 2}, ValueError, "hierarchical.*sequential"),
        ({"group_size": 0}, ValueError, "group_size"),
        ({"group_size": 2.0}, TypeError, "group_size"),
        ({"group_size": 2**31}, ValueError, "group_size"),
        ({"aps": "on"}, ValueError, "aps must be one of False, True, 'paper', got 'on'"),
        ({"aps": 1}, ValueError, "aps"),
        ({"loss_scale": 3}, ValueError, "power of two"),
        ({"loss_scale": 0}, ValueError, "power of two"),
        ({"loss_scale": -2}, ValueError, "power of two"),
        ({"loss_scale": math.inf}, ValueError, "power of two"),
        ({"loss_scale": 2.0**200}, ValueError, "loss_scale"),
        ({"loss_scale": "2"}, TypeError, "loss_scale"),
        ({"loss_scale": 2, "aps": True}, ValueError, "aps and loss_scale"),
        ({"rounding": "nearest"}, ValueError, "nearest"),
        ({"overflow": "wrap"}, ValueError, "wrap"),
        ({"variant": "D"}, ValueError, "D"),
        ({"random_bits": 25}, ValueError, "random_bits"),
        (
            {"seed": 1},
            TypeError,
            r"Reduce\(\) takes no seed=: give it to the call, cpd.simulate_all",
        ),
        (
            {"step": 1},
            TypeError,
            r"Reduce\(\) takes no step=: give it to the call, cpd.simulate_all",
        ),
        ({"result": "e4"}, ValueError, "e4"),
        ({"average": "yes"}, TypeError, "average"),
        ({"average": 1}, TypeError, "average"),
        ({"format": "gzip"}, ValueError, "unknown codec 'gzip'"),
        ({"format": QSGD, "rounding": "up"}, ValueError, "rounding is an option of a cast"),
        ({"format": QSGD, "overflow": "saturate"}, ValueError, "overflow is an option of a cast"),
        ({"format": QSGD, "variant": "B"}, ValueError, "variant is an option of a cast"),
        ({"format": QSGD, "aps": True}, ValueError, "has scales of its own"),
        ({"format": QSGD, "order": "ring", "exchange": "ring"}, ValueError, "ring"),
        (
            {"format": QSGD, "order": "ring", "exchange": "hierarchical", "group_size": 2},
            ValueError,
            "hierarchical",
        ),
        ({"format": QSGD, "random_bits": 25}, ValueError, "random_bits"),
        ({"format": "qsgd bits=1"}, ValueError, "bits"),
        ({"format": "qsgd bucket=0"}, ValueError, "bucket"),
        ({"format": "int8 row"}, ValueError, "without rows: give block=N or block=tensor, or a "),
        (
            {"format": "fp8-block 128x128"},
            ValueError,
            "a codec of rows, int8_rows or fp8_rows, got fp8-block 128x128",
        ),
        ({"format": "mxfp8", "aps": True}, ValueError, "codec 'mxfp8' has scales of its own"),
        ({"format": "mxfp8", "random_bits": 25}, ValueError, "random_bits"),
        ({"format": "mxfp8 block=0"}, ValueError, "block"),
    ],
)
def test_bad_specs(arguments, error, message):
    with pytest.raises(error, match=message):
        cpd.Reduce(arguments.pop("format", "e4m3"), **arguments)


def test_spec_must_be_one():
    with pytest.raises(TypeError, match="a format must be"):
        cpd.simulate_all_reduce([[np.zeros(3, np.float32)]], 3)
