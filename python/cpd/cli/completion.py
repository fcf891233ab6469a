# SPDX-License-Identifier: Apache-2.0
"""`cpd completion`: what a shell needs to complete commands, options and names."""

import argparse
import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from cpd.cli.options import Commands, add_command

SHELLS = ("bash", "zsh", "tcsh", "fish")
_TEXT = """\
Prints a script with which a shell completes commands, options, choices, files and
the names of recipes, formats and matrix units. Needs the package shtab.

  bash   cpd completion bash > ~/.local/share/bash-completion/completions/cpd
  zsh    cpd completion zsh > ~/.zfunc/_cpd   (fpath+=~/.zfunc before compinit)
  tcsh   cpd completion tcsh >> ~/.cshrc
  fish   cpd completion fish > ~/.config/fish/completions/cpd.fish
"""


def register(commands: Commands, whole: argparse.ArgumentParser) -> None:
    """`whole`: the parser that is completed."""
    run = functools.partial(_run, whole)
    parser = add_command(commands, "completion", run, "completion for a shell", _TEXT)
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    import shtab

    names = _names()
    for command, action in _actions(parser):
        complete = _completer(shtab, command, action, names)
        if complete is not None:
            action.complete = complete  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(
    parser: argparse.ArgumentParser, command: str = ""
) -> Iterator[tuple[str, argparse.Action]]:
    """The arguments of all commands, each with its command's name."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from _actions(child, command or name)
        else:
            yield command, action


def _names() -> dict[str, tuple[str, ...]]:
    """Names that arguments take without being limited to them."""
    from cpd.cli.scaled import SOURCES
    from cpd.cli.show import COMMON
    from cpd.nn.ready import READY
    from cpd.numeric.accumulator import Accumulator

    recipes, units = tuple(READY), tuple(Accumulator.named())
    formats = (*COMMON, *SOURCES)
    return {
        "recipes": recipes,
        "formats": formats,
        "units": units,
        "names": tuple(dict.fromkeys((*formats, *units, *recipes))),
    }


_TAKEN = {
    ("show", "names"): "names",
    ("show", "compare"): "formats",
    ("train", "recipe"): "recipes",
    ("train", "reduce"): "formats",
    ("roundoff", "reduce"): "formats",
    ("replay", "accumulator"): "units",
    ("probe", "accumulator"): "units",
    ("vectors", "accumulator"): "units",
}
"""The names that an argument of a command takes."""


def _completer(
    shtab: Any, command: str, action: argparse.Action, names: dict[str, tuple[str, ...]]
) -> Any:
    """Returns what completes an argument; None: its choices, or nothing."""
    kind = _TAKEN.get((command, action.dest))
    if kind is not None:
        return _words(kind, names[kind])
    if action.type is Path:
        return shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
    return None


def _words(kind: str, words: Iterable[str]) -> dict[str, Any]:
    """These words, for each shell."""
    joined = " ".join(words)
    function = f"_cpd_{kind}"
    return {
        "bash": function,
        "zsh": f"({joined})",
        "tcsh": f"({joined})",
        "fish": f'"{joined}"',
        "preamble": {"bash": f'{function}() {{ compgen -W "{joined}" -- "$1"; }}'},
    }
