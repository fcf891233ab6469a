# SPDX-License-Identifier: Apache-2.0
"""Runs each rank of the tests of delayed scaling (test_delayed.py)."""

import traceback

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from cpd.comm import Communicator
from cpd.nn.delayed import Delayed, keep_from_ddp, update
from cpd.numeric.cast import Cast

SPEC = Cast("e4m3fn block=tensor scale=fp32 arithmetic=te", history=4)


class Model(nn.Module):
    """A model that records the largest magnitudes of its input and of its gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        several = Delayed(SPEC, None, SPEC, products=2, attention=Delayed(SPEC, products=2))
        self.layers = nn.ModuleList([Delayed(SPEC, None, SPEC), several])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        update(self.layers)
        for layer in self.layers:
            x = layer.watch(layer.quantize("activation", x) * self.weight)
        return layer.attending.at(1).quantize("activation", x)


def run(comm: Communicator) -> str:
    try:
        _run()
    except BaseException:
        return traceback.format_exc()
    return ""


def _run() -> None:
    rank = dist.get_rank()
    model = Model()
    keep_from_ddp(model)
    parallel = DistributedDataParallel(model)
    for largest in ((1.0, 2.0), (7.0, 3.0), (float("nan"), 5.0), (0.0, 0.0)):
        parallel(torch.tensor([0.0, -largest[rank]])).backward(torch.tensor([1.0, 1.0 + rank]))
    with torch.no_grad():
        model(torch.zeros(2))
    first = model.layers[0]
    assert first.amax_history[:, 0].nan_to_num(9).tolist() == [0, 7, 9, 0]
    assert first.amax_history[1:, 2].tolist() == [2, 2, 2]
    assert first.scale[0] == 448 / 7  # what NaN keeps
    attention = model.layers[1].attention
    assert attention.scale[3] > 1
    assert attention.scale[0] == 1  # of a product that is not computed
    for state in (first, model.layers[1], attention):
        same = [torch.empty_like(state.scale) for _ in range(2)]
        dist.all_gather(same, state.scale)
        assert torch.equal(same[0], same[1])
