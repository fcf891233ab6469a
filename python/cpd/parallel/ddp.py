# SPDX-License-Identifier: Apache-2.0
"""A hook with which torch's DistributedDataParallel sums gradients by CPD's all-reduce."""

# This file must not import annotations from __future__: DDP compares the hook's annotations with
# types, not with strings.

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.futures import Future

from cpd import _core
from cpd._lazy import attach
from cpd.comm import Communicator, distributed
from cpd.comm.schedule import Schedule, ScheduleLike, as_schedule, divided
from cpd.comm.spec import Reduce, seeded
from cpd.compress.states import States
from cpd.numeric.checked import check_keys, check_module, checked
from cpd.numeric.numbers import integer, number
from cpd.parallel.nodes.gradients import named_parameters, number_of
from cpd.parallel.traffic import Meter, StepTraffic

Hook: TypeAlias = Callable[["HookState", GradBucket], Future[torch.Tensor]]

_TYPES = (torch.float32, torch.bfloat16, torch.float16)
"""The dtypes of gradients that the hook accepts."""
_PATIENCE = 5.0
"""The seconds that the backward pass waits after Ctrl-C for the end of a reduction."""


@functools.partial(checked, own=("comm",))
def ddp_hook(
    spec: ScheduleLike,
    comm: Communicator | None = None,
    *,
    model: nn.Module | None = None,
    average: bool = True,
    divide: Literal["after", "before"] | None = None,
    seed: int = 0,
) -> tuple["HookState", Hook]:
    """Returns the two arguments of torch's `DistributedDataParallel.register_comm_hook`.

    Use: `model.register_comm_hook(*cpd.ddp_hook(spec))`. CPD's all-reduce then sums the gradients.
    Each parameter's gradient is one tensor of the all-reduce, with its own scale, in whichever
    bucket DDP puts the gradient. The parameter's index in the model selects its random numbers. So
    the results equal, bit for bit, the results of `simulate_all_reduce` for all ranks' gradients in
    the order of `model.parameters()`, at step `state.step`. The state counts one step for each
    backward pass that reduces gradients. bfloat16 and float16 gradients are widened before the sum,
    and the result is rounded to nearest.

    Buckets are reduced in DDP's order on a separate thread, while the backward pass continues.
    Without `model`, the order of the parameters is unknown until the last bucket of the first
    backward pass. All buckets of that pass then wait for its last bucket.

    Args:
        spec: a `Reduce`, its text, or a `Schedule`. The schedule's names are those in the module's
            `named_parameters()`, and its steps are the state's steps.
        comm: a communicator of the ranks of DDP, which the program must not use for anything else.
            Default None: the hook calls `cpd.comm.distributed()`, so all ranks must call
            `ddp_hook`. If DDP has a `process_group`, pass `cpd.comm.distributed(process_group)`.
        model: the model, with or without its DDP wrapper. Needed for a `Schedule` with exempt
            tensors, and for parameters of several dtypes or devices, because DDP's buckets then do
            not show the order of the parameters. Default None.
        average: whether to divide by the number of ranks; default True. False: `spec` decides.
        divide: when to divide: `"after"` divides the sum, `"before"` divides each contribution, as
            DDP does without a hook; see `Reduce`. Default None: `spec` decides.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    Returns:
        The hook's state, and the hook.

    Raises:
        ValueError: for an invalid argument, for `divide` with `average=False`, or if `group_size`
            of `spec` exceeds the number of ranks.
        TypeError: for an argument of another type.
        RuntimeError: if torch.distributed is not initialized.

    If the all-reduce raises an error, for instance `RankLost`, the backward pass raises a
    RuntimeError with the error's text. `state.error` is the error itself. On the CPU, Ctrl-C ends a
    backward pass on Python's main thread with KeyboardInterrupt, and breaks the communicator.
    `state` can be pickled: see `HookState`.
    """
    if isinstance(spec, nn.Module):
        raise TypeError(
            f"spec must be what cpd.Reduce takes, or a cpd.Schedule, got {type(spec).__name__}: "
            "write model.register_comm_hook(*cpd.ddp_hook(spec))"
        )
    schedule = as_schedule(spec)
    _check_comm(comm, schedule)
    _check_model(model)
    schedule = divided(schedule, average, divide)
    if schedule.exempt and model is None:
        raise ValueError("a Schedule with exempt tensors needs model=, for the tensors' names")
    if comm is None and dist.is_initialized():
        schedule._check_world(dist.get_world_size())
    state = HookState(schedule, 0, number("seed", seed))
    state.attach(comm or _own_communicator(), model)
    state._owns_comm = comm is None
    return state, _all_reduce_hook


def _all_reduce_hook(state: "HookState", bucket: GradBucket) -> Future[torch.Tensor]:
    return state.reduce(bucket)


@functools.partial(checked, own=("comm",))
class HookState:
    """The state that the DDP hook carries from step to step.

    Store `state_dict()` in a checkpoint: it is plain data, which `torch.load` reads with
    `weights_only=True`. `load_state_dict` lets a new hook with the same schedule continue from it.

    A pickle of this object has the schedule, the step, the seed, the names and the codec's states,
    but not the communicator. At its first bucket, an unpickled object makes a communicator of the
    default process group, unless `attach` has set one.

    Args:
        schedule: the all-reduce of each parameter at each step.
        step: the number of the next step; default 0.
        seed: the seed of the random bits; default 0.
    """

    schedule: Schedule
    seed: int
    """The seed of the random bits of casts, codecs and sums."""
    step: int
    """The number of the next backward pass that reduces; it selects the random numbers."""
    names: list[str] | None
    """The parameters' names, in the model's order; None if no model was given."""
    states: States
    """The codec's states for this rank's tensors. Each rank must store its own states."""
    error: BaseException | None
    """The first error on the thread that reduces; None if it had no error."""

    def __init__(self, schedule: Schedule, step: int = 0, seed: int = 0) -> None:
        self.__setstate__({"schedule": schedule, "step": step, "seed": seed, "names": None})

    def __getstate__(self) -> dict[str, Any]:
        names = ("schedule", "step", "seed", "names", "states")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.schedule = state["schedule"]
        self.step = state["step"]
        self.seed = state.get("seed", 0)  # version 0.7 had it in the schedule's specs
        self.names = state["names"]
        self.states = state.get("states") or States()
        self.error = None
        self._meter = Meter()
        self._comm: Communicator | None = None
        self._owns_comm = False
        self._numbers: dict[torch.Tensor, int] = {}
        self._waiting: list[_Bucket] = []
        self._worker = _Worker()
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    @property
    def traffic(self) -> StepTraffic | None:
        """Bytes and time of the all-reduce in the last complete backward pass; None before it.

        The numbers are this rank's: `step`; `bytes_sent`, the bytes of encoded values (None if the
        communicator does not count them); and `seconds`, the time in the communicator's calls,
        including the time of waiting for other ranks.
        """
        return self._meter.last

    def attach(self, comm: Communicator | None = None, model: nn.Module | None = None) -> None:
        """Sets the communicator and the model for all later buckets.

        Args:
            comm: the communicator; default None: the communicator stays as it is.
            model: the model, with or without its DDP wrapper; default None: the model stays as it
                is.
        """
        _check_model(model)
        _check_comm(comm, self.schedule)
        if comm is not None:
            self._comm, self._owns_comm = comm, False
        if model is not None:
            named = named_parameters(model)
            for name, parameter in named.items():
                if parameter.is_complex():
                    raise TypeError(f"parameter {name} must be real, got {parameter.dtype}")
                _check_type(f"parameter {name}", parameter)
            self.schedule._check_names(list(named))
            self.names = list(named)
            self._numbers = {parameter: number for number, parameter in enumerate(named.values())}

    def state_dict(self) -> dict[str, Any]:
        """Returns the step, the seed, the parameters' names and the codec's states.

        The result is a new dict of numbers, texts and bytes. The dicts of the ranks differ, so each
        rank must store its own dict in a checkpoint.
        """
        names = None if self.names is None else list(self.names)
        numbers = {"step": self.step, "seed": self.seed}
        return {**numbers, "names": names, "states": self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the step, the seed, the names and the codec's states from a `state_dict`.

        Args:
            state: the result of `state_dict`, for the same parameters in the same order.

        Raises:
            ValueError: if `state` is not a result of `state_dict`, or if its parameters have other
                names. This object is then unchanged.
        """
        check_keys("state", state, "names", "states", "step")
        step, names = integer("step", state["step"]), state["names"]
        if names is not None and self.names is not None and list(names) != self.names:
            ours, other = set(self.names) - set(names), set(names) - set(self.names)
            missing = f": it lacks {min(ours)}" if ours else ""
            more = f": it has {min(other)} too" if other and not ours else ""
            raise ValueError(f"the state is of other parameters{missing or more or ', in order'}")
        self.states.load_state_dict(state["states"])
        self.step, self.seed = step, state.get("seed", self.seed)
        if names is not None:
            self.names = list(names)

    def reset(self, name: str | None = None) -> None:
        """Removes the codec's states of a parameter, such as its residual.

        Args:
            name: the parameter's name, if the model was given; default None: all parameters.

        Raises:
            ValueError: if no parameter has that name.
        """
        self.states.reset(None if name is None else number_of(name, self.names or []))

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Starts the all-reduce of a bucket of gradients; DDP calls this method as its hook.

        Args:
            bucket: DDP's bucket. The result is written into its buffer.

        Returns:
            A future; its value is the buffer with the reduced gradients.
        """
        if self._comm is None:
            self._comm, self._owns_comm = _own_communicator(), True
        taken = _Bucket.of(bucket)
        self._waiting.append(taken)
        if not self._numbers and bucket.is_last():
            self._number_by_buckets()
        if self._numbers:
            waiting, self._waiting = self._waiting, []
            for pending in waiting:
                layers = self._layers(pending)
                ends = bucket.is_last() and pending is taken
                self._worker.submit(functools.partial(self._run, pending, layers, self.step, ends))
        if bucket.is_last():
            self.step += 1
            self._await_in_backward(taken)
        return taken.result

    def _await_in_backward(self, last: "_Bucket") -> None:
        """Makes the backward pass wait at its end for the bucket `last`; Ctrl-C ends this wait.

        Ctrl-C does not interrupt torch's own wait, which comes after the added wait. Only Python's
        main thread receives Ctrl-C, so no wait is added if the pass runs on a thread of a GPU.
        """
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(RuntimeError):  # static graphs: DDP reduces after the pass
                torch.autograd.Variable._execution_engine.queue_callback(
                    functools.partial(self._await, last)
                )

    def _await(self, last: "_Bucket") -> None:
        try:
            last.ended.wait()
        except BaseException:
            self._worker.interrupt()
            last.ended.wait(_PATIENCE)
            raise

    def close(self) -> None:
        """Waits for buckets in progress, then ends the thread. Later buckets raise RuntimeError.

        Also closes the communicator if this object has made it.
        """
        self._worker.end()
        if self._owns_comm and self._comm is not None:
            self._comm.close()

    def _number_by_buckets(self) -> None:
        """Numbers the parameters bucket by bucket, in the reverse order of the buckets of DDP."""
        ordered = [p for taken in reversed(self._waiting) for p in taken.parameters]
        if self.names is not None and len(self.names) != len(ordered):
            raise ValueError(
                f"the model has {len(ordered)} parameters, the state {len(self.names)} names"
            )
        self._numbers = {parameter: number for number, parameter in enumerate(ordered)}

    def _layers(self, taken: "_Bucket") -> dict[int, torch.Tensor]:
        """Returns the bucket's gradients, with the parameters' numbers as keys."""
        layers = {}
        for parameter, gradient in zip(taken.parameters, taken.gradients, strict=True):
            if parameter not in self._numbers:
                raise ValueError(
                    f"DDP reduces a parameter of shape {tuple(parameter.shape)} that is not one of "
                    f"the {len(self._numbers)} of the model given to ddp_hook"
                )
            number = self._numbers[parameter]
            if gradient.dtype not in _TYPES:
                name = number if self.names is None else self.names[number]
                _check_type(f"the gradient of parameter {name}", gradient)
            layers[number] = gradient
        return layers

    def _run(
        self, taken: "_Bucket", layers: dict[int, torch.Tensor], step: int, ends: bool
    ) -> None:
        """Reduces a bucket in place, on the worker thread, and sets the result of its future.

        `ends` is True for the last bucket of a step.
        """
        try:
            if taken.ready is None:
                self._metered(layers, step, ends)
                taken.done.set_result(taken.buffer)
                return
            stream = self._stream(taken.buffer.device)
            with torch.cuda.stream(stream):
                stream.wait_event(taken.ready)
                taken.buffer.record_stream(stream)
                self._metered(layers, step, ends)
                taken.done.set_result(taken.buffer)
        except BaseException as error:
            self.error = self.error or error
            failure = error if isinstance(error, Exception) else RuntimeError("interrupted")
            taken.done.set_exception(cast(Any, failure))
        finally:
            taken.ended.set()

    def _stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = cast(Any, torch.cuda.Stream)(device)
        return self._streams[device]

    def _metered(self, layers: dict[int, torch.Tensor], step: int, ends: bool) -> None:
        with self._meter.call(self._comm):
            self._all_reduce(layers, step)
        if ends:
            self._meter.end(step)

    def _all_reduce(self, layers: dict[int, torch.Tensor], step: int) -> None:
        assert self._comm is not None
        for spec, numbers in self._parts(layers, step):
            chosen = [layers[number] for number in numbers]
            in_place = all(g.dtype == torch.float32 and g.is_contiguous() for g in chosen)
            options: dict[str, Any] = {} if spec.format is not None else {"states": self.states}
            sums = self._comm.all_reduce(
                chosen,
                seeded(spec, self.seed),
                step=step,
                numbers=numbers,
                out=chosen if in_place else None,
                **options,
            )
            if not in_place:
                for gradient, sum_ in zip(chosen, sums, strict=True):
                    gradient.copy_(sum_)

    def _parts(self, layers: dict[int, torch.Tensor], step: int) -> list[tuple[Reduce, list[int]]]:
        names = self.names or [str(number) for number in range(len(self._numbers))]
        sizes = [parameter.numel() for parameter in self._numbers]
        parts = self.schedule._parts(names, step, sizes)
        chosen = [(spec, [n for n in numbers if n in layers]) for spec, numbers in parts]
        return [(spec, numbers) for spec, numbers in chosen if numbers]


class _Worker:
    """A thread that calls the submitted functions in their order.

    It is a daemon thread: the end of the program does not wait for it.
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._ended = False
        self._stop = _core.Stop()

    def submit(self, work: Callable[[], None]) -> None:
        if self._ended:
            raise RuntimeError("the state is closed, and takes no more buckets")
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cpd-ddp", daemon=True)
            self._thread.start()
        self._queue.put(work)

    def interrupt(self) -> None:
        """Makes the thread's current call of CPD, and all later ones, raise KeyboardInterrupt."""
        self._stop.set()

    def end(self) -> None:
        """Waits for the submitted functions, then ends the thread; later submits raise."""
        self._ended = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        self._stop.enter()
        while (work := self._queue.get()) is not None:
            work()


class _Bucket(NamedTuple):
    """The tensors and futures of a DDP bucket, because DDP deletes the bucket after the hook."""

    buffer: torch.Tensor
    parameters: list[torch.Tensor]
    gradients: list[torch.Tensor]
    ready: torch.cuda.Event | None
    done: Future[torch.Tensor]
    result: Future[torch.Tensor]
    ended: threading.Event

    @classmethod
    def of(cls, bucket: GradBucket) -> "_Bucket":
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if buffer.layout != torch.strided:
            raise TypeError("sparse gradients cannot be reduced by CPD")
        if not parameters:
            raise ValueError("a bucket without parameters (DDP's join) cannot be reduced by CPD")
        if any(parameter.is_complex() for parameter in parameters):
            raise TypeError("complex parameters cannot be reduced by CPD: exclude them from DDP")
        if buffer.numel() != sum(parameter.numel() for parameter in parameters):
            raise ValueError("the bucket's size is not the sum of its parameters' sizes")
        gradients = [
            _as_parameter(gradient, parameter)
            for gradient, parameter in zip(bucket.gradients(), parameters, strict=True)
        ]
        cuda = buffer.is_cuda
        ready = torch.cuda.current_stream(buffer.device).record_event() if cuda else None
        done: Future[torch.Tensor] = Future(devices=[buffer.device] if cuda else None)
        # DDP does not see an exception that is set on a future. It sees an exception that a
        # callback of the future raises, so `result` is the future of a callback on `done`.
        result = done.then(lambda finished: finished.value())
        return cls(buffer, parameters, gradients, ready, done, result, threading.Event())


def _as_parameter(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns a bucket's gradient with the strides of its parameter, if the strides are dense."""
    if parameter.is_contiguous():
        return gradient
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() != strides:
        return gradient
    return gradient.as_strided(parameter.shape, strides)


def _check_comm(comm: Any, schedule: Schedule) -> None:
    """Raises an error for a communicator that cannot reduce by the schedule.

    Raises TypeError if `comm` has no method `all_reduce`, and ValueError if a group of the schedule
    has more ranks than `comm`. `comm` may be None.
    """
    if comm is None:
        return
    if not callable(getattr(comm, "all_reduce", None)):
        raise TypeError(f"comm must be a cpd.comm.Communicator, got {type(comm).__name__}")
    if isinstance(comm, Communicator):
        schedule._check_world(comm.size)


def _check_type(name: str, x: torch.Tensor) -> None:
    if x.dtype not in _TYPES:
        allowed = ", ".join(str(dtype) for dtype in _TYPES)
        raise TypeError(f"{name} must be one of {allowed}, got {x.dtype}")


def _check_model(model: Any) -> None:
    if model is not None:
        check_module("model", model)


def _own_communicator() -> Communicator:
    """Makes a communicator of torch's default process group, with separate connections."""
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed has no process group: call torch.distributed.init_process_group "
            "first, or give comm="
        )
    return distributed()


attach(__name__)
