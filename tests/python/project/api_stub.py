#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the package with the stub of its next API, `python/api/cpd`.

    api_stub.py [--store]

Prints the names that agree with the stub but are still listed in `api_pending.toml`, and the names
that disagree without being listed. --store removes the former from the list; it never adds names.
"""

from __future__ import annotations

import argparse
import ast
import functools
import importlib
import inspect
import json
import sys
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
STUB = ROOT / "python/api/cpd"
PENDING = Path(__file__).with_name("api_pending.toml")
APART = ("cpd.functional",)
"""The packages whose names are mirrors of torch and are counted apart."""

Parameter = tuple[str, str, str]
"""Name, kind and default (as `repr`, "" for none) of a parameter."""


class Item(NamedTuple):
    """A public name of the stub: a class, a function, a method, or an attribute."""

    name: str
    kind: str
    parameters: tuple[Parameter, ...] | None
    doc: str


# ---- the stub --------------------------------------------------------------------------------


def items(folder: Path = STUB) -> dict[str, Item]:
    """The items of all stubs by their dotted names; `Name()` is the constructor of a class."""
    found: dict[str, Item] = {}
    for path in sorted(folder.glob("*.pyi")):
        module = "cpd" if path.stem == "__init__" else f"cpd.{path.stem}"
        body = ast.parse(path.read_text()).body
        classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
        for node in body:
            if isinstance(node, ast.FunctionDef) and node.name[0] != "_":
                name = f"{module}.{node.name}"
                found[name] = Item(name, "function", parameters(node), doc(node))
            elif isinstance(node, ast.ClassDef) and node.name[0] != "_":
                name = f"{module}.{node.name}"
                found[name] = Item(name, "class", None, doc(node))
                bases = [b.id for b in node.bases if isinstance(b, ast.Name)]
                for base in (*(classes[b] for b in bases if b in classes), node):
                    found |= {item.name: item for item in members(name, base)}
    return found


def members(name: str, node: ast.ClassDef) -> list[Item]:
    """The constructor, the public methods and the attributes of a class."""
    found = []
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name):
            found.append(Item(f"{name}.{one.target.id}", "attribute", None, ""))
        elif isinstance(one, ast.FunctionDef) and one.name == "__init__":
            found.append(Item(f"{name}()", "constructor", parameters(one)[1:], ""))
        elif isinstance(one, ast.FunctionDef) and one.name[0] != "_":
            marks = {d.id for d in one.decorator_list if isinstance(d, ast.Name)}
            if "property" in marks:
                found.append(Item(f"{name}.{one.name}", "attribute", None, doc(one)))
            else:
                found.append(Item(f"{name}.{one.name}", "method", parameters(one)[1:], doc(one)))
    return found


def doc(node: ast.FunctionDef | ast.ClassDef) -> str:
    return ast.get_docstring(node) or ""


def parameters(node: ast.FunctionDef) -> tuple[Parameter, ...]:
    """The parameters of a function of a stub."""
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults: list[ast.expr | None] = [None] * (len(plain) - len(given.defaults))
    kinds = ["positional only"] * len(given.posonlyargs) + ["positional"] * len(given.args)
    rows = list(zip(plain, kinds, [*defaults, *given.defaults], strict=True))
    if given.vararg:
        rows.append((given.vararg, "*", None))
    rows += [(a, "keyword", d) for a, d in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    if given.kwarg:
        rows.append((given.kwarg, "**", None))
    return tuple((a.arg, kind, shown(default)) for a, kind, default in rows)


def shown(default: ast.expr | None) -> str:
    """A default as `repr` shows its value; `...` stands for a value that is no literal."""
    return "" if default is None else repr(ast.literal_eval(default))


# ---- the package -----------------------------------------------------------------------------

KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "positional only",
    inspect.Parameter.POSITIONAL_OR_KEYWORD: "positional",
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.KEYWORD_ONLY: "keyword",
    inspect.Parameter.VAR_KEYWORD: "**",
}


def signature(it: Any) -> tuple[Parameter, ...] | None:
    """The parameters of a function or class, or None where they cannot be known. Parameters of the
    type `Never` take no arguments: they exist for the errors of old calls."""
    try:
        given = inspect.signature(it).parameters.values()
    except (TypeError, ValueError):
        head = (it.__doc__ or "").partition("\n")[0]  # compiled: its doc begins with the signature
        return () if "() ->" in head else None
    kept = [p for p in given if str(p.annotation).rpartition(".")[2] != "Never"]
    return tuple((p.name, KINDS[p.kind], default(p)) for p in kept)


def default(parameter: inspect.Parameter) -> str:
    return "" if parameter.default is inspect.Parameter.empty else repr(parameter.default)


@functools.cache
def found_in_package(name: str) -> Any:
    """Returns the object of the package that a dotted name of the stub names, or None."""
    module, *rest = name.split(".")
    it = importlib.import_module(module)
    for part in rest:
        if inspect.ismodule(it) and not hasattr(it, part):
            return None
        it = inspect.getattr_static(it, part, None) if inspect.isclass(it) else getattr(it, part)
        if it is None:
            return None
    return it.__func__ if isinstance(it, (classmethod, staticmethod)) else it


def agrees(item: Item) -> bool:
    """Returns whether the package has the item as the stub says."""
    if item.kind == "attribute":
        owner, _, name = item.name.rpartition(".")
        cls = found_in_package(owner)
        return inspect.isclass(cls) and has_attribute(cls, name)
    it = found_in_package(item.name.removesuffix("()"))
    if item.kind in ("class", "constructor") and not inspect.isclass(it):
        return False
    if item.kind == "class":
        return True
    if item.kind == "function" and (inspect.isclass(it) or not callable(it)):
        return False
    if it is None or not callable(it):
        return False
    given = signature(it)
    if item.kind == "method" and given:
        given = given[1:]  # self or cls
    return given is not None and same(item.parameters or (), given)


def same(stub: tuple[Parameter, ...], package: tuple[Parameter, ...]) -> bool:
    """Returns whether two signatures agree. A default `...` of the stub stands for any value."""
    return len(stub) == len(package) and all(
        a[:2] == b[:2] and (a[2] == b[2] or (a[2] == "Ellipsis" and b[2] != ""))
        for a, b in zip(stub, package, strict=True)
    )


def has_attribute(cls: type, name: str) -> bool:
    """Returns whether a class annotates a name, defines it, or documents it under "Attributes:"."""
    annotated = any(name in inspect.get_annotations(base) for base in cls.__mro__)
    _, _, listed = (cls.__doc__ or "").partition("Attributes:")
    named = any(line.strip().startswith(f"{name}:") for line in listed.splitlines())
    return annotated or named or hasattr(cls, name)


def differing() -> list[str]:
    """The items on which the package and the stub differ."""
    return [name for name, item in items().items() if not agrees(item)]


def public_names() -> list[str]:
    """The public names of the stub but for the packages that are counted apart."""
    kinds = ("class", "function")
    return [n for n, it in items().items() if it.kind in kinds and not n.startswith(APART)]


# ---- the list --------------------------------------------------------------------------------


def pending() -> list[str]:
    names: list[str] = tomllib.loads(PENDING.read_text())["pending"]
    return names


def store(names: list[str]) -> None:
    lines = "".join(f"  {json.dumps(name)},\n" for name in sorted(names))
    PENDING.write_text(f"{HEAD}pending = [\n{lines}]\n")


HEAD = """\
# SPDX-License-Identifier: Apache-2.0
# Names of python/api/cpd that the package does not have, or has with another signature. `Name()` is
# a constructor. The list may only shrink: `tests/python/project/api_stub.py --store`.
"""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Compares the package with its next API.")
    parser.add_argument("--store", action="store_true", help="remove what agrees from the list")
    options = parser.parse_args(arguments)
    listed, differ = pending(), differing()
    done = sorted(set(listed) - set(differ))
    new = sorted(set(differ) - set(listed))
    print("\n".join([*(f"agrees: {name}" for name in done), *(f"differs: {name}" for name in new)]))
    if options.store:
        store([name for name in listed if name not in done])
    return 1 if new or (done and not options.store) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
