# SPDX-License-Identifier: Apache-2.0
"""Training states that version 0.7 wrote, each with the results that version 0.7 computed from the
state.

A stored state consists of plain data and tensors. A case's `result` function continues the training
from a state. The file holds the state and the expected results, so a test compares with version 0.7
alone.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import cpd
from golden import floats, recorded, tensor
from golden_files import STORED

STATES = STORED / "training.pt"
MODEL = STORED / "model.pt"
SCHEDULE = "feedback qsgd bits=2"


def filled(model: Any, seed: int) -> Any:
    """Fills the model's parameters with the fixed pseudorandom values of golden.py, and returns the
    model."""
    import torch

    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(tensor(floats(tuple(parameter.shape), seed + number)))
    return model


def linear(seed: int) -> Any:
    import torch

    return filled(torch.nn.Linear(4, 3), seed)


def gradients(model: Any, seed: int) -> None:
    """Sets the parameters' gradients to the fixed pseudorandom values of golden.py."""
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = tensor(floats(tuple(parameter.shape), seed + number))


# ---- what codecs keep ----------------------------------------------------------------------------


def contributions(seed: int) -> list[list[Any]]:
    return [[tensor(floats((8,), seed + rank))] for rank in range(2)]


def states_made() -> dict[str, Any]:
    states = cpd.compress.States()
    cpd.simulate_all_reduce(contributions(810), SCHEDULE, seed=3, states=states)
    return states.state_dict()


def states_result(state: dict[str, Any]) -> list[Any]:
    states = cpd.compress.States()
    states.load_state_dict(state)
    return cpd.simulate_all_reduce(contributions(820), SCHEDULE, seed=3, step=1, states=states)


# ---- the hook of DDP -----------------------------------------------------------------------------


def hook(step: int = 0) -> Any:
    from cpd.parallel.ddp import HookState

    made = HookState(cpd.Schedule(cpd.Reduce(SCHEDULE)), step)
    made.names = ["weight", "bias"]
    return made


def hook_made() -> dict[str, Any]:
    """Returns the state of rank 1's DDP hook after one all-reduce."""
    spec = cpd.Reduce(SCHEDULE)
    states = [cpd.compress.States() for _ in range(2)]
    ranks = contributions(830)
    with cpd.comm.local(2) as group:
        group.run(lambda c: c.all_reduce(ranks[c.rank], spec, states=states[c.rank], step=0))
    made = hook(7)
    made.states = states[1]
    return made.state_dict()


def hook_result(state: dict[str, Any]) -> list[Any]:
    loaded = hook()
    loaded.load_state_dict(state)
    kept = b"".join(layer["values"] for layer in loaded.states.state_dict()["layers"])
    return [loaded.step, loaded.names, kept.hex()]


# ---- virtual nodes and outer optimizers ----------------------------------------------------------


def nodes() -> tuple[Any, Any]:
    model = linear(840)
    return model, cpd.VirtualNodes(model, 2, SCHEDULE, generators=[3, 5], seed=7)


def nodes_step(model: Any, made: Any, seed: int) -> None:
    """Takes a training step of virtual nodes with a linear loss. The gradients are the inputs
    themselves, so every machine computes the same bits."""

    def loss(micro: Any) -> Any:
        return (model.weight * micro[0]).sum() + (model.bias * micro[0, :, 0]).sum()

    made.step(loss, tensor(floats((2, 3, 4), seed)))


def nodes_made() -> dict[str, Any]:
    model, made = nodes()
    nodes_step(model, made, 850)
    return made.state_dict()


def nodes_result(state: dict[str, Any]) -> list[Any]:
    model, made = nodes()
    made.load_state_dict(state)
    generators = [host for host, _ in made.state_dict()["generators"]]
    nodes_step(model, made, 851)
    gradients = (parameter.grad for parameter in model.parameters())
    return [made.next_step, *gradients, *generators]


def outer() -> tuple[list[Any], Any]:
    import cpd.optim

    models = [linear(860), linear(860)]
    spec = cpd.Reduce("e4m3", aps=True)
    return models, cpd.optim.DiLoCo(models, None, spec, 2, outer_lr=0.5, momentum=0.5)


def outer_steps(models: list[Any], made: Any, steps: int) -> None:
    for step in range(steps):
        for number, model in enumerate(models):
            filled(model, 870 + 10 * step + number)
        made.step()


def outer_made() -> dict[str, Any]:
    models, made = outer()
    outer_steps(models, made, 2)
    return made.state_dict()


def outer_result(state: dict[str, Any]) -> list[Any]:
    models, made = outer()
    made.load_state_dict(state)
    outer_steps(models, made, 2)
    return [made.steps, *models[0].parameters()]


# ---- optimizers ----------------------------------------------------------------------------------


def low_precision(model: Any) -> Any:
    import torch

    inner = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    formats = {"weight": "bf16", "update": "kahan", "momentum": "bf16", "gradient": "bf16"}
    return cpd.optim.LowPrecision(inner, **formats, seed=3)


def stochastic(model: Any) -> Any:
    import torch

    inner = torch.optim.SGD(model.parameters(), lr=0.125, momentum=0.5)
    return cpd.optim.LowPrecision(inner, weight="e6m9", update="stochastic", master="fp32", seed=3)


def low_precision_adamw(model: Any) -> Any:
    import torch

    inner = torch.optim.AdamW(model.parameters(), lr=0.125)
    return cpd.optim.LowPrecision(inner, weight="bf16", momentum="bf16", second_moment="fp16")


ADAM = (low_precision_adamw,)
"""Optimizers whose next step may round differently in another build of torch."""
GONE = {"kahan_sgd": low_precision, "kahan_adamw": low_precision_adamw}
"""Optimizers of version 0.7 that no longer exist: the name of the stored state, and the optimizer
that replaces it."""


def optimizer_step(optimizer: Any, model: Any, seed: int) -> None:
    gradients(model, seed)
    optimizer.step()


def optimizer_made(make: Callable[[Any], Any]) -> dict[str, Any]:
    model = linear(900)
    optimizer = make(model)
    for step in range(2):
        optimizer_step(optimizer, model, 910 + 2 * step)
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}


def optimizer_result(make: Callable[[Any], Any], state: dict[str, Any]) -> list[Any]:
    model = linear(900)
    optimizer = make(model)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    loaded = [
        v for _, kept in sorted(optimizer.state_dict()["state"].items()) for v in kept.values()
    ]
    if make in ADAM:
        return loaded
    optimizer_step(optimizer, model, 930)
    return [*loaded, *model.parameters()]


def scaler_made() -> dict[str, Any]:
    scaler = cpd.optim.LossScaler()
    scaler.load_state_dict({"scale": 1024.0, "steps": 7})
    return scaler.state_dict()


def scaler_result(state: dict[str, Any]) -> list[Any]:
    scaler = cpd.optim.LossScaler()
    scaler.load_state_dict(state)
    return [scaler.get_scale(), scaler.state_dict()["steps"]]


# ---- converted models ----------------------------------------------------------------------------

RECIPES = {
    "te-delayed": "e6m9 kahan",
    "mxfp4-rht-sr": "e6m9 kahan",
    "nvfp4": "e6m9 kahan rounding=stochastic",
}
"""Recipes of the stored models, each with an accumulator. With an accumulator, the products have
the same bits on every machine."""


def converted(recipe: str, sums: str) -> Any:
    import torch

    layers = (torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32))
    model = filled(torch.nn.Sequential(*layers), 950)
    cpd.convert(model, recipe, sums=sums)
    return model


def model_step(model: Any, seed: int) -> list[Any]:
    """Returns the output and the gradients of a training step."""
    model.zero_grad()
    y = model(tensor(floats((32, 32), seed)))
    y.backward(tensor(floats((32, 32), seed + 100)))
    return [y, *(parameter.grad for parameter in model.parameters())]


def model_made(recipe: str, sums: str) -> dict[str, Any]:
    """Returns a model's state after two steps. By then the histories of scales and the model's step
    counter have changed."""
    model = converted(recipe, sums)
    for step in range(2):
        model_step(model, 960 + step)
    return model.state_dict()


def model_result(recipe: str, sums: str, state: dict[str, Any]) -> list[Any]:
    model = converted(recipe, sums)
    model.load_state_dict(state)
    return model_step(model, 970)


Case = tuple[Callable[[], Any], Callable[[Any], list[Any]]]


def cases() -> dict[str, Case]:
    """Returns two functions for each stored training: the first makes the state of the training;
    the second continues the training from a state and returns the results."""
    found: dict[str, Case] = {
        "states": (states_made, states_result),
        "hook": (hook_made, hook_result),
        "nodes": (nodes_made, nodes_result),
        "diloco": (outer_made, outer_result),
        "scaler": (scaler_made, scaler_result),
    }
    for make in (low_precision, stochastic, *ADAM):
        found[make.__name__] = (
            lambda make=make: optimizer_made(make),
            lambda state, make=make: optimizer_result(make, state),
        )
    for recipe, sums in RECIPES.items():
        found[recipe] = (
            lambda recipe=recipe, sums=sums: model_made(recipe, sums),
            lambda state, recipe=recipe, sums=sums: model_result(recipe, sums, state),
        )
    return found


def copied(state: Any) -> Any:
    """Returns a copy of the state, saved and loaded again as a file holds it. Training does not
    change the copy."""
    import torch

    held = io.BytesIO()
    torch.save(state, held)
    held.seek(0)
    return torch.load(held, weights_only=True)


def recorded_results(values: list[Any]) -> list[Any]:
    return [recorded(x.detach() if hasattr(x, "detach") else x) for x in values]


def recorded_case(case: Case) -> dict[str, Any]:
    made, result = case
    state = copied(made())
    return {"state": state, "result": recorded_results(result(copied(state)))}


def write_states() -> None:
    import torch

    torch.save({name: recorded_case(case) for name, case in cases().items()}, STATES)


def whole() -> Any:
    return converted("mxfp8-hybrid", "e6m9 kahan")


def write_model() -> None:
    """Pickles a whole converted model, together with the result of a training step."""
    import torch

    model = whole()
    model_step(model, 980)
    held = io.BytesIO()
    torch.save(model, held)
    torch.save({"model": held.getvalue(), "result": whole_result(model)}, MODEL)


def whole_result(model: Any) -> list[Any]:
    return recorded_results(model_step(model, 981))


def writers() -> dict[str, Callable[[], None]]:
    """Maps each file's path in the folder of golden files to the function that writes the file."""
    return {"stored/training.pt": write_states, "stored/model.pt": write_model}
