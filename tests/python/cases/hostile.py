# SPDX-License-Identifier: Apache-2.0
"""Calls every public function and class of the package with wrong values, one argument at a
time."""

from __future__ import annotations

import importlib
import inspect
import math
import re
import traceback
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import cpd
import cpd.comm
import cpd.compress
import cpd.functional
import cpd.nn
import cpd.optim
import cpd.study
from cpd._lazy import later
from cpd.parallel.ddp import HookState

MODULES = (
    *("cpd", "cpd.nn", "cpd.functional", "cpd.optim", "cpd.comm", "cpd.compress"),
    *("cpd.parallel.ddp", "cpd.parallel.fsdp", "cpd.study", "cpd.hardware"),
    *("cpd.compat.cpd2020", "cpd.compat.qpytorch"),
    "cpd.compat.transformer_engine",
)


# ---- wrong things --------------------------------------------------------------------------------


class Refusing:
    """An object that raises TypeError whenever it is used as a number or a sequence."""

    def __index__(self) -> int:
        raise TypeError("no index")

    def __len__(self) -> int:
        raise TypeError("no length")


class Text(str):
    """An instance of a subclass of str."""

    __slots__ = ()


WRONG: dict[str, Callable[[], Any]] = {
    "None": lambda: None,
    "True": lambda: True,
    "-1": lambda: -1,
    "0": lambda: 0,
    "3": lambda: 3,
    "2**31": lambda: 2**31,
    "2**63": lambda: 2**63,
    "2**64": lambda: 2**64,
    "-10**30": lambda: -(10**30),
    "1.5": lambda: 1.5,
    "nan": lambda: math.nan,
    "-inf": lambda: -math.inf,
    "1j": lambda: 1j,
    "empty text": lambda: "",
    "ab": lambda: "ab",
    "e4m3": lambda: "e4m3",
    "subclass of str": lambda: Text("e99m99"),
    "lone surrogate": lambda: "\ud800",
    "zero byte": lambda: "a\0b",
    "long text": lambda: "feedback " * 2000,
    "bytes": lambda: b"\xff\xfe\x00",
    "bytearray": lambda: bytearray(80),
    "[]": list,
    "[[1], 'a']": lambda: [[1], "a"],
    "[-1]": lambda: [-1],
    "()": lambda: (),
    "(2**40, 2**40)": lambda: (2**40, 2**40),
    "{}": dict,
    "{'a': 1}": lambda: {"a": 1},
    "{3: [None]}": lambda: {3: [None]},
    "set": lambda: {1, 2},
    "object": object,
    "refusing": Refusing,
    "a class": lambda: int,
    "a function": lambda: math.sqrt,
    "a generator": lambda: (i for i in range(3)),
    "fraction": lambda: Fraction(1, 3),
    "path": lambda: Path("no such folder/no such file.npz"),
    "array of no dimensions": lambda: np.array(3),
    "empty array": lambda: np.zeros(0, np.float32),
    "objects": lambda: np.full((2, 2), None),
    "int8": lambda: np.ones(3, np.int8),
    "complex tensor": lambda: torch.zeros(2, dtype=torch.complex64),
    "empty tensor": lambda: torch.zeros(0),
    "int64 tensor": lambda: torch.tensor([1, 2]),
    "3 x 5": lambda: torch.zeros(3, 5),
    "meta": lambda: torch.zeros(4, 4, device="meta"),
    "sparse": lambda: torch.eye(4).to_sparse(),
    "module": lambda: nn.Linear(2, 2),
    "format": lambda: cpd.Format("e5m2"),
    "recipe": lambda: cpd.Recipe(sums="e4m3"),
    "spec": lambda: cpd.Reduce("e4m3"),
}


# ---- right ones, by the parameter's name ---------------------------------------------------------


def square() -> torch.Tensor:
    return torch.eye(4)


def model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))


def optimizer() -> torch.optim.Optimizer:
    weight = nn.Parameter(torch.ones(4))
    weight.grad = torch.ones(4)
    return torch.optim.SGD([weight], lr=0.1, momentum=0.9)


def parameters() -> list[nn.Parameter]:
    return list(optimizer().param_groups[0]["params"])


def spec() -> Any:
    return cpd.Reduce("e4m3")


RIGHT: dict[str, Callable[[], Any]] = {
    **dict.fromkeys(("x", "y", "z", "a", "b", "input", "query", "key", "value"), square),
    **dict.fromkeys(("f", "format", "operand", "result"), lambda: "e4m3"),
    **dict.fromkeys(("acc", "accumulator", "forward", "recipe"), lambda: "e4m3"),
    **dict.fromkeys(("given", "text", "name"), lambda: "e4m3"),
    **dict.fromkeys(("exp", "wl"), lambda: 4),
    **dict.fromkeys(("man", "fl", "k", "terms", "layer", "number"), lambda: 3),
    **dict.fromkeys(("in_features", "out_features", "in_channels", "out_channels"), lambda: 4),
    **dict.fromkeys(("world", "world_size", "size", "nodes"), lambda: 2),
    **dict.fromkeys(("step", "rank", "root", "seed", "stream"), lambda: 0),
    **dict.fromkeys(("spec", "schedule"), spec),
    **dict.fromkeys(("layers", "per_rank"), lambda: [[torch.ones(4)], [torch.ones(4)]]),
    **dict.fromkeys(("optimizer", "optim"), optimizer),
    **dict.fromkeys(("group_sizes", "numbers"), lambda: [1, 2]),
    **dict.fromkeys(("alpha", "beta"), lambda: 1e-6),
    **dict.fromkeys(("state", "state_dict", "head"), dict),
    "transform": lambda: "hadamard4",
    "codes": lambda: torch.zeros(4, dtype=torch.uint8),
    "shape": lambda: (4,),
    "element": lambda: "e4m3fn",
    "scaled": lambda: "mxfp8",
    "q": lambda: "mxfp8",
    "names": lambda: ["a"],
    "tensors": lambda: {"a": np.ones((4, 4), np.float32)},
    "formats": lambda: "e4m3",
    "sizes": lambda: [4],
    "model": model,
    "module": lambda: nn.Linear(4, 4),
    "params": parameters,
    "lr": lambda: 0.1,
    "loss": lambda: torch.ones((), requires_grad=True),
    "kernel_size": lambda: 3,
    "normalized_shape": lambda: (4,),
    "num_groups": lambda: 2,
    "running_mean": lambda: torch.zeros(4),
    "running_var": lambda: torch.ones(4),
    "data": lambda: cpd.Codec("e4m3").encode(np.ones(4, np.float32)).data,
    "inner": lambda: "e4m3",
    "fraction": lambda: 0.1,
    "operation": lambda: "cast",
    "function": lambda: lambda a, b, c=None: a @ b,
    "rounding": lambda: "nearest",
    "path": lambda: "vectors.txt",
    "directory": lambda: "bench",
}

WEIGHTS = [(4, 4), (4, 4), (4,), (4,)]


def recurrent(gates: int) -> dict[str, Callable[[], Any]]:
    """Returns valid arguments for a recurrent layer with four inputs and four units."""
    sizes = [(4 * gates, 4), (4 * gates, 4), (4 * gates,), (4 * gates,)]
    return {
        "input": lambda: torch.ones(3, 2, 4),
        "hx": lambda: torch.ones(1, 2, 4),
        "weights": lambda: [torch.ones(size) for size in sizes],
        "w_ih": lambda: torch.ones(4 * gates, 4),
        "w_hh": lambda: torch.ones(4 * gates, 4),
    }


def convolution(rank: int) -> dict[str, Callable[[], Any]]:
    return {
        "input": lambda: torch.ones(2, 4, *(5,) * rank),
        "weight": lambda: torch.ones(4, 4, *(3,) * rank),
    }


def cell(gates: int) -> dict[str, Callable[[], Any]]:
    return recurrent(gates) | {"input": square, "hx": square}


def state_pair(*size: int) -> Callable[[], Any]:
    return lambda: (torch.ones(size), torch.ones(size))


def vectors() -> Any:
    from cpd.hardware import make_vectors

    return make_vectors("cast", "e4m3", random=4)


SPECIFIC: dict[str, dict[str, Callable[[], Any]]] = {
    **{f"cpd.functional.conv{n}d": convolution(n) for n in (1, 2, 3)},
    **{f"cpd.functional.conv_transpose{n}d": convolution(n) for n in (1, 2, 3)},
    "cpd.functional.linear": {"weight": square},
    "cpd.study.capture": {"inputs": square},
    "cpd.functional.embedding": {"input": lambda: torch.tensor([1]), "weight": square},
    "cpd.functional.rnn": recurrent(1),
    "cpd.functional.gru": recurrent(3),
    "cpd.functional.lstm": recurrent(4) | {"hx": state_pair(1, 2, 4)},
    "cpd.functional.rnn_cell": cell(1),
    "cpd.functional.gru_cell": cell(3),
    "cpd.functional.lstm_cell": cell(4) | {"hx": state_pair(4, 4)},
    "cpd.functional.batch_norm": {"recipe": lambda: NORM},
    "cpd.functional.instance_norm": {"recipe": lambda: NORM, "input": lambda: torch.ones(2, 4, 3)},
    "cpd.functional.layer_norm": {"recipe": lambda: NORM},
    "cpd.functional.rms_norm": {"recipe": lambda: NORM},
    "cpd.functional.group_norm": {"recipe": lambda: NORM},
    "cpd.functional.multi_head_attention": {
        **dict.fromkeys(("query", "key", "value"), lambda: torch.ones(3, 2, 4)),
        "embed_dim_to_check": lambda: 4,
        "num_heads": lambda: 2,
        "in_proj_weight": lambda: torch.ones(12, 4),
        **dict.fromkeys(("in_proj_bias", "bias_k", "bias_v", "out_proj_bias"), lambda: None),
        "add_zero_attn": lambda: False,
        "dropout_p": lambda: 0.0,
        "out_proj_weight": square,
    },
    "cpd.functional.scaled_dot_product_attention": dict.fromkeys(
        ("query", "key", "value"), lambda: torch.ones(2, 3, 4)
    ),
    "cpd.simulate_all_reduce": {"numbers": lambda: None},
    "cpd.hardware.write_testbench": {"vectors": vectors, "module": lambda: None},
    "cpd.hardware.Vectors": {
        "rule": lambda: vectors().rule,
        "source": lambda: "directed",
        "random": lambda: 1,
    },
    "cpd.decode": {"f": lambda: "e4m3", "shape": lambda: (4,)},
    "cpd.release_cuda_memory": {},
    "cpd.check_cuda": {},
    "cpd.compress.top_k": {"values": lambda: "fp32"},
    "cpd.compat.cpd2020.float_quantize": {"x": square},
    "cpd.comm.nccl": {"id": lambda: bytes(128)},
    "cpd.comm.Communicator.all_gather_bytes": {"data": lambda: b"ab"},
    "cpd.comm.Communicator.subgroup": {"ranks": lambda: [0]},
    **{
        f"cpd.comm.Communicator.{name}": {"layers": lambda: [torch.ones(4)]}
        for name in ("all_gather", "all_reduce", "reduce", "reduce_scatter")
    },
    "cpd.Scaled": {"text": lambda: "mxfp8"},
    "cpd.optim.LowPrecision": {},
    "cpd.Encoded": {"codes": lambda: torch.zeros(4, dtype=torch.uint8), "scales": lambda: None},
}
"""Valid arguments of particular functions, by parameter name. They take precedence over RIGHT,
which has valid arguments for the same parameter names in all functions."""

NORM = cpd.Recipe("native", norm="bf16")


# ---- instances, whose methods are called ---------------------------------------------------------


class OneRank:
    """A communicator of one rank that runs each method in the thread of that rank."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **how: Any) -> Any:
            with cpd.comm.local(1) as group:
                return group.run(lambda comm: getattr(comm, name)(*arguments, **how))

        return call


INSTANCES: dict[str, Callable[[], Any]] = {
    "cpd.comm.Communicator": OneRank,
    "cpd.Accumulator": lambda: cpd.Accumulator("e4m3"),
    "cpd.Cast": lambda: cpd.Cast("e4m3"),
    "cpd.Format": lambda: cpd.Format("e4m3"),
    "cpd.Recipe": lambda: cpd.Recipe(sums="e4m3"),
    "cpd.Reduce": spec,
    "cpd.Scaled": lambda: cpd.Scaled("nvfp4"),
    "cpd.Schedule": lambda: cpd.Schedule(spec()),
    "cpd.VirtualNodes": lambda: cpd.VirtualNodes(model(), 2, "e4m3"),
    "cpd.autocast": lambda: cpd.autocast(cpd.Recipe(sums="e4m3")),
    "cpd.optim.LARS": lambda: cpd.optim.LARS(parameters(), 0.1),
    "cpd.optim.LossScaler": cpd.optim.LossScaler,
    "cpd.optim.LowPrecision": lambda: cpd.optim.LowPrecision(optimizer(), "bf16"),
    "cpd.Codec": lambda: cpd.Codec("qsgd"),
    "cpd.compress.States": cpd.compress.States,
    "cpd.comm.LocalGroup": lambda: cpd.comm.local(1),
    "cpd.optim.DiLoCo": lambda: cpd.optim.DiLoCo([model(), model()], None, "e4m3", 2),
    "cpd.optim.WeightAverage": lambda: cpd.optim.WeightAverage([model(), model()], None, "e4m3", 2),
    "cpd.parallel.ddp.HookState": lambda: HookState(cpd.Schedule(spec())),
    "cpd.hardware.Vectors": vectors,
}


# ---- what is called ------------------------------------------------------------------------------


class Target(NamedTuple):
    """A public callable."""

    name: str
    function: Callable[[], Callable[..., Any]]
    parameters: tuple[inspect.Parameter, ...]


def public(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields the public names of a module, each with its object."""
    names = getattr(module, "__all__", None) or [n for n in vars(module) if not n.startswith("_")]
    for name in (*names, *later(module.__name__)):
        found = getattr(module, name)
        home = str(getattr(found, "__module__", ""))
        if callable(found) and home.startswith("cpd"):
            if module.__name__.startswith("cpd.parallel") and home != module.__name__:
                continue
            yield name, found


def targets() -> Iterator[Target]:
    """Yields each public target once: functions, classes, their methods, and settable
    properties."""
    seen: dict[int, Any] = {}  # by id; the objects are kept, so that no id is reused
    for module_name in MODULES:
        for name, found in public(importlib.import_module(module_name)):
            if id(found) in seen:
                continue
            seen[id(found)] = found
            whole = f"{module_name}.{name}"
            if isinstance(found, type) and issubclass(found, BaseException):
                continue
            yield from target(whole, lambda found=found: found, found)
            if isinstance(found, type):
                yield from methods(whole, found)


def target(name: str, function: Callable[[], Any], of: Any) -> Iterator[Target]:
    try:
        signature = inspect.signature(of)
    except ValueError:
        return
    taken = [p for p in signature.parameters.values() if p.name != "self"]
    if taken:
        yield Target(name, function, tuple(taken))


SKIPPED = {"extra_repr"}


def methods(whole: str, cls: type) -> Iterator[Target]:
    ours = [base for base in cls.__mro__ if base.__module__.startswith("cpd")]
    for name in sorted({n for base in ours for n in vars(base)}):
        static = inspect.getattr_static(cls, name)
        if (name.startswith("_") and name != "__call__") or name in SKIPPED:
            continue
        if isinstance(static, property):
            if static.fset is not None:
                yield Target(f"{whole}.{name}", setter(whole, name), (VALUE,))
            continue
        if isinstance(static, (classmethod, staticmethod)):
            yield from target(
                f"{whole}.{name}", lambda name=name: getattr(cls, name), getattr(cls, name)
            )
        elif callable(static) and whole in INSTANCES:
            yield from target(
                f"{whole}.{name}",
                lambda name=name: getattr(INSTANCES[whole](), name),
                static,
            )


VALUE = inspect.Parameter("value", inspect.Parameter.POSITIONAL_OR_KEYWORD)


def setter(whole: str, name: str) -> Callable[[], Callable[..., Any]]:
    return lambda: lambda value: setattr(INSTANCES[whole](), name, value)


def right(target: Target, parameter: inspect.Parameter) -> Any:
    """Returns a valid argument for a parameter: the function's entry in SPECIFIC, else the
    parameter's default, else the entry of the parameter's name in RIGHT."""
    given = SPECIFIC.get(target.name, {})
    if parameter.name in given:
        return given[parameter.name]()
    if parameter.default is not inspect.Parameter.empty:
        return parameter.default
    return RIGHT[parameter.name]() if parameter.name in RIGHT else "e4m3"


EXEMPT = {
    ("cpd.random_integers", "shape"): {"2**31"},  # valid, but takes too long
    # If a parameter takes a function that the caller writes, torch.nn.Linear is a valid argument,
    # because a class is callable.
    **{("cpd.study.sweep", name): {"module"} for name in ("accuracy", "done", "tell")},
    ("cpd.comm.LocalGroup.run", "function"): {"module"},
    ("cpd.study.capture", "inputs"): set(WRONG),  # inputs of the caller's own model
    **{("cpd.study.capture", name): {"module"} for name in ("model", "loss")},
}
INTERNAL = ("cpd.comm.Communicator", "cpd.nn.Report")
"""Classes that only the package itself constructs."""


def calls() -> Iterator[tuple[Target, inspect.Parameter, str]]:
    """Yields a callable, one of its parameters, and a wrong value for it."""
    for one in targets():
        for parameter in one.parameters if one.name not in INTERNAL else ():
            for what in WRONG:
                if what not in EXEMPT.get((one.name, parameter.name), ()):
                    yield one, parameter, what


def run(target: Target, parameter: inspect.Parameter, what: str) -> Any:
    """Makes one call in which the argument for `parameter` is wrong and all other arguments are
    valid."""
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for each in target.parameters:
        wrong = each is parameter
        if each.kind is each.VAR_POSITIONAL:
            positional += [WRONG[what]()] if wrong else []
        elif each.kind is each.VAR_KEYWORD:
            named |= {"momentum": WRONG[what]()} if wrong else {}
        elif each.kind is each.KEYWORD_ONLY:
            if wrong or each.default is inspect.Parameter.empty or _is_given(target, each):
                named[each.name] = WRONG[what]() if wrong else right(target, each)
        else:
            positional.append(WRONG[what]() if wrong else right(target, each))
    return target.function()(*positional, **named)


def _is_given(target: Target, parameter: inspect.Parameter) -> bool:
    return parameter.name in SPECIFIC.get(target.name, {})


# ---- which errors are good ones ------------------------------------------------------------------

TYPED = (
    TypeError,
    ValueError,
    MemoryError,
    OSError,
    ImportError,
    OverflowError,
    NotImplementedError,
)
SIGNATURES = re.compile(
    r"incompatible (function|constructor) arguments|Unable to cast|"
    r"argument '.*' (\(position|must be)"
)
MACHINE = re.compile(
    "torch has no CUDA device|which cannot be loaded|torch.distributed has no process group|"
    "needs TransformerEngine|can't allocate memory|Storage size calculation overflowed|"
    "CUDA tensors need an NVIDIA GPU and its driver"
)
"""Matches errors that name the machine or a missing library as the cause, not the argument."""


def complaint(error: BaseException) -> str:
    """Returns a description of the defect in an error that a wrong argument raised. Returns '' for
    a good error."""
    kind = type(error)
    text = str(error)
    if isinstance(error, UnicodeError):
        return "UnicodeError"
    if kind.__module__.startswith("cpd"):
        return ""
    if kind is RuntimeError and MACHINE.search(text):
        return ""
    if not isinstance(error, TYPED):
        return kind.__name__
    if SIGNATURES.search(text):
        return "the signature of another library"
    if not text.strip():
        return "no sentence"
    return ""


def where(error: BaseException) -> str:
    """Returns the file and the line that raised the error, preferably within cpd."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/cpd/" in f.filename]
    frame = (ours or frames)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
