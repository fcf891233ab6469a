# SPDX-License-Identifier: Apache-2.0
"""The function `ternary`, which measures the gradients that TernGrad makes ternary."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cpd.compress.codecs import Codec
from cpd_lab.papers.trained import chosen_options
from cpd_lab.train import sampled_gradients, train

Array = npt.NDArray[np.float32]
_CLIP = 2.5
_BINS = np.linspace(-5.125, 5.125, 42)
"""The edges of the histograms' bins, in standard deviations.

A bin is a quarter of a standard deviation wide, and one bin has 0 in its middle.
"""


def ternary(workers: int, micro_batch: int, **options: Any) -> dict[str, Any]:
    """Measures TernGrad's gradients of a trained model's weights.

    Args:
        workers: the number of workers; their ternary gradients are averaged.
        micro_batch: the number of images of a worker's gradient.
        **options: the options of `TrainOptions` for the training before the measurement.

    Returns:
        A dict with three keys.
        - `bounds`: ‖g‖∞ ‖g‖₁ / ‖g‖² of worker 0's gradient (TernGrad, section 3.3). It has three
          values: with one scaler for all layers, with one scaler for each layer, and with one
          scaler for each layer of clipped gradients. With several scalers, the numerator and the
          denominator are summed over the layers.
        - `zeros`: for each weight tensor, the share of zeros in a worker's ternary gradient.
        - `histograms`: counts by value, in standard deviations, for the first convolution and the
          largest matrix. Each has four stages: the gradient as it is, clipped at 2.5 deviations,
          ternary, and averaged over workers.
    """
    chosen = chosen_options(options)
    data = chosen.load_data()
    result = train(chosen, data=data, keep_gradients=False)
    every = sampled_gradients(result.model, data, workers, micro_batch, chosen.seed)
    names = [name for name, _ in result.model.named_parameters()]
    weights = [n for n, gradient in enumerate(every[0]) if gradient.dim() > 1]
    by = Codec("terngrad share=off")
    zeros, histograms = {}, {}
    drawn = _drawn([(names[n], every[0][n].dim(), every[0][n].numel()) for n in weights])
    for n in weights:
        weight_gradients = [gradients[n].numpy() for gradients in every]
        encoded = [
            by.encode(g, seed=chosen.seed, stream=1000 * n + k).values
            for k, g in enumerate(weight_gradients)
        ]
        zeros[names[n]] = float((encoded[0] == 0).mean())
        if names[n] in drawn:
            histograms[names[n]] = _stages(weight_gradients[0], encoded)
    return {
        "bounds": _bounds([every[0][n].numpy() for n in weights]),
        "zeros": zeros,
        "histograms": histograms,
    }


def clipped(g: Array) -> Array:
    """Returns the gradient, clipped to 2.5 standard deviations around 0 (TernGrad, equation 21)."""
    limit = np.float32(_CLIP * g.std())
    return np.clip(g, -limit, limit)


def _bounds(layers: list[Array]) -> dict[str, float]:
    return {
        "global": _bound([np.concatenate([g.reshape(-1) for g in layers])]),
        "layer-wise": _bound(layers),
        "layer-wise, clipped": _bound([clipped(g) for g in layers]),
    }


def _bound(layers: list[Array]) -> float:
    """Returns sum(‖g‖∞ ‖g‖₁) / sum(‖g‖²), with both sums over the layers, in binary64."""
    every = [g.astype(np.float64) for g in layers]
    above = sum(float(np.abs(g).max() * np.abs(g).sum()) for g in every)
    return above / (sum(float((g * g).sum()) for g in every) or 1.0)


def _drawn(weights: list[tuple[str, int, int]]) -> set[str]:
    """Returns the names of the tensors with histograms: first convolution and largest matrix."""
    kernels = [name for name, dimensions, _ in weights if dimensions == 4]
    matrices = [(size, name) for name, dimensions, size in weights if dimensions == 2]
    return {*kernels[:1], *([max(matrices)[1]] if matrices else [])}


def _stages(g: Array, encoded: list[Any]) -> dict[str, Any]:
    deviation = float(g.std()) or 1.0
    stages = {
        "as it is": g,
        "clipped": clipped(g),
        "ternary": encoded[0],
        f"average of {len(encoded)}": np.mean(encoded, axis=0),
    }
    places = ((_BINS[1:] + _BINS[:-1]) / 2).tolist()
    return {
        name: {
            "places": places,
            "counts": np.histogram(values / deviation, _BINS)[0].tolist(),
            "levels": len(np.unique(values)),
        }
        for name, values in stages.items()
    }
