# SPDX-License-Identifier: Apache-2.0
"""Runs Python programs as forks of a process that has already imported torch and the package.

Imports take most of the time of a test's program. `run` and `Program` work like subprocess.run and
subprocess.Popen. A program has its own arguments, environment, folder, files and process group, and
ends as Python ends. Use subprocess itself to test imports, the environment at import, or the start
of an interpreter.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PRELOADED = (
    *("numpy", "psutil", "pytest", "torch", "torch._dynamo", "torch.distributed"),
    *("matplotlib.pyplot", "sklearn.datasets", "safetensors.numpy", "jinja2", "joblib"),
    *("cpd", "cpd._torch.operators", "cpd.cli", "cpd.comm", "cpd.functional", "cpd.nn"),
    *("cpd.parallel.ddp", "cpd.parallel.fsdp", "cpd.study", "cpd_lab.demo", "cpd_lab.train"),
)
"""The modules that are imported before the fork, if they are installed."""

PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
CompletedProcess = subprocess.CompletedProcess


class Program:
    """A running Python program, with the interface of subprocess.Popen.

    `arguments` are the arguments of a Python interpreter: a file, or `-m` and a module, and further
    arguments of the program.
    """

    def __init__(
        self,
        arguments: Sequence[Any],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stdin: int | IO[Any] | None = None,
        stdout: int | IO[Any] | None = None,
        stderr: int | IO[Any] | None = None,
        text: bool = False,
        start_new_session: bool = False,
    ) -> None:
        self.args = [str(word) for word in arguments]
        self.returncode: int | None = None
        opened: list[int] = []
        self.stdin, read = None, 0
        if stdin is not None:
            read = _number(stdin, opened)
        self.stdout, written = self._output(stdout, 1, text, opened)
        if stderr == STDOUT:
            self.stderr, told = None, written
        else:
            self.stderr, told = self._output(stderr, 2, text, opened)
        request = {
            "arguments": self.args,
            "environment": dict(os.environ if env is None else env),
            "folder": os.fspath(cwd or Path.cwd()),
            "session": start_new_session,
        }
        self._line = _connect()
        socket.send_fds(self._line, [b"0"], [read, written, told])
        self._line.sendall(json.dumps(request).encode() + b"\n")
        for number in opened:
            os.close(number)
        self._said = self._line.makefile("r")
        self.pid = int(self._said.readline())

    def _output(
        self, wanted: int | IO[Any] | None, own: int, text: bool, opened: list[int]
    ) -> tuple[IO[Any] | None, int]:
        if wanted is None:
            return None, own
        if wanted != PIPE:
            return None, _number(wanted, opened)
        ours, theirs = os.pipe()
        opened.append(theirs)
        return open(ours, "r" if text else "rb"), theirs

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._line], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._line], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self.returncode = int(self._said.readline())
            self._said.close()
            self._line.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[Any, Any]:
        """Returns the output of the program on its pipes, after the program has ended."""
        deadline = None if timeout is None else time.monotonic() + timeout
        pipes = [pipe for pipe in (self.stdout, self.stderr) if pipe is not None]
        parts: dict[int, list[bytes]] = {pipe.fileno(): [] for pipe in pipes}
        with selectors.DefaultSelector() as selector:
            for pipe in pipes:
                selector.register(pipe, selectors.EVENT_READ)
            while selector.get_map():
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                ready = selector.select(left)
                if not ready:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
                for key, _ in ready:
                    part = os.read(key.fd, 1 << 16)
                    parts[key.fd].append(part)
                    if not part:
                        selector.unregister(key.fileobj)
        self.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        return _all_of(self.stdout, parts), _all_of(self.stderr, parts)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdout, self.stderr):
            if pipe is not None:
                pipe.close()
        self.wait()


def run(
    arguments: Sequence[Any],
    *,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    if capture_output:
        options |= {"stdout": PIPE, "stderr": PIPE}
    program = Program(arguments, **options)
    try:
        out, err = program.communicate(timeout)
    except BaseException:
        program.kill()
        raise
    done = subprocess.CompletedProcess(program.args, program.wait(), out, err)
    if check:
        done.check_returncode()
    return done


def _number(given: int | IO[Any], opened: list[int]) -> int:
    """Returns the file descriptor of a stream `given`. If it is DEVNULL, opens /dev/null and
    appends its descriptor to `opened`."""
    if given == DEVNULL:
        opened.append(os.open(os.devnull, os.O_RDWR))
        return opened[-1]
    return given if isinstance(given, int) else given.fileno()


def _all_of(pipe: IO[Any] | None, parts: dict[int, list[bytes]]) -> Any:
    if pipe is None:
        return None
    whole = b"".join(parts[pipe.fileno()])
    is_text = hasattr(pipe, "encoding")
    pipe.close()
    return whole.decode().replace("\r\n", "\n") if is_text else whole


# ---- the process that is forked ----------------------------------------------------------------


FOLDER = "CPD_FORK_FOLDER"
"""The environment variable that names the folder with the socket of the process that forks.

All workers of pytest share this folder (conftest.py).
"""


def prepare() -> None:
    """Makes the folder whose path the environment variable FOLDER holds. The process that forks
    ends when the present process ends."""
    folder = tempfile.TemporaryDirectory(prefix="cpd-fork-")
    atexit.register(folder.cleanup)
    os.environ[FOLDER] = folder.name
    Path(folder.name, "owner").write_text(str(os.getpid()))


def _connect() -> socket.socket:
    """Connects to the process that forks. The first caller starts that process."""
    if FOLDER not in os.environ:
        prepare()
    folder = Path(os.environ[FOLDER])
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "socket").exists():
            _start(folder)
    line = socket.socket(socket.AF_UNIX)
    line.connect(str(folder / "socket"))
    return line


def _start(folder: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)],
        env=os.environ | {"MPLBACKEND": "Agg"},
        stdin=DEVNULL,
        start_new_session=True,
    )
    while not (folder / "socket").exists():
        if process.poll() is not None:
            raise RuntimeError("the process to be forked has ended")
        time.sleep(0.01)


def _serve(folder: Path) -> dict[str, Any]:
    """Forks a child for each request to run a program. Returns only in a child, and then returns
    the request."""
    for name in PRELOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    owner = Path("/proc", (folder / "owner").read_text())
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "new"))
    listener.listen(64)
    os.rename(folder / "new", folder / "socket")
    wake, wakes = os.pipe()
    os.set_blocking(wakes, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakes)
    lines: dict[int, socket.socket] = {}
    while owner.exists():
        ready, _, _ = select.select([listener, wake], [], [], 1.0)
        if wake in ready:
            os.read(wake, 4096)
            _report(lines)
        if listener in ready:
            line, _ = listener.accept()
            request = _request(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                for number in (wake, wakes):
                    os.close(number)
                for other in (listener, line, *lines.values()):
                    other.close()
                return request
            for number in request["files"]:
                os.close(number)
            line.sendall(f"{pid}\n".encode())
            lines[pid] = line
    os._exit(0)


def _report(lines: dict[int, socket.socket]) -> None:
    """Sends the exit status of each child that has ended to the process that asked for it."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        line = lines.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            line.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
        line.close()


def _request(line: socket.socket) -> dict[str, Any]:
    _, files, _, _ = socket.recv_fds(line, 1, 3)
    text = b""
    while not text.endswith(b"\n"):
        text += line.recv(1 << 16)
    return {**json.loads(text), "files": files}


def _become(request: dict[str, Any]) -> None:
    """Runs the requested program in this process, as a new Python interpreter would run it."""
    if request["session"]:
        os.setsid()
    for number, own in zip(request["files"], (0, 1, 2), strict=True):
        os.dup2(number, own)
        os.close(number)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = sys.__stdout__ = _stream(1, "strict")
    sys.stderr = sys.__stderr__ = _stream(2, "backslashreplace")
    path = os.environ.get("PYTHONPATH", "")
    sys.path[:0] = [p for p in path.split(os.pathsep) if p]
    first, *words = request["arguments"]
    if first == "-m":
        sys.argv = words
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [first, *words]
        sys.path.insert(0, str(Path(first).parent))
        runpy.run_path(first, run_name="__main__")


def _stream(number: int, errors: str) -> Any:
    """Opens standard output or standard error as text. A terminal and standard error get each line
    at once; other outputs are buffered."""
    by_line = 1 if number == 2 or os.isatty(number) else -1
    return open(number, "w", by_line, "utf-8", errors, closefd=False)


if __name__ == "__main__":
    _become(_serve(Path(sys.argv[1])))
