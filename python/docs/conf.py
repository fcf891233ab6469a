# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site (`./dev docs`): this folder's pages, and the repository's other
Markdown and notebooks where they are, so that each text has one place.

The folder of sources is the repository's root: links between files are those that a reader of the
repository follows, and one that leads nowhere is an error. Pages open from the disk: fonts are the
system's, and nothing is fetched.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from pathlib import Path

import torch  # noqa: F401 - once, before Sphinx starts processes that document what needs it

sys.path.insert(0, str(Path(__file__).parent))

for _name in ("cpd.nn", "cpd.train"):  # autodoc documents what a module holds: lazy names, loaded
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
