# SPDX-License-Identifier: Apache-2.0
"""A communication hook for torch's DistributedDataParallel: CPD's all-reduce sums gradients."""

# No `from __future__ import annotations` here: DDP compares the hook's annotations with types.

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
"""The types of gradients that are reduced."""
_PATIENCE = 5.0
"""Seconds to wait for the end of a reduction after Ctrl-C."""


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
    """Returns state and hook: `model.register_comm_hook(*cpd.ddp_hook(spec))`.

    Each parameter's gradient is a tensor of the all-reduce, with its own exponent, whatever bucket
    DDP puts it in. Its number in random streams is its index among the model's parameters. So the
    gradients equal, bit for bit, `simulate_all_reduce` of all ranks' gradients in the order of
    `model.parameters()`, at step `state.step`. The state counts one step for each backward pass
    that reduces. bfloat16 and float16 gradients are widened first, and the result is rounded to
    nearest.

    Buckets are reduced in DDP's order on a separate thread, while backward continues. In the very
    first pass, the order of the parameters is unknown until the last bucket. The other buckets wait
    for it, unless `model` is given.

    Args:
        spec: a `Reduce`, its text, or a `Schedule` that uses the names of the module's
            `named_parameters()` and the state's steps.
        comm: a communicator of the ranks of DDP, which nothing else uses. Default:
            `cpd.comm.distributed()`, which has its own connections; every rank makes it at the same
            point. If DDP has a `process_group`, give `cpd.comm.distributed(process_group)`.
        model: the model, as it is or in DDP. Needed for a `Schedule` with exempt tensors, and if
            parameters are of several types or devices (DDP's buckets do not show their order then).
            Default None.
        average: whether to divide by the number of ranks; default True. False: the spec's choice.
        divide: when the average divides: `"after"` divides the sum, `"before"` each contribution,
            as DDP does without a hook; see `Reduce`. None: the spec's choice, by default `"after"`.
        seed: the seed of the random bits of casts, codecs and sums, the same on all ranks; default
            0.

    Returns:
        The state and the hook.

    Raises:
        ValueError: for an invalid argument, or a group of the spec that is larger than the number
            of ranks.
        TypeError: for an argument of another type.
        RuntimeError: if torch.distributed is not initialized.

    If a rank fails, for instance by a lost rank, the backward pass ends with a RuntimeError that
    has the error's text; `state.error` is the error itself. Ctrl-C ends the pass with
    KeyboardInterrupt if it runs on Python's main thread (not on a GPU's thread, where torch waits).
    The communicator is then broken. `state` can be pickled: see `HookState`.
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
    """The state of the hook from step to step.

    A checkpoint holds `state_dict()`, plain data that `torch.load` takes with `weights_only=True`.
    A new hook of the same schedule continues from it (`load_state_dict`).

    A pickle holds the schedule, the step, the names and the states, not the communicator. At its
    first bucket, an unpickled state makes a new communicator of the default process group, unless
    `attach` has set one.

    Args:
        schedule: the schedule.
        step: the number of the next step; default 0.
        seed: the seed of the random bits; default 0.
    """

    schedule: Schedule
    seed: int
    """The seed of the random bits of casts, codecs and sums."""
    step: int
    """Number of the next backward pass that reduces; enters the random streams."""
    names: list[str] | None
    """The parameters' names in their order, if the model was given."""
    states: States
    """A codec's state for this rank's tensors; each rank's checkpoint has its own."""
    error: BaseException | None
    """The first error of the thread that reduces."""

    def __init__(self, schedule: Schedule, step: int = 0, seed: int = 0) -> None:
        self.__setstate__({"schedule": schedule, "step": step, "seed": seed, "names": None})

    def __getstate__(self) -> dict[str, Any]:
        names = ("schedule", "step", "seed", "names", "states")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.schedule = state["schedule"]
        self.step = state["step"]
        self.seed = state.get("seed", 0)  # of 0.7 in the schedule's specs
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
        """The all-reduce of the last ended backward pass on this rank; None before the first.

        It has the `step`; `bytes_sent`, the encoded values (None if the communicator does not count
        them); and the `seconds` in calls that reduce, including waiting for other ranks.
        """
        return self._meter.last

    def attach(self, comm: Communicator | None = None, model: nn.Module | None = None) -> None:
        """Uses this communicator and this model's parameters from now on.

        Args:
            comm: the communicator; default None: unchanged.
            model: the model, as it is or in DDP; default None: unchanged.
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
        """Returns the step, the seed, the parameters' names, and the states that a codec stores.

        It is a new dict of numbers, texts and bytes. Each rank's checkpoint has its own.
        """
        names = None if self.names is None else list(self.names)
        numbers = {"step": self.step, "seed": self.seed}
        return {**numbers, "names": names, "states": self.states.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`.

        Args:
            state: the result of `state_dict`, for the same parameters in the same order.

        Raises ValueError for anything else, or for parameters of other names; the state is then
        unchanged.
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
        """Forgets the states that codecs store for a parameter.

        Args:
            name: the parameter's name, if the model was given; default None: all parameters.

        Raises:
            ValueError: if no parameter has that name.
        """
        self.states.reset(None if name is None else number_of(name, self.names or []))

    def reduce(self, bucket: GradBucket) -> Future[torch.Tensor]:
        """Reduces a bucket's gradients, as DDP's communication hook.

        Args:
            bucket: the bucket, whose buffer the call takes over.

        Returns:
            A future of the buffer, with the reduced gradients.
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
        """Lets the backward pass end with a wait that Ctrl-C ends, before torch's own.

        Ctrl-C does not end torch's wait. Only Python's main thread receives it: on a GPU's thread,
        torch waits as before.
        """
        if threading.current_thread() is threading.main_thread():
            with contextlib.suppress(RuntimeError):  # DDP reduces after the pass (static graphs)
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
        """Ends the thread when its work is done, and closes a communicator that the state has made.

        No more buckets are taken.
        """
        self._worker.end()
        if self._owns_comm and self._comm is not None:
            self._comm.close()

    def _number_by_buckets(self) -> None:
        """Numbers the parameters: DDP's first buckets hold them from the last one to the first."""
        ordered = [p for taken in reversed(self._waiting) for p in taken.parameters]
        if self.names is not None and len(self.names) != len(ordered):
            raise ValueError(
                f"the model has {len(ordered)} parameters, the state {len(self.names)} names"
            )
        self._numbers = {parameter: number for number, parameter in enumerate(ordered)}

    def _layers(self, taken: "_Bucket") -> dict[int, torch.Tensor]:
        """Returns the bucket's gradients by their numbers."""
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
        """Runs on the thread: reduces the bucket in place and fulfills its future.

        `ends`: whether it is the last bucket of its step.
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
    """A thread that runs the functions put into it, in that order.

    A program that ends does not wait for it.
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
        """Ends its present call of CPD, and every further one, with KeyboardInterrupt."""
        self._stop.set()

    def end(self) -> None:
        """Waits for the work in progress, and takes no more."""
        self._ended = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        self._stop.enter()
        while (work := self._queue.get()) is not None:
            work()


class _Bucket(NamedTuple):
    """A bucket in progress. DDP's own object does not outlive the hook."""

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
        # An exception set on a future is visible to Python alone. One that a callback raises is
        # visible to DDP, too.
        result = done.then(lambda finished: finished.value())
        return cls(buffer, parameters, gradients, ready, done, result, threading.Event())


def _as_parameter(gradient: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Returns the bucket's part in the parameter's own layout, which DDP keeps if that is dense."""
    if parameter.is_contiguous():
        return gradient
    strides = parameter.stride()
    if torch.empty_like(parameter, device="meta").stride() != strides:
        return gradient
    return gradient.as_strided(parameter.shape, strides)


def _check_comm(comm: Any, schedule: Schedule) -> None:
    """Raises unless `comm` reduces, and has enough ranks for the groups of the schedule."""
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
    """Returns a communicator of the default group, with connections of its own."""
    if not dist.is_initialized():
        raise RuntimeError(
            "torch.distributed has no process group: call torch.distributed.init_process_group "
            "first, or give comm="
        )
    return distributed()


attach(__name__)
