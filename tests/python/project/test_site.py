# SPDX-License-Identifier: Apache-2.0
"""Tests that the checks of the documentation site find planted errors.

Tests also how notebooks and docstrings become pages. The files that workflows run must exist, and
each action that they use must be fixed to a commit.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path += [str(ROOT / "tests/testing"), str(ROOT / "python/docs")]
site = importlib.import_module("site_check")

PAGE = """<html><head><link rel="stylesheet" href="_static/a.css"></head><body id="top">
<a href="b.html#there">b</a><a href="#top">up</a><a href="https://example.org/x">away</a>
<img src="data:image/png;base64,xx"><a href="b.html">b</a></body></html>"""


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    (tmp_path / "_static").mkdir()
    (tmp_path / "_static/a.css").write_text("p { background: url(x.png) }")
    (tmp_path / "index.html").write_text(PAGE)
    (tmp_path / "b.html").write_text('<p id="there">x</p>')
    return tmp_path


def complaints(root: Path) -> list[str]:
    pages = site.pages_of(root)
    return [*site.broken(root, pages), *site.fetched(root, pages)]


def test_a_whole_site_is_fine(pages: Path) -> None:
    assert complaints(pages) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("b.html#there", "c.html#there", "c.html#there: no such file"),
        ("#there", "#elsewhere", "b.html#elsewhere: no such place"),
        ("#top", "#bottom", "#bottom: no such place"),
        ("_static/a.css", "_static/b.css", "_static/b.css: no such file"),
        ("_static/a.css", "https://example.org/a.css", "fetches https://example.org/a.css"),
        ("data:image/png;base64,xx", "//example.org/x.png", "fetches //example.org/x.png"),
        (
            "</body>",
            '<script src="http://example.org/x.js"></script>',
            "fetches http://example.org",
        ),
    ],
)
def test_what_is_wrong_is_named(pages: Path, old: str, new: str, said: str) -> None:
    (pages / "index.html").write_text(PAGE.replace(old, new, 1))
    (complaint,) = complaints(pages)
    assert complaint.startswith("index.html: ")
    assert said in complaint


@pytest.mark.parametrize(
    "rule", ["@import 'https://example.org/f.css';", "p { background: url(//example.org/x) }"]
)
def test_styles_that_fetch(pages: Path, rule: str) -> None:
    (pages / "_static/a.css").write_text(rule)
    (complaint,) = complaints(pages)
    assert complaint.startswith("_static/a.css: fetches ")


def test_an_empty_site(tmp_path: Path) -> None:
    assert complaints(tmp_path) == [f"{tmp_path} has no pages"]


def with_inventory(root: Path, names: set[str]) -> Path:
    lines = "".join(f"{name} py:function 1 api.html#$ -\n" for name in sorted(names))
    head = b"# Sphinx inventory version 2\n# Project: x\n# Version: 1\n# compressed\n"
    (root / "objects.inv").write_bytes(head + zlib.compress(lines.encode()))
    return root


def test_public_names_without_a_page(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    names = site.public_names()
    assert len(names) > 120
    every = {min(each) for each in names} | set(members())
    assert list(site.missing(with_inventory(tmp_path, every))) == []
    for without, complaint in {
        "cpd.cast": "cpd.cast: no page of the reference has it",
        "cpd.Format.exp": "cpd.Format.exp: no page of the reference has it",
        "cpd.comm.Communicator.all_reduce": "cpd.comm.Communicator.all_reduce: no page of",
    }.items():
        (found,) = site.missing(with_inventory(tmp_path, every - {without}))
        assert found.startswith(complaint)
    found = [*site.missing(with_inventory(tmp_path, every - {"cpd.nn.Report"}))]
    assert "cpd.convert: no page of the reference has Report, which it returns" in found


def members() -> Iterator[str]:
    """Returns the members and the attributes of all public classes."""
    for name in site.surface.surface()["names"]:
        yield name
        cls = site.surface.found_at(name)
        if inspect.isclass(cls) and site.surface.is_ours(cls):
            for member in site.surface.members(cls).keys() | site.surface.attributes(cls):
                yield f"{name}.{member}"


def test_types_in_signatures_are_explained() -> None:
    page = (ROOT / "python/docs/api/index.md").read_text()
    for name in site.surface.surface()["names"]:
        it = site.surface.found_at(name)
        methods = [getattr(it, m) for m in site.surface.members(it)] if inspect.isclass(it) else []
        for one in filter(callable, (it, *methods)):
            if site.surface.parameters(one):
                text = str(inspect.signature(one))
                for alias in re.findall(r"\b(\w+Like|ArrayT|Number|Shape|Sums|Scales)\b", text):
                    assert f"`{alias}`" in page, (name, alias)


def test_a_schema_of_recipes_that_is_not_the_package_s(tmp_path: Path) -> None:
    """A missing or outdated schema of recipes is reported; the package's own schema is not."""
    pytest.importorskip("torch")
    pytest.importorskip("sphinx")
    text = importlib.import_module("api_text").recipe_schema()
    path = tmp_path / "python/docs/api/recipe.schema.json"
    path.parent.mkdir(parents=True)
    assert len(list(site.stale_schema(tmp_path))) == 1
    path.write_text(text.replace("forward", "forwards"))
    (complaint,) = site.stale_schema(tmp_path)
    assert complaint == "python/docs/api/recipe.schema.json: not what `cpd show --schema` prints"
    path.write_text(text)
    assert list(site.stale_schema(tmp_path)) == []


# ---- notebooks and docstrings ------------------------------------------------------------------


def code(source: str, *outputs: dict[str, Any]) -> dict[str, Any]:
    return {"cell_type": "code", "source": [source], "outputs": list(outputs)}


def test_a_notebook_as_a_page() -> None:
    pytest.importorskip("myst_parser")
    notebooks = importlib.import_module("notebooks")
    printed = {"output_type": "stream", "name": "stdout", "text": ["one\n", "two ``` three\n"]}
    drawn = {"output_type": "display_data", "data": {"image/png": ["QUJD\n"], "text/plain": ["F"]}}
    value = {"output_type": "execute_result", "data": {"text/plain": ["3"]}}
    cells = [{"cell_type": "markdown", "source": ["# A"]}, code("x()", printed, drawn, value)]
    assert notebooks.markdown({"cells": cells}) == (
        "# A\n\n```python\nx()\n```\n\n````text\none\ntwo ``` three\n````\n\n"
        "![output](data:image/png;base64,QUJD)\n\n```text\n3\n```\n"
    )
    error = {"output_type": "error", "ename": "ValueError", "evalue": "bad"}
    with pytest.raises(ValueError, match="stores an error: ValueError: bad"):
        notebooks.markdown({"cells": [code("x", error)]})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("|w| of every `n`th", r"\|w\| of every `n`\ th"),
        ("`a` and `b`.", "`a` and `b`."),
        ("Text.\n\n    code | here", "Text.\n\n::\n\n    code | here"),
        (">>> a | b\nc | d\n\n| e", ">>> a | b\nc | d\n\n\\| e"),
        ("- one:\n\n    more", "- one:\n\n    more"),
        ("Text:\n\n    - one", "Text:\n\n    - one"),
    ],
)
def test_docstrings_as_sphinx_reads_them(given: str, expected: str) -> None:
    pytest.importorskip("sphinx")
    api_text = importlib.import_module("api_text")
    assert api_text.as_rst(given.splitlines()) == expected.splitlines()


class Named(NamedTuple):
    """A named tuple.

    Attributes:
        one: The tuple's only field.
    """

    one: int


class Inline(NamedTuple):
    """A named tuple."""

    one: int
    """Its first field."""


def test_a_field_that_its_class_documents_has_no_entry_of_its_own() -> None:
    pytest.importorskip("sphinx")
    api_text = importlib.import_module("api_text")
    assert api_text.is_documented_field(vars(Named)["one"])
    assert not api_text.is_documented_field(vars(Inline)["one"])
    assert not api_text.is_documented_field(Named)


def test_attributes_that_are_arguments_have_entries() -> None:
    pytest.importorskip("sphinx")
    api_text = importlib.import_module("api_text")
    cpd = importlib.import_module("cpd")
    lines = api_text.of_arguments(cpd.Format, inspect.getdoc(cpd.Format))
    assert lines[:3] == ["", "Attributes:", f"    exp (int): {api_text.OF_ARGUMENT}"]
    assert not any(line.startswith("    bits ") for line in lines)  # it has a text of its own
    assert api_text.of_arguments(cpd.comm.Traffic, inspect.getdoc(cpd.comm.Traffic)) == []
    assert api_text.of_arguments(cpd.Encoded, inspect.getdoc(cpd.Encoded)) == []
    assert api_text._skip(None, "class", "parse", vars(cpd.Format)["parse"], False, None)


# ---- workflows -----------------------------------------------------------------------------------

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_commit(path: Path) -> None:
    used = re.findall(r"uses: *(.*)", path.read_text())
    assert used
    for each in used:
        assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each), each
    pins = dict(each.split(" ")[0].split("@") for each in used)
    for other in WORKFLOWS:  # one action, one commit
        for each in re.findall(r"uses: *(\S+)", other.read_text()):
            name, commit = each.split("@")
            assert pins.get(name, commit) == commit


def test_workflows_run_what_is_there() -> None:
    text = "".join(path.read_text() for path in WORKFLOWS)
    assert ".ci/run" in text
    assert "cibuildwheel" in text
    assert "pip wheel --no-deps --wheel-dir out ./python" in text  # the lab
    assert "cpd train" in text
    for name in re.findall(r"(?:run: |path: )(\.ci/\S+|tests/\S+)", text):
        assert (ROOT / name).exists()
