# SPDX-License-Identifier: Apache-2.0
"""`cpd report`: makes the page of a demo again, from the files that `cpd demo` stored."""

from dataclasses import dataclass
from pathlib import Path

from cpd.cli import options as opt
from cpd.cli.errors import users_mistakes
from cpd.cli.output import new_console

_UNFIT = (LookupError, ArithmeticError, TypeError, AttributeError, ValueError, StopIteration)
"""Errors that can occur while a page is made from files that `cpd demo` did not write."""


def register(commands: opt.Commands) -> None:
    """Adds the command `report` to the parser of `cpd`."""
    opt.command(commands, "report", _run, Options)


@dataclass
class Options:
    """Make report.html again from what `cpd demo` stored."""

    folder: Path = opt.argument("the demo's --out folder", metavar="DIR")


def _run(options: Options) -> int:
    from cpd_lab.demo.report import write_report
    from cpd_lab.demo.results import load

    with users_mistakes():
        try:
            page = write_report(load(options.folder), options.folder)
        except _UNFIT as error:
            reason = error if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(f"{options.folder}: no page can be made of it ({reason})") from error
    new_console().print(f"report {page}", soft_wrap=True)
    return 0
