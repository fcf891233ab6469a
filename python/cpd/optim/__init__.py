# SPDX-License-Identifier: Apache-2.0
"""Optimizers that store weights, state and gradients in number formats of your choice.

The module also has loss scaling, LARS, and optimizers of workers that average their weights every N
steps (`DiLoCo`, `WeightAverage`).

>>> import torch, cpd
>>> model = torch.nn.Linear(4, 2)
>>> adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
>>> optimizer = cpd.optim.LowPrecision(adam, weight="bf16", update="stochastic", momentum="bf16")
"""

from cpd._lazy import attach
from cpd.optim.lars import LARS
from cpd.optim.loss_scaler import LossScaler
from cpd.optim.low_precision import LowPrecision
from cpd.optim.recipe import from_recipe
from cpd.parallel.outer import DiLoCo, WeightAverage

__all__ = [
    "LARS",
    "DiLoCo",
    "LossScaler",
    "LowPrecision",
    "WeightAverage",
    "from_recipe",
]

attach(__name__)
