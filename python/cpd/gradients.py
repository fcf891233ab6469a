# SPDX-License-Identifier: Apache-2.0
"""Per-rank gradients in a file: .npz (NumPy) or .safetensors.

Two layouts, told apart by the arrays' names:
- `layer`: one array for each layer, whose leading dimension is the rank;
- `rank{r}/layer`: one array for each rank r = 0, 1, … and layer; all ranks hold the same layers.
Layers keep the file's order (rank 0's in the second layout; safetensors orders names by itself).
float16, bfloat16 and float32 are taken; binary64 only where every value is a binary32 number.
"""

import re
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from cpd import _core

_RANKED = re.compile(r"rank(\d+)/(.+)")
_FP32 = _core.parse_format("fp32")
_NEAREST = _core.RoundingOptions("nearest_even", "ieee", 0, 0, 24, "A")
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


@dataclass(frozen=True)
class Gradients:
    """The layers' names, and [rank][layer] float32 tensors."""

    names: list[str]
    per_rank: list[list[torch.Tensor]]

    @property
    def ranks(self) -> int:
        return len(self.per_rank)

    def layer(self, name: str) -> "Gradients":
        """That layer alone. Raises ValueError for a name that is not there."""
        if name not in self.names:
            raise ValueError(f"no layer {name!r}; the layers are {', '.join(self.names)}")
        index = self.names.index(name)
        return Gradients([name], [[rank[index]] for rank in self.per_rank])


def load_gradients(path: str | Path) -> Gradients:
    """Reads per-rank gradients. Raises ValueError for a file that does not hold any."""
    path = Path(path)
    arrays = _read(path)
    if not arrays:
        raise ValueError(f"{path}: holds no arrays")
    tensors = {name: _as_float32(path, name, tensor) for name, tensor in arrays.items()}
    ranked = [name for name in tensors if _RANKED.fullmatch(name)]
    if not ranked:
        return _from_stacked(path, tensors)
    if len(ranked) < len(tensors):
        other = next(name for name in tensors if name not in ranked)
        raise ValueError(f"{path}: has both 'rank{{r}}/layer' names and {other!r}; use one layout")
    return _from_ranked(path, tensors)


def save_gradients(
    path: str | Path, names: Sequence[str], per_rank: Sequence[Sequence[torch.Tensor]]
) -> None:
    """Writes the first layout as .npz or .safetensors."""
    path = Path(path)
    stacked = {
        name: torch.stack([rank[index].detach() for rank in per_rank]).contiguous()
        for index, name in enumerate(names)
    }
    if _suffix(path) == ".npz":
        with path.open("wb") as file:
            np.savez(file, **{name: t.numpy() for name, t in stacked.items()})  # type: ignore[arg-type]
    else:
        from safetensors.torch import save_file

        save_file(stacked, path)


def check_path(path: str | Path) -> None:
    """Raises ValueError unless the file's ending is one that is read and written here."""
    _suffix(Path(path))


def _suffix(path: Path) -> str:
    if path.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path}: a gradients file must end in .npz or .safetensors")
    return path.suffix


def _read(path: Path) -> dict[str, torch.Tensor]:
    if _suffix(path) == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            loaded: dict[str, torch.Tensor] = load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: not a safetensors file ({error})") from None
        return loaded
    with path.open("rb") as stream:
        if not zipfile.is_zipfile(stream):
            raise ValueError(f"{path}: not an .npz file")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: _from_numpy(file[name]) for name in file.files}
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: {error}") from None


def _from_numpy(array: np.ndarray) -> torch.Tensor:
    native = array.astype(array.dtype.newbyteorder("="), order="C")
    if native.dtype not in (np.float16, np.float32, np.float64):
        raise ValueError(f"every array must hold floating-point values, got {array.dtype}")
    return torch.from_numpy(native)


def _as_float32(path: Path, name: str, tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in _FLOATS:
        return tensor.float().contiguous()
    if tensor.dtype != torch.float64:
        raise ValueError(f"{path}: {name!r} must hold floating-point values, got {tensor.dtype}")
    # By CPD, and compared by bits: other conversions flush subnormals where the program does.
    wide = tensor.contiguous().numpy()
    narrow, again = np.empty(wide.shape, np.float32), np.empty_like(wide)
    _core.cast(wide, _FP32, _NEAREST, narrow)
    _core.cast(narrow, _FP32, _NEAREST, again)
    same = (again.view(np.int64) == wide.view(np.int64)) | np.isnan(wide)
    if not same.all():
        raise ValueError(
            f"{path}: {name!r} holds binary64 values that are not binary32; round them first"
        )
    return torch.from_numpy(narrow)


def _from_stacked(path: Path, tensors: dict[str, torch.Tensor]) -> Gradients:
    for name, tensor in tensors.items():
        if tensor.dim() == 0 or len(tensor) == 0:
            raise ValueError(f"{path}: {name!r} has no leading dimension of ranks")
    sizes = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"{path}: the leading dimension (ranks) differs: {listed}")
    ranks = next(iter(sizes.values()))
    return Gradients(list(tensors), [[t[rank] for t in tensors.values()] for rank in range(ranks)])


def _from_ranked(path: Path, tensors: dict[str, torch.Tensor]) -> Gradients:
    ranks: dict[int, dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _RANKED.fullmatch(name)
        assert match is not None
        ranks.setdefault(int(match[1]), {})[match[2]] = tensor
    if sorted(ranks) != list(range(len(ranks))):
        raise ValueError(f"{path}: ranks must be 0…{len(ranks) - 1}, got {sorted(ranks)}")
    first = ranks[0]
    for rank, layers in sorted(ranks.items()):
        if layers.keys() != first.keys():
            raise ValueError(f"{path}: rank {rank} does not hold the same layers as rank 0")
        for name, tensor in layers.items():
            if tensor.shape != first[name].shape:
                raise ValueError(
                    f"{path}: rank{rank}/{name} has shape {tuple(tensor.shape)}, "
                    f"rank0's is {tuple(first[name].shape)}"
                )
    return Gradients(list(first), [[ranks[r][name] for name in first] for r in range(len(ranks))])
