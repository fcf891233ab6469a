# SPDX-License-Identifier: Apache-2.0
"""Parsers of the commands' options, and options that several commands have."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any, NoReturn, TypeAlias

from cpd import _core
from cpd.cli.errors import one_line
from cpd.comm.spec import ORDERS
from cpd.numeric.names import did_you_mean, listed
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
        """Refuses unknown arguments, with the nearest option."""
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            given = next((word for word in unknown if word.startswith("-")), "")
            meant = did_you_mean(given.partition("=")[0], options)
            hint = f"; {meant}" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


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
        description=text or help,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(run=run)
    return made


def json_object(text: str) -> dict[str, Any]:
    """An option's value that is a JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return found


def reduce_arguments(
    parser: argparse.ArgumentParser, format: str, aps: str, several: bool = False
) -> None:
    """`several`: formats may be given, by repetition or with commas; the default is then None."""
    group = parser.add_argument_group("the all-reduce")
    if several:
        group.add_argument(
            "--format",
            action="extend",
            type=names,
            metavar="NAME,…",
            help=f"one or several, also by giving the option again; default {format}",
        )
    else:
        group.add_argument("--format", default=format, metavar="NAME", help=f"default {format}")
    group.add_argument(
        "--wire",
        metavar="TEXT",
        action="append" if several else "store",
        help="a codec in place of the format, such as 'qsgd bits=4 bucket=512': "
        "cpd.Codec.named() has them; sums are in fp32"
        + ("; may be given several times" if several else ""),
    )
    group.add_argument(
        "--aps",
        nargs="?",
        const="on",
        default=aps,
        choices=("off", "on", "paper"),
        help="scale each layer by its own power of two, so that contributions fit the wire and "
        "sums the accumulator and the result; 'paper': so that sums fit the wire, too; "
        f"default {aps}",
    )
    group.add_argument("--no-aps", dest="aps", action="store_const", const="off")
    group.add_argument(
        "--loss-scale",
        type=_loss_scale,
        default=1.0,
        metavar="S",
        help="a constant power of two for all layers, as 4096 or 2^12; default 1",
    )
    group.add_argument(
        "--kahan", action="store_true", help="Kahan summation, each operation rounded"
    )
    group.add_argument(
        "--order",
        choices=ORDERS,
        default="sequential",
        help="of the sum over nodes (over groups, where there are some); default sequential",
    )
    group.add_argument(
        "--rounding", default="nearest_even", choices=_core.ROUNDINGS, metavar="MODE"
    )
    group.add_argument(
        "--overflow",
        choices=_core.OVERFLOWS,
        help="of the cast and, where it is given, of the sum; default ieee, saturate for the "
        "elements of scaled formats",
    )


def nodes_arguments(parser: argparse.ArgumentParser) -> "argparse._ArgumentGroup":
    """Adds the options of the nodes; returns their group."""
    group = parser.add_argument_group("the nodes")
    group.add_argument(
        "--transport",
        choices=("virtual", "mpi", "torch"),
        default="virtual",
        help="how nodes reach each other: all in this process, by MPI, or by torch.distributed "
        "with gloo; default virtual",
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        default=300.0,
        metavar="S",
        help="seconds until a silent rank of a transport is lost; default 300",
    )
    return group


def integer(
    parser: "argparse.ArgumentParser | argparse._ArgumentGroup",
    name: str,
    default: int | None,
    help: str = "",
) -> None:
    """Adds an option of an integer."""
    if default is not None:
        help = f"{help}; default {default}" if help else f"default {default}"
    parser.add_argument(f"--{name}", type=int, default=default, metavar="N", help=help)


def names(text: str) -> list[str]:
    """Words between commas, where these are not in brackets."""
    return listed(text)


def integers(text: str) -> list[int]:
    """Returns the integers between commas."""
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be integers like 4,8,16, got {text!r}") from None


def seconds(text: str) -> float:
    """Returns a number of seconds above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")
    return value


def _loss_scale(text: str) -> float:
    base, caret, exponent = text.partition("^")
    try:
        value = math.ldexp(1.0, int(exponent)) if caret and base == "2" else float(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and value > 0 and math.frexp(value)[0] == 0.5):
        raise argparse.ArgumentTypeError(f"must be a power of two like 4096 or 2^12, got {text!r}")
    return value
