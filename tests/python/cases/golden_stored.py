# SPDX-License-Identifier: Apache-2.0
"""Makes the objects that stored files contain: pickled objects, a checkpoint, and the list of all
names that can be imported."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import cpd
import golden_texts
from golden import FOLDER, floats, tensor

PICKLE, CHECKPOINT, MODULES = (FOLDER / n for n in ("specs.pickle", "checkpoint.pt", "modules.pt"))
SPECS = (
    *(cpd.Format, cpd.Accumulator, cpd.Cast, cpd.Recipe, cpd.Reduce),
    cpd.Schedule,
)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, BaseException):
        return type(one) is type(other) and one.args == other.args
    return type(one) is type(other) and bool(one == other)


def specs() -> dict[str, Any]:
    """Returns the spec objects that torch.load(weights_only=True) can read."""
    import torch

    return {k: v for k, v in golden_texts.objects(torch).items() if isinstance(v, SPECS)}


def state() -> dict[str, Any]:
    return {"weight": tensor(floats((3, 4), 600)), "bias": tensor(floats((3,), 601))}


def layers() -> dict[str, Any]:
    """Constructs, by the present version, the layers and the DDP hook's state that version 0.7
    stored in the file MODULES."""
    import torch

    linear = torch.nn.Linear(4, 3)
    linear.load_state_dict(state())
    cpd.convert(linear, cpd.Recipe(sums="e4m3 kahan", activation="e4m3fn"))
    conv = torch.nn.Conv2d(2, 3, (2, 1))
    cpd.convert(conv, cpd.Recipe(sums="e6m9 chunked"))
    with torch.no_grad():
        conv.weight.copy_(tensor(floats((3, 2, 2, 1), 602)))
        conv.bias.copy_(tensor(floats((3,), 603)))  # type: ignore[union-attr]
    schedule = cpd.Schedule(cpd.Reduce("e4m3", aps=True), exempt=["*.bias"])
    return {
        "linear": linear,
        "conv": conv,
        "hook": importlib.import_module("cpd.parallel.ddp").HookState(schedule, 5),
    }


def write_pickle() -> None:
    PICKLE.write_bytes(pickle.dumps(golden_texts.objects(), protocol=4))


def write_checkpoint() -> None:
    import torch

    torch.save({"state": state(), "specs": specs()}, CHECKPOINT)


# ---- names ---------------------------------------------------------------------------------------


def names() -> dict[str, list[str]]:
    """Returns the public names of each module that has an `__all__`."""
    root = Path(cpd.__file__).parent
    found: dict[str, list[str]] = {}
    for path in sorted(root.rglob("*.py")):
        name = ".".join(("cpd", *path.relative_to(root).with_suffix("").parts))
        public = getattr(importlib.import_module(name.removesuffix(".__init__")), "__all__", None)
        if public is not None and path.name != "__main__.py":
            found[name.removesuffix(".__init__")] = sorted(public)
    return found
