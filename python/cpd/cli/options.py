# SPDX-License-Identifier: Apache-2.0
"""Parsers of the commands' options, and options that several commands have."""

import argparse
import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from cpd import _core
from cpd._since import gone_flag
from cpd.cli.errors import one_line
from cpd.numeric.names import did_you_mean
from cpd.numeric.shown import shown


class Parser(argparse.ArgumentParser):
    """Reports an error in one line, with the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Prints an error in one line and ends the process with status 2."""
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not a choice, with the nearest one, which argparse lacks."""
        if action.choices is not None and value not in action.choices:
            known = [str(one) for one in action.choices]
            meant = did_you_mean(value, known)
            hint = f" ({meant})" if meant else ""
            message = f"must be one of {', '.join(known)}, got {shown(value)}{hint}"
            raise argparse.ArgumentError(action, message)


class CommandParser(Parser):
    """Reports unknown options itself, so that the error names the command's own help."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Refuses unknown arguments, with the nearest option or the one that took their place."""
        gone = gone_flag(self.prog.partition(" ")[2], args or ())
        if gone:
            self.error(gone)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            given = next((word for word in unknown if word.startswith("-")), "")
            meant = did_you_mean(given.partition("=")[0], options)
            hint = f"; {meant}" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


class Help(argparse.HelpFormatter):
    """Help whose lines end between words. Indented paragraphs of a description stay as they are."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        lines = [p if "\n  " in p else "\n".join(self._split_lines(p, width)) for p in parts]
        return textwrap.indent("\n\n".join(lines), indent)


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
"""To which each command adds its parser."""


def add_command(
    commands: Commands,
    name: str,
    run: Callable[[argparse.Namespace], int],
    help: str,
    text: str = "",
) -> Parser:
    """The parser of one command, which calls `run`; its help shows `text`, or else `help`."""
    made = commands.add_parser(
        name,
        help=help,
        description=text or f"{help[0].upper()}{help[1:]}.",
        formatter_class=Help,
    )
    made.set_defaults(run=run)
    return made


Group: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
"""What options are added to."""


def reduce_argument(parser: Group, default: str, several: bool) -> None:
    """Adds the option of an all-reduce, or of `several`; its default is None."""
    more = "; a list, or the option again" if several else ""
    parser.add_argument(
        "--reduce",
        metavar="TEXT,…" if several else "TEXT",
        action="extend" if several else "store",
        type=texts if several else str,
        help="the all-reduce, as cpd.Reduce takes it: a format or codec, then keys, such as "
        f"\"e4m3 aps accumulator='fp16 kahan'\"{more}; default {default}",
    )


def accumulator_argument(
    parser: Group, what: str, default: str | None = None, without: str = "none"
) -> None:
    """Adds the option of an accumulator, or with a default of several; `what` it is for.

    `without`: what holds without one.
    """
    parser.add_argument(
        "--accumulator",
        default=default,
        metavar="TEXT,…" if default else "TEXT",
        help=f"{what}, such as 'e6m9 kahan' or a matrix unit (cpd show --units); default "
        f"{default or without}",
    )


def rounding_argument(parser: Group, **options: Any) -> None:
    """Adds the option of the rounding of casts."""
    parser.add_argument("--rounding", default="nearest_even", **options)


def overflow_argument(parser: Group, default: str) -> None:
    """Adds the option of the overflow of casts."""
    parser.add_argument(
        "--overflow",
        choices=_core.OVERFLOWS,
        default=default,
        help=f"what a cast makes of values beyond the format; default {default}",
    )


def seed_argument(parser: Group) -> None:
    """Adds the option of a seed."""
    integer(parser, "seed", 0, "the seed of all that is random")


def machine_argument(parser: Group, default: str) -> None:
    """Adds the option of a machine; its default is None."""
    parser.add_argument(
        "--machine",
        metavar="NAME|FILE|TEXT",
        help="a machine's name, its .toml file, or its numbers: alpha, the seconds of a message, "
        f"beta, bytes a second, and more; default {default}",
    )


def gradients_arguments(parser: Group) -> None:
    """Adds the options of a file of gradients."""
    parser.add_argument(
        "--gradients", type=Path, metavar="FILE", help="per-rank gradients; default: none"
    )
    parser.add_argument(
        "--round", action="store_true", help="round a file's binary64 values to binary32 first"
    )


def json_argument(parser: Group) -> None:
    """Adds the option of JSON."""
    parser.add_argument(
        "--json",
        nargs="?",
        const=Path("-"),
        type=Path,
        metavar="FILE",
        help="write the result as JSON; without FILE or with '-' to standard output, in the place "
        "of the text; default: text alone",
    )


def table_arguments(parser: Group, plot: str) -> None:
    """Adds the options of a table's files; `plot` is what the picture shows."""
    json_argument(parser)
    parser.add_argument(
        "--csv",
        type=Path,
        metavar="FILE",
        help="write the table as CSV; '-' as for --json; default: not written",
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help=f"draw {plot}, as .png or .svg; default: no plot"
    )


def jobs_arguments(parser: Group, default: str) -> None:
    """Adds the options of processes and clusters."""
    integer(parser, "jobs", None, f"processes, or a cluster's jobs; default {default}")
    parser.add_argument(
        "--cluster",
        choices=("slurm", "local", "debug"),
        help="run as jobs of submitit, in the folder of --out, which all nodes share; default: "
        "processes here",
    )
    parser.add_argument(
        "--cluster-options",
        type=json_object,
        metavar="JSON",
        help='parameters of submitit, such as \'{"slurm_partition": "cpu", "timeout_min": 60}\'; '
        "default: none",
    )


def nodes_arguments(parser: Group) -> None:
    """Adds the options of the nodes."""
    parser.add_argument(
        "--transport",
        choices=("virtual", "mpi", "torch"),
        default="virtual",
        help="how nodes reach each other: all in this process (virtual), by MPI, or by "
        "torch.distributed with gloo (torch); default virtual",
    )
    timeout_argument(parser, 300, "until a silent rank of a transport is lost")


def timeout_argument(parser: Group, default: int, until: str) -> None:
    """Adds the option of a timeout."""
    parser.add_argument(
        "--timeout",
        type=seconds,
        default=float(default),
        metavar="S",
        help=f"seconds {until}; default {default}",
    )


def integer(parser: Group, name: str, default: int | None, help: str) -> None:
    """Adds an option of an integer."""
    if default is not None:
        help = f"{help}; default {default}"
    parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=help)


def texts(text: str) -> list[str]:
    """Splits a list at commas outside brackets and quotes, and expands sets such as [2-5].

    >>> texts("e[4-5]m2 aps, fp32")
    ['e4m2 aps', 'e5m2 aps', 'fp32']
    """
    from cpd.study.sweeps import patterns

    try:
        return patterns.texts("the list", text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def integers(text: str) -> list[int]:
    """Reads a list of integers, in which … goes on by the same factor (or step) to the next one.

    >>> integers("4,8,…,64")
    [4, 8, 16, 32, 64]
    """
    words = texts(text)
    found: list[int] = []
    for number, word in enumerate(words):
        if word in ("…", "..."):
            if len(found) < 2 or number != len(words) - 2:
                raise argparse.ArgumentTypeError(
                    f"… stands between two numbers and the last one, got {text!r}"
                )
            continue
        try:
            value = int(word)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"must be integers like 4,8,16, got {text!r}"
            ) from None
        if value < 1:
            raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
        if number and words[number - 1] in ("…", "..."):
            found += _between(found[-2], found[-1], value, text)
        found.append(value)
    return found


_MOST = 1000
"""The most integers that … stands for."""


def _between(before: int, last: int, end: int, text: str) -> list[int]:
    if not before < last < end:
        raise argparse.ArgumentTypeError(
            f"numbers on both sides of … must rise, as in 4,8,…,64, got {text!r}"
        )
    found: list[int] = []
    while True:
        after = last * (last // before) if last % before == 0 else 2 * last - before
        if after >= end:
            return found
        found.append(after)
        before, last = last, after
        if len(found) > _MOST:
            raise argparse.ArgumentTypeError(f"{text!r} has more than {_MOST} numbers")


def json_object(text: str) -> dict[str, Any]:
    """Returns the JSON object of a text."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return found


def seconds(text: str) -> float:
    """Returns a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")
    return value
