# SPDX-License-Identifier: Apache-2.0
"""Errors and warnings of commands, and their texts."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from cpd import _core
from cpd.numeric.warned import PrecisionWarning


class UsageError(Exception):
    """A wrong command line or input. The command prints only the text, without a traceback."""


class RunError(Exception):
    """A failure while a command runs. The command prints only the text, without a traceback."""


def one_line(message: object) -> str:
    """Returns an error as one line, in which long words are shortened."""
    return _core.readable(" ".join(str(message).splitlines()))


def warn(command: str, text: str) -> None:
    """Prints a warning of a command in one line."""
    print(f"cpd {command}: warning: {text}", file=sys.stderr)


def system_error(error: OSError) -> str:
    """Returns the text of an OSError, with the name of the file if the error has one."""
    file = f"{error.filename}: " if error.filename is not None else ""
    return f"{file}{error.strerror or error}"


@contextmanager
def users_mistakes() -> Iterator[None]:
    """A context that raises errors of CPD and of the file system as UsageError."""
    try:
        yield
    except BrokenPipeError:  # the reader of the output has closed the pipe
        raise
    except OSError as error:
        raise UsageError(system_error(error)) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error


@contextmanager
def stalls_reported(command: str) -> Iterator[None]:
    """A context that prints each PrecisionWarning of `cpd train` once, in one line.

    Other commands ignore the warning, because they measure the error of a sum themselves. Other
    warnings are shown as usual.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("once" if command == "train" else "ignore", PrecisionWarning)
        show = warnings.showwarning

        def showwarning(
            message: Warning | str,
            category: type[Warning],
            filename: str,
            lineno: int,
            file: TextIO | None = None,
            line: str | None = None,
        ) -> None:
            if category is PrecisionWarning:
                warn(command, str(message))
            else:
                show(message, category, filename, lineno, file, line)

        warnings.showwarning = showwarning
        yield
