# SPDX-License-Identifier: Apache-2.0
"""Tests that docstrings of public functions describe every parameter, default and result."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "testing"))

import surface

pytest.importorskip("torch")

SECTIONS = r"^(Args|Attributes|Returns|Yields|Raises):\n((?: .*\n|\n)*)"
"""A regular expression for one section of a docstring: its head and its indented lines."""


@cache
def callables() -> dict[str, tuple[Any, str]]:
    """Returns the public functions, constructors and methods with their docstrings."""
    found: dict[str, tuple[Any, str]] = {}
    for name in surface.surface()["names"]:
        thing = surface.found_at(name)
        if inspect.isfunction(thing):
            found[name] = thing, inspect.getdoc(thing) or ""
        elif inspect.isclass(thing) and surface.is_ours(thing):
            docs = (inspect.getdoc(thing), inspect.getdoc(thing.__init__))
            found[f"{name}()"] = thing, "\n".join(filter(None, docs))
            methods = {one: getattr(thing, one) for one in surface.members(thing)}
            for one, method in methods.items():
                if callable(method):
                    found[f"{name}.{one}"] = method, inspect.getdoc(method) or ""
    return found


def sections(doc: str) -> dict[str, str]:
    """Returns the sections of a Google-style docstring by their names."""
    return dict(re.findall(SECTIONS, f"{doc}\n", re.MULTILINE))


def listed(text: str) -> Iterator[str]:
    """Yields the names that the entries of a section describe, such as parameters under Args."""
    for line in re.findall(r"^ {4}([\w*][^:\n]*):", text, re.MULTILINE):
        yield from (one.strip(" *`") for one in re.sub(r"\(.*?\)", "", line).split(","))


def test_every_parameter_is_described() -> None:
    missing = {
        name: left
        for name, (it, doc) in callables().items()
        if (left := set(surface.parameters(it)) - set(listed(sections(doc).get("Args", ""))))
    }
    assert not missing


def test_what_is_described_is_a_parameter() -> None:
    wrong = {
        name: more
        for name, (it, doc) in callables().items()
        if (given := surface.parameters(it))
        and (more := set(listed(sections(doc).get("Args", ""))) - set(given))
    }
    assert not wrong


def test_every_result_is_described() -> None:
    """A function's docstring describes the result in a section or a summary line ("Returns …")."""
    silent = [
        name
        for name, (it, doc) in callables().items()
        if not inspect.isclass(it)
        and inspect.signature(it).return_annotation not in (None, "None", "Never")
        and not sections(doc).keys() & {"Returns", "Yields"}
        and not re.match(r"(Return|Yield|Give)s? |An? |The ", doc)
    ]
    assert not silent


def test_defaults_are_as_described() -> None:
    """If a docstring states a parameter's default, the parameter has this default."""
    wrong = {}
    for name, (it, doc) in callables().items():
        given = inspect.signature(it).parameters if surface.parameters(it) else {}
        for parameter, text in entries(sections(doc).get("Args", "")):
            if (
                parameter in given
                and given[parameter].default is not inspect.Parameter.empty
                and (told := described_default(text))
                and not agrees(told, given[parameter].default)
            ):
                wrong[f"{name}: {parameter}"] = told, given[parameter].default
    assert not wrong


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yields the names and the texts of a section's entries."""
    for names, entry in re.findall(
        r"^ {4}([\w*][^:\n]*): ((?:.*\n(?: {5}|$)?)+?)(?=^ {4}\S|\Z)", text, re.MULTILINE
    ):
        yield from ((name, " ".join(entry.split())) for name in listed(f"    {names}: x"))


def described_default(text: str) -> str:
    """Returns the number, truth value or quoted word that an entry states as default, or ""."""
    word = r'(-?\d[\d,.^-]*|True|False|"[\w-]+"|`"?[\w-]+"?`)'
    found = re.search(rf"{word} \(default\b", text) or re.search(rf"[Dd]efault:? {word}", text)
    return found[1].strip('`".,').replace(",", "") if found else ""


def agrees(told: str, default: Any) -> bool:
    """Returns True if `told`, the default in a docstring, is the parameter's default. Any text may
    stand for the defaults None, "" and "same"."""
    if default is None or default in ("", "same"):
        return True
    if isinstance(default, (bool, str)):
        return told == str(default)
    base, _, power = told.partition("^")
    return float(base) ** float(power or 1) == default


def test_every_option_has_its_default() -> None:
    """The help of each option states the default, or the behavior without the option."""
    silent = [
        (name, action.option_strings)
        for name, parser in surface.commands().items()
        for action in surface.actions(parser)
        if action.option_strings and action.nargs != 0 and not action.required
        if "default" not in (action.help or "")
    ]
    assert not silent


def test_sections_and_what_they_list() -> None:
    args = "Args:\n    x, y: What\n        to add: both.\n    *rest (int): More.\n"
    doc = f"Adds.\n\n{args}\nRaises:\n    A: b."
    assert [*sections(doc)] == ["Args", "Raises"]
    assert [*listed(sections(doc)["Args"])] == ["x", "y", "rest"]
