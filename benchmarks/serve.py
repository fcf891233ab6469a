# SPDX-License-Identifier: Apache-2.0
"""Measures rows of a source tree by that tree's own benchmarks, on request (against.py).

    serve.py TREE [ARGUMENTS OF run.py]    reads requests, one on each line: a row's name, or an
                                           empty line for every selected row once. Replies with the
                                           rows, one JSON object on each line, and an empty line.
    serve.py TREE --sass                   prints the instruction counts of tests/.../test_sass.py
                                           as JSON, or {"skipped": reason}.

The Python that runs this file must be the tree's own. The tree may be an older version than this
file, so this file uses only run.parse, selection.Selection and measure.all_rows of the tree.
"""

from __future__ import annotations

import glob
import json
import os
import sys
from argparse import Namespace
from pathlib import Path


def serve(tree: Path, arguments: list[str]) -> None:
    """Reads requests from standard input and answers them, until standard input ends."""
    # Modules print to standard output, and programs read standard input. Neither may mix with the
    # requests and replies, so both streams are redirected.
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.path[0] = str(tree / "benchmarks")
    import measure
    import run
    import selection

    options = run.parse(arguments)
    for line in requests:
        name = line.rstrip("\n")
        if name:
            pattern = selection.Selection((glob.escape(name),))
            asked = Namespace(**(vars(options) | {"selection": pattern}))
        else:
            asked = Namespace(**(vars(options) | {"repeats": 1}))
        for row in measure.all_rows(tree / "build/release/benchmarks", asked):
            print(json.dumps(row), file=replies)
            if row["name"] == name:
                break  # before the programs and modules that follow, and torch, are loaded
        print(file=replies)


def sass_counts(tree: Path) -> dict[str, float] | dict[str, str]:
    """Counts the GPU instructions for each element in the hot loops of the tree's CUDA kernels.

    The tree's own tests/python/project/test_sass.py lists these loops. Returns a count for each
    loop's name, or {"skipped": reason} if nothing can be counted."""
    sys.path[0] = str(tree / "tests/python/project")
    try:
        import pytest

        import test_sass
    except ImportError as error:
        return {"skipped": str(error)}
    try:
        library, cuobjdump = test_sass._library(), test_sass._cuobjdump()
    except pytest.skip.Exception as reason:
        return {"skipped": str(reason)}
    figures = test_sass.FIGURES
    architecture = test_sass._ARCHITECTURE
    kernel_names = [figure.kernel for figure in figures.values()]
    kernels = test_sass.sass.kernels(library, cuobjdump, architecture, kernel_names)
    if not kernels:
        return {"skipped": f"CPD was not built for {architecture}"}
    return {name: round(figure.of(kernels), 3) for name, figure in figures.items()}


def main() -> None:
    tree, *arguments = sys.argv[1:]
    if arguments == ["--sass"]:
        print(json.dumps(sass_counts(Path(tree))))
    else:
        serve(Path(tree), arguments)


if __name__ == "__main__":
    main()
