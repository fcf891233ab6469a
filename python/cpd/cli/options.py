# SPDX-License-Identifier: Apache-2.0
"""Defines the options of a command as the fields of a dataclass, which argparse fills.

    @dataclass
    class Options:
        file: Path = argument("a file of tensors")
        seeds: int = option("the number of encodings", 4)
        results: Tables = group(Tables, "the results")

`command` adds a command for such a class. The class's docstring is the command's help. The command
runs with an instance of the class that has the values of a command line.
"""

import argparse
import inspect
import math
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field, fields, is_dataclass
from json import loads
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, TypeVar, get_args, get_type_hints

from cpd import _core
from cpd._files import STDOUT
from cpd._since import gone_flag
from cpd.cli.errors import UsageError, one_line
from cpd.numeric.names import did_you_mean
from cpd.numeric.shown import shown

if TYPE_CHECKING:
    from cpd.comm.spec import Reduce

T = TypeVar("T")

# ---- parsers -------------------------------------------------------------------------------------


class Parser(argparse.ArgumentParser):
    """A parser that reports an error in one line and suggests the nearest name."""

    def error(self, message: str) -> NoReturn:
        """Prints an error in one line and ends the process with status 2."""
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuses a value that is not one of the choices.

        Unlike argparse, suggests the nearest one.
        """
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            meant = did_you_mean(value, known)
            hint = f" ({meant})" if meant else ""
            message = f"must be one of {', '.join(known)}, got {shown(value)}{hint}"
            raise argparse.ArgumentError(action, message)

    def _get_value(self, action: argparse.Action, text: str) -> Any:
        """Refuses a text that is not a number, with an error in the form of all other errors."""
        try:
            return super()._get_value(action, text)
        except argparse.ArgumentError:
            noun = {int: "an integer", float: "a number"}.get(action.type)  # type: ignore[call-overload]
            if noun is None:
                raise
            raise argparse.ArgumentError(action, f"must be {noun}, got {shown(text)}") from None


class CommandParser(Parser):
    """The parser of one command. The error for an unknown option refers to this command's help."""

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]
        """Parses arguments. The error for an unknown option suggests the nearest known option."""
        gone = gone_flag(self.prog.partition(" ")[2], args or ())
        if gone:
            self.error(gone)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flags = [name for name in self._option_string_actions if name.startswith("--")]
            first = next((word for word in unknown if word.startswith("-")), "")
            meant = did_you_mean(first.partition("=")[0], flags)
            hint = f"; {meant}" if meant else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return known, unknown


class Help(argparse.HelpFormatter):
    """Formats help with line breaks only between words. Indented paragraphs remain unchanged."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        parts = text.strip().split("\n\n")
        lines = [p if "\n  " in p else "\n".join(self._split_lines(p, width)) for p in parts]
        return textwrap.indent("\n\n".join(lines), indent)


Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"
"""The result of argparse's `add_subparsers`, to which each command adds its parser."""


def command(commands: Commands, name: str, run: Callable[[T], int], options: type[T]) -> None:
    """Adds a command.

    `options` is the dataclass of its options, and `run` gets an instance of it.
    """
    parser = _parser(commands, name, options)
    parser.set_defaults(run=lambda parsed: run(options_of(options, parsed)))
    add_options(parser, options)


def actions(commands: Commands, name: str, text: type[Any]) -> Commands:
    """Adds a command with subcommands. Returns the object to which `command` adds them."""
    parser = _parser(commands, name, text)
    return parser.add_subparsers(dest="action", metavar="ACTION", required=True)


def _parser(commands: Commands, name: str, text: type[Any]) -> CommandParser:
    """Adds a parser whose help is the docstring of the class `text`.

    The summary of the docstring is shown in the list of commands. The rest is shown above the
    options of the command.
    """
    summary, _, rest = (inspect.getdoc(text) or name).partition("\n\n")
    return commands.add_parser(
        name,
        help=f"{summary[0].lower()}{summary[1:].removesuffix('.')}",
        description=rest or summary,
        formatter_class=Help,
    )


# ---- options of a dataclass ----------------------------------------------------------------------

Group: TypeAlias = "argparse.ArgumentParser | argparse._ArgumentGroup"
"""An object of argparse to which options are added."""

_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT", Path: "FILE"}


def option(help: str, default: Any = None, absent: str = "none", **settings: Any) -> Any:
    """Returns a field of a dataclass that is an option.

    The flag is the field's name with dashes. A bool is a flag without a value. If its default is
    True, the flag is `--no-NAME`.

    Args:
        help: the effect of the option. A text about the default is appended.
        default: the value without the option.
        absent: the behavior without the option, as a text for the help, if `default` is None.
        settings: `flags`, which replaces the flag; and arguments of argparse's `add_argument`. The
    field's type determines `type` and `metavar` unless they are given.

    Returns:
        The field.
    """
    if default is None and not settings.get("required"):
        help = f"{help}; default: {absent}"
    elif default is not None and not isinstance(default, bool):
        text = f"{default:g}" if isinstance(default, float) else str(default)
        help = f"{help}; default {text}"
    return field(default=default, metadata={"help": help, **settings})


def argument(help: str, **settings: Any) -> Any:
    """Returns a field that is a positional argument. `settings` are as in `option`."""
    return field(default=None, metadata={"help": help, "flags": (), **settings})


def group(cls: type[Any], title: str, text: str | None = None, exclusive: bool = False) -> Any:
    """Returns a field that is a group of options.

    Args:
        cls: the dataclass of its options.
        title: the title in the help.
        text: a text about the group in the help; default None: no text.
        exclusive: whether only one of the options may be given; default False.

    Returns:
        The field.
    """
    metadata = {"group": cls, "title": title, "text": text, "exclusive": exclusive}
    return field(default_factory=cls, metadata=metadata)


def add_options(parser: Group, cls: type[Any]) -> None:
    """Adds the options of a dataclass to a parser."""
    types = get_type_hints(cls)
    for own in fields(cls):
        if "group" not in own.metadata:
            _add_option(parser, own.name, types[own.name], own.default, dict(own.metadata))
            continue
        section: Group = parser.add_argument_group(own.metadata["title"], own.metadata["text"])
        if own.metadata["exclusive"]:
            section = section.add_mutually_exclusive_group()
        add_options(section, own.metadata["group"])


def _add_option(
    parser: Group, name: str, annotation: Any, default: Any, settings: dict[str, Any]
) -> None:
    dashed = name.replace("_", "-")
    kind = _value_type(annotation)
    if kind is bool:
        flag = f"--no-{dashed}" if default else f"--{dashed}"
        action = "store_false" if default else "store_true"
        parser.add_argument(flag, dest=name, action=action, **settings)
        return
    settings.setdefault("type", kind)
    if "choices" not in settings:
        settings.setdefault("metavar", _METAVARS.get(kind))
    flags = settings.pop("flags", (f"--{dashed}",))
    if flags:
        settings["dest"] = name
    parser.add_argument(*(flags or (name,)), default=default, **settings)


def _value_type(annotation: Any) -> Any:
    """Returns the type of one value of an option: int for `int | None` and for `list[int]`."""
    inner = next((part for part in get_args(annotation) if part is not NoneType), None)
    return annotation if inner is None else _value_type(inner)


def options_of(cls: type[T], parsed: argparse.Namespace) -> T:
    """Returns an instance of the dataclass with the values that argparse has read."""
    values: dict[str, Any] = {}
    for own in fields(cls):  # type: ignore[arg-type]
        if "group" in own.metadata:
            values[own.name] = options_of(own.metadata["group"], parsed)
        else:
            values[own.name] = getattr(parsed, own.name)
    return cls(**values)


def flat(options: Any) -> argparse.Namespace:
    """Returns all options as one argparse namespace, including the options of groups."""
    values: dict[str, Any] = {}
    for name, value in vars(options).items():
        values |= vars(flat(value)) if is_dataclass(value) else {name: value}
    return argparse.Namespace(**values)


def changed(options: Any) -> dict[str, str]:
    """Returns a dict from name to flag, of all options that differ from their defaults."""
    return {
        own.name: f"--{'no-' * (own.default is True)}{own.name.replace('_', '-')}"
        for own in fields(options)
        if own.metadata.get("flags") != () and "group" not in own.metadata
        if getattr(options, own.name) != own.default
    }


# ---- values --------------------------------------------------------------------------------------


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
    """Reads a list of positive integers, in which `…` stands for omitted integers.

    The omitted integers continue the two integers a and b before `…`. Each next integer is the last
    integer times b / a if a divides b, otherwise the last integer plus b - a.

    >>> integers("4,8,…,64")
    [4, 8, 16, 32, 64]
    """
    words = texts(text) if text.strip() else [text]
    numbers: list[int] = []
    for index, word in enumerate(words):
        if word in ("…", "..."):
            if len(numbers) < 2 or index != len(words) - 2:
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
        if index and words[index - 1] in ("…", "..."):
            numbers += _between(numbers[-2], numbers[-1], value, text)
        numbers.append(value)
    return numbers


_MOST = 1000
"""The largest number of integers for which `…` can stand."""


def _between(before: int, last: int, end: int, text: str) -> list[int]:
    if not before < last < end:
        raise argparse.ArgumentTypeError(
            f"numbers on both sides of … must rise, as in 4,8,…,64, got {text!r}"
        )
    numbers: list[int] = []
    while True:
        after = last * (last // before) if last % before == 0 else 2 * last - before
        if after >= end:
            return numbers
        numbers.append(after)
        before, last = last, after
        if len(numbers) > _MOST:
            raise argparse.ArgumentTypeError(f"{text!r} has more than {_MOST} numbers")


def json_object(text: str) -> dict[str, Any]:
    """Reads a JSON object from a text."""
    try:
        value = loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"must be a JSON object: {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"must be a JSON object, got {text}")
    return value


def seconds(text: str) -> float:
    """Reads a number of seconds, which must be above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"must be seconds above 0, got {text!r}")
    return value


# ---- options that several commands have ----------------------------------------------------------


def reduce(default: str, several: bool = True) -> Any:
    """Returns the option --reduce, for one all-reduce or, if `several`, for a list.

    The value without the option is None. The help shows `default` as the default.
    """
    settings = {"action": "extend", "type": texts, "metavar": "TEXT,…"} if several else {}
    more = "; for several, give a list or repeat the option" if several else ""
    return option(
        "the all-reduce as a text of cpd.Reduce: a format or codec, then keys, such as "
        f"\"e4m3 aps accumulator='fp16 kahan'\"{more}",
        absent=default,
        **settings,
    )


def reduce_of(text: str) -> "Reduce":
    """Returns the `Reduce` that `text` defines. The text is one item of a list of all-reduces.

    Raises UsageError for a text that has only keys, without a format or codec.
    """
    from cpd.comm.spec import Reduce, as_reduce

    if all(word.partition("=")[0] in Reduce._kinds for word in text.split()):
        raise UsageError(
            f"{text!r} has keys without a format or codec: write keys after a space, not a comma, "
            "as in 'e4m3 aps'"
        )
    return as_reduce(text)


def accumulator(what: str, default: str | None = None, **settings: Any) -> Any:
    """Returns an option for an accumulator.

    `what` is its help, and `settings` are as in `option`.
    """
    text = f"{what}, such as 'e6m9 kahan' or a matrix unit (cpd show --units)"
    return option(text, default, **settings)


def overflow(default: str) -> Any:
    """Returns the option --overflow of casts, with the default `default`."""
    text = (
        "the result beyond a format's range: Inf or NaN if the format has it (ieee), or the "
        "largest value (saturate)"
    )
    return option(text, default, choices=_core.OVERFLOWS)


def timeout_of(default: int, until: str) -> Any:
    """Returns an option for a timeout in seconds, with the default `default`.

    Its help is the text "seconds", followed by the text `until`.
    """
    return option(f"seconds {until}", float(default), type=seconds, metavar="S")


def jobs(default: str) -> Any:
    """Returns the option --jobs, the number of processes. The help shows `default` as default."""
    return option("number of processes, or of jobs on a cluster", absent=default)


def seed() -> Any:
    """Returns the option --seed, with the default 0."""
    return option("the seed of all random numbers", 0)


def machine(default: str) -> Any:
    """Returns the option --machine. The value without the option is None."""
    return option(
        "a machine: its name, its .toml file, or its numbers, such as alpha (seconds per message) "
        "and beta (bytes per second)",
        absent=default,
        metavar="NAME|FILE|TEXT",
    )


def json_file() -> Any:
    """Returns the option --json."""
    return option(
        "write the result as JSON to FILE; without FILE, or with '-', print JSON instead of the "
        "text",
        absent="only text is printed",
        nargs="?",
        const=STDOUT,
    )


def plot_file(what: str) -> Any:
    """Returns the option --plot, for a file with a picture of `what`."""
    return option(f"draw {what}, as .png or .svg", absent="not drawn")


@dataclass
class Values:
    """Options that name the files to which a command writes the values of its table."""

    json: Path | None = json_file()
    csv: Path | None = option(
        "write the table as CSV to FILE; '-': print CSV instead of the text", absent="not written"
    )

    @property
    def to_stdout(self) -> bool:
        """True if JSON or CSV is written to standard output. Nothing else may then be printed."""
        return STDOUT in (self.json, self.csv)


@dataclass
class Tables(Values):
    """Options that name the output files of a table: its values, and a plot of them."""

    plot: Path | None = plot_file("the table")


@dataclass
class GradientsFile:
    """Options for a file with the gradients of each rank."""

    gradients: Path | None = option("a file with the gradients of each rank")
    round: bool = option("round the file's binary64 values to binary32 first", False)


@dataclass
class Ranks:
    """Options for the connection of the nodes."""

    transport: str = option(
        "how nodes communicate: virtual nodes in this process (virtual), processes of MPI (mpi), "
        "or processes of torch.distributed with gloo (torch)",
        "virtual",
        choices=("virtual", "mpi", "torch"),
    )
    timeout: float = timeout_of(
        300, "until a rank of a transport that does not answer counts as lost"
    )


@dataclass
class Cluster:
    """Options for running jobs on a cluster."""

    cluster: str | None = option(
        "run as jobs of submitit; all nodes must share the folder of --out",
        absent="processes on this machine",
        choices=("slurm", "local", "debug"),
    )
    cluster_options: dict[str, Any] | None = option(
        'parameters of submitit, such as \'{"slurm_partition": "cpu", "timeout_min": 60}\'',
        type=json_object,
        metavar="JSON",
    )
