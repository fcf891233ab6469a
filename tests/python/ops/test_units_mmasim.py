# SPDX-License-Identifier: Apache-2.0
"""Compares the presets of matrix units to mmasim, an independent model that runs in the test.

The operands are random numbers of all sizes, and special cases that no published vector has.
"""

from __future__ import annotations

import functools
import sys
import types
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd

torch = pytest.importorskip("torch")
pytest.importorskip("mmasim", reason="mmasim (PyPI) is not installed: no live model of the units")

# The module `mmasim.arithmetic.fma` compiles a C++ program when it is imported, so an empty module
# replaces it. The matrix units that this file tests do not use the module.
_fma = types.ModuleType("mmasim.arithmetic.fma")
_fma.MMA_FMA = object  # type: ignore[attr-defined]
sys.modules.setdefault("mmasim.arithmetic.fma", _fma)

from mmasim.amd.sim import MFMA  # noqa: E402
from mmasim.nv_ptx.sim import (  # noqa: E402
    MMA,
    WGMMA,
    MMABlockScale,
    TCGen05MMA,
    TCGen05MMABlockScale,
)

F32 = npt.NDArray[np.float32]
Model = Callable[[Any, Any, Any], Any]
"""A function that returns the dot products of the rows of a and b, each plus c."""

DTYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "tf32": torch.float32,
    "e4m3fn": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "fp32": torch.float32,
}


@dataclass(frozen=True)
class Case:
    preset: str
    model: Callable[[], Model]
    output: str = "fp32"
    operand: str = ""

    @property
    def id(self) -> str:
        return "-".join(filter(None, (self.preset, self.operand, self.output)))

    def accumulator(self) -> cpd.Accumulator:
        operands = {"a": self.operand, "b": self.operand} if self.operand else {}
        return cpd.Accumulator(self.output, scheme=self.preset, **operands)


def _mma(arch: str, shape: str, operand: str, output: str) -> Callable[[], Model]:
    kinds = f"{shape}.{output}.{operand}.{operand}.{output}"
    return lambda: MMA(arch, kinds).dpa  # type: ignore[no-any-return]


def _mfma(arch: str, suffix: str) -> Callable[[], Model]:
    return lambda: MFMA(arch, suffix).dpa  # type: ignore[no-any-return]


def _tcgen05(shape: str, kind: str, operand: str, output: str) -> Callable[[], Model]:
    kinds = f"m64n8{shape}.kind::{kind}.{output}.{operand}.{operand}"
    return lambda: TCGen05MMA("Blackwell", kinds).dpa  # type: ignore[no-any-return]


def _by_halves() -> Model:
    """Returns a model of FP8 products with fp16 results by mma.sync, on Hopper and later.

    The GPU converts the operands to fp16 and adds 32 products with two fp16 instructions.
    """
    half = MMA("Hopper", "m16n8k16.f16.f16.f16.f16")

    def dot(a: Any, b: Any, c: Any) -> Any:
        for k in range(0, a.shape[-1], 32):
            total = torch.zeros_like(c)
            for first in (0, 2):
                chosen = [k + i for i in range(32) if i % 4 in (first, first + 1)]
                total = half.dpa(a[:, chosen].half(), b[:, chosen].half(), total)
            c = (total.double() + c.double()).half()  # exact, then rounded
        return c

    return dot


def _then_added() -> Model:
    """Returns a model of FP8 products that adds 32 products to +0, and then adds c in fp32."""
    unit = TCGen05MMA("Blackwell", "m64n8k32.kind::f8f6f4.f32.e4m3.e4m3")

    def dot(a: Any, b: Any, c: Any) -> Any:
        for k in range(0, a.shape[-1], 32):
            c = unit.dpa(a[:, k : k + 32], b[:, k : k + 32], torch.zeros_like(c)) + c
        return c

    return dot


CASES = [
    *(Case("v100", _mma("Volta", "m8n8k4", "f16", f"f{n}"), f"fp{n}") for n in (32, 16)),
    *(Case("turing-fp16", _mma("Turing", "m16n8k8", "f16", f"f{n}"), f"fp{n}") for n in (32, 16)),
    *(
        Case(preset, _mma(arch, "m16n8k16", "f16", f"f{n}"), f"fp{n}")
        for preset, arch in (
            ("a100", "Ampere"),
            ("ada-fp16", "Ada Lovelace"),
            ("h100-fp16", "Hopper"),
            ("b200-fp16", "Blackwell"),
            ("rtx-blackwell-fp16", "RTX Blackwell"),
        )
        for n in (32, 16)
    ),
    *(
        Case(f"{unit}-{kind}", _mma(arch, shape, kind, "f32"))
        for unit, arch in (
            ("a100", "Ampere"),
            ("ada", "Ada Lovelace"),
            ("h100", "Hopper"),
            ("b200", "Blackwell"),
            ("rtx-blackwell", "RTX Blackwell"),
        )
        for kind, shape in (("bf16", "m16n8k16"), ("tf32", "m16n8k8"))
    ),
    *(
        Case("ada-fp8", _mma("Ada Lovelace", "m16n8k32", kind, f"f{n}"), f"fp{n}", operand)
        for kind, operand in (("e4m3", "e4m3fn"), ("e5m2", "e5m2"))
        for n in (32, 16)
    ),
    *(
        Case(
            "rtx-blackwell-fp8",
            _mma("RTX Blackwell", "m16n8k32.kind::f8f6f4", kind, f"f{n}"),
            f"fp{n}",
            operand,
        )
        for kind, operand in (("e4m3", "e4m3fn"), ("e5m2", "e5m2"))
        for n in (32, 16)
    ),
    Case("h100-fp8", lambda: WGMMA("Hopper", "m64n8k32.f32.e4m3.e4m3").dpa),
    *(
        Case(preset, model, output, operand)
        for preset in ("hopper-mma-fp8", "b200-fp8")
        for model, output in ((_by_halves, "fp16"), (_then_added, "fp32"))
        for operand in ("e4m3fn", "e5m2")
    ),
    *(
        Case("b200-tcgen05-fp16", _tcgen05("k16", "f16", "f16", f"f{n}"), f"fp{n}")
        for n in (32, 16)
    ),
    Case("b200-tcgen05-bf16", _tcgen05("k16", "f16", "bf16", "f32")),
    Case("b200-tcgen05-tf32", _tcgen05("k8", "tf32", "tf32", "f32")),
    *(
        Case("b200-tcgen05-fp8", _tcgen05("k32", "f8f6f4", kind, f"f{n}"), f"fp{n}", operand)
        for kind, operand in (("e4m3", "e4m3fn"), ("e5m2", "e5m2"))
        for n in (32, 16)
    ),
    Case("cdna1-fp16", _mfma("CDNA1", "f32_32x32x8f16")),
    Case("cdna1-bf16", _mfma("CDNA1", "f32_32x32x4bf16")),
    Case("cdna2-fp16", _mfma("CDNA2", "f32_32x32x8f16")),
    Case("cdna2-bf16", _mfma("CDNA2", "f32_32x32x4bf16")),
    Case("cdna2-bf16-1k", _mfma("CDNA2", "f32_32x32x8bf16_1k")),
    Case("cdna3-fp16", _mfma("CDNA3", "f32_32x32x8_f16")),
    Case("cdna3-bf16", _mfma("CDNA3", "f32_32x32x8_bf16")),
    Case("cdna3-xf32", _mfma("CDNA3", "f32_16x16x8_xf32")),
    Case("cdna3-fp8", _mfma("CDNA3", "f32_16x16x32_fp8_fp8")),
    Case("cdna3-fp8", _mfma("CDNA3", "f32_16x16x32_bf8_bf8"), operand="e5m2fnuz"),
]
KINDS = ("near", "wide", "top", "bottom", "special", "zeros", "cancelled")


def _values(f: cpd.Format, kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> F32:
    """Returns random values of a format: near 1, of all sizes, or at the ends of its range."""
    low, high = int(np.log2(f.min_normal)) - f.man, int(np.floor(np.log2(f.max)))
    ends = {
        "near": (-4, 5),
        "cancelled": (-4, 5),
        "zeros": (-4, 5),
        "top": (max(low, (high * 7) // 8 - 4), high + 1),
        "bottom": (low, max(low + f.man + 6, low * 7 // 16)),
    }.get(kind, (low, high + 1))
    exponent = rng.integers(*ends, shape)
    x = np.ldexp(1 + rng.random(shape), exponent) * rng.choice((-1.0, 1.0), shape)
    values: F32 = cpd.cast(x.astype(np.float32), cpd.Cast(f, rounding="toward_zero"))
    corners = np.array([0, -0.0, f.max, -f.max, f.min_subnormal, f.min_normal], np.float32)
    if kind == "special":
        corners = np.append(corners, cpd.cast(np.float32([np.inf, -np.inf, np.nan]), f))
    share = {"special": 0.08, "zeros": 0.9}.get(kind, 0.04 if kind == "wide" else 0.0)
    corners = corners[:2] if kind == "zeros" else corners
    picked = rng.choice(corners, shape)
    return np.where(rng.random(shape) < share, picked, values)


@functools.cache
def _operands(case: Case, kind: str, count: int = 400) -> tuple[F32, F32, F32]:
    unit = case.accumulator()
    assert unit is not None
    rng = np.random.default_rng(zlib.crc32(f"{case.id} {kind}".encode()))
    # mmasim's model of CDNA3's FP8 gives wrong results for an addend c that is NaN or infinite: it
    # treats the addend as if it had exponent -1. The test avoids such addends.
    drops = kind == "special" and unit.adder == "two_steps_even"
    k = max(unit.block, unit.group, unit.promote) * (1 if drops else 2)
    a, b = (_values(f, kind, (count, k), rng) for f in (unit.a, unit.b))
    of_c = cpd.Format(case.output)
    c = _values(of_c, kind, (count,), rng)
    if kind == "cancelled":  # pairs of products, and c against the rest
        a[:, 1::2], b[:, 1::2] = a[:, ::2], -b[:, ::2]
        half = k // 2
        a[:, half:] = 0
        a[:, 1] *= rng.choice((0.0, 1.0), count).astype(np.float32)
        c = cpd.cast(-a[:, 0] * b[:, 0], of_c)
    elif kind in ("bottom", "top", "wide"):  # c of the products' size, too
        with np.errstate(over="ignore"):
            near = cpd.cast(a[:, 0] * b[:, 0] * np.float32(1.37), of_c)
        c = np.where(np.isfinite(near) & (rng.random(count) < 0.6), near, c)
    return a, b, np.where(np.isfinite(c) | (kind == "special" and not drops), c, np.float32(0))


def _tensor(x: F32, name: str) -> Any:
    return torch.from_numpy(np.ascontiguousarray(x)).to(DTYPES[name])


def _run(case: Case, a: F32, b: F32, c: F32) -> F32:
    result: F32 = cpd.gemm(a[:, None, :], b[:, :, None], case.accumulator(), c[:, None, None])
    return result[:, 0, 0]


def _differing(x: F32, y: F32) -> npt.NDArray[np.bool_]:
    """Returns a mask of the elements that differ; all NaNs count as equal."""
    both_nan = np.isnan(x) & np.isnan(y)
    different: npt.NDArray[np.bool_] = (x.view(np.uint32) != y.view(np.uint32)) & ~both_nan
    return different


@pytest.mark.few("", 3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_presets_match_the_model(case: Case, kind: str) -> None:
    a, b, c = _operands(case, kind)
    unit = case.accumulator()
    assert unit is not None
    names = {str(cpd.Format(name)): name for name in DTYPES}
    model = case.model()
    expected = model(
        _tensor(a, names[str(unit.a)]), _tensor(b, names[str(unit.b)]), _tensor(c, case.output)
    )
    got = _run(case, a, b, c)
    different = np.flatnonzero(_differing(got, expected.float().numpy()))
    if len(different):
        i = int(different[0])
        wrong = f"{got[i].item().hex()}, the model {expected[i].item().hex()}"
        pytest.fail(f"{len(different)} differ; number {i}: a={a[i]}, b={b[i]}, c={c[i]}: {wrong}")


def test_the_cases_reach_the_corners() -> None:
    """The random operands of these tests give some infinities, subnormals, NaNs, and zeros by
    cancellation."""
    results = {}
    for case in CASES:
        if case.preset in ("h100-bf16", "h100-fp16"):
            for kind in KINDS:
                results[case.id, kind] = _run(case, *_operands(case, kind))
    bf16_top, bf16_low = results["h100-bf16-fp32", "top"], results["h100-bf16-fp32", "bottom"]
    assert np.isinf(bf16_top).sum() > 50
    assert (bf16_low == 0).sum() > 5
    assert (np.abs(results["h100-fp16-fp16", "bottom"]) < 2.0**-14).sum() > 50
    assert np.isnan(results["h100-bf16-fp32", "special"]).sum() > 50
    zeros = results["h100-bf16-fp32", "cancelled"]
    assert (zeros == 0).sum() > 20
    assert not np.signbit(zeros[zeros == 0]).any()


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("mxfp8", "k32.kind::mxf8f6f4.block32.f32.e4m3.e4m3"),
        ("mxfp4", "k64.kind::mxf4.block32.f32.e2m1.e2m1"),
        ("nvfp4", "k64.kind::mxf4nvf4.block16.f32.e2m1.e2m1"),
    ],
)
def test_units_with_scales_are_the_same_in_both_instructions(name: str, kinds: str) -> None:
    """RTX Blackwell's presets with block scales equal the presets of b200-tcgen05.

    mmasim has equal rules for mma.sync on RTX Blackwell and tcgen05 on B200. Other tests compare
    RTX Blackwell's presets with mmasim.
    """
    scale = "ue4m3" if name == "nvfp4" else "ue8m0"
    units = [cpd.Accumulator(f"{gpu}-{name}") for gpu in ("rtx-blackwell", "b200-tcgen05")]
    assert units[0] == units[1]
    models = [
        MMABlockScale("RTX Blackwell", f"m16n8{kinds}.f32.{scale}"),
        TCGen05MMABlockScale("Blackwell", f"m128n8{kinds}.{scale}"),
    ]
    rules = [vars(model.arithmetic_op) for model in models]
    assert rules[0] == rules[1]
