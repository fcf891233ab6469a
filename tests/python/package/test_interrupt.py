# SPDX-License-Identifier: Apache-2.0
"""Tests Ctrl-C in long calls and in waits, and programs that end while threads are inside a call.

interrupt_cases.py has the programs.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import forked
from lost_before import free_port
from patience import scaled
from spawn import TRANSPORTS, Spawned, skip_without, spawn_ranks

PROGRAM = Path(__file__).parents[1] / "cases" / "interrupt_cases.py"
SOON = 15.0
"""The most seconds from Ctrl-C to the exception, on an idle machine.

The exception usually comes well within one second. If a call never checked for signals, the
exception would come after minutes.
"""
LATE = 2.0
"""Seconds from Ctrl-C until a late rank makes its call, on an idle machine."""
INTERRUPTED = (130, -signal.SIGINT)
"""The two statuses with which a command may end after Ctrl-C. A shell reports 130 for each.

Python ends itself by the signal (status -SIGINT) if Ctrl-C arrives within an exec(), as in imports.
"""
LONG = [
    "gemm",
    "torch_gemm",
    *(
        pytest.param(name, marks=pytest.mark.exhaustive)
        for name in ("total", "torch_sum", "torch_backward", "torch_compiled")
    ),
]
ENDINGS = [
    "ends_in_gemm",
    "ends_in_cast",
    "ends_in_short_casts",
    "ends_in_local_wait",
    "ends_in_local_loop",
    "ends_in_torch_gemm",
    "ends_in_torch_cast",
]


def run(name: str, threads: str = "2") -> tuple[Any, str]:
    """Runs a program, which must end without an error.

    Returns what the program printed as JSON (None for no output), and its other output.
    """
    start, words = forked.run, [PROGRAM, name]
    if name.removeprefix("ends_in_").startswith("torch"):
        pytest.importorskip("torch")
        # torch's operators run on torch's threads, and a forked process has no such threads.
        start, words = subprocess.run, [sys.executable, *words]
    done = start(
        words,
        env=os.environ | {"CPD_NUM_THREADS": threads},
        capture_output=True,
        text=True,
        timeout=scaled(120),
        check=False,
    )
    assert done.returncode == 0, f"{name}: status {done.returncode}:\n{done.stderr[-3000:]}"
    return json.loads(done.stdout) if done.stdout else None, done.stderr


def check_interrupted(seen: dict[str, Any]) -> None:
    assert seen["raised"] == "KeyboardInterrupt", seen
    assert seen["said"] == "", seen
    assert seen["took"] < scaled(SOON), seen
    assert "late" not in seen, seen


# ---- long calls ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LONG)
def test_a_long_call_is_interrupted(name: str) -> None:
    seen, said = run(name)
    check_interrupted(seen)
    assert said == ""
    assert seen.get("works", True)


def test_one_thread_is_interrupted_too() -> None:
    check_interrupted(run("gemm", threads="1")[0])


def test_a_handlers_exception_arrives_as_it_is() -> None:
    seen, _ = run("handler")
    assert (seen["raised"], seen["said"]) == ("Enough", "handled")
    assert seen["took"] < scaled(SOON)


def test_a_handler_that_returns_changes_nothing() -> None:
    assert run("quiet_handler")[0] == {"heard": 1, "same": True}


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["gemm", "torch_gemm", "waits_local", "run_waits"])
def test_twenty_times(name: str) -> None:
    for _ in range(20):
        seen, _said = run(name)
        check_interrupted(seen)


# ---- waits ---------------------------------------------------------------------------------------


def test_a_wait_between_threads_is_interrupted() -> None:
    seen, said = run("waits_local")
    check_interrupted(seen)
    assert said == ""
    assert seen["broken"] == "a call was interrupted"
    assert seen["again"]["raised"] == "RankLost"
    assert "a call was interrupted" in seen["again"]["said"]
    for other in seen["others"]:
        check_other(other, 0)


def check_other(other: dict[str, Any], victim: int) -> None:
    """Asserts the error of a rank whose peer was interrupted: it names the peer.

    A late rank learns about all ranks that gave up before its call.
    """
    assert other["raised"] == "RankLost", other
    assert re.search(rf"\branks? ([\d, ]*, )?{victim}(, [\d, ]*)? gave up", other["said"]), other


def test_ctrl_c_is_not_lost_where_a_wait_ends_by_itself() -> None:
    """If Ctrl-C arrives as a wait times out, the call raises KeyboardInterrupt or RankLost.

    It never raises a plain RuntimeError.
    """
    for _ in range(2):
        seen, _ = run("waits_at_timeout")
        assert seen["raised"] in ("KeyboardInterrupt", "RankLost"), seen
        assert (seen["raised"] == "KeyboardInterrupt") != seen.get("late", False), seen


def test_a_late_signal_is_waited_for() -> None:
    """A program that expects a signal waits for it before it ends."""
    seen, said = run("late_signal")
    assert (seen["raised"], seen.get("late")) == ("", True)
    assert said == ""


def test_a_run_of_threads_is_interrupted() -> None:
    seen, said = run("run_waits")
    check_interrupted(seen)
    assert said == ""
    assert seen["threads"] == 0
    assert seen["broken"] != ""


def test_ctrl_c_in_a_transports_own_python_code() -> None:
    """An interrupted call warns the other ranks even if Ctrl-C interrupts that warning, too.

    Ctrl-C arrives in `poll`, then in `raise_alarm`, the transport's method that warns the ranks.
    `raise_alarm` is called twice in all.
    """
    seen, said = run("python_transport")
    assert said == ""
    assert seen == {
        "first": "in poll",
        "broken": "a call was interrupted",
        "alarms": 2,
        "abandoned": 1,
    }


def train(transport: str, **settings: str) -> forked.Program:
    words = f"--transport {transport} --reduce e4m3 --epochs 10000 --batch 90 --depth 2"
    return forked.Program(
        ["-m", "cpd", "train", *words.split(), "--timeout", str(scaled(60))],
        env=os.environ | {"CPD_NUM_THREADS": "1"} | settings,
        stdout=forked.PIPE,
        stderr=forked.PIPE,
        text=True,
    )


def has_begun(process: forked.Program, *others: forked.Program) -> bool:
    """Returns True when all processes train; False if `process` ends before that.

    Waits until `process`, which has node 0, has printed a line on its data set. Then waits until
    each process has used one more second of CPU time: a first step takes less.
    """
    assert process.stdout is not None
    begun = any(line.startswith("digits:") for line in process.stdout)
    running = [psutil.Process(one.pid) for one in (process, *others)] if begun else []
    worked = [sum(one.cpu_times()[:2]) for one in running]
    for one, until_then in zip(running, worked, strict=True):
        while sum(one.cpu_times()[:2]) < until_then + 1:
            time.sleep(0.1)
    return begun


@pytest.mark.timeout(240)
def test_a_training_is_interrupted() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    process = train("virtual")
    assert has_begun(process)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=scaled(60))
    assert process.returncode in INTERRUPTED
    assert said == "cpd train: interrupted\n"


@pytest.mark.timeout(240)
def test_a_training_over_processes_is_interrupted() -> None:
    """If one process of a training gets Ctrl-C, the other process names it in one line.

    torch's store, which is in the first process, may print more.
    """
    pytest.importorskip("sklearn")
    skip_without("gloo")
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = (train("torch", RANK=str(rank), **place) for rank in range(2))
    assert has_begun(first, second)
    second.send_signal(signal.SIGINT)
    _, said = second.communicate(timeout=scaled(60))
    assert second.returncode in INTERRUPTED
    assert said == "cpd train: interrupted\n"
    _, said = first.communicate(timeout=scaled(60))
    assert first.returncode == 1
    assert said.startswith("cpd train: error: rank 0: "), said
    assert "Traceback" not in said
    assert "rank 1" in said


@pytest.mark.timeout(180)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_wait_between_processes_is_interrupted(transport: str) -> None:
    check_ranks(transport, 0)


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_twenty_times_between_processes(transport: str) -> None:
    for trial in range(20):
        check_ranks(transport, trial % 3)


def spawn_late(name: str, transport: str, victim: int) -> list[Spawned]:
    """Starts three ranks: one is interrupted, one waits for it, and one makes its call later."""
    timeout, late = scaled(60), scaled(LATE)
    return spawn_ranks(
        transport, 3, f"interrupt_cases:{name}", victim, late, timeout=timeout, victims=(victim,)
    )


def check_ranks(transport: str, victim: int) -> None:
    ranks = spawn_late("rank", transport, victim)
    for rank, spawned in enumerate(ranks):
        seen = spawned.result
        if rank == victim:
            check_interrupted(seen)
            assert seen["broken"] == "a call was interrupted"
        else:
            check_other(seen, victim)
            assert seen["waited"] < scaled(SOON + 5), seen


@pytest.mark.timeout(180)
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.exhaustive)])
def test_a_backward_pass_of_ddp_is_interrupted(victim: int) -> None:
    pytest.importorskip("torch")
    ranks = spawn_late("backward", "gloo", victim)
    for rank, spawned in enumerate(ranks):
        seen = spawned.result
        if rank == victim:
            check_interrupted(seen)
            assert seen["error"] == "KeyboardInterrupt"
            assert seen["broken"] == "a call was interrupted"
        else:  # DDP makes one of its own, with the text
            assert seen["raised"] == "RuntimeError", seen
            assert seen["error"] == "RankLost", seen
            check_other(seen | {"raised": "RankLost"}, victim)


# ---- threads at the program's end ----------------------------------------------------------------


@pytest.mark.few("", 2)
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_while_a_thread_is_in_a_call(name: str) -> None:
    assert run(name) == (None, "")


def test_calls_are_ended_on_other_threads() -> None:
    """After `end_other_calls`, which CPD calls as a program ends, other threads make no calls.

    The number of counted calls may still grow by one: a finished call may not be counted yet.
    """
    seen, said = run("calls_after_the_end_of_calls")
    assert said == ""
    assert seen["ended"] is True
    assert seen["before"] >= 100
    assert seen["after"] <= 1


@pytest.mark.exhaustive
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ENDINGS)
def test_a_program_ends_24_times(name: str) -> None:
    for _ in range(24):
        assert run(name) == (None, "")


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("name", "world"), [("rank_ends", 3), ("backward_ends", 2)])
def test_processes_end_while_threads_wait(name: str, world: int) -> None:
    """A process ends without an error although one of its threads still waits in a call.

    spawn_ranks fails the test if a process ends with an error.
    """
    pytest.importorskip("torch")
    ranks = spawn_ranks("gloo", world, f"interrupt_cases:{name}", timeout=scaled(60))
    assert all(spawned.result for spawned in ranks)
