#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Counts what a user of the package has to know: names, methods, parameters, options, keys.

    surface.py [--json FILE] [--store]

A module is public if the reference, the guides or the examples name it, and no part of its name
begins with an underscore. Its public names are those in `__all__`, those that it imports when they
are first used, and those that the same pages take from it. A name that two public modules export
counts twice, because a reader meets it twice. A module within a module is counted as a module, not
as a name. `cpd.compat`, `cpd_lab.train`, and the functions of `cpd.functional` that torch has by
the same name are counted apart and enter no other count.

--json writes the counts and the names (`-`: to standard output, in place of the table). --store
writes them to the file of the ratchet test, `tests/python/project/surface.json`.
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
"""The modules whose names are counted apart."""

SPECS = {
    *("Accumulator", "Cast", "Codec", "Format"),
    *("Recipe", "Reduce", "Scaled", "Schedule"),
}
"""The public classes that say how to compute. Their keys are their constructors' keywords."""
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
"""The little languages in which a user writes, each with the function that reads it. Options of the
command line with a reader of their own are found without this table."""
PLAIN = {int, float, str, Path, None}
"""The types of options that have no grammar."""


def found_at(name: str) -> Any:
    """Returns what a dotted name of the package names, as a program finds it: an attribute wins
    over a module. Returns None if there is nothing of that name."""
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
    """The dotted names that a page of the reference documents."""
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
    """The names that the reference shows of a module without `__all__`, as Sphinx finds them."""
    it = found_at(module)
    own = {name: one for name, one in vars(it).items() if not hasattr(it, "__all__")}
    kept = [name for name, one in own.items() if getattr(one, "__module__", "") == it.__name__]
    return [module, *(f"{module}.{name}" for name in kept if name[0] != "_")]


def used(text: str) -> Iterator[str]:
    """The dotted names that a guide or an example takes from the package."""
    text = re.sub(r"(?m)^\s*\.\.\. ?", "", text)  # the prompt of a statement's further lines
    yield from re.findall(r"\bcpd(?:_lab)?(?:\.[A-Za-z]\w*)+", text)
    imports = r"from (cpd(?:_lab)?(?:\.\w+)*) import (\([^)]*\)|[^\n\"\\]+)"
    for module, names in re.findall(imports, text):
        yield from (f"{module}.{word}" for word in re.findall(r"(?:^|[,(])\s*(\w+)", names))


def mentioned(root: Path = ROOT) -> set[str]:
    """All dotted names without a leading underscore by which pages and examples name the package's
    modules and what is in them."""
    names = {"cpd"}
    for patterns, read in ((REFERENCE, documented), ((*GUIDES, *EXAMPLES), used)):
        for path in sorted(path for pattern in patterns for path in root.glob(pattern)):
            names.update(read(path.read_text()))
    return {name for name in names if "._" not in name}


def public_modules(names: set[str]) -> dict[str, set[str]]:
    """The public modules by their shortest names, each with the names that pages take from it."""
    modules: dict[ModuleType, tuple[str, set[str]]] = {}
    for name in sorted(names, key=lambda name: (name.count("."), name)):
        parts = name.split(".")
        paths = [".".join(parts[:end]) for end in range(1, len(parts) + 1)]
        module, path = [(it, p) for p in paths if isinstance(it := found_at(p), ModuleType)][-1]
        taken = modules.setdefault(module, (path, set()))[1]
        taken.update(parts[path.count(".") + 1 :][:1])
    return dict(modules.values())


def names_of(path: str, taken: set[str]) -> dict[str, Any]:
    """The public names of a public module, with what they name; modules are left out."""
    from cpd._lazy import later

    module = found_at(path)
    listed = {*getattr(module, "__all__", ()), *later(module.__name__), *taken}
    found = {name: getattr(module, name, None) for name in sorted(listed) if name[0] != "_"}
    return {name: it for name, it in found.items() if it is not None and not inspect.ismodule(it)}


def is_mirror(name: str, it: Any) -> bool:
    """Returns whether a name is a function of `cpd.functional` that torch has, too."""
    path, _, last = name.rpartition(".")
    if path != "cpd.functional" or not inspect.isfunction(it):
        return False
    import torch

    tried = (last, f"_{last}", f"{last}_forward", f"{last.replace('rnn', 'rnn_tanh')}")
    return any(hasattr(home, one) for home in (torch, torch.nn.functional) for one in tried)


def is_ours(cls: type) -> bool:
    """Returns whether a class is defined in these packages."""
    return cls.__module__.split(".")[0] in ("cpd", "cpd_lab")


def members(cls: type) -> dict[str, Any]:
    """The public methods and properties of a class, as far as this package defines them."""
    named: dict[str, Any] = {}
    for base in filter(is_ours, reversed(cls.__mro__)):
        named.update(vars(base))
    kinds = (FunctionType, classmethod, staticmethod, property, functools.cached_property)
    return {n: it for n, it in named.items() if n[0] != "_" and isinstance(it, kinds)}


def attributes(cls: type) -> set[str]:
    """The public fields of a class that it annotates, such as those of a dataclass."""
    named = {n for base in cls.__mro__ if is_ours(base) for n in inspect.get_annotations(base)}
    return {name for name in named if name[0] != "_"} - members(cls).keys()


def parameters(function: Any) -> list[str]:
    """The names of a function's or a constructor's parameters, except `self` and those of type
    Never. Fields of a generated constructor are attributes; protocols' constructors and C++
    functions have none."""
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
    """The number of parameters of a function, or of a class's constructor and methods."""
    methods = [getattr(it, name) for name in members(it)] if inspect.isclass(it) else []
    return sum(len(parameters(one)) for one in (it, *methods))


def actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options and arguments of a command and of its subcommands; `--help` is left out."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in dict.fromkeys(action.choices.values()):
                yield from actions(inner)
        elif not isinstance(action, argparse._HelpAction):
            yield action


def commands() -> dict[str, argparse.ArgumentParser]:
    """The parser of each command, by name."""
    from cpd.cli import build_parser

    subparsers = argparse._SubParsersAction
    (found,) = (one for one in build_parser()._actions if isinstance(one, subparsers))
    return dict(found.choices)


def spec_keys(names: dict[str, Any]) -> dict[str, list[str]]:
    """The keys of each public spec, and the options of each compressor."""
    last = {name.rpartition(".")[2]: it for name, it in names.items()}
    keys = {name: parameters(last[name]) for name in sorted(SPECS & last.keys())}
    from cpd.compress.table import compressors

    for name, row in compressors().items():
        keys[name] = re.findall(r"\b([a-z]\w*)=", row["options"])
    return keys


def grammars() -> list[str]:
    """The grammars whose readers exist, and those of options of the command line."""
    found = [name for name, reader in GRAMMARS.items() if found_at(reader) is not None]
    types = {action.type for one in commands().values() for action in actions(one)}
    kinds = [kind for kind in types - PLAIN if inspect.isfunction(kind)]
    return [*found, *sorted(f"option: {kind.__name__.strip('_')}" for kind in kinds)]


def surface() -> dict[str, Any]:
    """Counts the package's surface: `counts`, what is counted `apart`, and the `names`."""
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
    """The last parts of names that mean different things in different public modules."""
    meant: dict[str, int] = {}
    pairs = [(name.rpartition(".")[2], id(it)) for name, it in names.items()]
    return {last for last, it in pairs if meant.setdefault(last, it) != it}


def hiding(names: dict[str, Any]) -> list[str]:
    """The names of functions and classes that a module of the package has, too."""
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
