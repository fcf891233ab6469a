# SPDX-License-Identifier: Apache-2.0
"""Tests edge cases of data-parallel hooks: buckets, memory layouts, and which error is raised."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
from cpd.comm.schedule import as_schedule  # noqa: E402
from cpd.compress import States  # noqa: E402
from cpd.parallel.ddp import HookState, _as_parameter, _Bucket, _Worker  # noqa: E402
from cpd.parallel.fsdp import ReduceScatter  # noqa: E402

P = torch.nn.Parameter(torch.zeros(3))


@pytest.fixture
def state():
    made = HookState(as_schedule(cpd.Reduce("fp32")), 0)
    yield made
    made.close()


def test_a_loaded_reduce_scatter_goes_on():
    made = ReduceScatter(cpd.Reduce("e4m3"))
    made.load_state_dict({"states": States().state_dict(), "step": 7})
    assert made.step == 7


def test_parameters_outside_the_module(state):
    taken = SimpleNamespace(parameters=[P], gradients=[torch.zeros(3)])
    with pytest.raises(ValueError, match="that is not one of the 0 of the model"):
        state._layers(taken)
    state._numbers = {P: 4}
    assert list(state._layers(taken)) == [4]


@pytest.mark.parametrize("names", [["a", "b"], []])
def test_names_are_as_many_as_parameters(state, names):
    state.names, state._waiting = names, [SimpleNamespace(parameters=[P])]
    with pytest.raises(ValueError, match=f"has 1 parameters, the state {len(names)} names"):
        state._number_by_buckets()


def test_the_first_error_stays(state):
    errors = [ValueError("first"), ValueError("second")]
    for error in errors:
        state._metered = MagicMock(side_effect=error)
        taken = SimpleNamespace(ready=None, done=MagicMock(), ended=threading.Event(), buffer=None)
        state._run(taken, {}, 0, True)
        assert taken.ended.is_set()
        taken.done.set_exception.assert_called_once_with(error)
    assert state.error is errors[0]


def test_sparse_buckets_are_refused():
    bucket = SimpleNamespace(buffer=lambda: torch.zeros(3).to_sparse(), parameters=lambda: [P])
    with pytest.raises(TypeError, match="sparse gradients cannot be reduced"):
        _Bucket.of(bucket)


def test_a_closed_worker_takes_no_work():
    worker = _Worker()
    worker.end()
    with pytest.raises(RuntimeError, match="takes no more buckets"):
        worker.submit(lambda: None)


def test_a_steps_traffic_ends_with_its_last_bucket(state):
    state._all_reduce = lambda layers, step: None
    state._comm = MagicMock(traffic=SimpleNamespace(bytes_sent=0))
    state._metered({}, 5, False)
    assert state._meter.last is None
    state._metered({}, 5, True)
    assert state._meter.last.step == 5


@pytest.mark.parametrize("given", [False, True])
def test_a_hook_closes_the_communicator_that_it_made(monkeypatch, given):
    comm = MagicMock()
    monkeypatch.setattr("cpd.parallel.ddp._own_communicator", lambda: comm)
    state, _ = cpd.ddp_hook(cpd.Reduce("fp32"), comm if given else None)
    state.close()
    assert comm.close.call_count == (not given)


CHANNELS_LAST = torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last)


def test_channels_last_gradients_are_reduced():
    """Channels-last gradients are reduced, although communicators write only contiguous memory."""

    def reduced(comm):
        state = HookState(as_schedule(cpd.Reduce("fp32")))
        state.attach(comm)
        state._numbers = {torch.nn.Parameter(CHANNELS_LAST): 0}
        gradient = torch.arange(120.0).as_strided((2, 3, 4, 5), CHANNELS_LAST.stride())
        gradient *= comm.rank + 1
        state._all_reduce({0: gradient}, 0)
        state.close()
        return gradient

    with cpd.comm.local(2) as group:
        for gradient in group.run(reduced):
            memory = gradient.permute(0, 2, 3, 1).reshape(-1)
            assert torch.equal(memory, 3 * torch.arange(120.0))


def test_gradients_lie_in_a_bucket_as_their_parameters_do():
    """In a bucket, the gradient of a parameter that is dense in memory has the parameter's order.

    The gradients of parameters that are not dense in memory are in row-major order.
    """
    flat = torch.arange(7.0, 127.0)
    given = torch.arange(127.0)[7:].view(2, 3, 4, 5)
    last = _as_parameter(given, torch.nn.Parameter(CHANNELS_LAST))
    assert torch.equal(last, flat.view(2, 4, 5, 3).permute(0, 3, 1, 2))
    assert _as_parameter(given, torch.nn.Parameter(torch.zeros(2, 3, 4, 5))) is given
    sparse = torch.zeros(2, 3, 4, 10)[..., ::2]
    assert _as_parameter(given, torch.nn.Parameter(sparse)) is given
