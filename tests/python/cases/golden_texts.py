# SPDX-License-Identifier: Apache-2.0
"""Golden cases of texts that a user reads: names and texts of objects, signatures, and outputs of
the command line. The name of a text is the Python expression that gives it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import cpd
import cpd.comm
from golden import FORMATS, Cases

SPACE: dict[str, Any] = {"cpd": cpd, "np": np}

TEXTS = """
cpd.Accumulator("e4m3")
cpd.Accumulator("e4m3 kahan", rounding="stochastic", random_bits=8)
cpd.Accumulator("e6m9 chunked", product="exact", chunk=32)
cpd.Accumulator("e6m9 chunked", inner="e5m2", product="fp32", overflow="saturate")
cpd.Accumulator("e5m2 pairwise", rounding="up")
cpd.Accumulator("e4m3 fma")
cpd.Accumulator("e4m3 rounding=stochastic kahan")
cpd.Accumulator(a="fp16", b="fp16", block=4, fraction_bits=23)
cpd.Accumulator("fp16 h100-fp16")
cpd.Accumulator("h100-fp8 a=e5m2")
cpd.Accumulator("deepseek-promoted")
cpd.Accumulator("e6m9 chunked product=exact")
[cpd.Accumulator(f"e4m3 {s} rounding=stochastic").sum_integers(9) for s in ("sequential", "kahan", "chunked chunk=2", "pairwise")]
[cpd.Accumulator(f"e4m3 {s} rounding=stochastic").gemm_integers(9) for s in ("sequential", "kahan", "fma", "chunked chunk=2", "pairwise")]
cpd.Accumulator(a="fp16", b="bf16")
cpd.Accumulator(a="e4m3fn", b="e5m2", block=32, fraction_bits=13, addend="separate", sum="e8m13", sum_rounding="nearest_even", promote=128)
cpd.Cast("e5m2")
cpd.Cast("e5m2", rounding="stochastic", overflow="saturate", random_bits=8, variant="B")
cpd.Recipe(sums="e4m3")
cpd.Recipe(sums=("e4m3 kahan", "e5m2", "fp32"), grad_bias="e6m9", activation="e4m3fn", weight=cpd.Cast("e4m3", rounding="up"), gradient="e5m2", output="bf16")
cpd.Recipe("native", sums="h100-fp8")
cpd.Reduce("e4m3")
cpd.Reduce("e4m3", accumulator="e6m9 kahan", order="ring", exchange="hierarchical", group_size=4, aps="paper", average=True, rounding="stochastic", random_bits=8, variant="B", result="fp16")
cpd.Reduce("e5m2", loss_scale=1024, overflow="saturate", order="tree", exchange="gather")
cpd.Schedule(cpd.Reduce("e4m3", aps=True), exempt=["*.bias"], first_steps=100)
cpd.Reduce("e4m3 divide=after")
cpd.comm.TensorReport(1, 2, 3, 4)
cpd.comm.Traffic(1, 2, 3, 4, 5)
cpd.comm.ReduceReport([cpd.comm.TensorReport(1, 2, 3, 4)], cpd.comm.Traffic(1, 2, 3, 4, 5))
cpd.comm.RankLost("rank 1 is lost", [1])
cpd.comm.Mismatch("the ranks differ")
cpd.comm.TransportError("a socket", 2)
cpd.study.cost(cpd.Reduce("e4m3"), 4, [1000])
cpd.study.Roundoff(0.5, 0.25, 3, 1, 0)
cpd.Format((4, 3))
cpd.Format("(3,2)")
cpd.Format("FLOAT8_E4M3FN")
cpd.Format(np.float16)
cpd.Format(np.dtype("float32"))
[cpd.Format(n) for n in ("half", "bfloat16", "float8_e4m3", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float4_e2m1fn", "float8_e3m4", "e4m3b11fnuz")]
"""  # noqa: E501

TORCH_TEXTS = """
cpd.quantizer("e4m3", "mxfp8", axis=0, seed=3)
cpd.Format(torch.float8_e4m3fn)
"""

PUBLIC: dict[str, Sequence[str]] = {
    "cpd": (
        *("Accumulator", "Cast", "Format", "Recipe"),
        *("Reduce", "Schedule", "PrecisionWarning", "add", "cast", "decode", "encode", "fma"),
        *("gemm", "mul", "random_integers", "simulate_all_reduce", "sum"),
        *("Encoded", "Scaled"),
    ),
    "cpd.comm": (
        *("Communicator", "LocalGroup", "TensorReport", "Mismatch", "RankLost", "ReduceReport"),
        *("Traffic", "TransportError", "distributed", "local", "mpi", "nccl"),
    ),
    "cpd.study": (
        *("Choice", "Cost", "Recommendation", "Roundoff", "cost", "recommend", "roundoff"),
    ),
}
TORCH_PUBLIC: dict[str, Sequence[str]] = {
    "cpd": ("ddp_hook",),
    "cpd.parallel.ddp": ("HookState", "ddp_hook"),
    "cpd.parallel.fsdp": ("ReduceScatter", "fsdp_hook"),
    "cpd.functional": ("conv2d", "linear", "matmul"),
}

FIELDS = (
    *("name", "exp", "man", "bias", "encoding", "signed", "subnormals", "bits", "max"),
    *("min_normal", "min_subnormal", "epsilon", "num_values"),
)


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


def _value(expression: str, more: dict[str, Any]) -> Any:
    return eval(expression, SPACE | more)


def objects(torch: Any = None) -> dict[str, Any]:
    """Evaluates the Python expressions in `TEXTS` and, if torch is passed, in `TORCH_TEXTS`.
    Returns the objects by expression."""
    lines = _lines(TEXTS) + (_lines(TORCH_TEXTS) if torch else [])
    return {expression: _value(expression, {"torch": torch}) for expression in lines}


def texts_cases() -> Cases:
    for name in FORMATS:
        f = cpd.Format(name)
        fields = (getattr(f, field) for field in FIELDS)
        shown = " ".join(v.hex() if isinstance(v, float) else str(v) for v in fields)
        yield f"format {name}", f"{f!r} {shown}"
    for expression in _lines(TEXTS):
        value = _value(expression, {})
        yield expression, f"{value!s} | {value!r}"
    for preset, told in cpd.Accumulator.named().items():
        yield f"preset {preset}", f"{told} | {cpd.Accumulator(preset)}"
    yield from _signatures(PUBLIC)


def _signatures(public: dict[str, Sequence[str]]) -> Cases:
    """Yields the parameters and defaults of each public function, class and method, without
    types."""
    for module_name, names in public.items():
        module = importlib.import_module(module_name)
        for name in names:
            value = getattr(module, name)
            if not callable(value):
                continue
            yield f"signature {module_name}.{name}", _parameters(value)
            if not isinstance(value, type) or issubclass(value, BaseException):
                continue
            for method in sorted(n for n, v in vars(value).items() if inspect.isfunction(v)):
                if not method.startswith("_"):
                    yield f"signature {name}.{method}", _parameters(getattr(value, method))


def _parameters(call: Any) -> str:
    try:
        signature = inspect.signature(call)
    except (TypeError, ValueError):
        return "none"
    empty = inspect.Parameter.empty
    shown = [p.replace(annotation=empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=shown, return_annotation=inspect.Signature.empty))


def torch_texts_cases() -> Cases:
    import torch

    for expression in _lines(TORCH_TEXTS):
        value = _value(expression, {"torch": torch})
        yield expression, f"{value!s} | {value!r}"
    yield from _signatures(TORCH_PUBLIC)
    yield from _commands(("train --reduce e9m3", "train --nodes 4 --batch 1000"))


# ---- the command line ----------------------------------------------------------------------------

COMMANDS = (
    *("show e4m3fn", "show (4,3) bf16 e8m0 e4m3fnuz:bias=11", "show e2m1 --values"),
    *("show e4m3 --compare e5m2", "show --compare e4m3fn e4m3fnuz"),
    *("show e9m3", "show", "show --codecs", "roundoff --groups x"),
    *("show h100-fp8 terngrad", "format e4m3", "train --aps"),
)


def cli_cases() -> Cases:
    """Yields the exit status, output and errors of some commands, then the flags, defaults and help
    texts of all commands."""
    from cpd.cli import build_parser

    yield from _commands(COMMANDS)
    yield from _options("cpd", build_parser())


def _commands(commands: Sequence[str]) -> Cases:
    from cpd.cli import main

    for command in commands:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), _columns(80):
            try:
                status: Any = main(command.split())
            except SystemExit as error:
                status = error.code
        yield f"cpd {command}", [str(status), *out.getvalue().splitlines(), *_last(err.getvalue())]


def _last(text: str) -> list[str]:
    """Returns the last line, which is the error itself. The lines that argparse writes before it
    differ between versions of Python."""
    return text.splitlines()[-1:]


@contextlib.contextmanager
def _columns(width: int) -> Iterator[None]:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(width)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _options(command: str, parser: Any) -> Cases:
    for action in parser._actions:
        if hasattr(action, "choices") and isinstance(action.choices, dict):
            for name, inner in action.choices.items():
                yield from _options(f"{command} {name}", inner)
            continue
        flags = "/".join(action.option_strings) or action.dest
        shown = f"default={action.default!r} nargs={action.nargs!r} {action.help}"
        yield f"{command}: {flags}", shown
