# SPDX-License-Identifier: Apache-2.0
"""Training runs of workers that average their weights every N steps (`cpd.optim`), and the same
runs computed by hand."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import cpd
from cpd.comm import Communicator
from cpd.optim import DiLoCo, WeightAverage
from rationals import Fraction

STEPS = 9
PERIOD = 3
FOUR_BITS = cpd.Reduce("e3m0", accumulator="fp32", aps=True, result="fp32")

Case = dict[str, Any]
CASES: dict[str, Case] = {
    "four bits": {"spec": FOUR_BITS},
    "text": {"spec": "e3m0 aps accumulator=fp32 result=fp32 group_size=1"},
    "blocks": {"spec": cpd.Reduce("mxfp4", result="bf16")},
    "stochastic": {
        "spec": cpd.Reduce(
            "e5m2", accumulator="e5m2 kahan rounding=stochastic", rounding="stochastic"
        )
    },
    "ring": {"spec": cpd.Reduce("e4m3", aps=True, order="ring", exchange="ring")},
    "schedule": {"spec": cpd.Schedule(FOUR_BITS, exempt=["*.bias"], first_steps=1)},
    "fragments": {"spec": cpd.Reduce("bf16"), "fragments": 2},
    "more fragments than steps": {"spec": cpd.Reduce("bf16"), "fragments": 4},
    "momentum": {
        "spec": cpd.Reduce("fp16"),
        "outer_lr": 0.3,
        "momentum": 0.7,
        "nesterov": False,
    },
    "average": {"spec": FOUR_BITS, "outer_lr": 1.0, "momentum": 0},
    "bfloat16": {"spec": FOUR_BITS, "dtype": torch.bfloat16},
    "qsgd": {"spec": cpd.Reduce("qsgd bits=4 bucket=64")},
    "one_bit": {"spec": cpd.Reduce("one_bit"), "fragments": 2},
    "top_k": {"spec": cpd.Reduce("top_k 0.1 qsgd bits=4", exchange="gather")},
    "feedback": {"spec": cpd.Schedule(cpd.Reduce("feedback int4"), exempt=["*.bias"])},
    "small layers": {"spec": cpd.Schedule(cpd.Reduce("terngrad"), min_size=50, first_steps=1)},
    "weights": {"spec": cpd.Reduce("int8 block=64", order="tree"), "weights": True},
    "weights, uniform": {"spec": cpd.Reduce("uniform"), "weights": True},
    "weights, gradient": {
        "spec": cpd.Reduce("uniform bits=gradient c0=1e-6 c1=14"),
        "weights": True,
    },
    "weights, bf16": {"spec": "bf16", "weights": True, "dtype": torch.bfloat16},
}


def model_of(case: Case) -> nn.Module:
    """Returns the model that each worker trains: a convolution in channels-last memory format, a
    linear layer, and a frozen linear layer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5))
    model = model.to(memory_format=torch.channels_last)
    model.append(nn.Linear(5, 5).requires_grad_(False))
    return model.to(case.get("dtype", torch.float32))


def state_hash(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for name, value in model.state_dict().items():
        plain = value.contiguous().view(-1).view(torch.uint8)
        digest.update(name.encode() + plain.numpy().tobytes())
    return digest.hexdigest()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.AdamW(parameters, lr=0.01, foreach=False)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, worker: int, step: int) -> None:
    """Takes one inner step of a worker, on the worker's own batch."""
    generator = torch.Generator().manual_seed(1000 * worker + step)
    images = torch.randn(4, 2, 6, 6, generator=generator).to(next(model.parameters()).dtype)
    labels = torch.randint(5, (4,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images).float(), labels).backward()
    optimizer.step()


def outer_of(case: Case, model: Any, comm: Communicator | None) -> DiLoCo | WeightAverage:
    if case.get("weights"):
        return WeightAverage(model, comm, case["spec"], PERIOD)
    names = ("outer_lr", "momentum", "nesterov", "fragments")
    options = {name: case[name] for name in names if name in case}
    return DiLoCo(model, comm, case["spec"], PERIOD, **options)


def copy_of(state: Any) -> Any:
    """Returns a copy of a training's state, saved by torch.save and read by torch.load with its
    default options."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file)


def run(
    case: Case, workers: Sequence[int], comm: Communicator | None, saved_after: int | None = None
) -> list[str]:
    """Trains the workers with the numbers `workers` in this process. `comm` connects them with the
    workers of other processes; None if there are none. Returns the hash of each worker's weights.
    After step `saved_after`, all state is saved and loaded into new objects."""

    def make() -> Any:
        models = [model_of(case) for _ in workers]
        outer = outer_of(case, models if comm is None else models[0], comm)
        return models, [optimizer_of(model) for model in models], outer

    models, optimizers, outer = make()
    for step in range(STEPS):
        for worker, model, optimizer in zip(workers, models, optimizers, strict=True):
            train(model, optimizer, worker, step)
        outer.step()
        if step + 1 == saved_after:
            state = copy_of([one.state_dict() for one in (*models, *optimizers, outer)])
            models, optimizers, outer = make()
            for one, held in zip((*models, *optimizers, outer), state, strict=True):
                one.load_state_dict(held)
    return [state_hash(model) for model in models]


def rank_hashes(comm: Communicator) -> dict[str, str]:
    """Trains every case of CASES over ranks and returns, by case, the hash of this rank's weights.
    spawn.py calls this function on each rank."""
    torch.set_num_threads(1)
    return {name: run(case, [comm.rank], comm)[0] for name, case in CASES.items()}


# ---- by hand -------------------------------------------------------------------------------------


def by_hand(case: Case, world: int) -> list[str]:
    """Trains a case of CASES without `cpd.optim`. NumPy averages the workers layer by layer, with
    the models, the starting weights and the momentum as separate arrays."""
    spec = case["spec"]
    schedule = cpd.Reduce(spec) if isinstance(spec, str) else spec
    if not isinstance(schedule, cpd.Schedule):
        schedule = cpd.Schedule(schedule)
    models = [model_of(case) for _ in range(world)]
    optimizers = [optimizer_of(model) for model in models]
    named = [{n: p for n, p in m.named_parameters() if p.requires_grad} for m in models]
    names = list(named[0])
    runs = _runs([p.numel() for p in named[0].values()], case.get("fragments", 1))
    start = {n: _values(p) for n, p in named[0].items()}
    velocity = {n: np.zeros_like(x) for n, x in start.items()}
    states = cpd.compress.States()
    lr, mu = np.float32(case.get("outer_lr", 0.7)), np.float32(case.get("momentum", 0.9))
    for step in range(1, STEPS + 1):
        for worker in range(world):
            train(models[worker], optimizers[worker], worker, step - 1)
        for run, numbers in enumerate(runs):
            if (step - ((run + 1) * PERIOD // len(runs))) % PERIOD != 0:
                continue
            for number in numbers:
                name = names[number]
                local = [_values(named[worker][name]) for worker in range(world)]
                given = local if case.get("weights") else [start[name] - x for x in local]
                rule = schedule.spec_of(name, (step - 1) // PERIOD, local[0].size)
                rule = rule.replace(average=True)
                if rule.format is None and rule.codec._needs_gradient:
                    for worker in range(world):
                        gradient = np.float64(_values(named[worker][name].grad))
                        rms = np.sqrt(np.mean(gradient**2))
                        states.set_gradient(number, float(rms), rank=worker)
                (mean,) = cpd.simulate_all_reduce(
                    [[x] for x in given],
                    rule,
                    step=(step - 1) // PERIOD,
                    numbers=[number],
                    states=states,
                )
                if case.get("weights"):
                    start[name] = mean
                else:
                    velocity[name] = velocity[name] * mu + mean
                    ahead = mean + velocity[name] * mu
                    taken = ahead if case.get("nesterov", True) else velocity[name]
                    start[name] = start[name] - taken * lr
                assert start[name].dtype == np.float32
                with torch.no_grad():
                    for worker in range(world):
                        named[worker][name].copy_(torch.from_numpy(start[name]))
    return [state_hash(model) for model in models]


def _values(parameter: torch.Tensor) -> Any:
    return parameter.detach().float().numpy().copy(order="C")


def _runs(sizes: list[int], count: int) -> list[list[int]]:
    """Splits layers into `count` fragments of about equal size. A layer belongs to the fragment in
    which the middle of the layer lies, in exact fractions."""
    found: list[list[int]] = [[] for _ in range(count)]
    for number, size in enumerate(sizes):
        middle = Fraction(sum(sizes[:number]) * 2 + size, 2 * sum(sizes))
        found[min(count - 1, int(middle * count))].append(number)
    return found
