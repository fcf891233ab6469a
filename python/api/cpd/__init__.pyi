# SPDX-License-Identifier: Apache-2.0
"""Customized floating point: formats, exactly rounded operations, models, and all-reduces."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn as _nn

from cpd import comm as comm
from cpd import compress as compress
from cpd import functional as functional
from cpd import hardware as hardware
from cpd import nn as nn
from cpd import optim as optim
from cpd import study as study
from cpd import track as track

_ArrayT = TypeVar("_ArrayT", npt.NDArray[Any], torch.Tensor)
_Number: TypeAlias = int | torch.Tensor
_Shape: TypeAlias = int | Sequence[int]
_FormatLike: TypeAlias = Format | str | tuple[int, int] | type | np.dtype[Any] | torch.dtype
_ScaledLike: TypeAlias = Scaled | str
_AccumulatorLike: TypeAlias = Accumulator | _FormatLike
_CastLike: TypeAlias = Cast | Scaled | _FormatLike
_SumLike: TypeAlias = Accumulator | str | Literal["native"]
_Sums: TypeAlias = _SumLike | tuple[_SumLike, _SumLike, _SumLike]
_RecipeLike: TypeAlias = Recipe | _CastLike
_Rules: TypeAlias = Mapping[Any, Any] | Sequence[tuple[Any, Any]]
_CodecLike: TypeAlias = Codec | _FormatLike | _ScaledLike
_ReduceLike: TypeAlias = Reduce | _CodecLike
_ScheduleLike: TypeAlias = Schedule | _ReduceLike
_Operand: TypeAlias = _CastLike | Literal["same"] | None
_Axes: TypeAlias = int | tuple[int, int]
_Divide: TypeAlias = Literal["after", "before"]

# ---- specs -----------------------------------------------------------------------------------

class _Spec:
    """The base of specs. A spec is immutable, hashable, and equal to a spec of the same text."""

    @property
    def text(self) -> str:
        """The canonical text; `X(x.text) == x` for every spec class X."""

    def replace(self, **keys: Any) -> Self:
        """Returns a copy with these keys changed."""

    @classmethod
    def named(cls) -> dict[str, Mapping[str, str]]:
        """Returns the named specs with their `summary`, `source` and `evidence`."""

class Format(_Spec):
    """A number format: exponent bits, mantissa bits, and the meaning of the codes."""

    exp: int
    man: int
    bias: int
    encoding: str
    signed: bool
    subnormals: bool
    name: str
    bits: int
    max: float
    lowest: float
    min_normal: float | None
    min_subnormal: float | None
    epsilon: float
    num_values: int

    def __init__(
        self,
        format: _FormatLike | None = None,
        /,
        *,
        exp: int | None = None,
        man: int | None = None,
        bias: int | None = None,
        encoding: str | None = None,
        signed: bool | None = None,
        subnormals: bool | None = None,
    ) -> None: ...
    def values(self) -> npt.NDArray[np.float32]:
        """Returns the finite values in ascending order."""

class Scaled(_Spec):
    """An element format whose values share scales by blocks."""

    element: Format
    block: int | str
    scale: Format
    rule: str
    tensor_scale: Format | None
    arithmetic: str
    outer: str
    margin: int
    non_finite: str
    choose: str | None
    scale_max: float | None
    transform: str | None

    def __init__(
        self,
        format: _ScaledLike | _FormatLike | None = None,
        /,
        *,
        element: _FormatLike | None = None,
        block: int | str | tuple[int, int] | None = None,
        scale: _FormatLike | None = None,
        rule: str | None = None,
        tensor_scale: _FormatLike | None = None,
        arithmetic: str | None = None,
        outer: str | None = None,
        margin: int | None = None,
        non_finite: str | None = None,
        choose: str | None = None,
        scale_max: float | None = None,
        transform: str | None = None,
    ) -> None: ...
    def scales_shape(self, shape: Sequence[int], axis: int = -1) -> tuple[int, ...]:
        """Returns the shape of the blocks' scales of a tensor."""

    def tensor_scales_shape(self, shape: Sequence[int], axis: int = -1) -> tuple[int, ...]:
        """Returns the shape of the outer scales of a tensor."""

    def bits_per_value(self, shape: Sequence[int], axis: int = -1) -> float:
        """Returns the bits of codes and scales per value of a tensor."""

class Accumulator(_Spec):
    """The rule of a sum: its format and scheme, a matrix unit's rule, or an integer's width.

    Attributes that a form does not have are None.
    """

    form: Literal["ordered", "unit", "integer"]
    format: Format
    scheme: str | None
    product: Format | str | None
    inner: Format | None
    chunk: int | None
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    a: Format | None
    b: Format | None
    block: int | None
    fraction_bits: int | None
    addend: str | None
    min_exponent: int | None
    sum: Format | None
    sum_rounding: str | None
    promote: int | None
    scale: Format | None
    scale_block: int | None
    dot: int | None
    adder: str | None
    group: int | None
    stride: int | None
    take: int | None
    width: int | None
    fraction: int | None

    def __init__(
        self,
        format: _AccumulatorLike | None = None,
        /,
        *,
        scheme: str | None = None,
        product: _FormatLike | None = None,
        inner: _FormatLike | None = None,
        chunk: int | None = None,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        a: _FormatLike | None = None,
        b: _FormatLike | None = None,
        block: int | None = None,
        fraction_bits: int | None = None,
        addend: Literal["aligned", "separate"] | None = None,
        min_exponent: int | None = None,
        sum: _FormatLike | None = None,
        sum_rounding: str | None = None,
        promote: int | None = None,
        scale: _FormatLike | None = None,
        scale_block: int | None = None,
        dot: int | None = None,
        adder: str | None = None,
        group: int | None = None,
        stride: int | None = None,
        take: int | None = None,
        width: int | None = None,
        fraction: int | None = None,
    ) -> None: ...
    @classmethod
    def exact(cls, a: _FormatLike, b: _FormatLike, terms: int) -> Self:
        """Returns the narrowest integer that sums this many products of a and b exactly."""

    def sum_integers(self, terms: int) -> int:
        """Returns the number of random integers of a sum of this many terms."""

    def gemm_integers(self, k: int) -> int:
        """Returns the number of random integers of a dot product of length k."""

    @property
    def slowdown(self) -> float:
        """The CPU time of a product in this accumulator, relative to the time of a BLAS."""

class Cast(_Spec):
    """A rounding to a format or a scaled format, and the history that gives its scale."""

    format: Format | Scaled
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    factor: float
    history: int
    amax: str

    def __init__(
        self,
        format: _CastLike,
        /,
        *,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        factor: float | None = None,
        history: int | None = None,
        amax: str | None = None,
    ) -> None: ...

class Recipe(_Spec):
    """The formats of the operands of a layer's products, the rules of the sums, and the rest."""

    forward: Accumulator | Literal["native"]
    grad_input: Accumulator | Literal["native"]
    grad_weight: Accumulator | Literal["native"]
    grad_bias: Accumulator | Literal["native"]
    activation: Cast | None
    weight: Cast | None
    gradient: Cast | None
    output: Cast | None
    grad_input_gradient: Cast | Literal["same"] | None
    grad_input_weight: Cast | Literal["same"] | None
    grad_weight_activation: Cast | Literal["same"] | None
    grad_weight_gradient: Cast | Literal["same"] | None
    norm: Cast | None
    softmax: Cast | None
    embedding: Cast | None
    residual: Cast | None
    attention: Recipe | None
    optimizer: str | None
    reduce: Reduce | None
    loss_scale: float | Literal["dynamic"] | None
    rules: tuple[tuple[str, Recipe | None], ...]
    schedule: tuple[tuple[str, int, Recipe | None], ...]
    source: str
    scales_at: str

    def __init__(
        self,
        format: _RecipeLike | Path | Literal["native"] = "native",
        /,
        *,
        sums: _Sums | None = None,
        forward: _SumLike | None = None,
        grad_input: _SumLike | None = None,
        grad_weight: _SumLike | None = None,
        grad_bias: _SumLike | None = None,
        activation: _Operand = "same",
        weight: _Operand = "same",
        gradient: _Operand = "same",
        output: _CastLike | None = None,
        grad_input_gradient: _Operand = "same",
        grad_input_weight: _Operand = "same",
        grad_weight_activation: _Operand = "same",
        grad_weight_gradient: _Operand = "same",
        norm: _CastLike | None = None,
        softmax: _CastLike | None = None,
        embedding: _CastLike | None = None,
        residual: _CastLike | None = None,
        attention: _RecipeLike | None = None,
        optimizer: str | None = None,
        reduce: _ReduceLike | None = None,
        loss_scale: float | Literal["dynamic"] | None = None,
        rules: _Rules = (),
        schedule: Iterable[tuple[str, int, _RecipeLike | None]] = (),
        source: str = "",
        scales_at: str | None = None,
    ) -> None: ...
    def to_dict(self) -> dict[str, Any]:
        """Returns the keys that differ from the defaults, as plain data."""

    def to_json(self) -> str:
        """Returns `to_dict` as JSON."""

    def to_toml(self) -> str:
        """Returns `to_dict` as TOML."""

class Codec(_Spec):
    """A reversible encoding of a tensor into a message: a format or a compressor."""

    random_bits: int

    def __init__(
        self, codec: _CodecLike, /, *, random_bits: int | None = None, **options: Any
    ) -> None: ...
    @property
    def format(self) -> Format:
        """The format of the values before the encoding."""

    def encode(
        self,
        x: Any,
        *,
        state: compress.States | None = None,
        number: int = 0,
        seed: int = 0,
        stream: int = 0,
        shift: int = 0,
        scale: float | None = None,
        random: Any = None,
    ) -> compress.Packet:
        """Encodes a tensor into a message."""

    def decode(self, data: bytes, shape: _Shape | None = None) -> npt.NDArray[np.float32]:
        """Returns the values of a message of this codec."""

class Reduce(_Spec):
    """An all-reduce: its codec, the order and the rule of its sums, and its exchange."""

    codec: Codec
    format: Format | Scaled | None
    accumulator: Accumulator
    order: str
    exchange: str
    group_size: int | None
    aps: bool | Literal["paper"]
    loss_scale: float
    average: bool
    divide: str
    rounding: str
    overflow: str
    random_bits: int
    variant: str
    result: Format

    def __init__(
        self,
        format: _ReduceLike,
        /,
        *,
        accumulator: _AccumulatorLike | None = None,
        order: str | None = None,
        exchange: str | None = None,
        group_size: int | None = None,
        aps: bool | Literal["paper"] | None = None,
        loss_scale: float | None = None,
        average: bool | None = None,
        divide: _Divide | None = None,
        rounding: str | None = None,
        overflow: str | None = None,
        random_bits: int | None = None,
        variant: str | None = None,
        result: _FormatLike | None = None,
    ) -> None: ...

class Schedule:
    """A `Reduce` for every tensor at every step."""

    spec: Reduce
    exempt: tuple[str, ...]
    exempt_spec: Reduce
    first_steps: int
    first_spec: Reduce
    min_size: int

    def __init__(
        self,
        spec: _ReduceLike,
        *,
        exempt: Sequence[str] = (),
        exempt_spec: _ReduceLike | None = None,
        first_steps: int = 0,
        first_spec: _ReduceLike | None = None,
        min_size: int = 0,
    ) -> None: ...
    def spec_of(self, name: str, step: int, size: int | None = None) -> Reduce:
        """Returns the spec of a tensor at a step."""

# ---- operations ------------------------------------------------------------------------------

class Encoded(NamedTuple):
    """An operand stored as codes and scales."""

    codes: Any
    scales: Any
    format: _FormatLike | _ScaledLike
    shape: _Shape
    axis: int = -1

def cast(
    x: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
    flags: bool = False,
    tininess: str = "after",
    dtype: Any = None,
) -> Any:
    """Rounds each element of x to a value of a format or a scaled format."""

def encode(
    x: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
    amax: Any = None,
) -> Any:
    """Rounds like `cast` and packs the codes into bytes."""

def decode(
    codes: _ArrayT | Encoded,
    format: _FormatLike | _ScaledLike | None = None,
    shape: _Shape | None = None,
    *,
    dtype: Any = None,
    out: _ArrayT | None = None,
    axis: int = -1,
    scales: Any = None,
) -> _ArrayT:
    """Returns the values of packed codes."""

def add(
    x: _ArrayT,
    y: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes x + y exactly and rounds once."""

def mul(
    x: _ArrayT,
    y: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes x * y exactly and rounds once."""

def fma(
    x: _ArrayT,
    y: _ArrayT,
    z: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes x * y + z exactly and rounds once."""

def div(
    x: _ArrayT,
    y: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes x / y exactly and rounds once."""

def sqrt(
    x: _ArrayT,
    to: _CastLike,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    out: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes the square root of x exactly and rounds once."""

def sum(
    x: _ArrayT,
    accumulator: _AccumulatorLike,
    axis: int | None = None,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    random: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Sums x in index order and rounds each step; by default over all elements, row-major."""

def gemm(
    a: _ArrayT | Encoded,
    b: _ArrayT | Encoded,
    accumulator: _AccumulatorLike,
    c: _ArrayT | None = None,
    *,
    seed: _Number = 0,
    stream: _Number = 0,
    dtype: Any = None,
    blas: bool = False,
    scales_at: str | None = None,
    random: _ArrayT | None = None,
    flags: bool = False,
    tininess: str = "after",
) -> Any:
    """Computes a @ b + c with every sum rounded as the accumulator says."""

def hadamard(
    x: _ArrayT,
    transform: str,
    *,
    axis: int = -1,
    inverse: bool = False,
    out: _ArrayT | None = None,
) -> _ArrayT:
    """Applies the Hadamard transform to each group of neighboring values along an axis."""

def random_integers(
    shape: _Shape, seed: _Number = 0, stream: _Number = 0, random_bits: int = 24
) -> npt.NDArray[np.uint32]:
    """Returns the random integers that stochastic rounding uses."""

class Explanation:
    """The plan of a call: its backend, kernel, path, tile and threads."""

    name: str
    backend: str
    kernel: str
    path: str
    tile: tuple[int, ...]
    threads: int
    why: str
    products: tuple[Explanation, ...]
    steps: tuple[Explanation, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the explanation as plain data."""

def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Returns what a call would run, and computes nothing."""

def backend() -> str:
    """Returns the instruction set of the CPU kernels in use."""

def check_cuda(device: int | None = None) -> None:
    """Waits for the device and raises the faults that its values caused."""

def release_cuda_memory(device: int | None = None) -> None:
    """Returns cached device memory to the driver."""

class PrecisionWarning(UserWarning):
    """A computation loses more precision, or is slower, than its arguments suggest."""

# ---- models ----------------------------------------------------------------------------------

def convert(
    model: _nn.Module,
    recipe: _RecipeLike = "native",
    rules: _Rules = (),
    *,
    sums: _Sums | None = None,
    seed: int = 0,
    coverage: float | bool = 0.9,
    amax_group: Any = None,
) -> nn.Report:
    """Makes the layers of a model compute as a recipe says, in place."""

def restore(model: _nn.Module) -> None:
    """Undoes `convert`, in place."""

def set_step(model: _nn.Module, *, step: int | None = None, epoch: int | None = None) -> None:
    """Sets the clock of a converted model, which its schedules follow."""

def plain_state_dict(model: _nn.Module) -> dict[str, Any]:
    """Returns the state_dict of the model as it was before `convert`."""

class autocast:  # noqa: N801
    """A context in which torch's functions compute as a recipe says."""

    def __init__(
        self,
        recipe: _RecipeLike,
        *,
        seed: _Number = 0,
        stream: _Number = 0,
        coverage: bool = True,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def observe(model: _nn.Module, every: int = 100, what_if: Any = (), writer: Any = None) -> nn.Watch:
    """Measures the operands of a model's layers every few steps."""

def quantizer(
    forward: _CastLike | None = None,
    backward: _CastLike | None = None,
    *,
    axis: _Axes = -1,
    seed: _Number = 0,
) -> _nn.Module:
    """Returns a module that rounds a tensor and the gradient that comes back to it."""

class Coverage:
    """The products of a training step that ran emulated, and those that did not."""

    products: tuple[nn.Products, ...]
    parameters: int
    emulated_parameters: int
    never_called: tuple[str, ...]

    @property
    def macs(self) -> int:
        """The number of multiply-accumulates."""

    @property
    def left(self) -> tuple[nn.Products, ...]:
        """The products that remained in torch."""

    @property
    def share(self) -> float:
        """The emulated fraction of the multiply-accumulates."""

    @property
    def by_recipe(self) -> dict[str, float]:
        """The fraction of the multiply-accumulates by recipe."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the counts as plain data."""

# ---- ranks -----------------------------------------------------------------------------------

def simulate_all_reduce(
    ranks: Sequence[Sequence[Any]],
    spec: _ScheduleLike,
    *,
    seed: int = 0,
    step: int = 0,
    names: Sequence[str] | None = None,
    numbers: Sequence[int] | None = None,
    states: compress.States | None = None,
    report: bool = False,
) -> list[Any] | tuple[list[Any], list[comm.TensorReport]]:
    """Computes the all-reduce of all ranks' tensors in this process."""

def ddp_hook(
    spec: _ScheduleLike,
    comm: comm.Communicator | None = None,
    *,
    module: _nn.Module | None = None,
    average: bool = True,
    divide: _Divide | None = None,
    seed: int = 0,
) -> tuple[comm.HookState, Callable[..., Any]]:
    """Returns the state and the hook for `DistributedDataParallel.register_comm_hook`."""

def fsdp_hook(
    model: _nn.Module,
    spec: _ScheduleLike,
    comm: comm.Communicator | None = None,
    *,
    divide: _Divide | None = None,
    seed: int = 0,
) -> dict[str, comm.ReduceScatter]:
    """Makes the modules that `fully_shard` wrapped reduce their gradients as a spec says."""

class VirtualNodes:
    """Trains a model on one device as nodes would whose gradients meet in an all-reduce."""

    model: _nn.Module
    world_size: int
    names: list[str]
    schedule: Schedule
    seed: int
    next_step: int
    states: compress.States
    losses: torch.Tensor
    report: dict[str, comm.TensorReport]
    traffic: comm.Traffic

    def __init__(
        self,
        model: _nn.Module,
        nodes: int,
        spec: _ScheduleLike,
        keep: Literal["memory", "disk", "recompute"] | None = None,
        *,
        average: bool = True,
        divide: _Divide | None = None,
        broadcast_buffers: bool = True,
        generators: Sequence[int] | None = None,
        folder: str | None = None,
        seed: int = 0,
    ) -> None: ...
    @property
    def kept_bytes(self) -> int:
        """The bytes of gradients that a step stores."""

    def step(
        self,
        loss: Callable[..., Any],
        batch: Any = None,
        *,
        micro_batches: Iterable[Any] | None = None,
        on_gradients: Callable[..., Any] | None = None,
    ) -> torch.Tensor:
        """Computes all nodes' gradients, reduces them, and returns the mean loss."""

    def no_sync(self) -> Iterator[None]:
        """Returns a context in which steps accumulate gradients and reduce nothing."""

    def drop_accumulated(self) -> None:
        """Forgets the gradients that steps in `no_sync` have accumulated."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs besides the model and its optimizer."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""

    def reset(self, name: str | None = None) -> None:
        """Forgets what codecs store of a parameter, or of all parameters."""
