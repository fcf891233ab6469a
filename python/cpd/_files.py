# SPDX-License-Identifier: Apache-2.0
"""Results in files, or on standard output: a file is replaced whole or stays as it was."""

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
"""The name of standard output in the place of a file."""


def write_json(path: str | Path, data: Any, indent: int | None = 2) -> None:
    """Writes strict JSON: NaN and Inf become null."""
    write_text(
        path, json.dumps(_finite(data), indent=indent, ensure_ascii=False, allow_nan=False) + "\n"
    )


def write_text(path: str | Path, text: str) -> None:
    """Writes a text as UTF-8 (see `replaced`), or to standard output."""
    if Path(path) == STDOUT:
        sys.stdout.write(text)
        return
    with replaced(path) as file:
        file.write(text.encode())


def csv_text(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] = ()) -> str:
    """Returns rows as CSV with a header; `columns` are by default the first row's."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns or [*rows[0]], restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def write_npz(path: str | Path, arrays: Mapping[str, Any]) -> None:
    """Writes arrays of any names as `numpy.load` reads them (see `replaced`)."""
    with replaced(path) as file, zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


@contextmanager
def replaced(path: str | Path) -> Iterator[BinaryIO]:
    """A stream of bytes that become the file's content when the block ends, and not before.

    The bytes are written to a new file in the same folder, flushed to the disk and renamed. If the
    block raises or the disk is full, the file is as before.

    Of a symbolic link the target is replaced; mode and owner stay. Anything but a regular file (a
    pipe, a device, `/dev/stdout`) and `-`, which is standard output, are written directly; so is a
    file that cannot be replaced: where its folder takes no new files, or its owner would change.

    Raises OSError, which names the file.
    """
    with replaced_together([path]) as (file,):
        yield file


@contextmanager
def replaced_together(paths: Sequence[str | Path]) -> Iterator[list[BinaryIO]]:
    """As `replaced`, for several files: none is renamed before all are on the disk."""
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
    """True for a regular file, existing or not: `replaced` writes it beside itself.

    False for pipes and devices, and for a process's own stream under another name.
    """
    return _target(path) is not None


class _Part(NamedTuple):
    """A file being written: a new one in `target`'s folder, or `target` itself (no `name`)."""

    path: Path
    target: Path
    file: BinaryIO
    name: Path | None


def _part(path: Path, stack: ExitStack) -> _Part:
    """Opens the part of a file. The stack closes it, and removes it unless it was renamed."""
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
    """A context in which an OSError of a write names the file that was asked for."""
    try:
        yield
    except OSError as error:
        if error.errno is None or not (error.filename is None or _PART in str(error.filename)):
            raise
        raise type(error)(error.errno, error.strerror, str(path)) from None


_PART = ".cpd-part-"


def _target(path: Path) -> Path | None:
    """Returns the regular file that `path` is or will be, links followed.

    None if it is something else, or a process's own stream under another name.
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
    """Returns a new file, open, in the target's folder, of the target's mode and owner.

    None if there can be none. Raises OSError if the target must not be written, or its folder is
    missing.
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
