# SPDX-License-Identifier: Apache-2.0
"""Tests workers that synchronize their weights after a number of steps (DiLoCo and averages).

Over every transport, the weights must have the bits of a plain loop, `by_hand`. The file
also tests checkpoints and errors.
"""

from __future__ import annotations

import copy
import json

import pytest

torch = pytest.importorskip("torch")

import cpd  # noqa: E402
import outer_cases  # noqa: E402
import spawn  # noqa: E402
from outer_cases import CASES, FOUR_BITS, PERIOD, STEPS, by_hand, model_of, run  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::cpd.PrecisionWarning")
WORLD = 3
NAMES = ["0.weight", "0.bias", "3.weight", "3.bias"]


@pytest.fixture(scope="module")
def virtual() -> dict[str, str]:
    """Returns the hashes of the weights of workers in this process, by case."""
    found = {name: run(case, range(WORLD), None) for name, case in CASES.items()}
    for name, hashes in found.items():
        assert (len(set(hashes)) == 1) == ("fragments" not in CASES[name]), name
    return {name: json.dumps(hashes) for name, hashes in found.items()}


def test_64_workers_move_in_four_bits():
    """If 64 workers send outer gradients in four bits and the sums are in fp32, weights move.

    The guide states this. Sums in fp32 let each contribution use the whole range of the four-bit
    format.
    """
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 2)
    for wire in ("e3m0", "e2m1"):
        workers = [copy.deepcopy(model) for _ in range(64)]
        spec = cpd.Reduce(wire, accumulator="fp32", aps=True, result="fp32")
        outer = cpd.optim.DiLoCo(workers, None, spec, period=1)
        with torch.no_grad():
            for worker in workers:
                worker.weight += 0.1 + 0.05 * torch.randn(2, 8)
        mean = sum(worker.weight.detach() for worker in workers) / 64
        outer.step()
        moved = workers[0].weight.detach() - model.weight.detach()
        assert torch.equal(workers[0].weight, workers[63].weight)
        assert torch.dot(moved.flatten(), (mean - model.weight.detach()).flatten()) > 0
        assert moved.abs().mean() > 0.03


# ---- the same bits -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_by_hand(virtual, name):
    assert virtual[name] == json.dumps(by_hand(CASES[name], WORLD))


@pytest.mark.parametrize("transport", ["gloo", pytest.param("mpi", marks=pytest.mark.exhaustive)])
def test_ranks(virtual, transport):
    ranks = [one.result for one in spawn.spawn_ranks(transport, WORLD, "outer_cases:rank_hashes")]
    for name in CASES:
        assert json.dumps([rank[name] for rank in ranks]) == virtual[name], name


def test_threads(virtual):
    """Workers that are threads of this process have the weights of virtual workers.

    The models are made one after another, because threads share torch's generator.
    """
    with cpd.comm.local(WORLD) as group:
        made = {}
        for name in ("four bits", "schedule", "fragments", "weights"):
            models = [model_of(CASES[name]) for _ in range(WORLD)]
            optimizers = [outer_cases.optimizer_of(model) for model in models]

            def work(comm, name=name, models=models, optimizers=optimizers):
                model, optimizer = models[comm.rank], optimizers[comm.rank]
                outer = outer_cases.outer_of(CASES[name], model, comm)
                for step in range(STEPS):
                    outer_cases.train(model, optimizer, comm.rank, step)
                    outer.step()
                return outer_cases.state_hash(model)

            made[name] = json.dumps(group.run(work))
    assert made == {name: virtual[name] for name in made}


@pytest.mark.parametrize("world", [1, 2, 8])
@pytest.mark.parametrize("name", ["four bits", "fragments", "weights"])
def test_numbers_of_workers(name, world):
    assert run(CASES[name], range(world), None) == by_hand(CASES[name], world)


@pytest.mark.parametrize("saved_after", [1, 3, 5])
@pytest.mark.parametrize(
    "name", ["four bits", "stochastic", "fragments", "bfloat16", "one_bit", "top_k", "weights"]
)
def test_saved_and_loaded(virtual, name, saved_after):
    assert json.dumps(run(CASES[name], range(WORLD), None, saved_after)) == virtual[name]


def test_one_step_of_torchs_own():
    """With one worker in fp32, an outer step equals the step of torch's optimizer."""
    model, outer_model = model_of({}), model_of({})
    outer = cpd.optim.DiLoCo([model], None, "fp32", 1)
    parameters = [p for p in outer_model.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
    draw = torch.Generator().manual_seed(1)
    for _ in range(4):
        for p, q in zip(model.parameters(), outer_model.parameters(), strict=True):
            if p.requires_grad:
                q.grad = torch.randn(p.shape, generator=draw) * 0.01
                p.data.sub_(q.grad)
        assert outer.step()
        sgd.step()
        for p, q in zip(model.parameters(), outer_model.parameters(), strict=True):
            torch.testing.assert_close(p, q)


# ---- when they meet, and what is told ------------------------------------------------------------


def two_workers(**options):
    models = [model_of({}) for _ in range(2)]
    return models, cpd.optim.DiLoCo(models, None, FOUR_BITS, 4, **options)


def test_layers_meet_by_fragments():
    models, outer = two_workers(fragments=2)
    met = []
    for _ in range(9):
        for model in models:
            for parameter in model.parameters():
                parameter.data.add_(torch.randn_like(parameter))
        outer.report = {}
        met.append((outer.step(), sorted(outer.report)))
    # The layers have 54, 3, 240 and 5 values. The two fragments halve the list of all 302 values. A
    # layer belongs to the half that contains the layer's middle: the first two to the first.
    nothing, first, second = (False, []), (True, sorted(NAMES[:2])), (True, sorted(NAMES[2:]))
    assert met == [nothing, first, nothing, second] * 2 + [nothing]
    assert not torch.equal(models[0][3].bias, models[1][3].bias)
    assert not torch.equal(models[0][4].weight, models[1][4].weight)


def test_all_workers_go_on_from_the_average():
    models, outer = two_workers(outer_lr=1, momentum=0)
    for model, value in zip(models, (1.0, 4.0), strict=True):
        for parameter in model.parameters():
            parameter.data.sub_(value)
    begun = [p.clone() for p in model_of({}).parameters()]
    outer.load_state_dict(outer.state_dict() | {"steps": 3})
    assert outer.step()
    for one, other, start in zip(*(m.parameters() for m in models), begun, strict=True):
        if one.requires_grad:
            assert torch.equal(one, other)
            assert torch.equal(one, start - 2.5)
    assert list(outer.report) == NAMES
    assert repr(outer) == "DiLoCo(2 workers, 4 tensors of 302 values, every 4 steps)"


def test_the_outer_rate_may_change():
    models, outer = two_workers()
    before = copy.deepcopy(models[0].state_dict())
    outer.outer_lr = 0.0
    for model in models:
        model[3].weight.data.add_(1)
    outer.load_state_dict(outer.state_dict() | {"steps": 3})
    outer.step()
    assert torch.equal(models[0][3].weight, before["3.weight"])
    assert float(outer.state_dict()["momentum"]["3.weight"].abs().max()) > 0.5


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("weights", [False, True])
def test_values_that_are_not_finite(value, weights):
    case = {"spec": FOUR_BITS, "weights": weights}
    models = [model_of(case) for _ in range(2)]
    outer = outer_cases.outer_of(case, models, None)
    models[1][3].weight.data[2, 7:9] = value
    held = copy.deepcopy((models[0].state_dict(), models[1].state_dict()))
    for step in range(1, PERIOD + 2):
        if step < PERIOD:
            assert not outer.step()
            continue
        state = repr(outer.state_dict())
        with pytest.raises(FloatingPointError, match=r"2 values of tensor 3.weight are not finite"):
            outer.step()
        assert repr(outer.state_dict()) == state
        assert repr((models[0].state_dict(), models[1].state_dict())) == repr(held)
    models[1][3].weight.data[2, 7:9] = 0.5
    assert outer.step()


def test_what_codecs_keep():
    """A failed outer step (an average of the workers' weights) restores the codecs' states.

    `reset` deletes the state of the parameter that it names.
    """
    models = [model_of({}) for _ in range(2)]
    outer = cpd.optim.DiLoCo(models, None, cpd.Reduce("one_bit"), 1)
    models[0][0].bias.data.add_(torch.tensor([1.0, 2.0, 4.0]))
    assert outer.step()
    kept = outer.state_dict()["states"]
    assert {layer["number"] for layer in kept["layers"]} == {0, 1, 2, 3}
    models[0][0].bias.data[0] = float("nan")
    with pytest.raises(FloatingPointError, match=r"1 values of tensor 0.bias"):
        outer.step()
    assert outer.state_dict()["states"] == kept
    outer.reset("0.bias")
    left = {layer["number"] for layer in outer.state_dict()["states"]["layers"]}
    assert left == {0, 2, 3}
    outer.reset()
    assert outer.state_dict()["states"]["layers"] == []
    with pytest.raises(ValueError, match=r"there is no tensor '0.bais'"):
        outer.reset("0.bais")


def test_averages_that_overflow():
    models = [model_of({}) for _ in range(2)]
    outer = cpd.optim.DiLoCo(models, None, "e4m3", 1)
    models[1][3].bias.data[0] -= 1000
    with pytest.raises(
        FloatingPointError,
        match=r"average of tensor 3.bias overflowed: aps=True.*wider range, holds it; nothing was",
    ):
        outer.step()


MODEL = model_of({})


def nan_on_one_rank(comm):
    model = copy.deepcopy(MODEL)  # torch's generator is one for all threads
    outer = cpd.optim.DiLoCo(model, comm, FOUR_BITS, 1)
    if comm.rank == 1:
        model[0].bias.data[0] = float("nan")
    try:
        outer.step()
    except FloatingPointError as error:
        return str(error)


def other_options(comm):
    try:
        cpd.optim.DiLoCo(copy.deepcopy(MODEL), comm, "bf16", 3, outer_lr=0.7 + comm.rank // 2)
    except ValueError as error:
        return str(error)


def test_every_rank_tells():
    with cpd.comm.local(3) as group:
        for work, text in (
            (nan_on_one_rank, "1 values of tensor 0.bias are not finite, of all 3 workers"),
            (other_options, "worker 2 begins with other parameters or options than worker 0"),
        ):
            told = group.run(work)
            assert all(text in one for one in told), told


def test_workers_that_begin_differently():
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)]
    with pytest.raises(ValueError, match="worker 1 begins with other parameters"):
        cpd.optim.DiLoCo(models, None, "bf16", 3)
    named = [torch.nn.Sequential(models[0]), models[0]]
    with pytest.raises(ValueError, match="worker 1 begins with other parameters"):
        cpd.optim.WeightAverage(named, None, "bf16", 3)


LINEAR = torch.nn.Linear(2, 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"model": LINEAR}, TypeError, "model must be a list of all workers' models, got Linear"),
        ({"model": 3}, TypeError, "got int"),
        ({"model": []}, ValueError, "at least one worker"),
        ({"model": [3]}, TypeError, "model must be a torch.nn.Module, got int"),
        ({"model": [LINEAR, LINEAR]}, ValueError, "each worker needs a model of its own"),
        ({"model": [torch.nn.ReLU()]}, ValueError, "no parameters that require a gradient"),
        ({"model": [torch.nn.Linear(1, 1).double()]}, TypeError, "got float64"),
        ({"comm": "gloo"}, TypeError, "comm must be a cpd.comm.Communicator or None, got str"),
        ({"spec": 4}, TypeError, "spec: a format must be"),
        ({"spec": "e9m3"}, ValueError, "exp must be 1…8, got 9"),
        ({"spec": cpd.Reduce("bf16", group_size=2)}, ValueError, "group_size"),
        (
            {"spec": cpd.Schedule(FOUR_BITS, exempt=["head"])},
            ValueError,
            "'head' matches no",
        ),
        ({"period": 0}, ValueError, "period must be at least 1, got 0"),
        ({"period": 1.5}, TypeError, "1.5|float"),
        ({"fragments": 0}, ValueError, "fragments must be at least 1, got 0"),
        ({"fragments": 3}, ValueError, "fragments must be at most the number of tensors, 2"),
        ({"outer_lr": -1}, ValueError, "outer_lr must be finite and at least 0, got -1"),
        ({"outer_lr": "1"}, TypeError, "outer_lr must be a number, got str"),
        ({"momentum": float("nan")}, ValueError, "momentum must be finite"),
        ({"nesterov": 1}, TypeError, "nesterov"),
    ],
)
def test_arguments(options, error, message):
    given = {"model": [LINEAR], "comm": None, "spec": "bf16", "period": 3} | options
    with pytest.raises(error, match=message):
        cpd.optim.DiLoCo(**given)


def test_states_that_do_not_fit():
    _, outer = two_workers()
    state = outer.state_dict()
    with pytest.raises(ValueError, match="the state has 3 workers, not 2"):
        outer.load_state_dict(state | {"world_size": 3})
    with pytest.raises(
        ValueError, match="the state's momentum is of other tensors than the model's"
    ):
        outer.load_state_dict(state | {"momentum": {}})
    models, _ = two_workers()
    changed = cpd.optim.DiLoCo(models, None, "bf16", 1)
    models[1][3].bias.requires_grad_(False)
    with pytest.raises(RuntimeError, match=r"gradient are others than when its DiLoCo was made"):
        changed.step()


# ---- bits by the gradient ------------------------------------------------------------------------


def pair(spec: str = "uniform bits=gradient"):
    models = [torch.nn.Linear(3, 2) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    return models, cpd.optim.WeightAverage(models, None, cpd.Reduce(spec), period=1)


def test_gradients_must_be_known():
    models, outer = pair()
    before = copy.deepcopy(models[0].state_dict())
    with pytest.raises(ValueError, match="of the gradient of tensor 0 on rank 0: set it"):
        outer.step()
    assert outer.steps == 0
    for name, value in models[0].state_dict().items():
        assert torch.equal(value, before[name])
    for number in range(2):
        outer.states.set_gradient(number, 1.0)
    assert outer.step()


def test_gradients_that_are_not_finite():
    models, outer = pair()
    for model in models:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan)
    with pytest.raises(ValueError, match="finite and not negative, got nan"):
        outer.step()

    spec = cpd.Reduce("uniform bits=gradient")

    def work(comm):
        model = copy.deepcopy(models[0])
        outer = cpd.optim.WeightAverage(model, comm, spec, period=1)
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, torch.nan if comm.rank else 1.0)
        try:
            outer.step()
        except (ValueError, cpd.comm.Mismatch) as error:
            return str(error)
        return ""

    with cpd.comm.local(2) as group:
        assert all("finite and not negative, got nan" in text for text in group.run(work))
