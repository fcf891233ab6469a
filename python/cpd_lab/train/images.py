# SPDX-License-Identifier: Apache-2.0
"""CIFAR-10, read from local files, and its augmentations.

`load_cifar10`, `AUGMENTS`, `centred`.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cpd.numeric.later import Later
from cpd_lab.train.data import Data

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor
else:
    torch, F = Later("torch"), Later("torch.nn.functional")

JPEG = "cifar10-jpeg.npz"
BATCHES = "cifar-10-batches-py"

Bytes = npt.NDArray[np.uint8]


def data_folder() -> Path:
    """Returns `$CPD_DATA`, else `../shared/data`, relative to the working directory."""
    return Path(os.environ.get("CPD_DATA", "../shared/data"))


def load_cifar10(folder: Path, train: int = 50_000, test: int = 10_000) -> Data:
    """Returns the first images of each part, N x 3 x 32 x 32.

    They are read from `folder` or its subfolder cifar10, and standardized channel by channel with
    the training part's mean and deviation. `source` is `CIFAR-10`, or `CIFAR-10 (JPEG)`, which is
    lossy: accuracies are quoted with it.

    Two forms are known: the folder cifar-10-batches-py of
    https://www.cs.toronto.edu/~kriz/cifar.html (pickles: only from a trusted source), and
    cifar10-jpeg.npz: JPEG bytes end to end as `train_jpeg` (uint8), where each begins and the last
    ends as `train_offset`, `train_label`, and the same for `test`, which Pillow decodes.

    Raises FileNotFoundError, which says what file to put where; ValueError for numbers of images
    that are not there.
    """
    for place in (folder, folder / "cifar10"):
        if (place / JPEG).exists():
            with np.load(place / JPEG) as stored:
                parts = [
                    _decoded(stored, name, n) for name, n in (("train", train), ("test", test))
                ]
            return _standardised(parts, "CIFAR-10 (JPEG)")
        if (place / BATCHES).exists():
            names = [f"data_batch_{number}" for number in range(1, 6)]
            parts = [
                _unpickled(place / BATCHES, names, train),
                _unpickled(place / BATCHES, ["test_batch"], test),
            ]
            return _standardised(parts, "CIFAR-10")
    raise FileNotFoundError(
        f"no CIFAR-10 in {folder.resolve()}: put {BATCHES}, unpacked from cifar-10-python.tar.gz "
        f"of https://www.cs.toronto.edu/~kriz/cifar.html, or {JPEG} there, or name another folder "
        "by $CPD_DATA"
    )


def augmented(images: Tensor, draw: torch.Generator) -> Tensor:
    """Returns each image moved by -4…4 pixels both ways, and every second one mirrored.

    The rest is filled with 0. `draw`, on the CPU, decides.
    """
    return _windows(F.pad(images, (4, 4, 4, 4)), images.shape[-1], draw)


def cut_out(images: Tensor, draw: torch.Generator) -> Tensor:
    """Returns images as `augmented`, filled by reflection, with a square of 8 x 8 pixels set to 0.

    It is Cutout, as DavidNet's authors use it.
    """
    windows = _windows(F.pad(images, (4, 4, 4, 4), mode="reflect"), images.shape[-1], draw)
    across = torch.arange(images.shape[-1])
    corners = torch.randint(images.shape[-1] - CUT + 1, (2, len(images), 1), generator=draw)
    down, right = (across >= corners) & (across < corners + CUT)
    cut = down[:, None, :, None] & right[:, None, None, :]
    return windows.masked_fill(cut.to(images.device), 0.0)


def cropped(images: Tensor, draw: torch.Generator) -> Tensor:
    """Returns a window of 24 x 24 pixels of each image, every second one mirrored.

    TensorFlow's CIFAR-10 model does so (without its changes of brightness and contrast).
    """
    return _windows(images, CROP, draw)


def centred(images: Tensor, side: int) -> Tensor:
    """Returns the `side` x `side` pixels in the middle of each image."""
    begin = (images.shape[-1] - side) // 2
    return images[..., begin : begin + side, begin : begin + side]


CUT, CROP = 8, 24
AUGMENTS: dict[str, Callable[[Tensor, torch.Generator], Tensor] | None] = {
    "none": None,
    "shift": augmented,
    "cutout": cut_out,
    "crop24": cropped,
}


def _windows(images: Tensor, side: int, draw: torch.Generator) -> Tensor:
    """Returns a square of each image, drawn, and every second one mirrored."""
    count, channels, height, _ = images.shape
    down, right = torch.randint(height - side + 1, (2, count, 1), generator=draw)
    mirrored = torch.randint(2, (count, 1), generator=draw).bool()
    across = torch.arange(side)
    columns = right + torch.where(mirrored, across.flip(0), across)
    rows = down + torch.arange(side)
    device = images.device
    windows: Tensor = images[
        torch.arange(count, device=device)[:, None, None, None],
        torch.arange(channels, device=device)[None, :, None, None],
        rows.to(device)[:, None, :, None],
        columns.to(device)[:, None, None, :],
    ]
    return windows


def _decoded(stored: np.lib.npyio.NpzFile, name: str, count: int) -> tuple[Bytes, Bytes]:
    from PIL import Image

    labels, offsets = stored[f"{name}_label"], stored[f"{name}_offset"]
    _check(count, len(labels), name)
    jpeg = stored[f"{name}_jpeg"].tobytes()
    images = [
        np.asarray(Image.open(io.BytesIO(jpeg[offsets[i] : offsets[i + 1]]))) for i in range(count)
    ]
    # In the order that the pickles have: with channels last, torch's convolutions sum in another,
    # and oneDNN 3.12's write beyond their memory (1 x 1, a stride, few channels).
    return np.ascontiguousarray(np.stack(images).transpose(0, 3, 1, 2)), labels[:count]


def _unpickled(folder: Path, names: list[str], count: int) -> tuple[Bytes, Bytes]:
    files = []
    for name in names:
        with open(folder / name, "rb") as file:
            files.append(pickle.load(file, encoding="bytes"))
    images = np.concatenate([batch[b"data"] for batch in files]).reshape(-1, 3, 32, 32)
    _check(count, len(images), names[0])
    labels = np.concatenate([batch[b"labels"] for batch in files])
    return images[:count], labels[:count]


def _check(count: int, available: int, name: str) -> None:
    if not 0 < count <= available:
        raise ValueError(f"there are {available} images in {name}, got {count}")


def _standardised(parts: list[tuple[Bytes, Bytes]], source: str) -> Data:
    values = [torch.from_numpy(images.astype(np.float32)) / 255 for images, _ in parts]
    mean = values[0].mean(dim=(0, 2, 3), keepdim=True)
    deviation = values[0].std(dim=(0, 2, 3), keepdim=True)
    (train_x, test_x) = ((x - mean) / deviation for x in values)
    (train_y, test_y) = (torch.from_numpy(labels.astype(np.int64)) for _, labels in parts)
    return Data(train_x, train_y, test_x, test_y, source, classes=10)
