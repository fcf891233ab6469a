# SPDX-License-Identifier: Apache-2.0
"""`cpd report`: the demo's page, made again."""

import argparse
from pathlib import Path

from cpd.cli.errors import users_mistakes
from cpd.cli.options import Commands, add_command
from cpd.cli.output import new_console

_UNFIT = (LookupError, ArithmeticError, TypeError, AttributeError, ValueError, StopIteration)
"""Errors of files that hold something else than a demo."""


def register(commands: Commands) -> None:
    """Adds the command `report`."""
    parser = add_command(
        commands, "report", _run, "make report.html again from what `cpd demo` stored"
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="the demo's --out folder")


def _run(options: argparse.Namespace) -> int:
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
