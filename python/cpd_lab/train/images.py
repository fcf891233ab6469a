# SPDX-License-Identifier: Apache-2.0
"""Reads CIFAR-10 from local files (`load_cifar10`) and augments its images (`AUGMENTS`)."""

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
    """Returns the folder `$CPD_DATA`; if it is not set, the relative path `../shared/data`."""
    return Path(os.environ.get("CPD_DATA", "../shared/data"))


def load_cifar10(folder: Path, train: int = 50_000, test: int = 10_000) -> Data:
    """Returns the first images of CIFAR-10's training and test parts, N x 3 x 32 x 32.

    Reads the images from `folder` or from its subfolder cifar10. Standardizes each channel with the
    mean and the deviation of the training part. The result's `source` is `CIFAR-10`, or `CIFAR-10
    (JPEG)` for lossy JPEG files, which change accuracies.

    Two forms of the data are supported:

    - the folder cifar-10-batches-py of https://www.cs.toronto.edu/~kriz/cifar.html. The files are
      pickles; read them only from a trusted source.
    - the file cifar10-jpeg.npz, which Pillow decodes. `train_jpeg` (uint8) holds all JPEG files end
      to end. `train_offset` holds the start of each file and the end of the last one. `train_label`
      holds the classes. The names with `test` in place of `train` hold the test part.

    Args:
        folder: the folder with the data.
        train: the number of training images; default all 50,000.
        test: the number of test images; default all 10,000.

    Returns:
        The data, with float32 inputs and int64 targets.

    Raises:
        FileNotFoundError: if no data are found. The message says which file to put where.
        ValueError: if the data have fewer images than requested.
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
    """Returns each image moved by -4…4 pixels in both directions and, at random, mirrored.

    A pixel without a source pixel becomes 0. An image is mirrored with probability 1/2. `draw` is a
    generator on the CPU, which makes all random choices.
    """
    return _windows(F.pad(images, (4, 4, 4, 4)), images.shape[-1], draw)


def cut_out(images: Tensor, draw: torch.Generator) -> Tensor:
    """Returns images as `augmented` does, with a random square of 8 x 8 pixels set to 0.

    Unlike in `augmented`, pixels beyond the edge come from a reflection. The square is Cutout, as
    DavidNet's authors use it.
    """
    windows = _windows(F.pad(images, (4, 4, 4, 4), mode="reflect"), images.shape[-1], draw)
    across = torch.arange(images.shape[-1])
    corners = torch.randint(images.shape[-1] - CUT + 1, (2, len(images), 1), generator=draw)
    down, right = (across >= corners) & (across < corners + CUT)
    cut = down[:, None, :, None] & right[:, None, None, :]
    return windows.masked_fill(cut.to(images.device), 0.0)


def cropped(images: Tensor, draw: torch.Generator) -> Tensor:
    """Returns a random window of 24 x 24 pixels of each image, mirrored with probability 1/2.

    TensorFlow's CIFAR-10 model does the same, but also changes brightness and contrast.
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
    """Returns a random `side` x `side` window of each image, mirrored with probability 1/2."""
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
    # Store the pixels channel by channel, as the pickles do. With channels last, torch's
    # convolutions sum in another order. Some convolutions of oneDNN 3.12 (1 x 1, with a stride, few
    # channels) then even write beyond their memory.
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
