# SPDX-License-Identifier: Apache-2.0
"""Writes results to files or standard output. A failed write leaves the old file unchanged."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import secrets
import stat
import sys
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

STDOUT = Path("-")
"""The file name that stands for standard output."""


def write_json(path: str | Path, data: Any, indent: int | None = 2) -> None:
    """Writes data as strict JSON to a file or to standard output: NaN and Inf become null."""
    write_text(
        path, json.dumps(_finite(data), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    )


def write_text(path: str | Path, text: str) -> None:
    """Replaces a file by a UTF-8 text; if `path` is `-`, writes the text to standard output."""
    if Path(path) == STDOUT:
        sys.stdout.write(text)
        return
    with replaced(path) as file:
        file.write(text.encode())


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Returns rows (dicts) as CSV with a header.

    Default of `columns`: the keys of the first row.
    """
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or [*rows[0]], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Replaces a file by an .npz file with the arrays of a dict.

    The keys of the dict are the arrays' names; any texts are allowed.
    """
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


@contextmanager
def replaced(path: str | Path) -> Iterator[BinaryIO]:
    """A context with a stream whose bytes replace the file's content when the block ends.

    The bytes are written to a new file in the same folder, flushed to the disk and renamed. If the
    block raises or the disk is full, the old file remains unchanged. A symbolic link remains, and
    its target is replaced. The new file has the mode and owner of the old one. The bytes are
    written directly to `-` (standard output), to anything but a regular file (a pipe, a device,
    `/dev/stdout`), and to a file that cannot be replaced, because its folder allows no new files or
    because the owner would change. Raises OSError, which names the file.
    """
    with replaced_together([path]) as (file,):
        yield file


@contextmanager
def replaced_together(paths: Sequence[str | Path]) -> Iterator[list[BinaryIO]]:
    """A context with a stream for each file, whose bytes replace the file when the block ends.

    `replaced` documents how one file is replaced. Several files are replaced only after all new
    files are on the disk.
    """
    with ExitStack() as stack:
        parts = [_part(Path(path), stack) for path in paths]
        yield [part.file for part in parts]
        for part in parts:
            with _named(part.path):
                part.file.flush()
                if part.name is not None:
                    os.fsync(part.file.fileno())
        for part in parts:
            if part.name is not None:
                with _named(part.path):
                    part.name.replace(part.target)


def is_replaceable(path: Path) -> bool:
    """Returns whether `replaced` replaces the file by a new one instead of writing into it.

    True for a regular file, existing or not. False for pipes, devices, and names of the process's
    own streams, such as /dev/stdout.
    """
    return _target(path) is not None


class _Part(NamedTuple):
    """A file that is being written.

    The bytes go to the new file `name`, in the folder of `target`. If `name` is None, the bytes go
    to `target` itself.
    """

    path: Path
    target: Path
    file: BinaryIO
    name: Path | None


def _part(path: Path, stack: ExitStack) -> _Part:
    """Opens a new file that will replace `path`. If this is impossible, opens `path` itself.

    When `stack` ends, the opened file is closed. A new file that was not renamed is then removed.
    """
    if path == STDOUT:
        return _Part(path, path, sys.stdout.buffer, None)
    with _named(path):
        target = _target(path)
        beside = None if target is None else _beside(target)
        name, file = beside or (None, path.open("wb"))
    if name is not None:
        stack.callback(name.unlink, missing_ok=True)
    stack.enter_context(_named(path))
    stack.enter_context(file)
    return _Part(path, target or path, file, name)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """A context in which an OSError names the file that the caller asked for."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or _PART in str(error.filename)):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None


_PART = ".cpd-part-"


def _target(path: Path) -> Path | None:
    """Returns the regular file, existing or not, to which `path` leads. Follows links.

    Returns None if the path leads to something else (a pipe, a folder), or if the path names one of
    the process's own streams, such as /dev/stdout.
    """
    for _ in range(40):
        path = path.parent.resolve() / path.name
        if path.is_relative_to("/proc"):
            return None
        if not path.is_symlink():
            return path if path.is_file() or not path.exists() else None
        path = path.parent / os.readlink(path)
    return None


def _beside(target: Path) -> tuple[Path, BinaryIO] | None:
    """Opens a new file in the target's folder, with the target's mode and owner.

    Returns None if this is impossible. Raises OSError if the target must not be written, or if its
    folder is missing.
    """
    old = target.stat() if target.exists() else None
    if old is not None:
        os.close(os.open(target, os.O_WRONLY))
    part = target.with_name(f"{_PART}{secrets.token_hex(8)}")
    try:
        handle = os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    except PermissionError:
        return None
    try:
        if old is not None:
            new = os.fstat(handle)
            if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
                os.fchown(handle, old.st_uid, old.st_gid)
            os.fchmod(handle, stat.S_IMODE(old.st_mode))
    except PermissionError:
        os.close(handle)
        part.unlink()
        return None
    return part, os.fdopen(handle, "wb")


def _finite(data: Any) -> Any:
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
