# SPDX-License-Identifier: Apache-2.0
"""Fills in templates of self-contained HTML pages, with the style sheet `page.css`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_HERE = Path(__file__).parent


def fill(template: Path, **values: Any) -> str:
    """Returns a jinja2 template filled with `values`, and with `page.css` as the variable `style`.

    The template may import `base.html.j2` and `macros.html.j2` of this folder.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    return environment.get_template(template.name).render(style=style, **values)
