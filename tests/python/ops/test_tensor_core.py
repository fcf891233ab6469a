# SPDX-License-Identifier: Apache-2.0
"""Replays published dot products of NVIDIA's matrix units (MATLAB-tensor-core, arXiv 2512.07004).

For each GPU and operand type, 5,000 published dot products are compared, 2,500 for FP8. `cpd.gemm`
with the preset of the matrix unit and an independent model in 64-bit integers must give the same
bits. If a test changes a rule of the preset on purpose, results must differ; so a wrong rule would
be detected.
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import cpd

_ROOT = Path(__file__).resolve().parents[3]
_DATA = Path(os.environ.get("CPD_DATA", _ROOT.parent / "shared" / "data"))
_VECTORS = _DATA / "tensor-core"

pytestmark = pytest.mark.skipif(
    not (_VECTORS / "H100.npz").exists(),
    reason=f"no tensor-core vectors at {_VECTORS} (CPD_DATA names the data folder)",
)

F32 = npt.NDArray[np.float32]
I64 = npt.NDArray[np.int64]
F64 = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Case:
    """A file of published vectors: its GPU, operand type, result type, and the GPU's preset."""

    gpu: str
    kind: str
    preset: str
    output: str = "fp32"
    operand: str = ""
    adds_c: bool = True

    @property
    def id(self) -> str:
        return f"{self.gpu}-{self.kind}-{self.output}"

    def accumulator(self) -> cpd.Accumulator:
        operands = {"a": self.operand, "b": self.operand} if self.operand else {}
        return cpd.Accumulator(self.output, scheme=self.preset, **operands)


CASES = [
    Case("V100", "fp16", "v100"),
    Case("V100", "fp16", "v100", "fp16"),
    Case("H100", "fp16", "h100-fp16"),
    Case("H100", "fp16", "h100-fp16", "fp16"),
    Case("H100", "bf16", "h100-bf16"),
    Case("H100", "tf32", "h100-tf32"),
    # The published FP8 results are a * b without an addend c.
    Case("H100", "E4M3", "h100-fp8", operand="e4m3fn", adds_c=False),
    Case("H100", "E5M2", "h100-fp8", operand="e5m2", adds_c=False),
    *(
        Case(gpu, kind, preset, output, operand)
        for kind, operand in (("E4M3", "e4m3fn"), ("E5M2", "e5m2"))
        for gpu, preset, output in (
            ("H100", "hopper-mma-fp8", "fp16"),
            ("B200-fp8", "b200-fp8", "fp32"),
            ("B200-fp8", "b200-fp8", "fp16"),
            ("Ada-fp8", "ada-fp8", "fp32"),
            ("Ada-fp8", "ada-fp8", "fp16"),
        )
    ),
]
IDS = [case.id for case in CASES]


@functools.cache
def _load(case: Case) -> tuple[F32, F32, F32, F32]:
    with np.load(_VECTORS / f"{case.gpu}.npz") as archive:
        a, b, c, d = (
            archive[f"{case.kind}_{part}"].view(np.float32)
            for part in ("a", "b", "c", f"d_{case.output}")
        )
    if case.output == "fp16":  # the addend of such an operation is an fp16 number
        c = c.astype(np.float16).astype(np.float32)
    return a, b, c if case.adds_c else np.zeros_like(c), d


def _run(a: F32, b: F32, c: F32, accumulator: cpd.Accumulator) -> F32:
    """Returns n dot products of k terms plus c: a batch of products 1 x k by k x 1."""
    result: F32 = cpd.gemm(a[:, None, :], b[:, :, None], accumulator, c[:, :, None])
    return result[:, :, 0]


def _differences(x: F32, y: F32) -> int:
    return int(np.count_nonzero(x.view(np.uint32) != y.view(np.uint32)))


# ---- the rule, once more ------------------------------------------------------------------------


def _significand(x: F32, emin: int) -> tuple[I64, I64]:
    """Returns the integers s and e with x = s * 2^(e - 23) and e >= emin; e is -5000 for zeros."""
    fraction, exponent = np.frexp(x.astype(np.float64))
    e = np.maximum(exponent.astype(np.int64) - 1, emin)
    s = np.ldexp(fraction, exponent - e + 23).astype(np.int64)
    return s, np.where(s == 0, -5000, e)


def _rounded(x: F64, unit: Any) -> F32:
    """Rounds an exact sum x once to the format in which the matrix unit `unit` stores its sums."""
    _, exponent = np.frexp(x)
    emin = 1 - unit.sum.bias
    quantum = np.maximum(exponent.astype(np.int64) - 1, emin) - unit.sum.man
    scaled = np.ldexp(x, -quantum)
    whole = np.trunc(scaled) if unit.sum_rounding == "toward_zero" else np.rint(scaled)
    result: F32 = np.ldexp(whole, quantum).astype(np.float32)
    return result


def _ordered(x: F32, unit: Any) -> F32:
    """Returns x with its columns in the order in which the matrix unit adds them."""
    if unit.group == 0:
        return x
    k = np.arange(x.shape[1])
    return x[:, np.lexsort((k, k % unit.stride // unit.take, k // unit.group))]


def _model(a: F32, b: F32, c: F32, unit: Any) -> F32:
    a, b = _ordered(a, unit), _ordered(b, unit)
    if unit.promote == 0:
        return _chained(a, b, c, unit)
    dtype = np.float16 if str(unit.sum) == "fp16" else np.float32
    for begin in range(0, a.shape[1], unit.promote):
        stretch = slice(begin, begin + unit.promote)
        part = _chained(a[:, stretch], b[:, stretch], np.zeros_like(c), unit)
        # The addend c and the sum `part` have at most 24 significant bits each. So rounding
        # part + c to binary64 first does not change the result of rounding it to `dtype`.
        c = (part.astype(np.float64) + c).astype(dtype).astype(np.float32)
    return c


def _chained(a: F32, b: F32, c: F32, unit: Any) -> F32:
    s = c[:, 0]
    emin_a, emin_b = 1 - unit.a.bias, 1 - unit.b.bias
    for begin in range(0, a.shape[1], unit.block):
        block = slice(begin, begin + unit.block)
        sa, ea = _significand(a[:, block], emin_a)
        sb, eb = _significand(b[:, block], emin_b)
        sc, ec = _significand(s[:, None], 1 - unit.sum.bias)
        terms = np.concatenate([sa * sb, sc << 23], axis=1)
        exponents = np.concatenate([ea + eb, ec], axis=1)
        greatest = np.maximum(exponents.max(axis=1, keepdims=True), unit.min_exponent)
        drop = np.minimum(greatest - exponents + 46 - unit.fraction_bits, 63)
        cut = np.sign(terms) * (np.abs(terms) >> drop)
        total = cut.sum(axis=1)
        s = _rounded(np.ldexp(total.astype(np.float64), greatest[:, 0] - unit.fraction_bits), unit)
    return s[:, None]


# ---- replay -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_replay_of_published_dot_products(case: Case) -> None:
    a, b, c, d = _load(case)
    assert len(d) == _count(case)
    accumulator = case.accumulator()
    assert accumulator.form == "unit"
    assert _differences(_run(a, b, c, accumulator), d) == 0
    assert _differences(_model(a, b, c, accumulator), d) == 0


def _count(case: Case) -> int:
    return 2500 if case.gpu.endswith("-fp8") else 5000


def test_all_published_vectors_are_replayed() -> None:
    replayed = {(case.gpu, case.kind, case.output) for case in CASES}
    published = {
        (path.stem, *name.split("_d_"))
        for path in _VECTORS.glob("*.npz")
        for name in np.load(path)
        if "_d_" in name
    }
    assert replayed == published


def _changed(unit: Any, **changes: Any) -> cpd.Accumulator:
    fields = {
        "block": unit.block,
        "fraction_bits": unit.fraction_bits,
        "min_exponent": unit.min_exponent,
        "sum": unit.sum,
        "sum_rounding": unit.sum_rounding,
        "promote": unit.promote,
        "group": unit.group,
    }
    fields |= changes
    if fields["promote"] % fields["block"] != 0:
        fields["promote"] = fields["block"]
    if fields["group"] == fields["block"]:
        fields["group"] = 0  # the same sums
    return cpd.Accumulator(a=unit.a, b=unit.b, **fields)


def _mutations(case: Case) -> dict[str, dict[str, Any]]:
    unit = case.accumulator()
    assert unit is not None
    k = _load(case)[0].shape[1]
    other = "nearest_even" if unit.sum_rounding == "toward_zero" else "toward_zero"
    changes: dict[str, dict[str, Any]] = {
        f"rounding {other}": {"sum_rounding": other},
        "half the block": {"block": min(unit.block, k) // 2},
    }
    if unit.group:
        changes["k ascending"] = {"group": 0}
        changes["k by fours"] = {"stride": 8, "take": 4}
    if unit.promote:
        changes["the addend aligned"] = {"promote": 0}
    if unit.promote and case.output == "fp32":
        # The sum of a block that starts from 0 loses few digits. Therefore most changes of the
        # preset give the same results; only the two changes below give different results.
        changes = {"the addend aligned": {"promote": 0}, "F = 16": {"fraction_bits": 16}}
    elif case.output == "fp32":  # an fp16 result has too few digits to tell F from F +- 1
        changes["F - 1"] = {"fraction_bits": unit.fraction_bits - 1}
        changes["F + 1"] = {"fraction_bits": unit.fraction_bits + 1}
    return changes


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_changed_rules_fail_the_replay(case: Case, record_property: Any) -> None:
    """Each changed rule must give other bits than the GPU for at least 50 dot products (1 % of
    5,000)."""
    a, b, c, d = _load(case)
    unit = case.accumulator()
    assert unit is not None
    counts = {}
    for name, change in _mutations(case).items():
        changed = _changed(unit, **change).replace(format=case.output)
        counts[name] = _differences(_run(a, b, c, changed), d)
        record_property(name, counts[name])
    print(f"{case.id}: of 5000 dot products differ: {counts}")
    assert all(count >= 50 for count in counts.values()), counts


@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_chained_blocks(case: Case) -> None:
    """A matrix unit's preset and its independent model agree on dot products of four blocks.

    Each dot product consists of four published vectors, each one block of products long. A preset
    with a doubled block length must give different results.
    """
    a, b, c, _ = _load(case)
    unit = case.accumulator()
    assert unit is not None
    a, b, c = (
        np.ascontiguousarray(x) for x in (a.reshape(1250, -1), b.reshape(1250, -1), c[:1250])
    )
    if unit.block > a.shape[1] // 4:  # h100-tf32: vectors of half a block
        assert unit.block == a.shape[1] // 2
    got = _run(a, b, c, case.accumulator())
    assert _differences(got, _model(a, b, c, unit)) == 0
    doubled = _changed(unit, block=2 * unit.block).replace(format=case.output)
    count = _differences(_run(a, b, c, doubled), got)
    print(f"{case.id}: twice the block changes {count} of 1250")
    assert count >= 13


def test_results_of_which_nothing_is_published_are_refused() -> None:
    with pytest.raises(ValueError, match="hopper-mma-fp8"):
        cpd.Accumulator("fp16 h100-fp8")
