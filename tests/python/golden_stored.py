# SPDX-License-Identifier: Apache-2.0
"""What is stored besides results: pickled objects, a checkpoint, and every name that can be
imported."""

from __future__ import annotations

import ast
import importlib
import pickle
from pathlib import Path
from types import ModuleType
from typing import Any

import cpd
import golden_texts
from golden import FOLDER, floats, tensor

PICKLE, CHECKPOINT, MODULES = (FOLDER / n for n in ("specs.pickle", "checkpoint.pt", "modules.pt"))
SPECS = (
    *(cpd.Format, cpd.Accumulator, cpd.BlockFma, cpd.CastSpec, cpd.Recipe, cpd.ReduceSpec),
    cpd.Schedule,
)


FORMER = {
    'cpd.Accumulator("fp16", preset="h100-fp16")': "fp16 block_fma a=fp16 b=fp16 block=16 "
    "fraction_bits=25 min_exponent=-133 sum=fp16 sum_rounding=nearest_even"
}
"""Accumulators that were stored before an expression's meaning changed: presets with fp16 results
have a least exponent of their own since."""


def stored(expression: str, value: Any) -> Any:
    """What the stored object must be."""
    return cpd.Accumulator.parse(FORMER[expression]) if expression in FORMER else value


def same(one: Any, other: Any) -> bool:
    if isinstance(one, BaseException):
        return type(one) is type(other) and one.args == other.args
    return type(one) is type(other) and bool(one == other)


def specs() -> dict[str, Any]:
    """What torch.load(weights_only=True) reads."""
    import torch

    return {k: v for k, v in golden_texts.objects(torch).items() if isinstance(v, SPECS)}


def state() -> dict[str, Any]:
    return {"weight": tensor(floats((3, 4), 600)), "bias": tensor(floats((3,), 601))}


def layers() -> dict[str, Any]:
    """Layers and the hook's state, whole."""
    import torch

    linear = cpd.nn.Linear(4, 3, recipe=cpd.Recipe("e4m3 kahan", activation="e4m3fn"), layer=2)
    linear.load_state_dict(state())
    conv = cpd.nn.Conv2d(2, 3, (2, 1), recipe="e6m9 chunked")
    with torch.no_grad():
        conv.weight.copy_(tensor(floats((3, 2, 2, 1), 602)))
        conv.bias.copy_(tensor(floats((3,), 603)))  # type: ignore[union-attr]
    schedule = cpd.Schedule(cpd.ReduceSpec("e4m3", aps=True), exempt=["*.bias"])
    return {
        "linear": linear,
        "conv": conv,
        "hook": importlib.import_module("cpd.ddp").HookState(schedule, 5),
    }


def write_pickle() -> None:
    PICKLE.write_bytes(pickle.dumps(golden_texts.objects(), protocol=4))


def write_checkpoint() -> None:
    import torch

    torch.save({"state": state(), "specs": specs()}, CHECKPOINT)


def write_modules() -> None:
    import torch

    torch.save(layers(), MODULES)


# ---- names ---------------------------------------------------------------------------------------


def names() -> dict[str, Any]:
    """Of each module: the public names that it defines or gives as its own, and those of the
    package that it has by importing them, with where from."""
    root = Path(cpd.__file__).parent
    found: dict[str, Any] = {}
    for path in sorted(root.rglob("*.py")):
        parts = ("cpd", *path.relative_to(root).with_suffix("").parts)
        if parts[-1] != "__main__":
            name = ".".join(parts).removesuffix(".__init__")
            found[name] = _names_of(importlib.import_module(name), ast.parse(path.read_text()))
    return found


def _names_of(module: ModuleType, tree: ast.Module) -> dict[str, Any]:
    defined: set[str] = set(getattr(module, "__all__", ()))
    imported: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            defined.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            defined |= {x.id for t in targets for x in ast.walk(t) if isinstance(x, ast.Name)}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cpd":
            imported |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    have = {
        name
        for name, value in vars(module).items()
        if name[0] != "_" and not isinstance(value, ModuleType)
    }
    return {
        "defined": sorted(defined & have),
        "imported": {n: home for n, home in sorted(imported.items()) if n in have},
    }
