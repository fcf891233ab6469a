# SPDX-License-Identifier: Apache-2.0
"""`cpd probe`: the rule by which a command adds products."""

import argparse
from typing import Any

from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.options import (
    Commands,
    accumulator_argument,
    add_command,
    integer,
    json_argument,
    seed_argument,
    timeout_argument,
)
from cpd.cli.output import check_writable, is_stdout
from cpd.numeric.accumulator import as_accumulator
from cpd.numeric.formats import as_format

_TEXT = """\
Finds how a command adds the products of a dot product: the order of k, the
blocks of a matrix unit, its fraction bits and rounding, where the addend comes
in, and the formats of its sums.

The command is started for each of some twenty batches. It reads one dot product
a line from standard input: the codes of a's k values, of b's, and of the addend,
in hexadecimal, separated by blanks. It writes one code a line, in order, and
ends with status 0. {in} and {out} in its arguments are names of files in the
place of standard input and output. Lines that begin with #, // or '- ' count
for nothing.

  cpd probe --a e4m3fn --k 64 -- ./Vunit
  cpd probe --a fp16 --c none --result fp16 -- vvp unit.vvp +in={in} +out={out}

The rule is printed as the text of an accumulator, which cpd.gemm takes; below it
what could not be told apart. The status is 1 where no rule fits.
"""


def register(commands: Commands) -> None:
    """Adds the command `probe`."""
    parser = add_command(commands, "probe", _run, "how a unit or a kernel adds products", _TEXT)
    parser.add_argument("--a", default="fp16", metavar="FORMAT", help="format of a; default fp16")
    parser.add_argument("--b", metavar="FORMAT", help="format of b; default a's")
    parser.add_argument(
        "--c", default="fp32", metavar="FORMAT", help="format of the addend, or none; default fp32"
    )
    parser.add_argument(
        "--result", default="fp32", metavar="FORMAT", help="format of the results; default fp32"
    )
    integer(parser, "k", 64, "products of a dot product")
    seed_argument(parser)
    timeout_argument(parser, 60, "until a batch has failed")
    accumulator_argument(parser, "an accumulator in the place of a command")
    json_argument(parser)
    parser.add_argument(
        "command_line", nargs="*", metavar="COMMAND", help="a command and its words, behind --"
    )


def _run(options: argparse.Namespace) -> int:
    from cpd._files import write_json
    from cpd.hardware import Command, probe
    from cpd.hardware.probing.rules import Known

    check_writable(options.json)
    if bool(options.command_line) == (options.accumulator is not None):
        raise UsageError("give a command behind --, or an accumulator by --accumulator")
    with users_mistakes():
        formats = [options.a, options.b, None if options.c == "none" else options.c]
        formats = [None if name is None else as_format(name) for name in formats]
        function: Any
        if options.accumulator is not None:
            function = Known(as_accumulator(options.accumulator)).sums
        else:
            function = Command(
                options.command_line, *formats, result=options.result, timeout=options.timeout
            )
    try:
        with users_mistakes():
            found = probe(function, *formats, k=options.k, seed=options.seed)
    except RuntimeError as error:
        raise RunError(str(error)) from error
    if options.json is not None:
        write_json(options.json, found.row())
    if options.json is None or not is_stdout(options.json):
        print(found)
    return 0 if found.rule else 1
