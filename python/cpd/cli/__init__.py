# SPDX-License-Identifier: Apache-2.0
"""The command `cpd` (also `python -m cpd`).

What a command finds goes to standard output, progress to standard error. A mistake of the user's
gives one line and exit status 2.
"""

import os
import sys
from collections.abc import Sequence

from cpd._core import PARTS, __version__
from cpd.cli import (
    completion,
    compress,
    cost,
    demo,
    env,
    format,
    presets,
    probe,
    recipe,
    replay,
    report,
    roundoff,
    study,
    sweep,
    train,
    vectors,
)
from cpd.cli.errors import RunError, UsageError, one_line, stalls_reported
from cpd.cli.options import CommandParser, Commands, Parser

_PACKAGES = {"sklearn": "scikit-learn"}
"""Modules whose packages bear another name."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; without a command, prints the help."""
    parser = build_parser()
    options = parser.parse_args(arguments)
    if options.command is None:
        parser.print_help()
        return 0
    try:
        with stalls_reported(options.command):
            status: int = options.run(options)
        sys.stdout.flush()
        return status
    except UsageError as error:
        message = f"{one_line(error)} (see cpd {options.command} --help)"
        print(f"cpd {options.command}: error: {message}", file=sys.stderr)
        return 2
    except RunError as error:
        print(f"cpd {options.command}: error: {one_line(error)}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cpd":
            raise
        module = error.name.split(".")[0]
        package = _PACKAGES.get(module, module)
        print(
            f"cpd {options.command}: error: needs the Python package '{package}' "
            f"(pip install {package})",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # such as a full disk
        where = f"{error.filename}: " if error.filename is not None else ""
        message = one_line(f"{where}{error.strerror or error}")
        print(f"cpd {options.command}: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"cpd {options.command}: interrupted", file=sys.stderr)
        return 130


def build_parser() -> Parser:
    parser = Parser(
        prog="cpd", description="Customized-precision floating point: see and measure it."
    )
    parser.add_argument("--version", action="version", version=f"cpd {__version__} ({_parts()})")
    commands: Commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=CommandParser
    )
    known = (format, recipe, presets)
    studies = (replay, probe, vectors, sweep)
    reports = (study, demo, report)
    for command in (*known, *studies, compress, train, roundoff, cost, *reports, env):
        command.register(commands)
    completion.register(commands, parser)
    return parser


def _parts() -> str:
    """Which optional parts the library has."""
    return f"built with {', '.join(PARTS.split())}" if PARTS else "built without optional parts"
