# SPDX-License-Identifier: Apache-2.0
"""Self-contained HTML pages: templates with one style, `page.css`, and common macros."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

_HERE = Path(__file__).parent


def fill(template: Path, **values: Any) -> str:
    """Fills in a template, which may import from `macros.html.j2` and has the variable `style`."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    style = (_HERE / "page.css").read_text(encoding="utf-8")
    return environment.get_template(template.name).render(style=style, **values)
