# SPDX-License-Identifier: Apache-2.0
"""The reference's texts: docstrings as Sphinx reads them, what `cpd COMMAND --help` prints, and the
JSON schema of recipes."""

from __future__ import annotations

import argparse
import builtins
import inspect
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective

sys.path.append(str(Path(__file__).resolve().parents[2] / "tests/testing"))

import surface


def as_rst(lines: list[str]) -> list[str]:
    """Converts a docstring's lines to reStructuredText: adds `::` before code, and escapes special
    characters. Code is indented further than the text before it."""
    made: list[str] = []
    in_doctest = False
    code: int | None = None  # how far the code is set in that the line may be part of
    for number, line in enumerate(lines):
        in_doctest = bool(line.strip()) and (in_doctest or line.lstrip().startswith(">>>"))
        if code is not None and line.strip() and _indent(line) < code:
            code = None
        if in_doctest or code is not None:
            made.append(line)
            continue
        made.append(_escaped(line))
        if _begins_code(line, *lines[number + 1 : number + 3]):
            code = _indent(lines[number + 2])
            made += ["", "::"]
    return made


def _begins_code(line: str, empty: str = "", following: str = "") -> bool:
    if not line.strip() or empty.strip() or following.lstrip().startswith(("-", ">>>")):
        return False
    return _indent(line) == 0 < _indent(following) and not line.startswith("-")


def _escaped(line: str) -> str:
    """Returns the line as reStructuredText.

    Bars are escaped, because text between bars would be a substitution. If a letter follows a word
    in backquotes (`every`th), an escaped blank separates the two, because the markup must end
    before a blank.
    """
    return re.sub(r"(`[^`]+`)(?:(\w)|)", _apart, line.replace("|", r"\|"))


def _apart(word: re.Match[str]) -> str:
    return f"{word[1]}\\ {word[2]}" if word[2] else word[1]


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _process(app: Sphinx, what: str, name: str, it: Any, how: Any, lines: list[str]) -> None:
    if inspect.isclass(it):
        lines += of_arguments(it, "\n".join(lines))
    lines[:] = as_rst(lines)
    if what not in ("attribute", "property"):  # in their one sentence a colon ends no type
        lines[:] = GoogleDocstring(lines, Config(), app, what, name, it, how).lines()


def of_arguments(cls: type, doc: str) -> list[str]:
    """Returns lines of a section `Attributes`: the class's attributes that `doc` and other
    docstrings do not describe, because they are arguments of the constructor."""
    if issubclass(cls, tuple):  # whose fields are members
        return []
    described: set[str] = {
        *re.findall(r"(?m)^    (\w+)[^:\n]*:", doc.partition("Attributes:\n")[2])
    }
    types: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if surface.is_ours(base)]):
        types |= {name: str(it) for name, it in inspect.get_annotations(base).items()}
        documented = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
        described |= {name for owner, name in documented if owner == base.__qualname__}
    names = [n for n in types if n in surface.attributes(cls) and n not in described]
    entries = [f"    {name} ({types[name]}): {OF_ARGUMENT}" for name in names]
    return ["", "Attributes:", *entries] if entries else []


OF_ARGUMENT = "the constructor's argument of this name, or what it stands for by default."


def is_documented_field(it: object) -> bool:
    """Returns whether `it` is a field of a named tuple, described in the section `Attributes`."""
    return any(
        "Attributes:" in (each.__doc__ or "") and any(value is it for value in vars(each).values())
        for each in tuple.__subclasses__()
    )


def _skip(_app: Sphinx, _what: str, _name: str, it: Any, skip: bool, _how: Any) -> bool | None:
    """Skips fields that the class's docstring already describes, and removed members (`_Gone`)."""
    return True if is_documented_field(it) or type(it).__name__ == "_Gone" else None


def _unlink_builtins(_app: Sphinx, document: nodes.document) -> None:
    """Removes the links of Python's types, such as `bytes`, which would lead to attributes of that
    name."""
    for reference in list(document.findall(pending_xref)):
        if reference.get("reftarget") in vars(builtins):
            reference.replace_self(reference.children)


class CommandHelp(SphinxDirective):
    """The directive `command-help`: a section for each command, with its --help in 80 columns."""

    def run(self) -> list[nodes.Node]:
        os.environ["COLUMNS"], os.environ["NO_COLOR"] = "80", "1"
        return [self._section(f"cpd {name}", parser) for name, parser in commands().items()]

    def _section(self, title: str, parser: argparse.ArgumentParser) -> nodes.section:
        section = nodes.section(ids=[nodes.make_id(title)], names=[title])
        section += nodes.title(text=title)
        section += nodes.literal_block(text=parser.format_help(), language="text")
        self.state.document.note_implicit_target(section)
        return section


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    from cpd.cli import build_parser

    (actions,) = (
        action
        for action in build_parser()._actions
        if isinstance(action, argparse._SubParsersAction)
    )
    return dict(actions.choices)


class RecipeSchema(SphinxDirective):
    """The JSON schema of recipes, as `cpd show --schema` prints it."""

    def run(self) -> list[nodes.Node]:
        return [nodes.literal_block(text=recipe_schema(), language="json")]


def recipe_schema() -> str:
    from cpd.nn.recipe_schema import schema

    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def _write_schema(app: Sphinx, error: Exception | None) -> None:
    """Writes the JSON schema of recipes to a file, next to the page that links to it."""
    if error is None:
        Path(app.outdir, "python/docs/api/recipe.schema.json").write_text(recipe_schema())


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process)
    app.connect("autodoc-skip-member", _skip)
    app.connect("doctree-read", _unlink_builtins)
    app.connect("build-finished", _write_schema)
    app.add_directive("command-help", CommandHelp)
    app.add_directive("recipe-schema", RecipeSchema)
    return {"parallel_read_safe": True}
