# SPDX-License-Identifier: Apache-2.0
"""Lists the removed names, commands and flags of version 0.7, for errors that name replacements."""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

_STUDY = "Contributions DEFAULT_CHUNK DRAWS Layers Measurement PerRank Round Source rounds"
_HARDWARE = "Command Probed Replay probe replay"
_CODEC = "bucket by_rows is_compressor is_fixed layout needs_gradient"
_MAKERS = "blockwise feedback fp8_rows int4 int8_rows one_bit qsgd quantized terngrad top_k uniform"
_RECIPE = "gemms cast_before drawing operands casts is_native rounds draws delays operand"
_SCHEDULE = "is_exempt check_names check_world exempts parts"
_LAB = "cpd.demo cpd.papers cpd.train"
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
        "Hadamard": 'its text: cpd.hadamard(x, "hadamard16:te")',
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
"""Maps a module to a dict from its removed names to their replacements ("": no replacement)."""

IN_TEXT = "a key of the format"
"""Marks a removed keyword in `KEYWORDS` whose value now stands in the text of the format."""
TO_CALL = "the call, "
"""The prefix that marks a removed keyword in `KEYWORDS` whose value is now an argument of a call.
In version 0.7 the keyword (such as `seed`) belonged to a format, an accumulator or another spec."""
_ROUNDING = dict.fromkeys(("rounding", "overflow", "random_bits", "variant"), IN_TEXT)


def _to_call(call: str, *numbers: str) -> dict[str, str]:
    return {number: f"{TO_CALL}{call}(…, {number}=…)" for number in numbers}


KEYWORDS: dict[str, dict[str, str]] = {
    **{
        name: {"f": "to", **_ROUNDING}
        for name in ("cast", "encode", "add", "mul", "fma", "div", "sqrt")
    },
    "Accumulator": {
        "aligns_addend": "addend='aligned' or addend='separate'",
        "fixed": "an integer's keys, width=, fraction= and sum_rounding=",
        "operands": "a= and b=",
        "preset": "a unit's name as its first argument or by scheme=",
        "unit": "a unit's keys, a=, b=, block= and so on",
        **_to_call("cpd.gemm", "seed", "stream"),
    },
    "Cast": _to_call("cpd.cast", "seed", "stream"),
    "Codec": _to_call("Codec.encode", "seed"),
    **{
        f"Communicator.{name}": {
            "layers": "tensors",
            "seed": "the communicator's own, of local(…),",
        }
        for name in ("all_reduce", "reduce", "reduce_scatter")
    },
    "Codec.encode": {"state": "states"},
    "Communicator.all_gather": {
        "format": "to",
        "layers": "tensors",
        "seed": "the communicator's seed",
        **_ROUNDING,
    },
    "DiLoCo": {"inner_steps": "period"},
    "ReduceScatter": {"layer": "number"},
    "HookState.attach": {"module": "model"},
    **{f"Machine.{name}": {"ranks": "world"} for name in ("hosts", "hourly")},
    "Network.samples": {"ranks": "world"},
    "Reduce": {
        **dict.fromkeys(("format", "wire"), "the first argument"),
        **_to_call("cpd.simulate_all_reduce", "seed", "step"),
    },
    "Tracker.step": {"number": "step"},
    "VirtualNodes": {"seeds": "generators", "world_size": "nodes"},
    "autocast": {"watch": "coverage"},
    "cost": {"sizes": "shapes"},
    "ddp_hook": {
        "group": "a communicator, comm=cpd.comm.distributed(group),",
        "module": "model",
    },
    "decode": {"f": "format"},
    "gates": {"acc": "accumulator"},
    "gemm": {"acc": "accumulator"},
    "nccl": dict.fromkeys(("id", "rank", "size"), "comm"),
    "quantizer": {"layer": "seed"},
    "recommend": {"alpha": "machine", "beta": "machine", "per_rank": "ranks"},
    "replay": {"acc": "accumulator", "output": "result"},
    "roundoff": {"per_layer": "per_tensor", "per_rank": "ranks"},
    "set_step": {"calls": "step"},
    "simulate_all_reduce": {"per_rank": "ranks"},
    "step_time": {"ranks": "world", "codec_rate": "codec_gbps", "wire": "spec"},
    "sum": {"acc": "accumulator", "dim": "axis"},
    "write_testbench": {"directory": "folder"},
}
"""Maps a function, class or method (`Class.method`) to its removed keywords, and a keyword to its
replacement. The replacement is a new keyword, or, if it has a space, a phrase for the error."""

MEMBERS = {
    "cpd.Accumulator": {
        "fixed": "its attributes width, fraction and sum_rounding",
        "gemm_draws": "gemm_integers(k)",
        "options": "its attributes rounding, overflow, random_bits and variant",
        "parse": "cpd.Accumulator(text)",
        "sum_draws": "sum_integers(terms)",
        "unit": "its attributes a, b, block, …, which are None without a matrix unit",
    },
    "cpd.Cast": {
        "options": "its attributes rounding, overflow, random_bits and variant",
        "parse": "cpd.Cast(text)",
        "with_numbers": "seed and stream of the call",
    },
    "cpd.Codec": {"name": "text", **dict.fromkeys(_CODEC.split(), "")},
    "cpd.Format": {"parse": "cpd.Format(name)"},
    "cpd.Recipe": {
        **dict.fromkeys(("from_dict", "from_json", "from_toml", "of", "parse"), "cpd.Recipe(…)"),
        **dict.fromkeys(("for_layer", "with_stream"), "seed and stream of the call"),
        **dict.fromkeys(("sums", "with_sums"), "replace(sums=…), forward, grad_input, grad_weight"),
        **dict.fromkeys(_RECIPE.split(), ""),
    },
    "cpd.Scaled": {"parse": "cpd.Scaled(text)", "untransformed": 'replace(transform="none")'},
    "cpd.Schedule": {
        **dict.fromkeys(
            ("all_reduce", "simulate_all_reduce"), "the functions, with it as spec and with names="
        ),
        **dict.fromkeys(_SCHEDULE.split(), ""),
    },
    "cpd.autocast": {"forms": "", "next": ""},
    "cpd.comm.LocalGroup": {"all_reduce": "cpd.simulate_all_reduce(…)"},
    "cpd.compress.States": {"used": ""},
    "cpd.hardware.Gates": {"gates": "total", "normaliser": "normalizer"},
    "cpd.study.Machine": {
        "between": "alpha_between, beta_between and port",
        "seconds": "cpd.study.step_time(…)",
        "within": "alpha, beta and shared",
    },
    "cpd.study.Sweep": {"of": ""},
    "cpd.study.SweepRow": {
        "cell": "operand, accumulator, rounding, overflow and seed",
        "losses": "relative_rms, sqnr, mean_error, worst, underflow and dot_error",
        "tensors": "json(…)",
    },
}
"""Maps a class to its removed members, and a member to its replacement ("": an internal member)."""

_MIXINS = "attention embedding encoder norms own products recurrent"

MODULES = {
    "cpd.compress.codec": "cpd.compress.codecs",
    "cpd.hardware.hardware_cost": "cpd.hardware.gate_counts",
    "cpd.hardware.probe": "cpd.hardware.probing",
    "cpd.hardware.probe.command": "cpd.hardware.probing.command",
    "cpd.hardware.probe.find": "cpd.hardware.probing.find",
    "cpd.hardware.replay": "cpd.hardware.replaying",
    "cpd.numeric.options": "cpd.numeric.cast",
    **{f"cpd.nn.converted.{name}": "cpd.nn.converted.emulations" for name in _MIXINS.split()},
    "cpd.numeric.scaled_cast": "cpd.numeric.cast",
}
"""The modules that pickles of version 0.7 name, each with its present name."""


MOVED = {
    "cpd.cells": "cpd.study.jobs and cpd.study.store",
    **{name: f"{name.replace('.', '_lab.')} (pip install cpd-lab)" for name in _LAB.split()},
}
"""The packages that have moved, each with its new name."""


class _Moved:
    """An import finder at the end of sys.meta_path: refuses to import a package in MOVED."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name in MOVED:
            raise ModuleNotFoundError(f"{name} is gone: {_told(MOVED[name])}")


def refuse_moved() -> None:
    """Makes an import of a package in MOVED raise an error that names the new package."""
    sys.meta_path.append(_Moved)


def keep_modules(package: str) -> None:
    """Lets pickles of version 0.7 find this package's modules under their old names."""
    for old, new in MODULES.items():
        if new.startswith(f"{package}."):
            sys.modules[old] = importlib.import_module(new)


def refuse_members(cls: type) -> None:
    """Makes a class raise AttributeError for its removed members, which are in MEMBERS.

    >>> class Format: pass
    >>> refuse_members(Format)
    >>> Format().parse
    Traceback (most recent call last):
    AttributeError: cpd.Format.parse is gone: use cpd.Format(name)
    """
    title = next((name for name in MEMBERS if name.endswith(f".{cls.__name__}")), "")
    for name, instead in MEMBERS.get(title, {}).items():
        setattr(cls, name, _Gone(f"{title}.{name} is gone: {_told(instead)}"))


class _Gone:
    """A descriptor for a removed member of a class and of its instances.

    Reading it raises AttributeError.
    """

    def __init__(self, error: str) -> None:
        self.error = self.__doc__ = error

    def __get__(self, instance: object, owner: type) -> Any:
        raise AttributeError(self.error)


def missing(module: str, name: str) -> AttributeError:
    """Returns the error for a name that a module does not have.

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
"""The removed commands of version 0.7, each with its replacement."""

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
        **dict.fromkeys(("--figure", "--shared"), "cpd study figure NAME"),
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
"""Maps a command to the flags of version 0.7 that were removed, and a flag to its replacement."""


def gone_command(words: Sequence[str]) -> str:
    """Returns the error for a command line with a removed command, or "" without one."""
    instead = COMMANDS.get(words[0]) if words else None
    return f"cpd {words[0]} is gone: use {instead}" if instead else ""


def gone_flag(command: str, words: Sequence[str]) -> str:
    """Returns the error for the first removed flag in a command line, or "" without a removed flag.

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
