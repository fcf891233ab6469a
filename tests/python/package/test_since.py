# SPDX-License-Identifier: Apache-2.0
"""Tests that names of version 0.7 raise an error that names the replacement."""

from __future__ import annotations

import importlib
import inspect
import operator
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[2] / "testing"))

import surface

import cpd
from cpd._lazy import later
from cpd._since import (
    COMMANDS,
    FLAGS,
    GONE,
    IN_TEXT,
    KEYWORDS,
    MEMBERS,
    MODULES,
    MOVED,
    TO_CALL,
    gone_flag,
    missing,
)
from patience import scaled

EACH = [(module, name, new) for module, names in GONE.items() for name, new in names.items()]


def imported(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "cpd":
            raise
        pytest.skip(f"needs {error.name}")


@pytest.mark.parametrize(("module", "name", "new"), EACH)
def test_names_that_are_gone(module: str, name: str, new: str) -> None:
    found = imported(module)
    with pytest.raises(AttributeError) as raised:
        getattr(found, name)
    told = f"use {new}" if new else "it was internal, and nothing takes its place"
    assert str(raised.value) == f"{module}.{name} is gone: {told}"
    assert name not in {*getattr(found, "__all__", ()), *dir(found)}


@pytest.mark.parametrize("new", sorted({new for _, _, new in EACH if new.startswith("cpd.")}))
def test_what_takes_their_place(new: str) -> None:
    path, arguments = re.fullmatch(r"cpd\.([\w.]+)(\(.*\))?", new).groups()
    found = imported("cpd")
    for part in path.split("."):
        found = getattr(found, part)
    if keyword := re.search(r"(\w+)=…", arguments or ""):
        assert keyword[1] in inspect.signature(found).parameters
    if path == "Codec" and (text := re.search(r'"(\w+)"', arguments or "")):
        assert text[1] in imported("cpd").Codec.named()
    *modules, name = [part for part in path.split(".") if part not in ("from_bytes", "named")]
    public = imported(".".join(["cpd", *modules]))
    assert name in {*public.__all__, *later(public.__name__)}


@pytest.mark.parametrize("old", MOVED)
@pytest.mark.parametrize("statement", ["import {}", "from {} import name", "from cpd import {}"])
def test_packages_that_are_elsewhere(old: str, statement: str) -> None:
    named = old.removeprefix("cpd.") if "cpd" in statement else old
    with pytest.raises(ModuleNotFoundError) as raised:
        exec(statement.format(named))
    assert str(raised.value) == f"{old} is gone: use {MOVED[old]}"
    for name in re.findall(r"cpd[\w.]+", MOVED[old]):
        imported(name)


GONE_MEMBERS = [(cls, old, new) for cls, names in MEMBERS.items() for old, new in names.items()]


@pytest.mark.parametrize(("cls", "old", "new"), GONE_MEMBERS)
def test_members_that_are_gone(cls: str, old: str, new: str) -> None:
    module, _, name = cls.rpartition(".")
    found = getattr(imported(module), name)
    told = f"use {new}" if new else "it was internal, and nothing takes its place"
    for owner in (found, object.__new__(found)):
        with pytest.raises(AttributeError) as raised:
            getattr(owner, old)
        assert str(raised.value) == f"{cls}.{old} is gone: {told}"


@pytest.mark.parametrize(("command", "new"), COMMANDS.items())
def test_commands_that_are_gone(command: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ended([command, "e4m3"]) == 2
    told = capsys.readouterr()
    assert told.err == f"cpd: error: cpd {command} is gone: use {new} (see cpd --help)\n"
    assert told.out == ""
    assert {command, *COMMANDS}.isdisjoint(commands())


@pytest.mark.parametrize(("command", "flag"), [(c, f) for c, flags in FLAGS.items() for f in flags])
@pytest.mark.parametrize("form", ["{}", "{}=x"])
def test_flags_that_are_gone(
    command: str, flag: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Removed flags are refused, even if argparse would accept them as abbreviations."""
    assert ended([*command.split(), form.format(flag)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    told = f"{flag} is gone: use {FLAGS[command][flag]}"
    assert line == f"cpd {command}: error: {told} (see cpd {command} --help)"
    known = commands()[command]._option_string_actions
    assert flag not in known
    assert set(re.findall(r"--[\w-]+", FLAGS[command][flag])) <= known.keys()


PAGE = (Path(__file__).parents[3] / "python/docs/from_07.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"## {title}\n")[2].partition("\n## ")[0]


def words_of(text: str) -> set[str]:
    """Returns the words within backticks."""
    return {word for code in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", code)}


def test_the_page_has_every_flag_and_command() -> None:
    table = section("Flags")
    words = {word for flags in FLAGS.values() for word in flags} | set(COMMANDS)
    assert {word for word in words if not re.search(rf"{word}(?![\w-])", table)} == set()


def test_the_page_has_every_name() -> None:
    rows = set(re.findall(r"(?m)^\| `([\w.]+)` \|", section("Names")))
    paths = {f"{module}.{name}".removeprefix("cpd.") for module, name, _ in EACH}
    paths |= {module.removeprefix("cpd.") for module in MOVED}
    assert {path for path in paths if not {path, path.removeprefix("parallel.")} & rows} == set()


def test_the_page_has_every_keyword_and_member() -> None:
    old = {line.split("|")[1] for line in section("Keywords").splitlines() if line[:3] == "| `"}
    keywords = {word for words in KEYWORDS.values() for word in words}
    assert keywords - words_of(" ".join(old)) == set()
    members = {old for _, old, _ in GONE_MEMBERS}
    assert members - words_of(section("Names") + section("Keywords")) == set()


NAMES = {name.removeprefix("cpd.") for name in surface.surface()["names"]}
ROWS = {
    match[1]: (match[2], match[3], match[4])
    for match in re.finditer(r"(?m)^\| `([\w.]+)` \| (\w+) \| (.*) \| (.*) \|$", PAGE)
}
"""The rows of the table of names: what happened to each name, its replacement, and the reason."""


def first_cells(table: str) -> str:
    return " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("| `"))


@pytest.mark.parametrize("name", ROWS)
def test_a_row_is_true(name: str) -> None:
    what, now, why = ROWS[name]
    if what in ("stays", "changed"):
        assert name in NAMES
        assert what == "stays" or (now and why)
    elif what == "renamed":
        assert now.strip("`").removeprefix("cpd.") in NAMES
        assert name not in NAMES
    else:
        assert (what, bool(now), bool(why)) == ("gone", True, True)
        assert name not in NAMES


def test_every_name_has_its_row() -> None:
    """The page's table has every name of version 0.7; its list of new names has all others."""
    new = set(re.findall(r"`([\w.]+)`", first_cells(section("New names"))))
    renamed = {
        now.strip("`").removeprefix("cpd.") for what, now, _ in ROWS.values() if what[:2] == "re"
    }
    old = {name for name, (what, *_) in ROWS.items() if what in ("stays", "changed")}
    assert NAMES - old - renamed <= new <= NAMES - old


def test_members_of_the_page_are_gone() -> None:
    """The members that the page from_07.md lists as removed do not exist any more.

    The page's list names `Class.member`, and then further members of the same class by their names
    alone.
    """
    text = PAGE.partition("Members that are gone:")[2].partition("\n\n")[0]
    classes = {name.rpartition(".")[2]: surface.found_at(f"cpd.{name}") for name in NAMES}
    owner, listed = "", []
    for word in re.findall(r"`([\w.]+)`", text):
        cls, _, member = word.rpartition(".")
        owner = cls or owner
        listed += [(owner, member)] if owner in classes else []
    assert len(listed) > 30
    specs = [(name, "parse") for name in sorted(surface.SPECS)]
    for name, member in (*listed, *specs):
        cls = classes[name]
        if surface.is_ours(cls):
            assert member not in surface.members(cls).keys() | surface.attributes(cls), name


def test_names_of_cpp() -> None:
    headers = "".join(path.read_text() for path in (surface.ROOT / "cpd").rglob("*.h"))
    rows = [line.split("|")[1:3] for line in section("C++").splitlines() if line[:3] == "| `"]
    old, new = ({w for row in rows for w in re.findall(r"`(\w+)", row[i])} for i in (0, 1))
    assert {name for name in old if re.search(rf"\b{name}\b", headers)} == set()
    assert {name for name in new if not re.search(rf"\b{name}\b", headers)} == set()
    assert len(old) > 8


def test_a_word_behind_two_dashes_is_no_flag() -> None:
    assert gone_flag("probe", ["--", "./unit", "--acc"]) == ""
    assert gone_flag("probe", ["--acc", "--"]) == "--acc is gone: use --accumulator TEXT"
    assert gone_flag("study", ["--acc"]) == ""


def ended(words: list[str]) -> int:
    """Returns the status with which a command line ends."""
    from cpd.cli import main

    try:
        return main(words)
    except SystemExit as stop:
        return int(stop.code or 0)


def commands() -> dict[str, Any]:
    """Returns the parsers of all commands and of their actions, by name."""
    import argparse

    from cpd.cli import build_parser

    found: dict[str, Any] = {}
    waiting = [("", build_parser())]
    while waiting:
        name, parser = waiting.pop()
        found[name] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += [(f"{name} {n}".strip(), one) for n, one in action.choices.items()]
    return found


def test_names_that_never_were() -> None:
    for module in GONE:
        told = f"module '{module}' has no attribute 'powersgd'"
        assert str(missing(module, "powersgd")) == told
        with pytest.raises(AttributeError, match=re.escape(told)):
            imported(module).powersgd  # noqa: B018


OLD = [(name, old, new) for name, names in KEYWORDS.items() for old, new in names.items()]


@pytest.mark.parametrize(("name", "old", "new"), OLD)
def test_keywords_that_are_gone(name: str, old: str, new: str) -> None:
    """A removed keyword raises an error that names the new keyword or the text that replaces it."""
    head, _, method = name.partition(".")
    home = next(found for found in map(imported, PACKAGES) if hasattr(found, head))
    function = getattr(getattr(home, head), method) if method else getattr(home, head)
    parameters = inspect.signature(function).parameters.values()
    required = [None for one in parameters if one.default is one.empty]
    is_checked = any(hasattr(one, "__wrapped__") for one in (function, function.__init__))
    with pytest.raises(TypeError) as raised:
        function(*([] if is_checked else required), **{old: "up"})
    if new == IN_TEXT:
        told = rf'{name}\(\) takes {old}= in its format: "(None|fp32) {old}=up"'
        assert re.fullmatch(told, str(raised.value))
    elif new.startswith(TO_CALL):
        call = re.fullmatch(rf"{TO_CALL}(?:cpd\.)?([\w.]+)\(…, {old}=…\)", new)[1]
        assert str(raised.value) == f"{name}() takes no {old}=: give it to {new}"
        assert old not in {one.name for one in parameters}
        assert old in inspect.signature(operator.attrgetter(call)(cpd)).parameters
    elif " " in new:
        assert str(raised.value) == f"{name}() takes {new} in place of {old}="
        assert set(re.findall(r"(\w+)=", new)) <= inspect.signature(function).parameters.keys()
    else:
        assert str(raised.value) == f"{name}() takes {new}= in place of {old}="
        assert new in inspect.signature(function).parameters


def test_arguments_of_0_7_in_calls() -> None:
    x = np.ones(2, np.float32)
    to = cpd.Format("e4m3fn", bias=11)
    mistakes = [
        (lambda: cpd.cast(x, "e4m3", "up"), 'rounding= in its format: "e4m3 rounding=up"'),
        (
            lambda: cpd.add(x, x, to, "up", "saturate"),
            'rounding= and overflow= in its format: "e4m3fn:bias=11 rounding=up overflow=saturate"',
        ),
        (
            lambda: cpd.encode(x, f="e2m1", rounding="stochastic", random_bits=3),
            'rounding= and random_bits= in its format: "e2m1 rounding=stochastic random_bits=3"',
        ),
        (lambda: cpd.cast(x, f="e4m3"), "takes to= in place of f="),
        (lambda: cpd.cast(x, "e4m3", x), "takes all arguments after to= by keyword"),
        (lambda: cpd.cast(x, "e4m3", ulp=1), "got an unexpected keyword argument 'ulp'"),
        (lambda: cpd.cast(x), "cast() needs a format, such as to='e4m3fn'"),
        (lambda: cpd.sum(x), "sum() needs an accumulator, such as accumulator='fp32'"),
        (lambda: cpd.restore(ulp=1), "got an unexpected keyword argument 'ulp'"),
        (lambda: cpd.Scaled("e2m1", 16), "all else in it or by keyword: element, block"),
        (lambda: cpd.Codec("qsgd", bits=4, seed=3), "Codec() takes no seed=: give it to the call"),
    ]
    for call, told in mistakes:
        with pytest.raises(TypeError, match=re.escape(told)):
            call()


def test_checked_functions_name_new_keywords(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call with a keyword of 0.7 raises an error that names the new keyword.

    To get this error, a function or constructor only needs a row in the table KEYWORDS.
    """
    imported("torch")
    monkeypatch.setitem(KEYWORDS, "restore", {"net": "model"})
    monkeypatch.setitem(KEYWORDS, "Schedule", {"wire": "spec"})
    for call, told in (
        (lambda: cpd.restore(net=1), "restore() takes model= in place of net="),
        (lambda: cpd.Schedule(wire="e4m3"), "Schedule() takes spec= in place of wire="),
    ):
        with pytest.raises(TypeError, match=re.escape(told)):
            call()


PACKAGES = (
    "cpd",
    "cpd.comm",
    "cpd.compress",
    "cpd.hardware",
    "cpd.optim",
    "cpd.study",
    "cpd.track",
)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_public_name_hides_a_module(package: str) -> None:
    found = imported(package)
    folder = Path(found.__file__).parent
    files = {path.stem for path in folder.glob("*.py")} | {path.name for path in folder.iterdir()}
    public = {*found.__all__, *later(package)}
    objects = {name for name in public if not isinstance(getattr(found, name), ModuleType)}
    assert len(objects) > 1
    assert objects & files == set()


PICKLED = [
    ("cpd.compress.codec", "Codec", "Codec"),
    ("cpd.hardware.hardware_cost", "HardwareCost", "Gates"),
    ("cpd.hardware.probe.command", "Command", "Command"),
    ("cpd.hardware.probe.find", "Probed", "Probed"),
    ("cpd.hardware.replay", "Replay", "Replay"),
    ("cpd.hardware.vectors.checking", "Check", "VectorCheck"),
    ("cpd.hardware.vectors.vectors", "Vectors", "Vectors"),
]
"""Classes in pickles of CPD 0.7, as tuples: module and name in the pickle, and the present name."""


@pytest.mark.parametrize(("module", "name", "now"), PICKLED)
def test_pickles_of_0_7_find_their_classes(module: str, name: str, now: str) -> None:
    stored = f"c{module}\n{name}\n.".encode()  # as protocol 0 names a class
    program = f"import pickle; print(pickle.loads({stored!r}).__qualname__)"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(120)
    )
    assert (run.stdout, run.stderr) == (f"{now}\n", "")
    found = pickle.loads(stored)
    again = pickle.loads(pickle.dumps(found))
    assert again is found
    assert found.__module__ == MODULES.get(module, module)
