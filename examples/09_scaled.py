# SPDX-License-Identifier: Apache-2.0
"""Measures ten scaled formats on three tensors: error, bits a value, and time of a cast.

Run: python examples/09_scaled.py
Draws: out/scaled.png
"""

import statistics
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import cpd

FORMATS = (
    *("mxfp8", "mxfp8-e5m2", "mxfp6-e2m3", "mxfp4", "mxint8", "nvfp4"),
    *("fp8-tensor", "fp8-block", "bfp8", "int8 row"),
)
SHAPE = (512, 1024)
PICTURE = Path(__file__).parents[1] / "out" / "scaled.png"
MARKS = {"normal": ("o", "C0"), "outliers": ("s", "C1"), "gradient": ("^", "C2")}

Array = npt.NDArray[np.float32]


def tensors() -> dict[str, Array]:
    """Returns three tensors: normal values; the same with some columns a hundred times as large,
    as in activations; and values that spread over many powers of two, as in gradients."""
    draw = np.random.default_rng(0)
    normal = draw.standard_normal(SHAPE, np.float32)
    outliers = normal.copy()
    outliers[:, ::200] *= 100
    gradient = draw.standard_normal(SHAPE, np.float32) * np.exp2(draw.normal(-20, 4, SHAPE))
    return {"normal": normal, "outliers": outliers, "gradient": gradient.astype(np.float32)}


def error(x: Array, values: Array) -> float:
    """Returns the RMS error relative to the RMS of x."""
    return float(np.linalg.norm(values - x.astype(float)) / np.linalg.norm(x.astype(float)))


def sqnr(error: float) -> float:
    """Converts a relative error to the ratio of signal to error in dB: 20 log10(|x| / |x - q|)."""
    return -20 * float(np.log10(error))


def milliseconds(x: Array, q: cpd.Scaled) -> float:
    out, times = np.empty_like(x), []
    for _ in range(9):
        start = time.perf_counter()
        cpd.cast(x, q, out=out)
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e3


def draw(errors: dict[str, dict[str, float]], bits: dict[str, float]) -> None:
    names = sorted(errors, key=lambda name: bits[name])
    figure = Figure(figsize=(7.6, 4.2), layout="constrained")
    axes = figure.subplots()
    for row, name in enumerate(names):
        levels = [sqnr(e) for e in errors[name].values()]
        axes.plot([min(levels), max(levels)], [row, row], color="#cccccc", lw=1.4, zorder=1)
    for tensor, (mark, colour) in MARKS.items():
        x = [sqnr(errors[name][tensor]) for name in names]
        axes.scatter(x, range(len(names)), marker=mark, color=colour, label=tensor, zorder=2)
    axes.set_yticks(range(len(names)), [f"{name}, {bits[name]:.2f} bits" for name in names])
    axes.set_xlabel("SQNR in dB")
    axes.set_title("Ten scaled formats on three tensors")
    figure.legend(loc="outside right upper")
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=160, metadata={"Software": None})


def main() -> None:
    inputs = tensors()
    print(f"{' ' * 11} bits a        ms   error (relative RMS) and SQNR in dB")
    print(f"format{' ' * 6}value        {''.join(f'   {tensor:>15}' for tensor in inputs)}")
    errors, bits = {}, {}
    for name in FORMATS:
        q = cpd.Scaled(name)
        bits[name] = q.bits_per_value(SHAPE)
        errors[name] = {tensor: error(x, cpd.cast(x, q)) for tensor, x in inputs.items()}
        lost = "".join(f"   {e:8.2%} {sqnr(e):6.1f}" for e in errors[name].values())
        print(f"{name:10} {bits[name]:6.2f} {milliseconds(inputs['normal'], q):9.2f}{lost}")
    draw(errors, bits)
    print(f"\nthe picture: {PICTURE}")


if __name__ == "__main__":
    main()
