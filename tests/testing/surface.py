#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a user of the package has to know: names, methods, parameters, options and keys.

    surface.py [--json FILE] [--store]

A module is public if the reference, the guides or the examples name it, and no part of its name
begins with an underscore. Its public names are those in `__all__`, those that it imports at first
use, and those that the same pages take from it. A name that two public modules export counts twice,
because a reader meets it twice. A module within a module counts as a module, and not as a name.
Three parts are counted separately and do not enter the other counts: `cpd.compat`, `cpd_lab.train`,
and the functions of `cpd.functional` that torch has under the same name.

--json writes the counts and the names to a file; `-` prints them instead of the table. --store
writes them to `tests/python/project/surface.json`, the file of the test that lets no count grow.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STORED = ROOT / "tests/python/project/surface.json"
GUIDES = ("README.md", "python/*.md", "python/docs/*.md", "python/docs/tasks/*.md")
EXAMPLES = ("examples/**/*.py", "examples/**/*.ipynb")
REFERENCE = ("python/docs/api/*.md",)
APART = ("cpd.compat", "cpd_lab.train")
"""The modules whose names are counted separately."""

SPECS = {
    *("Accumulator", "Cast", "Codec", "Format"),
    *("Recipe", "Reduce", "Scaled", "Schedule"),
}
"""The public classes that describe a computation. The keys of a class are the keywords of its
constructor."""
GRAMMARS = {
    "format": "cpd.numeric.formats.format",
    "scaled format": "cpd.numeric.scaled.scaled",
    "block of a scaled format": "cpd.numeric.scaled.block_text",
    "cast": "cpd.numeric.cast.Cast",
    "accumulator": "cpd.numeric.accumulator.Accumulator",
    "Hadamard transform": "cpd.numeric.hadamard.transform_of",
    "codec": "cpd.Codec",
    "all-reduce": "cpd.Reduce",
    "pattern of exempt layers": "cpd.comm.schedule.Schedule._is_exempt",
    "recipe": "cpd.Recipe",
    "selector of a rule": "cpd.nn.rules.Choice",
    "optimizer of a recipe": "cpd.optim.recipe.from_recipe",
    "pattern of a sweep": "cpd.study.sweeps.patterns.expand",
    "machine": "cpd.study.machines.Machine",
    "schedule of a rate": "cpd_lab.train.schedules.rate_schedule",
    "ports of a test bench": "cpd.cli.vectors._port_names",
}
"""The grammars of texts that a user writes, each with the function that parses such texts. Options
of the command line that have a parser function are found without this table."""
PLAIN = {int, float, str, Path, None}
"""Types of command line options that are plain numbers, words or paths, and so need no grammar
(rules for the texts that a user may write)."""


def found_at(name: str) -> Any:
    """Returns the object that a dotted name of the package means. An attribute wins over a module
    of the same name, as in a program. Returns None if there is no such object."""
    path, _, rest = name.partition(".")
    it: Any = importlib.import_module(path)
    for part in rest.split(".") if rest else ():
        path = f"{path}.{part}"
        if not hasattr(it, part) and isinstance(it, ModuleType):
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(path)
        it = getattr(it, part, None)
    return it


def documented(text: str) -> Iterator[str]:
    """Yields the dotted names that a page of the reference documents."""
    current = "cpd"
    for line in text.splitlines():
        directive, _, name = line.strip().removeprefix(".. ").partition(":: ")
        if directive == "currentmodule":
            current = name
        elif directive == "automodule" and f":: {name}\n   :members:" in text:
            yield from members_of(name)
        elif directive.startswith("auto") and directive != "automodule":
            yield f"{current}.{name}"


def members_of(module: str) -> list[str]:
    """Returns the names that the reference shows for a module without `__all__`. Sphinx finds the
    same names."""
    it = found_at(module)
    own = {name: one for name, one in vars(it).items() if not hasattr(it, "__all__")}
    kept = [name for name, one in own.items() if getattr(one, "__module__", "") == it.__name__]
    return [module, *(f"{module}.{name}" for name in kept if name[0] != "_")]


def used(text: str) -> Iterator[str]:
    """Yields the dotted names that a guide or an example uses of the package."""
    text = re.sub(r"(?m)^\s*\.\.\. ?", "", text)  # the prompt of a statement's further lines
    yield from re.findall(r"\bcpd(?:_lab)?(?:\.[A-Za-z]\w*)+", text)
    imports = r"from (cpd(?:_lab)?(?:\.\w+)*) import (\([^)]*\)|[^\n\"\\]+)"
    for module, names in re.findall(imports, text):
        yield from (f"{module}.{word}" for word in re.findall(r"(?:^|[,(])\s*(\w+)", names))


def mentioned(root: Path = ROOT) -> set[str]:
    """Returns all dotted names of the package, without a leading underscore, that pages and
    examples contain."""
    names = {"cpd"}
    for patterns, read in ((REFERENCE, documented), ((*GUIDES, *EXAMPLES), used)):
        for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
            names.update(read(path.read_text()))
    return {name for name in names if "._" not in name}


def public_modules(names: set[str]) -> dict[str, set[str]]:
    """Returns the public modules by their shortest names, each with the names that pages take from
    it."""
    modules: dict[ModuleType, tuple[str, set[str]]] = {}
    for name in sorted(names, key=lambda name: (name.count("."), name)):
        parts = name.split(".")
        paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        module, path = [(it, p) for p in paths if isinstance(it := found_at(p), ModuleType)][-1]
        taken = modules.setdefault(module, (path, set()))[1]
        taken.update(parts[path.count(".") + 1 :][:1])
    return dict(modules.values())


def names_of(path: str, taken: set[str]) -> dict[str, Any]:
    """Returns the public names of a public module, each with its object. Modules are left out."""
    from cpd._lazy import later

    module = found_at(path)
    listed = {*getattr(module, "__all__", ()), *later(module.__name__), *taken}
    found = {name: getattr(module, name, None) for name in sorted(listed) if name[0] != "_"}
    return {name: it for name, it in found.items() if it is not None and not inspect.ismodule(it)}


def is_mirror(name: str, it: Any) -> bool:
    """Returns whether a name is a function of `cpd.functional` that torch also has."""
    path, _, last = name.rpartition(".")
    if path != "cpd.functional" or not inspect.isfunction(it):
        return False
    import torch

    tried = (last, f"_{last}", f"{last}_forward", f"{last.replace('rnn', 'rnn_tanh')}")
    return any(hasattr(home, one) for home in (torch, torch.nn.functional) for one in tried)


def is_ours(cls: type) -> bool:
    """Returns whether a class is defined in `cpd` or `cpd_lab`."""
    return cls.__module__.split(".")[0] in ("cpd", "cpd_lab")


def members(cls: type) -> dict[str, Any]:
    """Returns the public methods and properties of a class that this package defines, by name."""
    named: dict[str, Any] = {}
    for base in filter(is_ours, reversed(cls.__mro__)):
        named.update(vars(base))
    kinds = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
    return {n: it for n, it in named.items() if n[0] != "_" and isinstance(it, kinds)}


def attributes(cls: type) -> set[str]:
    """Returns the names of the public fields that a class annotates, such as the fields
    of a dataclass."""
    named = {n for base in cls.__mro__ if is_ours(base) for n in inspect.get_annotations(base)}
    return {name for name in named if name[0] != "_"} - members(cls).keys()


def parameters(function: Any) -> list[str]:
    """Returns the names of a function's or a constructor's parameters, except `self` and parameters
    of type Never. The list is empty for generated constructors (their fields count as attributes),
    for constructors of protocols, and for C++ functions."""
    if inspect.isclass(function):
        inits = [vars(base).get("__init__") for base in function.__mro__ if is_ours(base)]
        made = next(filter(None, inits), None)
        if made is None or made.__module__ == "typing":
            return []
        if inspect.unwrap(made).__code__.co_filename == "<string>":
            return []
    elif not (inspect.isfunction(function) or inspect.ismethod(function)):
        return []
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.name != "self" and p.annotation != "Never"]


def parameters_of(it: Any) -> int:
    """Returns the number of parameters of a function, or of a class's constructor and methods
    together."""
    methods = [getattr(it, name) for name in members(it)] if inspect.isclass(it) else []
    return sum(len(parameters(one)) for one in (it, *methods))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options and arguments of a command and of its subcommands, except `--help`."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from actions(inner)
        elif not isinstance(action, argparse._HelpAction):
            yield action


def commands() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command, by the command's name."""
    from cpd.cli import build_parser

    subparsers = argparse._SubParsersAction
    (found,) = (one for one in build_parser()._actions if isinstance(one, subparsers))
    return dict(found.choices)


def spec_keys(names: dict[str, Any]) -> dict[str, list[str]]:
    """Returns the keys that a user may set in each spec: for a class in SPECS, the keywords of its
    constructor; for a compressor, its options."""
    last = {name.rpartition(".")[2]: it for name, it in names.items()}
    keys = {name: parameters(last[name]) for name in sorted(SPECS & last.keys())}
    from cpd.compress.table import compressors

    for name, row in compressors().items():
        keys[name] = re.findall(r"\b([a-z]\w*)=", row["options"])
    return keys


def grammars() -> list[str]:
    """Returns the names of all grammars (rules for the texts that a user writes): the names in
    GRAMMARS whose parsing function exists, and one for each function that parses the value of a
    command line option."""
    found = [name for name, reader in GRAMMARS.items() if found_at(reader) is not None]
    types = {action.type for one in commands().values() for action in actions(one)}
    kinds = [kind for kind in types - PLAIN if inspect.isfunction(kind)]
    return [*found, *sorted(f"option: {kind.__name__.strip('_')}" for kind in kinds)]


def surface() -> dict[str, Any]:
    """Counts the package's surface (everything that a user has to know). Returns a dictionary with
    the keys `counts`, `apart` (the separate counts) and `names`."""
    modules = {path: names_of(path, taken) for path, taken in public_modules(mentioned()).items()}
    own = {path: it for path, it in modules.items() if it and not path.startswith(APART)}
    every = {f"{path}.{name}": it for path, names in own.items() for name, it in names.items()}
    names = {name: it for name, it in sorted(every.items()) if not is_mirror(name, it)}
    things = {id(it): it for it in names.values()}.values()
    classes = [it for it in things if inspect.isclass(it) and is_ours(it)]
    parsers = commands()
    counts = {
        "public modules": len(own),
        "public names": len(names),
        "names with two meanings": len(ambiguous(names)),
        "names that hide a module": len(hiding(names)),
        "public methods and properties": sum(len(members(cls)) for cls in classes),
        "public attributes": sum(len(attributes(cls)) for cls in classes),
        "parameters": sum(map(parameters_of, things)),
        "commands": len(parsers),
        "options of commands": sum(len(list(actions(one))) for one in parsers.values()),
        "keys of specs": sum(map(len, spec_keys(names).values())),
        "text grammars": len(grammars()),
    }
    apart = {
        f"names of {part}": sum(len(it) for path, it in modules.items() if path.startswith(part))
        for part in APART
    }
    apart["mirrors of torch in cpd.functional"] = len(every) - len(names)
    return {"counts": counts, "apart": apart, "names": list(names)}


def ambiguous(names: dict[str, Any]) -> set[str]:
    """Returns the last parts of names that mean different objects in different public modules."""
    meant: dict[str, int] = {}
    pairs = [(name.rpartition(".")[2], id(it)) for name, it in names.items()]
    return {last for last, it in pairs if meant.setdefault(last, it) != it}


def hiding(names: dict[str, Any]) -> list[str]:
    """Returns the names of functions and classes that are also the name of a module of the
    package."""
    package = Path(importlib.import_module("cpd").__file__ or "").parent.parent
    paths = {name: package.joinpath(*name.split(".")) for name in names}
    return [n for n, path in paths.items() if path.is_dir() or path.with_suffix(".py").is_file()]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Counts what a user of the package has to know.")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--store", action="store_const", const=STORED)
    options = parser.parse_args(arguments)
    found = surface()
    text = json.dumps(found, indent=1) + "\n"
    for path in filter(None, (options.json, options.store)):
        if path == "-":
            print(text, end="")
        else:
            Path(path).write_text(text)
    if options.json != "-":
        for name, number in (found["counts"] | found["apart"]).items():
            print(f"{number:5}  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
