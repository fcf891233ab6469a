# SPDX-License-Identifier: Apache-2.0
"""`OPTIMIZERS`, the optimizers of a training by name, and `optimizer`, which makes one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeAlias

from cpd.numeric.later import Later
from cpd.numeric.names import checked_name

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.optim import Optimizer

    from cpd.optim import lars
else:
    optim, lars = Later("torch.optim"), Later("cpd.optim.lars")

Make: TypeAlias = "Callable[[Iterable[nn.Parameter], float, float, float], Optimizer]"

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p, lr, m, decay: optim.SGD(p, lr=lr, momentum=m, weight_decay=decay),
    "nesterov": lambda p, lr, m, decay: optim.SGD(
        p, lr=lr, momentum=m, weight_decay=decay, nesterov=True
    ),
    "adam": lambda p, lr, m, decay: optim.Adam(p, lr=lr, betas=(m, 0.999), weight_decay=decay),
    "lars": lambda p, lr, m, decay: lars.LARS(p, lr=lr, momentum=m, weight_decay=decay),
}
"""Maps a name to an optimizer: torch's SGD, SGD with Nesterov momentum, Adam, `cpd.optim.LARS`."""


def optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    *,
    lr: float,
    momentum: float,
    weight_decay: float = 0.0,
) -> Optimizer:
    """Makes an optimizer of `OPTIMIZERS`.

    Args:
        name: a name in `OPTIMIZERS`.
        parameters: the parameters to optimize.
        lr: the first learning rate. A schedule may change it later.
        momentum: the momentum of sgd, nesterov and lars, or Adam's first beta. Adam's second beta
            is 0.999.
        weight_decay: the factor by which parameters are added to their gradients; default 0.

    Returns:
        The optimizer.

    Raises:
        ValueError: for an unknown name, and for nesterov with momentum 0.
    """
    checked_name("optimizer", name, OPTIMIZERS)
    if name == "nesterov" and momentum == 0:
        raise ValueError("nesterov needs a momentum above 0, got 0")
    return OPTIMIZERS[name](parameters, lr, momentum, weight_decay)
