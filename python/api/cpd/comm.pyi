# SPDX-License-Identifier: Apache-2.0
"""Communicators between ranks, and what all-reduces report."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias, TypeVar

import torch
from torch import nn
from torch.distributed import ProcessGroup

from cpd import Schedule, _CastLike, _ReduceLike, _ScheduleLike
from cpd.compress import States

_T = TypeVar("_T")
_Tensors: TypeAlias = Sequence[Any]

class Communicator:
    """One rank's end of a group of ranks. It has a seed and counts its reductions."""

    seed: int
    step: int

    @property
    def rank(self) -> int:
        """The number of this rank."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def name(self) -> str:
        """The transport and the rank, as errors name them."""

    @property
    def timeout(self) -> float:
        """Seconds after which a silent rank is lost."""

    @property
    def chunk(self) -> int:
        """Values of a message at most."""

    @property
    def traffic(self) -> Traffic:
        """Returns the traffic of this rank so far."""

    @property
    def broken(self) -> str:
        """The error that broke the communicator, or an empty text."""

    def all_reduce(
        self,
        tensors: _Tensors,
        spec: _ScheduleLike,
        *,
        step: int | None = None,
        names: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
        out: _Tensors | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Reduces the tensors over all ranks; every rank receives the results."""

    def reduce(
        self,
        tensors: _Tensors,
        spec: _ReduceLike,
        root: int = 0,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any] | None, ReduceReport] | None:
        """Reduces the tensors over all ranks; rank `root` alone receives the results."""

    def reduce_scatter(
        self,
        tensors: _Tensors,
        spec: _ReduceLike,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        out: _Tensors | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Reduces the tensors over all ranks; rank r receives slice r of each result."""

    def all_gather(
        self,
        tensors: _Tensors,
        to: _CastLike = "fp32",
        *,
        step: int | None = None,
        report: bool = False,
    ) -> Any:
        """Returns every rank's tensors, rounded for the message."""

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Returns every rank's bytes."""

    def barrier(self) -> None:
        """Waits until every rank has called it."""

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Returns a communicator of some of the ranks."""

    def close(self) -> None:
        """Closes the connections."""

class LocalGroup:
    """Ranks in one process, each for a thread of its own."""

    ranks: Sequence[Communicator]

    @property
    def size(self) -> int:
        """The number of ranks."""

    def run(self, function: Callable[[Communicator], _T]) -> list[_T]:
        """Calls a function for every rank on a thread, and returns the results."""

    def close(self) -> None:
        """Closes the communicators of all ranks."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *error: object) -> None: ...

def local(size: int, *, seed: int = 0, timeout: float = 300.0, chunk: int = 1048576) -> LocalGroup:
    """Returns ranks in this process."""

def mpi(*, seed: int = 0, timeout: float = 300.0, chunk: int = 1048576) -> Communicator:
    """Returns this process's communicator over MPI."""

def nccl(
    comm: Communicator,
    *,
    device: int | None = None,
    seed: int = 0,
    timeout: float = 300.0,
    chunk: int = 1048576,
) -> Communicator:
    """Returns a communicator over NCCL of the ranks of another, over which NCCL's id travels."""

def distributed(
    group: ProcessGroup | None = None,
    *,
    seed: int = 0,
    timeout: float = 300.0,
    chunk: int = 1048576,
) -> Communicator:
    """Returns a communicator of the ranks of torch.distributed."""

class Traffic:
    """The traffic of a rank: messages, bytes and seconds."""

    steps: int
    messages: int
    bytes_sent: int
    bytes_received: int
    header_bytes: int
    seconds: float
    exact: bool

    def __init__(
        self,
        steps: int,
        messages: int,
        bytes_sent: int,
        bytes_received: int,
        header_bytes: int,
        seconds: float = 0.0,
        exact: bool = True,
    ) -> None: ...

class ReduceReport:
    """The report of a reduction: one entry a tensor, and the traffic."""

    tensors: list[TensorReport]
    traffic: Traffic

    def __init__(self, tensors: list[TensorReport], traffic: Traffic) -> None: ...

class TensorReport:
    """The report of one tensor of a reduction: shift, overflows, underflows, bytes."""

    shift: int
    non_finite: int
    overflowed: int
    underflowed: int
    values: int
    zeros: int
    bytes: int
    bits: tuple[int, ...]
    staged_bytes: int

    def __init__(
        self,
        shift: int,
        non_finite: int,
        overflowed: int,
        underflowed: int,
        values: int = 0,
        zeros: int = 0,
        bytes: int = 0,
        bits: tuple[int, ...] = (),
        staged_bytes: int = 0,
    ) -> None: ...
    @property
    def bits_a_value(self) -> float:
        """The bits of the message per value."""

    @property
    def zeros_share(self) -> float:
        """The fraction of the encoded values that are zero."""

class HookState:
    """The state of the hook of `cpd.ddp_hook`, with its seed."""

    schedule: Schedule
    seed: int
    step: int
    names: list[str] | None
    states: States
    error: BaseException | None

    @property
    def traffic(self) -> Traffic | None:
        """Returns the traffic of the last backward pass on this rank."""

    def attach(self, comm: Communicator | None = None, module: nn.Module | None = None) -> None:
        """Sets the communicator and the model."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the step, the names and what a codec stores, as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""

    def reset(self, name: str | None = None) -> None:
        """Forgets what codecs store of a parameter, or of all parameters."""

    def reduce(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Reduces a bucket of DDP."""

    def close(self) -> None:
        """Ends the thread and closes the communicator that the state has made."""

class ReduceScatter:
    """The reduce-scatter of one module of FSDP. It has a seed."""

    schedule: Schedule
    seed: int
    step: int
    name: str
    states: States

    @property
    def traffic(self) -> Traffic | None:
        """Returns the traffic of the last backward pass on this rank."""

    def allocate(
        self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device
    ) -> torch.Tensor:
        """Returns memory for a message, as FSDP asks for it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the step and what a codec stores, as plain data."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""

    def reset(self) -> None:
        """Forgets what codecs store."""

class RankLost(RuntimeError):  # noqa: N818
    """A rank has ended or is silent."""

    ranks: tuple[int, ...]

    def __init__(self, message: str, ranks: Sequence[int] = ()) -> None: ...

class Mismatch(RuntimeError):  # noqa: N818
    """The ranks called different things; nothing was sent."""

class TransportError(RuntimeError):
    """A transport failed, or a message was damaged."""

    peer: int

    def __init__(self, message: str, peer: int = -1) -> None: ...
