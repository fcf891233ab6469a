# SPDX-License-Identifier: Apache-2.0
"""`cpd show`: shows formats, matrix units, codecs and recipes, given by name or text."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cpd._files import STDOUT, write_text
from cpd.cli import options as opt
from cpd.cli import presets
from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.format import FormatOptions, check_formats, describe, print_formats
from cpd.cli.format_bench import STANDARDS, names_of, number
from cpd.cli.output import check_writable, json_written, new_console, new_table
from cpd.cli.scaled import SOURCES, find_format
from cpd.compress.table import compressors, is_compressor
from cpd.nn.ready import READY
from cpd.nn.recipe import NATIVE, Recipe
from cpd.numeric.accumulator import Accumulator
from cpd.numeric.formats import Format
from cpd.numeric.names import did_you_mean, nearest
from cpd.numeric.scaled import Scaled

_LEAST_PREFIX = 3
"""The least length of an unknown name for which the error lists the matrix units whose names begin
with the unknown name."""

COMMON = ("fp32", "tf32", "bf16", "fp16", "e5m2", "e4m3", "e4m3fn", "e3m0", "e2m1", "e8m0")


def register(commands: opt.Commands) -> None:
    """Adds the command `show`."""
    opt.command(commands, "show", _run, Options)


@dataclass
class Lists:
    """Options that select the kind of objects to list."""

    tables: str | None = opt.option(
        "show the formats of a standard: p3109 (IEEE P3109, 3 to 8 bits) or ocp (FP8 and MX)",
        absent="the formats of NAME",
        choices=STANDARDS,
        metavar="STANDARD",
    )
    units: bool = opt.option(
        "show matrix units, which are accumulators: all units, or those that are named", False
    )
    codecs: bool = opt.option(
        "show codecs, which an all-reduce can use in place of a format, with their options: all "
        "codecs, or those that are named",
        False,
    )
    recipes: bool = opt.option("show all recipes, or those that are named", False)
    schema: bool = opt.option(
        "print the JSON schema of recipes in TOML or JSON, for editors and validators", False
    )

    @property
    def kind(self) -> str | None:
        """The kind of objects to list, or None if the names determine the kind."""
        kinds = ("units", "codecs", "recipes", "schema")
        return next((kind for kind in kinds if getattr(self, kind)), None)


@dataclass
class Options:
    """Show formats, matrix units, codecs and recipes.

    Shows what names and texts mean: a format or scaled format with its range and spacing, a matrix
    unit with its rule and evidence, a codec with its options, a recipe as TOML. Without a NAME it
    shows common formats.

    Some names, such as nvfp4, are both formats and recipes. They are shown as formats, or as
    recipes with --recipes.

      cpd show e4m3fn '(4,3)' e6m9:bias=40 fp8-block 'int8 row'
      cpd show e4m3fn --neighbors 0.3
      cpd show h100-fp8
      cpd show 'qsgd bits=4'
      cpd show --recipes nvfp4 > mine.toml && cpd show mine.toml
      cpd show 'native weight=mxfp8 output=bf16'
    """

    things: list[str] = opt.argument("a name, a text or a recipe's file", nargs="*", metavar="NAME")
    lists: Lists = opt.group(Lists, "lists", exclusive=True)
    formats: FormatOptions = opt.group(FormatOptions, "formats")
    json: Path | None = opt.json_file()

    @property
    def kind(self) -> str | None:
        """The kind of objects to list, or None if the names determine the kind."""
        return self.lists.kind


def _run(options: Options) -> int:
    if options.json not in (None, STDOUT) and options.json.suffix != ".json":
        options.things.insert(0, str(options.json))  # `--json e4m3`: the value is a name
        options.json = STDOUT
    for path in (options.json, options.formats.picture):
        check_writable(path)
    _check(options)
    if options.kind == "schema":
        from cpd.nn.recipe_schema import schema

        print(json.dumps(schema(), indent=2, ensure_ascii=False))
        return 0
    names = options.things
    if options.lists.tables is not None:
        names = [*names, *names_of(options.lists.tables)]
    names = options.formats.compare or names or [*_listed(options.kind)]
    with users_mistakes():
        by_name = {name: _find(name, options.kind) for name in names}
    if options.things and len(_recipes(list(by_name.values()))) > 1:
        raise UsageError("one recipe at a time, as its TOML is a file")
    formats = [thing for thing in by_name.values() if isinstance(thing, Format | Scaled)]
    check_formats(options.formats, formats)
    if options.formats.picture is not None:
        from cpd.cli.format_picture import draw

        with users_mistakes():
            draw(options.formats.picture, [f for f in formats if isinstance(f, Format)])
    if not json_written(options.json, lambda: _json(options, by_name)):
        _print(options, by_name)
    return 0


def _check(options: Options) -> None:
    """Raises an error for options that exclude each other."""
    if options.formats.compare is not None and options.things:
        shown = " ".join(options.things)
        raise UsageError(f"--compare takes two formats and no more, got {shown} too")
    if options.formats.compare is not None and options.lists.tables is not None:
        raise UsageError("--compare takes two formats and no table")
    if options.kind is not None and (asked := opt.changed(options.formats)):
        raise UsageError(f"{next(iter(asked.values()))} shows formats, --{options.kind} does not")
    if options.kind == "schema" and options.things:
        raise UsageError(f"--schema is of all recipes, got {options.things[0]!r} too")
    if options.formats.neighbors is not None:
        number(options.formats.neighbors)


def _listed(kind: str | None) -> tuple[str, ...]:
    """Returns the names that `cpd show` prints by default."""
    return _names().get(kind, COMMON) if kind else COMMON


def _names() -> dict[str, tuple[str, ...]]:
    return {
        "units": tuple(Accumulator.named()),
        "codecs": tuple(compressors()),
        "recipes": tuple(READY),
    }


class _Unit(str):
    """The name of a matrix unit, as a class of its own: the name of a codec is a `_Codec`."""


class _Codec(str):
    """A codec's text."""


def _find(name: str, kind: str | None) -> Format | Scaled | _Unit | _Codec | Recipe:
    """Returns the format, matrix unit, codec or recipe with the name or text `name`.

    `kind` is the kind of object to search; None: all four kinds are searched.
    """
    names = _names()
    if kind == "units" or (kind is None and name in names["units"]):
        if name not in names["units"]:
            raise UsageError(f"unknown matrix unit {name!r}{nearest(name, names['units'])}")
        return _Unit(name)
    if kind == "codecs" or (kind is None and is_compressor(name)):
        from cpd.compress.codecs import Codec

        if not is_compressor(name):
            raise UsageError(f"no codec {name!r}{nearest(name, names['codecs'])}")
        return _Codec(name if name in names["codecs"] else Codec(name))
    if kind == "recipes":
        return Recipe(name)
    try:
        return find_format(name)
    except (ValueError, UsageError) as error:
        if name.endswith((".toml", ".json")):
            return Recipe(name)
        head = name.partition(" ")[0]
        if head in (*READY, NATIVE):
            try:
                return Recipe(name)
            except ValueError:
                if head not in (*COMMON, *SOURCES):
                    raise
        units = [unit for unit in names["units"] if unit.startswith(name)]
        if units and len(name) >= _LEAST_PREFIX:
            raise UsageError(
                f"unknown name {name!r}; matrix units are {', '.join(units)}"
            ) from error
        if _is_accumulator(name):
            why = f"{error}; " if str(error).startswith("no format") else ""
            raise UsageError(
                f"{why}{name!r} is an accumulator, which cpd.gemm takes, and --accumulator of "
                "sweep, probe and vectors"
            ) from error
        meant = did_you_mean(
            name, [candidate for some in names.values() for candidate in some], 0.7
        )
        if meant and str(error).startswith("unknown") and "did you mean" not in str(error):
            raise UsageError(f"unknown name {name!r}; {meant}") from error
        raise


def _is_accumulator(text: str) -> bool:
    """Returns whether a text is the text of an accumulator."""
    try:
        Accumulator(text)
    except ValueError:
        return False
    return True


_Found = dict[str, Any]
"""The objects to show, by the names on the command line."""


def _json(options: Options, by_name: _Found) -> Any:
    things = list(by_name.values())
    if options.kind == "recipes":
        rows = {name: thing.to_dict() for name, thing in by_name.items()}
        return rows if not options.things or len(rows) > 1 else next(iter(rows.values()))
    formats = [thing for thing in things if isinstance(thing, Format | Scaled)]
    described = describe(options.formats, formats)
    if not isinstance(described, list):
        return described
    left = iter(described)
    return [next(left) if isinstance(thing, Format | Scaled) else _row(thing) for thing in things]


def _row(thing: _Unit | _Codec | Recipe) -> dict[str, Any]:
    if isinstance(thing, _Unit):
        return presets.describe(*_units([thing]))
    if isinstance(thing, _Codec):
        return {"text": thing, "name": thing.partition(" ")[0], **_compressor(thing)}
    return thing.to_dict()


def _print(options: Options, by_name: _Found) -> None:
    """Prints the objects to show: formats, then matrix units, then codecs, then recipes."""
    things = list(by_name.values())
    formats = [thing for thing in things if isinstance(thing, Format | Scaled)]
    if formats:
        print_formats(options.formats, formats, whole_names=options.lists.tables is not None)
        for name in options.things if options.kind is None else ():
            if name in READY and isinstance(by_name[name], Format | Scaled):
                print(f"note: {name} is a recipe, too: cpd show --recipes {name}", file=sys.stderr)
    if some := [thing for thing in things if isinstance(thing, _Unit)]:
        presets.print_units(_units(some))
    if options.kind == "codecs" and not options.things:
        rows = {name: row["summary"] for name, row in compressors().items()}
        _print_list("Codec", rows, "cpd show NAME prints one with its options and its source.")
    elif options.kind == "recipes" and not options.things:
        then = "cpd show --recipes NAME prints one as TOML, with its source."
        _print_list("Recipe", {name: recipe.summary for name, recipe in READY.items()}, then)
    else:
        _print_codecs([thing for thing in things if isinstance(thing, _Codec)])
        for recipe in _recipes(things):
            write_text(STDOUT, recipe.to_toml())


def _recipes(things: list[Any]) -> list[Recipe]:
    return [thing for thing in things if not isinstance(thing, Format | Scaled | str)]


def _units(names: list[Any]) -> list[Any]:
    return [name for name in Accumulator.named() if name in names]


def _compressor(text: str) -> Mapping[str, str]:
    return compressors()[text.partition(" ")[0]]


def _print_codecs(texts: list[_Codec]) -> None:
    console = new_console()
    for text in texts:
        row, name = _compressor(text), text.partition(" ")[0]
        lines = [
            f"{text}: {row['summary']}",
            f"written {name} {row['options']}",
            f"of {row['source']}",
        ]
        console.print("\n  ".join(lines), soft_wrap=True)


def _print_list(kind: str, rows: dict[str, str], then: str) -> None:
    console = new_console()
    table = new_table(kind, "What it does")
    table.columns[0].no_wrap = True
    table.columns[1].justify = "left"
    for name, summary in rows.items():
        table.add_row(name, summary)
    console.print(table)
    console.print(then)
