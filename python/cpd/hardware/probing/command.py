# SPDX-License-Identifier: Apache-2.0
"""`Command`: a command, such as a circuit simulation, as a function of dot products.

**The protocol.** The command is started again for each batch. Its standard input has one dot
product per line: the codes of a's k values, of b's k values, and (if there is an addend) of c.
Codes are hexadecimal, separated by one blank, each as wide as its format: `3C00 0000 … 3C00
BF800000`.

The command writes one line for each dot product, in order: the hexadecimal code of the result (with
or without `0x`). Then it ends with status 0. Two kinds of lines of its output are ignored: empty
lines, and lines that begin with `#`, `//` or `- ` (messages of simulators at their end).

If an argument of the command contains `{in}` or `{out}`, these are names of files that replace
standard input or output.
"""

from __future__ import annotations

import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd.hardware.probing.dots import F32
from cpd.hardware.vectors.values import encoded, packed
from cpd.numeric.checked import checked
from cpd.numeric.formats import FormatLike, as_format
from cpd.ops import decode

_CHUNK = 1 << 16
_TOLD = 200  # the number of characters of a line that an error shows


@checked
class Command:
    """A command that computes dot products, as a function for `cpd.hardware.probe`.

    For each batch the command is started again. Its standard input has one dot product per line:
    the hexadecimal codes of a, of b and of c, separated by one blank, each as wide as its format.
    For each line the command writes the code of the result; then it ends with status 0. Empty lines
    are ignored, as are lines that begin with `#`, `//`, or a dash and a blank.

    Args:
        arguments: the program and its arguments, which are not passed to a shell. `{in}` and
            `{out}` in an argument are replaced by the names of files that the command uses in place
            of standard input and output.
        a: the format of the first operand.
        b: the format of the second operand; default the format of a.
        c: the format of the addend; default fp32. None: there is no addend, as for `probe`.
        result: the format of the results; default fp32.
        timeout: the seconds that one batch may take; default 60.

    Raises:
        ValueError: for no arguments, an invalid format, or a timeout that is not above 0.
        RuntimeError: from a call, if the command does not start, takes too long, ends with a status
            other than 0, or writes anything but one code per line. The command is then killed, with
            all processes that it has started.

    >>> one = Command(["awk", "{ print $1 }"], "fp16", c=None, result="fp16")   # a0 for a sum
    >>> one(np.float32([[2, 0.5]]), np.float32([[1, 1]])).tolist()
    [2.0]
    >>> Command(["false"], "fp16")(np.zeros((1, 2)), np.zeros((1, 2)), np.zeros(1))
    Traceback (most recent call last):
    ...
    RuntimeError: 'false' ended with status 1 after 0 of 1 answers
    """

    def __init__(
        self,
        arguments: Sequence[str],
        a: FormatLike,
        b: FormatLike | None = None,
        c: FormatLike | None = "fp32",
        *,
        result: FormatLike = "fp32",
        timeout: float = 60.0,
    ) -> None:
        self.arguments = [str(argument) for argument in arguments]
        if not self.arguments:
            raise ValueError("arguments must begin with the name of a command, got none")
        if not timeout > 0:
            raise ValueError(f"timeout must be seconds above 0, got {timeout}")
        self.formats = [as_format(a), as_format(a if b is None else b)]
        if c is not None:
            self.formats.append(as_format(c))
        self.result = as_format(result)
        self.timeout = timeout
        self.name = shlex.join(self.arguments)

    def __call__(self, a: F32, b: F32, c: F32 | None = None) -> F32:
        """Runs the command on n dot products and returns their n results.

        Args:
            a: float32 (n, k), values of the first operand's format.
            b: float32 (n, k), values of the second operand's format.
            c: float32 (n,), the addends; None for a command without addends.

        Returns:
            float32 (n,), the command's results.

        Raises:
            ValueError: if c is given to a command without addends, or is missing.
            RuntimeError: if the command does not start, takes too long, ends with a status other
                than 0, or writes anything but one code per line.
        """
        arrays = [a, b] if c is None else [a, b, np.reshape(c, (-1, 1))]
        if len(arrays) != len(self.formats):
            raise ValueError(f"{self.name!r} takes {len(self.formats)} operands, got {len(arrays)}")
        columns = [
            (b" ", np.ascontiguousarray(codes), f.bits)
            for x, f in zip(arrays, self.formats, strict=True)
            for codes in encoded(np.asarray(x, np.float64), f).T
        ]
        columns[0] = (b"", *columns[0][1:])
        count = len(a)
        codes = self._codes(self._run(_core.text_lines(columns, b"\n"), count), count)
        return decode(packed(codes, self.result.bits), self.result, (count,))

    # ---- answers ---------------------------------------------------------------------------------

    def _codes(self, output: bytes, count: int) -> npt.NDArray[np.uint32]:
        """Returns the codes that the command has written."""
        codes = []
        for number, line in enumerate(output.decode("ascii", "replace").splitlines(), 1):
            word = line.strip()
            if not word or word.startswith(("#", "//", "- ")):
                continue
            if not re.fullmatch("(0[xX])?[0-9a-fA-F]{1,8}", word):
                raise self._wrong(number, line, "is no hexadecimal code")
            code = int(word, 16)
            if code >> self.result.bits:
                raise self._wrong(number, line, f"has more than {self.result.bits} bits")
            codes.append(code)
            if len(codes) > count:
                raise self._wrong(number, line, f"is one answer more than {count}")
        if len(codes) < count:
            raise RuntimeError(f"{self.name!r} gave {len(codes)} answers to {count} dot products")
        return np.array(codes, np.uint32)

    def _wrong(self, number: int, line: str, reason: str) -> RuntimeError:
        return RuntimeError(f"{self.name!r}: line {number} of its output, {_short(line)}, {reason}")

    # ---- the process -----------------------------------------------------------------------------

    def _run(self, lines: bytes, count: int) -> bytes:
        with tempfile.TemporaryDirectory(prefix="cpd-probe-") as folder:
            names = {"{in}": f"{folder}/in", "{out}": f"{folder}/out"}
            used = {mark for mark in names if any(mark in argument for argument in self.arguments)}
            arguments = self.arguments
            for mark in used:
                arguments = [argument.replace(mark, names[mark]) for argument in arguments]
            if "{in}" in used:
                Path(names["{in}"]).write_bytes(lines)
            output = self._talk(arguments, b"" if "{in}" in used else lines, count)
            if "{out}" not in used:
                return output
            try:
                return Path(names["{out}"]).read_bytes()
            except OSError as error:
                raise RuntimeError(f"{self.name!r} wrote no {{out}}: {error.strerror}") from error

    def _talk(self, arguments: list[str], lines: bytes, count: int) -> bytes:
        try:
            process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise RuntimeError(f"{self.name!r} does not start: {error.strerror}") from error
        try:
            most = (self.result.bits // 4 + 64) * count + _CHUNK
            output, stderr = self._exchanged(process, lines, count, most)
            status = process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            raise self._late(output, count) from None
        finally:
            _end(process)
        if status != 0:
            last = stderr.decode(errors="replace").strip().splitlines()[-1:]
            why = f": {_short(last[0])}" if last else ""
            ended = (
                f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
            )
            answered = len(output.splitlines())
            raise RuntimeError(f"{self.name!r} {ended} after {answered} of {count} answers{why}")
        return output

    def _exchanged(
        self, process: subprocess.Popen[bytes], lines: bytes, count: int, most: int
    ) -> tuple[bytes, bytes]:
        """Writes the input while it reads both output streams, until both are closed."""
        assert process.stdin is not None
        deadline = time.monotonic() + self.timeout
        read: dict[IO[bytes] | None, bytearray] = {
            process.stdout: bytearray(),
            process.stderr: bytearray(),
        }
        left = memoryview(lines)
        with selectors.DefaultSelector() as ready:
            ready.register(process.stdin, selectors.EVENT_WRITE)
            os.set_blocking(process.stdin.fileno(), False)
            for stream in read:
                assert stream is not None
                ready.register(stream, selectors.EVENT_READ)
            while any(stream in read for stream in _open(ready)):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    raise self._late(bytes(read[process.stdout]), count)
                for key, _ in ready.select(remaining):
                    if key.fileobj is process.stdin:
                        left = self._written(ready, process.stdin, left)
                        continue
                    stream = key.fileobj  # type: ignore[assignment]
                    some = os.read(key.fd, _CHUNK)
                    if not some:
                        ready.unregister(key.fileobj)
                    read[stream] += some
                    if stream is process.stderr:
                        del read[stream][:-_CHUNK]
                    elif len(read[stream]) > most:
                        raise RuntimeError(
                            f"{self.name!r} prints more than {most} bytes for {count} answers"
                        )
        return bytes(read[process.stdout]), bytes(read[process.stderr])

    def _late(self, output: bytes, count: int) -> RuntimeError:
        return RuntimeError(
            f"{self.name!r} has not ended after {self.timeout:g} s; it gave "
            f"{len(output.splitlines())} of {count} answers"
        )

    @staticmethod
    def _written(ready: selectors.BaseSelector, stream: IO[bytes], left: memoryview) -> memoryview:
        """Writes as much input as the pipe accepts; ignores a closed pipe."""
        try:
            left = left[_write(stream.fileno(), left[:_CHUNK]) :] if left else left
        except BrokenPipeError:
            left = left[:0]
        if not left:
            ready.unregister(stream)
            stream.close()
        return left


def _write(descriptor: int, some: memoryview) -> int:
    """Calls os.write, and raises BrokenPipeError if the pipe is closed.

    The signal SIGPIPE is blocked during the call. So a closed pipe does not end this process, even
    if the program has given SIGPIPE its default action.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPIPE})
    try:
        return os.write(descriptor, some)
    except BrokenPipeError:
        signal.sigtimedwait({signal.SIGPIPE}, 0)  # takes the signal, if there is one
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _open(ready: selectors.BaseSelector) -> list[object]:
    return [key.fileobj for key in ready.get_map().values()]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kills the process, if it is running, and all processes that it has started."""
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None and not stream.closed:
            stream.close()
    if process.returncode is None:  # not yet waited for: the group's number is still its own
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _short(line: str) -> str:
    return repr(line if len(line) <= _TOLD else line[:_TOLD] + "…")
