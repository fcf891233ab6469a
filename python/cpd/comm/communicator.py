# SPDX-License-Identifier: Apache-2.0
"""`Communicator`: one rank's end of a group of ranks."""

from __future__ import annotations

import atexit
import math
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Literal, overload

from cpd import _core
from cpd.comm.errors import RankLost, TransportError
from cpd.comm.layers import Inputs, Layers, Outputs, check_in_place, layer_list, layer_numbers
from cpd.comm.reports import ReduceReport, Traffic, reduce_report, traffic_of
from cpd.comm.schedule import Schedule, ScheduleLike, check_count, tensors_by_spec
from cpd.comm.spec import Reduce, ReduceLike, as_seeded, check_world, warn_of_stall
from cpd.compress.states import Owner, States, native_states
from cpd.numeric.cast import CastLike, unscaled
from cpd.numeric.formats import flag
from cpd.numeric.numbers import int32, integer, number
from cpd.numeric.renamed import refuses_old
from cpd.ops.arguments import ArrayT

_open: weakref.WeakSet[Communicator] = weakref.WeakSet()


@atexit.register
def _give_up_all() -> None:
    """Gives up if an exception ends the program, so that the other ranks do not wait."""
    if isinstance(getattr(sys, "last_value", None), BaseException):
        for comm in list(_open):
            comm._give_up()


@refuses_old
class Communicator:
    """One rank's end of a group of ranks; functions of `cpd.comm` make it.

    Every rank makes the same calls in the same order, with tensors of the same shapes. Ranks
    compare their calls before anything is sent. Tensors are lists of NumPy arrays or torch tensors
    of any shape and layout, all on one device. They are float32; float16 and bfloat16 are widened,
    which is exact. Results are float32, of the same kinds and shapes. For every transport the bits
    equal `cpd.simulate_all_reduce` over the ranks' tensors.

    **Seed and step.** A communicator has a `seed`, and counts its reductions and gathers as `step`.
    Each successful call adds one; `step=` of a call replaces the count for that call. Both enter
    the random streams. Both may be set, for instance when a training continues. Ranks whose seeds
    or steps differ raise a `Mismatch`.

    **Errors.** A call raises `Mismatch` on all ranks if they differ. It raises `RankLost` on all
    remaining ranks if one does not answer within `timeout` seconds, and `TransportError` for a
    damaged message. Inputs are then unchanged, unless they are `out`. After `RankLost` or
    `TransportError` the communicator is broken: `broken` has the reason, and every further call
    raises. `subgroup` then makes a communicator of the remaining ranks.

    If a rank refuses its own arguments (ValueError, TypeError), the others raise a `Mismatch` with
    its text. The rank raises once the others have made the call. The next call works.

    **Ctrl-C** ends a call with KeyboardInterrupt if Python's main thread made the call. The
    communicator is then broken, and `out` may be partly written. The other ranks raise `RankLost`
    without waiting for the timeout. They also do so if any exception ends the `with` block (also
    `sys.exit` with a status other than 0), or an uncaught one ends the program (not `sys.exit`).
    Such a rank takes part in no further call; under MPI no communicator of all ranks can be made
    again. SIGTERM ends Python without such a message: install `signal.signal(signal.SIGTERM,
    lambda *_: sys.exit(143))` and use a `with` block, so that no rank waits for the timeout.

    Calls release the GIL. A communicator is a context manager, which closes it.

    Args:
        native: the transport's end of this rank, which the functions of `cpd.comm` make.
        timeout: the seconds after which a rank that does not answer is lost.
        chunk: the number of values that are processed at once, 1…2^31 - 1.
        seed: the seed of the random bits of casts, codecs and sums; default 0.

    >>> import cpd, numpy as np
    >>> def sum_(comm):
    ...     return comm.all_reduce([np.float32([comm.rank])], "e4m3", report=True)
    >>> with cpd.comm.local(4) as group:
    ...     (total,), report = group.run(sum_)[0]
    >>> total.item(), report.traffic.steps, report.tensors[0].overflowed
    (6.0, 6, 0)
    """

    seed: int
    step: int
    """The number of the next reduction or gather."""

    def __init__(
        self, native: _core.Communicator, timeout: float, chunk: int, seed: int = 0
    ) -> None:
        self.seed = number("seed", seed)
        self.step = 0
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
        tensors: Sequence[ArrayT],
        spec: ScheduleLike,
        *,
        step: int | None = None,
        names: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
        out: Sequence[ArrayT] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[ArrayT]: ...
    @overload
    def all_reduce(
        self,
        tensors: Sequence[ArrayT],
        spec: ScheduleLike,
        *,
        step: int | None = None,
        names: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
        out: Sequence[ArrayT] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[ArrayT], ReduceReport]: ...
    @refuses_old
    def all_reduce(
        self,
        tensors: Layers,
        spec: ScheduleLike,
        *,
        step: int | None = None,
        names: Sequence[str] | None = None,
        numbers: Sequence[int] | None = None,
        out: Layers | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Sums all ranks' tensors, as `spec` defines.

        Args:
            tensors: this rank's tensors.
            spec: the all-reduce: a `Reduce`, or what it is constructed from, such as its text; or a
                `Schedule`, which takes `names`.
            step: the step, which enters the random streams, and on which a `Schedule` depends;
                default None: the communicator's `step`, which counts its calls from 0.
            names: the tensors' names, the same on all ranks, for a `Schedule`; default None: none.
            numbers: the tensors' numbers in random streams: distinct, below 2^16, the same on all
                ranks; default 0, 1, ….
            out: tensors that receive the result: float32, contiguous. Each is the input of the same
                number, or overlaps no input. Default None: new ones.
            states: the codec's states for this rank's tensors, updated when the call has succeeded;
                default None: nothing is stored.
            report: whether a `ReduceReport` is returned too, on all ranks; default False. With a
                `Schedule` its traffic counts all calls together.

        Returns:
            The tensors of the sum; with `report=True` these and a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
            Mismatch: if the ranks' calls differ.
            RankLost: if a rank does not answer within the timeout.
            TransportError: for a damaged message.
        """
        if isinstance(spec, Schedule):
            return self._all_reduce_by(spec, tensors, step, names, numbers, out, states, report)
        with self._telling():
            inputs, of, seed, at = self._given(tensors, spec, numbers, step)
            results = Outputs(inputs, inputs.shapes, out)
            counts = flag("report", report)
        with self._keeping(states, of) as codec_states, self._one_call:
            native_report = self._native.all_reduce(
                inputs.values,
                results.values,
                of._held,
                counts,
                seed,
                self.step if at is None else at,
                inputs.numbers,
                codec_states,
                inputs.rows,
                inputs.dimensions,
            )
            self._count(native_report.traffic)
        results.put_back()
        return (results.layers, reduce_report(native_report)) if report else results.layers

    def _all_reduce_by(
        self,
        schedule: Schedule,
        tensors: Layers,
        step: int | None,
        names: Sequence[str] | None,
        numbers: Sequence[int] | None,
        out: Layers | None,
        states: States | None,
        report: bool,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Makes one call for each spec of a schedule. Raises before anything is sent."""
        tensors = layer_list("tensors", tensors)
        sizes = [math.prod(tensor.shape) for tensor in tensors]
        at = self.step if step is None else number("step", step)
        parts = tensors_by_spec(schedule, names, sizes, at)
        own = layer_numbers(numbers, len(tensors))
        if out is not None:
            out = layer_list("out", out)
            check_count("tensors in out", out, tensors if names is None else names)
        schedule._check_world(self._size)
        sums: list[Any] = [None] * len(tensors)
        reports: list[Any] = [None] * len(tensors)
        traffic, before = Traffic(0, 0, 0, 0, 0), self.step
        for spec, indices in parts:
            into = None if out is None else [out[n] for n in indices]
            chosen, of = [tensors[n] for n in indices], [own[n] for n in indices]
            part, told = self.all_reduce(
                chosen, spec, step=at, numbers=of, out=into, states=states, report=True
            )
            traffic += told.traffic
            for n, sum_, tensor_report in zip(indices, part, told.tensors, strict=True):
                sums[n], reports[n] = sum_, tensor_report
        self.step = before + 1
        return (sums, ReduceReport(reports, traffic)) if report else sums

    @overload
    def reduce(
        self,
        tensors: Sequence[ArrayT],
        spec: ReduceLike,
        root: int = 0,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[ArrayT] | None: ...
    @overload
    def reduce(
        self,
        tensors: Sequence[ArrayT],
        spec: ReduceLike,
        root: int = 0,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[ArrayT] | None, ReduceReport]: ...
    @refuses_old
    def reduce(
        self,
        tensors: Layers,
        spec: ReduceLike,
        root: int = 0,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any] | None, ReduceReport] | None:
        """Sums all ranks' tensors on one rank alone. Needs exchange `owner`.

        Args:
            tensors: this rank's tensors.
            spec: the roundings and the order of the sum, as in `all_reduce`.
            root: the rank that receives the sum; default 0.
            step: as in `all_reduce`.
            numbers: as in `all_reduce`.
            states: as in `all_reduce`.
            report: as in `all_reduce`.

        Returns:
            The tensors of the sum on rank `root`, None on the others; with `report=True` these and
            a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
        """
        with self._telling():
            inputs, of, seed, at = self._given(tensors, spec, numbers, step)
            if not 0 <= (root := integer("root", root)) < self._size:
                raise ValueError(f"root must be 0…{self._size - 1}, got {root}")
            results = Outputs(inputs, inputs.shapes) if self._rank == root else None
            counts = flag("report", report)
        values = [] if results is None else results.values
        with self._keeping(states, of) as codec_states, self._one_call:
            native_report = self._native.reduce(
                inputs.values,
                values,
                of._held,
                root,
                counts,
                seed,
                self.step if at is None else at,
                inputs.numbers,
                codec_states,
                inputs.rows,
                inputs.dimensions,
            )
            self._count(native_report.traffic)
        if results is not None:
            results.put_back()
        result = None if results is None else results.layers
        return (result, reduce_report(native_report)) if report else result

    @overload
    def reduce_scatter(
        self,
        tensors: Sequence[ArrayT],
        spec: ReduceLike,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        out: Sequence[ArrayT] | None = None,
        states: States | None = None,
        report: Literal[False] = False,
    ) -> list[ArrayT]: ...
    @overload
    def reduce_scatter(
        self,
        tensors: Sequence[ArrayT],
        spec: ReduceLike,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        out: Sequence[ArrayT] | None = None,
        states: States | None = None,
        report: Literal[True],
    ) -> tuple[list[ArrayT], ReduceReport]: ...
    @refuses_old
    def reduce_scatter(
        self,
        tensors: Layers,
        spec: ReduceLike,
        *,
        step: int | None = None,
        numbers: Sequence[int] | None = None,
        out: Layers | None = None,
        states: States | None = None,
        report: bool = False,
    ) -> list[Any] | tuple[list[Any], ReduceReport]:
        """Sums all ranks' tensors; rank r receives slice r of each. Needs exchange `owner`.

        Slices are 1-D, row-major. For a tensor of n values the first n mod W slices have one value
        more.

        Args:
            tensors: this rank's tensors.
            spec: the roundings and the order of the sum, as in `all_reduce`.
            step: as in `all_reduce`.
            numbers: as in `all_reduce`.
            out: slices that receive the result, as in `all_reduce`.
            states: as in `all_reduce`.
            report: as in `all_reduce`.

        Returns:
            This rank's slices; with `report=True` these and a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument, and for a codec that encodes columns, whose values
                are not consecutive in memory (`one_bit`, with tensors of two dimensions).
            TypeError: for an argument of another type.
        """
        with self._telling():
            inputs, of, seed, at = self._given(tensors, spec, numbers, step)
            check_in_place(inputs, of.codec)
            world, rank = self._size, self._rank
            slices = [(n // world + (rank < n % world),) for n in inputs.sizes]
            results = Outputs(inputs, slices, out)
            counts = flag("report", report)
        with self._keeping(states, of) as codec_states, self._one_call:
            native_report = self._native.reduce_scatter(
                inputs.values,
                results.values,
                of._held,
                counts,
                seed,
                self.step if at is None else at,
                inputs.numbers,
                codec_states,
                inputs.rows,
                inputs.dimensions,
            )
            self._count(native_report.traffic)
        return (results.layers, reduce_report(native_report)) if report else results.layers

    def all_gather(
        self,
        tensors: Layers,
        to: CastLike = "fp32",
        *,
        step: int | None = None,
        report: bool = False,
    ) -> Any:
        """Gathers every rank's tensors, rounded as in `cpd.cast` and sent packed.

        Args:
            tensors: this rank's tensors.
            to: the cast of the messages: a `cpd.Cast` to a format without scales, its text, or a
                format; default fp32.
            step: as in `all_reduce`. A stochastic rounding of tensor l on rank r has the seed of
                the communicator and the stream 2^60 + step · 2^36 + l · 2^20 + r.
            report: whether a `Traffic` is returned too; default False.

        Returns:
            The tensors, [rank][tensor]; with `report=True` these and a `Traffic`.

        Raises:
            ValueError: for an invalid argument.
            TypeError: for an argument of another type.
        """
        with self._telling():
            inputs = Inputs(tensors)
            format, rounding = unscaled(to, self.seed, 0)
            seed = self.seed if rounding.rounding == "stochastic" else 0
            at = self.step if step is None else number("step", step)
            stacked = Outputs(inputs, [(self._size, *shape) for shape in inputs.shapes])
            wire, options, counts = format._held, rounding.native(), flag("report", report)
        with self._one_call:
            native_traffic = self._native.all_gather(
                inputs.values, stacked.values, wire, options, seed, at, inputs.dimensions
            )
            self.step += 1
        gathered = [[layer[rank] for layer in stacked.layers] for rank in range(self._size)]
        return (gathered, traffic_of(native_traffic)) if counts else gathered

    def all_gather_bytes(self, data: bytes) -> list[bytes]:
        """Gathers every rank's bytes, unchanged, of any lengths.

        Args:
            data: this rank's bytes.

        Returns:
            The bytes of each rank, rank ascending.

        Raises:
            TypeError: for anything but bytes.
            Mismatch: if the ranks' calls differ.
            RankLost: if a rank does not answer within the timeout.
            TransportError: for a damaged message.

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

        Only these ranks call it. The new communicator is independent of this one, and works even
        after other ranks were lost.

        Args:
            ranks: the ranks, ascending, this one among them.

        Returns:
            The communicator, in which ranks are numbered from 0. It has the same seed, and its step
            is 0.
        """
        chosen = [int32("ranks", rank) for rank in ranks]
        with self._one_call:
            native = self._native.subgroup(chosen)
        return Communicator(native, self._timeout, self._chunk, self.seed)

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
    def _keeping(self, states: States | None, spec: Reduce) -> Iterator[_core.CodecStates | None]:
        """Yields `states` for one call of C++.

        If they are not available, this rank refuses the call.
        """
        with ExitStack() as stack:
            with self._telling():
                owner = Owner(self._size, self._rank)
                context = native_states(states, wanted=spec.format is None, owner=owner)
                native = stack.enter_context(context)
            yield native

    def _refuse(self, error: Exception) -> None:
        why = f"{type(error).__name__}: {error}".encode(errors="backslashreplace").decode()
        try:
            with self._one_call:
                self._native.refuse(why)
        except (RankLost, TransportError) as failure:
            error.add_note(f"(the other ranks could not be told: {failure})")

    def _given(
        self, tensors: Layers, spec: Any, numbers: Sequence[int] | None, step: int | None
    ) -> tuple[Inputs, Reduce, int, int | None]:
        """Returns the tensors, the spec, the seed and the given step of a call, checked."""
        of, seed = as_seeded(spec)
        inputs = Inputs(tensors, numbers, of._compressor)
        check_world(of, self._size)
        warn_of_stall(of, self._size)
        return inputs, of, seed or self.seed, None if step is None else number("step", step)

    def _count(self, traffic: _core.Traffic) -> None:
        """Counts a reduction that has succeeded, before another call begins."""
        self._traffic += traffic_of(traffic)
        self.step += 1


def _is_success(error: BaseException) -> bool:
    """Returns whether the exception that ends a `with` block leaves this rank successful."""
    ends = isinstance(error, SystemExit) and error.code in (None, 0)
    return ends or isinstance(error, GeneratorExit)
