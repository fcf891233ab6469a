# SPDX-License-Identifier: Apache-2.0
"""Messages of a command's mistakes, failures and warnings."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from cpd import _core
from cpd.numeric.warned import PrecisionWarning


class UsageError(Exception):
    """A mistake of the user's. Only its text is shown."""


class RunError(Exception):
    """A failure between ranks. Only its text is shown."""


def one_line(message: object) -> str:
    """Returns an error as a command prints it: a line, in which long words are cut."""
    return _core.readable(" ".join(str(message).splitlines()))


def warn(command: str, text: str) -> None:
    """Prints a warning of a command in one line."""
    print(f"cpd {command}: warning: {text}", file=sys.stderr)


def system_error(error: OSError) -> str:
    """Returns the text of an error of the file system, with the file if there is one."""
    file = f"{error.filename}: " if error.filename is not None else ""
    return f"{file}{error.strerror or error}"


@contextmanager
def users_mistakes() -> Iterator[None]:
    """Makes errors of CPD and the file system while options are read the user's mistake."""
    try:
        yield
    except BrokenPipeError:  # the reader's doing
        raise
    except OSError as error:
        raise UsageError(system_error(error)) from error
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(str(error)) from error


@contextmanager
def stalls_reported(command: str) -> Iterator[None]:
    """Warns once, in one line, that a sum may stall, by rank 0 of a training.

    The other commands measure what a sum loses.
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
