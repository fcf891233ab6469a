# SPDX-License-Identifier: Apache-2.0
"""Functions that measure a trained model's gradients: `distribution` and `roundoff`."""

from __future__ import annotations

from dataclasses import asdict
from fnmatch import fnmatchcase
from typing import Any

from cpd.comm.spec import as_reduce
from cpd.study.reduce import Contributions
from cpd_lab.papers.trained import chosen_options
from cpd_lab.train import sampled_gradients, train


def distribution(epochs: list[int], **options: Any) -> dict[str, Any]:
    """Counts the gradients of all nodes by floor(log2|g|), for each layer and chosen epoch.

    The first epoch of the training is 1. The result's `layers` maps a layer's name to an epoch, the
    epoch to an exponent, and the exponent to a count.
    """
    chosen = chosen_options(options)
    result = train(chosen, histogram_epochs=tuple(epochs), keep_gradients=False)
    layers = {
        layer.name: {
            str(epoch): {str(e): n for e, n in sorted(counts.items())}
            for epoch, counts in layer.exponents.items()
        }
        for layer in result.layers
    }
    return {"layers": layers, "source": result.source, "final": result.curve[-1]}


def roundoff(
    layer: str, ranks: int, micro_batch: int, groups: list[int], spec: str, **options: Any
) -> dict[str, Any]:
    """Measures the round-off of a sum of gradients over `ranks` nodes after a training.

    Args:
        layer: a name or pattern of the parameter tensors that are summed.
        ranks: the number of nodes.
        micro_batch: the number of images of a node's gradient.
        groups: the numbers of ranks in a group.
        spec: the all-reduce, as the text of `cpd.Reduce`.
        options: the options of the training before the measurement.

    Returns:
        `rows`: for each group size the round-off of all values together as `cpd.study.Roundoff`
        has it (`error` is equation 5 of the APS paper), and `rms` and `spread`, the relative RMS
        over random orders of the ranks and its standard error. `values`: the number of values
        that are summed.
    """
    chosen = chosen_options(options)
    data = chosen.load_data()
    result = train(chosen, data=data, keep_gradients=False)
    every = sampled_gradients(result.model, data, ranks, micro_batch, chosen.seed)
    names = [name for name, _ in result.model.named_parameters()]
    indices = [number for number, name in enumerate(names) if fnmatchcase(name, layer)]
    if not indices:
        raise ValueError(f"no layer is named {layer!r}; there are {', '.join(names)}")
    contributions = Contributions(
        [[gradients[number] for number in indices] for gradients in every]
    )
    rows = []
    for size in groups:
        measured = contributions.measure_orders(as_reduce(spec), size)
        over_orders = {"rms": measured.error, "spread": measured.spread}
        rows.append({"group": size, **asdict(measured.total), **over_orders})
    values = sum(gradient.numel() for gradient in (every[0][number] for number in indices))
    return {"rows": rows, "values": values, "layers": [names[number] for number in indices]}
