# SPDX-License-Identifier: Apache-2.0
"""The all-reduce of one step, to which nodes pass their gradients one node after the other."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from cpd import _core
from cpd.comm.layers import native_values, plain_values, row_layouts
from cpd.comm.schedule import Schedule
from cpd.comm.spec import Reduce
from cpd.comm.virtual import TensorReport, tensor_report
from cpd.parallel.nodes.gradients import Gradients


class Part:
    """The all-reduce of the tensors (layers) of one spec, in one process.

    Nodes pass their gradients in turns: the spec's order of summation determines which node's
    gradients are added next. With APS, and with codecs that first measure tensors, the first turns
    only measure each node's gradients.
    """

    numbers: list[int]
    """The indices of this object's layers in the list of all layers."""

    def __init__(
        self,
        spec: Reduce,
        numbers: list[int],
        shapes: Sequence[tuple[int, ...]],
        world: int,
        states: _core.CodecStates | None,
        names: Sequence[str],
        device: torch.device,
        seed: int,
        step: int,
    ) -> None:
        self.numbers = numbers
        self._device = device
        self._shapes = [shapes[number] for number in numbers]
        chosen = self._shapes
        called = [names[number] for number in numbers]
        self._layouts = row_layouts(spec._compressor, chosen, numbers, called)
        self._reduce = _core.VirtualReduce(
            spec._held,
            world,
            [math.prod(shape) for shape in chosen],
            seed,
            step,
            numbers,
            None if spec.format is not None else states,
            [layout.row for layout in self._layouts],
        )
        self._order = self._reduce.schedule()
        self._looks = world if self._reduce.wants_ranges() else 0
        self._turns = [*range(self._looks), *self._order]
        self._turn = 0

    @property
    def sweeps(self) -> int:
        """The number of passes over all nodes, in ascending order, that the reduction needs."""
        return 1 + [b < a for a, b in itertools.pairwise(self._turns)].count(True)

    def awaits(self, node: int) -> bool:
        """Returns whether the next turn (see the class) takes the gradients of `node`."""
        return self._turn < len(self._turns) and self._turns[self._turn] == node

    def take(self, node: int, gradients: Gradients) -> None:
        """Measures or adds the gradients of `node` in each of the next turns that take them.

        `gradients` has one gradient for each layer in `numbers`; None stands for zeros.
        """
        plain = [self._values(index, gradient) for index, gradient in enumerate(gradients)]
        layers = [native_values(array) for array in plain]
        while self.awaits(node):
            looks = self._turn < self._looks
            use = self._reduce.observe if looks else self._reduce.contribute
            for index, layer in enumerate(layers):
                use(index, layer)
            if not looks:
                self._reduce.end_rank()
            self._turn += 1

    def result(self, index: int, like: torch.Tensor) -> tuple[torch.Tensor, TensorReport]:
        """Returns the reduced gradient of one layer, and its report.

        The gradient has the shape, dtype, layout and device of `like`.
        """
        sums = torch.empty(like.shape, dtype=torch.float32, device=self._device)
        self._reduce.result(index, native_values(plain_values(sums)))
        if self._layouts:
            sums = self._layouts[index].restored(sums.view(-1), sums.shape)
        output = torch.empty_like(like, requires_grad=False)
        plain = (
            output.dtype is sums.dtype and output.device == sums.device and output.is_contiguous()
        )
        return sums if plain else output.copy_(sums), tensor_report(self._reduce.report(index))

    def commit(self) -> None:
        """Stores the codec states of this step."""
        self._reduce.commit()

    def _values(self, index: int, gradient: torch.Tensor | None) -> Any:
        """Returns a gradient's float32 values on the device where they are summed."""
        if gradient is None:
            gradient = torch.zeros(self._shapes[index], device=self._device)
        gradient = gradient.to(self._device)
        moved = self._layouts[index].move(gradient) if self._layouts else gradient
        return plain_values(moved)


class Folds:
    """The all-reduce of one step, divided into a `Part` for each distinct spec of the schedule."""

    kept: set[int]
    """The indices of the layers whose gradients are needed in several passes over the nodes."""

    def __init__(
        self,
        schedule: Schedule,
        layers: Mapping[str, Sequence[int]],
        world: int,
        step: int,
        states: _core.CodecStates | None = None,
        *,
        planned: bool = False,
        device: torch.device | None = None,
        seed: int = 0,
    ) -> None:
        """Prepares the sums of one step.

        `layers` maps names to shapes. `seed` is the seed of casts, codecs and sums. If `planned` is
        true, the object has no memory for sums, and only its attributes `sweeps` and `kept` may be
        used. `device` is where layers are summed; None means the CPU.
        """
        self._shapes = [tuple(shape) for shape in layers.values()]
        parts = schedule._parts(list(layers), step, [math.prod(s) for s in self._shapes])
        shapes = [(0,) for _ in layers] if planned else self._shapes
        names = list(layers)
        place = torch.device("cpu") if device is None else device
        self._parts = [
            Part(spec, numbers, shapes, world, states, names, place, seed, step)
            for spec, numbers in parts
        ]
        self.sweeps = max(part.sweeps for part in self._parts)
        self.kept = {number for part in self._parts if part.sweeps > 1 for number in part.numbers}

    def awaits(self, node: int) -> bool:
        """Returns whether the next turn of any `Part` takes the gradients of `node`."""
        return any(part.awaits(node) for part in self._parts)

    def take(self, node: int, gradients: Gradients) -> None:
        """Passes the gradients of `node` to each `Part` whose next turn takes them.

        `gradients` has the gradients of all layers. A gradient of None stands for zeros.
        """
        for part in self._parts:
            if part.awaits(node):
                part.take(node, [gradients[number] for number in part.numbers])

    def results(
        self, like: Sequence[torch.Tensor]
    ) -> list[tuple[torch.Tensor | None, TensorReport]]:
        """Returns each layer's reduced gradient and report. All turns must have been taken."""
        by_number: dict[int, tuple[torch.Tensor | None, TensorReport]] = {
            number: part.result(index, like[number])
            for part in self._parts
            for index, number in enumerate(part.numbers)
        }
        return [by_number[number] for number in range(len(like))]

    def commit(self) -> None:
        """Stores the codec states of this step. Call it last: a failed step stores no states."""
        for part in self._parts:
            part.commit()
