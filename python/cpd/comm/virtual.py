# SPDX-License-Identifier: Apache-2.0
"""All-reduce in a customized precision, over virtual ranks in one process."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np

from cpd import _core
from cpd.comm.layers import (
    PerRank,
    layer_list,
    layer_numbers,
    native_values,
    plain_values,
    row_layouts,
    shares_memory,
)
from cpd.comm.spec import ReduceSpec, check_spec, check_world, warn_of_stall
from cpd.compress.codecs import Codec
from cpd.compress.rows import RowLayout
from cpd.compress.states import Owner, States, native_states
from cpd.numeric.checked import checked as _checked
from cpd.numeric.numbers import is_torch
from cpd.ops.flat import check_layer


@dataclass(frozen=True)
class LayerReport:
    """What happened to one layer of an all-reduce, on all ranks together.

    >>> ranks = [[np.float32([0.0, 1e-6, 0.5, -2.0])], [np.float32([0.25, 0.5, 0.75, 1.0])]]
    >>> spec = ReduceSpec(wire="uniform c=2 fraction=1")
    >>> _, [report] = simulate_all_reduce(ranks, spec, report=True)
    >>> report.values, report.bits, report.bits_a_value
    (8, (4, 4), 28.0)
    """

    shift: int
    """APS scaled the layer by 2^shift."""
    non_finite: int
    """NaN and Inf among the contributions."""
    overflowed: int
    """Results that are not finite though no contribution was."""
    underflowed: int
    """Nonzero contributions that the cast turned into zero."""
    values: int = 0
    """Contributions."""
    zeros: int = 0
    """Contributions that are zero after the cast, those that were before it too."""
    bytes: int = 0
    """What the encoded contributions take, each rank's layer on its own, as `Codec.encode` cuts it
    and without headers. A call's `Traffic` has the bytes of its messages, results too."""
    bits: tuple[int, ...] = ()
    """The bits a value that a codec chose for the layer on each rank, by rank, before any entropy
    coding: N of `uniform`, 0 where all values are equal. Empty for codecs that choose none."""
    staged_bytes: int = 0
    """What this process copied between a GPU and the host, where a codec computes on the host for
    layers of a GPU: one without kernels, and `top_k` between real ranks."""

    @property
    def bits_a_value(self) -> float:
        """Of the encoded contributions."""
        return 8 * self.bytes / self.values if self.values else 0.0

    @property
    def zeros_share(self) -> float:
        """The share of the contributions that are zero after the cast."""
        return self.zeros / self.values if self.values else 0.0


@overload
def simulate_all_reduce(
    per_rank: PerRank,
    spec: ReduceSpec,
    *,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: Literal[False] = False,
) -> list[Any]: ...
@overload
def simulate_all_reduce(
    per_rank: PerRank,
    spec: ReduceSpec,
    *,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: Literal[True],
) -> tuple[list[Any], list[LayerReport]]: ...
@_checked
def simulate_all_reduce(
    per_rank: PerRank,
    spec: ReduceSpec,
    *,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: bool = False,
) -> list[Any] | tuple[list[Any], list[LayerReport]]:
    """The all-reduce of `spec` over W = len(per_rank) virtual ranks in this process.

    `per_rank[r]` is rank r's list of layers (torch tensors or NumPy arrays, float32; bfloat16 and
    float16 are widened, which is exact), or a function that makes it. Every rank has the same
    number of layers, of the same shapes, all on the CPU or all on one GPU, which then casts and
    folds them, on its current stream; what a codec (`wire`) rounds on the host is copied there and
    back (`LayerReport.staged_bytes`). The host waits for such copies, with APS, for a codec that
    measures or keeps errors, for `top_k` of a codec, and for the report, and else for nothing.
    Ranks are processed one at a time (tensors of lists on a GPU up to sixteen in one pass over the
    sums): a function's layers are dropped before the next is called, so memory holds one rank's
    values and the running sums. A function is called once, once more with APS or a codec that
    measures, and once more for `ring`; it must give the same values each time.

    `numbers`: the layers' numbers in random streams, each its own and below 2^16; default 0, 1, ….
    `states`: what a codec keeps of all ranks' layers, updated when the call has succeeded; None:
    nothing is kept.

    Returns the layers of the sum, float32, of rank 0's kind and shapes; with `report=True` also a
    list of `LayerReport`. `ReduceSpec` defines what is rounded when, and in which order. Each
    operation is one exact result rounded once; the result is the same for any number of threads.

    Raises ValueError (naming rank and layer where shapes differ) or TypeError.

    >>> ranks = [[np.float32([1.0, 320.0])], [np.float32([0.0625, 320.0])]]
    >>> simulate_all_reduce(ranks, ReduceSpec("e4m3"))[0].tolist()
    [1.0, inf]
    >>> simulate_all_reduce(ranks, ReduceSpec("e4m3", aps=True))[0].tolist()
    [1.0, 640.0]
    """
    check_spec(spec)
    source = Source(per_rank, numbers, spec.wire)
    check_world(spec, source.world)
    warn_of_stall(spec, source.world)
    owner = Owner(source.world, None)
    with native_states(states, wanted=spec.wire is not None, owner=owner) as kept:
        reduce = _core.VirtualReduce(
            spec._native(), source.world, source.sizes, source.numbers, kept, source.rows, report
        )
        if reduce.wants_ranges():
            for rank in range(source.world):
                source.visit(rank, reduce.observe)
        for rank in reduce.schedule():
            source.contribute(rank, reduce)
            reduce.end_rank()
        layers = [source.result(index, reduce.result) for index in range(len(source.sizes))]
        reduce.commit()
    if not report:
        return layers
    return layers, [layer_report(reduce.report(index)) for index in range(len(layers))]


def layer_report(native: _core.LayerReport) -> LayerReport:
    counts = native.non_finite, native.overflowed, native.underflowed
    encoded = native.values, native.zeros, native.bytes
    return LayerReport(native.shift, *counts, *encoded, tuple(native.bits), native.staged_bytes)


@_checked
def world_of(per_rank: PerRank) -> int:
    """The number of ranks. Raises TypeError where `per_rank` is no sequence, ValueError for an
    empty one."""
    is_sequence = hasattr(per_rank, "__len__") and hasattr(per_rank, "__getitem__")
    if not is_sequence or isinstance(per_rank, (str, bytes, Mapping)):
        raise TypeError(f"per_rank must be a sequence of ranks, got {type(per_rank).__name__}")
    if len(per_rank) == 0:
        raise ValueError("per_rank must have at least one rank, got none")
    return len(per_rank)


class Source:
    """Passes on the layers of one rank at a time as float32 arrays, and keeps none."""

    def __init__(
        self,
        per_rank: PerRank,
        numbers: Sequence[int] | None = None,
        wire: Codec | None = None,
    ) -> None:
        if wire is not None and not isinstance(wire, Codec):
            raise TypeError(f"wire must be a Codec or None, got {type(wire).__name__}")
        self.world = world_of(per_rank)
        self._per_rank = per_rank
        layers = self._layers(0)
        self.numbers = layer_numbers(numbers, len(layers))
        self._check(0, layers)
        self._first: list[Any] | None = layers
        self.shapes = [tuple(layer.shape) for layer in layers]
        self._devices = [str(layer.device) if is_torch(layer) else None for layer in layers]
        self.sizes = [math.prod(shape) for shape in self.shapes]
        self._layouts = row_layouts(wire, self.shapes, self.numbers)
        self.rows = [layout.row for layout in self._layouts]

    def visit(self, rank: int, use: Callable[[int, Any], object]) -> None:
        """Calls use(layer's index, its values as C++ takes them) for each layer of `rank`."""
        for index, plain, _ in self._values(rank):
            use(index, native_values(plain))

    def contribute(self, rank: int, to: _core.VirtualReduce) -> None:
        """Contributes the layers of `rank`."""
        for index, plain, stays in self._values(rank):
            to.contribute(index, native_values(plain), stays)

    def _values(self, rank: int) -> Iterator[tuple[int, Any, bool]]:
        """Each layer's index, its plain values, and whether these stay as long as `per_rank`: they
        are a tensor of lists, not a copy or what a function or a lazy sequence makes."""
        layers, self._first = self._first if rank == 0 else None, None
        if layers is None:
            layers = self._layers(rank)
            self._check(rank, layers)
            self._check_shapes(rank, layers)
        listed = isinstance(self._per_rank, (list, tuple))
        listed = listed and isinstance(self._per_rank[rank], (list, tuple))
        for index, layer in enumerate(layers):
            moved = self._layouts[index].move(layer) if self._layouts else layer
            plain = plain_values(moved)
            yield index, plain, listed and is_torch(plain) and shares_memory(plain, layer)

    def result(self, index: int, fill: Callable[[int, Any], object]) -> Any:
        """A new layer of rank 0's kind, shape and place, filled by fill(index, its values)."""
        if self._devices[index] not in (None, "cpu"):
            import torch

            made = torch.empty(self.sizes[index], device=self._devices[index])
            fill(index, native_values(made))
            return self._shaped(index, made)
        values = np.empty(self.sizes[index], np.float32)
        fill(index, values)
        values = self._shaped(index, values)
        if self._devices[index] is None:
            return values
        import torch

        return torch.from_numpy(values)

    def _shaped(self, index: int, values: Any) -> Any:
        """Values in the codec's order, in the layer's shape."""
        layout = self._layouts[index] if self._layouts else RowLayout()
        return layout.restored(values, self.shapes[index])

    def _layers(self, rank: int) -> list[Any]:
        made: Any = self._per_rank[rank]
        return layer_list(f"rank {rank}", made() if callable(made) else made)

    def _check(self, rank: int, layers: list[Any]) -> None:
        """Raises unless the rank has as many layers as rank 0, all of supported types."""
        if len(layers) != len(self.numbers):
            raise ValueError(
                f"rank {rank} has {len(layers)} layers, rank 0 has {len(self.numbers)}"
            )
        for number, layer in zip(self.numbers, layers, strict=True):
            check_layer(f"rank {rank}, layer {number}", layer, ("cpu", "cuda"))

    def _check_shapes(self, rank: int, layers: list[Any]) -> None:
        for number, layer, shape in zip(self.numbers, layers, self.shapes, strict=True):
            if tuple(layer.shape) != shape:
                raise ValueError(
                    f"rank {rank}, layer {number} has shape {tuple(layer.shape)}, "
                    f"rank 0 has {shape}"
                )
