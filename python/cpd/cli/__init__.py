# SPDX-License-Identifier: Apache-2.0
"""The command `cpd`, also `python -m cpd`.

Results are written to standard output, progress to standard error. A wrong command line gives an
error of one line and exit status 2.
"""

import importlib
import os
import sys
from collections.abc import Sequence

from cpd._core import PARTS, __version__
from cpd._since import gone_command
from cpd.cli.added import LAB, LAB_COMMANDS, added_commands, needs
from cpd.cli.errors import RunError, UsageError, one_line, stalls_reported, system_error
from cpd.cli.options import CommandParser, Commands, Parser

_COMMANDS = (
    *("show", "replay", "probe", "vectors", "sweep", "compress", "train", "roundoff", "cost"),
    *("study", "demo", "report", "env", "completion"),
)
"""The commands in the order of the help. Each is a module of this package or a command of the
package cpd-lab."""
_PACKAGES = {"sklearn": "scikit-learn"}
"""Maps the name of a module to the name of the package on PyPI that has the module, if the two
names differ."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit status; without a command, prints the help."""
    words = sys.argv[1:] if arguments is None else arguments
    parser = build_parser(words[0] if words else None)
    if gone := gone_command(words):
        parser.error(gone)
    options = parser.parse_args(words)
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
        print(
            f"cpd {options.command}: error: {needs(_PACKAGES.get(module, module))}",
            file=sys.stderr,
        )
        return 1
    except BrokenPipeError:  # the reader, such as head, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:  # such as a full disk
        message = one_line(system_error(error))
        print(f"cpd {options.command}: error: {message}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"cpd {options.command}: interrupted", file=sys.stderr)
        return 130


def build_parser(command: str | None = None) -> Parser:
    """Returns the parser of all commands.

    `command` is the first word of a command line. If it is a command, the parser has only this
    command, and modules of other commands are not imported. If it is not a command, the parser has
    only the names of all commands, for the error. If `command` is None or an option, the parser has
    all commands.
    """
    parser = Parser(
        prog="cpd", description="Customized-precision floating point: see and measure it."
    )
    parser.add_argument("--version", action="version", version=f"cpd {__version__} ({_parts()})")
    commands: Commands = parser.add_subparsers(
        dest="command", metavar="COMMAND", parser_class=CommandParser
    )
    if command is None or command.startswith("-") or command == "completion":
        _register(commands, parser, *_COMMANDS, *added_commands())
    elif command in _COMMANDS or command in added_commands():
        if command in LAB_COMMANDS and command not in added_commands():
            parser.exit(1, f"cpd {command}: error: {needs(LAB)}\n")
        _register(commands, parser, command)
    else:
        for name in dict.fromkeys((*_COMMANDS, *added_commands())):
            commands.add_parser(name)
    return parser


def _register(commands: Commands, parser: Parser, *names: str) -> None:
    for name in dict.fromkeys(names):
        if name in LAB_COMMANDS or name not in _COMMANDS:
            _register_added(commands, name)
            continue
        module = importlib.import_module(f"cpd.cli.{name}")
        if name == "completion":
            module.register(commands, parser)
        else:
            module.register(commands)


def _register_added(commands: Commands, name: str) -> None:
    """Adds a command of another package, such as cpd-lab, to the commands of `cpd`.

    If the package cpd-lab is not installed, the help of its commands says so.
    """
    entry = added_commands().get(name)
    if entry is None:
        commands.add_parser(name, help=needs(LAB))
    else:
        entry.load()(commands)


def _parts() -> str:
    """Returns a text with the optional parts with which CPD was built, for `cpd --version`."""
    return f"built with {', '.join(PARTS.split())}" if PARTS else "built without optional parts"
