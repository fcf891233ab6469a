# SPDX-License-Identifier: Apache-2.0
"""Checks the documentation site in a folder.

Links within the site must lead somewhere, and nothing may be fetched from elsewhere. Every public
name of the package must have an entry in the reference. The JSON schema of recipes must equal the
package's. `./dev docs` runs these checks in the process that builds the site.
"""

from __future__ import annotations

import importlib
import inspect
import json
import multiprocessing
import os
import re
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

sys.path.append(str(Path(__file__).parent))

import surface

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
"""The HTML elements for which a browser loads a file, each with the attribute that names the file.
For `link`, only some kinds count (FETCHED_LINKS)."""
FETCHED_LINKS = {"stylesheet", "icon", "preload", "prefetch", "preconnect", "dns-prefetch"}
PUBLIC = (
    *("cpd", "cpd.comm", "cpd.compress", "cpd.functional", "cpd.hardware", "cpd.nn", "cpd.optim"),
    *(
        "cpd.study",
        "cpd.track",
        "cpd_lab.train",
        "cpd.compat.qpytorch",
        "cpd.compat.cpd2020",
    ),
    *("cpd.compat.transformer_engine", "cpd.parallel.ddp", "cpd.parallel.fsdp"),
)


@dataclass
class Page:
    """The anchors of a page, its links, and the files that a browser loads with it."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.page = Page()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.page.ids.update(given[name] for name in ("id", "name") if name in given)
        target = given.get(LOADED.get(tag, "href"))
        if target is None:
            return
        if tag in LOADED and (tag != "link" or FETCHED_LINKS & set(given.get("rel", "").split())):
            self.page.loaded.append(target)
        elif tag == "a":
            self.page.links.append(target)


def read(path: Path) -> Page:
    reader = _Reader()
    reader.feed(path.read_text())
    return reader.page


def pages_of(root: Path) -> dict[Path, Page]:
    """Reads the pages of a folder, with one process for each processor."""
    paths = sorted(root.rglob("*.html"))
    with multiprocessing.get_context("fork").Pool() as processes:
        return dict(zip(paths, processes.map(read, paths), strict=True))


def is_elsewhere(target: str) -> bool:
    return bool(urlsplit(target).netloc) or target.startswith("//")


def broken(root: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Yields links, pictures, scripts and styles that lead to no file, or to an anchor that the
    file lacks."""
    if not pages:
        yield f"{root} has no pages"
    for path, page in pages.items():
        for target in [*page.links, *page.loaded]:
            parts = urlsplit(target)
            if is_elsewhere(target) or parts.scheme in ("mailto", "data"):
                continue
            file = Path(os.path.normpath(path.parent / unquote(parts.path))) if parts.path else path
            name = path.relative_to(root)
            if not file.is_file():
                yield f"{name}: {target}: no such file"
            elif parts.fragment and unquote(parts.fragment) not in _ids(pages.get(file)):
                yield f"{name}: {target}: no such place in the page"


def _ids(page: Page | None) -> set[str]:
    return set() if page is None else page.ids


def fetched(root: Path, pages: dict[Path, Page]) -> Iterator[str]:
    """Yields the addresses elsewhere from which a browser would fetch something to show a page."""
    for path, page in pages.items():
        for target in filter(is_elsewhere, page.loaded):
            yield f"{path.relative_to(root)}: fetches {target}"
    for path in sorted(root.rglob("*.css")):
        for target in re.findall(
            r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')]+)", path.read_text()
        ):
            yield f"{path.relative_to(root)}: fetches {target}"


def inventory(root: Path) -> set[str]:
    """Returns the names of Python objects that the reference documents, from Sphinx's objects.inv
    (version 2)."""
    content = (root / "objects.inv").read_bytes().split(b"\n", 4)[4]
    lines = zlib.decompress(content).decode().splitlines()
    return {name for name, kind, *_ in map(str.split, lines) if kind.startswith("py:")}


def public_names() -> list[set[str]]:
    """Returns all dotted names of each public function and class, one set for each object."""
    from cpd._lazy import later

    names: dict[int, set[str]] = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in {*getattr(module, "__all__", ()), *later(module.__name__)}:
            it = getattr(module, name)
            if inspect.isclass(it) or inspect.isfunction(it):
                own = f"{it.__module__}.{it.__qualname__}"
                names.setdefault(id(it), {own}).add(f"{module.__name__}.{name}")
    return list(names.values())


def missing(root: Path) -> Iterator[str]:
    """Yields public names, attributes, members and returned types that the reference does not
    document."""
    known = inventory(root)
    for names in public_names():
        if not names & known:
            yield f"{min(names, key=len)}: no page of the reference has it"
    for name in surface.surface()["names"]:
        yield from missing_of(name, surface.found_at(name), known)


def missing_of(name: str, it: Any, known: set[str]) -> Iterator[str]:
    """Yields a line for each member or returned class that the reference does not document. `it` is
    the public function or class."""
    is_class = inspect.isclass(it) and surface.is_ours(it)
    members = surface.members(it) if is_class else {}
    attributes = surface.attributes(it) if is_class else set()
    homes = {name, f"{it.__module__}.{it.__qualname__}"}
    for member in sorted(attributes | members.keys()):
        if not {f"{home}.{member}" for home in homes} & known:
            yield f"{name}.{member}: no page of the reference has it"
    types = {cls for one in (it, *members.values()) for cls in returned(one)}
    for cls in sorted(types - INSIDE):
        if not any(place.endswith(f".{cls}") for place in known):
            yield f"{name}: no page of the reference has {cls}, which it returns"


def returned(it: Any) -> Iterator[str]:
    """Yields the package's classes that a function or property returns, or that a class has in its
    annotations."""
    it = getattr(it, "fget", None) or getattr(it, "func", None) or getattr(it, "__func__", it)
    annotations = inspect.get_annotations(it) if callable(it) else {}
    public = [text for name, text in annotations.items() if name[0] != "_"]
    texts = public if inspect.isclass(it) else [annotations.get("return")]
    for word in re.findall(r"\b[A-Z]\w+", " ".join(map(str, texts))):
        cls = getattr(sys.modules[it.__module__], word, None)
        if inspect.isclass(cls) and surface.is_ours(cls):
            yield word


INSIDE = {"ElementRule", "StepTraffic", "SumRule"}
"""Classes that need no entry in the reference. The entry of the attribute that holds an object of
such a class describes the class."""


def stale_schema(root: Path) -> Iterator[str]:
    """Yields a line if the site's JSON schema of recipes differs from the package's."""
    from cpd.nn.recipe_schema import schema

    path = root / "python/docs/api/recipe.schema.json"
    if not path.is_file() or json.loads(path.read_text()) != schema():
        yield f"{path.relative_to(root)}: not what `cpd show --schema` prints"


def complaints(root: Path) -> list[str]:
    """Returns the faults of the site in a folder, one line for each."""
    root = root.resolve()
    pages = pages_of(root)
    return [*broken(root, pages), *fetched(root, pages), *missing(root), *stale_schema(root)]
