# SPDX-License-Identifier: Apache-2.0
"""Names of version 0.7 that are gone, and the error that names what took their place."""

import importlib
import sys

_STUDY = "Contributions DEFAULT_CHUNK DRAWS Layers Measurement PerRank Round Source rounds"
_HARDWARE = "Command CommandError Mismatch Probed Replay dots_of_matmul probe replay"
_MAKERS = "blockwise feedback fp8_rows int4 int8_rows one_bit qsgd quantized terngrad top_k uniform"

GONE: dict[str, dict[str, str]] = {
    "cpd": {
        **dict.fromkeys(("CastSpec", "ScaledCast"), "cpd.Cast"),
        "ddp": "cpd.ddp_hook",
        "format": "cpd.Format(…)",
        "outer": "cpd.optim",
        "scaled": "cpd.Scaled(…)",
    },
    "cpd.compress": {
        "codec": "cpd.Codec(…)",
        **{name: f'cpd.Codec("{name}", …)' for name in _MAKERS.split()},
    },
    "cpd.functional": {
        **dict.fromkeys(("AccumulatorLike", "PADDING_MODES", "Pair", "RecipeLike"), ""),
        "CastSpec": "cpd.Cast",
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
    "cpd.parallel.ddp": {"all_reduce_hook": "cpd.ddp_hook"},
    "cpd.study": {
        **dict.fromkeys(_STUDY.split(), ""),
        **{name: f"cpd.hardware.{name}" for name in _HARDWARE.split()},
        "HardwareCost": "cpd.hardware.Gates",
        "hardware_cost": "cpd.hardware.gates(…)",
        **{name: f"cpd.{name}" for name in ("ReduceSpec", "StallWarning")},
        **dict.fromkeys(("check_recommended", "choose"), "cpd.study.recommend(…)"),
    },
    "cpd.track": {"writer_of": "cpd.track.Tracker(writer=…)"},
}
"""By module, each name that is gone and what to use instead; "" for what nothing replaces."""

IN_TEXT = "a key of the format"
"""Stands for the new name of a keyword that is a key of the format's text now."""
_ROUNDING = dict.fromkeys(("rounding", "overflow", "random_bits", "variant"), IN_TEXT)

KEYWORDS: dict[str, dict[str, str]] = {
    **{
        name: {"f": "to", **_ROUNDING}
        for name in ("cast", "encode", "add", "mul", "fma", "div", "sqrt")
    },
    "Communicator.all_gather": {"format": "to", **_ROUNDING},
    "decode": {"f": "format"},
    "gemm": {"acc": "accumulator"},
    "sum": {"acc": "accumulator", "dim": "axis"},
}
"""By function, or class, each keyword that is gone and its new name. A method is `Class.method`."""

MODULES = {
    "cpd.compress.codec": "cpd.compress.codecs",
    "cpd.hardware.hardware_cost": "cpd.hardware.gate_counts",
    "cpd.hardware.probe": "cpd.hardware.probing",
    "cpd.hardware.probe.command": "cpd.hardware.probing.command",
    "cpd.hardware.probe.find": "cpd.hardware.probing.find",
    "cpd.hardware.replay": "cpd.hardware.replaying",
    "cpd.numeric.scaled_cast": "cpd.numeric.cast",
}
"""Modules that pickles of 0.7 name, and what they are now."""


def keep_modules(package: str) -> None:
    """Lets pickles of 0.7 find the package's modules by their names of then."""
    for old, new in MODULES.items():
        if new.startswith(f"{package}."):
            sys.modules[old] = importlib.import_module(new)


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
