# SPDX-License-Identifier: Apache-2.0
"""Loads scikit-learn's handwritten digits, 1797 images of 8 × 8 pixels, and shuffles them.

`load_digits` reads the images from scikit-learn; `epoch_order` shuffles the images of an epoch.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cpd.numeric.later import Later
from cpd_lab.train.data import Data

if TYPE_CHECKING:
    import torch
else:
    torch = Later("torch")

# The split is the same for every seed. RandomState is NumPy's frozen generator: its numbers do not
# change between versions.
_SPLIT_SEED = 0
_HELD_OUT = 5  # one image in five


def load_digits() -> Data:
    """Loads, splits (1438 training images, 359 held out) and standardizes the digits."""
    images, labels = _images_and_labels()
    order = np.random.RandomState(_SPLIT_SEED).permutation(len(images))
    held_out = len(images) // _HELD_OUT
    test, training = order[:held_out], order[held_out:]
    mean = images[training].mean(axis=0)
    deviation = images[training].std(axis=0)
    deviation[deviation == 0] = 1  # pixels that are blank in every training image
    inputs = torch.from_numpy(((images - mean) / deviation).astype(np.float32))
    targets = torch.from_numpy(labels.astype(np.int64))
    parts = (inputs[training], targets[training], inputs[test], targets[test])
    return Data(*parts, source="digits", classes=10)


def _images_and_labels() -> tuple[npt.NDArray[np.float64], npt.NDArray[Any]]:
    """Returns the 1797 × 64 pixels, with values 0…16, and the digits.

    Reads the file in scikit-learn's folder if the file exists, because importing scikit-learn takes
    two seconds.
    """
    package = find_spec("sklearn")
    for folder in (package and package.submodule_search_locations) or ():
        file = Path(folder, "datasets", "data", "digits.csv.gz")
        if file.exists():
            rows = np.loadtxt(file, delimiter=",")
            return rows[:, :-1], rows[:, -1]
    from sklearn import datasets

    images, labels = datasets.load_digits(return_X_y=True)
    return images, labels


def epoch_order(seed: int, epoch: int, count: int, nodes: int, batch: int) -> npt.NDArray[np.int64]:
    """Returns the numbers of an epoch's images, by [step, node, index in the node's micro-batch].

    Every epoch has its own shuffle of all `count` images. Each step takes the next nodes · batch
    images of the shuffle: `batch` images for each node in turn. The last count mod (nodes · batch)
    images are left out of the epoch, so all micro-batches have the same shape.
    """
    shuffle = np.random.RandomState([seed, epoch]).permutation(count)
    steps = count // (nodes * batch)
    return shuffle[: steps * nodes * batch].reshape(steps, nodes, batch)
