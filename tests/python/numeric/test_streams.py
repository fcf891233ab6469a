# SPDX-License-Identifier: Apache-2.0
"""Tests that Python has the library's table of random streams, and computes the same stream numbers
for tensors."""

from __future__ import annotations

import numpy as np
import pytest

import cpd
import cpd.comm
from cpd import _core
from cpd.numeric.purposes import Purpose
from cpd.numeric.streams import MAX_LAYERS, stream_tag

COLLECTIVE = {"wire": 1, "sum": 2, "result": 3}
LAYER = {
    "given": 0,
    "grad_input": 4,
    "grad_weight": 5,
    "grad_bias": 6,
    "cast_activation": 8,
    "cast_weight": 9,
    "cast_gradient": 10,
    "cast_output": 11,
    "tangent_input": 12,
    "tangent_weight": 13,
    "recast_weight": 7,
    "recast_activation": 14,
    "recast_gradient": 15,
}


@pytest.mark.parametrize(("purpose", "number"), COLLECTIVE.items())
def test_streams_of_a_collective(purpose: str, number: int) -> None:
    stream = _core.stream_of(purpose, step=5, layer=7, position=9)
    assert stream == number << 60 | 5 << 36 | 7 << 20 | 9


@pytest.mark.parametrize(("purpose", "number"), LAYER.items())
@pytest.mark.parametrize("layer", [0, 1, MAX_LAYERS - 1])
def test_tags_of_a_layer(purpose: str, number: int, layer: int) -> None:
    """The stream tag of a purpose and a layer is the same in Python and C++. Python's tag is
    signed, because torch's integers are."""
    assert _core.stream_tag(purpose, layer) == number << 60 | layer << 20
    tag = stream_tag(Purpose[purpose], layer)
    assert tag % 2**64 == _core.stream_tag(purpose, layer)
    assert -(2**63) <= tag < 2**63


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"purpose must be one of given, wire, .* got 'forward'"):
        _core.stream_tag("forward")
    with pytest.raises(ValueError, match=r"layer must be 0…2\^16 - 1, got 65536"):
        _core.stream_tag("grad_bias", 2**16)
    with pytest.raises(ValueError, match=r"step must be below 2\^24"):
        _core.stream_of("sum", step=2**24, layer=0, position=0)


@pytest.mark.parametrize("exchange", ["owner", "gather", "ring"])
def test_numbers_are_those_of_padded_calls(exchange: str) -> None:
    """Layers with the numbers 5, 0 and 9 get the sums of layers 5, 0 and 9 in a call of ten layers,
    whose other layers are empty."""
    order = "ring" if exchange == "ring" else "sequential"
    spec = cpd.Reduce("e4m3", rounding="stochastic", order=order, exchange=exchange)
    generator = np.random.default_rng(3)
    ranks = [[generator.normal(size=n).astype(np.float32) for n in (50, 7, 300)] for _ in range(3)]
    numbers = [5, 0, 9]
    empty = np.empty(0, np.float32)
    padded = [
        [rank[numbers.index(i)] if i in numbers else empty for i in range(10)] for rank in ranks
    ]
    sums = cpd.simulate_all_reduce(padded, spec, seed=1)
    expected = [sums[number] for number in numbers]

    reduce = _core.VirtualReduce(spec._held, 3, [50, 7, 300], 1, 0, numbers)
    for rank in reduce.schedule():
        for layer, x in enumerate(ranks[rank]):
            reduce.contribute(layer, x)
        reduce.end_rank()
    for layer, sum_ in enumerate(expected):
        out = np.empty_like(sum_)
        reduce.result(layer, out)
        assert out.tobytes() == sum_.tobytes()

    def work(comm: cpd.comm.Communicator) -> list[np.ndarray]:
        out = [np.empty_like(layer) for layer in expected]
        comm._native.all_reduce(ranks[comm.rank], out, spec._held, False, 1, 0, numbers)
        return out

    for out in cpd.comm.local(3).run(work):
        assert [x.tobytes() for x in out] == [x.tobytes() for x in expected]

    def public(comm: cpd.comm.Communicator) -> list[np.ndarray]:
        if exchange == "owner":
            mine = comm.reduce(ranks[comm.rank], spec, numbers=numbers, step=0)
            assert (mine is None) == (comm.rank != 0)
            parts = comm.reduce_scatter(ranks[comm.rank], spec, numbers=numbers, step=0)
            wanted = [np.array_split(x, 3)[comm.rank] for x in expected]
            assert [x.tobytes() for x in parts] == [x.tobytes() for x in wanted]
        return comm.all_reduce(ranks[comm.rank], spec, numbers=numbers, step=0)

    for out in [
        *cpd.comm.local(3, seed=1).run(public),
        cpd.simulate_all_reduce(ranks, spec, seed=1, numbers=numbers),
    ]:
        assert [x.tobytes() for x in out] == [x.tobytes() for x in expected]


def test_numbers_are_refused() -> None:
    spec = cpd.Reduce("e4m3")._held
    with pytest.raises(ValueError, match="2 tensors but 1 tensors' numbers"):
        _core.VirtualReduce(spec, 2, [1, 2], numbers=[0])
    with pytest.raises(ValueError, match="a number of its own, got 4 twice"):
        _core.VirtualReduce(spec, 2, [1, 2], numbers=[4, 4])
    with pytest.raises(ValueError, match="at least 0, got -1"):
        _core.VirtualReduce(spec, 2, [1], numbers=[-1])
    with pytest.raises(ValueError, match=r"at most 2\^16 tensors, got 65537"):
        _core.VirtualReduce(spec, 2, [1], numbers=[2**16])


NUMBERS = [
    ([0], ValueError, "there are 2 tensors but 1 numbers"),
    ([4, 4], ValueError, "a number of its own, got 4 twice"),
    ([0, -1], ValueError, "at least 0, got -1"),
    ([0, 2**16], ValueError, r"at most 2\^16 tensors, got 65537"),
    ([0, "1"], TypeError, "numbers must be"),
]


@pytest.mark.parametrize(("numbers", "error", "told"), NUMBERS)
def test_mistaken_numbers(numbers: list[int], error: type[Exception], told: str) -> None:
    layers, spec = [np.ones(2, np.float32)] * 2, cpd.Reduce("e4m3")
    with pytest.raises(error, match=told):
        cpd.simulate_all_reduce([layers], spec, numbers=numbers)
    with cpd.comm.local(1) as group, pytest.raises(error, match=told):
        group.run(lambda comm: comm.all_reduce(layers, spec, numbers=numbers))


def test_layers_are_named_by_their_numbers() -> None:
    spec, x = cpd.Reduce("e4m3"), np.ones(3, np.float32)
    with pytest.raises(TypeError, match="rank 0, tensor 7 must be of type"):
        cpd.simulate_all_reduce([[x, np.ones(3)]], spec, numbers=[2, 7])
    with pytest.raises(ValueError, match="rank 1, tensor 7 has shape"):
        cpd.simulate_all_reduce([[x, x], [x, x[1:]]], spec, numbers=[2, 7])

    def sizes(comm: cpd.comm.Communicator) -> None:
        with pytest.raises(cpd.comm.Mismatch, match="size of tensor 7 is 3 on rank 0 and 2 on"):
            comm.all_reduce([x, x[comm.rank :]], spec, numbers=[2, 7])
        with pytest.raises(cpd.comm.Mismatch, match="tensors' numbers is 2 7 on rank 0 and 2 8 on"):
            comm.all_reduce([x, x], spec, numbers=[2, 7 + comm.rank])
        comm.all_reduce([x, x], spec, numbers=None if comm.rank else [0, 1])

    cpd.comm.local(2).run(sizes)
