# SPDX-License-Identifier: Apache-2.0
"""torch.nn.MultiheadAttention: projections by the recipe, attention by the recipe's own."""

from __future__ import annotations

from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor, nn

from cpd.nn.attention import multi_head_attention
from cpd.nn.converted.replaced import idle, run_with, used
from cpd.nn.converted.state import State

_FUNCTIONS = {F.multi_head_attention_forward: multi_head_attention}


class EmulatedMultiheadAttention:
    """Torch's forward, with `cpd.functional.multi_head_attention`.

    That reads the weight of out_proj as torch's function does. The fast path of eval mode is not
    taken.
    """

    what: ClassVar[str] = "attention"
    one_type: ClassVar[bool] = True
    inner: ClassVar[tuple[str, ...]] = ("out_proj",)
    cpd: State

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Computes the module's forward by the recipe."""
        forward = super().forward  # type: ignore[misc]  # the module's
        y: tuple[Tensor, Tensor | None] = run_with(_FUNCTIONS, self.cpd, forward, *args, **kwargs)
        return y

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        return used(state, "attention", "softmax")

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return idle(state, "attention", "softmax")

    @classmethod
    def histories(cls, module: nn.Module) -> tuple[int, int]:
        """Returns the number of its products, and of attention's, that may have histories."""
        return 4, 2


MIXINS: dict[type[nn.Module], type[Any]] = {nn.MultiheadAttention: EmulatedMultiheadAttention}
