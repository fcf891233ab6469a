# SPDX-License-Identifier: Apache-2.0
"""Reads named arrays from untrusted files: .npy, .npz, .safetensors, .pt and .pth.

Code in a file is never executed. Sizes are checked before memory is allocated. Any fault of a file
raises a ValueError with a text of one line that names the file.
"""

from __future__ import annotations

import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd.numeric.later import Later
from cpd.numeric.shown import alternatives

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

Array: TypeAlias = npt.NDArray[Any]
Named: TypeAlias = Iterable[tuple[str, Array]]

_LONGEST_NAME = 1000


class _RefusedError(ValueError):
    """An error that this module raises for a bad file. `_told` adds the file's name to its text."""


def read_arrays(path: Path, leaves_out: bool = False) -> dict[str, Array]:
    """Reads the arrays of a file, in the file's order. Each keeps its dtype.

    Values of torch's dtypes that NumPy lacks (bfloat16, FP8) are widened to binary32. The array of
    a .npy file has the file's name. Nested dicts that torch.save wrote are flattened: keys are
    joined by dots, but by a slash after `rank{r}`. The items of a list are named `rank0/…`,
    `rank1/…`.

    If `leaves_out` is true, values that are not floating-point tensors are skipped, such as a
    checkpoint's step and an optimizer's options. NumPy's files are read without torch.

    Raises OSError if the file cannot be opened. Raises ValueError if the file is damaged or has
    other values than floating-point arrays.
    """
    reader, kind = _READERS[suffix(path)]
    with path.open("rb") as file, _told(path, kind):
        arrays: dict[str, Array] = {}
        for name, array in reader(path, file, leaves_out):
            if name in arrays:
                raise _RefusedError(f"holds '{shown(name)}' twice")
            arrays[name] = array
        return arrays


def suffix(path: Path) -> str:
    """Returns the file name's suffix. Raises ValueError unless this module reads such files."""
    if path.suffix not in _READERS:
        raise ValueError(f"{path}: a file of tensors must end in {alternatives(_READERS)}")
    return path.suffix


def shown(name: str) -> str:
    """Returns a name from a file, with control characters escaped."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in name)


def not_floats(what: str, dtype: np.dtype[Any]) -> str:
    """Returns the error text for an array of another dtype than NumPy's floating-point types."""
    if dtype.kind != "V" or dtype.names is not None or dtype.itemsize > 2:
        return f"{what} must hold floating-point values, got {dtype}"
    is_bf16 = dtype.itemsize == 2
    named = "bfloat16" if is_bf16 else "any 8-bit type"
    view = "bfloat16" if is_bf16 else "float8_e4m3fn"
    return (
        f"{what} must hold floating-point values of a type that NumPy names, got {dtype}, which "
        f"stands for {named}: NumPy's files do not keep the names of ml_dtypes' types. Write "
        f"x.view(ml_dtypes.{view}).astype(numpy.float32), or a .safetensors file"
    )


@contextmanager
def _told(path: Path, kind: str) -> Iterator[None]:
    """A context for reading a file: turns exceptions into a one-line ValueError with its name.

    ModuleNotFoundError passes unchanged.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except _RefusedError as error:
        raise ValueError(f"{path}: {error}") from None
    except MemoryError:
        raise ValueError(f"{path}: holds more than this machine's memory") from None
    except ModuleNotFoundError:
        raise
    except Exception as error:  # NumPy, zipfile and torch raise some twenty types here
        message = shown(str(error).strip().partition("\n")[0])[:200] or type(error).__name__
        raise ValueError(f"{path}: not a readable {kind} file ({message})") from None


def _check_memory(size: int) -> None:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if size > memory:
        raise _RefusedError(
            f"says that it holds {size / 1e9:.4g} GB, this machine's memory is {memory / 1e9:.4g}"
        )


# ---- NumPy's ----------------------------------------------------------------------------------


def _read_npy(path: Path, file: IO[bytes], _: bool) -> Named:
    yield path.stem, _npy(file, os.fstat(file.fileno()).st_size, "the array")


def _read_npz(path: Path, file: IO[bytes], leaves_out: bool) -> Named:
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        _check_memory(sum(member.file_size for member in members))
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name == member.filename:
                raise _RefusedError(f"'{shown(name)}' in it is not a .npy array")
            with archive.open(member) as stream:
                if leaves_out and _header(stream, f"'{shown(name)}'")[2].kind in "biuc":
                    continue
            with archive.open(member) as stream:
                yield name, _npy(stream, member.file_size, f"'{shown(name)}'")


def _header(stream: IO[bytes], what: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Returns an array's shape, True if its memory is in column-major order, and its dtype."""
    version = np.lib.format.read_magic(stream)
    readers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    if version not in readers:  # version 3.0 is only for structured dtypes
        raise _RefusedError(f"{what} is of .npy version {version}, must be (1, 0) or (2, 0)")
    return readers[version](stream)


def _npy(stream: IO[bytes], size: int, what: str) -> Array:
    """Returns the array in a stream of `size` bytes.

    Raises an error unless `size` is the size that the header of the array states.
    """
    shape, by_column, dtype = _header(stream, what)
    if dtype.hasobject:
        raise _RefusedError(f"{what} holds pickled objects; only floating-point values are read")
    if dtype.newbyteorder("=") not in (np.float16, np.float32, np.float64):
        raise _RefusedError(not_floats(what, dtype))
    if min(shape, default=0) < 0:
        raise _RefusedError(f"{what} has a shape that does not exist, {shape}")
    expected, held = math.prod(shape) * dtype.itemsize, size - stream.tell()
    if expected != held:
        raise _RefusedError(f"{what} should have {expected} bytes of values, the file holds {held}")
    _check_memory(expected)
    data = stream.read(expected)
    if len(data) != expected:
        raise _RefusedError(
            f"{what} should have {expected} bytes of values, {len(data)} can be read"
        )
    values: npt.NDArray[Any] = np.frombuffer(data, dtype)
    values = values.reshape(shape[::-1]).T if by_column else values.reshape(shape)
    return values.astype(dtype.newbyteorder("="), order="C")


# ---- torch's and safetensors' -------------------------------------------------------------------


def _read_safetensors(path: Path, file: IO[bytes], leaves_out: bool) -> Named:
    from safetensors.torch import load_file

    for name, tensor in load_file(path).items():
        if not (leaves_out and not tensor.is_floating_point()):
            yield name, _dense(name, tensor)


def _read_torch(path: Path, file: IO[bytes], leaves_out: bool) -> Named:
    from pickle import UnpicklingError

    if zipfile.is_zipfile(file):
        with zipfile.ZipFile(file) as archive:
            _check_memory(sum(member.file_size for member in archive.infolist()))
    file.seek(0)
    try:
        loaded = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError:
        raise _RefusedError(
            "holds something else than tensors in dicts and lists, or is cut short; nothing else "
            "is read"
        ) from None
    if isinstance(loaded, torch.Tensor):
        yield path.stem, _dense(path.stem, loaded)
        return
    if not isinstance(loaded, dict | list | tuple):
        raise _RefusedError(f"must hold tensors, got {type(loaded).__name__}")
    if not isinstance(loaded, dict) and not leaves_out:
        if not all(isinstance(rank, dict | list | tuple) for rank in loaded):
            raise _RefusedError("a list in it must give a dict of tensors for each rank")
        loaded = {f"rank{r}": layers for r, layers in enumerate(loaded)}
    for name, tensor in _flat("", loaded, set(), leaves_out):
        if leaves_out and not (isinstance(tensor, torch.Tensor) and tensor.is_floating_point()):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise _RefusedError(f"'{shown(name)}' must be a tensor, got {type(tensor).__name__}")
        yield name, _dense(name, tensor)


def _flat(prefix: str, value: Any, seen: set[int], leaves_out: bool) -> Iterator[tuple[str, Any]]:
    """Yields the names and values in nested dicts and lists.

    Raises an error if a dict or list occurs twice: repeated references could make a small file
    expand to any size.
    """
    if not isinstance(value, dict | list | tuple):
        yield prefix, value
        return
    if id(value) in seen:
        raise _RefusedError(f"'{shown(prefix)}' in it occurs in another place too")
    if prefix and not value and not leaves_out:
        raise _RefusedError(f"'{shown(prefix)}' in it holds no tensors")
    if len(prefix) > _LONGEST_NAME:
        raise _RefusedError(f"the name '{shown(prefix[:40])}…' in it is too long")
    seen.add(id(value))
    joint = "" if not prefix else "/" if re.fullmatch(r"rank[0-9]+", prefix) else "."
    for key, part in value.items() if isinstance(value, dict) else enumerate(value):
        yield from _flat(f"{prefix}{joint}{key}", part, seen, leaves_out)


def _dense(name: str, tensor: torch.Tensor) -> Array:
    """Returns a dense tensor's values as an array. Raises an error if values share memory."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        raise _RefusedError(
            f"'{shown(name)}' must be a dense tensor with values, got {tensor.layout} "
            f"on {tensor.device}"
        )
    tensor = tensor.detach()
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        raise _RefusedError(f"'{shown(name)}' repeats its values, {tuple(tensor.shape)} of them")
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_floating_point() and str(tensor.dtype) not in _NUMPY_HAS:
        tensor = tensor.float()
    array: Array = tensor.numpy()
    return array


_NUMPY_HAS = ("torch.float16", "torch.float32", "torch.float64")


_Reader: TypeAlias = Callable[[Path, IO[bytes], bool], Named]
_READERS: dict[str, tuple[_Reader, str]] = {
    ".npy": (_read_npy, ".npy"),
    ".npz": (_read_npz, ".npz"),
    ".safetensors": (_read_safetensors, "safetensors"),
    ".pt": (_read_torch, "torch"),
    ".pth": (_read_torch, "torch"),
}
