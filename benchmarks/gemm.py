# SPDX-License-Identifier: Apache-2.0
"""Measures the rows `gemm/<scheme>/<format>/<size>`. Checks the bits, then compares the rate in
GMAC/s with torch's sgemm."""

from __future__ import annotations

import math
import os
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache

import gemm_bits
import torch
from timing import Row, Side, timed

import cpd
from cpd import _core

UNIT = "GMAC/s"
SEED, STREAM = 1, 2  # of the stochastic rows' random bits


@dataclass(frozen=True)
class Scheme:
    """An accumulator for a given format of the sums, and the least fraction of sgemm's rate that
    its row must reach (its bar)."""

    make: Callable[[str], cpd.Accumulator]
    bar: float | None = None


def _stochastic(random_bits: int, scheme: str = "sequential") -> Callable[[str], cpd.Accumulator]:
    return lambda f: cpd.Accumulator(
        f, scheme=scheme, rounding="stochastic", random_bits=random_bits, seed=SEED, stream=STREAM
    )


def _preset(name: str) -> Callable[[str], cpd.Accumulator]:
    return lambda f: cpd.Accumulator(name, a=f, b=f)


SCHEMES = {
    "sequential": Scheme(cpd.Accumulator, 1 / 4),
    "fma": Scheme(lambda f: cpd.Accumulator(f, scheme="fma"), 1 / 4),
    "kahan": Scheme(lambda f: cpd.Accumulator(f, scheme="kahan"), 1 / 13),
    "stochastic8": Scheme(_stochastic(8), 1 / 22),
    "stochastic16": Scheme(_stochastic(16), 1 / 30),
    "stochastic24": Scheme(_stochastic(24), 1 / 60),
    "h100-fp16": Scheme(_preset("h100-fp16"), 1 / 40),
    "h100-fp8": Scheme(_preset("h100-fp8"), 1 / 40),
    "chunked64": Scheme(lambda f: cpd.Accumulator(f, scheme="chunked", chunk=64)),
    "pairwise": Scheme(lambda f: cpd.Accumulator(f, scheme="pairwise")),
    "int32": Scheme(lambda _: cpd.Accumulator("int32")),
    "int32-saturate": Scheme(lambda _: cpd.Accumulator("int32 overflow=saturate")),
    "kulisch": Scheme(lambda f: cpd.Accumulator.exact(f, f, 1024).replace(format="fp32")),
    "stochastic8-kahan": Scheme(_stochastic(8, "kahan")),
    "stochastic8-fma": Scheme(_stochastic(8, "fma")),
    "stochastic8-pairwise": Scheme(_stochastic(8, "pairwise")),
    "blas": Scheme(cpd.Accumulator),
}
BARRED = tuple(name for name, scheme in SCHEMES.items() if scheme.bar is not None)
ROUNDED = tuple(name for name in BARRED if not name.startswith("h100"))
PARTIAL = 0.8  # of the bar: for other formats, odd shapes and careful tiles
TWO_THREADS = 1.7
H200_TARGET = 2000.0  # GMAC/s with 8-bit accumulators

Shape = tuple[int, int, int]  # M, K, N
ODD: Shape = (1000, 777, 513)


@dataclass(frozen=True)
class Case:
    """One row."""

    scheme: str
    format: str
    shape: Shape
    bar: float | None = None
    careful: bool = False
    threads: int = 1
    backend: str = ""  # empty: the one in use
    group: str = ""  # of rows, in the name
    operands: str = ""  # the operands' format; empty: the format of the sums

    @property
    def name(self) -> str:
        m, k, n = self.shape
        size = str(m) if m == k == n else f"{m}x{k}x{n}"
        group = f"{self.group}/" if self.group else ""
        group += f"from-{self.operands}/" if self.operands else ""
        name = f"gemm/{group}{self.scheme}/{self.format}/{size}"
        name += "/careful" if self.careful else ""
        name += f"/threads{self.threads}" if self.threads > 1 else ""
        return f"{self.backend}/{name}" if self.backend else name

    @property
    def accumulator(self) -> cpd.Accumulator:
        return SCHEMES[self.scheme].make(self.format)

    @property
    def macs(self) -> float:
        return float(math.prod(self.shape))

    def multiply(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return cpd.gemm(a, b, self.accumulator, blas=self.scheme == "blas")


def cube(n: int) -> Shape:
    return n, n, n


def cases() -> Iterator[Case]:
    """Yields all cases for the CPU."""
    for n in (512, 1024):
        for f in ("e4m3", "e5m2"):
            for scheme in BARRED:
                yield Case(scheme, f, cube(n), SCHEMES[scheme].bar)

    def partial(scheme: str, f: str, shape: Shape, careful: bool = False) -> Case:
        return Case(scheme, f, shape, PARTIAL * (SCHEMES[scheme].bar or 0), careful)

    for f in ("e3m2ieee", "e6m9", "fp16"):
        for scheme in ROUNDED:
            yield partial(scheme, f, cube(512))
    yield partial("h100-fp16", "fp16", cube(512))
    for scheme in BARRED:
        yield partial(scheme, "e4m3", ODD)
    for scheme in ROUNDED:
        yield partial(scheme, "e4m3", cube(512), careful=True)
    for scheme in BARRED:
        yield Case(scheme, "e4m3", cube(1024), TWO_THREADS, threads=2)
    for scheme in BARRED:
        yield Case(scheme, "e4m3", cube(512), backend="avx2")
    for scheme, f in (
        ("chunked64", "e6m9"),
        ("pairwise", "e4m3"),
        ("sequential", "fp32"),
        ("int32", "int8"),
        ("int32-saturate", "int8"),
        ("kulisch", "e4m3fn"),
        ("blas", "fp32"),
    ):
        yield Case(scheme, f, cube(512))
    for scheme, f, operand_format in (
        ("sequential", "fp16", "e4m3"),
        ("sequential", "e6m9", "e5m2"),
        ("fma", "bf16", "e4m3"),
        ("kahan", "fp16", "e4m3"),
        ("pairwise", "fp16", "e4m3"),
    ):
        yield Case(scheme, f, cube(512), operands=operand_format)


# ---- data --------------------------------------------------------------------------------------


def operands(case: Case, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns normally distributed operands in the operands' format. A sum of K products of
    operands with standard deviation 1 has the deviation √K. The operands' deviation is 1 if the
    format's maximum is at least 6 √K. Otherwise it is smaller, so that the maximum is twelve
    deviations of a sum."""
    m, k, n = case.shape
    f = cpd.Format(case.format)
    in_range = 6 * math.sqrt(k) <= f.max
    deviation = 1.0 if in_range else math.sqrt(f.max / (12 * math.sqrt(k)))
    random = torch.Generator().manual_seed(seed)
    operand_format = case.operands or f
    a = cpd.cast(torch.randn(m, k, generator=random) * deviation, operand_format)
    b = cpd.cast(torch.randn(k, n, generator=random) * deviation, operand_format)
    if case.careful:
        make_careful(a, b, f)
    return a, b


def make_careful(a: torch.Tensor, b: torch.Tensor, f: cpd.Format) -> None:
    """Makes some sums come near the format's maximum repeatedly. Replaces every 64th row of a and
    every 512th column of b, so that their products are 0.8 of the maximum, with alternating signs
    along k. About 1 % of the tiles contain such a sum: one in 128 tiles of 8 × 32 sums, and one in
    512 tiles of 4 × 16 sums."""
    large = cpd.cast(torch.tensor([math.sqrt(0.8 * f.max)]), f)
    k = torch.arange(64, a.shape[1], 128)
    signs = 1 - 2 * (torch.arange(len(k)) % 2).to(a.dtype)
    a[::64, k] = large
    b[k, ::512] = (large * signs)[:, None]


# ---- running -----------------------------------------------------------------------------------


@contextmanager
def setting(backend: str, threads: int) -> Iterator[None]:
    """A context in which CPD uses a backend ("": the default), and torch and CPD use a number of
    threads."""
    before = os.environ.get("CPD_NUM_THREADS"), torch.get_num_threads()
    os.environ["CPD_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    _core.force_backend(backend)
    try:
        yield
    finally:
        _core.force_backend("")
        torch.set_num_threads(before[1])
        if before[0] is None:
            del os.environ["CPD_NUM_THREADS"]
        else:
            os.environ["CPD_NUM_THREADS"] = before[0]


def on_threads(threads: int, work: Callable[[], object]) -> Callable[[], object]:
    """Returns a function that runs `work` with `threads` threads in CPD. torch's number of threads
    is unchanged."""

    def run() -> None:
        os.environ["CPD_NUM_THREADS"] = str(threads)  # read at each call
        work()

    return run


@cache
def wrong_bits(case: Case, seed: int) -> str:
    """Describes what is wrong with the product. Returns an empty text if nothing is wrong."""
    a, b = operands(case, seed)
    with setting("", 1):
        if case.scheme == "blas":
            return gemm_bits.check_near(case.multiply(a, b), a, b)
        return gemm_bits.check(case.multiply, case.accumulator, a, b, seed)


def wrong_by_threads(case: Case, a: torch.Tensor, b: torch.Tensor) -> str:
    """Returns a text if the product on case.threads threads has other bits than on one thread, else
    an empty text."""
    with setting("", 1):
        reference = case.multiply(a, b)
    with setting("", case.threads):
        same = gemm_bits.equal(reference, case.multiply(a, b))
    return "" if same else f"{case.threads} threads differ from one"


def cpu_row(case: Case, options: Namespace) -> Row:
    a, b = operands(case, options.seed)
    wrong = wrong_bits(replace(case, bar=None, threads=1, backend=""), options.seed)
    if not wrong and case.threads > 1:
        wrong = wrong_by_threads(case, a, b)
    if wrong:
        return {"name": case.name, "wrong": wrong}
    with setting(case.backend, 1):
        backend = cpd.backend()
        work = Side(on_threads(case.threads, lambda: case.multiply(a, b)), case.macs)
        if case.threads > 1:
            against = "one thread"
            baseline = Side(on_threads(1, lambda: case.multiply(a, b)), case.macs)
        else:
            against = "torch sgemm"
            baseline = Side(lambda: torch.mm(a, b), case.macs)
        row = timed(case.name, UNIT, work, against, baseline, options.repeats)
    row["backend"] = backend
    if case.bar is not None and backend == (case.backend or "avx512"):
        row["bar"] = round(case.bar, 4)
    return row


def missing(case: Case) -> str:
    """Returns the reason why the benchmark row of `case` cannot run here, or an empty text if it
    can."""
    if case.threads > len(os.sched_getaffinity(0)):
        return f"fewer than {case.threads} cores"
    if case.backend and (case.backend not in _core.backends() or case.backend == cpd.backend()):
        return f"{case.backend} is not another backend of this machine"
    if case.scheme == "blas" and not _core.cpu_blas():
        return "no BLAS found"
    return ""


# ---- CUDA --------------------------------------------------------------------------------------


def cuda_row(case: Case, options: Namespace) -> Row:
    """Measures a product of 4096³ on the first GPU, compared to the GPU's own sgemm without TF32.
    Checks the bits as on the CPU."""
    name = f"cuda/{case.name}"
    host = operands(case, options.seed)
    wrong = gemm_bits.check_cuda(case.multiply, case.accumulator, *host, options.seed)
    if wrong:
        return {"name": name, "wrong": wrong}
    torch.backends.cuda.matmul.allow_tf32 = False
    a, b = (x.cuda() for x in host)

    def finished(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            work()
            torch.cuda.synchronize()

        return run

    work = Side(finished(lambda: case.multiply(a, b)), case.macs)
    baseline = Side(finished(lambda: torch.mm(a, b)), case.macs)
    row = timed(name, UNIT, work, "cuBLAS sgemm", baseline, options.repeats)
    row["device"] = torch.cuda.get_device_name()
    if "H200" in row["device"] and case.scheme == "sequential":
        row["bar"] = round(H200_TARGET / row["baseline"], 4)
    return row


def rows(options: Namespace) -> Iterator[Row]:
    """Yields the selected benchmark rows as soon as each is measured. A row with `skipped` gives
    the reason why it did not run."""
    for case in cases():
        if not options.selection.wants(case.name):
            continue
        reason = missing(case)
        yield {"name": case.name, "skipped": reason} if reason else cpu_row(case, options)
    for scheme in BARRED:
        case = Case(scheme, "e4m3", cube(4096))
        if not options.selection.wants(f"cuda/{case.name}"):
            continue
        if torch.cuda.is_available():
            yield cuda_row(case, options)
        else:
            yield {"name": f"cuda/{case.name}", "skipped": "no GPU"}
