# SPDX-License-Identifier: Apache-2.0
"""Per-rank gradients in a file: .npy or .npz (NumPy), .safetensors, .pt or .pth (torch.save).

A file has one of two layouts, which the arrays' names distinguish:
- `layer`: one array for each layer; the array's first dimension is the rank;
- `rank{r}/layer`: one array for each rank r = 0, 1, … and layer; all ranks have the same layers.

A .npy file has one layer, in the first layout. torch.save writes the second layout as a list of
dicts, or as a dict of dicts with the keys rank0, rank1, …. Names in other nested dicts are joined
by dots. Layers keep the order of the file (in the second layout, the order of rank 0; safetensors
sorts names). This module reads float32, float16, bfloat16 and torch's 8-bit floats. It reads
binary64 only if every value is a binary32 number, or if rounding is requested. Code in a file is
never executed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from cpd import _core
from cpd._files import replaced, write_npz
from cpd.numeric.later import Later
from cpd.numeric.names import did_you_mean
from cpd.study.gradient_files import Array, not_floats, read_arrays, shown

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

Values: TypeAlias = npt.NDArray[np.float32]

_RANKED = re.compile(r"rank(0|[1-9][0-9]{0,8})/(.+)", re.DOTALL)
_FP32 = _core.Format.parse("fp32")
_NEAREST = _core.RoundingOptions("nearest_even", "ieee", 24, "A")
_MOST_RANKS = 1 << 16


@dataclass(frozen=True)
class NotFinite:
    """The number of NaNs and infinities in one layer of a file, over all ranks."""

    layer: str
    nan: int
    infinite: int
    ranks: list[int]
    """The ranks that have NaNs or infinities in this layer."""

    def __str__(self) -> str:
        kinds = [f"{n} {kind}" for n, kind in ((self.nan, "NaN"), (self.infinite, "Inf")) if n]
        ranks = ", ".join(map(str, self.ranks[:5])) + (", …" if len(self.ranks) > 5 else "")
        which = "rank" if len(self.ranks) == 1 else "ranks"
        return f"layer '{shown(self.layer)}' holds {' and '.join(kinds)} ({which} {ranks})"


@dataclass(frozen=True)
class Gradients:
    """All ranks' gradients: the layers' names, and float32 arrays indexed [rank][layer]."""

    names: list[str]
    per_rank: list[list[Values]]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return len(self.per_rank)

    def layer(self, name: str) -> Gradients:
        """Returns the gradients of the layers that match a name or a pattern (`*`, `?`, `[…]`).

        Raises ValueError if no layer matches.
        """
        chosen = [n for n, own in enumerate(self.names) if own == name]
        chosen = chosen or [n for n, own in enumerate(self.names) if fnmatchcase(own, name)]
        if not chosen:
            names = ", ".join(map(shown, self.names))
            meant = did_you_mean(name, self.names)
            hint = f" ({shown(meant)})" if meant else ""
            raise ValueError(f"no layer '{name}'{hint}; the layers are {names}")
        per_rank = [[rank[n] for n in chosen] for rank in self.per_rank]
        return Gradients([self.names[n] for n in chosen], per_rank)

    def not_finite(self) -> list[NotFinite]:
        """Returns a report of each layer that has a NaN or an infinity."""
        faults = []
        for index, name in enumerate(self.names):
            nan = infinite = 0
            ranks = []
            for rank, layers in enumerate(self.per_rank):
                counts = (int(np.isnan(layers[index]).sum()), int(np.isinf(layers[index]).sum()))
                nan, infinite = nan + counts[0], infinite + counts[1]
                if any(counts):
                    ranks.append(rank)
            if ranks:
                faults.append(NotFinite(name, nan, infinite, ranks))
        return faults


def load_gradients(path: str | Path, round: bool = False) -> Gradients:
    """Reads the gradients of all ranks from a file.

    If `round` is true, binary64 values are rounded to binary32. Raises OSError if the file cannot
    be opened. Raises ValueError if the file has no values or mixes arrays `rank{r}/layer` with
    arrays of all ranks.
    """
    path = Path(path)
    arrays = read_arrays(path)
    if not arrays:
        raise ValueError(f"{path}: holds no arrays")
    layers = {name: _as_float32(path, name, array, round) for name, array in arrays.items()}
    ranked = [name for name in layers if _RANKED.fullmatch(name)]
    if not ranked:
        gradients = _from_stacked(path, layers)
    elif len(ranked) < len(layers):
        other = shown(next(name for name in layers if name not in ranked))
        raise ValueError(f"{path}: has both 'rank{{r}}/layer' names and '{other}'; use one layout")
    else:
        gradients = _from_ranked(path, layers)
    if sum(layer.size for layer in gradients.per_rank[0]) == 0:
        raise ValueError(f"{path}: holds no values")
    return gradients


def save_gradients(
    path: str | Path, names: Sequence[str], per_rank: Sequence[Sequence[torch.Tensor]]
) -> None:
    """Writes gradients, [rank][layer], to a .npz or .safetensors file.

    The file has one array for each layer; the first dimension of the array is the rank.
    """
    path = Path(path)
    stacked = {
        name: torch.stack([rank[index].detach() for rank in per_rank]).contiguous()
        for index, name in enumerate(names)
    }
    check_path(path)
    if path.suffix == ".npz":
        write_npz(path, {name: tensor.numpy() for name, tensor in stacked.items()})
    else:
        from safetensors.torch import save

        with replaced(path) as file:
            file.write(save(stacked))


def check_path(path: str | Path) -> None:
    """Raises ValueError unless the file's ending is .npz or .safetensors."""
    if Path(path).suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{path}: a gradients file must end in .npz or .safetensors to be written")


def _as_float32(path: Path, name: str, array: Array, round: bool) -> Values:
    if array.dtype in (np.float16, np.float32):
        return np.asarray(array, np.float32, order="C")
    name = shown(name)
    if array.dtype != np.float64:
        what = f"'{name}'"
        raise ValueError(f"{path}: {not_floats(what, array.dtype)}")
    # Converts by CPD's cast and compares bits, because NumPy flushes subnormals to zero if the
    # program has set the processor to do so.
    wide = np.asarray(array, order="C")
    narrow, again = np.empty(wide.shape, np.float32), np.empty_like(wide)
    _core.cast(wide, _FP32, _NEAREST, narrow)
    if beyond := int((np.isinf(narrow) & ~np.isinf(wide)).sum()):
        raise ValueError(f"{path}: '{name}' holds values beyond binary32, {beyond} of them")
    _core.cast(narrow, _FP32, _NEAREST, again)
    same = (again.view(np.int64) == wide.view(np.int64)) | np.isnan(wide)
    if not (round or same.all()):
        raise ValueError(
            f"{path}: '{name}' holds binary64 values that are not binary32; --round rounds them"
        )
    return narrow


def _from_stacked(path: Path, layers: dict[str, Values]) -> Gradients:
    for name, layer in layers.items():
        if layer.ndim == 0 or len(layer) == 0:
            raise ValueError(f"{path}: '{shown(name)}' has no leading dimension of ranks")
    sizes = {shown(name): len(layer) for name, layer in layers.items()}
    ranks = next(iter(sizes.values()))
    if len(set(sizes.values())) > 1:
        listed = ", ".join([f"{name} {size}" for name, size in sizes.items()][:8])
        more = ", …" if len(sizes) > 8 else ""
        raise ValueError(f"{path}: the leading dimension (ranks) differs: {listed}{more}")
    if ranks > _MOST_RANKS:
        raise ValueError(
            f"{path}: the leading dimension is the rank, of which there are at most {_MOST_RANKS}, "
            f"got {ranks}"
        )
    per_rank = [[layer[rank, ...] for layer in layers.values()] for rank in range(ranks)]
    return Gradients(list(layers), per_rank)


def _from_ranked(path: Path, named: dict[str, Values]) -> Gradients:
    ranks: dict[int, dict[str, Values]] = {}
    for name, layer in named.items():
        match = _RANKED.fullmatch(name)
        assert match is not None
        ranks.setdefault(int(match[1]), {})[match[2]] = layer
    if sorted(ranks) != list(range(len(ranks))):
        missing = next(r for r in range(len(ranks)) if r not in ranks)
        raise ValueError(
            f"{path}: ranks must be 0…{len(ranks) - 1}, got {max(ranks)} but not {missing}"
        )
    first = ranks[0]
    for rank, layers in sorted(ranks.items()):
        if layers.keys() != first.keys():
            raise ValueError(f"{path}: rank {rank} does not hold the same layers as rank 0")
        for name, layer in layers.items():
            if layer.shape != first[name].shape:
                raise ValueError(
                    f"{path}: rank{rank}/{shown(name)} has shape {layer.shape}, "
                    f"rank0's is {first[name].shape}"
                )
    return Gradients(list(first), [[ranks[r][name] for name in first] for r in range(len(ranks))])
