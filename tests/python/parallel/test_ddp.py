# SPDX-License-Identifier: Apache-2.0
"""Tests that gradients of the DDP hook equal the sums of virtual ranks, bit for bit.

This must hold for any division into buckets.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import spawn  # noqa: E402
from cpd.comm.schedule import as_schedule  # noqa: E402
from cpd.parallel.ddp import HookState, _Bucket  # noqa: E402
from ddp_ranks import CASES  # noqa: E402
from front_ends import require_gpu_itself  # noqa: E402

WORLD = 3


@pytest.fixture(scope="module")
def told() -> list[dict[str, str]]:
    """Returns the error text of each case (empty: none), by [rank][case]."""
    ranks = spawn.spawn_ranks("gloo", WORLD, "ddp_ranks:run_all")
    return [rank.result for rank in ranks]


@pytest.mark.few("", 2)
@pytest.mark.parametrize("case", [case.__name__ for case in CASES])
def test_over_gloo(told, case):
    for rank in range(WORLD):
        assert not told[rank][case], f"rank {rank}: {told[rank][case]}"


SPEC = cpd.Reduce("e4m3")


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"model": 3}, TypeError, "model must be a torch.nn.Module or None, got int"),
        ({"model": "model"}, TypeError, "model must be a torch.nn.Module or None, got str"),
        ({"model": [torch.nn.Linear(1, 1)]}, TypeError, "got list"),
        ({"comm": 3}, TypeError, "comm must be a cpd.comm.Communicator, got int"),
        ({"spec": 3}, TypeError, "a format must be"),
        (
            {"spec": torch.nn.Linear(1, 1)},
            TypeError,
            r"got Linear: write model\.register_comm_hook",
        ),
        (
            {"spec": cpd.Schedule(SPEC, exempt=["bias"]), "model": 3},
            TypeError,
            "model must be a torch.nn.Module",
        ),
        (
            {"spec": SPEC.replace(group_size=2)},
            ValueError,
            r"group_size must be 1…1 \(the ranks\)",
        ),
        (
            {"spec": cpd.Schedule(SPEC, first_spec=SPEC.replace(group_size=9), first_steps=1)},
            ValueError,
            "first_spec: group_size must be 1…1",
        ),
    ],
)
def test_mistakes_are_told_at_once(arguments, error, message):
    with cpd.comm.local(1) as group:
        given = {"spec": SPEC, "comm": group.ranks[0]} | arguments
        with pytest.raises(error, match=message):
            cpd.ddp_hook(**given)


def test_a_state_takes_what_the_hook_takes():
    with cpd.comm.local(1) as group:
        state, _ = cpd.ddp_hook(SPEC, group.ranks[0], model=torch.nn.Linear(2, 1))
        with pytest.raises(TypeError, match="model must be"):
            state.attach(model=3)
        grouped, _ = cpd.ddp_hook(SPEC.replace(group_size=1), group.ranks[0])
        grouped.schedule = cpd.Schedule(SPEC.replace(group_size=2))
        with pytest.raises(ValueError, match="group_size"):
            grouped.attach(group.ranks[0])


@pytest.mark.gpu
def test_on_the_gpu():
    require_gpu_itself("random generators")
    for rank in spawn.spawn_ranks("gloo", 2, "ddp_ranks:run_all", True):
        assert rank.result == {"on_the_gpu": ""}


def test_complex_parameters_are_refused():
    model = torch.nn.Linear(3, 2, dtype=torch.cfloat)
    state = HookState(as_schedule(cpd.Reduce("fp32")))
    with pytest.raises(TypeError, match=r"parameter weight must be real, got torch\.complex64"):
        state.attach(model=model)

    class Bucket:
        def buffer(self):
            return torch.zeros(2 * 6)

        def parameters(self):
            return [model.weight]

        def gradients(self):
            return [self.buffer()[:6]]

    with pytest.raises(TypeError, match="complex parameters cannot be reduced"):
        _Bucket.of(Bucket())


def test_double_parameters_are_named():
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 2).double())
    state = HookState(as_schedule(cpd.Reduce("fp32")))
    allowed = r"torch\.float32, torch\.bfloat16, torch\.float16"
    with pytest.raises(
        TypeError, match=rf"parameter 1\.weight must be one of {allowed}, got torch\.float64"
    ):
        state.attach(model=model)


def test_state_dicts_are_checked_before_they_are_loaded():
    def state_of(model):
        state = HookState(as_schedule(cpd.Reduce("fp32")))
        state.attach(model=model)
        return state

    one = state_of(torch.nn.Linear(3, 2))
    one.step = 7
    saved = one.state_dict()
    named = {"names": ["weight", "bias"], "states": {"layers": []}}
    assert saved == {"step": 7, "seed": 0, **named}
    other = state_of(torch.nn.Linear(3, 2, bias=False))
    with pytest.raises(ValueError, match="the state is of other parameters: it has bias too"):
        other.load_state_dict(saved)
    with pytest.raises(ValueError, match="of other parameters: it lacks bias"):
        one.load_state_dict(other.state_dict())
    swapped = saved | {"names": ["bias", "weight"]}
    with pytest.raises(ValueError, match="of other parameters, in order"):
        one.load_state_dict(swapped)
    with pytest.raises(ValueError, match="it has no 'states'"):
        one.load_state_dict({"step": 1, "names": None})
    with pytest.raises(TypeError, match="step must be an int, got str"):
        one.load_state_dict(saved | {"step": "7"})
    assert (one.step, other.step) == (7, 0)
    fresh = HookState(as_schedule(cpd.Reduce("fp32")))
    fresh.load_state_dict(saved)
    assert (fresh.step, fresh.names) == (7, ["weight", "bias"])
