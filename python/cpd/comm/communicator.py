# SPDX-License-Identifier: Apache-2.0
"""`Communicator`: the object by which one rank communicates with the other ranks of its group."""

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
    """Reports to other ranks that this rank gave up, if an uncaught exception ends the program."""
    if isinstance(getattr(sys, "last_value", None), BaseException):
        for comm in list(_open):
            comm._give_up()


@refuses_old
class Communicator:
    """The object by which one rank communicates with the other ranks of its group.

    `cpd.comm.mpi`, `nccl`, `distributed` and `local` make communicators. Every rank makes the same
    calls in the same order, with tensors of the same shapes. Ranks compare their calls before they
    send values. A call takes a list of NumPy arrays or torch tensors of any shape and layout, all
    on one device. Tensors are float32; float16 and bfloat16 are widened, which is exact. Results
    are float32 tensors of the same kind. Sums have the bits of `cpd.simulate_all_reduce`.

    **Seed and step.** The attributes `seed` and `step` select the random numbers of a call. `step`
    counts the successful reductions and calls of `all_gather`; the argument `step=` of a call
    replaces the count for that call. A program may set `seed` and `step`, for instance to continue
    a training. If the seeds or steps of ranks differ, their calls raise `Mismatch`.

    **Errors.** If the ranks' calls differ, all of them raise `Mismatch`. If a rank does not answer
    within `timeout` seconds, all other ranks raise `RankLost`. A damaged message raises
    `TransportError`. After an error, inputs are unchanged, except inputs that are also in `out`.
    After `RankLost` or `TransportError` the communicator is broken: `broken` has the reason, and
    every further call raises. `subgroup` then makes a communicator of the remaining ranks.

    If a rank refuses its own arguments (ValueError, TypeError), the other ranks raise a `Mismatch`
    with the text of that error. The refusing rank raises its error once the other ranks have made
    the call. The communicator keeps working.

    **Ctrl-C** ends a call with KeyboardInterrupt if Python's main thread made the call. The
    communicator is then broken, and `out` may be partly written. The other ranks raise `RankLost`
    without waiting for the timeout. The communicator also breaks, and the other ranks raise
    `RankLost`, if an exception ends this rank's `with` block (including `sys.exit` with a status
    other than 0), or if an uncaught exception other than `sys.exit` ends its program. This rank
    then takes part in no further call; under MPI no communicator of all ranks can be made again.
    SIGTERM ends Python without telling other ranks, unless a handler (`lambda *_: sys.exit(143)`)
    ends a `with` block.

    Calls release the GIL. The end of a `with` block closes the communicator.

    Args:
        native: the communicator's C++ object, which the functions of `cpd.comm` make.
        timeout: the seconds after which a rank that does not answer is lost.
        chunk: the number of values in a chunk, 1…2^31 - 1. Data is sent and summed by chunks.
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
    """The number of the next reduction or `all_gather`, from 0."""

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
        """This process's rank in the communicator, 0…size - 1."""
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
        """The seconds after which a rank that does not answer is lost."""
        return self._timeout

    @property
    def chunk(self) -> int:
        """The number of values in a chunk: data is sent and summed by chunks."""
        return self._chunk

    @property
    def traffic(self) -> Traffic:
        """Totals of this rank's messages in all its reductions so far."""
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
            spec: the all-reduce: a `Reduce`, an argument of its constructor such as its text, or a
                `Schedule`.
            step: the number of the step, which selects the random numbers and the specs of a
                `Schedule`; default None: the communicator's `step`.
            names: the tensors' names, the same on all ranks, which a `Schedule` with exempt tensors
                needs; default None.
            numbers: the tensors' numbers, which select their random numbers: distinct, below 2^16,
                the same on all ranks; default 0, 1, ….
            out: tensors that receive the result: float32, contiguous. Each is the input with the
                same index, or overlaps no input. Default None: new tensors.
            states: the codec's states for this rank's tensors, updated if the call succeeds;
                default None: no states are stored.
            report: whether to return a `ReduceReport` too, the same choice on all ranks; default
                False. With a `Schedule` its traffic is the total of all calls.

        Returns:
            The summed tensors; with `report=True` a tuple of them and a `ReduceReport`.

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
        """Calls `all_reduce` once for each spec of a schedule, after checks of the arguments."""
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
        """Sums all ranks' tensors; rank `root` alone receives the sum. Needs exchange `owner`.

        Args:
            tensors: this rank's tensors.
            spec: the roundings and the order of the sum: a `Reduce`, or its text.
            root: the rank that receives the sum; default 0.
            step: the number of the step; default None: the communicator's `step`.
            numbers: the tensors' numbers, which select random numbers; default 0, 1, ….
            states: the codec's states for this rank's tensors; default None: not stored.
            report: whether to return a `ReduceReport` too; default False.

        Returns:
            The summed tensors on rank `root`, None on other ranks; with `report=True` a tuple of
            this result and a `ReduceReport`.

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

        A tensor of n values is cut, in row-major order, into W 1-D slices for the W ranks. The
        first n mod W slices have one value more.

        Args:
            tensors: this rank's tensors.
            spec: the roundings and the order of the sum: a `Reduce`, or its text.
            step: the number of the step; default None: the communicator's `step`.
            numbers: the tensors' numbers, which select random numbers; default 0, 1, ….
            out: 1-D float32 tensors that receive this rank's slices; default: new tensors.
            states: the codec's states for this rank's tensors; default None: not stored.
            report: whether to return a `ReduceReport` too; default False.

        Returns:
            This rank's slices; with `report=True` a tuple of them and a `ReduceReport`.

        Raises:
            ValueError: for an invalid argument, and for a codec that encodes columns of a tensor,
                such as `one_bit` with 2-D tensors: columns are not consecutive in memory.
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
        """Gathers every rank's tensors, rounded as by `cpd.cast` and sent as packed codes.

        Args:
            tensors: this rank's tensors.
            to: the cast of the tensors: a `cpd.Cast` to a format without scales, its text, or a
                format; default fp32.
            step: the number of the step; default None: the communicator's `step`. Stochastic
                rounding of tensor l on rank r uses the communicator's seed and the random stream
                2^60 + step · 2^36 + l · 2^20 + r.
            report: whether to return a `Traffic` too; default False.

        Returns:
            The tensors, indexed [rank][tensor], float32; with `report=True` a tuple of them and a
            `Traffic`.

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
        """Gathers every rank's bytes unchanged; their lengths may differ.

        Args:
            data: this rank's bytes.

        Returns:
            The bytes of each rank, in ascending order of ranks.

        Raises:
            TypeError: if `data` is not bytes.
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
        """Waits until all ranks have called this method."""
        with self._one_call:
            self._native.barrier()

    def subgroup(self, ranks: Sequence[int]) -> Communicator:
        """Makes a communicator of some of the ranks.

        Only `ranks` call this method. The new communicator is independent of this one. The method
        works even after ranks that are not in `ranks` were lost.

        Args:
            ranks: the ranks of the new communicator, ascending, this rank among them.

        Returns:
            The new communicator. Its ranks are numbered from 0 in the order of `ranks`. Its seed is
            this communicator's, and its step is 0.
        """
        chosen = [int32("ranks", rank) for rank in ranks]
        with self._one_call:
            native = self._native.subgroup(chosen)
        return Communicator(native, self._timeout, self._chunk, self.seed)

    def close(self) -> None:
        """Closes the communicator; every later call raises."""
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
        """Reports to the other ranks that this rank gives up, unless the communicator is broken."""
        if not self.broken:
            self._native.give_up()

    def __repr__(self) -> str:
        state = f", broken: {self.broken}" if self.broken else ""
        return f"<cpd.comm.Communicator {self._name}, rank {self._rank} of {self._size}{state}>"

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """A context for checks of a call. If a check raises, the other ranks get the error, too."""
        try:
            yield
        except Exception as error:
            if not self.broken:
                self._refuse(error)
            raise

    @contextmanager
    def _keeping(self, states: States | None, spec: Reduce) -> Iterator[_core.CodecStates | None]:
        """Yields the C++ object of a codec's `states`. On an error, other ranks get the error."""
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
        """Checks a call's arguments. Returns inputs, spec, seed and step; the step may be None."""
        of, seed = as_seeded(spec)
        inputs = Inputs(tensors, numbers, of._compressor)
        check_world(of, self._size)
        warn_of_stall(of, self._size)
        return inputs, of, seed or self.seed, None if step is None else number("step", step)

    def _count(self, traffic: _core.Traffic) -> None:
        """Adds a successful reduction to `traffic` and `step`; the caller holds the lock."""
        self._traffic += traffic_of(traffic)
        self.step += 1


def _is_success(error: BaseException) -> bool:
    """Returns whether an exception is SystemExit with status 0 or GeneratorExit: no failure."""
    ends = isinstance(error, SystemExit) and error.code in (None, 0)
    return ends or isinstance(error, GeneratorExit)
