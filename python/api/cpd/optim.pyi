# SPDX-License-Identifier: Apache-2.0
"""Optimizers in low precision, loss scaling, and outer optimizers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from cpd import _CastLike, _RecipeLike, _ScheduleLike
from cpd.comm import Communicator, TensorReport
from cpd.compress import States

class LowPrecision(Optimizer):
    """An optimizer of torch whose weights, state and gradients are values of given formats."""

    def __init__(
        self,
        optimizer: Optimizer,
        weight: _CastLike | None = None,
        update: str | None = None,
        master: _CastLike | None = None,
        momentum: _CastLike | None = None,
        second_moment: _CastLike | None = None,
        gradient: _CastLike | None = None,
        *,
        gradient_scale: float = 1.0,
        unscale: bool = True,
        seed: int = 0,
    ) -> None: ...
    def round_weights(self) -> None:
        """Rounds the weights to their format, as before a first step."""

def from_recipe(
    optimizer: Optimizer, recipe: _RecipeLike, *, seed: int = 0
) -> tuple[Optimizer, LossScaler]:
    """Returns the optimizer and the loss scaler that a recipe asks for."""

class LossScaler:
    """A loss scale that shrinks where gradients are not finite, and grows elsewhere."""

    def __init__(
        self,
        scale: float = 65536.0,
        *,
        dynamic: bool = True,
        growth: float = 2.0,
        backoff: float = 0.5,
        interval: int = 2000,
        least: float = 5.960464477539063e-08,
        most: float = 16777216.0,
        group: Any = None,
    ) -> None: ...
    def get_scale(self) -> float:
        """Returns the scale."""

    def scale(self, loss: Tensor) -> Tensor:
        """Returns the loss times the scale."""

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the optimizer's gradients by the scale, in place."""

    def step(self, optimizer: Optimizer, closure: Callable[[], Any] | None = None) -> Any:
        """Steps the optimizer where all gradients are finite."""

    def update(self) -> float:
        """Adapts the scale and returns it."""

    def state_dict(self) -> dict[str, Any]:
        """Returns the scale and the steps since it changed."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continues from a `state_dict`."""

class LARS(Optimizer):
    """Layer-wise adaptive rate scaling (You, Gitman, Ginsburg 2017)."""

    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
        eps: float = 0.0,
        *,
        nesterov: bool = False,
        adaptive: bool = True,
    ) -> None: ...

class WeightAverage:
    """Workers that train alone and average their weights every `period` steps."""

    names: list[str]
    report: dict[str, TensorReport]
    states: States
    steps: int

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        comm: Communicator | None,
        spec: _ScheduleLike,
        period: int,
        *,
        seed: int = 0,
    ) -> None: ...
    @property
    def world_size(self) -> int:
        """The number of workers."""

    def step(self) -> bool:
        """Counts a step, and returns whether it averaged."""

    def state_dict(self) -> dict[str, Any]:
        """Returns what a checkpoint needs besides the models and their optimizers."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from a `state_dict`."""

    def reset(self, name: str | None = None) -> None:
        """Forgets what codecs store of a parameter, or of all parameters."""

class DiLoCo(WeightAverage):
    """Workers whose weights move, every `period` steps, by an outer step with momentum."""

    def __init__(
        self,
        model: nn.Module | Sequence[nn.Module],
        comm: Communicator | None,
        spec: _ScheduleLike,
        period: int,
        *,
        outer_lr: float = 0.7,
        momentum: float = 0.9,
        nesterov: bool = True,
        fragments: int = 1,
        seed: int = 0,
    ) -> None: ...
