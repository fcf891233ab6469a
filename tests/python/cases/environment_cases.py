# SPDX-License-Identifier: Apache-2.0
"""A program that test_environment.py runs. The program prints, as JSON, the bits of every
operation's results.

The program runs with and without the CPU flags that flush subnormals to zero. The program makes
inputs and reads results as integers, which the flags do not affect.
"""

from __future__ import annotations

import hashlib
import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

import cpd
from by_keywords import by_keywords
from cpd import study
from cpd.study import gradients

FLUSH = sys.argv[1] == "flush"
FOLDER = Path(sys.argv[2])
assert torch.set_flush_denormal(FLUSH) or not FLUSH

FORMATS = ["bf16", "e8m0", "e8m3", "e5m2", "fp16", "tf32", "e8m20", "e8m3:nosub", "fp32"]
ROUNDINGS = ["nearest_even", "up", "stochastic"]
found: dict[str, str] = {}


def numbers(n: int, seed: int = 0) -> np.ndarray:
    """Returns random float32 numbers: zeros and subnormals, numbers of the lowest binades, and
    numbers of any magnitude."""
    bits = np.random.default_rng(seed).integers(0, 2**32, n, dtype=np.uint32)
    bits[::3] &= 0x81FFFFFF
    bits[1::6] &= 0x807FFFFF
    return bits.view(np.float32)


def doubles(n: int) -> np.ndarray:
    """Returns float64 numbers with subnormal binary32 magnitudes, and some float64 subnormals."""
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2**52, n, dtype=np.uint64) & np.uint64(0xF_0000_0000_0000)
    bits |= rng.integers(1023 - 149, 1023 - 120, n, dtype=np.uint64) << np.uint64(52)
    bits[::9] &= np.uint64(0x800FFFFFFFFFFFFF)
    return bits.view(np.float64)


def keep(name: str, value: object) -> None:
    if isinstance(value, torch.Tensor):
        value = value.contiguous().view(torch.uint8).numpy() if value.dim() else value.numpy()
    if isinstance(value, np.ndarray):
        assert name not in found, name
        found[name] = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()[:16]
    else:
        found[name] = repr(value)


def trying(name: str, call) -> None:
    try:
        keep(name, call())
    except ValueError as error:
        keep(name, str(error))


def front_ends(x: np.ndarray):
    yield "numpy", x
    yield "torch", torch.from_numpy(x)


def operations() -> None:
    for f in FORMATS:
        for rounding in ROUNDINGS:
            o = {"rounding": rounding, "seed": 3}
            for front_end, x in front_ends(numbers(400)):
                y = (
                    x[::-1].copy()
                    if front_end == "numpy"
                    else torch.from_numpy(x.numpy()[::-1].copy())
                )
                about = f"{front_end} {f} {rounding}"
                keep(f"cast {about}", by_keywords(cpd.cast, x, f, **o))
                saturating = by_keywords(cpd.cast, x, f, overflow="saturate", **o)
                keep(f"cast saturating {about}", saturating)
                trying(f"encode {about}", lambda x=x, f=f, o=o: by_keywords(cpd.encode, x, f, **o))
                keep(f"add {about}", by_keywords(cpd.add, x, y, f, **o))
                keep(f"mul {about}", by_keywords(cpd.mul, x, y, f, **o))
                keep(f"fma {about}", by_keywords(cpd.fma, x, y, x, f, **o))
            for front_end, wide in front_ends(doubles(300)):
                keep(
                    f"cast float64 {front_end} {f} {rounding}", by_keywords(cpd.cast, wide, f, **o)
                )
        codes = np.random.default_rng(2).integers(0, 256, 64 * cpd.Format(f).bits, dtype=np.uint8)
        for front_end, c in front_ends(codes):
            keep(f"decode {front_end} {f}", cpd.decode(c, f, (512,)))
    for front_end, x in front_ends(numbers(400)):
        for acc in ["fp32 sequential", "e8m7 kahan", "e5m2 pairwise", "e8m3 chunked chunk=3"]:
            keep(
                f"sum {front_end} {acc}",
                cpd.sum(x.reshape(40, 10), cpd.Accumulator(acc), axis=0),
            )
            keep(f"gemm {front_end} {acc}", cpd.gemm(x.reshape(20, 20), x.reshape(20, 20), acc))
        for acc in ["fp32 fma", "a100-tf32", "e8m7 block_fma a=tf32 b=tf32 sum=fp32"]:
            trying(
                f"gemm {front_end} {acc}",
                lambda x=x, acc=acc: cpd.gemm(x.reshape(20, 20), x.reshape(20, 20), acc),
            )
    half = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    for dtype in (torch.bfloat16, torch.float16):
        for f in ("e5m2", "e4m3"):
            keep(f"cast {dtype} {f}", cpd.cast(half.view(dtype), f))


def formats() -> None:
    for name in ["e8m3", "e8m0", "bf16", "e5m2:bias=142", "e8m3:nosub", "e1m2:bias=140", "fp16"]:
        f = cpd.Format(name)
        keep(f"facts of {name}", (f.max, f.min_normal, f.min_subnormal, f.epsilon, f.num_values))
        if f.bits <= 16:
            keep(f"values of {name}", f.values())


def reductions() -> None:
    """Records the results of all-reduces of two kinds of gradients: with values of any magnitude,
    and with subnormal values only."""
    tiny = [[(numbers(90, r).view(np.uint32) & 0x807FFFFF).view(np.float32)] for r in range(6)]
    mixed = [[(numbers(70, r).view(np.uint32) & 0xBFFFFFFF).view(np.float32)] for r in range(6)]
    specs = {
        "fp32": cpd.Reduce("fp32"),
        "average": cpd.Reduce("fp32", average=True),
        "e5m2 aps": cpd.Reduce("e5m2", aps=True, average=True),
        "e8m3": cpd.Reduce("e8m3", accumulator="e8m9 kahan", result="fp32", order="ring"),
        "scaled": cpd.Reduce("e8m7", loss_scale=2.0**-20, average=True),
    }
    for which, ranks in {"tiny": tiny, "mixed": mixed}.items():
        for name, spec in specs.items():
            out, report = cpd.simulate_all_reduce(ranks, spec, report=True)
            keep(f"all-reduce {which} {name}", out[0])
            keep(f"report {which} {name}", report)
            table = study.roundoff(ranks, spec, [2, 6])
            keep(f"round-off {which} {name}", table)
            assert which != "tiny" or table[2].zero_references < 10, "references flushed to zero"
    half = [[torch.from_numpy(numbers(64, r)).view(torch.float16)] for r in range(3)]
    keep("all-reduce of float16", cpd.simulate_all_reduce(half, specs["fp32"])[0])


def files() -> None:
    path = FOLDER / "gradients.npz"
    if not FLUSH:  # the process with FLUSH reads the file
        tiny = (numbers(24).view(np.uint32) & 0x807FFFFF).view(np.float32)
        np.savez(path, layer=tiny.astype(np.float64).reshape(3, 8))
    loaded = gradients.load_gradients(path)
    keep("gradients of float64", np.concatenate([rank[0] for rank in loaded.per_rank]))


warnings.simplefilter("ignore", cpd.PrecisionWarning)
for cases in (operations, formats, reductions, files):
    cases()
least = np.array([1], np.uint32).view(np.float32)
found["flushes"] = "yes" if float((least * np.float32(1))[0]) == 0 else "no"
print(json.dumps(found))
