# SPDX-License-Identifier: Apache-2.0
"""Generates images for segmentation: `shape_images`, `load_shapes`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from cpd.numeric.later import Later
from cpd_lab.train.data import Data

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

SIDE = 32
KINDS = ("background", "disc", "square", "triangle")
_MOST = 3  # shapes in an image
_NOISE = 0.15  # its standard deviation; colors are within -1…1

Mask = npt.NDArray[np.bool_]


def shape_images(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns images, count x 3 x 32 x 32 in fp32, and the class of each pixel, count x 32 x 32.

    Classes are 0 background, 1 disc, 2 square, 3 triangle. Each image has one to three shapes on a
    background of another color, with noise. Kind, position, size (radius 4…9 pixels) and color of a
    shape are random, and the color does not depend on the kind. Later shapes hide earlier shapes.
    Image i is the same for every `count`. Raises ValueError for a count below 1 or a seed outside
    0…2^32 - 1.
    """
    if count < 1:
        raise ValueError(f"the number of images must be at least 1, got {count}")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed must be 0…4294967295, got {seed}")
    samples = [_image(np.random.RandomState([seed, number])) for number in range(count)]
    images = np.stack([image for image, _ in samples])
    classes = np.stack([classes for _, classes in samples])
    return torch.from_numpy(images), torch.from_numpy(classes)


def load_shapes(images: int, tests: int) -> Data:
    """Returns `images` training images and `tests` test images, the same in every run."""
    return Data(*shape_images(images, 0), *shape_images(tests, 1), "shapes", len(KINDS), "pixels")


def _image(draw: np.random.RandomState) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    image = np.empty((3, SIDE, SIDE))
    image[:] = draw.uniform(-1, 1, (3, 1, 1))
    classes = np.zeros((SIDE, SIDE), np.int64)
    for _ in range(draw.randint(1, _MOST + 1)):
        kind = int(draw.randint(1, len(KINDS)))
        row, column = draw.uniform(6, SIDE - 6, 2)
        inside = _inside(kind, row, column, draw.uniform(4, 9))
        image[:, inside] = draw.uniform(-1, 1, (3, 1))
        classes[inside] = kind
    return (image + draw.normal(0, _NOISE, image.shape)).astype(np.float32), classes


def _inside(kind: int, row: float, column: float, radius: float) -> Mask:
    """Returns the pixels of a shape around a point.

    `radius` is the radius of a disc, or half the width of a square or a triangle.
    """
    down, right = np.mgrid[:SIDE, :SIDE]
    down, right = down - row, right - column
    if kind == 1:
        mask: Mask = down**2 + right**2 <= radius**2
    elif kind == 2:
        mask = np.maximum(abs(down), abs(right)) <= radius
    else:
        mask = (abs(right) <= (down + radius) / 2) & (abs(down) <= radius)
    return mask
