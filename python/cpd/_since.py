# SPDX-License-Identifier: Apache-2.0
"""Names, commands and flags of version 0.7 that are gone, and the errors that say what to use."""

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

CallableT = TypeVar("CallableT", bound=Callable[..., Any])

_STUDY = "Contributions DEFAULT_CHUNK DRAWS Layers Measurement PerRank Round Source rounds"
_HARDWARE = "Command Probed Replay probe replay"
_CODEC = "bucket by_rows is_compressor is_fixed layout needs_gradient"
_MAKERS = "blockwise feedback fp8_rows int4 int8_rows one_bit qsgd quantized terngrad top_k uniform"
_WARNINGS = "CoverageWarning SlowProductWarning StallWarning WireWarning"

GONE: dict[str, dict[str, str]] = {
    "cpd": {
        **dict.fromkeys(("CastSpec", "ScaledCast"), "cpd.Cast"),
        "BlockFma": "cpd.Accumulator(a=…, b=…)",
        "FixedPoint": "cpd.Accumulator(width=…, fraction=…)",
        **dict.fromkeys(("PresetInfo", "presets"), "cpd.Accumulator.named()"),
        "ddp": "cpd.ddp_hook",
        "format": "cpd.Format(…)",
        "named_recipes": "cpd.Recipe.named()",
        "LayerReport": "cpd.comm.TensorReport",
        "ReduceSpec": "cpd.Reduce",
        "fsdp": "cpd.fsdp_hook",
        "outer": "cpd.optim",
        "recipe": "cpd.Recipe(…)",
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
        **dict.fromkeys(("Codec", "CodecLike"), "cpd.Codec"),
        **dict.fromkeys(("Compressor", "compressors"), "cpd.Codec.named(…)"),
        "codec": "cpd.Codec(…)",
        "decode": "cpd.compress.Packet.from_bytes(…)",
        **{name: f'cpd.Codec("{name}", …)' for name in _MAKERS.split()},
    },
    "cpd.functional": {
        **dict.fromkeys(("AccumulatorLike", "PADDING_MODES", "Pair", "RecipeLike"), ""),
        "CastSpec": "cpd.Cast",
        "Recipe": "cpd.Recipe",
        "recipe": "cpd.Recipe(…)",
    },
    "cpd.hardware": {
        "HardwareCost": "cpd.hardware.Gates",
        "CommandError": "RuntimeError",
        "Mismatch": "cpd.hardware.Replay",
        "dots_of_matmul": "cpd.hardware.probe(matmul=…)",
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
    "cpd.nn": {
        "Conv2d": "cpd.convert(torch.nn.Conv2d(…), recipe)",
        "Linear": "cpd.convert(torch.nn.Linear(…), recipe)",
        "Quantizer": "cpd.quantizer(…)",
    },
    "cpd.optim": {
        f"Kahan{name}": f'cpd.optim.LowPrecision({name}(…), weight="bf16", update="kahan")'
        for name in ("AdamW", "SGD")
    },
    "cpd.parallel.fsdp": {"set_reduce_scatter": "cpd.fsdp_hook"},
    "cpd.parallel.ddp": {"all_reduce_hook": "cpd.ddp_hook"},
    "cpd.study": {
        **dict.fromkeys(_STUDY.split(), ""),
        **{name: f"cpd.hardware.{name}" for name in _HARDWARE.split()},
        "CommandError": "RuntimeError",
        "HardwareCost": "cpd.hardware.Gates",
        "Mismatch": "cpd.hardware.Replay",
        "dots_of_matmul": "cpd.hardware.probe(matmul=…)",
        "hardware_cost": "cpd.hardware.gates(…)",
        "ReduceSpec": "cpd.Reduce",
        "StallWarning": "cpd.PrecisionWarning",
        **dict.fromkeys(("check_recommended", "choose"), "cpd.study.recommend(…)"),
        **dict.fromkeys(("Cell", "Losses", "Row"), "cpd.study.SweepRow"),
        "Tensor": "cpd.study.Sweep",
        "CodecRate": "cpd.study.step_time(codec_gbps=…)",
        "Link": "cpd.study.Machine",
        "MeasuredCost": "cpd.study.Cost",
        "machine": "cpd.study.Machine(…)",
        "measured_cost": "cpd.study.cost(ranks=…)",
        "network": "cpd.study.Network(…)",
        "recommend_over": "cpd.study.recommend(comm=…)",
        "roundoff_over": "cpd.study.roundoff(comm=…)",
        "transfer_time": "cpd.study.step_time(…)",
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
    "cost": {"sizes": "shapes"},
    "gates": {"acc": "accumulator"},
    "recommend": {"alpha": "machine", "beta": "machine", "per_rank": "ranks"},
    "replay": {"acc": "accumulator"},
    "roundoff": {"per_layer": "per_tensor", "per_rank": "ranks"},
    "step_time": {"codec_rate": "codec_gbps", "wire": "spec"},
}
"""By function, or class, each keyword that is gone and its new name. A method is `Class.method`."""

MEMBERS = {
    "cpd.Codec": {"name": "text", **dict.fromkeys(_CODEC.split(), "")},
    "cpd.compress.States": {"used": ""},
    "cpd.hardware.Gates": {"gates": "total", "normaliser": "normalizer"},
    "cpd.study.Machine": {
        "between": "alpha_between, beta_between and port",
        "seconds": "cpd.study.step_time(…)",
        "within": "alpha, beta and shared",
    },
    "cpd.study.SweepRow": {
        "cell": "operand, accumulator, rounding, overflow and seed",
        "losses": "relative_rms, sqnr, mean_error, worst, underflow and dot_error",
        "tensors": "json(…)",
    },
}
"""By class, each member that is gone and what to use instead; "" for internal ones."""


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


class Gone:
    """A member of 0.7: reading it raises AttributeError, which names what to use instead."""

    def __init__(self, instead: str) -> None:
        self.instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(f"{owner.__name__}.{self.name} is gone: use {self.instead}")


def keep_modules(package: str) -> None:
    """Lets pickles of 0.7 find the package's modules by their names of then."""
    for old, new in MODULES.items():
        if new.startswith(f"{package}."):
            sys.modules[old] = importlib.import_module(new)


def gone_members(cls: str) -> Callable[[Any, str], Any]:
    """The `__getattr__` of a class, for members that are gone."""

    def attribute(self: Any, name: str) -> Any:
        instead = MEMBERS[cls].get(name)
        if instead is None:
            raise AttributeError(f"{cls} has no attribute {name!r}")
        raise AttributeError(f"{cls}.{name} is gone: {_told(instead)}")

    return attribute


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


def numbers_go_to(call: str, *names: str) -> Callable[[CallableT], CallableT]:
    """Has the constructor of a spec refuse the numbers that it took in 0.7, as its calls take them.

    Args:
        call: The calls that take these numbers.
        names: The numbers: `seed`, `stream`, `step` or `layer`.

    Returns:
        A decorator. Its function raises TypeError for these keywords.

    >>> @numbers_go_to("cpd.cast", "seed")
    ... def cast_to(text): return text
    >>> cast_to("e4m3", seed=3)
    Traceback (most recent call last):
    TypeError: cast_to() takes no seed=: give it to the call, cpd.cast(…, seed=…)
    """

    def decorator(function: CallableT) -> CallableT:
        title = function.__qualname__.removesuffix(".__init__")

        @functools.wraps(function)
        def made(*args: Any, **given: Any) -> Any:
            for name in names:
                if name in given:
                    raise TypeError(
                        f"{title}() takes no {name}=: give it to the call, {call}(…, {name}=…)"
                    )
            return function(*args, **given)

        return cast(CallableT, made)

    return decorator


def missing(module: str, name: str) -> AttributeError:
    """The error for a name that a module does not have.

    >>> missing("cpd.compress", "qsgd")
    AttributeError('cpd.compress.qsgd is gone: use cpd.Codec("qsgd", …)')
    """
    instead = GONE.get(module, {}).get(name)
    if instead is None:
        return AttributeError(f"module {module!r} has no attribute {name!r}")
    return AttributeError(f"{module}.{name} is gone: {_told(instead)}")


def _told(instead: str) -> str:
    return f"use {instead}" if instead else "it was internal, and nothing takes its place"


COMMANDS = {
    "format": "cpd show NAME",
    "presets": "cpd show --units",
    "recipe": "cpd show --recipes NAME",
    "recipes": "cpd show --recipes",
}
"""Commands of 0.7 that are gone, and what to use instead."""

_REDUCE = {
    "--format": "--reduce FORMAT",
    "--wire": "--reduce CODEC",
    "--aps": "--reduce 'FORMAT aps'",
    "--no-aps": "--reduce FORMAT",
    "--loss-scale": "--reduce 'FORMAT loss_scale=S'",
    "--kahan": "--reduce \"FORMAT accumulator='FORMAT kahan'\"",
    "--order": "--reduce 'FORMAT order=ORDER'",
    "--rounding": "--reduce 'FORMAT rounding=MODE'",
    "--overflow": "--reduce 'FORMAT overflow=MODE'",
    "--exchange": "--reduce 'FORMAT exchange=EXCHANGE'",
    "--group-size": "--reduce 'FORMAT group_size=N'",
}
_MACHINE = "--machine 'alpha=SECONDS beta=BYTES_A_SECOND'"
_SIZES = {f"--{size}": f"--size {size}" for size in ("smoke", "small", "full")}

FLAGS: dict[str, dict[str, str]] = {
    "train": _REDUCE,
    "roundoff": {
        **{name: _REDUCE[name] for name in _REDUCE if name not in ("--exchange", "--group-size")},
        "--accumulator": "--reduce \"FORMAT accumulator='TEXT'\"",
        "--result": "--reduce 'FORMAT result=FORMAT'",
        "--alpha": _MACHINE,
        "--bandwidth": _MACHINE,
        "--per-layer": "--per-tensor",
    },
    "cost": {
        "--wire": "--reduce TEXT,…",
        **{name: _REDUCE[name] for name in ("--exchange", "--group-size")},
        "--bits": "--mean-bits X",
        "--measure-codec": "--codec-gbps measured",
    },
    "compress": {"--wire": "--codec TEXT,…", "--layers": "--per-tensor"},
    "replay": {"--as": "--accumulator TEXT", "--output": "--result FORMAT"},
    "probe": {"--acc": "--accumulator TEXT"},
    "vectors": {
        "--acc": "--accumulator TEXT",
        "--out-format": "--result FORMAT",
        "--output": "--out FILE",
    },
    "sweep": {"--accumulators": "--accumulator TEXT,…"},
    "study list": _SIZES,
    "study run": _SIZES,
    "study report": _SIZES,
    "show": {
        "--calc": 'python -c "import cpd; …"',
        "--neighbours": "--neighbors VALUE",
        "--rounding": 'python -c "import cpd; …"',
    },
}
"""By command, each flag of 0.7 that is gone and what to use instead."""


def gone_command(words: Sequence[str]) -> str:
    """The error for a command line whose command is gone; empty for other command lines."""
    instead = COMMANDS.get(words[0]) if words else None
    return f"cpd {words[0]} is gone: use {instead}" if instead else ""


def gone_flag(command: str, words: Sequence[str]) -> str:
    """The error for the first word that is a flag which is gone; empty if there is none.

    >>> gone_flag("vectors", ["mul", "--out-format=fp32"])
    '--out-format is gone: use --result FORMAT'
    """
    flags = FLAGS.get(command, {})
    for word in words:
        flag = word.partition("=")[0]
        if flag == "--":
            return ""
        if flag in flags:
            return f"{flag} is gone: use {flags[flag]}"
    return ""
