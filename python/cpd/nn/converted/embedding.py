# SPDX-License-Identifier: Apache-2.0
"""Embeddings, whose rows are rounded to the recipe's `embedding`."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from cpd.nn.converted.replaced import lacks
from cpd.nn.converted.state import State
from cpd.nn.embedding import embedding


class EmulatedEmbedding:
    """torch.nn.Embedding by `cpd.functional.embedding`."""

    what: ClassVar[str] = "table"
    cpd: State
    weight: Tensor
    padding_idx: int | None
    max_norm: float | None
    norm_type: float
    scale_grad_by_freq: bool
    sparse: bool

    def forward(self, input: Tensor) -> Tensor:
        """Computes the module's forward by the recipe."""
        return embedding(
            input,
            self.weight,
            self.padding_idx,
            self.max_norm,
            self.norm_type,
            self.scale_grad_by_freq,
            self.sparse,
            recipe=self.cpd.recipe,
            **self.cpd.numbers(),
        )

    @classmethod
    def describe(cls, state: State) -> str:
        """Returns the parts of the recipe that are used, for the report."""
        formats = (how.embedding for how in state.phases() if how.embedding is not None)
        return f"embedding={str(next(formats))!r}"

    @classmethod
    def refuses(cls, module: nn.Module, state: State) -> str:
        """Returns the reason why the module is not emulated; "" if it is."""
        return lacks(state, "embedding")


MIXINS: dict[type[nn.Module], type[Any]] = {nn.Embedding: EmulatedEmbedding}
