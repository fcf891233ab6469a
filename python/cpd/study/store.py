# SPDX-License-Identifier: Apache-2.0
"""Results of cells, kept in files: `Store`."""

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
"""Called with a sentence that a person should read."""


def digest(data: Any) -> str:
    """Returns the SHA-256, in hexadecimal digits, of JSON data.

    Equal data have the same one, in any order of their keys.
    """
    text = json.dumps(data, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class Store:
    """A folder of results, a JSON file for each key, which is the `digest` of a cell's options.

    A file holds the SHA-256 of its content. One that is damaged, or has another cell's name, is
    reported and counts as missing. Files are written whole or not at all, so that several processes
    may share a folder.
    """

    folder: Path

    def path(self, key: str) -> Path:
        """Returns the file of a key."""
        return self.folder / f"{key}.json"

    def write(self, key: str, content: dict[str, Any]) -> None:
        """Writes a cell's file. Raises OSError."""
        body = {"key": key, **content}
        self.folder.mkdir(parents=True, exist_ok=True)
        write_text(self.path(key), json.dumps({"sha256": digest(body), "body": body}))

    def read(
        self, key: str, made: Callable[[dict[str, Any]], ResultT], tell: Telling
    ) -> ResultT | None:
        """Returns the result of `made` for a cell's file; None if it is missing or damaged.

        A file counts as damaged if `made` raises ValueError, TypeError or KeyError for it. Raises
        OSError for a file that cannot be read.
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
