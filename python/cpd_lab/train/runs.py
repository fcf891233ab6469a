# SPDX-License-Identifier: Apache-2.0
"""`Run`: the figures of a training run without its tensors, for JSON files and tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cpd.comm.spec import may_stall

if TYPE_CHECKING:
    from cpd_lab.train.result import TrainResult


@dataclass
class Layer:
    """The all-reduce's counts for one layer over a whole run, as in `cpd_lab.train.LayerCounts`."""

    name: str
    values: int
    nonzero: int
    underflowed: int
    overflowed: int
    non_finite: int
    exponents: dict[str, dict[str, int]] = field(default_factory=dict)
    relative: dict[str, dict[str, int]] = field(default_factory=dict)


@dataclass
class Run:
    """The options, metrics and counts of one training run, without its tensors."""

    label: str
    format: str
    aps: bool | str
    loss_scale: float
    depth: int
    epochs: int
    accuracy: float
    state: str
    weights: str
    options: str
    curve: list[float]
    loss: list[float]
    layers: list[Layer]
    may_stall: bool = False  # its sums have more terms than their precision counts
    seed: int = 0
    wire: str = ""  # the codec; empty: a format
    bytes: int = 0  # of a node's contribution to the last step, encoded
    values: int = 0  # in it

    @classmethod
    def of(cls, result: TrainResult) -> Run:
        """Returns a `Run` with the options, metrics and counts of the training `result`."""
        options, spec = result.options, result.options.spec
        return cls(
            label=options.label(),
            format=str(spec.format or "fp32"),
            aps=spec.aps,
            loss_scale=spec.loss_scale,
            depth=options.depth or 0,
            epochs=options.epochs,
            accuracy=result.accuracy,
            state=result.state,
            weights=result.weights,
            options=options.arguments(),
            curve=result.curve,
            loss=list(result.loss),
            layers=[
                Layer(
                    name=layer.name,
                    values=layer.values,
                    nonzero=layer.nonzero,
                    underflowed=layer.underflowed,
                    overflowed=layer.overflowed,
                    non_finite=layer.non_finite,
                    exponents=_json_keys(layer.exponents),
                    relative=_json_keys(layer.relative),
                )
                for layer in result.layers
            ],
            may_stall=may_stall(spec, options.nodes),
            seed=options.seed,
            wire="" if spec.format is not None else spec.codec.text,
            bytes=_bytes(result),
            values=sum(gradient.numel() for gradient in result.last_gradients[0]),
        )

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Run:
        """Returns the run that `asdict` turned into `data`. Raises TypeError for other data."""
        return cls(**{**data, "layers": [Layer(**layer) for layer in data["layers"]]})

    @property
    def bits_a_value(self) -> float:
        """The mean number of bits of an encoded value, in node 0's last contribution."""
        return 8 * self.bytes / self.values if self.values else 0.0

    def total(self, name: str) -> int:
        """Returns the field `name` of `Layer`, summed over all layers."""
        return sum(getattr(layer, name) for layer in self.layers)

    @property
    def underflow(self) -> float:
        """The share of nonzero gradient values that the cast turned into zero."""
        nonzero = self.total("nonzero")
        return self.total("underflowed") / nonzero if nonzero else 0.0

    @property
    def diverged(self) -> bool:
        """True if the training diverged."""
        return self.state != "finished"

    def row(self) -> dict[str, Any]:
        """Returns the run's options, metrics and counts as a flat dict for JSON."""
        return {
            "format": self.format,
            "aps": self.aps,
            "loss_scale": int(self.loss_scale) if self.loss_scale.is_integer() else self.loss_scale,
            "accuracy": self.accuracy,
            "options": self.options,
            "weights": self.weights,
            "state": self.state,
            "depth": self.depth,
            "underflow": self.underflow,
            "overflowed": self.total("overflowed"),
            "non_finite": self.total("non_finite"),
            "wire": self.wire,
            "bytes": self.bytes,
            "bits_a_value": self.bits_a_value,
        }


def _bytes(result: TrainResult) -> int:
    """Returns the number of bytes of node 0's last contribution, encoded layer by layer."""
    options = result.options
    schedule = options.reduction(steps_per_epoch=1)
    total = 0
    for layer, gradient in zip(result.layers, result.last_gradients[0], strict=True):
        codec = schedule.spec_of(layer.name, options.fp32_epochs, gradient.numel()).codec
        total += codec.encode(gradient).bytes
    return total


def _json_keys(histograms: dict[int, dict[int, int]]) -> dict[str, dict[str, int]]:
    return {
        str(epoch): {str(exponent): count for exponent, count in sorted(counts.items())}
        for epoch, counts in histograms.items()
    }
