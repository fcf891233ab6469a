# SPDX-License-Identifier: Apache-2.0
"""All-reduce in a customized precision, over virtual ranks in one process."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from cpd import _core, tensors
from cpd.accumulator import Accumulator, AccumulatorLike, sum_accumulator
from cpd.formats import Format, FormatLike, flag, format
from cpd.tensors import Array, Options

if TYPE_CHECKING:
    import torch

ORDERS = ("sequential", "ring", "tree")
EXCHANGES = ("owner", "gather", "ring", "hierarchical")

Layer: TypeAlias = "Array | torch.Tensor"
Layers: TypeAlias = Sequence[Layer]
PerRank: TypeAlias = Sequence[Layers | Callable[[], Layers]]
"""What each rank contributes: its layers, or a function that makes them."""


class StallWarning(UserWarning):
    """A sum of so many terms may stop growing: see `warn_of_stall`."""


@dataclass(frozen=True, init=False)
class ReduceSpec:
    """What an all-reduce does: casts each contribution to `format`, sums in `accumulator`.

    Args:
        format: of the contributions (on the wire): what `cpd.format` takes.
        accumulator: of the sum (`sequential`, `kahan`, `chunked` or `pairwise`); default
            `Accumulator(format)`, a sequential sum to nearest-even. Its `stream` must be 0: the
            streams of a reduction are made of purpose, step, layer and rank.
        order: `sequential`, rank ascending; `ring`: each layer is cut into W slices, the first n
            mod W one longer, and slice s is summed from rank s + 1 on, around to rank s; or `tree`:
            neighbours first, an odd one passes up, each sum rounded (with a sequential
            accumulator).
        exchange: which messages a communicator of `cpd.comm` moves; the bits are those of `order`
            and `group_size`. `owner`: who owns a slice gathers and sums it, then the sums are
            gathered; `gather`: every rank gathers and sums everything; `ring`: partial sums hop
            around a ring (order `ring`, no groups); `hierarchical`: members to their group's first
            rank, a ring of these, and back (order `ring`, with `group_size`).
        group_size: None, or: each group of that many ranks is summed in rank order to its first
            rank, then the groups' sums in `order`; the last group may be short. At most the number
            of ranks, which is checked where that is known.
        aps: scale each layer by a power of two so that its sum just fits (`True`: one less where
            the rounding can go outward; `"paper"`: the paper's exponent), undone at the end. Its
            exponent travels in a byte and is at least -118: what a layer of smaller gradients
            keeps then depends on the format, and below its least value nothing is left.
        loss_scale: a constant power of two for all layers, undone at the end; not with `aps`.
        average: divide the sum by the number of ranks, once, in binary32, at the end (so a sum
            beyond binary32 stays infinite).
        rounding, overflow, seed, random_bits, variant: of the cast to `format`, as in `cpd.cast`.
            The sum has the accumulator's own.
        result: format to which a wider accumulator is rounded once more at each level; default
            `format`.
        step: number of the training step; enters the random streams.

    Raises ValueError or TypeError for anything else. Immutable and picklable.

    >>> ReduceSpec("e4m3", order="ring").accumulator.format
    cpd.format('e4m3')
    """

    format: Format
    accumulator: Accumulator
    order: str
    exchange: str
    group_size: int | None
    aps: bool | Literal["paper"]
    loss_scale: float
    average: bool
    rounding: str
    overflow: str
    seed: int
    random_bits: int
    variant: str
    result: Format
    step: int

    def __init__(
        self,
        format: FormatLike,
        accumulator: AccumulatorLike | None = None,
        *,
        order: str = "sequential",
        exchange: str = "owner",
        group_size: int | None = None,
        aps: bool | Literal["paper"] = False,
        loss_scale: float = 1.0,
        average: bool = False,
        rounding: str = "nearest_even",
        overflow: str = "ieee",
        seed: int = 0,
        random_bits: int = 24,
        variant: str = "A",
        result: FormatLike | None = None,
        step: int = 0,
    ) -> None:
        wire = _format(format)
        values: dict[str, Any] = {
            "format": wire,
            "accumulator": sum_accumulator(wire if accumulator is None else accumulator),
            "order": _one_of("order", order, ORDERS),
            "exchange": _one_of("exchange", exchange, EXCHANGES),
            "group_size": None if group_size is None else _positive("group_size", group_size),
            "aps": _one_of("aps", aps, (False, True, "paper")),
            "loss_scale": _power_of_two(loss_scale),
            "average": flag("average", average),
            "rounding": rounding,
            "overflow": overflow,
            "seed": tensors.number("seed", seed),
            "random_bits": tensors.integer("random_bits", random_bits),
            "variant": variant,
            "result": wire if result is None else _format(result),
            "step": tensors.number("step", step),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._native()

    def _native(self) -> _core.ReduceSpec:
        options = Options(
            self.rounding, self.overflow, self.seed, 0, self.random_bits, self.variant
        )
        return _core.ReduceSpec(
            format=self.format._native,
            rounding=options.native(),
            accumulator=self.accumulator._native(),
            result=self.result._native,
            order=self.order,
            exchange=self.exchange,
            group_size=self.group_size or 0,
            aps=self.aps if isinstance(self.aps, str) else ("off", "on")[self.aps],
            loss_scale=self.loss_scale,
            average=self.average,
            step=self.step,
        )


_format = format  # the parameter of the same name hides it


@dataclass(frozen=True)
class LayerReport:
    """What happened to one layer of an all-reduce."""

    shift: int
    """APS scaled the layer by 2^shift."""
    non_finite: int
    """NaN and Inf among the contributions."""
    overflowed: int
    """Results that are not finite though no contribution was."""
    underflowed: int
    """Contributions, not zero, that the cast turned into zero."""


@overload
def simulate_all_reduce(
    per_rank: PerRank, spec: ReduceSpec, *, report: Literal[False] = False
) -> list[Any]: ...
@overload
def simulate_all_reduce(
    per_rank: PerRank, spec: ReduceSpec, *, report: Literal[True]
) -> tuple[list[Any], list[LayerReport]]: ...
def simulate_all_reduce(
    per_rank: PerRank, spec: ReduceSpec, *, report: bool = False
) -> list[Any] | tuple[list[Any], list[LayerReport]]:
    """The all-reduce of `spec` over W = len(per_rank) virtual ranks in this process.

    `per_rank[r]` is rank r's list of layers (torch CPU tensors or NumPy arrays, float32; bfloat16
    and float16 are widened, which is exact), or a function that makes it. Every rank has the same
    number of layers, of the same shapes. Ranks stream by: a function's layers are dropped before
    the next rank is asked, so memory holds one rank's values and the running sums. A function is
    called once, once more with APS, and once more for `ring`; it must give the same values each
    time.

    Returns the layers of the sum, float32, of rank 0's kind and shapes; with `report=True` also a
    list of `LayerReport`. What is rounded when, and in which order, see `ReduceSpec`. Each
    operation is one exact result rounded once; the result is the same for any number of threads.

    Raises ValueError (naming rank and layer where shapes differ) or TypeError.

    >>> ranks = [[np.float32([1.0, 320.0])], [np.float32([0.0625, 320.0])]]
    >>> simulate_all_reduce(ranks, ReduceSpec("e4m3"))[0].tolist()
    [1.0, inf]
    >>> simulate_all_reduce(ranks, ReduceSpec("e4m3", aps=True))[0].tolist()
    [1.0, 640.0]
    """
    check_spec(spec)
    source = Source(per_rank)
    check_world(spec, source.world)
    warn_of_stall(spec, source.world, stacklevel=3)
    reduce = _core.VirtualReduce(spec._native(), source.world, source.sizes)
    if reduce.wants_ranges():
        for rank in range(source.world):
            source.visit(rank, reduce.observe)
    for rank in reduce.schedule():
        source.visit(rank, reduce.contribute)
        reduce.end_rank()
    layers = [source.result(index, reduce.result) for index in range(len(source.sizes))]
    if not report:
        return layers
    return layers, [layer_report(reduce.report(index)) for index in range(len(layers))]


def layer_report(native: _core.LayerReport) -> LayerReport:
    return LayerReport(native.shift, native.non_finite, native.overflowed, native.underflowed)


def check_spec(spec: ReduceSpec) -> None:
    if not isinstance(spec, ReduceSpec):
        raise TypeError(f"spec must be a cpd.ReduceSpec, got {type(spec).__name__}")


def check_world(spec: ReduceSpec, world: int) -> None:
    """Raises ValueError where the spec's groups are larger than the number of ranks."""
    _core.check_world(spec._native(), world)


def may_stall(spec: ReduceSpec, world: int) -> bool:
    """Whether `warn_of_stall` has something to say."""
    return _core.may_stall(spec._native(), world)


def warn_of_stall(spec: ReduceSpec, world: int, stacklevel: int) -> None:
    """Warns where a plain sum has more than 2^precision terms: of terms of equal value the last
    ones change nothing, for each is less than half a unit in the last place of the sum."""
    if not may_stall(spec, world):
        return
    precision = spec.accumulator.format.man + 1
    warnings.warn(
        f"the sum over {world} ranks in {spec.accumulator} may stall: it has a precision of "
        f"{precision} bits, so that more than {2**precision} equal terms no longer count. A wider "
        "accumulator helps, a kahan, chunked or pairwise one, order='tree', or a group_size",
        StallWarning,
        stacklevel=stacklevel,
    )


class Source:
    """Gives the layers of one rank at a time as float32 arrays, and keeps none."""

    def __init__(self, per_rank: PerRank) -> None:
        if not (hasattr(per_rank, "__len__") and hasattr(per_rank, "__getitem__")):
            raise TypeError(f"per_rank must be a sequence of ranks, got {type(per_rank).__name__}")
        if len(per_rank) == 0:
            raise ValueError("per_rank must have at least one rank, got none")
        self.world = len(per_rank)
        self._per_rank = per_rank
        self._first: list[Any] | None = self._make(0)
        self._shapes = [tuple(layer.shape) for layer in self._first]
        self._torch = [tensors.is_torch(layer) for layer in self._first]
        self.sizes = [math.prod(shape) for shape in self._shapes]

    def visit(self, rank: int, use: Callable[[int, npt.NDArray[np.float32]], object]) -> None:
        """Calls use(layer's index, layer, 1-D) for each layer of `rank`."""
        layers, self._first = self._first if rank == 0 else None, None
        if layers is None:
            layers = self._make(rank)
            self._check_shapes(rank, layers)
        for index, layer in enumerate(layers):
            use(index, host_values(layer))

    def result(self, index: int, fill: Callable[[int, npt.NDArray[np.float32]], object]) -> Any:
        """A new layer of rank 0's kind and shape, filled by fill(index, array)."""
        values = np.empty(self.sizes[index], np.float32)
        fill(index, values)
        values = values.reshape(self._shapes[index])
        if not self._torch[index]:
            return values
        import torch

        return torch.from_numpy(values)

    def _make(self, rank: int) -> list[Any]:
        made: Any = self._per_rank[rank]
        layers = layer_list(f"rank {rank}", made() if callable(made) else made)
        for index, layer in enumerate(layers):
            check_layer(f"rank {rank}, layer {index}", layer)
        return layers

    def _check_shapes(self, rank: int, layers: list[Any]) -> None:
        if len(layers) != len(self._shapes):
            raise ValueError(
                f"rank {rank} has {len(layers)} layers, rank 0 has {len(self._shapes)}"
            )
        for index, (layer, shape) in enumerate(zip(layers, self._shapes, strict=True)):
            if tuple(layer.shape) != shape:
                raise ValueError(
                    f"rank {rank}, layer {index} has shape {tuple(layer.shape)}, rank 0 has {shape}"
                )


def layer_list(what: str, layers: Any) -> list[Any]:
    """`layers` as a list of its own."""
    if tensors.is_torch(layers) or isinstance(layers, (np.ndarray, str, bytes)):
        raise TypeError(f"{what} must be a list of layers, got {type(layers).__name__}")
    try:
        return list(layers)
    except TypeError:
        raise TypeError(f"{what} must be a list of layers, got {type(layers).__name__}") from None


def check_layer(where: str, layer: Any, devices: Sequence[str] = ("cpu",)) -> None:
    """Raises unless `layer` is an array or a tensor whose values are binary32 values."""
    if tensors.is_torch(layer):
        if layer.device.type not in devices:
            allowed = " or ".join(device.upper() for device in devices)
            raise ValueError(f"{where} must be on the {allowed}, got {layer.device}")
        if _is_plain(layer):
            return
        if str(layer.layout) != "torch.strided":
            raise TypeError(f"{where} must be a dense tensor, got {layer.layout}")
        name = str(layer.dtype).removeprefix("torch.")
    elif isinstance(layer, np.ndarray) and not isinstance(layer, np.ma.MaskedArray):
        name = layer.dtype.name if layer.dtype.isnative else layer.dtype.str
    else:
        raise TypeError(
            f"{where} must be a NumPy array or a torch tensor, got {type(layer).__name__}"
        )
    if name not in tensors.NARROW_FLOATS:
        raise TypeError(f"{where} must be of type float32, bfloat16 or float16, got {name}")


def host_values(layer: Any) -> npt.NDArray[np.float32]:
    """The values of a layer on the CPU, row-major, 1-D; without a copy where it is contiguous,
    aligned float32."""
    if tensors.is_torch(layer):
        if layer.requires_grad:
            layer = layer.detach()
        layer = (layer if _is_plain(layer) else layer.resolve_neg().float()).numpy()
    values: npt.NDArray[np.float32] = layer
    if layer.dtype != np.float32 or not (layer.flags.c_contiguous and layer.flags.aligned):
        values = np.require(layer, np.float32, ["C", "ALIGNED"])
    return values.reshape(-1)


def _is_plain(layer: torch.Tensor) -> bool:
    """Whether a tensor is dense float32 whose memory holds its values."""
    torch = sys.modules["torch"]
    return layer.dtype is torch.float32 and layer.layout is torch.strided and not layer.is_neg()


def _one_of(name: str, value: Any, allowed: Sequence[Any]) -> Any:
    for one in allowed:
        if type(value) is type(one) and value == one:
            return one
    names = ", ".join(repr(one) for one in allowed)
    raise ValueError(f"{name} must be one of {names}, got {value!r}")


def _positive(name: str, value: Any) -> int:
    number = tensors.integer(name, value)
    if not 1 <= number < 2**31:
        raise ValueError(f"{name} must be at least 1, got {number}")
    return number


def _power_of_two(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
        raise TypeError(f"loss_scale must be a number, got {type(value).__name__}")
    scale = float(value)
    if not (2.0**-126 <= scale <= 2.0**126 and math.frexp(scale)[0] == 0.5):
        raise ValueError(f"loss_scale must be a power of two from 2^-126 to 2^126, got {value}")
    return scale
