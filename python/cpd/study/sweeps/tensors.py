# SPDX-License-Identifier: Apache-2.0
"""The tensors of a sweep, as matrices in binary32.

They are read from files or from memory. A matrix may have a partner: the matrix with the other
factors of its dot products.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd._files import replaced, write_text
from cpd.numeric.numbers import is_torch
from cpd.numeric.shown import kind_of, shown

Values: TypeAlias = npt.NDArray[np.float32]
Wide: TypeAlias = npt.NDArray[np.float64]
TensorsLike: TypeAlias = "Mapping[str, Any] | str | Path | Iterable[str | Path] | Any"
"""A dict of named arrays or tensors, a single array or tensor, or the paths of files."""

LENGTH = 1024
"""The default of the largest number of terms in a dot product."""


@dataclass(frozen=True)
class Matrix:
    """A tensor as a matrix; its rows run along the tensor's last dimension.

    Dot products and blocks of scales also run along rows. NaNs and infinities are replaced by 0 and
    counted in `nonfinite`.
    """

    name: str
    x: Values
    nonfinite: int = 0
    partner: int | None = None
    """The index of the tensor with the rows that multiply the rows of this tensor. None: the
    tensor's own vectors are multiplied with each other."""
    is_partner: bool = False
    """True if this tensor is the `partner` of another tensor. The dot products then belong to the
    other tensor."""

    @cached_property
    def amax(self) -> float:
        """The largest magnitude."""
        return max(float(self.x.max()), -float(self.x.min()))

    @cached_property
    def squares(self) -> float:
        """The sum of the squared values, in binary64."""
        flat = self.x.reshape(-1)
        parts = (flat[i : i + _PART].astype(np.float64) for i in range(0, flat.size, _PART))
        return math.fsum(map(square, parts))

    @property
    def zeros(self) -> int:
        """The number of values that are zero."""
        return self.x.size - int(np.count_nonzero(self.x))


_PART = 1 << 16


def square(x: Wide) -> float:
    """Returns the sum of squares, computed by one thread in a fixed order."""
    return float(np.einsum("i,i->", x, x))


@dataclass(frozen=True)
class Workload:
    """All tensors of a sweep.

    `length` is the largest number of terms in a dot product. `sample` is the largest number of
    values that are measured of each tensor, in rows that are evenly spaced; None: all values.
    """

    matrices: tuple[Matrix, ...]
    length: int = LENGTH
    sample: int | None = None

    @property
    def values(self) -> int:
        """The number of values of all tensors."""
        return sum(matrix.x.size for matrix in self.matrices)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of all names, shapes and values, and of the options of dot products."""
        hasher = hashlib.sha256()
        for matrix in self.matrices:
            head = [
                matrix.name,
                matrix.x.shape,
                matrix.nonfinite,
                matrix.partner,
                matrix.is_partner,
            ]
            hasher.update(json.dumps(head).encode())
            hasher.update(np.ascontiguousarray(matrix.x).data)
        hasher.update(json.dumps([self.length, self.sample]).encode())
        return hasher.hexdigest()

    def save(self, folder: Path) -> None:
        """Writes the tensors to files in `folder`, which `load_workload` reads."""
        folder.mkdir(parents=True, exist_ok=True)
        heads = []
        for number, matrix in enumerate(self.matrices):
            with replaced(folder / f"{number}.npy") as file:
                np.save(file, matrix.x)
            heads.append([matrix.name, matrix.nonfinite, matrix.partner, matrix.is_partner])
        text = json.dumps({"length": self.length, "sample": self.sample, "tensors": heads})
        write_text(folder / _HEAD, text)


_HEAD = "tensors.json"


def load_workload(folder: Path) -> Workload:
    """Reads a workload that `Workload.save` has written; values are mapped from the files."""
    head = json.loads((folder / _HEAD).read_text(encoding="utf-8"))
    matrices = tuple(
        Matrix(name, np.load(folder / f"{number}.npy", "r", allow_pickle=False), *more)
        for number, (name, *more) in enumerate(head["tensors"])
    )
    return Workload(matrices, head["length"], head["sample"])


def workload(tensors: TensorsLike, length: int = LENGTH, sample: int | None = None) -> Workload:
    """Returns the tensors of arrays or files.

    Each tensor becomes a matrix with rows along its last dimension. Tensors that are not
    floating-point, or have no values, are left out. The tensor `NAME/activation`, a name that
    `capture` gives, is paired with the tensor `NAME/weight` if their rows have equal lengths: a
    sweep multiplies the two. Raises OSError if a file cannot be opened, and ValueError or TypeError
    for invalid arguments or files.
    """
    for name, number in (("length", length), ("sample", sample)):
        if number is not None and (type(number) is not int or number < 1):
            raise ValueError(f"{name} must be an int of at least 1, got {shown(number)}")
    named = {name: _matrix(name, value, sample) for name, value in _named(tensors).items()}
    entries = [(name, *matrix) for name, matrix in named.items() if matrix is not None]
    if not entries:
        raise ValueError(
            "the tensors must have floating-point values, got none: convert them to float32"
        )
    places = {name: place for place, (name, _, _) in enumerate(entries)}
    partners = {name: _partner(name, x, entries, places) for name, x, _ in entries}
    matrices = tuple(
        Matrix(name, x, nonfinite, partners[name], place in partners.values())
        for place, (name, x, nonfinite) in enumerate(entries)
    )
    return Workload(matrices, length, sample)


def _partner(
    name: str, x: Values, entries: list[tuple[str, Values, int]], places: Mapping[str, int]
) -> int | None:
    layer, slash, role = name.rpartition("/")
    place = places.get(f"{layer}{slash}weight") if role.split("#")[0] == "activation" else None
    if place is None or entries[place][1].shape[1] != x.shape[1]:
        return None
    return place


def _named(tensors: TensorsLike) -> dict[str, Any]:
    if isinstance(tensors, str | Path):
        tensors = [tensors]
    if isinstance(tensors, Mapping):
        return {str(name): value for name, value in tensors.items()}
    if isinstance(tensors, np.ndarray) or is_torch(tensors):
        return {"tensor": tensors}
    if not isinstance(tensors, Iterable):
        raise TypeError(f"{_TENSORS}, got {kind_of(tensors)}")
    return _from_files(list(tensors))


_TENSORS = "tensors must be a dict of arrays, an array, or paths of files"


def _from_files(paths: list[Any]) -> dict[str, Any]:
    """Returns the arrays of files by name. With several files, names begin with the file's path."""
    from cpd.study.gradient_files import read_arrays, shown

    arrays: dict[str, Any] = {}
    for path in paths:
        if not isinstance(path, str | Path):
            raise TypeError(f"{_TENSORS}, got {kind_of(paths)}")
        for name, array in read_arrays(Path(path), leaves_out=True).items():
            whole = shown(name) if len(paths) == 1 else f"{path}:{shown(name)}"
            if whole in arrays:
                raise ValueError(f"{path}: is given twice")
            arrays[whole] = array
    return arrays


def _matrix(name: str, value: Any, sample: int | None) -> tuple[Values, int] | None:
    """Returns a tensor's rows in binary32, with NaN and infinities counted and replaced by 0.

    The second result is this count. Returns None for a tensor that is empty or not floating-point.
    """
    if is_torch(value):
        if not value.is_floating_point():
            return None
        value = value.detach().float().cpu().numpy()
    if not isinstance(value, np.ndarray | np.generic):
        raise TypeError(f"'{name}' must be a NumPy array or a torch tensor, got {_type(value)}")
    array: npt.NDArray[Any] = np.asarray(value)
    if array.dtype.kind != "f" or array.dtype.itemsize > 8 or not array.size:
        return None
    rows = array.reshape(-1, array.shape[-1]) if array.ndim > 1 else array.reshape(1, -1)
    x = _sampled(rows, sample)
    with np.errstate(over="ignore"):
        x = np.ascontiguousarray(x, np.float32)
    finite = np.isfinite(x)
    lost = x.size - int(np.count_nonzero(finite))
    return (np.where(finite, x, np.float32(0)) if lost else x), lost


def _sampled(rows: Any, sample: int | None) -> Any:
    """Returns up to `sample` values: whole rows, evenly spread over the matrix.

    If one row has more than `sample` values, its first `sample` values are returned.
    """
    if sample is None or rows.size <= sample:
        return rows
    count = sample // rows.shape[1]
    if count == 0:
        return rows[:1, :sample]
    return rows[np.arange(count) * rows.shape[0] // count]


def _type(value: object) -> str:
    return type(value).__name__
