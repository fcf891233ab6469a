# SPDX-License-Identifier: Apache-2.0
"""Compares the instructions of the GPU's hot loops to golden/sass.json, within 3 %.

The file holds for sm_90 and one release of nvcc, because other releases compile other instructions.
The kernels must be optimized: `./dev test --all` does so, and without a GPU `CUDAARCHS=90 ./dev
test`. After an intended change, `CUDAARCHS=90 CPD_STORE_SASS=1 ./dev test
tests/python/project/test_sass.py` stores the new figures. Then change the comments that state them
(kernels/cuda/gemm_registers.h, gemm_halves.h).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

import sass

_ROOT = Path(__file__).resolve().parents[3]
_STORED = _ROOT / "tests/golden/sass.json"
_ARCHITECTURE = "sm_90"


class Figure(NamedTuple):
    """Finds a kernel's loop and counts the instructions that a thread issues in it for an element.

    The loop is the smallest one in which each instruction of `operations` occurs at least as often
    as stated there. The count is the number of an iteration's instructions, divided by `elements`.
    """

    kernel: str
    operations: dict[str, int]
    elements: int
    by_longest: bool = False
    lacks: str = ""
    longest_in: str = ""
    through: str = ""

    def of(
        self, kernels: dict[str, list[sass.Instruction]], cost: sass.Cost = lambda _: 1
    ) -> float:
        (code,) = (code for name, code in kernels.items() if self.kernel in name)
        fitting = [
            loop
            for loop in sass.loops(code)
            if all(loop.has(*operation) for operation in self.operations.items())
            and not (self.lacks and loop.has(self.lacks))
        ]
        loop = min(fitting, key=lambda loop: len(loop.code))
        turn = loop.turn(
            by_longest=self.by_longest,
            cost=cost,
            longest_in=self.longest_in,
            through=self.through,
        )
        return turn / self.elements


_VECTORS = {"LDG.E.128": 1}
_SHORT_VECTORS = {"LDG.E.64": 1, "STG.E.64": 1}
_FOUR_VECTORS = {"LDG.E.128": 4, "STG.E.128": 4}
_FOUR_SHORT_VECTORS = {"LDG.E.64": 4, "STG.E.64": 4}
_CODES = {"LDG.E.128": 8, "STG.E.U16": 8}  # 4-bit codes; 8-bit codes take as many instructions
_BY_PRODUCT = "Rule<(Rounding)0, (Form)2>, (ElementRoute)0, (DType)0"
_FP32, _BF16, _FP16 = "(DType)0", "(DType)2", "(DType)3"
FIGURES = {
    "cast, nearest, by addition": Figure(
        f"void cast_packs<Rule<(Rounding)0, (Form)2>, {_FP32}>", _VECTORS, 4
    ),
    "cast, nearest, general": Figure(
        f"void cast_packs<Rule<(Rounding)0, (Form)0>, {_FP32}>", _VECTORS, 4
    ),
    "cast, stochastic": Figure(
        f"cast_stochastic<Rule<(Rounding)6, (Form)3>, {_FP32}>", _FOUR_VECTORS, 16, by_longest=True
    ),
    "cast, nearest, bf16": Figure(
        f"void cast_packs<Rule<(Rounding)0, (Form)2>, {_BF16}>", _SHORT_VECTORS, 4
    ),
    "cast, nearest, fp16": Figure(
        f"void cast_packs<Rule<(Rounding)0, (Form)2>, {_FP16}>", _SHORT_VECTORS, 4
    ),
    "cast, stochastic, bf16": Figure(
        f"cast_stochastic<Rule<(Rounding)6, (Form)3>, {_BF16}>",
        _FOUR_SHORT_VECTORS,
        16,
        by_longest=True,
    ),
    "cast, stochastic, fp16": Figure(
        f"cast_stochastic<Rule<(Rounding)6, (Form)3>, {_FP16}>",
        _FOUR_SHORT_VECTORS,
        16,
        by_longest=True,
    ),
    "addition, nearest, by addition": Figure(
        f"operate_all_packs<Rule<(Rounding)0, (Form)2>, {_FP32}>",
        {"FFMA.RM": 4, "STG.E.128": 1},
        4,
    ),
    "addition, nearest, bf16": Figure(
        f"operate_all_packs<Rule<(Rounding)0, (Form)2>, {_BF16}>",
        {"FFMA.RM": 4, "STG.E.64": 1},
        4,
    ),
    "encode, nearest": Figure(
        f"encode_packs<Rule<(Rounding)0, (Form)2>, {_FP32}>",
        {"LDG.E.128": 1, "STG": 1},
        4,
        lacks="STS",
    ),
    "decode": Figure(
        f"decode_packs<Rule<(Rounding)0, (Form)1>, {_FP32}>",
        {"STG.E.128": 1, "LDG": 1},
        4,
        lacks="LDS",
    ),
    "scaled cast, nearest, by addition": Figure(
        f"cast_packs<Rule<(Rounding)0, (Form)2>, (ElementRoute)0, {_FP32}>",
        _VECTORS,
        4,
        by_longest=True,
    ),
    "scaled cast, nearest, bf16": Figure(
        f"cast_packs<Rule<(Rounding)0, (Form)2>, (ElementRoute)0, {_BF16}>",
        _SHORT_VECTORS,
        4,
        by_longest=True,
    ),
    "scaled cast, stochastic": Figure(
        f"void cast_stochastic<Rule<(Rounding)6, (Form)3>, (ElementRoute)0, {_FP32}>",
        _FOUR_VECTORS,
        16,
        by_longest=True,
    ),
    "scaled cast, stochastic, columns": Figure(
        f"cast_stochastic_columns<Rule<(Rounding)6, (Form)3>, (ElementRoute)0, {_FP32}>",
        {"LDG.E.128": 12, "STG.E.128": 4},
        16,
        by_longest=True,
    ),
    "scaled cast, columns of 32": Figure(
        f"cast_columns<{_BY_PRODUCT}, true, 32>",
        {"LDG.E.128": 8, "STG.E.128": 8},
        32,
        through="STG",
    ),
    "scaled cast, columns of 128": Figure(
        f"cast_columns<{_BY_PRODUCT}, true, 128>",
        {"LDG.E.128": 8, "STG.E.128": 8},
        32,
        through="STG",
    ),
    "scaled cast, rows and columns of 32": Figure(
        f"cast_squares<{_BY_PRODUCT}, 32>", {"LDG.E.128": 8, "STG.E.128": 16}, 32, through="STG"
    ),
    "scaled cast, rows and columns of 128": Figure(
        f"cast_squares<{_BY_PRODUCT}, 128>", {"LDG.E.128": 8, "STG.E.128": 16}, 32, through="STG"
    ),
    "scaled cast, neighbours of 32": Figure(
        f"cast_short_blocks<Rule<(Rounding)0, (Form)2>, (ElementRoute)0, {_FP32}, 8>",
        {"LDG.E.128": 8, "STG.E.128": 8},
        32,
        through="STG",
    ),
    "scaled encode, neighbours of 32": Figure(
        f"encode_short_blocks<{_BY_PRODUCT}, 8>", _CODES, 32, through="STG.E.U16"
    ),
    "scaled encode, columns of 32": Figure(
        f"encode_columns<{_BY_PRODUCT}, 32>", _CODES, 32, through="STG.E.U16"
    ),
    "scaled decode": Figure(
        f"decode_scaled_packs<Rule<(Rounding)0, (Form)1>, {_FP32}>",
        {"STG.E.128": 1, "LDG": 2},
        4,
        lacks="LDS",
    ),
    "largest of blocks": Figure(f"find_largest_packs<{_FP32}>", _VECTORS, 4),
    "sum of a row": Figure(
        "sum_rows<(Rounding)0, float, false>", {"FADD": 1, "FFMA": 1, "LDS": 1}, 1
    ),
    "sum of a row, Kahan": Figure(
        "sum_rows<(Rounding)0, float, false>", {"FADD": 4, "FFMA": 4, "LDS": 1}, 1
    ),
    "fold of codes of 8 bits": Figure(
        "short_fold<Veltkamp, false>", {"LDS": 16, "FMUL": 16, "FFMA": 16}, 16
    ),
    "fold of codes of 8 bits, Kahan": Figure(
        "short_fold<Veltkamp, true>", {"LDS": 16, "FMUL": 64, "FFMA": 64}, 16
    ),
    "fold of fp32, any numbers": Figure(
        "short_fold<VeltkampExact, false>", {"FFMA.RM": 16, "LDG": 4}, 16, lacks="LDS"
    ),
    "fold of fp32, any numbers, Kahan": Figure(
        "short_fold<VeltkampExact, true>", {"FFMA.RM": 16, "LDG": 4}, 16, lacks="LDS"
    ),
    "fold of terms of ranks": Figure(
        "fold_short_of<Veltkamp>", {"LDG": 4, "FFMA": 4}, 4, through="FFMA"
    ),
    "fold of terms of ranks, Kahan": Figure(
        "fold_short_of<Veltkamp>", {"LDG": 4, "FFMA": 16}, 4, through="FFMA"
    ),
    "product, plain": Figure("multiply_wide<Binary32, (Scheme)0>", {"FMUL": 64, "LDS": 8}, 64),
    "product, rounded": Figure(
        "multiply_wide<Veltkamp, (Scheme)0>", {"FFMA": 64}, 64, by_longest=True, longest_in="FFMA"
    ),
    "product, rounded, any bits": Figure(
        "multiply_wide<Veltkamp, (Scheme)0>", {"FFMA": 64}, 64, by_longest=True
    ),
    "product, fp16": Figure("multiply_halves<(Half)1>", {"HFMA2": 384}, 256, by_longest=True),
    "product, bf16": Figure("multiply_halves<(Half)2>", {"HFMA2": 384}, 256, by_longest=True),
    "product, exact": Figure(
        "multiply_wide<VeltkampExact, (Scheme)0>", {"FFMA": 64}, 64, by_longest=True
    ),
    "product, Kahan": Figure(
        "multiply_wide<Veltkamp, (Scheme)1>", {"FFMA": 64}, 32, by_longest=True, longest_in="FFMA"
    ),
    "product, Kahan, any bits": Figure(
        "multiply_wide<Veltkamp, (Scheme)1>", {"FFMA": 64}, 32, by_longest=True
    ),
    "product, stochastic, 24 bits": Figure(
        "void multiply<OrderedSum<(Rounding)6, (Scheme)0> >", {"FMUL": 4, "FADD": 6}, 2
    ),
    "product, stochastic, 8 bits": Figure(
        "void multiply<OrderedSum<(Rounding)6, (Scheme)0> >", {"FMUL": 16, "FADD": 24}, 8
    ),
    "matrix unit, exponents": Figure(
        "void multiply<UnitSum<(Rounding)0> >", {"VIADDMNMX": 4, "LDS": 8}, 4
    ),
    "matrix unit, products": Figure(
        "void multiply<UnitSum<(Rounding)0> >", {"FMUL": 32, "F2I": 16}, 16
    ),
    "matrix unit by tiles, exponents": Figure(
        "multiply_units<true>", {"VIADDMNMX": 32, "LDS": 8}, 64
    ),
    "matrix unit by tiles, products": Figure("multiply_units<true>", {"FMUL": 128, "F2I": 64}, 64),
}


_LANES = 132 * 128 * 1.98e9  # an H100's, a second
_COPIED = 3.0e12  # bytes a second that it copies

BYTES = {
    "cast, nearest, by addition": 8,
    "cast, nearest, general": 8,
    "cast, stochastic": 8,
    "cast, nearest, bf16": 4,
    "cast, nearest, fp16": 4,
    "cast, stochastic, bf16": 4,
    "cast, stochastic, fp16": 4,
    "addition, nearest, by addition": 12,
    "addition, nearest, bf16": 6,
    "scaled cast, stochastic, columns": 8,
    "scaled cast, columns of 32": 8,
    "scaled cast, columns of 128": 8,
    "scaled cast, rows and columns of 32": 12,
    "scaled cast, rows and columns of 128": 12,
    "scaled encode, neighbours of 32": 5,
    "scaled encode, columns of 32": 5,
    "scaled cast, neighbours of 32": 8,
    "fold of codes of 8 bits": 1,
    "fold of codes of 8 bits, Kahan": 1,
    "fold of fp32, any numbers": 4,
    "fold of fp32, any numbers, Kahan": 4,
}
"""Maps each kernel to the bytes that it reads and writes for an element.

For a sum over ranks ("fold"), the figure is the bytes read for an element of one rank.
"""


def _cuobjdump() -> Path:
    found = shutil.which("cuobjdump")
    if found is None:
        nvidia = pytest.importorskip("nvidia", reason="no cuobjdump (PyPI: nvidia-cuda-cuobjdump)")
        places = [next(Path(p).glob("cu*/bin/cuobjdump"), None) for p in nvidia.__path__]
        found = next((str(p) for p in places if p), None)
    if found is None:
        pytest.skip("no cuobjdump (PyPI: nvidia-cuda-cuobjdump)")
    return Path(found)


def _compiler() -> str:
    """Its release."""
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    text = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout
    return re.search(r"V(\d+\.\d+)", text)[1]  # type: ignore[index]


def _library() -> Path:
    library = next(iter((_ROOT / "build/release").glob("lib*/libcpd_cuda.so")), None)
    if library is None:
        pytest.skip("CPD was built without CUDA")
    if "CPD_UNOPTIMIZED_CUDA:BOOL=ON" in (_ROOT / "build/release/CMakeCache.txt").read_text():
        pytest.skip("no optimized kernels: CUDAARCHS=90 ./dev test compiles them")
    return library


@pytest.fixture(scope="module")
def kernels() -> dict[str, list[sass.Instruction]]:
    wanted = [figure.kernel for figure in FIGURES.values()] + ["sum_each<", "fold_short_of<"]
    found = sass.kernels(_library(), _cuobjdump(), _ARCHITECTURE, wanted)
    if not found:
        pytest.skip(f"CPD was not built for {_ARCHITECTURE}")
    return found


@pytest.fixture(scope="module")
def stored(kernels: dict[str, list[sass.Instruction]]) -> dict[str, float]:
    compiler = _compiler()
    if os.environ.get("CPD_STORE_SASS"):
        figures = {name: round(figure.of(kernels), 2) for name, figure in FIGURES.items()}
        content = {
            "architecture": _ARCHITECTURE,
            "nvcc": compiler,
            "instructions": figures,
            "estimated shares of a copy's rate": {name: _share(name, kernels) for name in BYTES},
        }
        _STORED.write_text(json.dumps(content, indent=2) + "\n")
    content = json.loads(_STORED.read_text())
    if content["nvcc"] != compiler:
        pytest.skip(f"stored for nvcc {content['nvcc']}, this is {compiler}")
    return content["instructions"]  # type: ignore[no-any-return]


def _share(name: str, kernels: dict[str, list[sass.Instruction]]) -> float:
    """Returns a kernel's speed as a share of the speed at which an H100 copies as many bytes.

    The estimate assumes that only the rate at which instructions are issued limits the kernel.
    Instructions that make random integers do not count, and no GPU was measured.
    """
    slots = FIGURES[name].of(kernels, sass.slots)
    return min(1.0, round(_LANES / slots / (_COPIED / BYTES[name]), 2))


@pytest.mark.slow("disassembles the library")
@pytest.mark.parametrize("name", BYTES)
def test_estimated_shares(
    name: str, kernels: dict[str, list[sass.Instruction]], stored: dict[str, float]
) -> None:
    assert stored  # for this compiler
    shares = json.loads(_STORED.read_text())["estimated shares of a copy's rate"]
    assert _share(name, kernels) == pytest.approx(shares[name], abs=0.03)


@pytest.mark.parametrize("name", FIGURES)
def test_instructions(
    name: str, kernels: dict[str, list[sass.Instruction]], stored: dict[str, float]
) -> None:
    assert FIGURES[name].of(kernels) == pytest.approx(stored[name], rel=0.03)


@pytest.mark.parametrize(
    ("kernel", "operation", "least"),
    [
        ("sum_each<(Rounding)0, float, false>", "LDG.E", 8),
        ("sum_each<(Rounding)0, float, false>", "LDG.E.U16", 8),
        ("sum_rows<(Rounding)0, float, false>", "LDG.E", 8),
        ("fold_short_of<Veltkamp>", "LDG.E", 4),
    ],
)
def test_reads_wait_together(
    kernel: str, operation: str, least: int, kernels: dict[str, list[sass.Instruction]]
) -> None:
    """A GPU thread requests several terms of a sum from memory before it waits for the first one.
    Otherwise sums take five times as long."""
    (code,) = (code for name, code in kernels.items() if kernel in name)
    assert sass.reads_together(code, operation) >= least


def test_comments_give_the_stored_figures() -> None:
    """The tables in gemm_registers.h and gemm_halves.h state the instruction counts that sass.json
    stores."""
    stored = json.loads(_STORED.read_text())["instructions"]
    of_registers = ("rounded", "rounded, any bits", "exact", "Kahan", "Kahan, any bits", "plain")
    tables = {"registers": of_registers, "halves": ("fp16", "bf16")}
    for file, routes in tables.items():
        text = (_ROOT / f"kernels/cuda/gemm_{file}.h").read_text()
        for route in routes:
            found = re.search(rf"^//   {route} +([\d.]+)$", text, re.MULTILINE)
            assert found, route
            assert float(found[1]) == pytest.approx(stored[f"product, {route}"], abs=0.051)


def test_the_shortest_way_through_a_loop() -> None:
    """In a loop of six instructions whose branch skips three, the shortest path has three of them.

    The path through the longest block has all six.
    """
    texts = ["FADD R1", "@P0 BRA 0x50", *["FMUL R1"] * 3, "@P1 BRA 0x0", "EXIT"]
    code = [sass.Instruction(16 * i, text) for i, text in enumerate(texts)]
    (loop,) = sass.loops(code)
    assert [i.name for i in loop.code] == ["FADD", "BRA", "FMUL", "FMUL", "FMUL", "BRA"]
    assert loop.turn() == 3
    assert loop.turn(by_longest=True) == 6
    assert loop.turn(cost=sass.slots) == 5
    assert loop.turn(through="FMUL") == 6
    assert loop.turn(through="FADD") == 3
    assert loop.has("FMUL", 3)
    assert not loop.has("FMUL", 4)
    assert sass.reads_together(code, "FMUL") == 3
    assert (code[1].operation, code[1].is_conditional, code[1].target) == ("BRA", True, 0x50)
