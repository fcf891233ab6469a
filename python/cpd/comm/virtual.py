# SPDX-License-Identifier: Apache-2.0
"""`simulate_all_reduce`: an all-reduce in a customized precision over virtual ranks."""

from __future__ import annotations

import functools
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
from cpd.comm.schedule import Schedule, ScheduleLike, check_count, tensors_by_spec
from cpd.comm.spec import Reduce, as_reduce, check_world, warn_of_stall
from cpd.compress.codecs import Codec
from cpd.compress.rows import RowLayout
from cpd.compress.states import Owner, States, native_states
from cpd.numeric.checked import checked as _checked
from cpd.numeric.numbers import is_torch
from cpd.numeric.numbers import number as whole_number
from cpd.ops.arguments import ArrayT
from cpd.ops.flat import check_layer


@dataclass(frozen=True)
class TensorReport:
    """Counts for one tensor of an all-reduce, summed over all ranks.

    A contribution is one value of one rank's tensor.

    Attributes:
        shift: the exponent of the scale: APS multiplied the tensor by 2^shift; 0 without APS.
        non_finite: the number of NaN and Inf among the contributions.
        overflowed: the number of results that are not finite although all their contributions are.
        underflowed: the number of nonzero contributions that the cast rounded to zero.
        values: the number of contributions; default 0.
        zeros: the number of contributions that are zero after the cast, including zeros before it;
            default 0.
        bytes: the bytes of the encoded contributions; default 0. Each rank's tensor counts as one
            result of `Codec.encode`, without headers. For the bytes of actual messages, including
            results, see a call's `Traffic`.
        bits: the number of bits per value that the codec `uniform` chose on each rank, before
            Huffman coding; 0 if all values are equal. Empty (default) for codecs that do
            not choose a number of bits.
        staged_bytes: the bytes that this process copied between a GPU and the host because a codec
            computes on the host; default 0. Such codecs are those without CUDA kernels, and `top_k`
            between real ranks.

    >>> ranks = [[np.float32([0.0, 1e-6, 0.5, -2.0])], [np.float32([0.25, 0.5, 0.75, 1.0])]]
    >>> _, [report] = simulate_all_reduce(ranks, "uniform c=2 fraction=1", report=True)
    >>> report.values, report.bits, report.bits_a_value
    (8, (4, 4), 28.0)
    """

    shift: int
    non_finite: int
    overflowed: int
    underflowed: int
    values: int = 0
    zeros: int = 0
    bytes: int = 0
    bits: tuple[int, ...] = ()
    staged_bytes: int = 0

    @property
    def bits_a_value(self) -> float:
        """The bits per value of the encoded contributions; 0 if there are no values."""
        return 8 * self.bytes / self.values if self.values else 0.0

    @property
    def zeros_share(self) -> float:
        """The fraction of the contributions that are zero after the cast; 0 if there are none."""
        return self.zeros / self.values if self.values else 0.0


LayerReport = TensorReport
"""The old name of `TensorReport`, which pickles of version 0.7 contain."""


@overload
def simulate_all_reduce(
    ranks: Sequence[Sequence[ArrayT] | Callable[[], Sequence[ArrayT]]],
    spec: ScheduleLike,
    *,
    seed: int = 0,
    step: int = 0,
    names: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: Literal[False] = False,
) -> list[ArrayT]: ...
@overload
def simulate_all_reduce(
    ranks: Sequence[Sequence[ArrayT] | Callable[[], Sequence[ArrayT]]],
    spec: ScheduleLike,
    *,
    seed: int = 0,
    step: int = 0,
    names: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: Literal[True],
) -> tuple[list[ArrayT], list[TensorReport]]: ...
@_checked
def simulate_all_reduce(
    ranks: PerRank,
    spec: ScheduleLike,
    *,
    seed: int = 0,
    step: int = 0,
    names: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    states: States | None = None,
    report: bool = False,
) -> list[Any] | tuple[list[Any], list[TensorReport]]:
    """Sums the tensors of virtual ranks in this process, as `spec` defines.

    `spec` defines every rounding and the order of the sum over the W = len(ranks) ranks. Each
    addition is computed exactly and rounded once. The result does not depend on the number of
    threads.

    Tensors on a GPU are cast and summed on that GPU, on its current stream. If a codec has no CUDA
    kernels, its tensors are copied to the host and back (`TensorReport.staged_bytes`). The host
    waits for the GPU with APS, for these copies, for a codec that measures tensors before encoding
    (`terngrad`) or stores errors, for `top_k` with a codec, and for the report. Otherwise the call
    returns without waiting for the GPU.

    Ranks are processed one at a time. (If `ranks` has lists of GPU tensors, up to sixteen ranks are
    summed at a time.) A function's tensors are released before the next function is called. So
    memory holds one rank's values and the running sums. Each function is called once, once more
    with APS or a scaler that ranks share (`terngrad`), and once more for the order `ring`. With a
    `Schedule` these calls are repeated for each spec. A function must return the same values each
    time.

    Args:
        ranks: `ranks[r]` is rank r's list of tensors, or a function that returns this list. Tensors
            are torch tensors or NumPy arrays, float32; bfloat16 and float16 are widened, which is
            exact. Every rank has the same number of tensors, of the same shapes, all on the CPU or
            all on one GPU.
        spec: the all-reduce: a `Reduce`, an argument of its constructor such as its text, or a
            `Schedule`.
        seed: the seed of the random bits of casts, codecs and sums; default 0.
        step: the number of the training step, which selects the random numbers and the specs of a
            `Schedule`; default 0.
        names: the tensors' names, the same on all ranks, which a `Schedule` with exempt tensors
            needs; default None.
        numbers: the tensors' numbers, which select their random numbers: distinct, below 2^16;
            default 0, 1, ….
        states: the codec's states for all ranks' tensors, updated if the call succeeds; default
            None: no states are stored.
        report: whether to return a `TensorReport` of each tensor too; default False.

    Returns:
        The summed tensors, float32, with the kind (torch or NumPy), device and shapes of rank 0's
        tensors. With `report=True` a tuple of them and a list of `TensorReport`.

    Raises:
        ValueError: for an invalid argument. If shapes differ, the text names the rank and the
            tensor.
        TypeError: for an argument of another type.

    >>> ranks = [[np.float32([1.0, 320.0])], [np.float32([0.0625, 320.0])]]
    >>> simulate_all_reduce(ranks, "e4m3")[0].tolist()
    [1.0, inf]
    >>> simulate_all_reduce(ranks, "e4m3 aps")[0].tolist()
    [1.0, 640.0]
    >>> schedule, pairs = Schedule("e4m3", exempt=["b"]), [[np.float32([0.3])] * 2] * 2
    >>> [x.tolist() for x in simulate_all_reduce(pairs, schedule, names=["a", "b"])]
    [[0.625], [0.6000000238418579]]
    """
    seed, step = whole_number("seed", seed), whole_number("step", step)
    if not isinstance(spec, Schedule):
        sums, reports = _simulate(ranks, as_reduce(spec), seed, step, numbers, states, report)
        return (sums, reports) if report else sums
    world_of(ranks)
    first = None
    if names is None or spec.min_size:
        first_rank: Any = ranks[0]
        first = [
            math.prod(x.shape)
            for x in layer_list("rank 0", first_rank() if callable(first_rank) else first_rank)
        ]
    parts = tensors_by_spec(spec, names, first, step)
    count = len(names or first or ())
    own = layer_numbers(numbers, count)
    results: dict[int, tuple[Any, Any]] = {}
    for part_spec, indices in parts:
        chosen = [functools.partial(_chosen, rank, names, indices) for rank in ranks]
        of = [own[index] for index in indices]
        sums, reports = _simulate(chosen, part_spec, seed, step, of, states, report)
        results |= dict(zip(indices, zip(sums, reports or sums, strict=True), strict=True))
    sums = [results[index][0] for index in range(count)]
    return (sums, [results[index][1] for index in range(count)]) if report else sums


def _chosen(rank: Any, names: Sequence[str] | None, indices: list[int]) -> list[Any]:
    tensors = list(rank() if callable(rank) else rank)
    if names is not None:
        check_count("tensors", tensors, names)
    return [tensors[index] for index in indices]


def _simulate(
    ranks: PerRank,
    spec: Reduce,
    seed: int,
    step: int,
    numbers: Sequence[int] | None,
    states: States | None,
    report: bool,
) -> tuple[list[Any], list[TensorReport]]:
    """Returns the reduced tensors and, if `report`, a report for each tensor, else no reports."""
    source = Source(ranks, numbers, spec._compressor)
    check_world(spec, source.world)
    warn_of_stall(spec, source.world)
    if _core.explains():
        source.note(spec)
        return [], []
    owner = Owner(source.world, None)
    with native_states(states, wanted=spec.format is None, owner=owner) as codec_states:
        reduce = _core.VirtualReduce(
            spec._held,
            source.world,
            source.sizes,
            seed,
            step,
            source.numbers,
            codec_states,
            source.rows,
            report,
        )
        if reduce.wants_ranges():
            for rank in range(source.world):
                source.visit(rank, reduce.observe)
        for rank in reduce.schedule():
            source.contribute(rank, reduce)
            reduce.end_rank()
        sums = [source.result(index, reduce.result) for index in range(len(source.sizes))]
        reduce.commit()
    reports = [tensor_report(reduce.report(n)) for n in range(len(sums))] if report else []
    return sums, reports


def tensor_report(native: _core.TensorReport) -> TensorReport:
    """Returns the Python report of a tensor from the C++ report."""
    counts = native.non_finite, native.overflowed, native.underflowed
    encoded = native.values, native.zeros, native.bytes
    return TensorReport(native.shift, *counts, *encoded, tuple(native.bits), native.staged_bytes)


@_checked
def world_of(per_rank: PerRank) -> int:
    """Returns the number of ranks. Raises TypeError or ValueError unless there is at least one."""
    is_sequence = hasattr(per_rank, "__len__") and hasattr(per_rank, "__getitem__")
    if not is_sequence or isinstance(per_rank, (str, bytes, Mapping)):
        raise TypeError(f"ranks must be a sequence of ranks, got {type(per_rank).__name__}")
    if len(per_rank) == 0:
        raise ValueError("ranks must have at least one rank, got none")
    return len(per_rank)


class Source:
    """Passes the tensors (layers) of one rank at a time to C++ as float32 values.

    The attribute `world` is the number of ranks. `shapes` has the layers' shapes, `sizes` their
    numbers of values.

    Args:
        per_rank: the contributions of each rank, as for `simulate_all_reduce`.
        numbers: the layers' numbers in random streams; default 0, 1, ….
        wire: the codec of the contributions; default None: contributions are cast to a format.

    Raises:
        ValueError: if there are no ranks, or if there are not as many `numbers` as layers.
        TypeError: for an argument of another type.
    """

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

    def note(self, spec: Reduce) -> None:
        """Checks the layers of all ranks, and records the all-reduce for `cpd.explain`.

        Args:
            spec: the all-reduce.
        """
        for rank in range(1, self.world):
            layers = self._layers(rank)
            self._check(rank, layers)
            self._check_shapes(rank, layers)
        places = [device for device in self._devices if device not in (None, "cpu")]
        gpu = int(str(places[0]).partition(":")[2] or 0) if places else -1
        _core.note_reduction(spec._held, self.world, self.sizes, self.numbers, self.rows, gpu)

    def visit(self, rank: int, use: Callable[[int, Any], object]) -> None:
        """Calls a function with each layer of a rank.

        Args:
            rank: the rank.
            use: `use(index, values)`, with the layer's index and the argument for C++ that refers
                to its values.

        Raises:
            ValueError: if a layer of rank 0 has another shape.
            TypeError: for layers of an unsupported type.
        """
        for index, plain, _ in self._values(rank):
            use(index, native_values(plain))

    def contribute(self, rank: int, to: _core.VirtualReduce) -> None:
        """Passes all layers (tensors) of one rank to a reduction, as the rank's contribution.

        Args:
            rank: the rank.
            to: the C++ object that computes the reduction.
        """
        for index, plain, stays in self._values(rank):
            to.contribute(index, native_values(plain), stays)

    def _values(self, rank: int) -> Iterator[tuple[int, Any, bool]]:
        """Yields each layer's index, its values, and whether the values' memory outlives the call.

        The memory outlives the call if a torch tensor in the caller's list holds the values.
        Copies, and tensors that a function or a lazy sequence returns, do not outlive the call.
        """
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
        """Makes the result tensor of one layer, like rank 0's tensor of this layer.

        Args:
            index: the layer's index.
            fill: a function `fill(index, values)` that writes the layer's results to `values`.

        Returns:
            A float32 array or tensor, of the kind, shape and device of rank 0's tensor.
        """
        if self._devices[index] not in (None, "cpu"):
            import torch

            tensor = torch.empty(self.sizes[index], device=self._devices[index])
            fill(index, native_values(tensor))
            return self._shaped(index, tensor)
        values = np.empty(self.sizes[index], np.float32)
        fill(index, values)
        values = self._shaped(index, values)
        if self._devices[index] is None:
            return values
        import torch

        return torch.from_numpy(values)

    def _shaped(self, index: int, values: Any) -> Any:
        """Returns a tensor of the layer's shape from values in the codec's order."""
        layout = self._layouts[index] if self._layouts else RowLayout()
        return layout.restored(values, self.shapes[index])

    def _layers(self, rank: int) -> list[Any]:
        layers: Any = self._per_rank[rank]
        return layer_list(f"rank {rank}", layers() if callable(layers) else layers)

    def _check(self, rank: int, layers: list[Any]) -> None:
        """Raises unless the rank has as many tensors as rank 0, all of supported types."""
        if len(layers) != len(self.numbers):
            raise ValueError(
                f"rank {rank} has {len(layers)} tensors, rank 0 has {len(self.numbers)}"
            )
        for number, layer in zip(self.numbers, layers, strict=True):
            check_layer(f"rank {rank}, tensor {number}", layer, ("cpu", "cuda"))

    def _check_shapes(self, rank: int, layers: list[Any]) -> None:
        for number, layer, shape in zip(self.numbers, layers, self.shapes, strict=True):
            if tuple(layer.shape) != shape:
                raise ValueError(
                    f"rank {rank}, tensor {number} has shape {tuple(layer.shape)}, "
                    f"rank 0 has {shape}"
                )
