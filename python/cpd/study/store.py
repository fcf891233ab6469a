# SPDX-License-Identifier: Apache-2.0
"""`Store`: keeps the results of a study's cells in JSON files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from cpd._files import write_text

ResultT = TypeVar("ResultT")
Telling = Callable[[str], None]
"""A function that is called with a warning for the user."""


def digest(data: Any) -> str:
    """Returns the SHA-256 of JSON data, in hexadecimal digits.

    The order of keys does not matter.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """A folder with one JSON file of results for each cell (one combination of options).

    A cell's key is the `digest` of its options; the key names the file. A file has the SHA-256 of
    its content. A file that is damaged, or has another cell's key, is reported and counts as
    missing. Files are replaced atomically, so several processes may share a folder.
    """

    folder: Path

    def path(self, key: str) -> Path:
        """Returns the path of the file for a key."""
        return self.folder / f"{key}.json"

    def write(self, key: str, content: dict[str, Any]) -> None:
        """Writes a cell's file. Raises OSError if the file cannot be written."""
        body = {"key": key, **content}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path(key), json.dumps({"sha256": digest(body), "body": body}))

    def read(
        self, key: str, made: Callable[[dict[str, Any]], ResultT], tell: Telling
    ) -> ResultT | None:
        """Reads a cell's file and converts its content by the function `made`.

        Returns None if the file is missing or damaged. A file also counts as damaged if `made`
        raises ValueError, TypeError, KeyError or RecursionError. `tell` is called with a warning
        about a damaged file. Raises OSError if an existing file cannot be read.
        """
        path = self.path(key)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            return made(_body(json.loads(data), key))
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            why = str(error).partition("\n")[0][:100] or type(error).__name__
            tell(f"{path}: damaged ({why}), which counts as missing")
            return None


def _body(whole: Any, key: str) -> dict[str, Any]:
    body: dict[str, Any] = whole["body"]
    if whole["sha256"] != digest(body):
        raise ValueError("its SHA-256 is not that of its content")
    if body["key"] != key:
        raise ValueError("it is another cell's")
    return body
