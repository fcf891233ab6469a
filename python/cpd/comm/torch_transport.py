# SPDX-License-Identifier: Apache-2.0
"""Transports that send a communicator's messages by torch.distributed (gloo or NCCL).

A transport moves bytes; only C++ interprets them. C++ calls the transports of this module through
bindings/torch_distributed.cpp. bindings/torch_distributed.h lists the attributes and methods that a
transport must have.

A gloo operation cannot be polled: its is_completed() only reports what a wait() has seen. So one
daemon thread per peer waits for the operations in the order in which they were started. The threads
show which peer has answered.

A gloo wait whose timeout expires ends all operations of its context. So threads wait with a timeout
of ten years, and C++ checks the deadlines.

If a transport closes while a thread still waits for a lost peer, the thread continues to wait, even
when the process ends. A thread that returned from torch while Python finalizes would end the
process by a signal.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import hashlib
import os
import queue
import re
import socket
import sys
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore, Store

from cpd import _core
from cpd.comm.errors import RankLost, TransportError

Message: TypeAlias = tuple[int, int, int]
"""A message as a tuple: the peer's rank, the address of the memory, and the number of bytes."""
T = TypeVar("T")

FOREVER = timedelta(days=3650)
_TAGS = 1 << 15  # C++ uses only tags below this number

_abandoned: list[object] = []
"""Operations that were abandoned before they ended. The list keeps their memory alive, because
torch may still use the memory."""
_open: weakref.WeakSet[Transport] = weakref.WeakSet()
_asking: weakref.WeakSet[_Alarms] = weakref.WeakSet()
"""All `_Alarms` objects whose thread may still run. The thread may outlive the transport, because
it waits for torch's key-value store."""
_made: dict[tuple[int, ...], int] = {}
"""For each tuple of ranks, the number of transports between them that this process has made."""


def transport(group: dist.ProcessGroup | None, timeout: float) -> Transport:
    """Returns a transport between the ranks of a torch group, over the group's backend.

    All ranks of the group call this function.
    """
    if not dist.is_initialized():
        raise ValueError(
            "torch.distributed has no process group: call torch.distributed.init_process_group "
            "first"
        )
    whole = dist.group.WORLD if group is None else group
    if whole is None or dist.get_rank(whole) < 0:
        raise ValueError("this process is not in the group")
    ranks = dist.get_process_group_ranks(whole)
    backend = str(dist.get_backend(whole))
    makers: dict[str, type[Transport]] = {"gloo": GlooTransport, "nccl": NcclGroupTransport}
    if "cpu:gloo" in backend:  # a group with gloo for the CPU and NCCL for GPUs
        backend = "gloo"
    if backend not in makers:
        raise ValueError(f"the group's backend must be gloo or nccl, got {backend}")
    return _joined(makers[backend](ranks), timeout, range(len(ranks)), len(ranks))


def _joined(transport: Transport, timeout: float, numbers: Sequence[int], size: int) -> Transport:
    """Connects `transport`, and returns it when all its ranks are connected.

    A rank gives up after `timeout` seconds, or if another rank has given up. It then waits up to a
    second for the other ranks to report that they gave up, too. It raises RankLost with the ranks
    that reported nothing or, if torch's store does not answer, with the store's rank. If no such
    rank is known, it raises TransportError. RankLost names rank i by `numbers[i]`, its number in a
    group of `size` ranks.
    """
    outcome = _started(lambda: transport.connect(2 * timeout + 60))  # this wait ends before torch's
    grace = min(1.0, timeout / 4)
    try:
        why = _wait(transport, outcome, timeout, timeout - grace)
    except BaseException:  # Ctrl-C: the others do not wait for this one
        transport.raise_alarm()
        transport.close()
        raise
    if why:
        raise _lost(transport, why, grace, numbers, size)
    return transport


def _wait(transport: Transport, outcome: Outcome[None], timeout: float, patience: float) -> str:
    """Waits until all ranks are connected. Returns "", or the reason why they are not."""
    deadline = time.monotonic() + patience
    why = ""
    while not why:
        with contextlib.suppress(queue.Empty):
            _, error = outcome.get(timeout=0.02)
            if error is None:
                return ""
            why = str(error)
        if not why and any(transport.alarms()):
            why = "another rank gave up"
        if not why and time.monotonic() > deadline:
            why = f"no answer for {timeout:.1f} s"
    return why


def _lost(
    transport: Transport, why: str, grace: float, numbers: Sequence[int], size: int
) -> RankLost | TransportError:
    """Tells the other ranks that this rank stops waiting for connections, and closes `transport`.

    Returns the error to raise. It names the ranks that did not connect.
    """
    transport.raise_alarm()
    deadline = time.monotonic() + grace
    there = transport.alarms()
    while not (there and all(there)) and time.monotonic() < deadline:
        time.sleep(0.01)
        there = transport.alarms()
    there = there or transport.alarms()  # the store's last answer may have been late
    transport.close()
    if there:
        lost = [numbers[i] for i, is_there in enumerate(there) if not is_there]
        if not lost:
            return TransportError(f"the ranks could not be connected: {why}")
    else:
        why += ", nor does the store of torch.distributed answer"
        lost = [] if transport.alarm_keeper < 0 else [numbers[transport.alarm_keeper]]
        if not lost:
            return TransportError(f"the ranks could not be connected: {why}")
    who = "rank" if len(lost) == 1 else "ranks"
    names = ", ".join(map(str, lost))
    return RankLost(f"{who} {names} of {size} lost before the group was made ({why})", lost)


Outcome: TypeAlias = "queue.SimpleQueue[tuple[T | None, BaseException | None]]"


def _started(function: Callable[[], T]) -> Outcome[T]:
    """Runs function() in a daemon thread; returns the queue that will hold its outcome."""
    outcome: Outcome[T] = queue.SimpleQueue()
    device = torch.cuda.current_device() if torch.cuda.is_available() else None

    def run() -> None:
        try:
            if device is not None:
                torch.cuda.set_device(device)
            outcome.put((function(), None))
        except BaseException as error:
            outcome.put((None, error))

    threading.Thread(target=run, daemon=True, name="cpd-connect").start()
    return outcome


def _bounded(function: Callable[[], None], timeout: float) -> None:
    """Calls `function` and waits up to `timeout` seconds for its end; ignores exceptions."""
    with contextlib.suppress(queue.Empty):
        _started(function).get(timeout=timeout)


class Transport(ABC):
    """Sends messages between some ranks of torch's default group, over separate connections."""

    name = ""
    device_index = -1  # messages are in host memory

    def __init__(self, ranks: Sequence[int]) -> None:
        self._ranks = list(ranks)
        self.rank = self._ranks.index(dist.get_rank())
        self.size = len(self._ranks)
        key = tuple(self._ranks)
        count = _made[key] = _made.get(key, 0) + 1
        self._key = hashlib.sha256(repr((key, count, self.name)).encode()).hexdigest()
        self.ranks_on_host = 1
        self._alarms: _Alarms | None = None
        self._process = os.getpid()
        _open.add(self)

    def connect(self, timeout: float) -> None:
        """Connects all ranks, and waits until every rank has reported that it is connected."""
        self._alarms = _Alarms(self._own_store(timeout), self.rank, self.size)
        self._store = self._own_store(timeout)
        self.ranks_on_host = self._count_host()
        self._connect(timeout)
        self._store.set(f"connected/{self.rank}", "1")
        self._store.multi_get([f"connected/{rank}" for rank in range(self.size)])

    @abstractmethod
    def _connect(self, timeout: float) -> None:
        """Opens the connections that carry messages."""

    def _own_store(self, timeout: float) -> Store:
        """Returns a separate connection to torch's key-value store.

        Requests over other connections to the store cannot block requests over this one.
        """
        default: Any = c10d._get_default_store()
        store = default.clone()
        store.set_timeout(timedelta(seconds=timeout))
        return PrefixStore(f"cpd/{self._key}", store)

    @property
    def alarm_keeper(self) -> int:
        """The rank of this transport whose process holds torch's key-value store, or -1.

        The store is in the process of torch's rank 0, unless torchrun's agent or the program itself
        provides it. The value is -1 if the rank is unknown or not in this transport.
        """
        method = getattr(c10d, "_default_pg_init_method", None) or ""
        by_agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        in_rank_0 = method.startswith(("env:", "tcp:")) and not by_agent
        return self._ranks.index(0) if in_rank_0 and 0 in self._ranks else -1

    def _count_host(self) -> int:
        """Returns the number of ranks whose host name is this rank's; waits for all ranks."""
        own = socket.gethostname()
        self._store.set(f"host/{self.rank}", own)
        hosts = self._store.multi_get([f"host/{rank}" for rank in range(self.size)])
        return sum(host == own.encode() for host in hosts)

    @abstractmethod
    def start(self, out: list[Message], in_: list[Message], tag: int) -> Any:
        """Starts sends and receives; returns a transfer with poll(), waiting() and abandon()."""

    def raise_alarm(self) -> None:
        """Reports to the other ranks that this rank ends the communication after an error."""
        if self._alarms is not None:
            self._alarms.set()

    def alarms(self) -> list[bool]:
        """Returns for each rank whether it has called `raise_alarm`.

        The list is empty if torch's key-value store does not answer.
        """
        return [] if self._alarms is None else self._alarms.seen()

    def subgroup(self, ranks: list[int], timeout: float) -> Transport:
        """Returns a new transport between `ranks`, which are ranks of this transport."""
        chosen = [self._ranks[rank] for rank in ranks]
        return _joined(type(self)(chosen), timeout, ranks, self.size)

    def abort(self, reason: str) -> None:
        """Prints `reason` and ends this process with status 1. torchrun then ends other ranks."""
        with contextlib.suppress(Exception):
            print(reason, file=sys.stderr, flush=True)
        os._exit(1)

    def close(self) -> None:
        """Ends the transport's threads; the transport must not be used after that."""
        if self._alarms is not None and os.getpid() == self._process:
            self._alarms.end()  # a forked child has no thread


@atexit.register
def _close_all() -> None:
    _core.end_other_calls()
    for transport in list(_open):
        transport.close()
    for alarms in list(_asking):
        alarms.end(_Alarms.LAST)


class _Alarms:
    """Reports which ranks have given up (raised their alarm), through keys of torch's store.

    A thread queries the store. While the store does not answer, `seen` returns an empty list.
    """

    _PAUSE = 0.01  # seconds between two queries of the store
    _FRESH = 0.5  # seconds for which an answer of the store is valid
    _FIRST = 0.25  # seconds that `seen` waits for the first answer
    _ASKED = 2.0  # the thread ends if `seen` was not called for this many seconds
    LAST = 5.0  # seconds that the end of the program waits for the thread

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store = store
        self._rank = rank
        self._raised = [False] * size
        self._lock = threading.Lock()
        self._answered = threading.Event()
        self._answer_time = 0.0
        self._asked_time = 0.0
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        _asking.add(self)

    def set(self) -> None:
        """Writes to torch's store that this rank has given up. Waits up to `_FRESH` seconds."""
        self._raised[self._rank] = True
        _bounded(self._tell, self._FRESH)

    def seen(self) -> list[bool]:
        now = time.monotonic()
        with self._lock:
            self._asked_time = now
            if self._thread is None and not self._ended.is_set():
                self._answered.clear()
                self._thread = threading.Thread(target=self._watch, daemon=True, name="cpd-alarms")
                self._thread.start()
        self._answered.wait(self._FIRST)
        fresh = time.monotonic() - self._answer_time < self._FRESH
        return list(self._raised) if fresh else []

    def end(self, patience: float = _FRESH) -> None:
        """Ends the thread; waits up to `patience` seconds for its end."""
        self._ended.set()
        thread = self._thread
        if thread is not None:
            thread.join(patience)

    def _tell(self) -> None:
        self._store.set(f"alarm/{self._rank}", "1")
        self._store.set("alarm", "1")

    def _watch(self) -> None:
        try:
            while not self._ended.wait(self._PAUSE):
                self._ask()
                self._answer_time = time.monotonic()
                self._answered.set()
                with self._lock:
                    if time.monotonic() - self._asked_time > self._ASKED:
                        self._thread = None
                        return
        except Exception:  # the store is gone; `_thread` stays set, so no new thread starts
            self._answer_time = 0.0
            self._answered.set()

    def _ask(self) -> None:
        if not self._store.check(["alarm"]):
            return
        for rank, raised in enumerate(self._raised):
            if not raised:
                self._raised[rank] = self._store.check([f"alarm/{rank}"])


# ---- gloo ----------------------------------------------------------------------------------------


class GlooTransport(Transport):
    """A transport over a separate gloo context; messages are in host memory."""

    name = "gloo"

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__(ranks)
        self._gloo: Any = None
        self._waiters: dict[int, _Waiter] = {}

    def _connect(self, timeout: float) -> None:
        self._gloo = c10d.ProcessGroupGloo(
            PrefixStore("gloo", self._store), self.rank, self.size, timedelta(seconds=timeout)
        )

    def start(self, out: list[Message], in_: list[Message], tag: int) -> GlooTransfer:
        """Starts sends and receives; see `Transport.start`."""
        transfer = GlooTransfer(self._gloo)
        for messages, move in ((in_, self._gloo.recv), (out, self._gloo.send)):
            for peer, address, size in messages:
                if size > 0:
                    transfer.add(peer)
                    bytes_ = _host_bytes(address, size)
                    self._waiter(peer).put(functools.partial(move, [bytes_], peer, tag), transfer)
        return transfer

    def close(self) -> None:
        """Ends the transport's threads and its open operations."""
        super().close()
        if os.getpid() != self._process:
            return
        for waiter in self._waiters.values():
            waiter.end()
        if any(waiter.is_waiting for waiter in self._waiters.values()):
            self._break_off()
        for waiter in self._waiters.values():
            waiter.join()

    def _break_off(self) -> None:
        """Ends all operations of the gloo context, by a receive that times out on purpose."""
        nothing = torch.empty(1, dtype=torch.uint8)
        for peer in range(self.size):
            with contextlib.suppress(RuntimeError):
                if peer != self.rank:
                    self._gloo.recv([nothing], peer, _TAGS).wait(timedelta(milliseconds=1))

    def _waiter(self, peer: int) -> _Waiter:
        if peer not in self._waiters:
            self._waiters[peer] = _Waiter(peer)
        return self._waiters[peer]


class GlooTransfer:
    """One transfer of messages by gloo: sends and receives that were started together."""

    def __init__(self, gloo: object) -> None:
        self._gloo = gloo
        self._lock = threading.Lock()
        self._open: dict[int, int] = {}
        self._error: TransportError | None = None
        self._works: list[object] = []

    def add(self, peer: int) -> None:
        """Counts one more message to or from a peer as not yet done."""
        with self._lock:
            self._open[peer] = self._open.get(peer, 0) + 1

    def keep(self, work: object) -> None:
        """Keeps a reference to a torch operation while this transfer exists."""
        self._works.append(work)

    def done(self, peer: int, error: TransportError | None) -> None:
        """Counts a message to or from a peer as done, or stores the error with which it failed."""
        with self._lock:
            if error is not None:
                self._error = self._error or error
            elif self._open[peer] == 1:
                del self._open[peer]
            else:
                self._open[peer] -= 1

    def poll(self) -> bool:
        """Returns whether all messages of the transfer are done; raises the first error."""
        if self._error is not None:
            raise self._error
        return not self._open

    def waiting(self) -> list[int]:
        """Returns the peers with messages that are not done."""
        with self._lock:
            return sorted(self._open)

    def abandon(self) -> None:
        """Keeps the memory of this transfer's messages until the process ends: torch may use it."""
        _abandoned.append(self)


class _Waiter:
    """The thread that waits for the messages to and from one peer."""

    def __init__(self, peer: int) -> None:
        self._peer = peer
        self._error: TransportError | None = None
        self._queue: queue.SimpleQueue[tuple[Any, GlooTransfer] | None] = queue.SimpleQueue()
        self.is_waiting = False
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"cpd-gloo-{peer}")
        self._thread.start()

    def put(self, start: Callable[[], Any], transfer: GlooTransfer) -> None:
        """Starts a torch operation, and queues it for the thread, which waits for its end."""
        try:
            work = start()
        except RuntimeError as error:
            transfer.done(self._peer, self._named(error))
            return
        transfer.keep(work)
        self._queue.put((work, transfer))

    def end(self) -> None:
        """Makes the thread end after all operations in the queue have ended."""
        self._queue.put(None)

    def join(self) -> None:
        self._thread.join(1.0)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, transfer = item
            error = None
            self.is_waiting = True
            try:
                work.wait(FOREVER)
            except RuntimeError as failure:
                error = self._named(failure)
            transfer.done(self._peer, error)
            self.is_waiting = False
            del work, transfer, item

    def _named(self, error: RuntimeError) -> TransportError:
        message = re.sub(r"^\[[^]]*\] *", "", str(error)).partition(". ")[0].strip()
        return TransportError(f"gloo: {message}", self._peer)


def _host_bytes(address: int, size: int) -> torch.Tensor:
    """Returns a tensor over memory of C++; the tensor does not keep the memory alive."""
    return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)


# ---- NCCL ----------------------------------------------------------------------------------------


class NcclGroupTransport(Transport):
    """A transport over a separate torch group with the backend NCCL.

    Messages are in the memory of torch's current GPU. The caller must have written all bytes of a
    message before it calls `start`.
    """

    name = "nccl"

    def _connect(self, timeout: float) -> None:
        group = dist.new_group(
            self._ranks,
            timeout=timedelta(seconds=timeout),
            backend="nccl",
            use_local_synchronization=True,
        )
        c10d._set_pg_timeout(FOREVER, group)  # a shorter one may end the process
        self._group = group
        self.device_index = torch.cuda.current_device()

    def start(self, out: list[Message], in_: list[Message], tag: int) -> NcclTransfer:
        """Starts sends and receives; see `Transport.start`."""
        del tag  # NCCL matches messages in the order in which they were started
        operations = []
        for messages, move in ((in_, dist.irecv), (out, dist.isend)):
            for peer, address, size in messages:
                if size > 0:
                    bytes_ = _device_bytes(address, size, self.device_index)
                    operations.append(dist.P2POp(move, bytes_, group=self._group, group_peer=peer))
        works = dist.batch_isend_irecv(operations) if operations else []
        peers = sorted({peer for peer, _, size in (*out, *in_) if size > 0})
        return NcclTransfer(operations, works, peers)


class NcclTransfer:
    """One transfer of messages by NCCL: sends and receives that were started together.

    NCCL does not report which of the messages have arrived.
    """

    def __init__(self, operations: Sequence[object], works: list[Any], peers: list[int]) -> None:
        self._operations = operations
        self._works = works
        self._peers = peers

    def poll(self) -> bool:
        """Returns whether all messages of the transfer are done."""
        self._works = [work for work in self._works if not work.is_completed()]
        return not self._works

    def waiting(self) -> list[int]:
        """Returns the peers with messages that are not done."""
        return self._peers if self._works else []

    def abandon(self) -> None:
        """Keeps the memory of this transfer's messages until the process ends: torch may use it."""
        _abandoned.append(self)


class _DeviceMemory:
    """A range of GPU memory with the attribute that torch.as_tensor needs."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


def _device_bytes(address: int, size: int, index: int) -> torch.Tensor:
    return torch.as_tensor(_DeviceMemory(address, size), device=f"cuda:{index}")
