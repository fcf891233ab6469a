# SPDX-License-Identifier: Apache-2.0
"""Runs notebooks as their readers do, without Jupyter, and returns or stores their outputs.

python tests/testing/notebook.py examples/14_model.ipynb    stores the outputs in the file
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def run(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Runs a notebook. Returns it with the outputs of this run, and the names that its cells have
    defined."""
    notebook = json.loads(path.read_text())
    names: dict[str, Any] = {"__name__": "__main__"}
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for count, cell in enumerate(code, 1):
        cell["execution_count"] = count
        cell["outputs"] = outputs("".join(cell["source"]), names, count)
    return notebook, names


def outputs(source: str, names: dict[str, Any], count: int) -> list[dict[str, Any]]:
    """Runs a cell. Returns its printed output, and the value of its last line if that is an
    expression."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    found: list[dict[str, Any]] = []
    if printed.getvalue():
        found.append(
            {"name": "stdout", "output_type": "stream", "text": _lines(printed.getvalue())}
        )
    if value is not None:
        data = {"text/plain": _lines(repr(value))}
        about = {"execution_count": count, "metadata": {}, "output_type": "execute_result"}
        found.append({"data": data, **about})
    return found


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def words(notebook: dict[str, Any]) -> list[str]:
    """Returns each output with its numbers replaced by # and with single spaces."""
    return [" ".join(NUMBER.sub("#", text).split()) for text in texts(notebook)]


def numbers(notebook: dict[str, Any]) -> list[float]:
    """Returns all numbers in the outputs."""
    return [float(number) for text in texts(notebook) for number in NUMBER.findall(text)]


def texts(notebook: dict[str, Any]) -> list[str]:
    found = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    return ["".join(one["text"] if "text" in one else one["data"]["text/plain"]) for one in found]


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        notebook, _ = run(path)
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
