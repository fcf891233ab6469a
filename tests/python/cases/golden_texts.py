# SPDX-License-Identifier: Apache-2.0
"""Golden cases of what a user reads: names and texts, signatures, outputs of the command line, and
the errors of wrong calls. A text's name is the expression that gives it."""

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
from golden import Cases, Make, error_of, floats, numpy
from golden_elements import FORMATS

X = floats((3, 4), 500)
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

ERRORS = """
cpd.Format("e9m3")
cpd.Format("")
cpd.Format("e4m3 ")
cpd.Format("e4m3fm")
cpd.Format("int64")
cpd.Format("float64")
cpd.Format("fp8")
cpd.Format("e4m3fn:bias=11:bias=3")
cpd.Format("e4m3:foo")
cpd.Format("e4m3fn:bias=x")
cpd.Format("e4m3fnuz:unsigned")
cpd.Format("(4,3,2)")
cpd.Format("binary8p9se")
cpd.Format(None)
cpd.Format(8)
cpd.Format((4, 3.0))
cpd.Format((4, 24))
cpd.Format(exp=0, man=3)
cpd.Format(exp=9, man=3)
cpd.Format(exp=4, man=24)
cpd.Format(exp=4, man=-1)
cpd.Format(4.0, 3)
cpd.Format(True, 3)
cpd.Format(2**40, 3)
cpd.Format(exp=4, man=3, bias=400)
cpd.Format(exp=8, man=23, bias=128)
cpd.Format(exp=4, man=3, bias=1.5)
cpd.Format(exp=4, man=3, encoding="ocp")
cpd.Format(exp=4, man=3, encoding=None)
cpd.Format(exp=4, man=3, encoding="fnuz", signed=False)
cpd.Format(exp=4, man=3, encoding="e8m0")
cpd.Format(exp=4, man=3, signed=1)
cpd.Format(exp=1, man=0, subnormals=False)
cpd.Format("fp32").values()
cpd.Accumulator()
cpd.Accumulator(scheme="kahan")
cpd.Accumulator(3)
cpd.Accumulator("e4m3 tree")
cpd.Accumulator("e4m3", 3)
cpd.Accumulator("e4m3 block_fma")
cpd.Accumulator("e4m3", chunk=3)
cpd.Accumulator("e4m3 chunked", chunk=0)
cpd.Accumulator("e4m3 chunked", chunk=2**63)
cpd.Accumulator("e4m3 chunked", chunk=2.0)
cpd.Accumulator("e4m3", inner="e5m2")
cpd.Accumulator("e4m3 kahan", inner="e5m2")
cpd.Accumulator("e4m3 fma", product="e5m2")
cpd.Accumulator("e4m3", product="exakt")
cpd.Accumulator("e4m3", product=3)
cpd.Accumulator("e4m3", preset="h200")
cpd.Accumulator("e4m3", preset="h100-fp8")
cpd.Accumulator("h100-fp8", width=8)
cpd.Accumulator("h100-fp8", a="fp32", b="e5m2")
cpd.Accumulator("h100-fp8", operands="e5m2")
cpd.Accumulator("e4m3", a="e4m3", scheme="kahan")
cpd.Accumulator("h100-fp8", rounding="up")
cpd.Accumulator(unit="fp16")
cpd.Accumulator("e4m3 kahan kahan")
cpd.Accumulator("e4m3 kahan chunk=x")
cpd.Accumulator("e4m3 chunked chunk=2 chunk=3")
cpd.Accumulator("e4m3 kahan foo=3")
cpd.Accumulator("e4m3 kahan", "kahan")
cpd.Accumulator("e4m3", rounding="nearest")
cpd.Accumulator("e4m3", rounding=3)
cpd.Accumulator("e4m3", overflow="clamp")
cpd.Accumulator("e4m3", random_bits=25)
cpd.Accumulator("e4m3", random_bits=8.0)
cpd.Accumulator("e4m3", variant="D")
cpd.Accumulator("e4m3", seed=-1)
cpd.Accumulator("e4m3", stream=3)
cpd.Accumulator("e4m3", rounding="to_odd", variant="B")
cpd.Accumulator("")
cpd.Accumulator("kahan")
cpd.Accumulator("e4m3").sum_integers(-1)
cpd.Accumulator("e4m3").gemm_integers(1.5)
cpd.Accumulator(a="fp16", b="fp16", block=0)
cpd.Accumulator(a="fp16", b="fp16", block=65)
cpd.Accumulator(a="fp16", b="fp16", block=2**40)
cpd.Accumulator(a="fp16", b="fp16", fraction_bits=31)
cpd.Accumulator(a="fp16", b="fp16", sum_rounding="up")
cpd.Accumulator(a="fp16", b="fp16", sum_rounding=1)
cpd.Accumulator(a="fp16", b="fp16", promote=5)
cpd.Accumulator(a="fp16", b="fp16", addend=1)
cpd.Accumulator(a="fp32", b="fp32")
cpd.Accumulator(a="fp16")
cpd.Cast("e9m3")
cpd.Cast("e4m3", rounding="nearest")
cpd.Cast("e4m3", overflow=True)
cpd.Cast("e4m3", seed=1.0)
cpd.Recipe(None)
cpd.Recipe("e4m3fn", layer=2**16)
cpd.Recipe("e4m3fn", activation=3)
cpd.Recipe("e4m3")
cpd.Recipe("e4m3 kahan")
cpd.Recipe(sums="e4m3", grad_bias="h100-fp8")
cpd.Reduce("e9m3")
cpd.Reduce(None)
cpd.Reduce("e4m3", accumulator="e4m3 fma")
cpd.Reduce("e4m3", accumulator="h100-fp8")
cpd.Reduce("e4m3", order="random")
cpd.Reduce("e4m3", order="tree", accumulator="e4m3 kahan")
cpd.Reduce("e4m3", exchange="broadcast")
cpd.Reduce("e4m3", exchange="ring")
cpd.Reduce("e4m3", order="ring", exchange="ring", group_size=2)
cpd.Reduce("e4m3", accumulator="e4m3 pairwise", order="ring", exchange="ring")
cpd.Reduce("e4m3", order="ring", exchange="hierarchical")
cpd.Reduce("e4m3", group_size=0)
cpd.Reduce("e4m3", group_size=2.0)
cpd.Reduce("e4m3", aps="on")
cpd.Reduce("e4m3", aps=1)
cpd.Reduce("e4m3", loss_scale=3.0)
cpd.Reduce("e4m3", loss_scale=True)
cpd.Reduce("e4m3", loss_scale=2.0, aps=True)
cpd.Reduce("e4m3", average=1)
cpd.Reduce("e4m3", rounding="nearest")
cpd.Reduce("e4m3", overflow=None)
cpd.Reduce("e4m3", random_bits=0)
cpd.Reduce("e4m3", variant="D")
cpd.Reduce("e4m3", seed=-1)
cpd.Reduce("e4m3", step=1)
cpd.Reduce("e4m3 seed=1")
cpd.simulate_all_reduce([[x]], "e4m3", step=2**24)
cpd.Reduce("e4m3", result="int64")
cpd.Reduce("e8m0", aps=True)
cpd.Reduce("e4m3:unsigned")
cpd.Schedule("e4m3")
cpd.Schedule(cpd.Reduce("e4m3"), exempt="a")
cpd.Schedule(cpd.Reduce("e4m3"), exempt=[3])
cpd.Schedule(cpd.Reduce("e4m3"), first_steps=-1)
cpd.Schedule(cpd.Reduce("e4m3"), first_spec="fp32")
cpd.Schedule(cpd.Reduce("e4m3"), exempt=["x*"])._check_names(["a", "b"])
cpd.Schedule(cpd.Reduce("e4m3", group_size=3))._check_world(2)
cpd.cast([1.0], "e4m3")
cpd.cast(None, "e4m3")
cpd.cast(1.0, "e4m3")
cpd.cast(x, None)
cpd.Cast("e4m3", rounding=3)
cpd.cast(x, "e4m3 overflow=clamp")
cpd.Cast("e4m3", variant=1)
cpd.Cast("e4m3", random_bits=True)
cpd.cast(x, "e4m3", seed=None)
cpd.cast(x, "e4m3", stream=2**64)
cpd.cast(x, "e4m3", random=x)
cpd.cast(x, "e4m3 stochastic", random=[0] * 12)
cpd.cast(x, "e4m3 stochastic", random=make(np.zeros((4, 3), np.int64)))
cpd.cast(x, "e4m3 stochastic", random=make(np.full((3, 4), -1)))
cpd.cast(x, "e4m3 stochastic random_bits=3", random=make(np.full((3, 4), 8)))
cpd.cast(x, "e4m3", out=make(np.zeros((4, 3), np.float32)))
cpd.cast(x, "e4m3", out=make(np.zeros((3, 4))))
cpd.cast(x, "e4m3", out=[0.0])
cpd.cast(x[:2], "e4m3", out=x[1:])
cpd.cast(make(np.zeros(3, np.int32)), "e4m3")
cpd.cast(make(np.zeros(3, np.bool_)), "e4m3")
cpd.cast(make(np.zeros((1,) * 17, np.float32)), "e4m3")
cpd.cast(make(np.zeros(3, np.float16)), "bf16")
cpd.cast(make(np.zeros(3, np.float16)), "e6m9")
cpd.encode(x, "e9m3")
cpd.encode(make(np.float32([1, np.nan])), "e2m1")
cpd.encode(make(np.zeros(3, np.int8)), "e2m1")
cpd.decode(x, "e2m1", 3)
cpd.decode(b"123", "e2m1", 3)
cpd.decode(codes, "e2m1", (3, 5))
cpd.decode(codes, "e2m1", -12)
cpd.decode(codes, "e2m1", 2.0)
cpd.decode(codes, "e2m1", (3, None))
cpd.decode(codes, "e2m1", (2**40, 2**40))
cpd.decode(codes, "e2m1", (1,) * 17)
cpd.decode(codes, "e2m1", 12, dtype="float33")
cpd.decode(codes, "e2m1", 12, out=make(np.zeros(11, np.float32)))
cpd.add(x, 1.0, "e4m3")
cpd.add(x, make(np.zeros((3, 3), np.float32)), "e4m3")
cpd.add(x, make(np.zeros((3, 4), np.float16)), "e4m3")
cpd.mul(x, make(np.zeros((3, 4))), "e4m3")
cpd.mul(x, x, "e4m3", out=make(np.zeros(3, np.float32)))
cpd.fma(x, x, None, "e4m3")
cpd.fma(x, x, x, "e4m3", seed=-1)
cpd.sum(x, "e4m3", 2)
cpd.sum(x, "e4m3", dim=0)
cpd.sum(x, "e4m3", True)
cpd.sum(x, "e4m3 fma")
cpd.sum(x, "h100-fp8")
cpd.sum(x, 3)
cpd.sum(x[0, 0, ...], "e4m3", 0)
cpd.sum(x, "e4m3", random=x)
cpd.sum(x, "e4m3 kahan rounding=stochastic", 0, random=make(np.zeros((4, 3), np.int64)))
cpd.gemm([[1.0]], x, "fp32")
cpd.gemm(x, [[1.0]], "fp32")
cpd.gemm(x, x, "fp32")
cpd.gemm(x[0], x, "fp32")
cpd.gemm(x, x.T, None)
cpd.gemm(x, x.T, "e4m3 tree")
cpd.gemm(x, x.T, "fp32", 1.0)
cpd.gemm(x, x.T, "fp32", x)
cpd.gemm(x, x.T, "fp32", blas=1)
cpd.gemm(x, x.T, "e4m3", blas=True)
cpd.gemm(x, x.T, "h100-fp8")
cpd.gemm(x, x.T, "fp32", dtype="float33")
cpd.gemm(x, x.T, "e4m3", random=x)
cpd.gemm(x, x.T, "e4m3 sequential rounding=stochastic", random=make(np.zeros((3, 3, 2), np.int64)))
cpd.gemm(make(np.zeros((2, 2))), make(np.zeros((2, 2))), "fp32")
cpd.gemm(make(np.zeros((2, 3, 4), "f4")), make(np.zeros((3, 4, 3), "f4")), "fp32")
cpd.gemm(make(np.zeros((2, 2), "f2")), make(np.zeros((2, 2), "f2")), "fp32")
cpd.random_integers(-1)
cpd.random_integers("3")
cpd.random_integers((2**40, 2**40))
cpd.random_integers(3, random_bits=25)
cpd.random_integers(3, -1)
cpd.simulate_all_reduce([], spec)
cpd.simulate_all_reduce(3, spec)
cpd.simulate_all_reduce([x], spec)
cpd.simulate_all_reduce([[x], [x, x]], spec)
cpd.simulate_all_reduce([[x], [x[0]]], spec)
cpd.simulate_all_reduce([[x], [3]], spec)
cpd.simulate_all_reduce([[make(np.zeros(3))]], spec)
cpd.simulate_all_reduce([[x]], "e4m3")
cpd.simulate_all_reduce([[x]], cpd.Reduce("e4m3", group_size=2))
cpd.simulate_all_reduce([[x]], cpd.Schedule(spec), names=["a", "b"], step=0)
cpd.comm.local(0)
cpd.comm.local(2.0)
cpd.comm.local(2, timeout=0)
cpd.comm.local(2, timeout=True)
cpd.comm.local(2, chunk=0)
cpd.comm.nccl(id=b"id", rank=0, size=2)
cpd.comm.local(1).run(lambda c: c.all_reduce(x, spec))
cpd.comm.local(1).run(lambda c: c.all_reduce([3], spec))
cpd.comm.local(1).run(lambda c: c.all_reduce([x], "e4m3"))
cpd.comm.local(1).run(lambda c: c.all_reduce([x], spec, out=[]))
cpd.comm.local(1).run(lambda c: c.all_reduce([x], spec, out=[make(np.zeros(3, np.float32))]))
cpd.comm.local(1).run(lambda c: c.all_reduce([x], spec, report=1))
cpd.comm.local(1).run(lambda c: c.all_reduce([x], cpd.Reduce("e4m3", group_size=2)))
cpd.comm.local(1).run(lambda c: c.reduce([x], spec, 1))
cpd.comm.local(1).run(lambda c: c.reduce_scatter([x], cpd.Reduce("e4m3", exchange="gather")))
cpd.comm.local(1).run(lambda c: c.subgroup([0, 0]))
cpd.comm.local(1).run(lambda c: c.subgroup([1]))
cpd.study.roundoff([[x]], spec, [2])
cpd.study.roundoff([[x]], None, [1])
cpd.study.roundoff([[x]], spec, [1.0])
cpd.study.recommend([[x]], spec, [1], "alpha=1 beta=1")
cpd.study.recommend([[x]], cpd.Reduce("e4m3", order="ring"), [], "alpha=1 beta=1")
cpd.study.cost(spec, 0, [1])
cpd.study.cost(spec, 2, [1], 2)
cpd.study.cost(spec, 2, [-1])
cpd.study.cost(spec, 2, [1], chunk=0)
cpd.study.step_time(cpd.study.Network(shapes=[[1]]), "alpha=1 beta=1", 0)
cpd.study.Machine(alpha=-1, beta=1)
cpd.nothing
"""

TORCH_ERRORS = """
matmul(x, x, sums="fp32")
matmul(x[0, 0], x, sums="fp32")
matmul(x, 3, sums="fp32")
matmul(x, x.T)
matmul(x, x.T, "fp32")
matmul(x, x.T.half(), sums="fp32", dtype=torch.float64)
matmul(x.double(), x.T.double(), sums="fp32")
matmul(x.half(), x.T.half(), sums="fp32")
matmul(x, x.T.to("meta"), sums="fp32")
matmul(x, x.T, sums="h100-fp8")
linear(x, x, recipe=None)
linear(x, x[:, :2], recipe="fp32")
linear(x, x, x[0], recipe="fp32")
linear(x, x, 3, recipe="fp32")
linear(x, x[0], recipe="fp32")
linear(x.half(), x.half(), recipe=cpd.Recipe(sums="e4m3", activation="bf16"))
conv2d(x, x, recipe="fp32")
conv2d(images, x, recipe="fp32")
conv2d(images, kernel, x[0, :3], recipe="fp32")
conv2d(images, kernel, stride=0, recipe="fp32")
conv2d(images, kernel, stride=(1, 2, 3), recipe="fp32")
conv2d(images, kernel, stride=1.0, recipe="fp32")
conv2d(images, kernel, padding=-1, recipe="fp32")
conv2d(images, kernel, padding="full", recipe="fp32")
conv2d(images, kernel, padding="same", stride=2, recipe="fp32")
conv2d(images, kernel, padding_mode="mirror", recipe="fp32")
conv2d(images, kernel, dilation=9, recipe="fp32")
conv2d(images, kernel, groups=2, recipe="fp32")
conv2d(images, kernel, groups=0, recipe="fp32")
cpd.nn.Linear
cpd.nn.Conv2d
cpd.nn.Quantizer
cpd.cast(x, "e4m3", seed=torch.tensor([1, 2]))
cpd.cast(x, "e4m3", stream=torch.tensor(1.0))
cpd.cast(x.to_sparse(), "e4m3")
cpd.cast(x, "e4m3", out=torch.zeros(3, 4, requires_grad=True))
cpd.cast(x, "e4m3", out=torch.zeros(4).expand(3, 4))
cpd.add(x, x.numpy(), "e4m3")
cpd.ddp_hook("e4m3")
cpd.ddp_hook(spec, 3)
cpd.ddp_hook(spec, model=3)
cpd.ddp_hook(spec)
cpd.ddp_hook(cpd.Schedule(spec, exempt=["a"]))
"""

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
    """The objects of `TEXTS` by their expressions; with torch those of `TORCH_TEXTS`, too."""
    lines = _lines(TEXTS) + (_lines(TORCH_TEXTS) if torch else [])
    return {expression: _value(expression, {"torch": torch}) for expression in lines}


def texts_cases(make: Make) -> Cases:
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
    """Each public function, class and method, with its parameters and defaults, without types."""
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


def errors_cases(make: Make) -> Cases:
    yield from _errors(ERRORS, make, {})


def _errors(expressions: str, make: Make, more: dict[str, Any]) -> Cases:
    for expression in _lines(expressions):
        space = {
            "x": make(X.copy()),
            "codes": make(np.zeros(6, np.uint8)),
            "make": make,
            "spec": cpd.Reduce("e4m3"),
        }
        yield expression, error_of(lambda e=expression, s=space: _value(e, s | more))


def torch_errors_cases(make: Make) -> Cases:
    """The errors of torch's layers, and where those of tensors are others than those of arrays."""
    import torch

    from cpd.functional import conv2d, linear, matmul

    more = {
        "torch": torch,
        "conv2d": conv2d,
        "linear": linear,
        "matmul": matmul,
        "images": torch.zeros(1, 2, 5, 5),
        "kernel": torch.zeros(4, 2, 3, 3),
    }
    yield from _errors(TORCH_ERRORS, make, more)
    same = set(_errors(ERRORS, numpy, {}))
    yield from (case for case in _errors(ERRORS, make, {}) if case not in same)


def torch_texts_cases(make: Make) -> Cases:
    import torch

    for expression in _lines(TORCH_TEXTS):
        value = _value(expression, {"torch": torch})
        yield expression, f"{value!s} | {value!r}"
    yield from _signatures(TORCH_PUBLIC)
    yield from _commands(("train --reduce e9m3", "train --nodes 4 --batch 1000"))


# ---- the command line ----------------------------------------------------------------------------

COMMANDS = (
    *("show e4m3fn", "show e5m2 --json", "show (4,3) bf16 e8m0 e4m3fnuz:bias=11"),
    *("show binary8p4se e3m2:nosub e4m3:unsigned --json", "show e2m1 --values"),
    *("show e4m3 --compare e5m2", "show --compare e4m3fn e4m3fnuz", "show --units"),
    *("show --units --json", "show e9m3", "show", "show --codecs", "roundoff --groups x"),
    *("show h100-fp8 terngrad", "format e4m3", "train --aps"),
)


def cli_cases(make: Make) -> Cases:
    """Status, output and errors of commands; the options of all."""
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
    """The error itself: what argparse writes before it differs between versions of Python."""
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
