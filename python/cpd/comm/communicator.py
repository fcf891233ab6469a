# SPDX-License-Identifier: Apache-2.0
"""`Communicator`: one rank's end of a group of ranks."""

from __future__ import annotations

import atexit
import operator
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass
from types import TracebackType
from typing import Any, Literal, Never, overload

from cpd import _core
from cpd.comm.errors import Corrupt, RankLost, TransportError
from cpd.comm.layers import Inputs, Layers, Outputs
from cpd.comm.spec import ReduceSpec, check_spec, check_world, warn_of_stall
from cpd.comm.virtual import LayerReport, layer_report
from cpd.compress.states import Owner, States, native_states
from cpd.numeric.cast import CastLike, unscaled
from cpd.numeric.formats import flag
from cpd.numeric.numbers import int32, integer
from cpd.numeric.renamed import refuse, refuses_old

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _give_up_all() -> None:
    """Gives up if an exception ends the program, so that the other ranks do not wait."""
    if isinstance(getattr(sys, "last_value", None), BaseException):
        for comm in list(_open):
            comm._give_up()


@dataclass(frozen=True)
class Traffic:
    """The messages of this rank in one call.

    Attributes:
        steps: rounds of the exchange for one chunk, of a message each way.
        messages: the messages sent, in all phases.
        bytes_sent: the bytes of encoded values sent.
        bytes_received: the bytes of encoded values received.
        header_bytes: other bytes sent: message headers, sizes of messages, the handshake,
            exponents, reports.
    """

    steps: int
    messages: int
    bytes_sent: int
    bytes_received: int
    header_bytes: int

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(*map(operator.add, astuple(self), astuple(other)))


@dataclass(frozen=True)
class ReduceReport:
    """The report of a reduction.

    Attributes:
        layers: a report of each layer, over all ranks together, the same on each rank.
        traffic: the messages of this rank.
    """

    layers: list[LayerReport]
    traffic: Traffic


class Communicator:
    """One rank's end of a group of ranks; functions of `cpd.comm` make it.

    Every rank makes the same calls in the same order, with layers of the same shapes. Ranks compare
    what they are about to do before anything moves. Layers are lists of NumPy arrays or torch
    tensors of any shape and layout, all on one device. They are float32; float16 and bfloat16 are
    widened, which is exact. Results are float32, of the same kinds and shapes. The bits are those
    of `cpd.simulate_all_reduce` over the ranks' layers, for every transport.

    A rank that skips a call pairs its next call with the others' last one. A spec with `step=`
    shows that: the steps differ, which is a `Mismatch`.

    **Errors.** A call raises `Mismatch` on all ranks if they differ. It raises `RankLost` on all
    remaining ranks if one does not answer within `timeout` seconds, and `Corrupt` for a damaged
    message. Inputs are then unchanged, unless they are `out`. After `RankLost` and `Corrupt` the
    communicator is broken: `broken` and every further call say so. `subgroup` then makes a
    communicator of the remaining ranks.

    If a rank refuses its own arguments (ValueError, TypeError), the others raise a `Mismatch` with
    its text. The rank itself raises when they have made the call, and the next call works.

    **Ctrl-C** ends a call with KeyboardInterrupt if Python's main thread has made it. The
    communicator is then broken, `out` perhaps written in part, and the other ranks raise `RankLost`
    without waiting for the timeout. They do so too if any exception ends the `with` block (also
    `sys.exit` with a status other than 0), or an uncaught one ends the program (not `sys.exit`). A
    rank that ends so takes part in nothing more, and no communicator of all ranks can be made again
    under MPI. SIGTERM ends Python without a word. Install `signal.signal(signal.SIGTERM, lambda *_:
    sys.exit(143))` and use a `with` block, so that the other ranks need not wait for the timeout.

    Calls release the GIL. A communicator is a context manager, which closes it.

    >>> import cpd, numpy as np
    >>> def sum_(comm):
    ...     return comm.all_reduce([np.float32([comm.rank])], cpd.ReduceSpec("e4m3"), report=True)
    >>> with cpd.comm.local(4) as group:
    ...     (total,), report = group.run(sum_)[0]
    >>> total.item(), report.traffic.steps, report.layers[0].overflowed
    (6.0, 6, 0)
    """

    def __init__(self, native: _core.Communicator, timeout: float, chunk: int) -> None:
        self._native = native
        self._timeout = timeout
        self._chunk = chunk
        self._rank, self._size, self._name = native.rank, native.size, native.name
        self._one_call = threading.Lock()
        self._traffic = Traffic(0, 0, 0, 0, 0)
        _open.add(self)

    @property
    def rank(self) -> int:
        """This rank, 0…size - 1."""
        return self._rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self._size

    @property
    def name(self) -> str:
        """The name of the transport: `local`, `mpi`, `nccl` or `gloo`."""
        return self._name

    @property
    def timeout(self) -> float:
        """Seconds until a silent rank is lost."""
        return self._timeout

    @property
    def chunk(self) -> int:
        """The number of values that are processed at once."""
        return self._chunk

    @property
    def traffic(self) -> Traffic:
        """The messages of this rank in all its reductions so far."""
        return self._traffic

    @property
    def broken(self) -> str:
        """The reason why the communicator accepts no more calls; empty while it works."""
        return "it is closed" if self._native.closed else self._native.broken

    @overload
    def all_reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[Any]: ...
    @overload
    def all_reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[Any], ReduceReport]: ...
    def all_reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Sums all ranks' layers, as `spec` defines.

        Args:
            layers: this rank's layers.
            spec: what is rounded when, the order of the sum, and the exchange.
            out: layers that receive the result: float32, contiguous, each the input of the same
                number or apart from all inputs. Default None: new ones.
            numbers: the layers' numbers in random streams, each its own and below 2^16, the same on
                all ranks; default 0, 1, ….
            states: what a codec keeps of this rank's layers, updated when the call has succeeded;
                default None: nothing is stored.
            report: whether a `ReduceReport` is returned too, on all ranks; default False.

        Returns:
            The layers of the sum; with `report=True` these and a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
            Mismatch: if the ranks are about to do different things.
            RankLost: if a rank does not answer within the timeout.
            Corrupt: for a damaged message.
        """
        with self._telling():
            given = self._given(layers, spec, numbers)
            results = Outputs(given, given.shapes, out)
            sum_, counts = spec._native(), flag("report", report)
        with self._keeping(states, spec) as kept, self._one_call:
            made = self._native.all_reduce(
                given.values,
                results.values,
                sum_,
                counts,
                given.numbers,
                kept,
                given.rows,
                given.dimensions,
            )
        self._traffic += _traffic(made.traffic)
        results.put_back()
        return (results.layers, _report(made)) if report else results.layers

    @overload
    def reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        root: int = 0,
        *,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[Any] | None: ...
    @overload
    def reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        root: int = 0,
        *,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[Any] | None, ReduceReport]: ...
    def reduce(
        self,
        layers: Layers,
        spec: ReduceSpec,
        root: int = 0,
        *,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any] | None, ReduceReport] | None:
        """Sums all ranks' layers on one rank alone. Needs exchange `owner`.

        Args:
            layers: this rank's layers.
            spec: what is rounded when, and the order of the sum.
            root: the rank that receives the sum; default 0.
            numbers: as in `all_reduce`.
            states: as in `all_reduce`.
            report: as in `all_reduce`.

        Returns:
            The layers of the sum on rank `root`, None on the others; with `report=True` these and a
            `ReduceReport`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
        """
        with self._telling():
            given = self._given(layers, spec, numbers)
            root = integer("root", root)
            if not 0 <= root < self._size:
                raise ValueError(f"root must be 0…{self._size - 1}, got {root}")
            here = self._rank == root
            results = Outputs(given, given.shapes) if here else None
            sum_, counts = spec._native(), flag("report", report)
        values = [] if results is None else results.values
        with self._keeping(states, spec) as kept, self._one_call:
            made = self._native.reduce(
                given.values,
                values,
                sum_,
                root,
                counts,
                given.numbers,
                kept,
                given.rows,
                given.dimensions,
            )
        if results is not None:
            results.put_back()
        result = None if results is None else results.layers
        self._traffic += _traffic(made.traffic)
        return (result, _report(made)) if report else result

    @overload
    def reduce_scatter(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[Any]: ...
    @overload
    def reduce_scatter(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[Any], ReduceReport]: ...
    def reduce_scatter(
        self,
        layers: Layers,
        spec: ReduceSpec,
        *,
        out: Layers | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Sums all ranks' layers; rank r receives slice r of each layer. Needs exchange `owner`.

        Slices are 1-D, row-major. For a layer of n values the first n mod W slices have one value
        more.

        Args:
            layers: this rank's layers.
            spec: what is rounded when, and the order of the sum.
            out: slices that receive the result, as in `all_reduce`.
            numbers: as in `all_reduce`.
            states: as in `all_reduce`.
            report: as in `all_reduce`.

        Returns:
            This rank's slices; with `report=True` these and a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument, and for a codec that encodes columns, whose values
                are not consecutive in memory (`one_bit`, with layers of two dimensions).
            TypeError: for an argument of another type.
        """
        with self._telling():
            given = self._given(layers, spec, numbers)
            _check_in_place(given, spec)
            slices = [(self._slice(size),) for size in given.sizes]
            results = Outputs(given, slices, out)
            sum_, counts = spec._native(), flag("report", report)
        with self._keeping(states, spec) as kept, self._one_call:
            made = self._native.reduce_scatter(
                given.values,
                results.values,
                sum_,
                counts,
                given.numbers,
                kept,
                given.rows,
                given.dimensions,
            )
        self._traffic += _traffic(made.traffic)
        return (results.layers, _report(made)) if report else results.layers

    @refuses_old
    def all_gather(
        self,
        layers: Layers,
        to: CastLike = "fp32",
        *,
        seed: int = 0,
        report: bool = False,
        **_renamed: Never,
    ) -> Any:
        """Gathers every rank's layers, rounded as in `cpd.cast` and sent packed.

        Args:
            layers: this rank's layers.
            to: the cast of the messages: a `cpd.Cast` to a format without scales, its text, or a
                format; default fp32.
            seed: the seed of stochastic rounding; default 0.
            report: whether a `Traffic` is returned too; default False.

        Returns:
            The layers, [rank][layer]; with `report=True` these and a `Traffic`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
        """
        with self._telling():
            if _renamed:
                refuse("Communicator.all_gather", _renamed, to)
            given = Inputs(layers)
            format, rounding = unscaled(to, seed, 0)
            stacked = Outputs(given, [(self._size, *shape) for shape in given.shapes])
            wire, options, counts = format._held, rounding.native(), flag("report", report)
        with self._one_call:
            made = self._native.all_gather(
                given.values, stacked.values, wire, options, given.dimensions
            )
        gathered = [[layer[rank] for layer in stacked.layers] for rank in range(self._size)]
        return (gathered, _traffic(made)) if counts else gathered

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Gathers every rank's bytes, unchanged, of any lengths.

        Args:
            data: this rank's bytes.

        Returns:
            The bytes of each rank, rank ascending.

        Raises:
            TypeError: for anything but bytes.
            Mismatch: if the ranks are about to do different things.
            RankLost: if a rank does not answer within the timeout.
            Corrupt: for a damaged message.

        >>> import cpd
        >>> with cpd.comm.local(3) as group:
        ...     group.run(lambda comm: comm.all_gather_bytes(b"x" * comm.rank))[0]
        [b'', b'x', b'xx']
        """
        with self._telling():
            if not isinstance(data, bytes):
                raise TypeError(f"data must be bytes, got {type(data).__name__}")
        with self._one_call:
            gathered: list[bytes] = self._native.all_gather_bytes(data)
        return gathered

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        with self._one_call:
            self._native.barrier()

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Makes a communicator of some of the ranks.

        These ranks alone call it. It is independent of this communicator, and works after other
        ranks were lost.

        Args:
            ranks: the ranks, ascending, this one among them.

        Returns:
            The communicator, in which ranks are numbered from 0.
        """
        chosen = [int32("ranks", rank) for rank in ranks]
        with self._one_call:
            native = self._native.subgroup(chosen)
        return Communicator(native, self._timeout, self._chunk)

    def close(self) -> None:
        """Closes the connection; no call works after that."""
        with self._one_call:
            self._native.close()

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None and not _is_success(error):
            self._give_up()
        self.close()

    def _give_up(self) -> None:
        """Reports to the other ranks that this one takes part no more, unless it is broken."""
        if not self.broken:
            self._native.give_up()

    def __repr__(self) -> str:
        state = f", broken: {self.broken}" if self.broken else ""
        return f"<cpd.comm.Communicator {self._name}, rank {self._rank} of {self._size}{state}>"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Wraps the checks before a call.

        If they raise, this rank refuses the call, and the others learn why.
        """
        try:
            yield
        except Exception as error:
            if not self.broken:
                self._refuse(error)
            raise

    @contextmanager
    def _keeping(
        self, states: States | None, spec: ReduceSpec
    ) -> Iterator[_core.CodecStates | None]:
        """Yields `states` for one call of C++.

        If they are not available, this rank refuses the call.
        """
        with ExitStack() as stack:
            with self._telling():
                kept = native_states(
                    states,
                    wanted=spec.wire is not None,
                    owner=Owner(self._size, self._rank),
                )
                native = stack.enter_context(kept)
            yield native

    def _refuse(self, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
        try:
            with self._one_call:
                self._native.refuse(why)
        except (RankLost, Corrupt, TransportError) as failure:
            error.add_note(f"(the other ranks could not be told: {failure})")

    def _given(self, layers: Layers, spec: ReduceSpec, numbers: Sequence[int] | None) -> Inputs:
        check_spec(spec)
        given = Inputs(layers, numbers, spec.wire)
        check_world(spec, self._size)
        warn_of_stall(spec, self._size)
        return given

    def _slice(self, size: int) -> int:
        return size // self._size + (self._rank < size % self._size)


def _check_in_place(given: Inputs, spec: ReduceSpec) -> None:
    """Raises ValueError if the codec encodes a layer along an axis.

    A rank's slice of consecutive values would then not be a slice of the encoded rows.
    """
    for number, layout in zip(given.numbers, given.layouts, strict=False):
        if layout.axis is not None:
            raise ValueError(
                f"layer {number} is encoded along axis {layout.axis} by {spec.wire}, so that a "
                "slice is not of consecutive values: give axis=-1, or layers of one dimension"
            )


def _is_success(error: BaseException) -> bool:
    """Returns whether the exception that ends a `with` block is no failure of this rank."""
    if isinstance(error, SystemExit):
        return error.code in (None, 0)
    return isinstance(error, GeneratorExit)


def _report(native: _core.ReduceReport) -> ReduceReport:
    return ReduceReport([layer_report(one) for one in native.layers], _traffic(native.traffic))


def _traffic(native: _core.Traffic) -> Traffic:
    return Traffic(
        native.steps,
        native.messages,
        native.bytes_sent,
        native.bytes_received,
        native.header_bytes,
    )
