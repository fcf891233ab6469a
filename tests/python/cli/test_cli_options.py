# SPDX-License-Identifier: Apache-2.0
"""Tests options that several commands share: each has one definition, one help text and one syntax
for lists."""

from __future__ import annotations

import argparse
import collections
import json
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest

import cpd
from cpd.cli import build_parser, main
from cpd.cli import options as opt
from cpd.cli.options import integers, texts

OWN = {"--a", "--b", "--c", "-h", "--help"}
"""Options that may take another kind of value in each command: the operands of a formula such as
a * b + c, and help."""


def commands() -> dict[str, argparse.ArgumentParser]:
    """Returns the parser of each command and of each action of `cpd study`, by name."""
    (found,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    made = dict(found.choices)
    for action in made["study"]._actions:
        if isinstance(action, argparse._SubParsersAction):
            made |= {f"study {name}": one for name, one in action.choices.items()}
    return made


def options() -> list[tuple[str, argparse.Action]]:
    """Returns the options and arguments of all commands, each with its command."""
    return [(name, one) for name, parser in commands().items() for one in parser._actions]


def test_every_option_says_what_it_does() -> None:
    for command, action in options():
        if isinstance(action, argparse._SubParsersAction):
            continue
        assert len(action.help or "") > 10, (command, action.dest)
        assert not action.help.endswith("."), (command, action.dest)


def test_every_default_is_told() -> None:
    """The help of an option states the default, unless the default is None or False."""
    quiet = (None, False, argparse.SUPPRESS, [])
    told = [(c, one) for c, one in options() if one.default not in quiet and one.nargs != 0]
    assert len(told) > 10
    for command, action in told:
        shown = f"{action.default:g}" if isinstance(action.default, float) else str(action.default)
        assert f"default {shown}" in str(action.help), (command, action.dest)


def test_values_of_one_word_are_told() -> None:
    chosen = [(c, one) for c, one in options() if one.choices and one.metavar is not None]
    chosen = [(c, one) for c, one in chosen if not isinstance(one, argparse._SubParsersAction)]
    assert chosen
    for command, action in chosen:
        told = any(
            all(str(c) in str(said) for c in action.choices)
            for said in (action.metavar, action.help)
        )
        assert told, (command, action.dest)


@pytest.mark.parametrize("name", ["--json", "--csv", "--seed", "--gradients", "--round"])
def test_shared_options_have_one_help(name: str) -> None:
    """An option that several commands share has the same help text, except for the default after
    the last semicolon."""
    helps = {
        str(action.help).rpartition("; default")[0] or str(action.help)
        for _, action in options()
        if name in action.option_strings
    }
    assert len(helps) == 1, helps


def test_one_name_has_one_metavar() -> None:
    """An option has the same kind of value in all commands. A metavar with `,…` means a
    comma-separated list of such values."""
    metavars: dict[str, set[str]] = collections.defaultdict(set)
    for _, action in options():
        for flag in action.option_strings:
            if isinstance(action.metavar, str) and flag not in OWN:
                metavars[flag].add(action.metavar.removesuffix(",…"))
    several = {name: found for name, found in metavars.items() if len(found) > 1}
    assert several == {"-o": {"DIR", "FILE"}, "--out": {"DIR", "FILE"}}


@pytest.mark.parametrize("command", ["", *commands()])
def test_help_in_80_columns(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the help, no line is wider than the window, and no line breaks within a word or at a
    hyphen."""
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match=r"^0$"):
        main([*command.split(), "--help"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"usage: cpd {command}".rstrip())
    for line in lines:
        assert len(line) <= 80, line
        assert not re.search(r"\w-$", line), line


def examples() -> list[list[str]]:
    """Returns the example commands of the help texts, without shell syntax that processes their
    output."""
    shown = [re.findall(r"^  (cpd .*)", str(one.description), re.M) for one in commands().values()]
    lines = [line.partition("   ")[0] for lines in shown for line in lines]
    parts = [part for line in lines for part in re.split(r" && | > ", line)]
    return [shlex.split(part)[1:] for part in parts if part.startswith("cpd ")]


def test_examples_of_the_help(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parser accepts all example commands, and the examples of `cpd show` run."""
    monkeypatch.chdir(tmp_path)
    Path("mine.toml").write_text(cpd.Recipe("nvfp4").to_toml())
    assert len(examples()) > 20
    for words in examples():
        build_parser().parse_args(words)
        assert words[0] != "show" or main(words) == 0, (words, capsys.readouterr().err)


@dataclass
class Part:
    """A group of options, as a dataclass."""

    seeds: int = opt.option("the number of seeds", 4)
    rate: float | None = opt.option("a rate", absent="the machine's", choices=(0.5, 1.0))
    flags: bool = opt.option("no flags", True)


@dataclass
class Whole:
    """The options of a command, as a dataclass."""

    files: list[Path] = opt.argument("files", nargs="*", metavar="FILE")
    out: Path | None = opt.option("a folder", flags=("-o", "--out"), metavar="DIR")
    any_nan: bool = opt.option("any NaN", False)
    part: Part = opt.group(Part, "the part", exclusive=True)


def read(*words: str) -> Whole:
    parser = argparse.ArgumentParser()
    opt.add_options(parser, Whole)
    return opt.options_of(Whole, parser.parse_args(words))


def test_a_dataclass_of_options() -> None:
    """A dataclass defines a command's flags, types and defaults. The command line is read into an
    instance."""
    options = read()
    assert options == Whole(files=[])
    assert opt.changed(options.part) == {}
    options = read("a", "b", "-o", "c", "--any-nan", "--no-flags")
    assert options == Whole([Path("a"), Path("b")], Path("c"), True, Part(flags=False))
    assert opt.changed(options.part) == {"flags": "--no-flags"}
    assert opt.changed(options) == {"out": "--out", "any_nan": "--any-nan"}
    assert vars(opt.flat(options)) == {
        "files": options.files,
        "out": options.out,
        "any_nan": True,
        "seeds": 4,
        "rate": None,
        "flags": False,
    }
    assert read("--seeds", "7").part == Part(seeds=7)


def test_the_help_of_a_dataclass() -> None:
    parser = argparse.ArgumentParser()
    opt.add_options(parser, Whole)
    told = " ".join(parser.format_help().split())
    for words in (
        "the part: --seeds N the number of seeds; default 4",
        "--rate {0.5,1.0} a rate; default: the machine's",
        "--no-flags no flags",
        "-o DIR, --out DIR a folder; default: none",
    ):
        assert words in told


@pytest.mark.parametrize("words", [["--seeds", "x"], ["--seeds", "1", "--rate", "1"]])
def test_options_that_are_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"^2$"):
        read(*words)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("fp32", ["fp32"]),
        ("(4,3), e5m2", ["(4,3)", "e5m2"]),
        ("a 'b, c' d,e", ["a 'b, c' d", "e"]),
        ("e[2-3]m[1,3] aps", ["e2m1 aps", "e2m3 aps", "e3m1 aps", "e3m3 aps"]),
        ("e4m3 result='(5,2)', bf16", ["e4m3 result='(5,2)'", "bf16"]),
        (
            "e4m3 accumulator='e6m[8-9] kahan',fp32",
            ["e4m3 accumulator='e6m8 kahan'", "e4m3 accumulator='e6m9 kahan'", "fp32"],
        ),
        ('e4m3 accumulator="fixed<32,12>"', ['e4m3 accumulator="fixed<32,12>"']),
    ],
)
def test_lists(text: str, found: list[str]) -> None:
    assert texts(text) == found


@pytest.mark.parametrize("text", ["", "a,,b", "e[2", "e]2[", "e[3-2]", "e[x]", "e[0-9999]m[0-9]"])
def test_lists_that_are_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"the list|pattern"):
        texts(text)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("[2-4],8", [2, 3, 4, 8]),
        ("4", [4]),
        ("4,8,…,65536", [2**k for k in range(2, 17)]),
        ("4,8,...,40", [4, 8, 16, 32, 40]),
        ("8,12,...,24", [8, 12, 16, 20, 24]),
        *((text, None) for text in ("x", "4,0", "1.5", "4,…,8", "…", "1, 2, …, 4, 5")),
    ],
)
def test_lists_of_integers(text: str, numbers: list[int] | None) -> None:
    if numbers is None:
        with pytest.raises(argparse.ArgumentTypeError, match=r"must be|stands between"):
            integers(text)
    else:
        assert integers(text) == numbers


# ---- cpd show --------------------------------------------------------------------------------


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["show", *words]) == 0
    return capsys.readouterr().out


def test_show_finds_what_a_name_is(capsys: pytest.CaptureFixture[str]) -> None:
    names = ["e4m3fn", "h100-fp8", "qsgd bits=2", "mxfp4", "te-delayed"]
    rows = json.loads(shown(capsys, *names, "--json"))
    assert [row.get("name", row.get("text")) for row in rows[:2]] == names[:2]
    assert (rows[1]["block"], rows[1]["fraction_bits"]) == (32, 13)
    assert rows[2]["text"] == "qsgd bits=2 bucket=512"
    assert rows[3]["element"] == "e2m1"
    assert cpd.Recipe(rows[4]) == cpd.Recipe("te-delayed")
    out = shown(capsys, *names)
    places = [out.index(word) for word in ("e4m3fn", "e2m1", "toward_zero", "qsgd", "forward =")]
    assert places == sorted(places)


def test_a_name_of_two_things(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "nvfp4"]) == 0
    told = capsys.readouterr()
    assert "Second level" in told.out
    assert told.err == "note: nvfp4 is a recipe, too: cpd show --recipes nvfp4\n"
    assert shown(capsys, "nvfp4", "--recipes") == cpd.Recipe("nvfp4").to_toml()


def test_codecs(capsys: pytest.CaptureFixture[str]) -> None:
    from cpd.compress.table import compressors

    out = shown(capsys, "--codecs")
    rows = json.loads(shown(capsys, "--codecs", "--json"))
    assert [row["name"] for row in rows] == [*compressors()]
    for name, one in compressors().items():
        assert f" {name} " in out
        said = " ".join(shown(capsys, "--codecs", name).split())
        for part in (one["summary"], f"written {name} {one['options']}", one["source"]):
            assert " ".join(part.split()) in said
