# SPDX-License-Identifier: Apache-2.0
"""`cpd completion`: prints a script with which a shell completes commands, options and names."""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cpd.cli import options as opt

SHELLS = ("bash", "zsh", "tcsh", "fish")


def register(commands: opt.Commands, whole: argparse.ArgumentParser) -> None:
    """Adds the command `completion`, which completes the command lines of the parser `whole`."""
    opt.command(commands, "completion", lambda options: _run(whole, options), Options)


@dataclass
class Options:
    """Print a script that completes commands in a shell.

    Prints a script with which a shell completes commands, options, choices, files and the names of
    recipes, formats, codecs and matrix units. Needs the package shtab.

      bash   cpd completion bash > ~/.local/share/bash-completion/completions/cpd
      zsh    cpd completion zsh > ~/.zfunc/_cpd   (fpath+=~/.zfunc before compinit)
      tcsh   cpd completion tcsh >> ~/.cshrc
      fish   cpd completion fish > ~/.config/fish/completions/cpd.fish
    """

    shell: str = opt.argument(", ".join(SHELLS), choices=SHELLS, metavar="SHELL")


def _run(parser: argparse.ArgumentParser, options: Options) -> int:
    import shtab

    names = _names()
    for action in _actions(parser):
        if action.dest in names:
            action.choices = names[action.dest]
        elif action.type is Path:
            kind = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
            action.complete = kind  # type: ignore[attr-defined]
    print(shtab.complete(parser, options.shell))
    return 0


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Yields the options and arguments of a parser and of all its commands."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
        else:
            yield action


def _names() -> dict[str, tuple[str, ...]]:
    """Returns the names that a shell suggests for each argument. Other values are also valid."""
    from cpd.cli.scaled import SOURCES
    from cpd.cli.show import COMMON
    from cpd.compress.table import compressors
    from cpd.nn.ready import READY
    from cpd.numeric.accumulator import Accumulator

    recipes, units, codecs = tuple(READY), tuple(Accumulator.named()), tuple(compressors())
    formats = (*COMMON, *SOURCES)
    return {
        "accumulator": units,
        "accumulators": units,
        "codec": codecs,
        "compare": formats,
        "recipe": recipes,
        "reduce": (*formats, *codecs),
        "things": tuple(dict.fromkeys((*formats, *units, *codecs, *recipes))),
    }
