# SPDX-License-Identifier: Apache-2.0
"""Programs for test_interrupt.py, which runs each in a process of its own.

In some programs, Ctrl-C interrupts a call that would take minutes. In others, the program ends
while threads are still inside a call.

    interrupt_cases.py NAME [TRANSPORT]    prints the results as a line of JSON

A program that tests how a process ends prints nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import cpd
from cpd import _core
from cpd.comm import Communicator, LocalGroup
from patience import scaled

warnings.simplefilter("ignore", cpd.PrecisionWarning)  # these calls must be slow

DELAY = 0.7  # seconds until Ctrl-C
SPEC = cpd.Reduce("e4m3")
SLOW = cpd.Accumulator("e6m9 kahan", rounding="stochastic")
SIDE = 6000  # rows of square matrices with products that take minutes


class Interrupts:
    """Sends SIGINT to this process `delay` seconds after `begin`. The method `took` returns the
    seconds since the signal."""

    def __init__(self, delay: float = DELAY) -> None:
        self._sent = 0.0
        self._timer = threading.Timer(delay, self._send)

    def _send(self) -> None:
        self._sent = time.monotonic()
        os.kill(os.getpid(), signal.SIGINT)

    def begin(self) -> None:
        self._timer.start()

    def took(self) -> float:
        return time.monotonic() - self._sent

    def end(self) -> None:
        """Waits until the signal has been sent, which may be late on a busy machine."""
        self._timer.join()


def met_by_ctrl_c(call: Callable[[], Any], delay: float = DELAY) -> dict[str, Any]:
    """Runs a call that Ctrl-C interrupts after `delay` seconds. Returns the type and the text of
    the error that the call raised, and the seconds until the error."""
    interrupts = Interrupts(delay)
    interrupts.begin()
    try:
        call()
    except BaseException as error:
        took = interrupts.took()
        seen = {"raised": type(error).__name__, "said": str(error), "took": took}
    else:
        seen = {"raised": "", "said": "", "took": interrupts.took()}
    try:  # a delayed signal would raise KeyboardInterrupt here
        interrupts.end()
        for _ in range(1000):
            time.sleep(0.0001)
    except KeyboardInterrupt:
        seen["late"] = True
    return seen


def values(*shape: int) -> Any:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def large_matrix() -> Any:
    """Returns a SIDE × SIDE matrix whose rows are equal and share the memory of one row."""
    return np.broadcast_to(values(SIDE), (SIDE, SIDE))


# ---- long calls ----------------------------------------------------------------------------------


def gemm() -> dict[str, Any]:
    a = large_matrix()
    seen = met_by_ctrl_c(lambda: cpd.gemm(a, a, SLOW))
    b = a[:8, :8]
    seen["works"] = bool((cpd.gemm(b, b, "fp32") == cpd.gemm(b.copy(), b.copy(), "fp32")).all())
    return seen


def total() -> dict[str, Any]:
    terms = np.broadcast_to(np.float32(1), (1 << 24, 8192))
    return met_by_ctrl_c(lambda: cpd.sum(terms, SLOW, 0))


def handler() -> dict[str, Any]:
    """A signal handler that raises its own exception: the interrupted call raises this exception
    unchanged."""

    class Enough(Exception):  # noqa: N818
        pass

    def raise_enough(*_: Any) -> None:
        raise Enough("handled")

    signal.signal(signal.SIGINT, raise_enough)
    a = large_matrix()
    return met_by_ctrl_c(lambda: cpd.gemm(a, a, SLOW))


def quiet_handler() -> dict[str, Any]:
    """A signal handler that returns: the interrupted call continues and gives the right result."""
    heard: list[int] = []
    signal.signal(signal.SIGINT, lambda *_: heard.append(1))
    a = values(400, 400)
    expected = cpd.gemm(a, a, SLOW)
    rounds = 0
    interrupts = Interrupts(0.2)
    interrupts.begin()
    same = True
    while not heard and rounds < 5000:
        same = same and bool((cpd.gemm(a, a, SLOW) == expected).all())
        rounds += 1
    return {"heard": len(heard), "same": same}


def torch_gemm() -> dict[str, Any]:
    import torch

    a = torch.from_numpy(values(SIDE)).expand(SIDE, SIDE)
    return met_by_ctrl_c(lambda: cpd.gemm(a, a, SLOW))


def torch_sum() -> dict[str, Any]:
    import torch

    terms = torch.ones(1).expand(1 << 24, 8192)
    return met_by_ctrl_c(lambda: cpd.sum(terms, SLOW, 0))


def torch_backward() -> dict[str, Any]:
    """Interrupts a backward pass. Only the backward pass takes long, not the forward pass."""
    import torch

    a = torch.ones(2048, 2048, requires_grad=True)
    y = cpd.functional.matmul(a, a, sums=("fp32", SLOW, SLOW))
    return met_by_ctrl_c(lambda: y.sum().backward())


def torch_compiled() -> dict[str, Any]:
    import torch

    a = torch.from_numpy(values(SIDE)).expand(SIDE, SIDE)
    multiply = torch.compile(lambda x: cpd.gemm(x, x, SLOW), backend="aot_eager")
    multiply(a[:64, :64])
    return met_by_ctrl_c(lambda: multiply(a))


# ---- waits ---------------------------------------------------------------------------------------


def waits_local() -> dict[str, Any]:
    """Interrupts rank 0, which is this thread, while it waits for rank 2. Rank 1 waits too, and
    rank 2 comes late."""
    others: dict[int, Any] = {}
    interrupted = threading.Event()
    with cpd.comm.local(3, timeout=scaled(60)) as group:

        def wait(comm: Communicator) -> None:
            if comm.rank == 2:
                interrupted.wait()
            others[comm.rank] = told(lambda: comm.all_reduce([values(1000)], SPEC))

        threads = [threading.Thread(target=wait, args=(comm,)) for comm in group.ranks[1:]]
        for thread in threads:
            thread.start()
        seen = met_by_ctrl_c(lambda: group.ranks[0].all_reduce([values(1000)], SPEC))
        interrupted.set()
        seen["broken"] = group.ranks[0].broken
        seen["again"] = told(lambda: group.ranks[0].barrier())
        for thread in threads:
            thread.join()
    seen["others"] = [others[1], others[2]]
    return seen


def told(call: Callable[[], Any]) -> dict[str, Any]:
    try:
        call()
    except BaseException as error:
        return {"raised": type(error).__name__, "said": str(error)}
    return {"raised": "", "said": ""}


def waits_at_timeout() -> dict[str, Any]:
    """Sends Ctrl-C at about the moment at which the wait ends by its timeout."""
    with cpd.comm.local(2, timeout=DELAY + 0.02) as group:
        return met_by_ctrl_c(lambda: group.ranks[0].barrier())


def late_signal() -> dict[str, Any]:
    """Sends Ctrl-C long after the call has ended, as may happen on a busy machine."""
    return met_by_ctrl_c(lambda: None, 1.5)


class PythonTransport:
    """A transport in Python for rank 0 of two ranks. Ctrl-C interrupts the transport's own code, in
    one method after another."""

    name, rank, size, ranks_on_host, device_index = "python", 0, 2, 1, -1
    alarm_keeper = -1

    def __init__(self) -> None:
        self.alarms_raised = 0
        self.abandoned = 0

    def start(self, out: object, in_: object, tag: int) -> PythonTransport:
        return self

    def poll(self) -> bool:
        raise KeyboardInterrupt("in poll")

    def waiting(self) -> list[int]:
        return [1]

    def abandon(self) -> None:
        self.abandoned += 1

    def raise_alarm(self) -> None:
        self.alarms_raised += 1
        if self.alarms_raised == 1:
            raise KeyboardInterrupt("in raise_alarm")

    def alarms(self) -> list[bool]:
        return []

    def close(self) -> None:
        pass


def python_transport() -> dict[str, Any]:
    transport = PythonTransport()
    comm = Communicator(cpd._core.python_communicator(transport, 5.0, 1024), 5.0, 1024)
    seen: dict[str, Any] = {}
    try:
        try:
            comm.barrier()
        except KeyboardInterrupt:
            for _ in range(1000):
                time.sleep(0.0001)
    except KeyboardInterrupt as second:
        seen["first"] = str(second.__context__)
    seen["broken"] = comm.broken
    seen["alarms"] = transport.alarms_raised
    seen["abandoned"] = transport.abandoned
    return seen


def run_waits() -> dict[str, Any]:
    """Interrupts LocalGroup.run while rank 0 sleeps without end, rank 1 waits for it in a barrier,
    and rank 2 multiplies for minutes."""

    def work(comm: Communicator) -> None:
        if comm.rank == 0:
            while True:
                time.sleep(0.01)
        if comm.rank == 1:
            comm.barrier()
        a = values(SIDE, SIDE)
        cpd.gemm(a, a, SLOW)

    before = threading.active_count()
    group = cpd.comm.local(3, timeout=scaled(60))
    seen = met_by_ctrl_c(lambda: group.run(work))
    until = time.monotonic() + scaled(10)  # a thread may be late on a busy machine
    while threading.active_count() > before and time.monotonic() < until:
        time.sleep(0.01)
    seen["threads"] = threading.active_count() - before
    seen["broken"] = group.ranks[1].broken
    return seen


def rank(comm: Communicator, victim: int, late: float) -> dict[str, Any]:
    """Runs on three ranks (spawn_ranks). Ctrl-C interrupts rank `victim` in an all-reduce, in which
    a second rank waits too. The third rank calls the all-reduce `late` seconds after Ctrl-C."""
    layers = [values(1000)]
    comm.all_reduce(layers, SPEC)
    if comm.rank == victim:
        seen = met_by_ctrl_c(lambda: comm.all_reduce(layers, SPEC))
    else:
        time.sleep(DELAY + late if comm.rank == (victim + 2) % comm.size else 0)
        began = time.monotonic()
        seen = told(lambda: comm.all_reduce(layers, SPEC))
        seen["waited"] = time.monotonic() - began
    seen["broken"] = comm.broken
    return seen


def backward(comm: Communicator, victim: int, late: float) -> dict[str, Any]:
    """Interrupts rank `victim` in a backward pass of DDP, whose hook uses a CPD communicator. A
    second rank waits in its backward pass; the third begins `late` seconds after Ctrl-C."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Linear(8, 4)
    ddp = DistributedDataParallel(model)
    state, hook = cpd.ddp_hook(SPEC, model=model, comm=comm)
    ddp.register_comm_hook(state, hook)

    def step() -> None:
        ddp(torch.ones(2, 8)).sum().backward()

    for _ in range(2):  # DDP builds its final buckets in the second forward pass
        step()
    if comm.rank == victim:
        seen = met_by_ctrl_c(step)
    else:
        time.sleep(DELAY + late if comm.rank == (victim + 2) % comm.size else 0)
        began = time.monotonic()
        seen = told(step)
        seen["waited"] = time.monotonic() - began
    seen["broken"] = comm.broken
    seen["error"] = type(state.error).__name__
    return seen


def backward_ends(comm: Communicator) -> bool:
    """Runs on ranks of spawn_ranks. Rank 0's program ends while the thread of its DDP hook waits
    for rank 1."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    model = torch.nn.Linear(8, 4)
    ddp = DistributedDataParallel(model)
    ddp.register_comm_hook(*cpd.ddp_hook(SPEC, model=model, comm=comm))
    if comm.rank == 0:
        in_a_thread(lambda: ddp(torch.ones(2, 8)).sum().backward(), again=False)
    else:
        time.sleep(1.5)
    return True


# ---- threads at the program's end ----------------------------------------------------------------


def in_a_thread(call: Callable[[], Any], *, again: bool = True) -> None:
    """Starts a daemon thread that runs `call`, by default in an endless loop. Returns after 0.3 s,
    when the thread is inside `call`."""

    def loop() -> None:
        call()
        while again:
            call()

    threading.Thread(target=loop, daemon=True).start()
    time.sleep(0.3)


def ends_in_gemm() -> None:
    a = values(SIDE, SIDE)
    in_a_thread(lambda: cpd.gemm(a, a, SLOW))


def ends_in_cast() -> None:
    x = values(1 << 20)
    in_a_thread(lambda: cpd.cast(x, "e4m3"))


def ends_in_short_casts() -> None:
    x = values(10)
    in_a_thread(lambda: cpd.cast(x, "e4m3"))


def ends_in_torch_gemm() -> None:
    import torch

    a = torch.from_numpy(values(SIDE)).expand(SIDE, SIDE)
    cpd.gemm(a[:8, :8], a[:8, :8], SLOW)  # imports what the thread would import
    in_a_thread(lambda: cpd.gemm(a, a, SLOW))


def ends_in_torch_cast() -> None:
    import torch

    x = torch.from_numpy(values(1 << 20))
    cpd.cast(x[:8], "e4m3")
    in_a_thread(lambda: cpd.cast(x, "e4m3"))


def calls_after_the_end_of_calls() -> dict[str, Any]:
    """Counts another thread's calls of cpd.cast until `end_other_calls` returns, and in the half
    second after that."""
    x, made = values(10), [0]

    def call() -> None:
        cpd.cast(x, "e4m3")
        made[0] += 1

    in_a_thread(call)
    while made[0] < 100:
        time.sleep(0.01)
    ended = _core.end_other_calls(60.0)
    before = made[0]
    time.sleep(0.5)
    return {"ended": ended, "before": before, "after": made[0] - before}


GROUPS: list[LocalGroup] = []  # keeps the groups alive until the program ends


def ends_in_local_wait() -> None:
    GROUPS.append(cpd.comm.local(2, timeout=scaled(60)))
    in_a_thread(GROUPS[0].ranks[0].barrier, again=False)


def ends_in_local_loop() -> None:
    """Ends the program while two ranks reduce in endless loops."""
    GROUPS.append(cpd.comm.local(2, timeout=scaled(60)))
    x = [values(10_000)]
    for comm in GROUPS[0].ranks:
        in_a_thread(lambda comm=comm: comm.all_reduce(x, SPEC))


def rank_ends(comm: Communicator) -> bool:
    """Runs on ranks of spawn_ranks. Every process ends while a thread of ranks 0 and 1 waits for
    rank 2."""
    if comm.rank < 2:
        in_a_thread(comm.barrier, again=False)
    else:
        time.sleep(1.5)
    return True


if __name__ == "__main__":
    seen = globals()[sys.argv[1]]()
    if seen is not None:
        print(json.dumps(seen), flush=True)
