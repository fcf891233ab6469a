# SPDX-License-Identifier: Apache-2.0
"""Tests all-reduces in scaled formats: the result is the sum of `cpd.cast` of each rank's flattened
layer."""

from __future__ import annotations

import pickle
from functools import partial

import numpy as np
import pytest

import cpd
from cpd import _core
from cpd.cli import main
from cpd.study import cost
from reduce_cases import gradients

FORMATS = ("mxfp8", "nvfp4", "mxfp6-e2m3", "fp8-tensor", "fp8-block", "bfp8", "e3m2 7 scale=e4m2")


def casts(ranks, spec, seed=0, step=0):
    """Returns each rank's contributions: its layers, multiplied by the loss scale, cast, and
    divided by the loss scale."""

    def cast(x, rank, layer):
        values = cpd.cast(
            (x * np.float32(spec.loss_scale)).reshape(-1),
            cpd.Cast(
                spec.format,
                rounding=spec.rounding,
                overflow=spec.overflow,
                random_bits=spec.random_bits,
                variant=spec.variant,
            ),
            seed=seed,
            stream=_core.stream_of("wire", step, layer, rank),
        )
        return (values / np.float32(spec.loss_scale)).reshape(x.shape)

    return [[cast(x, r, i) for i, x in enumerate(layers)] for r, layers in enumerate(ranks)]


def reduced(ranks, spec, comm, **options):
    """Returns the result of an all-reduce on the rank of `comm`."""
    return comm.all_reduce(ranks[comm.rank], spec, **options)


def same(a, b):
    pairs = zip(a, b, strict=True)
    return all(np.array_equal(x.view(np.uint32), y.view(np.uint32)) for x, y in pairs)


@pytest.mark.parametrize("q", FORMATS)
@pytest.mark.parametrize("order", ["sequential", "ring", "tree"])
def test_sums_of_casts(q, order):
    ranks = gradients(5)
    for options in (
        {},
        {"rounding": "stochastic", "random_bits": 9, "variant": "B"},
        {"overflow": "ieee", "rounding": "toward_zero", "loss_scale": 64.0},
        {"group_size": 2, "average": True, "accumulator": "bf16", "result": "e5m2"},
    ):
        spec = cpd.Reduce(q, order=order, **options)
        plain = {"codec": "fp32", "rounding": "nearest_even", "overflow": "ieee"}
        wanted = cpd.simulate_all_reduce(
            casts(ranks, spec, 7, 3), spec.replace(random_bits=24, variant="A", **plain)
        )
        assert same(cpd.simulate_all_reduce(ranks, spec, seed=7, step=3), wanted), options


@pytest.mark.parametrize("q", FORMATS)
def test_ranks_and_cost(q):
    """Ranks that are threads and send small chunks get the bits of simulate_all_reduce. They send
    and receive the number of bytes that `cost` predicts."""
    ranks = gradients(4)
    sizes = [x.size for x in ranks[0]]
    for way in (
        {},
        {"exchange": "gather", "order": "tree"},
        {"exchange": "ring", "order": "ring"},
        {"exchange": "hierarchical", "order": "ring", "group_size": 3},
    ):
        spec = cpd.Reduce(q, result="bf16", rounding="stochastic", **way)
        wanted = cpd.simulate_all_reduce(ranks, spec)
        with cpd.comm.local(4, chunk=700) as group:
            told = group.run(partial(reduced, ranks, spec, report=True))
        for rank, (got, report) in enumerate(told):
            assert same(got, wanted)
            expected = cost(spec, 4, sizes, rank=rank, chunk=700)
            assert report.traffic.bytes_sent == expected.bytes_sent
            assert report.traffic.bytes_received == expected.bytes_received


def test_nan():
    """NVFP4 cannot encode NaN. A sum with a NaN is sent in binary32 and has the virtual ranks'
    values."""
    ranks = gradients(3, shapes=((40,), (7,)))
    ranks[1][0][3], ranks[2][0][20] = np.nan, np.inf
    for q in FORMATS:
        spec = cpd.Reduce(q)
        wanted = cpd.simulate_all_reduce(ranks, spec)
        assert np.isnan(wanted[0][3])
        with cpd.comm.local(3) as group:
            for got in group.run(partial(reduced, ranks, spec)):
                assert same(got, wanted)


def test_spec_is_a_value():
    spec = cpd.Reduce("nvfp4 choose=mse", order="ring")
    assert spec.format == cpd.Scaled("nvfp4 choose=mse")
    assert spec == cpd.Reduce(cpd.Scaled("nvfp4 choose=mse"), order="ring")
    for other in (pickle.loads(pickle.dumps(spec)), spec.replace()):
        assert other == spec
        assert hash(other) == hash(spec)
    assert spec.result == spec.accumulator.format == cpd.Format("fp32")
    assert (spec.overflow, cpd.Reduce("e4m3").overflow) == ("saturate", "ieee")
    assert (
        cpd.Reduce("mxfp8", accumulator="bf16 kahan", result="bf16").accumulator.scheme == "kahan"
    )


def test_ranks_that_differ():
    with cpd.comm.local(2) as group:

        def run(comm):
            spec = cpd.Reduce("mxfp8" if comm.rank else "nvfp4")
            with pytest.raises(
                cpd.comm.Mismatch, match=r"wire is codec scaled nvfp4 .* on rank 0 and"
            ):
                comm.all_reduce([np.ones(3, np.float32)], spec)

        group.run(run)


@pytest.mark.parametrize("words", [["roundoff", "--depth", "1"], ["train", "--epochs", "1"]])
def test_commands(capsys, words):
    pytest.importorskip("torch")
    assert main([*words, "--reduce", "nvfp4 choose=mse", "--nodes", "4"]) == 0
    assert "nvfp4" in capsys.readouterr().out
