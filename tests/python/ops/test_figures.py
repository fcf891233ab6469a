# SPDX-License-Identifier: Apache-2.0
"""Reproduces published and computed figures on rounding errors of accumulation.

Stall points are exact. Other figures have a tolerance, and hold for the stated seeds.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

import cpd

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]


def _prefix_sums(terms: F32, counts: list[int], accumulator: str) -> F32:
    """Returns the sum of the first N terms, in order, for each N of `counts`."""
    mask = np.zeros((len(counts), len(terms)), np.float32)
    for row, count in zip(mask, counts, strict=True):
        row[:count] = 1
    sums: F32 = cpd.gemm(mask, terms[:, None], accumulator)[:, 0]
    return sums


@pytest.mark.parametrize(
    ("name", "k", "value"),
    [("fp16", 513, 7.0859375), ("bf16", 65, 5.0625), ("fp32", 2_097_152, 15.40368271)],
)
def test_harmonic_sum_stalls(name: str, k: int, value: float) -> None:
    """The rounded sum 1 + 1/2 + 1/3 + … changes for the last time at term 1/(k - 1) (Higham).

    Each term is first rounded to the format. The terms decrease, so after one term leaves the sum
    unchanged, all later terms do.
    """
    n = k + 100
    terms = cpd.cast(1.0 / np.arange(1, n + 1, dtype=np.float64), name).astype(np.float32)
    before, last, same, later = _prefix_sums(terms, [k - 2, k - 1, k, n], name)
    assert before < last
    assert last == same == later
    assert f"{last:.10g}" == f"{value:.10g}"


@pytest.mark.parametrize(
    ("name", "stall"),
    [("e5m2", 8), ("e4m3", 16), ("bf16", 256), ("e6m9", 1024), ("fp16", 2048), ("fp32", 1 << 24)],
)
def test_sum_of_ones_stalls_at_two_to_the_precision(name: str, stall: int) -> None:
    ones = np.ones((stall + 10, 1), np.float32)
    assert cpd.gemm(ones.T, ones, name).item() == stall
    assert cpd.gemm(ones[: stall - 1].T, ones[: stall - 1], name).item() == stall - 1
    assert cpd.sum(ones[:, 0], name).item() == stall


SEEDS = range(8)


def _wang_errors(accumulator: cpd.Accumulator) -> tuple[F32, F64]:
    """Returns sums of 65,536 uniform terms of mean 1 and deviation 1, and their relative errors.

    There is one sum for each seed.
    """
    n = 65_536
    half = 3**0.5
    terms = [np.random.default_rng(s).uniform(1 - half, 1 + half, n) for s in SEEDS]
    x = np.stack(terms).astype(np.float32)
    sums = cpd.gemm(x, np.ones((n, 1), np.float32), accumulator, seed=1)[:, 0]
    return sums, np.abs(sums / x.astype(np.float64).sum(axis=1) - 1)


def test_wang_2018_without_chunks_stalls_at_4096() -> None:
    sums, errors = _wang_errors(cpd.Accumulator("e6m9"))
    assert (sums == 4096).all()
    assert (np.abs(errors - 0.937) < 0.001).all()


@pytest.mark.parametrize(
    ("chunk", "least", "most"),
    # Wang et al. (2018) state a relative error of 74 % for sums in 1-6-9 (six exponent and nine
    # mantissa bits) in chunks of 8. With one seed, chunks of 32, 64 and 256 give errors of 0.33,
    # 0.14 and 0.35 %.
    [(8, 0.73, 0.76), (32, 0.0, 0.035), (64, 0.0, 0.008), (256, 0.0, 0.008)],
)
def test_wang_2018_chunks(chunk: int, least: float, most: float) -> None:
    _, errors = _wang_errors(cpd.Accumulator("e6m9 chunked", chunk=chunk))
    print(f"chunk {chunk}: median {np.median(errors):.3%}, greatest {errors.max():.3%}")
    assert (errors >= least).all()
    assert (errors <= most).all()
    assert np.median(errors) <= max(0.76 * (chunk == 8), 0.01)


def test_wang_2018_stochastic_and_kahan() -> None:
    """A sum of 65,536 terms in e6m9 errs by about 2.5 % if its rounding is stochastic.

    With Kahan's summation, the sum errs by about 0.04 %.
    """
    _, stochastic = _wang_errors(cpd.Accumulator("e6m9", rounding="stochastic"))
    _, kahan = _wang_errors(cpd.Accumulator("e6m9 kahan"))
    print(f"stochastic {np.median(stochastic):.3%}, Kahan {np.median(kahan):.3%} (medians)")
    assert (stochastic < 0.08).all()
    assert 0.005 < np.median(stochastic) < 0.04
    assert (kahan < 0.001).all()


def _operands(kind: str, seed: int) -> tuple[F32, F32]:
    """Returns random operands of 256 x 4096 and 4096 x 256 in E4M3FN.

    Normal values are not scaled. Uniform values are scaled to a greatest value of 448, as tensors
    are before a matrix unit multiplies them.
    """
    generator = np.random.default_rng(seed)
    operands = []
    for shape in ((256, 4096), (4096, 256)):
        if kind == "normal":
            x = generator.standard_normal(shape)
        else:
            x = generator.random(shape)
            x *= 448 / x.max()
        operands.append(cpd.cast(x.astype(np.float32), "e4m3fn"))
    return operands[0], operands[1]


def _errors(a: F32, b: F32, preset: str) -> tuple[float, float]:
    """Returns the greatest absolute error and the mean error of the product of a and b.

    Both errors are divided by the mean magnitude of the exact product.
    """
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = cpd.gemm(a, b, cpd.Accumulator(preset)) - exact
    scale = np.abs(exact).mean()
    return float(np.abs(error).max() / scale), float(error.mean() / scale)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_deepseek_nearly_two_percent(seed: int) -> None:
    """Hopper's FP8 unit errs by nearly 2 % for K = 4096, as DeepSeek-V3's report says.

    With operands from N(0, 1), the greatest error is 1.8 %.
    """
    a, b = _operands("normal", seed)
    greatest, bias = _errors(a, b, "h100-fp8")
    promoted, _ = _errors(a, b, "deepseek-promoted")
    print(f"N(0, 1): max {greatest:.2%}, bias {bias:.4%}, promoted {promoted:.3%}")
    assert 0.013 < greatest < 0.023
    assert promoted < 0.002


@pytest.mark.parametrize("seed", [0, 1])
def test_deepseek_bias_of_positive_operands(seed: int) -> None:
    """FP8 products of a Hopper unit have a greatest relative error of 7.9 % and a mean of -7.5 %.

    The operands are from U(0, 1). If the unit's sums are added in binary32 after every 128
    products, as DeepSeek-V3 does, the greatest error is 0.067 %.
    """
    a, b = _operands("uniform", seed)
    greatest, bias = _errors(a, b, "h100-fp8")
    promoted, _ = _errors(a, b, "deepseek-promoted")
    print(f"U(0, 1): max {greatest:.2%}, bias {bias:.2%}, promoted {promoted:.3%}")
    assert 0.074 < greatest < 0.084
    assert -0.077 < bias < -0.073
    assert 0.0005 < promoted < 0.0008
