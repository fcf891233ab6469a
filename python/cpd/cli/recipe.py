# SPDX-License-Identifier: Apache-2.0
"""`cpd recipes`: the named recipes; `cpd recipe`: one of them, as TOML, and the schema of such."""

import argparse
import json

from cpd.cli.errors import UsageError, users_mistakes
from cpd.cli.options import Commands, add_command
from cpd.cli.output import new_console, new_table
from cpd.nn.ready import READY
from cpd.nn.recipe import Recipe

_LIST = """\
The named recipes: how others have trained, from the formats of the operands to
the sums. `cpd recipe NAME` prints one as TOML.
"""
_TEXT = """\
Prints a recipe as TOML, which `cpd.Recipe("FILE.toml")` and `cpd train --recipe
FILE.toml` read: the named one to begin one's own with, or a file's or a text's, to
see what it means.

  cpd recipe nvfp4 > mine.toml
  cpd recipe mine.toml
  cpd recipe 'native weight=mxfp8 output=bf16'
  cpd recipe --schema > recipe.schema.json
"""


def register(commands: Commands) -> None:
    """Adds the commands `recipes` and `recipe`."""
    listing = add_command(commands, "recipes", _list, "the named recipes", _LIST)
    listing.add_argument("--json", action="store_true", help="print JSON: names, and all keys")
    parser = add_command(commands, "recipe", _run, "a recipe as TOML, to change and use", _TEXT)
    parser.add_argument("name", nargs="?", metavar="NAME", help="a name, a file or a text")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON instead of TOML")
    form.add_argument(
        "--schema",
        action="store_true",
        help="print the JSON schema of a recipe's TOML and JSON, for editors and checks",
    )


def _list(options: argparse.Namespace) -> int:
    if options.json:
        found = {name: Recipe(name).to_dict() for name in READY}
        print(json.dumps(found, indent=2, ensure_ascii=False))
        return 0
    console = new_console()
    table = new_table("Recipe", "Operands, sums and scales")
    table.columns[0].no_wrap = True
    table.columns[1].justify = "left"
    for name, one in READY.items():
        table.add_row(name, one.summary)
    console.print(table)
    console.print("cpd recipe NAME prints one as TOML, with its source.")
    return 0


def _run(options: argparse.Namespace) -> int:
    if options.schema:
        from cpd.nn.recipe_schema import schema

        if options.name is not None:
            raise UsageError(f"--schema is of all recipes, got {options.name!r} too")
        print(json.dumps(schema(), indent=2, ensure_ascii=False))
        return 0
    if options.name is None:
        raise UsageError("which recipe? cpd recipes lists the named ones")
    with users_mistakes():
        found = Recipe(options.name)
    print(found.to_json() if options.json else found.to_toml(), end="")
    return 0
