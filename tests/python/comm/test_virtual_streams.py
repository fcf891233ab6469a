# SPDX-License-Identifier: Apache-2.0
"""Tests virtual ranks whose layers are computed, and freed, on separate CUDA streams."""

from __future__ import annotations

import pytest

import cpd
from cpd import _core

torch = pytest.importorskip("torch")

WORLD = 5
SIZE = 3000


def values(stream: torch.cuda.Stream, x: torch.Tensor) -> _core.CudaValues:
    return _core.CudaValues(x.data_ptr(), x.numel(), 0, stream.cuda_stream)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_ranks_on_streams() -> None:
    """The sums run on the first rank's stream, after the casts on the other ranks' streams. Memory
    that these ranks free is reused only after the sums. A further stream reads the result."""
    spec = cpd.Reduce("e5m2", group_size=2, average=True)
    made = [torch.randn(SIZE, generator=torch.Generator().manual_seed(r)) for r in range(WORLD)]
    wanted, reports = cpd.simulate_all_reduce(
        [[cpd.cast(x, "e4m3")] for x in made], spec, report=True
    )

    given = [x.cuda() for x in made]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(WORLD + 1)]
    reduce = _core.VirtualReduce(spec._held, WORLD, [SIZE])
    for rank in reduce.schedule():
        with torch.cuda.stream(streams[rank]):
            cast = cpd.cast(given[rank], "e4m3")
            reduce.contribute(0, values(streams[rank], cast))
            del cast
        reduce.end_rank()
    for stream in reversed(streams[:WORLD]):
        stream.synchronize()
    with torch.cuda.stream(streams[WORLD]):
        out = torch.empty(SIZE, device="cuda")
        reduce.result(0, values(streams[WORLD], out))
        got = cpd.cast(out, "fp32")
        streams[WORLD].synchronize()
    report = reduce.report(0)
    del reduce  # the memory is freed in stream order
    assert torch.equal(got.cpu(), wanted[0])
    assert (report.zeros, report.underflowed) == (reports[0].zeros, reports[0].underflowed)
    assert reports[0].zeros > 0
