# SPDX-License-Identifier: Apache-2.0
"""Optimizers whose weights, state and gradients live in given formats; loss scaling; LARS.

>>> import torch, cpd
>>> model = torch.nn.Linear(4, 2)
>>> adam = torch.optim.AdamW(model.parameters(), lr=1e-3)
>>> optimizer = cpd.optim.LowPrecision(adam, weight="bf16", update="stochastic", momentum="bf16")
"""

from cpd.optim.kahan import KahanAdamW, KahanSGD
from cpd.optim.lars import LARS
from cpd.optim.loss_scaler import LossScaler
from cpd.optim.low_precision import LowPrecision
from cpd.optim.recipe import from_recipe

__all__ = ["LARS", "KahanAdamW", "KahanSGD", "LossScaler", "LowPrecision", "from_recipe"]
