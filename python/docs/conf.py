# SPDX-License-Identifier: Apache-2.0
"""Sphinx's configuration for the documentation site (`./dev docs`). The site has this folder's
pages, and the repository's other Markdown files and notebooks, which are not copied.

Sphinx's source folder is the repository's root, so links between files work in the site and in the
repository. A broken link is an error. Pages can be opened from the disk, because they use the
system's fonts and fetch nothing.
"""

from __future__ import annotations

import functools
import gc
import importlib
import importlib.metadata
import sys
import zlib
from pathlib import Path
from typing import Any

import torch  # noqa: F401 - once, before Sphinx starts processes that document what needs it
from sphinx.application import Sphinx
from sphinx.pycode.parser import Parser, VariableCommentPicker
from sphinx.search.en import SearchEnglish
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT / "tests/testing")]

import site_check  # noqa: E402

for _name in ("cpd.nn", "cpd_lab.train"):  # autodoc documents what a module holds, so all is loaded
    _module = importlib.import_module(_name)
    vars(_module).update({each: getattr(_module, each) for each in _module.__all__})

project = "CPD"
author = "the CPD authors"
release = importlib.metadata.version("cpd")
version = release
html_title = f"CPD {release}"

extensions = ["sphinx.ext.autodoc", "myst_parser", "notebooks", "api_text"]
root_doc = "python/docs/index"
include_patterns = ["*.md", "**/*.md", "examples/*.ipynb"]
exclude_patterns = ["build", "out", "**/.*", ".*"]
source_suffix = {".md": "markdown", ".ipynb": "notebook"}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]

html_theme = "furo"
templates_path = ["templates"]
html_additional_pages = {"index": "redirect.html"}  # the root's index leads to this folder's
html_theme_options = {"top_of_page_buttons": []}  # they link to a repository
html_show_search_summary = False  # it would fetch pages, which browsers refuse for file://
html_copy_source = False
html_show_copyright = False
pygments_style = "friendly"
pygments_dark_style = "monokai"

default_role = "py:obj"  # in docstrings `x` is code, and a link where it names something here
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
add_module_names = False
python_display_short_literal_types = True
python_maximum_signature_line_length = 88
toc_object_entries = False  # a page's own list has its sections; with every name it takes seconds
html_static_path = ["static"]
html_css_files = ["wide.css"]

# The next lines skip work that takes seconds and does not change the pages: collecting garbage
# while almost all objects live to the end, finding the stem of a word again on each page, and
# finding the source lines of definitions (for links to sources).
gc.disable()
SearchEnglish.stem = functools.cache(SearchEnglish.stem)
Parser.parse_definition = lambda self: None
VariableCommentPicker.add_overload_entry = lambda self, func: None  # one signature for a reader


def _spread(_app: Sphinx, _env: Any, names: list[str]) -> None:
    """Shuffles the pages, so that each process reads some pages of the API reference, which take
    longest."""
    names.sort(key=lambda name: zlib.crc32(name.encode()))


def _check(app: Sphinx, error: Exception | None) -> None:
    """Warns of links that lead nowhere and of public names without a page."""
    for complaint in [] if error else site_check.complaints(Path(app.outdir)):
        logging.getLogger(__name__).warning(complaint)


def setup(app: Sphinx) -> None:
    app.connect("env-before-read-docs", _spread)
    app.connect("build-finished", _check, priority=900)  # after what other files are written in
