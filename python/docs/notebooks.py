# SPDX-License-Identifier: Apache-2.0
"""Notebooks as pages, with the outputs that they store; nothing is run."""

from __future__ import annotations

import json
from typing import Any

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Parses a notebook, after `markdown` has converted the notebook to Markdown."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(markdown(json.loads(inputstring)), document)


def markdown(notebook: dict[str, Any]) -> str:
    """Returns a notebook as Markdown: its cells, and the outputs that it stores."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(fenced("python", source))
        parts.extend(map(shown, cell["outputs"]))
    return "\n\n".join(parts) + "\n"


def shown(output: dict[str, Any]) -> str:
    """Returns the Markdown of one output: its picture if it has one, else its text.

    Raises ValueError if the output is an error that the notebook's code raised.
    """
    if output["output_type"] == "error":
        raise ValueError(f"a notebook stores an error: {output['ename']}: {output['evalue']}")
    if output["output_type"] == "stream":
        return fenced("text", "".join(output["text"]))
    data = output["data"]
    if "image/png" in data:
        return f"![output](data:image/png;base64,{''.join(data['image/png']).strip()})"
    return fenced("text", "".join(data["text/plain"]))


def fenced(language: str, text: str) -> str:
    """Returns a block of code; its fence is longer than any in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
