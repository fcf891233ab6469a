# SPDX-License-Identifier: Apache-2.0
"""`Batches` deals a training's inputs to the nodes, in micro-batches."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from cpd_lab.train.data import Data
from cpd_lab.train.digits import epoch_order
from cpd_lab.train.images import AUGMENTS, CROP, centred
from cpd_lab.train.options import TrainOptions

Micro = tuple[Tensor, Tensor]
"""The inputs and the targets of one node in one step."""


class Batches:
    """The micro-batches of the nodes of this process.

    Every epoch has its own shuffle. `epoch_order` shuffles the digits. For other data, one torch
    generator, which starts from `options.seed`, shuffles and augments. Each step takes the next
    nodes * batch inputs of the shuffle: `batch` inputs for each node in turn. Inputs that do not
    fill a last step are left out of the epoch.

    Args:
        options: the options of the training.
        data: the data of the training.
        mine: the nodes of this process.

    Attributes:
        steps: the number of steps of an epoch.
        left_out: the number of inputs that each epoch leaves out.
    """

    def __init__(self, options: TrainOptions, data: Data, mine: range) -> None:
        self._options, self._data, self._mine = options, data, mine
        self._per_step = options.nodes * options.batch
        self.steps, self.left_out = divmod(len(data.train_x), self._per_step)
        self._augment = AUGMENTS[options.augment]
        self._draw = torch.Generator().manual_seed(options.seed)

    def epoch(self, epoch: int) -> Iterator[list[Micro]]:
        """Yields each step's micro-batches of this process's nodes."""
        for rows in self._order(epoch).to(self._data.train_x.device):
            if self._augment is None:
                by_node = [rows[node] for node in self._mine]
                yield [
                    (self._data.train_x[indices], self._data.train_y[indices])
                    for indices in by_node
                ]
            else:
                images = self._augment(self._data.train_x[rows.flatten()], self._draw)
                parts = torch.split(images, self._options.batch)
                yield [(parts[node], self._data.train_y[rows[node]]) for node in self._mine]

    def tested(self, data: Data) -> Data:
        """Returns the data with held-out images of the size of the training images.

        Only `augment="crop24"` changes the size: the middle of each held-out image is then cut out.
        """
        if self._options.augment != "crop24":
            return data
        return replace(data, test_x=centred(data.test_x, CROP))

    def _order(self, epoch: int) -> Tensor:
        """Returns the numbers of an epoch's inputs, by [step, node, index in the micro-batch]."""
        options, count = self._options, len(self._data.train_x)
        if options.data == "digits":
            order = epoch_order(options.seed, epoch, count, options.nodes, options.batch)
            return torch.from_numpy(order)
        shuffle = torch.randperm(count, generator=self._draw)
        chosen = shuffle[: self.steps * self._per_step]
        return chosen.reshape(self.steps, options.nodes, options.batch)
