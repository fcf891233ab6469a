# SPDX-License-Identifier: Apache-2.0
"""`cpd probe`: finds the rule by which a command adds products."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpd.cli import options as opt
from cpd.cli.errors import RunError, UsageError, users_mistakes
from cpd.cli.output import check_writable, json_written
from cpd.numeric.accumulator import as_accumulator
from cpd.numeric.formats import FormatLike, as_format


def register(commands: opt.Commands) -> None:
    """Adds the command `probe`."""
    opt.command(commands, "probe", _run, Options)


@dataclass
class Options:
    """Find how a matrix unit or a kernel adds products.

    Finds how a command adds the products of a dot product: the order of k, the blocks of a matrix
    unit, its fraction bits and rounding, when the addend is added, and the formats of its sums.

    The command is started for each of about twenty batches. It reads dot products from standard
    input, one a line: the codes of a's k values, of b's k values and of the addend, in hexadecimal,
    separated by blanks. It writes the codes of the results, one a line in the same order, and ends
    with status 0. Lines that begin with #, // or '- ' are ignored. If the words {in} and {out}
    occur in the command, they become names of files, which are used in place of standard input and
    output.

      cpd probe --a e4m3fn --k 64 -- ./Vunit
      cpd probe --a fp16 --c none --result fp16 -- vvp unit.vvp +in={in} +out={out}

    cpd prints the rule as the text of an accumulator, which cpd.gemm takes. Below this text, cpd
    prints the other rules that give the same results. The exit status is 1 if no rule fits.
    """

    command_line: list[str] = opt.argument(
        "a command and its words, after --", nargs="*", metavar="COMMAND"
    )
    a: str | None = opt.option(
        "the format of a", absent="the format of the unit to probe, else fp16", metavar="FORMAT"
    )
    b: str | None = opt.option(
        "the format of b",
        absent="the format of the unit to probe, else a's format",
        metavar="FORMAT",
    )
    c: str = opt.option(
        "the format of the addend c, or the word none if the command has no addend",
        "fp32",
        metavar="FORMAT",
    )
    result: str = opt.option("the format of the results", "fp32", metavar="FORMAT")
    k: int = opt.option("the number of products in a dot product", 64)
    seed: int = opt.seed()
    timeout: float = opt.timeout_of(60, "until a batch without results has failed")
    accumulator: str | None = opt.accumulator("an accumulator to probe in place of a command")
    json: Path | None = opt.json_file()


def _run(options: Options) -> int:
    from cpd.hardware import Command, probe
    from cpd.hardware.probing.rules import Known

    check_writable(options.json)
    if bool(options.command_line) == (options.accumulator is not None):
        got = "both" if options.command_line else "neither"
        raise UsageError(f"give either a command or --accumulator, got {got}")
    with users_mistakes():
        a: FormatLike | None = options.a
        b: FormatLike | None = options.b
        c = None if options.c == "none" else options.c
        function: Any
        if options.accumulator is not None:
            accumulator = as_accumulator(options.accumulator)
            if a is None and accumulator.form == "unit":
                a, b = accumulator.a, b or accumulator.b
            function = Known(accumulator).sums
        formats: list[Any] = [
            None if name is None else as_format(name) for name in (a or "fp16", b, c)
        ]
        if options.accumulator is None:
            function = Command(
                options.command_line, *formats, result=options.result, timeout=options.timeout
            )
    try:
        with users_mistakes():
            probed = probe(function, *formats, k=options.k, seed=options.seed)
    except RuntimeError as error:
        raise RunError(str(error)) from error
    if not json_written(options.json, probed.row):
        print(probed)
    return 0 if probed.rule else 1
