# SPDX-License-Identifier: Apache-2.0
"""Names of version 0.7 that are gone, and the error that names what took their place."""

import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any, TypeVar, cast

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_STUDY = "Contributions DEFAULT_CHUNK DRAWS Layers Measurement PerRank Round Source rounds"
_HARDWARE = "Command CommandError Mismatch Probed Replay dots_of_matmul probe replay"
_MAKERS = "blockwise feedback fp8_rows int4 int8_rows one_bit qsgd quantized terngrad top_k uniform"
_WARNINGS = "CoverageWarning SlowProductWarning StallWarning WireWarning"

GONE: dict[str, dict[str, str]] = {
    "cpd": {
        "ddp": "cpd.ddp_hook",
        "format": "cpd.Format(…)",
        "LayerReport": "cpd.comm.TensorReport",
        "ReduceSpec": "cpd.Reduce",
        "fsdp": "cpd.fsdp_hook",
        "outer": "cpd.optim",
        "scaled": "cpd.Scaled(…)",
        **dict.fromkeys(_WARNINGS.split(), "cpd.PrecisionWarning"),
    },
    "cpd.comm": {
        "Corrupt": "cpd.comm.TransportError",
        "nccl_id": "cpd.comm.nccl(comm)",
        "reduce_spec": "cpd.Reduce(…)",
        "torch": "cpd.comm.distributed(…)",
    },
    "cpd.compress": {
        "codec": "cpd.Codec(…)",
        "decode": "cpd.compress.Packet.from_bytes(…)",
        **{name: f'cpd.Codec("{name}", …)' for name in _MAKERS.split()},
    },
    "cpd.functional": {
        **dict.fromkeys(("AccumulatorLike", "PADDING_MODES", "Pair", "RecipeLike"), ""),
        "CastSpec": "cpd.CastSpec",
        "Recipe": "cpd.Recipe",
        "recipe": "cpd.recipe",
    },
    "cpd.hardware": {
        "HardwareCost": "cpd.hardware.Gates",
        "hardware_cost": "cpd.hardware.gates(…)",
    },
    "cpd.hardware.testbench": {
        **{name: f"cpd.hardware.{name}" for name in ("Ports", "write_testbench")},
        "Unit": "",
        "unit_of": "",
    },
    "cpd.hardware.vectors": {
        "Check": "cpd.hardware.VectorCheck",
        "DisagreementError": "RuntimeError",
        "Field": "",
        "File": "cpd.hardware.check_vectors(…)",
        "VectorFileError": "ValueError",
        "Vectors": "cpd.hardware.Vectors",
        "check": "cpd.hardware.check_vectors(…)",
        "make": "cpd.hardware.make_vectors(…)",
        "rule_of": "",
    },
    "cpd.parallel.fsdp": {"set_reduce_scatter": "cpd.fsdp_hook"},
    "cpd.parallel.ddp": {"all_reduce_hook": "cpd.ddp_hook"},
    "cpd.study": {
        **dict.fromkeys(_STUDY.split(), ""),
        **{name: f"cpd.hardware.{name}" for name in _HARDWARE.split()},
        "HardwareCost": "cpd.hardware.Gates",
        "hardware_cost": "cpd.hardware.gates(…)",
        "ReduceSpec": "cpd.Reduce",
        "StallWarning": "cpd.PrecisionWarning",
        **dict.fromkeys(("check_recommended", "choose"), "cpd.study.recommend(…)"),
    },
    "cpd.track": {"writer_of": "cpd.track.Tracker(writer=…)"},
}
"""By module, each name that is gone and what to use instead; "" for what nothing replaces."""

MODULES = {
    "cpd.compress.codec": "cpd.compress.codecs",
    "cpd.hardware.hardware_cost": "cpd.hardware.gate_counts",
    "cpd.hardware.probe": "cpd.hardware.probing",
    "cpd.hardware.probe.command": "cpd.hardware.probing.command",
    "cpd.hardware.probe.find": "cpd.hardware.probing.find",
    "cpd.hardware.replay": "cpd.hardware.replaying",
}
"""Modules that pickles of 0.7 name, and what they are now."""


def keep_modules(package: str) -> None:
    """Lets pickles of 0.7 find the package's modules by their names of then."""
    for old, new in MODULES.items():
        if new.startswith(f"{package}."):
            sys.modules[old] = importlib.import_module(new)


def renamed(**names: str) -> Callable[[CallableT], CallableT]:
    """Has a function refuse keywords of 0.7.

    Args:
        names: What takes the place of each keyword: the new keyword, or words with a space.

    Returns:
        A decorator. Its function raises TypeError for these keywords.

    >>> @renamed(per_rank="ranks")
    ... def world(ranks): return len(ranks)
    >>> world(per_rank=[1, 2])
    Traceback (most recent call last):
    TypeError: world() takes ranks= in place of per_rank=
    """

    def decorator(function: CallableT) -> CallableT:
        title = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            for old in given.keys() & names:
                new = names[old] if " " in names[old] else f"{names[old]}="
                raise TypeError(f"{title}() takes {new} in place of {old}=")
            return function(*args, **given)

        return cast(CallableT, call)

    return decorator


def missing(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have.

    >>> missing("cpd.compress", "qsgd")
    AttributeError('cpd.compress.qsgd is gone: use cpd.Codec("qsgd", …)')
    """
    instead = GONE.get(module, {}).get(name)
    if instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    told = f"use {instead}" if instead else "it was internal, and nothing takes its place"
    return AttributeError(f"{module}.{name} is gone: {told}")
